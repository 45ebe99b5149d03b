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
    for stored in (p.cores, p.windows[1]):
        took = []
        for node in range(p.cores):
            # The oldest tuple of each node is in the first row.
            boxes = bench.boxes(np.arange(stored) == node)
            await bench.exchange(np.concatenate([boxes, bench.mark(1)]), until=1)
            traffic = await bench.exchange(np.concatenate([bench.points(1), bench.flush()]))
            assert traffic.pairs == [(0, node)]
            took.append(traffic.given[0] - traffic.taken[0])
        cocotb.log.info("latency by node, %d tuples stored: %s", stored, took)
        assert took[-1] == LowLatency.latency(p)
