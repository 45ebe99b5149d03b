"""A reader that refuses words does not hold up others: its requests wait until there is room.

::

    requests --> [ queue ] <--> memory
    words <-----
"""

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hw.memory_port import MemoryPort
from hw.read_queue import ReadQueue

from .memory_model import MemoryModel
from .streams import simulate, sink, source

PORT = MemoryPort(16, 8)


class Queued(wiring.Component):
    """A queue in front of a memory port."""

    def __init__(self):
        self.queue = ReadQueue(PORT, burst=4, ahead=8)
        members = self.queue.signature.members
        super().__init__({"read": members["read"], "data": members["data"], "memory": Out(PORT)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.queue = queue = self.queue
        wiring.connect(m, wiring.flipped(self.read), queue.read)
        wiring.connect(m, queue.data, wiring.flipped(self.data))
        wiring.connect(m, queue.requests, wiring.flipped(self.memory.read))
        wiring.connect(m, wiring.flipped(self.memory.data), queue.words)
        return m


@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_words_come_in_order_and_never_without_room(stall, seed, rng):
    dut = Queued()
    model = MemoryModel(dut.memory, 256, seed=seed, stall=stall)
    bursts = [{"address": int(rng.integers(0, 200)), "length": int(rng.integers(0, 30))} for _ in range(12)]
    want = [word for b in bursts for word in model.contents[b["address"] : b["address"] + b["length"]]]
    taken = []

    async def refuses_nothing(ctx):
        async for _, _, valid, ready in ctx.tick().sample(dut.memory.data.valid, dut.memory.data.ready):
            assert ready or not valid

    simulate(
        dut,
        [
            source(dut.read, bursts, seed=seed, stall=stall),
            sink(dut.data, taken, len(want), seed=seed + 1, stall=max(stall, 0.3)),
        ],
        [model.testbench, refuses_nothing],
    )
    assert [word for _, word in taken] == want
    assert model.idle
    assert max(length for _, length in model.reads) == 4
