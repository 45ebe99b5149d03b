"""A queue whose `ready`, `valid` and front are registers.

source -> RegisteredQueue -> sink
"""

import pytest

from hw.registered_queue import RegisteredQueue

from .streams import passed_through, simulate


@pytest.mark.parametrize("depth", [3, 4, 5, 8])
@pytest.mark.parametrize("stalls", [(0, 0), (0.5, 0), (0, 0.5), (0.4, 0.6)])
def test_everything_comes_out_in_order(depth, stalls, seed):
    cycles = passed_through(RegisteredQueue(16, depth), stalls, seed)
    if stalls == (0, 0):
        assert cycles == list(range(cycles[0], cycles[0] + len(cycles)))


@pytest.mark.parametrize("depth", [3, 5, 8])
def test_places_and_latency(depth):
    """The front is shown after 2 cycles, and behind it there is room for `depth`."""
    dut = RegisteredQueue(8, depth)

    async def testbench(ctx):
        ctx.set(dut.input.valid, 1)
        stored, shown = 0, None
        for cycle in range(20):
            if shown is None and ctx.get(dut.output.valid):
                shown = cycle
            stored += ctx.get(dut.input.ready)
            await ctx.tick()
        assert (stored, shown) == (depth + 1, 2)

    simulate(dut, [testbench])


def test_a_depth_that_would_stop_the_stream_is_refused():
    with pytest.raises(ValueError, match=r"^Depth of a queue must be at least 3, not 2$"):
        RegisteredQueue(8, 2)
