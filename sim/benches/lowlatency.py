"""The figures in the docstring of the low-latency chain, each measured."""

import cocotb
import numpy as np
from cocotb.triggers import RisingEdge

from hw.lowlatency import LowLatency

from .testbench import Testbench


@cocotb.test()
async def a_hop_takes_a_cycle_whatever_is_stored(dut):
    """Of an R tuple, to the home of the tuple that it meets: in windows of one row, and in full ones.

    The pair comes out as long after its tuple's transfer as the docstring says, unless results are sorted.
    """
    bench = await Testbench.start(dut)
    p = bench.parameters
    hashed = p.homes == "hash"  # the home of what matches is where its key says
    found = []

    async def watch():
        edges = 0
        while True:
            await RisingEdge(dut.clk)
            edges += 1
            if nodes := int(dut.activity.value):
                found.append((edges, nodes.bit_length() - 1))
            moves = int(dut.tuples__valid.value) and int(dut.tuples__ready.value)
            transfers.extend([edges] * moves)

    transfers = []
    cocotb.start_soon(watch())
    hops = set()
    for stored in (1 if hashed else p.cores, p.windows[1]):
        took = []
        for number in range(1 if hashed else p.cores):
            # The oldest tuple of each node is in the first row.
            boxes = bench.boxes(np.arange(stored) == number)
            await bench.exchange(np.concatenate([boxes, bench.mark(1)]), until=1)
            # The first tuple brings the turn in the gathering tree to the node; the second finds it there.
            await bench.exchange(np.concatenate([bench.points(1), bench.mark(2)]), until=2)
            found.clear(), transfers.clear()
            traffic = await bench.exchange(np.concatenate([bench.points(1), bench.flush()]))
            assert traffic.pairs == [(0, number)]
            [(edge, node)] = found
            assert hashed or node == number
            hops.add(edge - transfers[0] - node)
            took.append(traffic.given[0] - traffic.taken[0])
            if not p.ordering.every:
                assert took[-1] == LowLatency.latency(p) - p.cores + 1 + node
        cocotb.log.info("latency by node, %d tuples stored: %s", stored, took)
    assert len(hops) == 1


@cocotb.test()
async def a_tuple_takes_as_many_cycles_as_a_node_has_rows(dut):
    """Without matches, with full windows: on average at most one more than if all rows were full.

    With a single row it is what the last node is told of each tuple that counts. First R alone, then S.
    """
    bench = await Testbench.start(dut)
    p = bench.parameters
    if p.ordering.every:  # there are never more under way than the sorter has room for
        return
    for of_s, segment in ((False, p.s_segment), (True, p.segment)):
        counts = list(p.windows)
        counts[of_s] += p.windows[of_s] + 240
        streams = [bench.points(counts[0]), bench.boxes(np.zeros(counts[1], bool))]
        traffic = await bench.exchange(np.concatenate([streams[not of_s], streams[of_s]]), until=None)
        gaps = np.diff(traffic.taken[-p.windows[of_s] - 200 :])
        cocotb.log.info("cycles per tuple of %s alone: %.3f", "RS"[of_s], gaps.mean())
        most = max(-(-segment // p.lanes) + 1, 2 + 1 / p.cores)  # a bucket may hold them all
        assert gaps.sum() <= most * len(gaps) + 2  # the door takes two at once when it has room
        await bench.exchange(bench.flush(1), until=1)


@cocotb.test()
async def a_flush_takes_as_long_as_it_says(dut):
    """Of an idle chain: until the word behind it has left the door, where two have room."""
    bench = await Testbench.start(dut)
    words = [bench.flush(), bench.mark(1), bench.mark(2)]
    traffic = await bench.exchange(np.concatenate(words), until=2)
    assert traffic.taken[2] - traffic.taken[0] == LowLatency.flush_cycles(bench.parameters)
