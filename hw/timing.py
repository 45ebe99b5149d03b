"""How fast joiners are on an ECP5-85F, placed and routed: `make timing` prints cells, MHz and what they make.

Each route is kept under the digest of Verilog, tools and options, in the cache and in a file of the project:
what has been routed once is only read again, on other machines too. A joiner stands alone in the chip,
between registers (see `hw/pinned.py`).
"""

import argparse
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from . import floorplan, route, tools
from .area import CONFIGURATIONS, HEADERS, Area, columns, taken
from .errors import ParameterError, TouchlineError
from .kept import Record, kept
from .parameters import Parameters
from .pinned import TOP, emit_pinned

CHIP = route.ECP5_85F
#: More than any joiner reaches, so that the tools never rest.
ASKED_MHZ = 200
#: The configurations of `make timing` have one of these numbers of cores: each takes minutes.
CORES = (4, 16)
#: What has been measured, for whoever goes on elsewhere.
RECORD = Path("docs/measured.json")


@dataclass(frozen=True)
class Timed:
    """A joiner in the chip."""

    area: Area
    room: Area  #: what the chip has
    mhz: float | None  #: None, if there is no room for it
    path: tuple[str, ...] = ()  #: the signals of its slowest path, each with the nanoseconds up to its end


def median(found: Sequence[Timed]) -> float | None:
    """The median MHz of some seeds; none, if there is no room in the chip."""
    return statistics.median(one.mhz for one in found) if all(one.mhz for one in found) else None


class Design:
    """Something behind pins, as Verilog, which is synthesised once, and only when something is not kept.

    If it `has_cores`, these have their places in the chip.
    """

    def __init__(
        self,
        text: str,
        folder: Path,
        name: str = "",
        record: Record | None = None,
        options: tuple[str, ...] = (),
        has_cores: bool = False,
    ):
        self._text = text
        self._has_cores = has_cores
        self._options = options
        self._folder = folder
        self._name = name
        self._record = record
        self._made = None
        self._making, self._packing = threading.Lock(), threading.Lock()
        self._parts = (
            *(self._text, tools.yosys().version, tools.nextpnr(CHIP.family).version),
            *(CHIP.name, *CHIP.options, *route.flow(CHIP.family)),
            *(floorplan.FLOW if has_cores else ()),
        )

    def _netlist(self) -> Path:
        with self._making:
            if not self._made:
                made = route.synthesise(self._text, TOP, chip=CHIP, folder=self._folder)
                if self._has_cores:
                    floorplan.anchor(made)
                self._made = made
        return self._made

    def packed(self) -> tuple[Area, Area]:
        """The cells that it takes, and those that the chip has."""

        def make() -> list[dict]:
            return [asdict(area) for area in route.pack(self._netlist(), chip=CHIP, folder=self._folder)]

        with self._packing:  # into one file
            used, room = kept(make, *self._parts, "packed", name=f"{self._name}, packed", record=self._record)
        return Area(**used), Area(**room)

    def timed(self, seed: int) -> Timed:
        """What it reaches with one seed."""

        def make() -> dict:
            used, room = self.packed()
            if (
                taken(used) > room.logic
                or used.flip_flops > room.flip_flops
                or used.block_rams > room.block_rams
            ):
                return {"area": asdict(used), "room": asdict(room), "mhz": None}
            routed = route.place(
                self._netlist(),
                mhz=ASKED_MHZ,
                seed=seed,
                chip=CHIP,
                folder=self._folder,
                options=self._options,
            )
            return {
                "area": asdict(routed.area),
                "room": asdict(routed.room),
                "mhz": routed.slowest.reached,
                "path": [f"{step.ns:.1f} {step.name}" for step in routed.critical_path],
            }

        parts = (*self._parts, *self._options, f"{ASKED_MHZ} MHz", f"seed {seed}")
        made = kept(make, *parts, name=f"{self._name}, seed {seed}", record=self._record)
        path = tuple(made.get("path", ()))
        return Timed(Area(**made["area"]), Area(**made["room"]), made["mhz"], path)


@contextmanager
def designs() -> Iterator[Callable[[Parameters], Design]]:
    """Makes designs of parameters: one of each, with a folder to work in, for as long as this lasts.

    What is measured of them is recorded.
    """
    record = Record(RECORD)
    with tempfile.TemporaryDirectory() as scratch:

        @cache
        def design(parameters: Parameters) -> Design:
            folder = Path(scratch) / parameters.name
            folder.mkdir()
            has_cores = parameters.architecture != "bisort"
            return Design(emit_pinned(parameters), folder, parameters.name, record, has_cores=has_cores)

        yield design


