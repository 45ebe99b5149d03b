"""Latency of handshake join, SplitJoin and low-latency handshake join, in cycles: `make latency`.

All get the same tuples at the same times, one every `PACE` cycles, which is as fast as the original goes,
and have the same windows, cores and comparators. A pair's latency is the time from the transfer of its later
tuple to its own. The original's is held against the model of section 3.1 of the low-latency paper: at most
|W_R| |W_S| / (|W_R| + |W_S|), where a window is measured in the time that its tuples take to come. Further
tables show what index and hashed homes save, and how much the sorter keeps. The picture is that of Figures 5
and 19, and what latency grows with.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from hw.dimension import Dimension
from hw.errors import DeviceError
from hw.handshake import Handshake
from hw.lowlatency import LowLatency
from hw.ordering import Ordering
from hw.parameters import Parameters
from hw.socket import Kind, Tag, tuple_layout
from hw.words import pack, pack_boxes, pack_points, unpack_results

from . import engine
from .library import load

matplotlib.use("Agg")  # needs no screen
import matplotlib.pyplot as plt

PACE = 8
DIMS = (Dimension.parse("equal32"),)
ARCHITECTURES = ("handshake", "splitjoin", "lowlatency")
#: Cores and tuples of each stream per core: the first is drawn over time, all show what latency grows with.
SIZES = ((8, 32), (8, 16), (8, 8), (2, 8), (32, 8))
#: So many windows of tuples go through.
WINDOWS = 8
#: A key that no S tuple has.
NOWHERE = 2**32 - 1
PICTURE = Path("docs/latency.png")


@dataclass(frozen=True)
class Case:
    """What comes in turn: `r` and `s` tuples, and `-`, with which the window of R holds a tuple less.

    The original has windows of one size. There `-` is a tuple of R that joins nothing and takes a place; the
    others get a horizon instead, as for any window that is smaller than theirs.
    """

    name: str
    turn: str

    def spans(self, capacity: int) -> tuple[float, float]:
        """The windows of R and of S, in cycles."""
        period = PACE * len(self.turn)
        s = self.turn.count("s")
        return capacity * period / (len(self.turn) - s), capacity * period / s

    def longest(self, capacity: int) -> float:
        """The most that the original takes, by the model."""
        r, s = self.spans(capacity)
        return r * s / (r + s)


#: Windows of one size, and R's half as large, as in Figure 5; and R's a third as long, as R comes three times
#: as fast.
CASES = (Case("equal", "rs"), Case("unequal", "r-s"), Case("uneven rates", "rrrs"))


@dataclass(frozen=True)
class Latencies:
    """Of each pair, when its later tuple came and how long the pair took."""

    came: np.ndarray
    took: np.ndarray

    def full(self, since: float) -> np.ndarray:
        """The latencies from a cycle on."""
        return self.took[self.came >= since]


@dataclass(frozen=True)
class Tuples:
    """What comes, one every `PACE` cycles: which are of S, which only take a place, numbers and keys."""

    is_s: np.ndarray
    fills: np.ndarray
    number: np.ndarray
    key: np.ndarray

    @classmethod
    def of(cls, case: Case, capacity: int, seed: int = 1) -> "Tuples":
        """Windows of tuples, each of which finds a pair on average."""
        rng = np.random.default_rng(seed)
        turn = np.resize(np.array(list(case.turn)), 2 * WINDOWS * capacity)
        is_s, fills = turn == "s", turn == "-"
        number = np.where(is_s, np.cumsum(is_s), np.cumsum(~is_s)) - 1
        return cls(is_s, fills, number, np.where(fills, NOWHERE, rng.integers(0, capacity, len(turn))))

    def words(self, parameters: Parameters) -> np.ndarray:
        """The tuples for a joiner, and horizons where R's window has room for fewer than the joiner."""
        r, s = ~self.is_s, self.is_s
        points = pack_points(DIMS, self.number[r], [self.key[r]])
        words = np.empty((len(r), points.shape[1]), np.uint32)
        words[r], words[s] = points, pack_boxes(DIMS, self.number[s], [self.key[s]], [self.key[s]])
        if parameters.architecture != "handshake":
            oldest = np.maximum(0, self.number[self.fills] + 1 - parameters.capacity)
            fields = {"kind": Kind.HORIZON_R.value, "id": oldest}
            words[self.fills] = pack(tuple_layout(DIMS), fields, len(oldest))
        return words

    def pairs(self, capacity: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of R and of S of all pairs: the places of a window are the last ones of its stream."""
        r, s = np.flatnonzero(~self.is_s), np.flatnonzero(self.is_s)
        before_r, before_s = np.searchsorted(s, r), np.searchsorted(r, s)
        numbers_r, numbers_s = np.arange(len(r)), np.arange(len(s))[:, None]
        near = (numbers_r >= before_s[:, None] - capacity) & (numbers_s >= before_r - capacity)
        found_s, found_r = np.nonzero(near & (self.key[r] == self.key[s][:, None]))
        return found_r, found_s


def configuration(architecture: str, cores: int, segment: int) -> Parameters:
    """A tuple takes `PACE` cycles of the comparators."""
    return Parameters(architecture, cores, segment, lanes=segment // PACE, dims=DIMS)


def measure(parameters: Parameters, case: Case) -> Latencies:
    """The latencies of the windows' pairs that come out while tuples come; each must come once.

    A joiner whose expired tuples are still in their places may put out others, which are left out.
    """
    tuples = Tuples.of(case, parameters.capacity)
    words = tuples.words(parameters)
    at = PACE * np.arange(len(words))
    with load(parameters).open() as model:
        run = model.run(words, at=at, timestamps=True)
    taken = run.taken.astype(np.int64)
    if (late := int((taken - at).max())) > PACE:
        raise DeviceError(f"sim {parameters.name}: a tuple must be taken within {PACE} cycles, not {late}")
    results = unpack_results(run.results)
    r_came, s_came = taken[~tuples.is_s], taken[tuples.is_s]

    wanted_r, wanted_s = tuples.pairs(parameters.capacity)
    wanted = wanted_r * len(s_came) + wanted_s
    pairs = np.where(
        results.tag == Tag.PAIR.value, results.r_id.astype(np.int64) * len(s_came) + results.s_id, -1
    )
    found = np.isin(pairs, wanted)
    times = np.unique(pairs[found], return_counts=True)[1]
    # What came last is still inside.
    due = np.maximum(r_came[wanted_r], s_came[wanted_s]) < taken[-1] - 2 * case.longest(parameters.capacity)
    missing = np.isin(wanted[due], pairs, invert=True).sum()
    if missing or (times > 1).any():
        raise DeviceError(
            f"sim {parameters.name}: of {due.sum()} pairs {missing} did not come out, "
            f"and {(times > 1).sum()} did so more than once"
        )
    came = np.maximum(r_came[results.r_id[found]], s_came[results.s_id[found]])
    return Latencies(came, run.given.astype(np.int64)[found] - came)


def agrees(parameters: Parameters, most: int, model: float) -> bool:
    """Whether the original took what the model says. Tuples that come together meet where the cores that
    they have walked are all but one, so it may be less by one core's share; and a pair that is met comes out
    after the latency of the chain, and the rows of a core."""
    rows = parameters.segment // parameters.lanes
    return model * (1 - 1 / parameters.cores) <= most <= model + Handshake.latency(parameters) + rows - 1


class Row(NamedTuple):
    """A line of the table: latencies with full windows, and the model's maximum."""

    architecture: str
    cores: int
    segment: int
    window: int
    case: str
    pairs: int
    average: float
    maximum: int
    model: float | None


def work(parameters: Parameters) -> tuple[float, float]:
    """Rows that a tuple meets in all nodes, and cycles per tuple, with full windows and all that can come."""
    words = Tuples.of(CASES[0], parameters.capacity).words(parameters)
    half = len(words) // 2
    with load(parameters).open() as model:
        before = model.run(words[:half]).counters["steps"]
        run = model.run(words[half:])
    return (run.counters["steps"] - before) * parameters.cores / (len(words) - half), run.cycles / half


def fill(parameters: Parameters) -> int:
    """The most results that the sorter kept."""
    sorts = replace(parameters, ordering=Ordering("tuples", 1))
    words = Tuples.of(CASES[0], sorts.capacity).words(sorts)
    library = engine.load(lambda: LowLatency(sorts, stallable=True), f"{sorts.name}_stallable")
    with library.open() as model:
        return int(model.run({"tuples": words}, {}).outputs["fills"][-1, 0])


def draw(path: Path, drawn: dict[str, dict[str, Latencies]], table: list[Row]) -> None:
    """Average and maximum by the time at which tuples came, in each case, and by window and cores."""
    figure, (over_time, growth) = plt.subplots(
        2, len(CASES), figsize=(13, 8), layout="constrained", sharey=True
    )
    first = table[0]
    for axes, case in zip(over_time, CASES):
        for architecture, latencies in drawn[case.name].items():
            edges = np.linspace(0, latencies.came.max() + 1, 41)
            place = np.digitize(latencies.came, edges) - 1
            parts = [latencies.took[place == k] for k in range(40)]
            kept = [k for k, part in enumerate(parts) if len(part)]
            middle = (edges[:-1] + edges[1:])[kept] / 2
            _plot(axes, architecture, middle, *([of(parts[k]) for k in kept] for of in (np.mean, np.max)))
        axes.axhline(case.longest(first.window), color="grey", linewidth=0.8, label="model of the original")
        axes.set(
            title=f"{case.name}, {first.cores} cores, windows of {first.window}", xlabel="cycle of arrival"
        )
    equal = [row for row in table if row.case == CASES[0].name]
    for axes, of, label, same in (
        (growth[0], "window", f"tuples of a window, {first.cores} cores", "cores"),
        (growth[1], "cores", "cores", "segment"),
    ):
        fixed = first.cores if same == "cores" else min(row.segment for row in equal)
        for architecture in ARCHITECTURES:
            rows = sorted(
                (getattr(row, of), row.average, row.maximum)
                for row in equal
                if row.architecture == architecture and getattr(row, same) == fixed
            )
            _plot(axes, architecture, *zip(*rows), marker="o")
        axes.set_xlabel(label)
        axes.set_xscale("log", base=2)
    for axes in (*over_time, *growth):
        axes.set(yscale="log")
    for axes in (over_time[0], growth[0]):
        axes.set_ylabel("latency in cycles")
    growth[2].axis("off")
    growth[2].legend(*over_time[0].get_legend_handles_labels(), loc="center")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _plot(axes, architecture: str, at, average, maximum, **style) -> None:
    colour = f"C{ARCHITECTURES.index(architecture)}"
    axes.plot(at, average, "-", color=colour, label=f"{architecture}, average", **style)
    axes.plot(at, maximum, "--", color=colour, label=f"{architecture}, maximum", **style)


def _sizes(text: str) -> list[tuple[int, int]]:
    """Sizes such as 8x32,8x8; each core's tuples are whole rows for `PACE` cycles."""
    sizes = [tuple(int(number) for number in size.split("x")) for size in text.split(",")]
    if not all(len(size) == 2 and min(size) > 0 and size[1] % PACE == 0 for size in sizes):
        raise argparse.ArgumentTypeError(
            f"must be like 8x32,8x8, of multiples of {PACE} tuples, not {text!r}"
        )
    return sizes


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables and draws the picture; 1 if the original does not take what its model says."""
    parser = argparse.ArgumentParser(prog="python -m sim.latency", description=__doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument(
        "--sizes", type=_sizes, default=SIZES, help="cores and tuples per core; the first is drawn over time"
    )
    options = parser.parse_args(arguments)
    picture, sizes = options.picture, options.sizes
    table, drawn, wrong = [], {case.name: {} for case in CASES}, []
    runs = [
        (configuration(architecture, *size), case)
        for size in sizes
        for case in CASES
        for architecture in ARCHITECTURES
    ]
    for p, case in tqdm(runs, desc="chains", file=sys.stderr, leave=False):
        latencies, model = measure(p, case), case.longest(p.capacity)
        full = latencies.full(max(case.spans(p.capacity)))
        original = p.architecture == "handshake"
        if original and not agrees(p, int(full.max()), model):
            wrong.append(f"{p.cores} x {p.segment}, {case.name}")
        table.append(
            Row(
                *(p.architecture, p.cores, p.segment, p.capacity, case.name),
                *(len(full), float(full.mean()), int(full.max()), model if original else None),
            )
        )
        if (p.cores, p.segment) == sizes[0]:
            drawn[case.name][p.architecture] = latencies
    draw(picture, drawn, table)
    print(f"Latency in cycles with full windows, a tuple every {PACE} cycles; {picture} shows it\n")
    print(tabulate(table, Row._fields, floatfmt=".1f"))

    plain = replace(configuration("lowlatency", *sizes[0]), lanes=1)
    keyed = replace(plain, segment=plain.capacity, s_segment=plain.capacity, homes="hash")
    variants = (plain, replace(plain, index=16), keyed, replace(keyed, index=16))
    print(f"\nWork of a tuple in a chain of {plain.cores} nodes, windows of {plain.capacity}, 1 lane\n")
    rows = [(p.homes, p.index, *work(p)) for p in variants]
    print(tabulate(rows, ("homes", "buckets", "rows met", "cycles per tuple"), floatfmt=".2f"))
    sorts = configuration("lowlatency", *sizes[-1])
    room = prod(sorts.sorter_size)
    kept = fill(sorts)
    print(
        f"\nSorted results, {sorts.cores} nodes, windows of {sorts.capacity}: {kept} kept of {room} at most"
    )
    for which in wrong:
        print(f"the original with {which}, does not take what the model says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
