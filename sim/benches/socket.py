"""What every joiner behind the socket must do, whatever its architecture."""

import cocotb
import numpy as np

from hw.socket import Fault, Kind, Tag, tuple_layout
from hw.words import locate, pack_points

from .testbench import STALLS, Stalls, Testbench

#: Numbers of tuples at the edges of segment and window, in both streams together.
SIZES = {
    "nothing": lambda p: 0,
    "one": lambda p: 1,
    "below_segment": lambda p: 2 * p.segment - 1,
    "above_segment": lambda p: 2 * p.segment + 1,
    "below_window": lambda p: 2 * p.capacity - 1,
    "above_window": lambda p: 2 * p.capacity + 1,
    "windows": lambda p: 6 * p.capacity + 5,
}


@cocotb.test()
@cocotb.parametrize(size=list(SIZES), stalls=list(STALLS))
async def exactly_once(dut, size, stalls):
    """Every pair of the oracle comes out once, and nothing else."""
    bench = await Testbench.start(dut)
    streams = bench.streams(SIZES[size](bench.parameters))
    words = np.concatenate([streams.words, bench.flush(7)])
    traffic = await bench.exchange(words, until=7, stalls=STALLS[stalls])
    bench.check(traffic.pairs, streams)
    assert traffic.results.tag[-1] == Tag.MARK.value and traffic.results.mark_id[-1] == 7
    counters = bench.counters()
    assert counters["tuples"] == len(streams.words) and counters["pairs"] == len(traffic.pairs)
    assert counters["live_evictions"] == 0
    await bench.ends_empty()


@cocotb.test()
@cocotb.parametrize(chance_s=[0.0, 0.05, 0.95, 1.0])
async def one_stream_faster(dut, chance_s):
    """A stream may be much faster than the other, or silent."""
    bench = await Testbench.start(dut)
    streams = bench.streams(4 * bench.parameters.capacity, chance_s=chance_s)
    traffic = await bench.exchange(np.concatenate([streams.words, bench.flush()]), stalls=STALLS["both"])
    bench.check(traffic.pairs, streams)
    await bench.ends_empty()


@cocotb.test()
async def nothing_is_lost_when_everything_matches(dut):
    """With all pairs matching and nobody taking them, the joiner waits; then they all come out."""
    bench = await Testbench.start(dut)
    streams = bench.streams(2 * bench.parameters.capacity, span=1, width=0)
    refuse = 40 * bench.parameters.capacity
    words = np.concatenate([streams.words, bench.flush()])
    traffic = await bench.exchange(words, refuse=refuse, stalls=Stalls(sink=0.3))
    bench.check(traffic.pairs, streams)
    await bench.ends_empty()