@contextmanager
def behind_pins(text: str, name: str, options: tuple[str, ...] = ()) -> Iterator[Design]:
    """The Verilog of something behind pins, to be measured and recorded by name, with a folder to work in.

    `options` are those of `route.place`.
    """
    with tempfile.TemporaryDirectory() as scratch:
        yield Design(text, Path(scratch), name, Record(RECORD), options)


def timed(
    joiners: Sequence[Design], seeds: Sequence[int], finished: Callable[[list[list[Timed]]], object]
) -> list[list[Timed]]:
    """Joiners in the chip, each with every seed, as many at a time as there are processors.

    All are routed with one seed before the next; then `finished` gets what is known, and when it is stopped.
    """
    found = [[] for _ in joiners]
    with (
        tqdm(total=len(joiners) * len(seeds), desc="routing", file=sys.stderr, leave=False) as bar,
        ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool,
    ):
        try:
            routes = [[pool.submit(joiner.timed, seed) for joiner in joiners] for seed in seeds]
            for future in chain.from_iterable(routes):
                future.add_done_callback(lambda _: bar.update())
            for one_seed in routes:
                for clocks, future in zip(found, one_seed):
                    clocks.append(future.result())
                finished(found)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            tools.stop()
            finished([[one.result() for one in seeds if _succeeded(one)] for seeds in zip(*routes)])
            raise
    return found


def _succeeded(future: Future) -> bool:
    return future.done() and not future.cancelled() and not future.exception()


def _positive(name: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ParameterError(f"{name} must be a positive integer, not {text!r}")
    return int(text)


def chosen(
    command: str, arguments: Sequence[str] | None, seeds: int, joiners: Sequence[Parameters]
) -> tuple[list[int], list[int], list[Parameters]]:
    """The seeds, the numbers of cores (none: those by default) and those of `joiners` that are asked for."""
    parser = argparse.ArgumentParser(prog=command)
    parser.add_argument("--seeds", default=f"{seeds}", help="how many placements are tried of each")
    parser.add_argument("--cores", default="", help="numbers of cores, with commas between")
    parser.add_argument("--architecture", help="only joiners of this one")
    options = parser.parse_args(arguments)
    cores = [_positive("cores", part) for part in options.cores.split(",")] if options.cores else []
    architectures = dict.fromkeys(one.architecture for one in joiners)
    if options.architecture and options.architecture not in architectures:
        raise ParameterError(
            f"architecture must be among {', '.join(architectures)}, not {options.architecture!r}"
        )
    wanted = [one for one in joiners if options.architecture in (None, one.architecture)]
    return list(range(1, _positive("seeds", options.seeds) + 1)), cores, wanted


def table(rows: list[tuple[Parameters, list[Timed]]]) -> str:
    """Cells, median MHz of the seeds, and tuples and comparisons at that clock."""
    lines = []
    for parameters, found in rows:
        if mhz := median(found):
            tuples = mhz * parameters.lanes / parameters.segment
            rates = mhz, tuples, tuples * parameters.capacity / 1000
        else:
            rates = None, None, None
        share = taken(found[0].area) / found[0].room.logic
        lines.append((*columns(parameters, found[0].area, share), *rates))
    headers = (*HEADERS, "MHz", "M tuples/s", "G comparisons/s")
    return tabulate(lines, headers, floatfmt=".1f", missingval="no room")


def caption(seeds: Sequence[int]) -> str:
    """What the table is about."""
    router = tools.nextpnr(CHIP.family)
    return (
        f"{CHIP.name}, mapped by yosys {tools.yosys().version}, placed and routed by "
        f"{router.name} {router.version}, which is asked for {ASKED_MHZ} MHz;\n"
        f"the joiner alone between registers, which are counted too; "
        f"median MHz of {len(seeds)} {'seeds' if len(seeds) > 1 else 'seed'}\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    try:
        seeds, cores, joiners = chosen("timing", arguments, seeds=1, joiners=CONFIGURATIONS)
        configurations = [one for one in joiners if one.cores in (cores or CORES)]
        if not configurations:
            accepted = ", ".join(map(str, sorted({one.cores for one in joiners})))
            raise ParameterError(f"cores must be among {accepted}, not {','.join(map(str, cores))}")
        with designs() as design:
            found = timed([design(one) for one in configurations], seeds, lambda found: None)
    except TouchlineError as error:
        print(f"timing: {error}", file=sys.stderr)
        return 2
    print(caption(seeds))
    print(table(list(zip(configurations, found))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
