"""Projects for the tools of a chip's maker, checked to be complete; and those tools, if they are there.

Virtex-6 goes to ISE as a netlist from yosys. Arria 10 goes to Quartus as Verilog, and yosys maps it for the
ALM of Cyclone V, which is like it, to tell its size.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import tools
from .area import Area, area_of, cells_of
from .boards import Board
from .errors import TimingError, ToolError
from .top import TOP

VENDOR_SECONDS = 6 * 3600

#: The primitives of Virtex-6 that ISE knows (UG623), as far as yosys and our own instances use them.
VIRTEX6_PRIMITIVES = {
    *("LUT1", "LUT2", "LUT3", "LUT4", "LUT5", "LUT6", "CARRY4", "MUXF7", "MUXF8", "INV", "GND", "VCC"),
    *("FDRE", "FDSE", "FDCE", "FDPE", "FDRE_1", "FDSE_1", "FDCE_1", "FDPE_1"),
    *("RAM32M", "RAM64M", "RAM32X1D", "RAM64X1D", "RAM128X1D", "SRL16E", "SRLC32E", "RAMB18E1", "RAMB36E1"),
    *("IBUF", "OBUF", "IBUFG", "IBUFGDS", "BUFG", "MMCM_ADV"),
}


@dataclass(frozen=True)
class Flow:
    """How a family's projects are made, run and judged."""

    synthesis: str  #: yosys' command
    area: Callable[[dict[str, int]], Area]
    luts: str  #: what the area's LUTs are
    product: str  #: the bitstream's file
    programs: Callable[[Board], tuple[str, ...]]  #: the maker's commands, one after the other
    missed: Callable[[Path, str], str]  #: what the tools wrote about missed timing, or nothing


def _ise(board: Board) -> tuple[str, ...]:
    return (
        f"ngdbuild -p {board.chip} -uc {TOP}.ucf {TOP}.edif {TOP}.ngd",
        f"map -w -ol high -t 1 -o {TOP}_map.ncd {TOP}.ngd {TOP}.pcf",
        f"par -w -ol high {TOP}_map.ncd {TOP}.ncd {TOP}.pcf",
        f"bitgen -w {TOP}.ncd {TOP}.bit {TOP}.pcf",
    )


def _ise_missed(folder: Path, printed: str) -> str:
    if "All constraints were met" in printed:
        return ""
    return "\n".join(line for line in printed.splitlines() if "constraint" in line) or "par does not say"


def _quartus(board: Board) -> tuple[str, ...]:
    return (f"quartus_sh --flow compile {TOP}",)


def _quartus_missed(folder: Path, printed: str) -> str:
    summary = folder / "output_files" / f"{TOP}.sta.summary"
    if not summary.exists():
        raise ToolError(f"quartus_sh wrote no {summary}")
    found = re.findall(r"^Type\s*: (.*)\nSlack\s*: (-[\d.]+)", summary.read_text(), re.MULTILINE)
    return "\n".join(f"{kind}: slack {slack} ns" for kind, slack in found)


def _arria10_area(cells: dict[str, int]) -> Area:
    def count(*starts: str) -> int:
        return sum(number for cell, number in cells.items() if cell.startswith(starts))

    return Area(
        logic=count("MISTRAL_ALUT", "MISTRAL_NOT"),
        ram=20 * count("MISTRAL_MLAB"),
        flip_flops=count("MISTRAL_FF"),
        block_rams=count("MISTRAL_M10K"),
    )


_FLOWS = {
    "virtex6": Flow(
        synthesis=f"synth_xilinx -family xc6v -ise -top {TOP} -edif {TOP}.edif",
        area=area_of,
        luts="LUTs mapped by yosys, before packing",
        product=f"{TOP}.bit",
        programs=_ise,
        missed=_ise_missed,
    ),
    "arria10": Flow(
        synthesis=f"synth_intel_alm -family cyclonev -top {TOP}",
        area=_arria10_area,
        luts="an estimate: half ALMs mapped by yosys for Cyclone V, RAM in registers",
        product=f"output_files/{TOP}.sof",
        programs=_quartus,
        missed=_quartus_missed,
    ),
}


def flow(board: Board) -> Flow:
    """The flow of a board's family."""
    return _FLOWS[board.family]


def synthesise(board: Board, verilog: str, folder: Path, watch: Callable[[str], None] | None = None) -> Area:
    """Writes the project's Verilog and, for ISE, its netlist; returns how much of the chip they take."""
    (folder / f"{TOP}.v").write_text(verilog)
    script = f"read_verilog {TOP}.v\n{flow(board).synthesis}\ntee -o cells.json stat -json\n"
    tools.run_yosys(script, cwd=folder, watch=watch)
    cells = cells_of(folder / "cells.json")
    if board.family == "virtex6":
        ours = set(re.findall(r"^module \\?([^\s(]+)", verilog, re.MULTILINE))
        if unknown := set(cells) - ours - VIRTEX6_PRIMITIVES - {"$scopeinfo"}:
            raise ToolError(f"{board.name}: ISE does not know the cells {', '.join(sorted(unknown))}")
    return flow(board).area(cells)


def check(board: Board, folder: Path) -> None:
    """Makes sure that a project is complete: its files, a pin for each port, and a rate for the clock."""
    suffixes = (".ucf", ".xise", ".qpf", ".qsf", ".sdc")
    text = "\n".join(path.read_text() for path in sorted(folder.iterdir()) if path.suffix in suffixes)
    for file in re.findall(rf'(?:_FILE |<file xil_pn:name=")({TOP}\.\w+)', text):
        if not (folder / file).is_file():
            raise ToolError(f"{board.name}: the project names {file}, which is not there")
    top = re.search(rf"^module {TOP}\(([^)]*)\)", (folder / f"{TOP}.v").read_text(), re.MULTILINE)
    for port in top[1].split(", "):
        if not re.search(rf'NET "{port}" LOC|PIN_\w+ -to {port}$', text, re.MULTILINE):
            raise ToolError(f"{board.name}: port {port!r} has no pin in the project")
    if not re.search(r"TIMESPEC|create_clock", text):
        raise ToolError(f"{board.name}: the clock has no rate in the project")


def run(board: Board, folder: Path, watch: Callable[[str], None] | None = None) -> Path | None:
    """The bitstream, made in `folder` by the maker's tools, or nothing if they are not all on PATH."""
    commands = [command.split() for command in flow(board).programs(board)]
    found = [tools.vendor(program) for program, *_ in commands]
    if not all(found):
        return None
    printed = ""
    for tool, (_, *arguments) in zip(found, commands):
        printed += tools.run(tool, arguments, cwd=folder, seconds=VENDOR_SECONDS, watch=watch)
    if missed := flow(board).missed(folder, printed):
        raise TimingError(f"timing missed on {board.name}:\n{missed}")
    product = folder / flow(board).product
    if not product.is_file():
        raise ToolError(f"{found[-1].name} wrote no {flow(board).product}")
    return product
