"""What the whole BI-Sort joiner costs: levels, probes during a merge, and a subwindow of 8M tuples.

`python -m sim.bench_bisort` prints it, or parts of it with `--only`. Ranges are compared with NumPy's. Cycles
do not depend on the machine that simulates.

::

    commands, tuples --> [ joiner ] --> ranges, marks
                           |    ^
                         [ memory ]
"""

import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from hw.bisort import Geometry
from hw.dimension import Dimension
from hw.joiner import joiner
from hw.parameters import Parameters
from hw.socket import RESULT_LAYOUT, Kind, Tag
from hw.subwindow_command import Command, encode
from hw.words import pack_boxes, pack_control, pack_points, unpack

from .bench_insertion import BYTES, ROW, print_sections, verdict
from .dram import DDR
from .engine import Library, Model, load

DIMS = (Dimension.parse("equal32"),)
LANES = 8
LEVELS = (1, 2, 3)
#: What is filled by batches of all sizes.
FILLED = Parameters("bisort", cores=1, segment=1 << 16, lanes=LANES, buffer=1 << 12, dims=DIMS)
BATCHES = (1 << 6, 1 << 8, 1 << 10, 1 << 12)
#: A batch that probes it now and then.
PROBES = 1 << 10
LOOKS = 4
#: A batch that does not wait for a merge.
FEW = 16
#: A subwindow of 8M tuples, filled and probed by batches of 4K.
LARGE = replace(FILLED, segment=1 << 23, levels=4)
LARGE_PROBES = 1 << 12
#: A whole buffer is read and sorted without a transfer on any port.
PATIENCE = 1_000_000


@functools.cache
def built(parameters: Parameters) -> Library:
    """The joiner's library; writing its Verilog takes longer than most runs."""
    return load(lambda: joiner(parameters), f"whole_{parameters.name}")


