"""The boundary generator.

runs of keys -> BoundaryGenerator -> bounds, sorted
"""

import numpy as np
import pytest

from hw.boundary import BoundaryGenerator
from hw.dimension import Dimension, Test

from .runs import flits_of
from .streams import simulate, sink, source

BATCH, HIGHEST = 32, 255
WIDTH = 40


def bounds_of(dim: Dimension, side: str, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What a tuple with these bounds, which of a point are the same, looks for."""
    everything = np.zeros_like(low), np.full_like(low, HIGHEST)
    match dim.test, side:
        case Test.BAND, "r":
            return np.maximum(low - WIDTH, 0), high
        case (Test.AT_LEAST, "r") | (Test.AT_MOST, "s"):
            return everything[0], high
        case (Test.AT_MOST, "r") | (Test.AT_LEAST, "s"):
            return low, everything[1]
    return low, high


@pytest.mark.parametrize("side", ["r", "s"])
@pytest.mark.parametrize("test", Test)
@pytest.mark.parametrize("size, lanes, stall", [(0, 4, 0.0), (1, 1, 0.4), (32, 1, 0.0), (29, 4, 0.4)])
def test_bounds_of_both_kinds_come_sorted(side, test, size, lanes, stall, seed, rng):
    dim = Dimension(test, 8)
    low = np.sort(np.append(rng.integers(0, HIGHEST + 1, max(size - 2, 0)), [0, HIGHEST])[:size])
    high = low
    if test is Test.BAND and side == "s":
        high = np.minimum(low + rng.integers(0, 80, size), HIGHEST)
    order = np.argsort(high, kind="stable")
    dut = BoundaryGenerator(dim, side, lanes, BATCH)
    nothing = {"key": 0, "id": 0}
    taken = []

    async def testbench(ctx):
        lower = flits_of([{"key": int(key), "id": 0} for key in low], nothing, lanes)
        upper = flits_of([{"key": int(high[slot]), "id": int(slot)} for slot in order], nothing, lanes)
        await source(dut.lower, lower, seed=seed, stall=stall)(ctx)
        await source(dut.upper, upper, seed=seed, stall=stall)(ctx)
        ctx.set(dut.width, WIDTH)
        for _ in range(2):
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            got = []
            await sink(dut.bounds, got, 2 * size + 1, seed=seed, stall=stall)(ctx)
            taken.append(got)

    simulate(dut, [testbench])
    lowest, highest = bounds_of(dim, side, low, high)
    expected = [(2 * int(key), slot) for slot, key in enumerate(lowest)]
    expected += [(2 * int(key) + 1, slot) for slot, key in enumerate(highest)]
    for got in taken:
        assert got[-1][1].closing
        found = [(2 * b.code.key + b.code.upper, b.slot) for _, b in got[:-1]]
        assert [code for code, _ in found] == sorted(code for code, _ in expected)
        assert sorted(found) == sorted(expected)
        if not stall:
            cycles = [cycle for cycle, _ in got]
            assert cycles == list(range(cycles[0], cycles[0] + len(got)))