@cocotb.test()
@cocotb.parametrize(stalls=["none", "both"])
async def marks_come_after_the_results_before_them(dut, stalls):
    """When a mark is out, so is every pair of the tuples before it; the last mark comes out."""
    bench = await Testbench.start(dut)
    capacity = bench.parameters.capacity
    streams = bench.streams(6 * capacity, span=6)
    parts, places = [], list(range(3, len(streams.words), max(1, capacity // 3)))
    for start, end in zip([0, *places], [*places, len(streams.words)]):
        # A mark's id is the number of tuples before it.
        parts += [streams.words[start:end], bench.mark(end)]
    last = len(streams.words)
    words = np.concatenate([*parts, bench.flush(last + 1)])
    traffic = await bench.exchange(words, until=last + 1, stalls=STALLS[stalls])
    results = traffic.results
    seen, marked = [], []
    for tag, r_id, s_id, mark_id in zip(
        *(part.tolist() for part in (results.tag, results.r_id, results.s_id, results.mark_id))
    ):
        if tag == Tag.PAIR.value:
            seen.append((r_id, s_id))
        elif tag == Tag.MARK.value:
            marked.append(mark_id)
            assert set(seen) >= set(streams.found(capacity, min(mark_id, last)))
    assert marked == sorted(marked) and marked[-1] == last + 1
    bench.check(seen, streams)


@cocotb.test()
async def marks_do_not_overtake_the_last_pair(dut):
    """With every pair matching, a mark without a flush comes only after all pairs before it."""
    bench = await Testbench.start(dut)
    capacity = bench.parameters.capacity
    for chance_s in (0.5, 0.1, 0.9):
        streams = bench.streams(4 * capacity, span=1, width=0, chance_s=chance_s)
        middle = 2 * capacity + bench.parameters.segment // 2
        words = [streams.words[:middle], bench.mark(middle), streams.words[middle:], bench.flush(0)]
        traffic = await bench.exchange(np.concatenate(words), stalls=Stalls(sink=0.3))
        results = traffic.results
        at = int(np.flatnonzero((results.tag == Tag.MARK.value) & (results.mark_id == middle))[0])
        before = set(zip(results.r_id[:at].tolist(), results.s_id[:at].tolist()))
        assert before >= set(streams.found(capacity, middle))


@cocotb.test()
async def the_newest_of_waiting_marks_comes_out(dut):
    """Marks that wait together: the first comes out, and the newest; the ones between may stand back."""
    bench = await Testbench.start(dut)
    streams = bench.streams(3 * bench.parameters.capacity)
    words = [streams.words[:3], *(bench.mark(id) for id in (11, 12, 13)), streams.words[3:]]
    traffic = await bench.exchange(np.concatenate(words), until=13)
    marks = traffic.results.mark_id[traffic.results.tag == Tag.MARK.value].tolist()
    assert marks[0] == 11 and marks[-1] == 13 and marks == sorted(marks)


@cocotb.test()
async def flush_empties_the_windows(dut):
    """Tuples after a flush meet none before it."""
    bench = await Testbench.start(dut)
    first, second = (bench.streams(2 * bench.parameters.capacity + 3) for _ in range(2))
    words = np.concatenate([first.words, bench.flush(1), second.words, bench.flush(2)])
    traffic = await bench.exchange(words, until=2, stalls=STALLS["both"])
    bench.check(traffic.pairs, first, second)
    await bench.ends_empty()


@cocotb.test()
async def live_evictions_are_counted(dut):
    """A tuple that leaves its window at or after the horizon counts, one before it does not."""
    bench = await Testbench.start(dut)
    capacity = bench.parameters.capacity
    streams = bench.streams(3 * (capacity + bench.parameters.most))
    evicted_r, evicted_s = bench.evicted(streams.is_s)
    dead_r, dead_s = capacity // 2, max(0, evicted_s - 1)
    words = np.concatenate(
        [
            bench.horizon(Kind.HORIZON_R, dead_r),
            bench.horizon(Kind.HORIZON_S, dead_s),
            streams.words,
            bench.flush(),
        ]
    )
    await bench.exchange(words)
    lost = max(0, evicted_r - dead_r) + max(0, evicted_s - dead_s)
    assert bench.counters()["live_evictions"] == lost > 0


@cocotb.test()
async def horizons_compare_modulo_and_end_with_a_flush(dut):
    """Ids wrap at 2**32; a flush evicts nothing and forgets the horizon."""
    bench = await Testbench.start(dut)
    dims = bench.parameters.dims
    first = 2**32 - 2
    count = bench.parameters.most + 4
    evicted, _ = bench.evicted(np.zeros(count, bool))
    ids = (first + np.arange(count)) % 2**32
    points = pack_points(dims, ids, [np.zeros(count, np.uint64)] * len(dims))
    # At least four tuples leave: the two before the wrap are dead, and one of those after it.
    words = [bench.horizon(Kind.HORIZON_R, 1), points, bench.flush(1)]
    await bench.exchange(np.concatenate(words), until=1)
    assert bench.counters()["live_evictions"] == evicted - 3 > 0
    # Without a horizon nothing counts, whatever leaves.
    await bench.exchange(np.concatenate([points, bench.flush(2)]), until=2)
    assert bench.counters()["live_evictions"] == evicted - 3


@cocotb.test()
async def unknown_kinds_are_reported_and_skipped(dut):
    """A word of no known kind gives an error record with the kind, and the joiner goes on."""
    bench = await Testbench.start(dut)
    streams = bench.streams(2 * bench.parameters.capacity)
    offset, width = locate(tuple_layout(bench.parameters.dims), "kind")
    unknown = [(1 << width) - 1]
    if bench.parameters.architecture in ("handshake", "lowlatency", "splitjoin"):
        unknown.append(Kind.INSTRUCTION.value)  # has a meaning in the others
    strange = np.repeat(bench.mark(0), len(unknown), axis=0)
    strange[:, offset // 32] ^= (np.array(unknown, np.uint32) ^ Kind.MARK.value) << offset % 32
    middle = len(streams.words) // 2
    words = np.concatenate([streams.words[:middle], strange, streams.words[middle:], bench.flush()])
    traffic = await bench.exchange(words, stalls=STALLS["both"])
    results = traffic.results
    errors = results.tag == Tag.ERROR.value
    assert results.fault[errors].tolist() == [Fault.UNKNOWN_KIND.value] * len(unknown)
    assert results.value[errors].tolist() == unknown
    bench.check(traffic.pairs, streams)
    await bench.ends_empty()


@cocotb.test()
async def reset_leaves_nothing_behind(dut):
    """After a reset in the middle of a stream the joiner is as new."""
    bench = await Testbench.start(dut)
    full = bench.streams(3 * bench.parameters.capacity, span=1, width=0)
    await bench.exchange(full.words, until=None)
    await bench.reset()
    assert set(bench.counters().values()) == {0}
    await bench.ends_empty()
    streams = bench.streams(3 * bench.parameters.capacity, span=1, width=0)
    traffic = await bench.exchange(np.concatenate([streams.words, bench.flush()]), stalls=STALLS["both"])
    bench.check(traffic.pairs, streams)
    await bench.ends_empty()
