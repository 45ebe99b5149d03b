"""Queues in memory that show their front in registers.

source -> Queue or ShortQueue -> sink
"""

from functools import partial

import pytest

from hw.queue import Queue, ShortQueue

from .streams import passed_through, simulate

Apart = partial(Queue, apart=True)


@pytest.mark.parametrize("kind", [Queue, Apart, ShortQueue])
@pytest.mark.parametrize("depth", [1, 2, 3, 8])
@pytest.mark.parametrize("stalls", [(0, 0), (0.5, 0), (0, 0.5), (0.4, 0.6)])
def test_everything_comes_out_in_order(kind, depth, stalls, seed):
    cycles = passed_through(kind(16, depth), stalls, seed)
    if stalls == (0, 0) and depth >= 3:
        assert cycles == list(range(cycles[0], cycles[0] + len(cycles)))
    elif stalls == (0, 0) and depth == 2 and kind is ShortQueue:
        assert cycles[-1] - cycles[0] == (len(cycles) - 1) * 3 // 2


@pytest.mark.parametrize("kind, behind, latency", [(Queue, 2, 3), (Apart, 3, 4), (ShortQueue, 0, 2)])
def test_places_and_latency(kind, behind, latency):
    """When the front is shown, and how much fits behind it: `depth`, and what `Queue`'s registers hold."""
    dut = kind(8, 5)

    async def testbench(ctx):
        ctx.set(dut.input.valid, 1)
        stored, shown = 0, None
        for cycle in range(20):
            if shown is None and ctx.get(dut.output.valid):
                shown = cycle
            stored += ctx.get(dut.input.ready)
            await ctx.tick()
        assert (stored, shown) == (1 + 5 + behind, latency)

    simulate(dut, [testbench])


def test_ready_does_not_follow_the_memory_within_a_cycle():
    """A short queue that is full is ready no sooner than the cycle after a place is free."""
    dut = ShortQueue(8, 2)

    async def testbench(ctx):
        ctx.set(dut.input.valid, 1)
        for _ in range(8):
            await ctx.tick()
        seen = []
        ctx.set(dut.output.ready, 1)
        for _ in range(3):
            seen.append(ctx.get(dut.input.ready))
            await ctx.tick()
        assert seen == [0, 0, 1]

    simulate(dut, [testbench])