class Joiner:
    """A joiner in simulation: R holds even keys that only are inserted, S brings boxes that only probe."""

    def __init__(self, parameters: Parameters):
        self.parameters = parameters
        self._model: Model = built(parameters).open(replace(DDR, row=ROW // (BYTES * parameters.lanes)))
        self._count = 0
        self.cycles = 0

    def __enter__(self) -> "Joiner":
        return self

    def __exit__(self, *exception) -> None:
        self._model.close()

    def mode(self, side: str, **flags: bool) -> None:
        """What tuples of a side do from now on."""
        bits = encode(Command.TUPLES, side, **flags)
        self._run([pack_control(DIMS, Kind.INSTRUCTION, bits)], 0)

    def _run(self, words: list[np.ndarray], results: int) -> tuple[np.ndarray, int]:
        """Results and the cycle of the last of them."""
        run = self._model.run({"tuples": np.concatenate(words)}, {"results": results}, patience=PATIENCE)
        self.cycles += run.cycles
        return run.outputs["results"], int(run.given["results"][-1]) if results else run.cycles

    def insert(self, keys: np.ndarray) -> int:
        """Cycles until a mark behind these tuples of R comes out."""
        ids = np.arange(self._count, self._count + len(keys))
        self._count += len(keys)
        words = [pack_points(DIMS, ids, [keys]), pack_control(DIMS, Kind.MARK)]
        return self._run(words, 1)[1]

    def probe(self, keys: np.ndarray, ranges: int = 0) -> tuple[np.ndarray, int]:
        """What comes for boxes of these keys, so many ranges, and the cycles until a mark behind them."""
        words = [pack_boxes(DIMS, np.arange(len(keys)), [keys], [keys]), pack_control(DIMS, Kind.MARK)]
        results, cycles = self._run(words, ranges + 1)
        return results[:-1], cycles

    def settle(self) -> int:
        """Cycles until no merge goes on."""
        status = pack_control(DIMS, Kind.INSTRUCTION, encode(Command.STATUS, "r"))
        return self._run([status], 1)[1]

    @property
    def moved(self) -> int:
        """Bytes read and written so far."""
        traffic = self._model.traffic()
        return (traffic.read + traffic.written) * BYTES * self.parameters.lanes


@dataclass(frozen=True)
class Filled:
    """What it took to fill a subwindow, and to probe it meanwhile."""

    moved: int  #: bytes, of insertions alone
    cycles: int  #: of insertions alone
    probing: float  #: cycles for each tuple that probes, on average


def filled(parameters: Parameters, batch: int, seed: int = 1) -> Filled:
    """Fills a subwindow by batches, with a mark behind each, and looks at it now and then."""
    rng = np.random.default_rng(seed)
    count = parameters.segment // batch
    looks = {(number + 1) * count // LOOKS - 1 for number in range(LOOKS)}
    moved = cycles = probing = 0
    with Joiner(parameters) as device:
        device.mode("r", insert=True)
        device.mode("s", probe=True)
        for number in range(count):
            before = device.moved, device.cycles
            device.insert(2 * rng.integers(0, 1 << 30, batch).astype(np.uint64))
            if number in looks:
                device.settle()
            moved, cycles = moved + device.moved - before[0], cycles + device.cycles - before[1]
            if number in looks:
                # Odd keys find nothing, so that no pair takes a cycle.
                _, took = device.probe(2 * rng.integers(0, 1 << 30, PROBES).astype(np.uint64) + np.uint64(1))
                probing += took
    return Filled(moved, cycles, probing / (len(looks) * PROBES))


def by_levels() -> str:
    """Insertions per byte moved by batch size, and what probing pays."""
    rows = []
    for batch in tqdm(BATCHES, desc="filling", file=sys.stderr, leave=False):
        found = [filled(replace(FILLED, levels=levels), batch) for levels in LEVELS]
        per_kilobyte = [1024 * FILLED.segment / one.moved for one in found]
        rows.append(
            (
                f"{batch:,}",
                *(f"{one:.3f}" for one in per_kilobyte),
                *(f"{one / per_kilobyte[0]:.1f}" for one in per_kilobyte[1:]),
                *(f"{one.cycles / FILLED.segment:.2f}" for one in found),
                *(f"{one.probing:.2f}" for one in found),
            )
        )
    headers = (
        "batch",
        *(f"{levels} level{'s' * (levels > 1)}" for levels in LEVELS),
        *(f"{levels} against 1" for levels in LEVELS[1:]),
        *(f"cycles per tuple, {levels}" for levels in LEVELS),
        *(f"per probe, {levels}" for levels in LEVELS),
    )
    return tabulate(rows, headers, disable_numparse=True, stralign="right")


def during_a_merge(seed: int = 1) -> str:
    """How long a few probes behind a batch take while it is merged, and how long the merge takes."""
    rng = np.random.default_rng(seed)
    keys = 2 * rng.integers(0, 1 << 30, FILLED.segment).astype(np.uint64)
    # The last batch is small, so that reading and sorting it is over soon.
    first, last = np.split(keys, [FILLED.segment // 2])
    last = last[: Geometry.of(FILLED).linear + 1]
    with Joiner(FILLED) as device:
        device.mode("r", insert=True)
        device.mode("s", probe=True, ranges=True)
        device.insert(first)
        device.settle()
        inserted = device.insert(last)
        found, probed = device.probe(keys[:FEW], FEW)
        rest = device.settle()
    # The old array is probed: what was merged meanwhile is found in the buffer, and matches nothing.
    tags = unpack(RESULT_LAYOUT, found, "tag")
    assert (tags == Tag.RANGE.value).all()
    start, end = (unpack(RESULT_LAYOUT, found, f"body.range.{name}") for name in ("start", "end"))
    order = np.argsort(unpack(RESULT_LAYOUT, found, "body.range.id"))
    array = np.sort(first)
    assert (start[order] == np.searchsorted(array, keys[:FEW], "left")).all()
    assert (end[order] == np.searchsorted(array, keys[:FEW], "right")).all()
    return (
        f"A batch of {len(last)} tuples is read and sorted in {inserted:,} cycles; {probed + rest:,} cycles "
        f"later it is merged into {len(first):,}.\n{FEW} probes of the old array right behind it are "
        f"answered after {probed:,} cycles.\n\n"
        + verdict("share of a merge after which probes are answered", probed / (probed + rest), at_most=0.5)
    )


def large(seed: int = 1) -> str:
    """8M tuples through the whole joiner, and a batch that probes them."""
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, 1 << 32, LARGE.segment).astype(np.uint64)
    with Joiner(LARGE) as device:
        device.mode("r", insert=True)
        device.mode("s", probe=True, ranges=True)
        for start in tqdm(
            range(0, LARGE.segment, LARGE.buffer), desc="8M tuples", file=sys.stderr, leave=False
        ):
            device.insert(keys[start : start + LARGE.buffer])
        device.settle()
        filling, moved = device.cycles, device.moved
        wanted = np.sort(rng.choice(keys, LARGE_PROBES))
        found, probing = device.probe(wanted, LARGE_PROBES)
    array = np.sort(keys)
    id, start, end = (
        unpack(RESULT_LAYOUT, found, f"body.range.{name}").astype(np.int64) for name in ("id", "start", "end")
    )
    order = np.argsort(id)
    assert (start[order] == np.searchsorted(array, wanted, "left")).all()
    assert (end[order] == np.searchsorted(array, wanted, "right")).all()
    # Its partitions are so large that all words must be read.
    words = LARGE.segment // LANES + 2 * LARGE_PROBES
    return (
        f"{filling:,} cycles and {moved:,} bytes to insert {LARGE.segment:,} tuples with {LARGE.levels} "
        f"levels, {filling / LARGE.segment:.2f} and {moved / LARGE.segment:.0f} each;\n"
        f"{probing:,} cycles to probe with {LARGE_PROBES:,}, which come, are read and sorted first: "
        f"{probing / words:.3f} for each word and bound.\nAll ranges are NumPy's."
    )


SECTIONS = {
    "levels": (
        f"Insertions per KiB read or written while a subwindow of {FILLED.segment:,} tuples is filled in the "
        f"joiner, a mark behind each batch;\ncycles for each; and cycles for each of {PROBES:,} tuples that "
        f"probe it, {LOOKS} times meanwhile",
        by_levels,
    ),
    "merge": ("Probes during a merge", during_a_merge),
    "large": ("A subwindow of 8M tuples in the joiner", large),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    print_sections(SECTIONS, "sim.bench_bisort", __doc__.splitlines()[0], arguments)


if __name__ == "__main__":
    main()
