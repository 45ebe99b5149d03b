"""Synthesis, placement and routing with open tools: Verilog in; cells, MHz and the slowest path out.

The same Verilog, constraints, seed and tools give the same result on every machine.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from . import tools
from .area import Area
from .netlist import SYNTHESIS

ROUTE_SECONDS = 4 * 3600


#: What yosys appends to the name of a net when it makes others of it: a cell's type, and a port.
_APPENDED = re.compile(r"_(?:LUT[1-6]|CCU2C|PFUMX|L6MUX21|TRELLIS_\w+|DP16KD|ALU|MUX2_LUT\d|DFF\w*)_")


@dataclass(frozen=True)
class Chip:
    """A chip that open tools can route: its maker's name for it, its family, and nextpnr's words for it."""

    name: str
    family: str
    options: tuple[str, ...]


#: The largest ECP5, in its slowest grade and the package of the ULX3S.
ECP5_85F = Chip("LFE5U-85F-6BG381C", "ecp5", ("--85k", "--package", "CABGA381", "--speed", "6"))
#: Options for a design whose wide words go between most block RAMs of a chip: this placer takes longer, knows
#: nothing of the heap placer's weights, and makes wires so much shorter that they find their way.
CROWDED = ("--placer", "static")


@dataclass(frozen=True)
class Clock:
    """A clock, with the MHz asked of it and the MHz reached."""

    name: str
    asked: float
    reached: float


@dataclass(frozen=True)
class Step:
    """One net of a path: the nanoseconds up to its end, its name, and the lines of source that made it."""

    ns: float
    name: str
    sources: tuple[str, ...]


@dataclass(frozen=True)
class Routed:
    """A design in a chip."""

    chip: Chip
    area: Area
    room: Area  #: what the chip has
    clocks: tuple[Clock, ...]
    critical_path: tuple[Step, ...]  #: of the clock that is furthest from what was asked
    output: Path  #: what the family's packer makes a bitstream of

    @property
    def slowest(self) -> Clock:
        """The clock that is furthest from what was asked."""
        return min(self.clocks, key=lambda clock: clock.reached / clock.asked)

    @property
    def met(self) -> bool:
        """Whether every clock reaches what was asked."""
        return self.slowest.reached >= self.slowest.asked

    def path_table(self) -> str:
        """The critical path by the names in the source."""
        rows = [(step.ns, step.name, " ".join(step.sources)) for step in self.critical_path]
        return tabulate(rows, ("ns", "signal", "source"), floatfmt=".2f")


@dataclass(frozen=True)
class _Family:
    program: str  #: nextpnr's name for it
    synthesis: str  #: yosys' commands that map the module {top}
    constraints: Callable[[str], list[str]]  #: options that read constraints from a file
    output: str  #: option that writes what is packed
    placement: tuple[str, ...]  #: nextpnr's options for every design
    #: Cells in nextpnr's utilisation that are LUTs of any use, then what takes some of them for RAM and how
    #: many, flip-flops, block RAMs.
    luts: tuple[str, ...]
    ram: tuple[str, int]
    flip_flops: tuple[str, ...]
    block_rams: tuple[str, ...]


_FAMILIES = {
    "ecp5": _Family(
        program="ecp5",
        synthesis=SYNTHESIS["ecp5"],
        constraints=lambda file: ["--lpf", file] if file else ["--lpf-allow-unconstrained"],
        output="--textcfg",
        # What a block RAM answers is late: more than the usual weight brings the register behind it near.
        placement=("--placer-heap-timingweight", "40"),
        luts=("TRELLIS_COMB",),
        ram=("TRELLIS_RAMW", 4),
        flip_flops=("TRELLIS_FF",),
        block_rams=("DP16KD",),
    ),
    "gowin": _Family(
        program="himbaechel-gowin",
        synthesis="synth_gowin -family gw5a -top {top}\n",
        constraints=lambda file: ["--vopt", f"cst={file}"] if file else [],
        output="--write",
        placement=(),
        luts=("LUT4",),
        ram=("RAM16SDP4", 4),
        flip_flops=("DFF",),
        block_rams=("BSRAM",),
    ),
}


def flow(family: str) -> tuple[str, ...]:
    """Yosys' commands and nextpnr's options for all designs of a family: routes depend on them."""
    return (_FAMILIES[family].synthesis, *_FAMILIES[family].placement)


def synthesise(
    verilog: str,
    top: str,
    *,
    chip: Chip = ECP5_85F,
    folder: Path,
    watch: Callable[[str], None] | None = None,
) -> Path:
    """The netlist of the module `top`, which `place` reads."""
    (folder / "top.v").write_text(verilog)
    commands = _FAMILIES[chip.family].synthesis.format(top=top)
    tools.run_yosys(f"read_verilog top.v\n{commands}write_json netlist.json\n", cwd=folder, watch=watch)
    return folder / "netlist.json"


def top_of(netlist: dict) -> dict:
    """The top module of a netlist, as yosys wrote it."""
    return next(module for module in netlist["modules"].values() if "top" in module["attributes"])


def place(
    netlist: Path,
    *,
    mhz: float,
    seed: int = 1,
    chip: Chip = ECP5_85F,
    folder: Path,
    constraints: str = "",
    options: tuple[str, ...] = (),
    watch: Callable[[str], None] | None = None,
) -> Routed:
    """Puts a netlist that `synthesise` made into the chip; each line that a tool prints goes to `watch`.

    `mhz` is asked of every clock that the constraints do not name. Without constraints pins lie anywhere.
    `options` are nextpnr's, behind those of the family. Missed timing is not an error here: see `Routed.met`.
    """
    family = _FAMILIES[chip.family]
    output, report = folder / f"routed.{seed}", folder / f"report.{seed}.json"
    if constraints:
        (folder / "constraints").write_text(constraints)
    arguments = [
        *chip.options,
        *("--json", netlist.name, family.output, output.name, "--report", report.name),
        *family.constraints("constraints" if constraints else ""),
        *("--freq", f"{mhz:g}", "--seed", seed, *family.placement, *options),
        # Whether timing is met is told by the report; any other exit code than 0 is a failure.
        "--timing-allow-fail",
    ]
    tools.run(tools.nextpnr(family.program), arguments, cwd=folder, seconds=ROUTE_SECONDS, watch=watch)
    return _read(json.loads(report.read_text()), chip, output, _sources(netlist))


def pack(netlist: Path, *, chip: Chip = ECP5_85F, folder: Path) -> tuple[Area, Area]:
    """The cells that a netlist takes, and those that the chip has: known long before all are placed."""
    family = _FAMILIES[chip.family]
    arguments = [
        *chip.options,
        *("--json", netlist.name, "--report", "packed.json", "--pack-only"),
        *family.constraints(""),
    ]
    tools.run(tools.nextpnr(family.program), arguments, cwd=folder, seconds=ROUTE_SECONDS)
    return _areas(json.loads((folder / "packed.json").read_text()), chip)


def _read(report: dict, chip: Chip, output: Path, sources: dict[str, tuple[str, ...]]) -> Routed:
    """What nextpnr's report says."""
    used, room = _areas(report, chip)
    clocks = {
        name: Clock(_plain(name), figures["constraint"], figures["achieved"])
        for name, figures in report["fmax"].items()
    }
    worst = min(clocks, key=lambda name: clocks[name].reached / clocks[name].asked, default=None)
    path = next(
        (
            path["path"]
            for path in report["critical_paths"]
            if path["from"].split(" ", 1)[-1] == worst == path["to"].split(" ", 1)[-1]
        ),
        [],
    )
    return Routed(
        chip=chip,
        area=used,
        room=room,
        clocks=tuple(clocks.values()),
        critical_path=_steps(path, sources),
        output=output,
    )


