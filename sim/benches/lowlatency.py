"""The figures in the docstring of the low-latency chain, each measured."""

import cocotb
import numpy as np

from hw.lowlatency import LowLatency

from .testbench import Testbench


@cocotb.test()
async def a_hop_takes_a_cycle_whatever_is_stored(dut):
    """Of an R tuple, to the home of the tuple that it meets: in windows of one row, and in full ones."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    if p.ordering.every or p.homes == "hash":  # results wait for their time, and homes are not in turn
        return
    for stored in (p.cores, p.windows[1]):
        took = []
        for node in range(p.cores):
            # The oldest tuple of each node is in the first row.
            boxes = bench.boxes(np.arange(stored) == node)
            await bench.exchange(np.concatenate([boxes, bench.mark(1)]), until=1)
            # The first tuple brings the turn in the gathering tree to the node; the second finds it there.
            await bench.exchange(np.concatenate([bench.points(1), bench.mark(2)]), until=2)
            traffic = await bench.exchange(np.concatenate([bench.points(1), bench.flush()]))
            assert traffic.pairs == [(0, node)]
            took.append(traffic.given[0] - traffic.taken[0])
        cocotb.log.info("latency by node, %d tuples stored: %s", stored, took)
        latency = LowLatency.latency(p)
        assert took == list(range(latency - p.cores + 1, latency + 1))


@cocotb.test()
async def a_tuple_takes_as_many_cycles_as_a_node_has_rows(dut):
    """Without matches, with full windows: on average at most one more than if all rows were full."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    if p.ordering.every or p.homes == "hash":  # as many as may be under way, as few as there are of a key
        return
    boxes = bench.boxes(np.zeros(p.windows[1], bool))
    points = bench.points(2 * p.windows[0] + 40)
    traffic = await bench.exchange(np.concatenate([boxes, points]), until=None)
    gaps = np.diff(traffic.taken[-p.windows[0] - 20 :])
    cocotb.log.info("cycles per tuple of one stream: %.3f", gaps.mean())
    assert gaps.mean() <= (1 if p.index else -(-p.s_segment // p.lanes) + 1)


@cocotb.test()
async def a_flush_takes_as_long_as_it_says(dut):
    """Of an idle chain: until the word behind it has left the door, where two have room."""
    bench = await Testbench.start(dut)
    words = [bench.flush(), bench.mark(1), bench.mark(2)]
    traffic = await bench.exchange(np.concatenate(words), until=2)
    assert traffic.taken[2] - traffic.taken[0] == LowLatency.flush_cycles(bench.parameters)
