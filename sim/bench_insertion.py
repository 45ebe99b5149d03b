"""What insertion costs: cycles and bytes of batches that are merged into large arrays in simulated memory.

`python -m sim.bench_insertion` prints it, or parts of it with `--only`. Every array is compared with NumPy's.
Cycles do not depend on the machine that simulates.

::

    batches, commands --> [ leveled insertion ] --> answers        [ copier ]
                              |     ^                               |     ^
                             [ memory ]                            [ memory ]
"""

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from amaranth import Module
from amaranth.lib import data, wiring
from tabulate import tabulate
from tqdm import tqdm

from hw.levels import LeveledInsertion, capacities, level_for, leveled_layout
from hw.memory_port import MemoryPort
from hw.words import pack, pack_run

from .copier import Copier, command_layout
from .dram import DDR, STEADY, Timing
from .engine import load

#: A tuple of 8 bytes.
RECORD = data.StructLayout({"key": 32, "id": 32})
BYTES = RECORD.size // 8
#: Records per partition: the paper has 64K partitions of 8M tuples.
PARTITION = 128
SUBWINDOW = 1 << 23
BATCH = 1 << 16
#: Bytes of a row of DRAM.
ROW = 8192
#: The paper's board: its clock, two channels of DDR3-1066 in bytes per cycle of that, and its mergers.
PAPER_MHZ = 252.7
PAPER_BYTES = 2 * 8 * 1066 / PAPER_MHZ
PAPER_MERGERS = 8
ADDRESS_WIDTH = 25
MAIN = (0, 1 << 24)  #: where the main array lies, by turns
SMALLS = 3 << 23  #: where the small ones lie
#: Records per word and cycle.
LANES = (1, 4, 8)
#: The target: at least this share of what a plain copy reaches.
LEAST = 0.95
LEVELS = (1, 2, 3, 4)
BATCHES = tuple(1 << k for k in range(6, 17, 2))
#: What is filled in simulation.
SMALL_SUBWINDOW = 1 << 16
SMALL_BATCH = 1 << 6
SMALL_LANES = 4

Keys = Callable[[int, int, np.random.Generator], tuple[np.ndarray, np.ndarray]]
#: Keys of the array and of the batch, sorted.
DISTRIBUTIONS: dict[str, Keys] = {
    "uniform": lambda n, b, rng: (_uniform(n, rng), _uniform(b, rng)),
    "all equal": lambda n, b, rng: (np.full(n, 7), np.full(b, 7)),
    "batch below": lambda n, b, rng: (np.arange(n) + b, np.arange(b)),
    "batch above": lambda n, b, rng: (np.arange(n), np.arange(b) + n),
    "alternating": lambda n, b, rng: (2 * np.arange(n), 2 * np.arange(b) + 1),
    "few keys": lambda n, b, rng: (np.sort(rng.integers(0, 9, n)), np.sort(rng.integers(0, 9, b))),
}


HEADERS = ("bytes", "lanes", "records", "cycles of a copy", *DISTRIBUTIONS)


def _uniform(count: int, rng: np.random.Generator) -> np.ndarray:
    return np.sort(rng.integers(0, 1 << 32, count))


@dataclass(frozen=True)
class Cost:
    """What insertions took."""

    cycles: int
    read: int  #: words
    written: int


