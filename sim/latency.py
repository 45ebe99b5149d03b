"""Latency of handshake join, SplitJoin and low-latency handshake join, in cycles: `make latency`.

All get the same tuples, one every `PACE` cycles, which is as fast as the original goes, and have the same
windows, cores and comparators. A pair's latency is the time from the transfer of its later tuple to its own.
The original's is held against the model of section 3.1 of the low-latency paper: at most
|W_R| |W_S| / (|W_R| + |W_S|), where a window is measured in the time that its tuples take to come. Further
tables show what index and hashed homes save, and how much the sorter keeps. The picture is that of Figures 5
and 19.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

import matplotlib
import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from hw.dimension import Dimension
from hw.handshake import Handshake
from hw.lowlatency import LowLatency
from hw.ordering import Ordering
from hw.parameters import Parameters
from hw.socket import Kind, Tag
from hw.words import pack_boxes, pack_control, pack_points, unpack_results

from . import engine
from .library import load

matplotlib.use("Agg")  # needs no screen
import matplotlib.pyplot as plt

PACE = 8
DIMS = (Dimension.parse("equal32"),)
ARCHITECTURES = ("handshake", "splitjoin", "lowlatency")
#: Cores and tuples of each stream per core: the first is drawn, the others show what latency grows with.
SIZES = ((8, 32), (8, 8), (2, 8), (32, 8))
#: R tuples for each S tuple: as fast, and twice as fast, so that the windows are as long, and half as long.
RATES = {"equal": 1, "unequal": 2}
#: So many windows of tuples go through.
WINDOWS = 8
PICTURE = Path("docs/latency.png")


@dataclass(frozen=True)
class Latencies:
    """Of each pair, when its later tuple came and how long the pair took."""

    came: np.ndarray
    took: np.ndarray

    def full(self, since: int) -> np.ndarray:
        """The latencies from a cycle on."""
        return self.took[self.came >= since]


def configuration(architecture: str, cores: int, segment: int) -> Parameters:
    """A tuple takes `PACE` cycles of the comparators."""
    return Parameters(architecture, cores, segment, lanes=segment // PACE, dims=DIMS)


def tuples(parameters: Parameters, rate: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Which tuples are of S, and all as words; one in four finds a pair."""
    rng = np.random.default_rng(seed)
    count = 2 * WINDOWS * parameters.capacity
    is_s = np.arange(count) % (rate + 1) == rate
    keys = rng.integers(0, 4 * parameters.capacity, count).astype(np.uint64)
    numbers = np.where(is_s, np.cumsum(is_s), np.cumsum(~is_s)) - 1
    points = pack_points(DIMS, numbers[~is_s], [keys[~is_s]])
    words = np.empty((count, points.shape[1]), np.uint32)
    words[~is_s] = points
    words[is_s] = pack_boxes(DIMS, numbers[is_s], [keys[is_s]], [keys[is_s]])
    return is_s, words


