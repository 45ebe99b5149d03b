"""The gathering tree.

sources (stalled at random) -> Gather -> sink (stalled at random)
"""

import pytest
from amaranth.lib import data

from hw.gather import FANIN, Gather, Merge

from .streams import simulate, sink, source

SHAPE = data.StructLayout({"origin": 8, "number": 8})


def run(component, counts, *, seed=1, stall_in=0.0, stall_out=0.0):
    taken = []
    sources = [
        source(
            stream,
            [{"origin": k, "number": number} for number in range(count)],
            seed=seed + k,
            stall=stall_in,
        )
        for k, (stream, count) in enumerate(zip(component.inputs, counts))
    ]
    simulate(
        component,
        [*sources, sink(component.output, taken, sum(counts), seed=seed - 1, stall=stall_out)],
    )
    return [cycle for cycle, _ in taken], [(item.origin, item.number) for _, item in taken]


@pytest.mark.parametrize("inputs", [1, 2, 3, 4, 5, 16, 17])
@pytest.mark.parametrize("stall_in, stall_out", [(0, 0), (0.6, 0), (0, 0.6), (0.5, 0.5)])
def test_everything_comes_out_once_and_in_order_per_input(inputs, stall_in, stall_out, seed):
    counts = [(k * 7) % 5 + 1 for k in range(inputs)]
    _, got = run(Gather(SHAPE, inputs), counts, seed=seed, stall_in=stall_in, stall_out=stall_out)
    for k, count in enumerate(counts):
        assert [number for origin, number in got if origin == k] == list(range(count))
    assert len(got) == sum(counts)


@pytest.mark.parametrize(
    "inputs, levels", [(1, 0), (2, 1), (4, 1), (5, 2), (16, 2), (17, 3), (64, 3), (200, 4)]
)
def test_levels(inputs, levels):
    assert Gather.levels(inputs) == levels


@pytest.mark.parametrize("inputs", [1, 4, 5, 17])
def test_latency_is_the_number_of_levels(inputs):
    cycles, _ = run(Gather(SHAPE, inputs), [1] + [0] * (inputs - 1))
    assert cycles == [Gather.levels(inputs)]
    # Each node passes the turn on first.
    cycles, _ = run(Gather(SHAPE, inputs), [0] * (inputs - 1) + [1])
    assert Gather.levels(inputs) <= cycles[0] <= 2 * Gather.levels(inputs)


@pytest.mark.parametrize("busy", [1, 2, 17])
def test_throughput_is_one_per_cycle_however_many_inputs_are_busy(busy):
    cycles, _ = run(Gather(SHAPE, 17), [30] * busy + [0] * (17 - busy))
    assert cycles == list(range(cycles[0], cycles[0] + 30 * busy))


def test_inputs_take_turns():
    _, got = run(Merge(SHAPE), [5] * FANIN)
    origins = [origin for origin, _ in got]
    assert all(sorted(origins[k : k + FANIN]) == list(range(FANIN)) for k in range(0, len(origins), FANIN))


def test_a_node_does_not_wait_for_ready_to_take():
    """It has room for two, so `ready` of an input does not follow that of the output."""
    dut = Merge(SHAPE)

    async def testbench(ctx):
        ctx.set(dut.inputs[0].valid, 1)
        taken = []
        for _ in range(4):
            taken.append(ctx.get(dut.inputs[0].ready))
            ctx.set(dut.output.ready, 1)
            assert ctx.get(dut.inputs[0].ready) == taken[-1]
            ctx.set(dut.output.ready, 0)
            await ctx.tick()
        assert taken == [1, 1, 0, 0]

    simulate(dut, [testbench])


@pytest.mark.parametrize("inputs", [2, 5, 40])
def test_busy_tells_what_is_held_by_a_field(inputs):
    shape = data.StructLayout({"number": 7, "odd": 1})
    dut = Gather(shape, inputs, "odd")

    async def testbench(ctx):
        async def settled():
            ctx.set(dut.inputs[inputs - 1].valid, 0)
            for _ in range(2 * Gather.levels(inputs) + Gather.busy_lag(inputs)):
                await ctx.tick()
            return ctx.get(dut.busy)

        assert await settled() == 0
        for odd, want in ((1, 0b10), (0, 0b11)):
            ctx.set(dut.inputs[inputs - 1].payload, {"number": 5, "odd": odd})
            ctx.set(dut.inputs[inputs - 1].valid, 1)
            await ctx.tick().until(dut.inputs[inputs - 1].ready)
            assert await settled() == want
        ctx.set(dut.output.ready, 1)
        await ctx.tick()
        ctx.set(dut.output.ready, 0)
        assert await settled() == 0b01
        ctx.set(dut.output.ready, 1)
        assert await settled() == 0

    simulate(dut, [testbench])
