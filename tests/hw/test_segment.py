"""A window segment.

entering -> Segment (banks x rows) -> rows, leaving
"""

import random

import pytest
from amaranth.lib import data

from hw.segment import Segment

from .streams import simulate

SHAPE = data.StructLayout({"valid": 1, "id": 8})


@pytest.mark.parametrize("lanes, depth", [(1, 1), (4, 1), (1, 4), (2, 3), (3, 2), (1, 5)])
def test_is_a_shift_register_that_shows_every_row_once(lanes, depth, seed):
    dut = Segment(SHAPE, lanes, depth)
    chance = random.Random(seed)

    async def testbench(ctx):
        window = [None] * (lanes * depth)  # newest first
        for number in range(4 * lanes * depth):
            # Between shifts, a whole scan: every row is shown once, and the address is back.
            if chance.random() < 0.7:
                seen = []
                for _ in range(depth):
                    ctx.set(dut.advance, 1)
                    await ctx.tick()
                    ctx.set(dut.advance, 0)
                    rows = [ctx.get(row) for row in dut.rows]
                    seen += [row.id for row in rows if row.valid]
                assert sorted(seen) == sorted(tuple for tuple in window if tuple is not None)
            leaving = ctx.get(dut.leaving)
            assert (leaving.id if leaving.valid else None) == window[-1]
            ctx.set(dut.entering, {"valid": 1, "id": number})
            ctx.set(dut.shift, 1)
            ctx.set(dut.advance, 1)
            await ctx.tick()
            ctx.set(dut.shift, 0)
            ctx.set(dut.advance, 0)
            window = [number, *window[:-1]]
        for _ in range(depth):
            ctx.set(dut.shift, 1)
            ctx.set(dut.advance, 1)
            ctx.set(dut.clear, 1)
            await ctx.tick()
        for _ in range(depth):
            assert not any(ctx.get(row).valid for row in dut.rows)
            await ctx.tick()

    simulate(dut, [testbench])