class Streams(wiring.Component):
    """The engine's streams and its memory port, without what a plug sees of the small arrays."""

    def __init__(self, lanes: int, levels: int, records: int, batch: int):
        burst = 64 if levels == 1 else 256
        self._engine = LeveledInsertion(
            RECORD,
            lanes,
            records=records,
            batch=batch,
            partition=PARTITION,
            address_width=ADDRESS_WIDTH,
            levels=levels,
            bases=(SMALLS,),
            burst=burst,
            ahead=4 * burst,
        )
        members = self._engine.signature.members
        super().__init__(
            {name: members[name] for name in ("commands", "batch", "index", "answers", "memory")}
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.engine = self._engine
        for name in self.signature.members:
            wiring.connect(m, getattr(self._engine, name), wiring.flipped(getattr(self, name)))
        return m


@dataclass(frozen=True)
class Bench:
    """An engine whose main array grows to `records`, by batches of `batch`."""

    lanes: int
    levels: int = 1
    records: int = SUBWINDOW + BATCH
    batch: int = BATCH

    @property
    def width(self) -> int:
        """Bytes of a word."""
        return BYTES * self.lanes

    @property
    def ddr(self) -> Timing:
        """A DDR channel with words of that width."""
        return replace(DDR, row=ROW // self.width)

    def insert(self, array: np.ndarray, batches: list[np.ndarray], timing: Timing | None = None) -> Cost:
        """Inserts batches of sorted keys one after another into an array, the last so that one array is left.

        Compares the end with NumPy's. Memory is `ddr` unless `timing` says otherwise.
        """
        lanes, count = self.lanes, len(array)
        library = load(
            lambda: Streams(lanes, self.levels, self.records, self.batch),
            f"insertion_{lanes}_{self.levels}_{self.batch}",
        )
        commands, rows, first, half = [], [], count, 0
        counts = [0] * (self.levels - 1) + [count]
        room = capacities(self.records, self.batch, self.levels)
        for number, keys in enumerate(batches):
            whole = number == len(batches) - 1
            commands.append((MAIN[half], counts[-1], MAIN[1 - half], len(keys), whole))
            rows.append(pack_run(RECORD, records(keys, first), lanes))
            first += len(keys)
            level = level_for(counts, len(keys), room, whole=whole)
            counts[: level + 1] = [0] * level + [sum(counts[: level + 1]) + len(keys)]
            half ^= level == self.levels - 1
        layout = leveled_layout(ADDRESS_WIDTH, self.records)
        names = ("main.address", "main.count", "target", "batch", "whole")
        fields = dict(zip(names, np.array(commands).T))
        with library.open(timing or self.ddr) as model:
            place(model.memory, 0, records(array, 0), lanes)
            run = model.run(
                {"commands": pack(layout, fields, len(commands)), "batch": np.concatenate(rows)},
                {"answers": len(commands)},
            )
            traffic = model.traffic()
            words = model.memory[MAIN[half] : MAIN[half] + -(-first // lanes)]
            got = words.reshape(-1, 2)[:first].copy()
        keys = np.concatenate([array, *batches])
        order = np.argsort(keys, kind="stable")
        assert (got == np.stack([keys[order], order], axis=1)).all(), self
        return Cost(run.cycles, traffic.read, traffic.written)

    def copy(self, count: int) -> int:
        """The cycles of a plain copy of so many records."""
        port = MemoryPort(8 * self.width, ADDRESS_WIDTH)
        library = load(lambda: Copier(port), f"copier_{self.lanes}")
        command = {"source": MAIN[0], "target": MAIN[1], "count": -(-count // self.lanes)}
        with library.open(self.ddr) as model:
            rows = pack(command_layout(ADDRESS_WIDTH), command, 1)
            return model.run({"commands": rows}, {"answers": 1}).cycles


def verdict(what: str, value: float, *, at_least: float = -math.inf, at_most: float = math.inf) -> str:
    """A line that tells whether a target is reached."""
    limit = f"at least {at_least:.3f}" if at_most == math.inf else f"at most {at_most:.3f}"
    reached = at_least <= value <= at_most
    return f"{'pass' if reached else 'MISS'}: {what}: {value:.3f}, {limit}"


def records(keys: np.ndarray, first: int) -> np.ndarray:
    """Rows of records, numbered from `first` on."""
    return np.stack([keys, first + np.arange(len(keys))], axis=1).astype(np.uint32)


def place(memory: np.ndarray, address: int, rows: np.ndarray, lanes: int) -> None:
    """Puts records into memory."""
    words = -(-len(rows) // lanes)
    memory[address : address + words].reshape(-1, rows.shape[1])[: len(rows)] = rows


def merging(seed: int = 1) -> str:
    """Merges against copies, for each width and distribution."""
    rows, reached = [], []
    for lanes in tqdm(LANES, desc="merging", file=sys.stderr, leave=False):
        bench = Bench(lanes)
        for size, batch in ((1 << 20, 1 << 16), (1 << 18, 1 << 18)):
            copied = bench.copy(size + batch)
            shares = []
            for make in DISTRIBUTIONS.values():
                array, keys = make(size, batch, np.random.default_rng(seed))
                shares.append(copied / bench.insert(array, [keys]).cycles)
            reached += shares
            rows.append(
                (bench.width, lanes, f"{size:,} + {batch:,}", copied, *(f"{one:.3f}" for one in shares))
            )
    table = tabulate(rows, HEADERS, disable_numparse=True, stralign="right")
    return f"{table}\n\n{verdict('merging, least share of a copy', min(reached), at_least=LEAST)}"


def gathering(seed: int = 1) -> str:
    """Two batches into a small array, then that into the main one, both read from memory, against copies."""
    half = 1 << 17
    bench = Bench(SMALL_LANES, 2, 4 * half, half)
    # Each makes a new array: of the first batch, of both, and of all.
    copied = sum(bench.copy(count) for count in (half, 2 * half, 4 * half))
    shares = []
    for make in tqdm(DISTRIBUTIONS.values(), desc="gathering", file=sys.stderr, leave=False):
        array, keys = make(2 * half, 2 * half, np.random.default_rng(seed))
        shares.append(copied / bench.insert(array, [keys[::2], keys[1::2], keys[:0]]).cycles)
    row = (
        bench.width,
        bench.lanes,
        f"{2 * half:,} + 2 x {half:,}",
        copied,
        *(f"{one:.3f}" for one in shares),
    )
    return tabulate([row], HEADERS, disable_numparse=True, stralign="right")


def inserting(seed: int = 1) -> str:
    """Batches of 64K into 8M tuples, against the best that the paper's board can do."""
    count = SUBWINDOW + BATCH
    # It reads array and batch, and writes the new array.
    moved = 2 * count * BYTES
    paper = max(count / PAPER_MERGERS, moved / PAPER_BYTES)
    rows = []
    for lanes in tqdm(LANES, desc="inserting", file=sys.stderr, leave=False):
        bench = Bench(lanes)
        rng = np.random.default_rng(seed)
        array, batch = _uniform(SUBWINDOW, rng), _uniform(BATCH, rng)
        for name, timing in (("DDR", bench.ddr), ("no waits", STEADY)):
            cost = bench.insert(array, [batch], timing)
            rows.append(
                (
                    bench.width,
                    lanes,
                    name,
                    f"{cost.cycles:,}",
                    f"{cost.read * bench.width:,}",
                    f"{cost.written * bench.width:,}",
                    f"{paper / cost.cycles:.2f}",
                    f"{paper * PAPER_BYTES / (cost.cycles * 2 * bench.width):.2f}",
                )
            )
    headers = (
        *("bytes", "lanes", "memory", "cycles", "bytes read", "bytes written"),
        *("paper's cycles/ours", "and per byte"),
    )
    return (
        f"The paper's board: {PAPER_MERGERS} mergers at {PAPER_MHZ} MHz, {PAPER_BYTES:.1f} bytes per cycle "
        f"read or written;\n{moved:,} bytes take it {paper:,.0f} cycles if its memory never waits.\n\n"
        + tabulate(rows, headers, disable_numparse=True, stralign="right")
    )


@dataclass(frozen=True)
class Filled:
    """What it takes to fill a subwindow by batches, and how many arrays probes find meanwhile."""

    moved: int  #: records read and written
    arrays: float  #: on average


def filled(records: int, batch: int, levels: int) -> Filled:
    """Counted with the rule that the gateware follows."""
    room = capacities(records, batch, levels)
    counts = [0] * levels
    moved = arrays = 0
    batches = records // batch
    for number in range(batches):
        arrays += sum(count > 0 for count in counts)
        level = level_for(counts, batch, room, whole=number == batches - 1)
        read = sum(counts[: level + 1])
        counts[: level + 1] = [0] * level + [read + batch]
        moved += 2 * read + batch
    return Filled(moved, arrays / batches)


def by_levels() -> str:
    """Insertions per byte moved by batch size, and what probing pays."""
    rows = []
    for batch in tqdm(BATCHES, desc="levels", file=sys.stderr, leave=False):
        found = [filled(SUBWINDOW, batch, levels) for levels in LEVELS]
        per_kilobyte = [1024 * SUBWINDOW / (one.moved * BYTES) for one in found]
        rows.append(
            (
                f"{batch:,}",
                *(f"{one:.3f}" for one in per_kilobyte),
                *(f"{one / per_kilobyte[0]:.1f}" for one in per_kilobyte[1:]),
                *(f"{one.arrays:.2f}" for one in found),
            )
        )
    headers = (
        "batch",
        *(f"{levels} level{'s' * (levels > 1)}" for levels in LEVELS),
        *(f"{levels} against 1" for levels in LEVELS[1:]),
        *(f"arrays, {levels}" for levels in LEVELS),
    )
    return tabulate(rows, headers, disable_numparse=True, stralign="right")


def simulated_levels(seed: int = 1) -> str:
    """The same for a subwindow that is filled in simulation."""
    rng = np.random.default_rng(seed)
    batches = [_uniform(SMALL_BATCH, rng) for _ in range(SMALL_SUBWINDOW // SMALL_BATCH)]
    rows = []
    for levels in tqdm(LEVELS, desc="filling", file=sys.stderr, leave=False):
        bench = Bench(SMALL_LANES, levels, SMALL_SUBWINDOW, SMALL_BATCH)
        cost = bench.insert(np.arange(0), batches)
        counted = filled(SMALL_SUBWINDOW, SMALL_BATCH, levels)
        assert (cost.read + cost.written) * SMALL_LANES == counted.moved, "batches are whole words"
        rows.append(
            (
                levels,
                f"{cost.cycles / SMALL_SUBWINDOW:.2f}",
                f"{(cost.read + cost.written) * bench.width / SMALL_SUBWINDOW:.1f}",
                f"{counted.arrays:.2f}",
            )
        )
    headers = ("levels", "cycles per record", "bytes moved per record", "arrays to probe")
    return tabulate(rows, headers, disable_numparse=True, stralign="right")


#: What is printed, in this order.
SECTIONS = {
    "merging": ("Merges: a copy's cycles over a merge's, array and batch, by their keys", merging),
    "gathering": (
        "Two levels: two batches into a small array, then that into the main one; likewise",
        gathering,
    ),
    "inserting": (f"Batches of {BATCH:,} into {SUBWINDOW:,} tuples of {BYTES} bytes", inserting),
    "levels": (
        f"Insertions per KiB read or written while a subwindow of {SUBWINDOW:,} tuples is filled, and the "
        "sorted arrays that a\nprobe finds in it on average; one level is the paper's algorithm",
        by_levels,
    ),
    "filling": (
        f"The same, simulated: {SMALL_SUBWINDOW:,} tuples by batches of {SMALL_BATCH}, "
        f"{SMALL_LANES * BYTES} bytes per cycle",
        simulated_levels,
    ),
}


def print_sections(
    sections: dict[str, tuple[str, Callable[[], str]]],
    command: str,
    description: str,
    arguments: Sequence[str] | None,
) -> None:
    """Prints titles and tables, of all sections or of those that the arguments name, one by one."""
    parser = argparse.ArgumentParser(prog=f"python -m {command}", description=description)
    parser.add_argument("--only", nargs="+", choices=sections, help="these sections alone")
    for name in parser.parse_args(arguments).only or sections:
        title, table = sections[name]
        print(f"{title}\n\n{table()}\n", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the tables."""
    print_sections(SECTIONS, "sim.bench_insertion", __doc__.splitlines()[0], arguments)


if __name__ == "__main__":
    main()
