"""A queue in memory that shows its front in registers.

source -> Queue -> sink
"""

import pytest

from hw.queue import Queue

from .streams import passed_through, simulate


@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("stalls", [(0, 0), (0.5, 0), (0, 0.5), (0.4, 0.6)])
def test_everything_comes_out_in_order(depth, stalls, seed):
    cycles = passed_through(Queue(16, depth), stalls, seed)
    if stalls == (0, 0) and depth >= 3:
        assert cycles == list(range(cycles[0], cycles[0] + len(cycles)))


def test_places_and_latency():
    """The front is shown after 3 cycles, and behind it there is room for `depth` and one."""
    dut = Queue(8, 5)

    async def testbench(ctx):
        ctx.set(dut.input.valid, 1)
        stored, shown = 0, None
        for cycle in range(20):
            if shown is None and ctx.get(dut.output.valid):
                shown = cycle
            stored += ctx.get(dut.input.ready)
            await ctx.tick()
        assert (stored, shown) == (5 + 2, 3)

    simulate(dut, [testbench])
