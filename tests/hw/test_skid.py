"""A buffer that cuts the way of `ready`.

source -> Skid -> sink
"""

import pytest

from hw.skid import Skid

from .streams import simulate, sink, source


@pytest.mark.parametrize("stalls", [(0, 0), (0.5, 0), (0, 0.5), (0.4, 0.6)])
def test_everything_comes_out_in_order(stalls, seed):
    dut, taken = Skid(16), []
    payloads = list(range(200))
    simulate(
        dut,
        [
            source(dut.input, payloads, seed=seed, stall=stalls[0]),
            sink(dut.output, taken, len(payloads), seed=seed + 1, stall=stalls[1]),
        ],
    )
    assert [payload for _, payload in taken] == payloads
    if stalls == (0, 0):
        cycles = [cycle for cycle, _ in taken]
        assert cycles == list(range(cycles[0], cycles[0] + len(payloads)))


def test_ready_does_not_follow_within_a_cycle():
    """It stays high until the second place is taken, and low until one is free, whatever the sink does."""
    dut = Skid(8)

    async def testbench(ctx):
        seen = []
        ctx.set(dut.input.valid, 1)
        for ready in (0, 0, 0, 1, 0, 1, 1):
            ctx.set(dut.output.ready, ready)
            seen.append(ctx.get(dut.input.ready))
            await ctx.tick()
        assert seen == [1, 1, 0, 0, 1, 0, 1]

    simulate(dut, [testbench])
