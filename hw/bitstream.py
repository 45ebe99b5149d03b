"""`make bitstream`: a board's bitstream, from parameters to a file that can be loaded.

What a bitstream is built from (gateware, constraints, options, tool versions) has a digest. It is in the
registers BUILD of the device, and the name under which the build is kept: the same build is made once.
"""

import argparse
import contextlib
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from . import boards, constraints, route, tools, vendor
from .area import Area
from .boards import Board
from .cache import cache_directory, locked
from .errors import ParameterError, TimingError, TouchlineError
from .frame import Link
from .parameters import OWN, Parameters
from .top import TOP, emit_top

DEFAULT_BOARD = "ulx3s-85f"
#: The joiner that is built unless parameters are given.
DEFAULT = {"cores": "8", "segment": "16", "lanes": "1"}
#: The clock of the logic in MHz, by family, where the board lets it be chosen.
DEFAULT_MHZ = {"ecp5": 80, "virtex6": 100}
LINK = Link()
#: How long to wait for another process that makes the same build.
BUILD_SECONDS = 4 * 3600
#: Where builds are also put, in a folder per board.
OUTPUT = Path("build")

_NO_BITSTREAM = "no bitstream was made"


@dataclass(frozen=True)
class Plan:
    """What is to be built: it decides the bitstream to the last bit."""

    board: Board
    parameters: Parameters
    mhz: float
    baud: int
    seeds: int = 1  #: placements that are tried, of which the fastest is kept

    @classmethod
    def from_options(cls, options: dict[str, str | None]) -> "Plan":
        """A plan from the texts of a command line; what is not given has its default."""
        given = {name: text for name, text in options.items() if text is not None}
        board = boards.load(given.pop("board", DEFAULT_BOARD))
        mhz = _number(given, "mhz", float, board.mhz or DEFAULT_MHZ.get(board.family))
        baud = _number(given, "baud", int, board.baud)
        seeds = _number(given, "seeds", int, 1)
        architecture = given.pop("architecture", "handshake")
        parameters = Parameters.from_options(architecture, DEFAULT | given)
        if seeds > 64:
            raise ParameterError(f"seeds must be at most 64, not {seeds}")
        return cls(board, parameters, mhz, baud, seeds)

    def verilog(self, build: bytes = bytes(32), *, sources: bool = False) -> str:
        """The gateware; without `build` it is the same wherever and with whatever tools it is built."""
        return emit_top(self.board, self.parameters, LINK, self.mhz, self.baud, build, sources=sources)

    @cached_property
    def constraints(self) -> dict[str, str]:
        """The files of constraints, by name."""
        return constraints.write(self.board, self.mhz)

    @cached_property
    def tools(self) -> dict[str, str]:
        """The tools that build it, and their versions."""
        used = [tools.yosys()]
        match self.board.family:
            case "ecp5":
                used += [tools.nextpnr("ecp5"), tools.ecppack()]
            case "gowin":
                used += [tools.nextpnr("himbaechel-gowin"), tools.gowin_pack()]
            case _:
                programs = [command.split()[0] for command in vendor.flow(self.board).programs(self.board)]
                used += [tool for tool in map(tools.vendor, programs) if tool]
        return {tool.name: tool.version for tool in used}

    @cached_property
    def digest(self) -> bytes:
        """The digest of all that the build depends on."""
        board = self.board
        is_open = board.family in boards.OPEN
        flow = route.flow(board.family) if is_open else (vendor.flow(board).synthesis,)
        numbers = [f"{self.mhz:g}", f"{self.baud}", f"{self.seeds}"]
        options = [*flow, board.name, board.chip, *board.nextpnr, *numbers]
        versions = [part for item in sorted(self.tools.items()) for part in item]
        files = [part for item in sorted(self.constraints.items()) for part in item]
        digest = hashlib.sha256()
        for part in (self.verilog(), *files, *options, *versions):
            digest.update(f"{len(part)}:{part}".encode())
        return digest.digest()


def _number(given: dict[str, str], name: str, kind: type, default: float | int) -> float | int:
    text = given.pop(name, None)
    if text is None:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        what = "integer" if kind is int else "number"
        raise ParameterError(f"{name} must be a positive {what}, not {text!r}")
    return value


