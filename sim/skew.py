"""How evenly ScaleJoin's elements share the comparisons, whatever the inputs' rates: `python -m sim.skew`.

::

    tuples of the paper's scenarios, horizons --> [ ScaleJoin ] --> comparisons of each element

Windows are of time, as in the paper's Figure 8. Elements store in turn, so that at any moment some of them
have a tuple more than others. Where rates and window are multiples of each other these are always the same
ones: so what counts is how many tuples an element holds, and windows are as long as simulation allows. The
command shows a tenth of the run and all of it, both behind the time in which the windows fill.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from hw.dimension import Dimension
from hw.errors import DataError, DeviceError
from hw.gate_word import gate_id
from hw.parameters import Parameters
from hw.scalejoin import ScaleJoin
from hw.socket import Kind, Tag, tuple_layout
from hw.words import pack, pack_boxes, pack_points, unpack, unpack_results

from . import engine

DIMS = (Dimension.parse("equal8"),)
#: The longest standard deviation over elements, as a share of their mean.
LIMIT = 0.001
#: A window, and a run behind the time in which the windows fill, in units of time.
WINDOW, LENGTH = 31.7, 60
#: Tuples of each stream that an element has room for. The place that is stored in next keeps its tuple, dead
#: or not, so that one place and the rest of a turn are not to be needed.
SEGMENT = 320
#: Steps of a unit of time in which rates are taken for constant.
_STEPS = 1000

Rate = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Scenario:
    """Rates of the physical inputs of R and of S, in tuples per unit of time, and the elements."""

    name: str
    elements: int
    r: tuple[Rate, ...]
    s: tuple[Rate, ...]

    def arrivals(self, length: float) -> "Arrivals":
        """The tuples of so many units of time."""
        grid = np.arange(int(length * _STEPS)) / _STEPS
        times, inputs = [], []
        for k, rate in enumerate((*self.r, *self.s)):
            # Inputs of one rate take turns.
            come = np.cumsum(rate(grid)) / _STEPS + (k % 7) / 7
            own = grid[1:][np.floor(come[1:]) > np.floor(come[:-1])]
            times.append(own)
            inputs.append(np.full(len(own), k))
        times, inputs = np.concatenate(times), np.concatenate(inputs)
        order = np.lexsort((inputs, times))
        return Arrivals(times[order], inputs[order], inputs[order] >= len(self.r))


@dataclass(frozen=True)
class Arrivals:
    """The time and the input of each tuple, in arrival order, and which are of S."""

    time: np.ndarray
    input: np.ndarray
    is_s: np.ndarray

    def oldest(self, window: float) -> tuple[np.ndarray, np.ndarray]:
        """For each tuple the numbers, in arrival order, of the first live ones of R and of S."""
        first = np.searchsorted(self.time, self.time - window)
        numbers = []
        for side in (False, True):
            own = np.flatnonzero(self.is_s == side)
            # If none is live, all before the tuple itself are behind its horizon.
            numbers.append(np.append(own, len(first))[np.searchsorted(own, first)])
        return tuple(np.minimum(number, np.arange(len(first))) for number in numbers)

    def live(self, window: float) -> tuple[np.ndarray, np.ndarray]:
        """For each tuple how many of R and of S are live that came before it."""
        counts = []
        for side, oldest in zip((False, True), self.oldest(window)):
            before = np.append(0, np.cumsum(self.is_s == side))
            counts.append(before[:-1] - before[oldest])
        return tuple(counts)


def _constant(rate: float) -> Rate:
    return lambda time: np.full(len(time), rate)


def _sine(rate: float, amplitude: float, period: float) -> Rate:
    return lambda time: rate + amplitude * np.sin(2 * np.pi * time / period)


def _peaks(rate: float, peak: float, every: float, at: float) -> Rate:
    return lambda time: np.where((time + at) % every < 0.3, peak, rate)


SCENARIOS = (
    Scenario("distinct constant rates", 10, (_constant(60),), tuple(map(_constant, (6, 9, 13, 17)))),
    Scenario(
        "fluctuating rates",
        12,
        (_sine(25, 15, 7), _sine(20, 18, 4.3), _sine(15, 10, 3.1)),
        (_sine(40, 30, 5.7), _sine(30, 12, 2.9)),
    ),
    Scenario(
        "rates with peaks",
        14,
        tuple(
            _peaks(rate, 5 * rate, every, at)
            for rate, every, at in ((12, 6, 1), (15, 9, 4), (18, 5, 0), (9, 7, 3))
        ),
        (_peaks(30, 120, 8, 2), _peaks(24, 90, 11, 6)),
    ),
    Scenario("R, S, S, S, S and so on", 10, (_constant(20),), (_constant(20),) * 4),
)


@dataclass(frozen=True)
class Shares:
    """Tuples, and the comparisons of each element for them; `expected` are those of an even share."""

    tuples: int
    comparisons: np.ndarray
    expected: float

    @property
    def deviation(self) -> float:
        """The standard deviation as a share of the mean."""
        return float(self.comparisons.std() / self.comparisons.mean())


def measure(scenario: Scenario, window: float = WINDOW, length: float = LENGTH) -> tuple[Shares, Shares]:
    """The comparisons of each element in a tenth of the run, and in all of it, with full windows of time."""
    arrivals = scenario.arrivals(window + length)
    live = arrivals.live(window)
    needed = ceil(max(map(np.max, live)) / scenario.elements) + 2
    if needed > SEGMENT:
        raise DataError(f"{scenario.name}: a window must need at most {SEGMENT} places, not {needed}")
    # Each tuple comes behind the horizons of its time, which also let tuples go that wait for a slow input.
    words = np.stack([_horizons(arrivals, window, side) for side in (False, True)] + [_tuples(arrivals)], 1)
    return _shares(scenario, arrivals, words, live, int(np.searchsorted(arrivals.time, window)))


def measure_rows(scenario: Scenario, length: float) -> tuple[Shares, Shares]:
    """The same with windows of rows, as many as there is room for: the oldest tuples are overwritten."""
    capacity = scenario.elements * SEGMENT
    rates = ([rate(np.zeros(1))[0] for rate in rates] for rates in (scenario.r, scenario.s))
    arrivals = scenario.arrivals(capacity / min(map(sum, rates)) + length)
    live = arrivals.live(np.inf)
    # Nothing expires: marks let tuples go.
    numbers = np.arange(len(arrivals.time)) + 1
    marks = pack(tuple_layout(DIMS), {"kind": Kind.MARK.value, "id": numbers}, len(numbers))
    begin = int(np.flatnonzero(np.minimum(*live) >= capacity)[0])
    met = tuple(np.minimum(count, capacity) for count in live)
    return _shares(scenario, arrivals, np.stack([_tuples(arrivals), marks], 1), met, begin)


def _shares(
    scenario: Scenario, arrivals: Arrivals, words: np.ndarray, live: tuple[np.ndarray, np.ndarray], begin: int
) -> tuple[Shares, Shares]:
    """What elements compare from the tuple `begin` on, each with those of the other stream that are live."""
    count = len(arrivals.time)
    inputs = len(scenario.r) + len(scenario.s)
    p = Parameters("scalejoin", scenario.elements, SEGMENT, 1, 4, DIMS, inputs=inputs)
    stops = [begin, begin + (count - begin) // 10, count]
    totals = []
    library = engine.load(lambda: ScaleJoin(p, counted=True), f"{p.name}_counted")
    with library.open() as model:
        for start, stop in zip([0, *stops], stops):
            part = words[start:stop].reshape(-1, words.shape[-1])
            mark = pack(tuple_layout(DIMS), {"kind": Kind.MARK.value, "id": stop}, 1)
            marks = 1 + int((unpack(tuple_layout(DIMS), part, "kind") == Kind.MARK.value).sum())
            outputs = {"results": marks, "comparisons": marks}
            run = model.run({"tuples": np.concatenate([part, mark])}, outputs)
            results = unpack_results(run.outputs["results"])
            if (results.tag != Tag.MARK.value).any():
                raise DeviceError(f"{scenario.name}: nothing matches, but results have tags {results.tag}")
            totals.append(run.outputs["comparisons"][-1, : p.cores].astype(np.int64))
    met = np.where(arrivals.is_s, *live)
    return tuple(
        Shares(stop - begin, total - totals[0], met[begin:stop].sum() / p.cores)
        for stop, total in zip(stops[1:], totals[1:])
    )


def _horizons(arrivals: Arrivals, window: float, of_s: bool) -> np.ndarray:
    kind = Kind.HORIZON_S if of_s else Kind.HORIZON_R
    oldest = arrivals.oldest(window)[of_s]
    return pack(tuple_layout(DIMS), {"kind": kind.value, "id": gate_id(0, oldest)}, len(oldest))


def _tuples(arrivals: Arrivals) -> np.ndarray:
    """Points that no box holds."""
    ids = gate_id(arrivals.input, np.arange(len(arrivals.input)))
    is_s = arrivals.is_s
    zeros, ones = np.zeros((~is_s).sum(), np.uint8), np.ones(is_s.sum(), np.uint8)
    points, boxes = pack_points(DIMS, ids[~is_s], [zeros]), pack_boxes(DIMS, ids[is_s], [ones], [ones])
    words = np.empty((len(ids), points.shape[1]), np.uint32)
    words[~is_s], words[is_s] = points, boxes
    return words


def main() -> int:
    """Prints the table; 1 if a standard deviation is above the limit."""
    rows, worst = [], 0.0
    for scenario in tqdm(SCENARIOS, desc="scenarios", file=sys.stderr, leave=False):
        short, long = measure(scenario)
        worst = max(worst, long.deviation)
        rows.append(
            (
                *(scenario.name, len(scenario.r), len(scenario.s), scenario.elements),
                *(f"{share.deviation:.3%}" for share in (short, long)),
                *(long.tuples, round(long.comparisons.mean())),
            )
        )
    print("Comparisons of each element with windows of time: standard deviation as a share of the mean\n")
    headers = ("scenario", "R", "S", "elements", "a tenth", "whole run", "tuples", "mean")
    print(tabulate(rows, headers))
    if worst > LIMIT:
        print(f"the standard deviation must be at most {LIMIT:.1%}, not {worst:.3%}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
