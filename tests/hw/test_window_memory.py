"""Window memory.

tuple, (row, lane) -> WindowMemory -> rows, a cycle later
"""

import random

import pytest

from hw.segment import DISTRIBUTED
from hw.window_memory import BLOCK, WindowMemory, ram_style

from .streams import simulate


@pytest.mark.parametrize("lanes, depth", [(1, 1), (4, 1), (1, 4), (2, 3)])
def test_shows_rows_as_they_were_stored(lanes, depth, seed):
    dut = WindowMemory(8, lanes, depth)
    chance = random.Random(seed)

    async def testbench(ctx):
        stored = [[None] * lanes for _ in range(depth)]
        shown = None
        for _ in range(200):
            go, write = chance.random() < 0.7, chance.random() < 0.5
            row, lane, show = (chance.randrange(n) for n in (depth, lanes, depth))
            value = chance.randrange(256)
            inputs = {"go": go, "write": write, "row": row, "lane": lane, "show": show, "tuple": value}
            for name, setting in inputs.items():
                ctx.set(getattr(dut, name), setting)
            if shown is not None:
                now = [ctx.get(port) for port in dut.rows]
                assert all(want in (None, got) for want, got in zip(shown, now))
            before = list(stored[show])
            await ctx.tick()
            if write:
                stored[row][lane] = value
            # A row in registers is the row itself.
            shown = list(stored[0]) if depth == 1 else before if go else shown

    simulate(dut, [testbench])


@pytest.mark.parametrize(
    "width, depth, style",
    [(32, 17, DISTRIBUTED), (32, 128, BLOCK), (256, 16, DISTRIBUTED), (256, 17, BLOCK)],
)
def test_large_banks_that_are_deep_are_block_ram(width, depth, style):
    assert ram_style(width, depth) == style
