"""The figures in the docstring of the handshake chain, each measured."""

import cocotb
import numpy as np

from hw.dimension import Test
from hw.handshake import Handshake
from hw.socket import Tag
from hw.words import pack_points

from .testbench import Testbench


def _boxes(bench: Testbench, count: int, *, match: bool) -> np.ndarray:
    """S tuples that all match, or all do not match, the points at 1."""
    return bench.boxes(np.full(count, match))


@cocotb.test()
async def throughput_is_a_tuple_every_depth_cycles(dut):
    """Without matches, not a cycle more, from empty windows to full ones."""
    bench = await Testbench.start(dut)
    count = 4 * bench.parameters.capacity + 3
    is_s = bench.random.random(count) < 0.5
    words = np.where(is_s[:, None], _boxes(bench, count, match=False), bench.points(count))
    traffic = await bench.exchange(words, until=None)
    assert not traffic.words
    assert set(np.diff(traffic.taken).tolist()) == {bench.depth}
    cocotb.log.info("cycles per tuple: %d", bench.depth)


@cocotb.test()
async def one_match_per_tuple_costs_nothing(dut):
    """A single pair at a time leaves the chain without slowing it down."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    boxes = np.concatenate([_boxes(bench, 1, match=True), _boxes(bench, p.capacity - 1, match=False)])
    points = bench.points(3 * p.capacity)
    traffic = await bench.exchange(np.concatenate([boxes, points, bench.flush()]))
    assert len(traffic.pairs) == len(points)
    assert set(np.diff(traffic.taken[: len(boxes) + len(points)]).tolist()) == {bench.depth}


@cocotb.test()
async def latency_to_the_first_row(dut):
    """A pair that meets at once is out after `Handshake.latency` cycles."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    # The first row shown is the second oldest of each bank; the match walks there, into R's first core.
    behind = (p.cores - 1) * p.segment + max(0, bench.depth - 2)
    words = [_boxes(bench, 1, match=True), _boxes(bench, behind, match=False), bench.points(1)]
    traffic = await bench.exchange(np.concatenate([*words, bench.flush()]))
    assert traffic.pairs == [(0, 0)]
    latency = traffic.given[0] - traffic.taken[behind + 1]
    assert latency == Handshake.latency(p)
    cocotb.log.info("latency: %d cycles", latency)


@cocotb.test()
async def flush_takes_as_long_as_it_says(dut):
    """The word after a flush is taken `Handshake.flush_cycles` later."""
    bench = await Testbench.start(dut)
    words = np.concatenate([bench.points(3), bench.flush()])
    traffic = await bench.exchange(words)
    took = traffic.taken[4] - traffic.taken[3]
    assert took == Handshake.flush_cycles(bench.parameters)
    cocotb.log.info("flush: %d cycles", took)


def _elsewhere(bench: Testbench, count: int) -> np.ndarray:
    """R tuples that match no box made here: their first dimension is not 1."""
    dims = bench.parameters.dims
    first = dims[0]
    outside = 3 if first.test in (Test.EQUAL, Test.BAND, Test.AT_MOST) else 0
    if first.negated:
        outside = 0 if first.test is Test.AT_MOST else 2
    ones = np.ones(count, np.uint64)
    return pack_points(
        dims, np.arange(1, count + 1), [np.full(count, outside, np.uint64), *[ones] * (len(dims) - 1)]
    )


@cocotb.test()
async def mark_waits_for_the_pair_that_meets_last(dut):
    """The only pair meets in the very step that makes the mark due, and still comes out before it."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    words = [
        bench.points(1),
        _boxes(bench, 1, match=True),
        bench.mark(9),
        _elsewhere(bench, p.segment - 1),
        _boxes(bench, (p.cores - 1) * p.segment, match=False),
    ]
    traffic = await bench.exchange(np.concatenate(words), until=9)
    assert traffic.results.tag.tolist() == [Tag.PAIR.value, Tag.MARK.value]


@cocotb.test()
async def mark_needs_no_more_tuples_than_it_says(dut):
    """A mark comes out once `Handshake.mark_distance` tuples have followed it."""
    bench = await Testbench.start(dut)
    distance = Handshake.mark_distance(bench.parameters)
    streams = bench.streams(2 * bench.parameters.capacity, span=6)
    later = bench.streams(distance, span=6)
    traffic = await bench.exchange(np.concatenate([streams.words, bench.mark(5), later.words]), until=5)
    assert traffic.results.tag[-1] == Tag.MARK.value
    assert set(traffic.pairs) >= set(streams.pairs(bench.parameters.capacity))


@cocotb.test()
async def a_burst_fills_every_queue(dut):
    """All match in every core and nobody takes them; a mark and a flush are right behind, in either order."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    for first, chance_s in ((bench.mark(1), 0.5), (bench.flush(1), 0.2)):
        streams = bench.streams(3 * p.capacity + 40, span=1, width=0, chance_s=chance_s)
        traffic = await bench.exchange(
            np.concatenate([streams.words, first, bench.flush(2)]), until=2, refuse=100 * p.capacity + 500
        )
        assert sorted(traffic.pairs) == streams.pairs(p.capacity)
        # Equal values are no pair where a dimension is negated.
        assert bench.counters()["stalls"] > 0 or any(dim.negated for dim in p.dims)
    await bench.ends_empty()


@cocotb.test()
async def pairs_that_wait_keep_their_ids(dut):
    """Pairs are not taken while more tuples come than are told apart: these wait, and the pairs are right."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    count = 3 * (p.capacity + 256)
    words = [
        bench.points(1),
        _boxes(bench, 5, match=True),
        _boxes(bench, count, match=False),
        bench.flush(),
    ]
    traffic = await bench.exchange(np.concatenate(words), refuse=6 * count * bench.depth)
    assert sorted(traffic.pairs) == [(0, number) for number in range(5)]
    assert bench.counters()["stalls"] > 0
    await bench.ends_empty()


@cocotb.test()
async def reset_while_queues_are_full(dut):
    """Whatever is queued, under way or refused, a reset forgets it."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    for _ in range(6):
        streams = bench.streams(3 * p.capacity + 20, span=1, width=0)
        await bench.push(
            streams.words, cycles=int(bench.random.integers(1, 4 * p.capacity * bench.depth + 40))
        )
        await bench.reset()
        await bench.ends_empty()
    streams = bench.streams(3 * p.capacity, span=1, width=0)
    traffic = await bench.exchange(np.concatenate([streams.words, bench.flush()]))
    assert sorted(traffic.pairs) == streams.pairs(p.capacity)
    await bench.ends_empty()
