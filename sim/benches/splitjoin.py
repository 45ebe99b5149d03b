"""The figures in the docstrings of SplitJoin and ScaleJoin, each measured, and what expires."""

import cocotb
import numpy as np

from hw.joiner import JOINERS
from hw.region import Region
from hw.socket import Kind

from .testbench import STALLS, Testbench, Traffic


def _starred(bench: Testbench) -> bool:
    """Whether there are stars within a tuple."""
    ordering = bench.parameters.ordering
    return ordering is not None and ordering.inner


def _steady(bench: Testbench) -> bool:
    """Whether the stars within a tuple cost no cycles beyond those of its rows."""
    return not _starred(bench) or bench.parameters.ordering.every % bench.parameters.lanes == 0


def _latencies(bench: Testbench) -> tuple[int, int]:
    """What the docstring says of a pair in the first row, and in the last one of a full window."""
    joiner = JOINERS[bench.parameters.architecture]
    return joiner.latency(bench.parameters), joiner.processing_latency(bench.parameters)


def _queued(bench: Testbench) -> int:
    """How many words come, at least, until the queues of all inputs are full and the cores hold them up."""
    return 2 * (bench.parameters.inputs or 0) * bench.parameters.buffer


def _took(bench: Testbench, traffic: Traffic) -> int:
    """Cycles until the first result of a word; where others make it ready, since the token behind it."""
    return traffic.given[0] - traffic.taken[(bench.parameters.inputs or 1) > 1]


def _take_each(bench: Testbench, gaps: np.ndarray, cycles: int) -> bool:
    """Whether words are taken so many cycles apart, on average if there are queues, which differ."""
    inputs = bench.parameters.inputs
    if inputs is not None:
        return abs(gaps.sum() - len(gaps) * cycles) <= inputs * cycles
    return set(gaps.tolist()) == {cycles}


@cocotb.test()
async def throughput_of_one_stream_is_a_tuple_per_window(dut):
    """Without matches and with full windows: not a cycle more than there are rows."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    boxes = bench.boxes(np.zeros(p.capacity, bool))
    points = bench.points(4 * p.capacity + 20 + _queued(bench))
    traffic = await bench.exchange(np.concatenate([boxes, points]), until=None)
    assert not traffic.words
    # The first of them still fill what lies between the source and the cores.
    gaps = np.diff(traffic.taken[-2 * p.capacity - 1 :])
    cocotb.log.info("cycles per tuple of one stream: %.3f", gaps.mean())
    if _steady(bench):
        assert _take_each(bench, gaps, Region.cycles(p))
    else:
        assert gaps.min() >= Region.cycles(p)


@cocotb.test()
async def regions_work_at_the_same_time(dut):
    """Two tuples, one of each stream, take the cycles of one that is processed and one that is stored.

    Also if three of a stream come one after another: a region is as many words ahead of the other. Unless
    their order within a tuple is kept: then stars are gathered tuple by tuple.
    """
    bench = await Testbench.start(dut)
    p = bench.parameters
    pairs = 3 * p.capacity + 20 + _queued(bench)
    words = np.stack([bench.points(pairs), bench.boxes(np.zeros(pairs, bool))], 1)
    traffic = await bench.exchange(words.reshape(2 * pairs, -1), until=None)
    took = np.diff(traffic.taken[-2 * p.capacity - 1 :: 2])
    cocotb.log.info("cycles per tuple of alternating streams: %.3f", took.mean() / 2)
    if p.inputs is None and not _starred(bench):
        words = np.stack([bench.points(120), bench.boxes(np.zeros(120, bool))], 1).reshape(40, 3, 2, -1)
        threes = await bench.exchange(words.swapaxes(1, 2).reshape(240, -1), until=None)
        assert threes.taken[-1] - threes.taken[-121] <= 60 * (Region.cycles(p) + 1)
    if p.inputs is not None:
        assert abs(took.sum() - len(took) * (Region.cycles(p) + 1)) <= p.inputs * Region.cycles(p)
    elif not _starred(bench):
        assert took.mean() == Region.cycles(p) + 1
    else:
        assert took.mean() > Region.cycles(p)


@cocotb.test()
async def one_match_per_tuple_costs_nothing_without_stars(dut):
    """A single pair at a time leaves without slowing the cores down; with it a star takes a cycle."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    boxes = bench.boxes(np.arange(p.capacity) == p.capacity - 1)
    points = bench.points(3 * p.capacity + 20)
    traffic = await bench.exchange(np.concatenate([boxes, points, bench.flush()]))
    assert len(traffic.pairs) == len(points)
    if p.order.unit == "none":
        gaps = np.diff(traffic.taken[len(boxes) + 20 : len(boxes) + len(points)])
        assert set(gaps.tolist()) <= {Region.cycles(p)}


