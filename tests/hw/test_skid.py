"""A buffer that cuts the way of `ready`.

source -> Skid -> sink
"""

import pytest

from hw.skid import Skid

from .streams import passed_through, simulate


@pytest.mark.parametrize("stalls", [(0, 0), (0.5, 0), (0, 0.5), (0.4, 0.6)])
def test_everything_comes_out_in_order(stalls, seed):
    cycles = passed_through(Skid(16), stalls, seed)
    if stalls == (0, 0):
        assert cycles == list(range(cycles[0], cycles[0] + len(cycles)))


def test_ready_does_not_follow_within_a_cycle():
    """It stays high until the second place is taken, and low until one is free, whatever the sink does."""
    dut = Skid(8)

    async def testbench(ctx):
        seen, foretold = [], []
        ctx.set(dut.input.valid, 1)
        for ready in (0, 0, 0, 1, 0, 1, 1):
            ctx.set(dut.output.ready, ready)
            seen.append(ctx.get(dut.input.ready))
            foretold.append(ctx.get(dut.frees))
            await ctx.tick()
        assert seen == [1, 1, 0, 0, 1, 0, 1]
        assert foretold[:-1] == seen[1:]

    simulate(dut, [testbench])
