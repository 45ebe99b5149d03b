"""ScaleJoin's elements share the work, whatever the inputs' rates; in Amaranth's simulator.

tuples of the paper's scenarios -> ScaleJoin -> comparisons of each element
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from hw.dimension import Dimension
from hw.gate_word import gate_id
from hw.parameters import Parameters
from hw.scalejoin import ScaleJoin
from hw.socket import COUNTER_WIDTH, Kind, Tag

from .streams import simulate

#: Units of time of a scenario, and the steps of each in which rates are taken for constant.
LENGTH, _STEPS = 8, 1000
#: Tuples that find full windows, and from one mark to the next: marks let go what waits at slow inputs.
MEASURED, DISTANCE = 40, 3

Rate = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Scenario:
    """Rates of the physical inputs of R and of S, in tuples per unit of time, and the elements."""

    name: str
    elements: int
    r: tuple[Rate, ...]
    s: tuple[Rate, ...]

    @property
    def parameters(self) -> Parameters:
        """Elements with small windows, so that these are soon full."""
        dims = (Dimension.parse("equal8"),)
        inputs = len(self.r) + len(self.s)
        return Parameters("scalejoin", self.elements, 2, 1, 4, dims, inputs=inputs)

    def arrivals(self) -> np.ndarray:
        """The input of each tuple, in arrival order; inputs of R come first."""
        grid = np.arange(int(LENGTH * _STEPS)) / _STEPS
        times, inputs = [], []
        for k, rate in enumerate((*self.r, *self.s)):
            # Inputs of one rate take turns.
            come = np.cumsum(rate(grid)) / _STEPS + (k % 7) / 7
            own = grid[1:][np.floor(come[1:]) > np.floor(come[:-1])]
            times.append(own)
            inputs.append(np.full(len(own), k))
        times, inputs = np.concatenate(times), np.concatenate(inputs)
        return inputs[np.lexsort((inputs, times))]


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


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "_"))
def test_elements_share_the_comparisons(scenario):
    """With full windows of rows their standard deviation is at most 0.1 % of their mean."""
    p = scenario.parameters
    inputs = scenario.arrivals()
    is_s = inputs >= len(scenario.r)
    full = 1 + max(int(np.flatnonzero(is_s == side)[p.capacity - 1]) for side in (False, True))
    full += -full % DISTANCE
    dut, totals, marks = ScaleJoin(p, counted=True), [], []

    async def source(ctx):
        for number in range(full + MEASURED):
            kind = Kind.S if is_s[number] else Kind.R
            dims = {"box": {"d0": {"lo": 1}}} if is_s[number] else {"point": {"d0": 0}}
            await send(ctx, {"kind": kind, "id": int(gate_id(inputs[number], number)), "dims": dims})
            if number % DISTANCE == DISTANCE - 1:
                await send(ctx, {"kind": Kind.MARK, "id": number + 1, "dims": {"point": {"d0": 0}}})
            if number == full - 1:
                await until_marked(ctx, full)
        await send(ctx, {"kind": Kind.MARK, "id": full + MEASURED, "dims": {"point": {"d0": 0}}})
        await until_marked(ctx, full + MEASURED)

    async def send(ctx, word):
        ctx.set(dut.tuples.payload, word)
        ctx.set(dut.tuples.valid, 1)
        await ctx.tick().until(dut.tuples.ready)
        ctx.set(dut.tuples.valid, 0)

    async def until_marked(ctx, mark):
        for _ in range(2000):
            if marks and marks[-1] == mark:
                break
            await ctx.tick()
        assert marks[-1] == mark
        total = ctx.get(dut.comparisons.payload)
        totals.append([total >> COUNTER_WIDTH * k & (1 << COUNTER_WIDTH) - 1 for k in range(p.cores)])

    async def sink(ctx):
        ctx.set(dut.results.ready, 1)
        async for _, _, valid, result in ctx.tick().sample(dut.results.valid, dut.results.payload):
            if valid:
                assert result.tag == Tag.MARK, "nothing matches, and nothing is wrong"
                marks.append(result.body.mark.id)

    simulate(dut, [source], [sink])
    counts = np.array(totals[1]) - totals[0]
    assert counts.mean() == MEASURED * p.segment
    assert counts.std() <= 0.001 * counts.mean()
