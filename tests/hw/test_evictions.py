"""The count of live tuples that leave with their subwindow.

::

    command, horizon --> [ evictions ] --> lost
                          |      ^
                       [ memory model ]
"""

import numpy as np
import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hw.evictions import Evictions
from hw.memory_port import MemoryPort

from .memory_model import MemoryModel
from .runs import RECORD, words_of
from .streams import simulate, source

RECORDS, BURST, ADDRESS = 64, 8, 13


class WithPort(wiring.Component):
    """Evictions that have a memory port to themselves."""

    def __init__(self, lanes: int):
        self.evictions = Evictions(RECORD, lanes, RECORDS, address_width=10, burst=BURST)
        super().__init__({"memory": Out(MemoryPort(lanes * RECORD.size, 10))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.evictions = self.evictions
        wiring.connect(m, self.evictions.read, wiring.flipped(self.memory.read))
        wiring.connect(m, wiring.flipped(self.memory.data), self.evictions.words)
        return m


def lost(ids, horizon: int, lanes: int, *, seed: int, stall: float) -> tuple[int, list[int]]:
    """What is counted in two arrays, of `ids` and of none, and the cycles in which something is."""
    dut = WithPort(lanes)
    model = MemoryModel(dut.memory, 1 << 10, seed=seed, stall=stall, latency=6)
    words = words_of(RECORD, [{"key": 0, "id": int(one)} for one in ids], lanes)
    model.contents[ADDRESS : ADDRESS + len(words)] = words
    counted = []

    async def counting(ctx):
        async for _, _, count in ctx.tick().sample(dut.evictions.lost):
            counted.append(count)

    async def commanding(ctx):
        ctx.set(dut.evictions.horizon, horizon)
        commands = [{"address": ADDRESS, "count": len(ids)}, {"address": ADDRESS, "count": 0}]
        await source(dut.evictions.command, commands, seed=seed, stall=stall)(ctx)

    simulate(dut, [commanding], [model.testbench, counting])
    assert model.idle
    return sum(counted), [cycle for cycle, count in enumerate(counted) if count]


@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("stall", [0.0, 0.3])
@pytest.mark.parametrize("horizon", [1000, 3, 2**32 - 5])
def test_ids_from_the_horizon_on_are_counted(horizon, stall, lanes, seed, rng):
    ids = (horizon + rng.integers(-20, 20, int(rng.integers(1, RECORDS + 1)))) % 2**32
    behind = ((ids - horizon) % 2**32).astype(np.uint32).astype(np.int32) < 0
    counted, _ = lost(ids, horizon, lanes, seed=seed, stall=stall)
    assert counted == (~behind).sum()


@pytest.mark.parametrize("lanes", [1, 4])
def test_a_word_in_every_cycle(lanes, seed):
    counted, cycles = lost(range(RECORDS), 0, lanes, seed=seed, stall=0.0)
    assert counted == RECORDS
    assert cycles == list(range(cycles[0], cycles[0] + RECORDS // lanes))