@cocotb.test()
async def latency_of_the_first_row(dut):
    """Wherever the earlier tuple is stored, a pair is out after as many cycles."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    for core in _some_cores(bench):
        boxes = bench.boxes(np.arange(p.cores) == core)
        await bench.exchange(np.concatenate([boxes, bench.mark(1)]), until=1)
        traffic = await bench.exchange(np.concatenate([bench.points(1), bench.flush()]))
        assert traffic.pairs == [(0, core)]
        took = _took(bench, traffic)
        least, most = _latencies(bench)
        if (core == 0 or not p.order.in_turn) and (p.cores == 1 or p.inputs is None):
            assert took == least
        else:  # a star of the cores before it is awaited, or the heartbeats of all others
            assert least <= took <= most + p.segment


@cocotb.test()
async def processing_latency_of_a_full_window(dut):
    """The pair with the last row comes out after as many cycles, wherever it is, and is the last."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    for core in _some_cores(bench):
        boxes = bench.boxes(np.arange(p.capacity + core + 1) == p.capacity + core)
        await bench.exchange(np.concatenate([boxes, bench.mark(1)]), until=1)
        traffic = await bench.exchange(np.concatenate([bench.points(1), bench.flush()]))
        assert traffic.pairs == [(0, p.capacity + core)]
        took, (first, last) = _took(bench, traffic), _latencies(bench)
        # Where the next tuple begins a row, this one is in the row before the last.
        early = p.lanes == 1 and core == p.cores - 1
        assert last - early <= took <= last if _steady(bench) else took > first
    cocotb.log.info("latency %d, of a full window %d", *_latencies(bench))


def _some_cores(bench: Testbench) -> list[int]:
    """All cores, or of many the first, the last and some between."""
    cores = bench.parameters.cores
    return sorted({0, 1 % cores, cores // 2, cores - 1, *range(0, cores, max(1, cores // 8))})


@cocotb.test()
async def a_mark_takes_as_long_as_it_says(dut):
    """Through idle cores; a flush ahead of it takes a cycle."""
    bench = await Testbench.start(dut)
    traffic = await bench.exchange(bench.mark(5), until=5)
    assert traffic.given[0] - traffic.taken[0] == _latencies(bench)[0]
    traffic = await bench.exchange(bench.flush(6), until=6)
    joiner = JOINERS[bench.parameters.architecture]
    assert traffic.taken[1] - traffic.taken[0] == joiner.flush_cycles(bench.parameters)


@cocotb.test()
async def what_is_behind_the_horizon_costs_nothing(dut):
    """When all rows but one have expired, a tuple takes a cycle, unless stars within it are in order.

    A single row is never dropped, because it is the one that is stored in.
    """
    bench = await Testbench.start(dut)
    p = bench.parameters
    boxes = bench.boxes(np.zeros(p.capacity, bool))
    last = p.capacity + 20 * (p.inputs or 0)
    points = bench.points(2 * last + 20 + _queued(bench))
    words = [boxes, bench.horizon(Kind.HORIZON_S, p.capacity), bench.mark(1)]
    await bench.exchange(np.concatenate(words), until=1)
    for id in range(2, 2 + 2 * bench.depth):  # while rows expire
        await bench.exchange(bench.mark(id), until=id)
    traffic = await bench.exchange(points, until=None)
    if _steady(bench):
        cycles = Region.cycles(p) if _starred(bench) or bench.depth == 1 else 1
        assert _take_each(bench, np.diff(traffic.taken[-last - 1 :]), cycles)
    assert bench.counters()["live_evictions"] == 0


@cocotb.test()
@cocotb.parametrize(stalls=list(STALLS))
async def what_is_not_behind_the_horizon_is_found(dut, stalls):
    """Horizons that follow the streams at random distances lose no pair with a tuple at or after them."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    streams = bench.streams(8 * p.capacity + 10)
    words, counts, horizons = [], [0, 0], [0, 0]
    live = [[], []]  # the horizon of the other stream when each tuple came
    for word, of_s in zip(streams.words, streams.is_s.tolist()):
        if bench.random.random() < 0.3:
            side = int(bench.random.integers(2))
            horizons[side] = int(bench.random.integers(horizons[side], counts[side] + 1))
            words.append(bench.horizon((Kind.HORIZON_R, Kind.HORIZON_S)[side], horizons[side]))
        live[of_s].append(horizons[not of_s])
        counts[of_s] += 1
        words.append(word[None])
    traffic = await bench.exchange(np.concatenate([*words, bench.flush()]), stalls=STALLS[stalls])
    places = [np.flatnonzero(~streams.is_s), np.flatnonzero(streams.is_s)]
    expected = streams.pairs(p.capacity)
    needed = {
        (r, s) for r, s in expected if (s >= live[0][r] if places[0][r] > places[1][s] else r >= live[1][s])
    }
    assert len(traffic.pairs) == len(set(traffic.pairs))
    assert needed <= set(traffic.pairs) <= set(expected)