def _areas(report: dict, chip: Chip) -> tuple[Area, Area]:
    """The cells that are used, and those that the chip has."""
    family = _FAMILIES[chip.family]
    cells = report["utilization"]

    def area(which: str) -> Area:
        def count(names):
            return sum(cells[name][which] for name in names if name in cells)

        ram = count(family.ram[:1]) * family.ram[1]
        return Area(
            logic=count(family.luts) - (ram if which == "used" else 0),
            ram=ram,
            flip_flops=count(family.flip_flops),
            block_rams=count(family.block_rams),
        )

    return area("used"), area("available")


def _steps(path: list[dict], sources: dict[str, tuple[str, ...]]) -> tuple[Step, ...]:
    """The signals on a path, with the register at its end; a signal met again counts where it is met last."""
    steps, ns = {}, 0.0
    for part in path:
        ns += part["delay"]
        name = _plain(part["to"]["cell"] if part["type"] == "setup" else part.get("net", ""))
        # Nets inside a carry chain have no name of their own.
        if name and not name.startswith("$"):
            steps[name] = Step(ns, name, sources.get(name.partition("[")[0], ()))
    return tuple(steps.values())


def _sources(netlist: Path) -> dict[str, tuple[str, ...]]:
    """The lines of our source for each net that a netlist names."""
    nets = top_of(json.loads(netlist.read_text()))["netnames"]
    return {
        name: tuple(dict.fromkeys(re.findall(r"\bhw/\w+\.py:\d+", net["attributes"].get("src", ""))))
        for name, net in nets.items()
    }


def _plain(name: str) -> str:
    """A net's name as in the source: without what the tools appended."""
    name = name.removeprefix("$glbnet$").partition("$TRELLIS_IO")[0]
    return _APPENDED.split(name, maxsplit=1)[0]
