"""What probing costs: cycles and words read of batches against large arrays in simulated memory.

`python -m sim.bench_probing` prints it, or part of it with `--lanes`. Every answer is compared with NumPy's.
Cycles do not depend on the machine that simulates.

::

    batch, index, command --> [ probing ] --> ranges
                               |  ^
                             [ queue ]
                               |  ^
                             [ memory ] <-- sorted array
"""

import argparse
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from amaranth import Module
from amaranth.lib import wiring
from tabulate import tabulate
from tqdm import tqdm

from hw.bisort import AHEAD, BURST
from hw.dimension import Dimension
from hw.probing import Probing
from hw.read_queue import ReadQueue
from hw.record import record_layouts
from hw.words import pack, pack_run, unpack

from .bench_insertion import PAPER_BYTES, PAPER_MHZ, PARTITION, ROW, verdict
from .dram import DDR, STEADY, Timing
from .engine import Library, load

BATCH = 1 << 15
SIZES = {"1M": 1 << 20, "8M": 1 << 23}
SELECTIVITIES = (1, 16, 256, 4096)
#: The target: at most so many cycles for each word that must be read and each bound.
MOST = 1 / 0.9
#: The paper's board has so many, each looking at one record or bound per cycle.
PAPER_PROBERS = 8


@dataclass(frozen=True)
class Case:
    """One batch against one array: the first dimension, records per word, and partners per tuple.

    Boxes are of one width, or `mixed`: then their upper bounds have to be sorted first.
    """

    dim: str
    lanes: int
    size: str
    selectivity: int
    mixed: bool = False

    @property
    def dims(self) -> tuple[Dimension, ...]:
        """The join has one dimension."""
        return (Dimension.parse(self.dim),)


@dataclass(frozen=True)
class Cost:
    """What a batch took: cycles from the command to its mark, words it needs and words that were read."""

    cycles: int
    needed: int
    read: int
    memory: int  #: cycles that it takes at least for the words needed: to move them, open rows, refresh
    loading: int  #: cycles for the batch to come in, once for any number of arrays
    rebounding: int  #: steps that a rebounding search in the index takes

    @property
    def share(self) -> float:
        """Cycles for each word that must be read and each bound."""
        return self.cycles / (self.needed + 2 * BATCH)

    @property
    def waits(self) -> float:
        """The same, where the memory alone may take longer than that."""
        return self.cycles / max(self.needed + 2 * BATCH, self.memory)


