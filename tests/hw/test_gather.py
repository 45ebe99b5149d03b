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


@pytest.mark.parametrize("busy", [1, 2, 17])
def test_throughput_is_one_per_cycle_however_many_inputs_are_busy(busy):
    cycles, _ = run(Gather(SHAPE, 17), [30] * busy + [0] * (17 - busy))
    assert cycles == list(range(cycles[0], cycles[0] + 30 * busy))


def test_inputs_take_turns():
    _, got = run(Merge(SHAPE), [5] * FANIN)
    origins = [origin for origin, _ in got]
    assert all(sorted(origins[k : k + FANIN]) == list(range(FANIN)) for k in range(0, len(origins), FANIN))
