"""The ids of a segment.

entering -> IdStore -> id (by index), leaving
"""

import pytest

from hw.id_store import IdStore

from .streams import simulate


@pytest.mark.parametrize("length", [1, 2, 3, 4, 6, 8])
def test_every_id_is_found_by_its_age(length):
    dut = IdStore(length)

    async def testbench(ctx):
        ids = []
        for number in range(3 * length + 2):
            ctx.set(dut.entering, 1000 + number)
            ctx.set(dut.shift, 1)
            await ctx.tick()
            ctx.set(dut.shift, 0)
            ctx.set(dut.entering, 0)
            await ctx.tick()
            ids = [1000 + number, *ids][:length]
            for age, id in enumerate(ids):
                ctx.set(dut.index, age)
                assert ctx.get(dut.id) == id
            if len(ids) == length:
                assert ctx.get(dut.leaving) == ids[-1]

    simulate(dut, [testbench])
