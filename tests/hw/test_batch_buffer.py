"""The batch buffer and the packer: records come out in order, one by one, as flits and as rows.

::

    records --> [ buffer ] --> items --> [ packer ] --> flits
                    |
                    +--------> rows
"""

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import Out

from hw.batch_buffer import BatchBuffer
from hw.flit_packer import FlitPacker

from .runs import RECORD, flits_of, numbered
from .streams import simulate, sink, source

SIZE = 8


class Packed(wiring.Component):
    """A buffer whose items are packed."""

    def __init__(self, lanes: int):
        self.buffer = BatchBuffer(RECORD, lanes, SIZE)
        self.packer = FlitPacker(RECORD, lanes)
        super().__init__({"output": Out(self.packer.output.signature)})

    def elaborate(self, platform):
        m = Module()
        m.submodules.buffer, m.submodules.packer = self.buffer, self.packer
        wiring.connect(m, self.buffer.items, self.packer.items)
        wiring.connect(m, self.packer.output, wiring.flipped(self.output))
        return m


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("lanes", [1, 2, 4])
def test_runs_come_out_in_order(lanes, stall, seed, rng):
    dut = Packed(lanes)
    buffer = dut.buffer
    records = numbered(rng.integers(0, 1 << 32, SIZE))
    got, counts = [], []

    async def testbench(ctx):
        async def strobe(*signals):
            for signal in signals:
                ctx.set(signal, 1)
            await ctx.tick()
            for signal in signals:
                ctx.set(signal, 0)

        async def store(part):
            for record in part:
                ctx.set(buffer.record, record)
                await strobe(buffer.store)

        async def run():
            taken = []
            while not taken or not taken[-1][1].last:
                await sink(dut.output, taken, len(taken) + 1, seed=seed + len(taken), stall=stall)(ctx)
            got.append([payload for _, payload in taken])

        await store(records[:3])
        await strobe(buffer.feed)
        await run()
        await strobe(buffer.settle)
        await store(records[3:7])
        await strobe(buffer.feed)
        await run()
        await strobe(buffer.feed, buffer.all)
        await run()
        counts.append((ctx.get(buffer.count), ctx.get(buffer.members)))
        await strobe(buffer.drop)
        counts.append((ctx.get(buffer.count), ctx.get(buffer.members)))
        await store(records[7:])
        await strobe(buffer.settle)
        rows = []
        bursts = [{"address": 0, "length": -(-4 // lanes)}]
        await source(buffer.read, bursts, seed=seed, stall=stall)(ctx)
        await sink(buffer.words, rows, -(-4 // lanes), seed=seed, stall=stall)(ctx)
        got.append([word for _, word in rows])
        # What leaves can be searched until it is released, together with the members behind it.
        await strobe(buffer.leave)
        await store(records[:3])
        await strobe(buffer.settle)
        await store(records[3:4])
        await strobe(buffer.feed)
        await run()
        for leaves in (4, 0):
            counts.append((ctx.get(buffer.count), ctx.get(buffer.members)))
            offset, searched = ctx.get(buffer.offset), ctx.get(buffer.searched)
            assert (offset, searched) == (0 if leaves else 4 % lanes, leaves + 3)
            rows = []
            length = -(-(offset + searched) // lanes)
            await source(buffer.read, [{"address": 0, "length": length}], seed=seed, stall=stall)(ctx)
            await sink(buffer.words, rows, length, seed=seed, stall=stall)(ctx)
            got.append([word for _, word in rows])
            await strobe(buffer.release)
        await strobe(buffer.clear)
        counts.append((ctx.get(buffer.count), ctx.get(buffer.members)))

    simulate(dut, [testbench])
    assert counts == [(7, 3), (3, 3), (4, 3), (4, 3), (0, 0)]
    *runs, rows, last_run, around, behind = got
    for run, want in zip([*runs, last_run], (records[:3], records[3:7], records[:7], records[3:4])):
        flits = flits_of(want, {"key": 0, "id": 0}, lanes)
        assert [(flit.count, flit.last) for flit in run] == [(flit["count"], flit["last"]) for flit in flits]
        came = [(r.key, r.id) for flit in run for r in list(flit.records)[: flit.count]]
        assert came == [(r["key"], r["id"]) for r in want]
    bits = [RECORD.const(record).as_bits() for record in (*records[:3], records[7], *records[:3])]
    width = (1 << RECORD.size) - 1
    for words, want in ((rows, bits[:4]), (around, bits), (behind, bits[4:])):
        assert [row >> RECORD.size * lane & width for row in words for lane in range(lanes)][
            : len(want)
        ] == want
