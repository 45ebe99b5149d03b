"""The cocotb regression: every bench on every listed configuration, and a table of how it went.

`make sim` runs it; with parameters it runs the one configuration they describe. A configuration with a link
is a board on AXI, any other a joiner alone.
"""

import argparse
import os
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from hw import tools
from hw.board import emit_board
from hw.cache import cache_directory, locked
from hw.dimension import Dimension
from hw.errors import ToolError, TouchlineError
from hw.frame import Link
from hw.ordering import Ordering
from hw.parameters import OPBLOCK_DIMS, OWN, Parameters
from hw.verilog import emit

from .benches.testbench import CLOCK_NANOSECONDS
from .library import BUILD_SECONDS, simulable


def _splitjoin(ordering: str, **sizes) -> Parameters:
    dims = (Dimension.parse("equal8"),)
    return Parameters("splitjoin", dims=dims, ordering=Ordering.parse(ordering), **sizes)


def _lowlatency(ordering: str, **sizes) -> Parameters:
    dims = (Dimension.parse("equal8"), Dimension.parse("not_band16"))
    return Parameters("lowlatency", dims=dims, ordering=Ordering.parse(ordering), **sizes)


#: The configurations of `make sim`: serial and parallel, edges, odd sizes, every test and width.
CONFIGURATIONS = (
    Parameters(cores=4, segment=4, lanes=4),
    Parameters(cores=1, segment=1, lanes=1),
    Parameters(cores=2, segment=8, lanes=1),
    Parameters(cores=5, segment=6, lanes=2),
    Parameters(cores=17, segment=2, lanes=2, buffer=10),
    Parameters(cores=3, segment=8, lanes=8, dims=(Dimension.parse("equal32"),)),
    Parameters(cores=3, segment=4, lanes=1, dims=tuple(map(Dimension.parse, ("not_equal8", "band64")))),
    Parameters(cores=3, segment=3, lanes=3, dims=tuple(map(Dimension.parse, ("not_band16", "at_least33")))),
    Parameters(
        cores=2, segment=4, lanes=2, dims=tuple(map(Dimension.parse, ("not_at_least9", "not_at_most64")))
    ),
    Parameters("opblock", cores=4, segment=4, lanes=4, dims=OPBLOCK_DIMS),
    Parameters("opblock", cores=1, segment=1, lanes=1, dims=OPBLOCK_DIMS[:1]),
    Parameters("opblock", cores=5, segment=6, lanes=2, dims=(Dimension.parse("band8"),) * 2),
    Parameters("opblock", cores=17, segment=2, lanes=1, buffer=2, dims=(Dimension.parse("band64"),)),
    Parameters("bisort", cores=2, segment=8, lanes=2, buffer=8),
    Parameters("bisort", cores=1, segment=1, lanes=1, buffer=2, dims=(Dimension.parse("equal8"),)),
    Parameters("bisort", cores=3, segment=20, lanes=8, buffer=16, dims=(Dimension.parse("not_band64"),)),
    Parameters(
        "bisort",
        cores=2,
        segment=6,
        lanes=4,
        buffer=8,
        dims=tuple(map(Dimension.parse, ("at_most9", "band16"))),
    ),
    Parameters("splitjoin", cores=3, segment=4, lanes=4),
    _splitjoin("tuples:1", cores=5, segment=6, lanes=2, buffer=2, fanout=2),
    _splitjoin("tuples:3", cores=2, segment=4, lanes=1),
    _splitjoin("comparisons:1", cores=3, segment=4, lanes=2),
    _splitjoin("comparisons:2", cores=4, segment=3, lanes=3, fanout=3),
    _splitjoin("comparisons:4", cores=1, segment=1, lanes=1),
    # Latency grows with the levels of the trees.
    *(_splitjoin("none", cores=cores, segment=2, lanes=2) for cores in (8, 32, 128)),
    Parameters("lowlatency", cores=3, segment=4, lanes=2, s_segment=6),
    Parameters("scalejoin", cores=3, segment=4, lanes=4, inputs=5),
    Parameters("scalejoin", cores=1, segment=1, lanes=1, inputs=1, dims=(Dimension.parse("equal8"),)),
    Parameters(
        "scalejoin",
        cores=5,
        segment=6,
        lanes=2,
        buffer=2,
        fanout=2,
        inputs=16,
        dims=(Dimension.parse("equal8"),),
    ),
    Parameters("lowlatency", cores=1, segment=1, lanes=1, buffer=2, dims=(Dimension.parse("equal8"),)),
    _lowlatency("tuples:1", cores=8, segment=4, lanes=4, s_segment=2),
    _lowlatency("none", cores=2, segment=8, lanes=1, homes="hash"),
    _lowlatency("tuples:1", cores=3, segment=6, lanes=1, index=4),
    # Latency grows with the nodes.
    _lowlatency("none", cores=40, segment=2, lanes=2),
)
BENCHES = {
    "handshake": ("sim.benches.socket", "sim.benches.handshake"),
    "opblock": ("sim.benches.socket", "sim.benches.opblock"),
    "bisort": ("sim.benches.socket",),
    "splitjoin": ("sim.benches.socket", "sim.benches.splitjoin"),
    "lowlatency": ("sim.benches.socket", "sim.benches.lowlatency"),
    "scalejoin": ("sim.benches.socket", "sim.benches.splitjoin"),
}
#: The boards of `make sim`: words narrower and wider than tuples, results, header and CRC.
BOARD = Parameters(cores=2, segment=2, lanes=2, dims=(Dimension.parse("equal8"),))
LINKS = (Link(8, 78), Link(64, 40), Link(512, 40))


@dataclass(frozen=True)
class Outcome:
    """How the benches of one configuration went."""

    parameters: Parameters
    link: Link | None
    passed: int
    failed: tuple[str, ...]
    cycles: int
    log: Path


