"""The distribution tree.

source (stalled at random) -> Broadcast -> sinks (each stalled at random)
"""

import pytest

from hw.broadcast import Broadcast, levels

from .streams import simulate, sink, source


@pytest.mark.parametrize("places, fanout", [(1, 2), (2, 2), (3, 2), (5, 4), (17, 4), (9, 3)])
@pytest.mark.parametrize("stalls", [(0, 0), (0.5, 0), (0, 0.5), (0.4, 0.6)])
def test_every_place_gets_everything_in_order(places, fanout, stalls, seed):
    dut = Broadcast(16, places, fanout)
    payloads = list(range(60))
    taken = [[] for _ in range(places)]
    sinks = [
        sink(output, got, len(payloads), seed=seed + k, stall=stalls[1])
        for k, (output, got) in enumerate(zip(dut.outputs, taken))
    ]
    simulate(dut, [source(dut.input, payloads, seed=seed - 1, stall=stalls[0]), *sinks])
    assert all([payload for _, payload in got] == payloads for got in taken)
    if stalls == (0, 0):
        first = levels(places, fanout)
        assert all([cycle for cycle, _ in got] == list(range(first, first + len(payloads))) for got in taken)


@pytest.mark.parametrize(
    "places, fanout, count", [(1, 4, 0), (2, 2, 1), (3, 2, 2), (4, 4, 1), (5, 4, 2), (128, 2, 7), (128, 4, 4)]
)
def test_levels(places, fanout, count):
    assert levels(places, fanout) == count


def test_a_place_that_does_not_take_holds_up_others_only_later():
    """They get what is on its way to them, and no more."""
    dut = Broadcast(8, 4, 2)

    async def testbench(ctx):
        ctx.set(dut.input.valid, 1)
        outputs = list(dut.outputs)
        for output in outputs[1:]:
            ctx.set(output.ready, 1)
        taken = [0] * 4
        for _ in range(30):
            taken = [count + ctx.get(output.valid) for count, output in zip(taken, outputs)]
            await ctx.tick()
        # Its own node is stuck with the first, and has room for another; then the root's is stuck.
        assert taken[1:] == [1, 3, 3]

    simulate(dut, [testbench])