class Queued(wiring.Component):
    """The engine that boxes probe points with, behind a queue of words as in the joiner.

    Memory goes on while several bounds fall into one word, and the prober while a row is opened.
    """

    def __init__(self, dims: tuple[Dimension, ...], lanes: int):
        size = SIZES["8M"]
        self._engine = Probing(
            dims,
            "s",
            lanes,
            partition=PARTITION,
            partitions=size // PARTITION,
            banks=2,
            batch=BATCH,
            address_width=(size // lanes).bit_length(),
        )
        super().__init__(dict(self._engine.signature.members.items()))

    def elaborate(self, platform):
        m = Module()
        m.submodules.engine = engine = self._engine
        m.submodules.queue = queue = ReadQueue(engine.search.signature, burst=BURST, ahead=AHEAD * BURST)
        wiring.connect(m, engine.search.read, queue.read)
        wiring.connect(m, queue.data, engine.search.data)
        wiring.connect(m, queue.requests, wiring.flipped(self.search.read))
        wiring.connect(m, wiring.flipped(self.search.data), queue.words)
        for name in ("index", "batch", "command", "results", "gather"):
            wiring.connect(m, getattr(engine, name), wiring.flipped(getattr(self, name)))
        return m


@functools.cache
def built(dims: tuple[Dimension, ...], lanes: int) -> tuple[Library, Queued]:
    """The engine's library; writing its Verilog takes longer than any run."""
    engine = Queued(dims, lanes)
    return load(lambda: engine, f"probing_{dims[0]}_{lanes}"), engine


def measure(case: Case, timing: Timing, seed: int = 1) -> Cost:
    """Simulates one case and compares all ranges with NumPy's."""
    rng = np.random.default_rng(seed)
    size, lanes, dims = SIZES[case.size], case.lanes, case.dims
    layouts = record_layouts(dims)
    if case.dim.startswith("equal"):
        # Each key comes as often as a tuple finds partners.
        distinct = rng.integers(0, 1 << 32, size // case.selectivity).astype(np.uint32)
        keys = np.sort(np.repeat(distinct, case.selectivity))
        low = high = np.sort(rng.choice(distinct, BATCH))
    else:
        keys = np.sort(rng.integers(0, 1 << 32, size).astype(np.uint32))
        reach = (case.selectivity << 32) // size
        low = np.sort(rng.integers(0, (1 << 32) - 2 * reach, BATCH).astype(np.uint32))
        widths = rng.integers(0, 2 * reach + 1, BATCH) if case.mixed else np.full(BATCH, reach)
        high = low + widths.astype(np.uint32)
    box = {"key": low, "id": np.arange(BATCH)} | ({} if low is high else {"hi": high})
    library, engine = built(dims, lanes)
    with library.open(timing) as model:
        array = pack(layouts["r"], {"key": keys, "id": np.arange(size)}, size)
        model.memory[: size // lanes] = array.reshape(size // lanes, -1)
        first = keys[::PARTITION]
        index = pack(engine.index.p.shape(), {"entry": np.arange(len(first)), "key": first}, len(first))
        model.run({"index": index}, {})
        batch = pack_run(layouts["s"], pack(layouts["s"], box, BATCH), lanes)
        command = pack(engine.command.p.shape(), {"array.count": size}, 1)
        # The command waits until the batch is in, and sorted.
        run = model.run({"batch": batch, "command": command}, {"results": BATCH + 1}, patience=10 * BATCH)
        traffic = model.traffic("search")
    results = run.outputs["results"][:-1]
    layout = engine.results.p.shape()
    got = [unpack(layout, results, f"body.range.{name}") for name in ("id", "start", "end")]
    order = np.argsort(got[0])
    expected = (np.arange(BATCH), np.searchsorted(keys, low), np.searchsorted(keys, high, "right"))
    assert all((found[order] == wanted).all() for found, wanted in zip(got, expected)), case
    # The last partition whose first record lies before a bound, from 1 on.
    targets = np.concatenate([np.searchsorted(first, low), np.searchsorted(first, high, "right")])
    partitions, words = np.unique(targets[targets > 0]) - 1, PARTITION // lanes
    needed = len(partitions) * words
    started = int(run.taken["command"][0])
    cycles = run.cycles - started
    rows = len(np.unique(partitions * words // timing.row))  # a partition lies in one
    refreshes = cycles // timing.refresh_every if timing.refresh_every else 0
    return Cost(
        cycles=cycles,
        needed=needed,
        read=traffic.read,
        memory=needed + rows * timing.row_miss + refreshes * timing.refresh,
        loading=started,
        rebounding=rebounding_steps(np.sort(targets)),
    )


def rebounding_steps(targets: np.ndarray) -> int:
    """Reads of the index if each search begins where the last one ended, doubles its steps and turns back."""
    distance = np.diff(targets, prepend=0)
    return int((1 + 2 * np.ceil(np.log2(distance + 1))).sum())


def paper_cycles(cost: Cost, lanes: int) -> float:
    """The least that the paper's board takes: its probers look at one record or bound per cycle each, and its
    memory brings what it has to read."""
    records = cost.needed * lanes
    return max((records + 2 * BATCH) / PAPER_PROBERS, records * 8 / PAPER_BYTES)


CASES = tuple(
    Case(dim, lanes, size, selectivity)
    for dim, lanes in (("equal32", 8), ("band32", 4))
    for size in SIZES
    for selectivity in SELECTIVITIES
)
CASES += tuple(Case("band32", 4, size, 256, mixed=True) for size in SIZES)
CASES += tuple(Case("equal32", lanes, size, 1) for lanes in (1, 4) for size in SIZES)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m sim.bench_probing", description=__doc__.splitlines()[0])
    known = sorted({case.lanes for case in CASES})
    parser.add_argument("--lanes", type=int, choices=known, help="only cases with so many records per word")
    lanes = parser.parse_args(arguments).lanes
    cases = [case for case in CASES if lanes in (None, case.lanes)]
    rows, shares, waits = [], [], []
    for case in tqdm(cases, desc="probing", file=sys.stderr, leave=False):
        record = record_layouts(case.dims)["r"].size // 8
        width = record * case.lanes
        ddr = replace(DDR, row=ROW // width)
        free, real = measure(case, STEADY), measure(case, ddr)
        paper = paper_cycles(free, case.lanes) if record == 8 else None
        shares.append(free.share)
        waits.append(real.waits)
        rows.append(
            (
                f"{case.dim}, mixed" if case.mixed else case.dim,
                width,
                case.lanes,
                case.size,
                case.selectivity,
                real.needed,
                real.read,
                free.cycles,
                f"{free.share:.3f}",
                real.memory,
                real.cycles,
                f"{real.share:.3f}",
                real.loading,
                real.rebounding,
                f"{paper / free.cycles:.2f}" if paper else "",
                f"{paper * PAPER_BYTES / (free.cycles * width):.2f}" if paper else "",
            )
        )
    print(
        f"Batches of {BATCH:,} tuples, {2 * BATCH:,} bounds, partitions of {PARTITION} records. The paper's "
        f"board: {PAPER_PROBERS} probers at {PAPER_MHZ} MHz, {PAPER_BYTES:.1f} bytes per cycle, none ever "
        "waiting, against cycles without waits.\n"
    )
    headers = (
        *("dimension", "bytes", "lanes", "array", "partners", "words needed", "read"),
        *("cycles, no waits", "each", "DDR at least", "cycles", "each", "loading", "rebounding"),
        *("paper's cycles/ours", "and per byte"),
    )
    print(tabulate(rows, headers, disable_numparse=True, stralign="right"))
    print()
    what = "probing, most cycles for each word needed and each bound"
    print(verdict(f"{what}, no waits", max(shares), at_most=MOST))
    print(verdict(f"{what}, or each cycle that DDR takes at least", max(waits), at_most=MOST))


if __name__ == "__main__":
    main()