@dataclass(frozen=True)
class Built:
    """A build that is kept: its folder, what there is to say about it, and whether a bitstream is in it."""

    folder: Path
    summary: str
    complete: bool


def build(plan: Plan, watch: Callable[[str], None] = lambda line: None) -> Built:
    """Makes a build, or finds it; what happens goes to `watch`, line by line."""
    key = f"{plan.board.name}-{plan.digest.hex()[:16]}"
    cache = cache_directory() / "bitstreams"
    kept = cache / key
    cache.mkdir(parents=True, exist_ok=True)
    with locked(cache / f"{key}.lock", BUILD_SECONDS):
        if not kept.exists():
            for left_by_a_killed_builder in cache.glob(f"{key}.*.tmp"):
                shutil.rmtree(left_by_a_killed_builder, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f"{key}.", suffix=".tmp", dir=cache) as scratch:
                folder = Path(scratch) / "build"
                folder.mkdir()
                (_open if plan.board.family in boards.OPEN else _vendor)(plan, folder, watch)
                os.replace(folder, kept)
    output = OUTPUT / plan.board.name
    shutil.rmtree(output, ignore_errors=True)
    shutil.copytree(kept, output)
    summary = (output / "summary.txt").read_text().replace("{folder}", str(output))
    return Built(output, summary, not summary.rstrip().endswith(_NO_BITSTREAM))


def _open(plan: Plan, folder: Path, watch: Callable[[str], None]) -> None:
    """Builds with open tools, all the way."""
    board = plan.board
    chip = route.Chip(board.chip, board.family, board.nextpnr)
    for name, text in plan.constraints.items():
        (folder / name).write_text(text)
    (text,) = plan.constraints.values()
    watch("gateware to Verilog")
    verilog = plan.verilog(plan.digest, sources=True)
    with _scratch(folder) as work:
        netlist = route.synthesise(verilog, TOP, chip=chip, folder=work, watch=watch)
        best = None
        for seed in range(1, plan.seeds + 1):
            watch(f"seed {seed} of {plan.seeds}")
            routed = route.place(
                netlist, mhz=plan.mhz, seed=seed, chip=chip, folder=work, constraints=text, watch=watch
            )
            if best is None or _margin(routed) > _margin(best):
                best = routed
        if not best.met:
            raise TimingError(_missed(plan, best))
        # Programs of wheels see no folder but the one they are started in.
        if board.family == "ecp5":
            name, packer = f"{TOP}.bit", tools.ecppack()
            arguments = ["--compress", "--input", best.output.name, "--bit", name]
        else:
            name, packer = f"{TOP}.fs", tools.gowin_pack()
            (device,) = (option.partition("=")[2] for option in board.nextpnr if option.startswith("family="))
            arguments = ["-d", device, "-o", name, best.output.name]
        tools.run(packer, arguments, cwd=work, seconds=route.ROUTE_SECONDS, watch=watch)
        file = (work / name).rename(folder / name)
    (folder / f"{TOP}.v").write_text(verilog)
    clocks = ", ".join(
        f"{clock.reached:.1f} MHz reached, {clock.asked:g} asked ({clock.name})" for clock in best.clocks
    )
    rows = [
        ("file", f"{{folder}}/{file.name} ({file.stat().st_size:,} bytes)"),
        ("sha256", hashlib.sha256(file.read_bytes()).hexdigest()),
        *_head(plan),
        ("clock", clocks),
        *_utilisation(best.area, best.room),
        ("load", board.load.format(file=f"{{folder}}/{file.name}")),
        ("then", f"touchline selftest 'serial:/dev/ttyUSB0?baud={plan.baud}'"),
    ]
    (folder / "summary.txt").write_text(tabulate(rows, tablefmt="plain") + "\n")