def paced(parameters: Parameters, words: np.ndarray, is_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The words with others between them that do nothing, for those that could go faster, and where they are.

    A core of SplitJoin compares R tuples while it stores S tuples, and the other way round: what is left is
    as much for each S tuple and the R tuples before it.
    """
    idle = {"handshake": 0, "splitjoin": (PACE - 1) * is_s, "lowlatency": PACE - 1}[parameters.architecture]
    idle = np.broadcast_to(idle, len(words))
    nothing = pack_control(DIMS, Kind.HORIZON_R)
    places = np.arange(len(words)) + np.cumsum(idle) - idle
    return np.insert(words, np.repeat(np.arange(len(words)) + 1, idle), nothing, 0), places


def measure(parameters: Parameters, rate: int) -> Latencies:
    """The latencies of all pairs that come out while tuples come."""
    is_s, words = tuples(parameters, rate)
    with load(parameters).open() as model:
        given, places = paced(parameters, words, is_s)
        run = model.run(given, timestamps=True)
    taken = run.taken.astype(np.int64)[places]
    results = unpack_results(run.results)
    found = results.tag == Tag.PAIR.value
    came = np.maximum(taken[~is_s][results.r_id[found]], taken[is_s][results.s_id[found]])
    return Latencies(came, run.given.astype(np.int64)[found] - came)


def longest(parameters: Parameters, rate: int) -> float:
    """The most that the original takes, by the model: windows in cycles."""
    r, s = (parameters.capacity * PACE * (rate + 1) / share for share in (rate, 1))
    return r * s / (r + s)


def agrees(parameters: Parameters, most: int, model: float) -> bool:
    """Whether the original took what the model says: less by up to two of its cores, never more than a tuple
    that is met at once would add."""
    return model * (1 - 2 / parameters.cores) <= most <= model + Handshake.latency(parameters)


def work(parameters: Parameters) -> tuple[float, float]:
    """Rows that a tuple meets in all nodes, and cycles per tuple, with full windows and all that can come."""
    _, words = tuples(parameters, 1)
    half = len(words) // 2
    with load(parameters).open() as model:
        before = model.run(words[:half]).counters["steps"]
        run = model.run(words[half:])
    return (run.counters["steps"] - before) * parameters.cores / (len(words) - half), run.cycles / half


def fill(parameters: Parameters) -> int:
    """The most results that the sorter kept."""
    sorts = replace(parameters, ordering=Ordering("tuples", 1))
    is_s, words = tuples(sorts, 1)
    library = engine.load(lambda: LowLatency(sorts, stallable=True), f"{sorts.name}_stallable")
    with library.open() as model:
        return int(model.run({"tuples": paced(sorts, words, is_s)[0]}, {}).outputs["fills"][-1, 0])


def draw(path: Path, drawn: dict[str, dict[str, Latencies]], models: dict[str, float]) -> None:
    """Average and maximum by the time at which tuples came, a panel for each pair of windows."""
    figure, panels = plt.subplots(1, len(drawn), figsize=(10, 4), layout="constrained", sharey=True)
    for axes, (name, by_architecture) in zip(panels, drawn.items()):
        for colour, (architecture, latencies) in enumerate(by_architecture.items()):
            edges = np.linspace(0, latencies.came.max() + 1, 41)
            place = np.digitize(latencies.came, edges) - 1
            parts = [latencies.took[place == k] for k in range(40)]
            kept = [k for k, part in enumerate(parts) if len(part)]
            middle = (edges[:-1] + edges[1:])[kept] / 2
            for style, of in (("-", np.mean), ("--", np.max)):
                label = f"{architecture}, {'average' if of is np.mean else 'maximum'}"
                values = [of(parts[k]) for k in kept]
                axes.plot(middle, values, style, color=f"C{colour}", label=label)
        axes.axhline(models[name], color="grey", linewidth=0.8, label="model of the original's maximum")
        axes.set(title=f"{name} windows", xlabel="cycle of arrival", yscale="log")
    panels[0].set_ylabel("latency in cycles")
    panels[0].legend(fontsize="small")
    figure.savefig(path, dpi=120)
    plt.close(figure)


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
        "--sizes", type=_sizes, default=SIZES, help="cores and tuples per core; the first is drawn"
    )
    options = parser.parse_args(arguments)
    picture, sizes = options.picture, options.sizes
    rows, drawn, models, wrong = [], {rate: {} for rate in RATES}, {}, []
    cases = [
        (*size, rate, architecture) for size in sizes for rate in RATES for architecture in ARCHITECTURES
    ]
    for cores, segment, rate, architecture in tqdm(cases, desc="chains", file=sys.stderr, leave=False):
        p = configuration(architecture, cores, segment)
        latencies = measure(p, RATES[rate])
        # From here on both windows are full.
        full = latencies.full(p.capacity * PACE * (RATES[rate] + 1))
        model = longest(p, RATES[rate])
        if architecture == "handshake" and not agrees(p, int(full.max()), model):
            wrong.append((cores, segment, rate))
        rows.append(
            (
                *(architecture, cores, p.capacity, rate, len(full), full.mean(), full.max()),
                model if architecture == "handshake" else None,
            )
        )
        if (cores, segment) == sizes[0]:
            drawn[rate][architecture], models[rate] = latencies, model
    draw(picture, drawn, models)
    headers = ("architecture", "cores", "window", "windows", "pairs", "average", "maximum", "model")
    print(f"Latency in cycles with full windows, a tuple every {PACE} cycles; {picture} shows the first\n")
    print(tabulate(rows, headers, floatfmt=".1f"))

    plain = replace(configuration("lowlatency", *sizes[0]), lanes=1)
    keyed = replace(plain, segment=plain.capacity, s_segment=plain.capacity, homes="hash")
    variants = (plain, replace(plain, index=16), keyed, replace(keyed, index=16))
    print(f"\nWork of a tuple in a chain of {plain.cores} nodes, windows of {plain.capacity}, 1 lane\n")
    table = [(p.homes, p.index, *work(p)) for p in variants]
    print(tabulate(table, ("homes", "buckets", "rows met", "cycles per tuple"), floatfmt=".2f"))
    sorts = configuration("lowlatency", *sizes[-1])
    room = prod(sorts.sorter_size)
    kept = fill(sorts)
    print(
        f"\nSorted results, {sorts.cores} nodes, windows of {sorts.capacity}: {kept} kept of {room} at most"
    )
    for cores, segment, rate in wrong:
        print(f"the original with {cores} x {segment}, {rate} windows, does not take what the model says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