def run(parameters: Parameters, link: Link | None = None, *, seed: int) -> Outcome:
    """Builds a configuration for cocotb and runs its benches."""
    name = parameters.name
    benches = BENCHES[parameters.architecture]
    options = {"TOUCHLINE_BENCH": f"{parameters.architecture}?{parameters.options()}"}
    if link is None:
        text = emit(parameters)
    else:
        text = emit_board(parameters, link, "axi", name=name)
        benches = ("sim.benches.axi",)
        options["TOUCHLINE_LINK"] = str(link)
    return Outcome(parameters, link, *run_benches(name, text, benches, options, seed))


def run_benches(
    name: str, verilog_text: str, benches: Sequence[str], options: dict[str, str], seed: int
) -> tuple[int, tuple[str, ...], int, Path]:
    """Builds the module `name` and runs benches: how many passed, which failed, cycles, and the log."""
    from cocotb_tools.runner import get_runner

    verilator = tools.verilator()
    tools.check_shared_python()
    text = simulable(verilog_text)
    # Makefiles and simulators name the places of Verilator and cocotb.
    place = f"{verilator.version} {tools.compiler().version} {verilator.command[0]} {sys.prefix}"
    digest = sha256(f"{place} {text}".encode()).hexdigest()[:16]
    folder = cache_directory() / f"cocotb-{name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    runner = get_runner("verilator")
    with locked(folder / "lock", BUILD_SECONDS), _environment(verilator.environment):
        source = folder / "top.v"
        source.write_text(text)
        runner.build(
            sources=[source],
            hdl_toplevel=name,
            build_dir=folder,
            # Bits of one vector that depend on each other look like a loop.
            build_args=["-Wno-lint", "-Wno-UNOPTFLAT", "-O1"],
            log_file=folder / "build.txt",
            timescale=("1ns", "1ps"),
        )
        results = folder / "results.xml"
        _test(
            runner,
            results_xml=str(results),
            test_module=list(benches),
            hdl_toplevel=name,
            build_dir=folder,
            test_dir=folder,
            seed=seed,
            extra_env=options,
            log_file=folder / "log.txt",
        )
    if not results.exists():
        raise ToolError(f"the simulator of {name} ended without results: see {folder / 'log.txt'}")
    cases = list(ElementTree.parse(results).iter("testcase"))
    failed = tuple(
        case.get("name")
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    )
    nanoseconds = sum(
        float(entry.get("value"))
        for case in cases
        for entry in case.iter("property")
        if entry.get("name") == "sim_time_duration"
    )
    cycles = round(nanoseconds / CLOCK_NANOSECONDS)
    return len(cases) - len(failed), failed, cycles, folder / "log.txt"


def _test(runner, **options) -> None:
    """Runs the benches; cocotb's runner would end this process when one fails, where a report is wanted."""
    with suppress(SystemExit):
        runner.test(**options)


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for a while: cocotb's runner takes them from this process."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _own(parameters: Parameters) -> str:
    """What `make sim` must be told of parameters that only some architectures have."""
    given = {name: getattr(parameters, name) for name in OWN}
    return "".join(
        f" {name.replace('_', '').upper()}={value}" for name, value in given.items() if value is not None
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line of `make sim`."""
    parser = argparse.ArgumentParser(prog="python -m sim.regression", description=__doc__.splitlines()[0])
    parser.add_argument("--architecture", default="handshake")
    for name in ("cores", "segment", "lanes", "buffer", "dims", *OWN):
        parser.add_argument(f"--{name}")
    parser.add_argument("--link", help="of a board: bits of a word, words of a payload, and frames")
    parser.add_argument("--seed", type=int, default=1)
    options = vars(parser.parse_args(arguments))
    architecture, link, seed = options.pop("architecture"), options.pop("link"), options.pop("seed")
    given = {name: value for name, value in options.items() if value is not None}
    try:
        links = (Link.parse(link),) if link else ()
        if given or architecture != "handshake":
            configurations = [(Parameters.from_options(architecture, given), *links)]
        elif links:
            configurations = [(BOARD, *links)]
        else:
            configurations = [*zip(CONFIGURATIONS), *((BOARD, link) for link in LINKS)]
        outcomes = [
            run(*configuration, seed=seed)
            for configuration in tqdm(configurations, desc="configurations", file=sys.stderr, leave=False)
        ]
    except TouchlineError as error:
        print(f"sim: {error}", file=sys.stderr)
        return 2
    rows = [
        (
            outcome.parameters.architecture,
            outcome.parameters.cores,
            outcome.parameters.segment,
            outcome.parameters.lanes,
            ",".join(map(str, outcome.parameters.dims)),
            outcome.parameters.ordering or "",
            str(outcome.link or ""),
            outcome.passed,
            len(outcome.failed),
            outcome.cycles,
        )
        for outcome in outcomes
    ]
    print(f"seed {seed}\n")
    headers = (
        "architecture",
        "cores",
        "segment",
        "lanes",
        "dimensions",
        "ordering",
        "link",
        "passed",
        "failed",
        "cycles",
    )
    print(tabulate(rows, headers))
    failed = [outcome for outcome in outcomes if outcome.failed]
    for outcome in failed:
        p = outcome.parameters
        print(f"\n{p.name}: failed {', '.join(outcome.failed)} (log: {outcome.log})")
        print(
            f"  again: make sim ARCH={p.architecture} CORES={p.cores} SEGMENT={p.segment} LANES={p.lanes}"
            f" BUFFER={p.buffer} DIMS={','.join(map(str, p.dims))}{_own(p)}"
            f"{f' LINK={outcome.link}' if outcome.link else ''} SEED={seed}"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