def _vendor(plan: Plan, folder: Path, watch: Callable[[str], None]) -> None:
    """Builds what comes before the maker's tools, and with them if they are there."""
    board = plan.board
    flow = vendor.flow(board)
    for name, text in plan.constraints.items():
        (folder / name).write_text(text)
    watch("gateware to Verilog")
    area = vendor.synthesise(board, plan.verilog(plan.digest), folder, watch)
    rows = [*_head(plan), *_utilisation(area, board.room), ("counted", flow.luts)]
    if not board.pins:
        end = f"{board.name} is a chip without a board: {_NO_BITSTREAM}"
    else:
        vendor.check(board, folder)
        commands = flow.programs(board)
        product = vendor.run(board, folder, watch)
        if product:
            file = product.relative_to(folder)
            rows = [
                ("file", f"{{folder}}/{file} ({product.stat().st_size:,} bytes)"),
                ("sha256", hashlib.sha256(product.read_bytes()).hexdigest()),
                *rows,
            ]
            rows.append(("load", board.load.format(file=f"{{folder}}/{file}")))
            end = ""
        else:
            rows += [
                ("project", f"{{folder}}: {', '.join(sorted((f'{TOP}.v', *plan.constraints)))}"),
                ("to run", f"cd {{folder}} && {' && '.join(commands)}"),
            ]
            end = f"{commands[0].split()[0]} is not on PATH: {_NO_BITSTREAM}"
    (folder / "summary.txt").write_text(tabulate(rows, tablefmt="plain") + f"\n{end}\n".replace("\n\n", "\n"))


def _head(plan: Plan) -> list[tuple[str, str]]:
    board, parameters = plan.board, plan.parameters
    how = "through a PLL" if board.mhz is None else "no PLL"
    return [
        ("board", f"{board.name}: {board.title} ({board.chip})"),
        ("joiner", f"{parameters.architecture}?{parameters.options()}"),
        ("build", plan.digest.hex()),
        ("logic", f"{plan.mhz:g} MHz from {board.clock_mhz:g} MHz, {how}"),
        ("UART", f"{plan.baud} baud, {board.bridge}"),
        ("tools", ", ".join(f"{name} {version}" for name, version in plan.tools.items())),
    ]


def _utilisation(area: Area, room: Area) -> list[tuple[str, str]]:
    counts = (
        ("LUTs", area.luts, room.logic),
        ("flip-flops", area.flip_flops, room.flip_flops),
        ("block RAMs", area.block_rams, room.block_rams),
    )
    return [(name, f"{used:,} of {most:,} ({used / most:.1%})") for name, used, most in counts]


def _margin(routed: route.Routed) -> float:
    return routed.slowest.reached / routed.slowest.asked


def _missed(plan: Plan, routed: route.Routed) -> str:
    slowest = routed.slowest
    return (
        f"timing missed on {plan.board.name}: {slowest.reached:.1f} MHz reached, not {slowest.asked:g}; "
        f"ask for less (MHZ=), or try more placements (SEEDS=). The slowest path:\n{routed.path_table()}"
    )


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """A folder for what is not kept."""
    work = folder / "work"
    work.mkdir()
    try:
        yield work
    finally:
        shutil.rmtree(work)


def _options(argv: list[str] | None) -> dict[str, str | None]:
    parser = argparse.ArgumentParser(prog="bitstream", description="Build a board's bitstream.")
    parser.add_argument("--board", help=f"one of {', '.join(boards.names())} (default: {DEFAULT_BOARD})")
    for name in ("architecture", "cores", "segment", "lanes", "buffer", "dims", *OWN):
        parser.add_argument(f"--{name}", help="of the joiner, as in a device's URL")
    parser.add_argument("--mhz", help="the clock of the logic")
    parser.add_argument("--baud", help="of the UART")
    parser.add_argument("--seeds", help="how many placements to try; the fastest is kept (default: 1)")
    return vars(parser.parse_args(argv))


def main(argv: list[str] | None = None) -> int:
    """Builds, and prints the summary; the exit status is 1 if no bitstream was made, and 2 on errors."""
    options = _options(argv)
    with tqdm(
        desc="bitstream",
        bar_format="{desc} [{elapsed}] {postfix}",
        file=sys.stderr,
        leave=False,
        delay=1,
        mininterval=1 if sys.stderr.isatty() else 30,
    ) as bar:

        def watch(line: str) -> None:
            bar.set_postfix_str(line[:80], refresh=False)
            bar.update()

        try:
            built = build(Plan.from_options(options), watch)
        except TouchlineError as error:
            bar.close()
            print(f"bitstream: {error}", file=sys.stderr)
            return 2
    print(built.summary, end="")
    return 0 if built.complete else 1


if __name__ == "__main__":
    sys.exit(main())
