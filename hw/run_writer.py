"""Sorted runs into memory: flits become words, and words bursts, as soon as there are enough of them."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from .memory_port import burst_layout
from .record import flit_layout


class RunWriter(wiring.Component):
    """Writes each run to the word `target` on; answers with its records when all of them are in memory.

    ::

        input --> [ queue ] --> written        target --> [ bursts ] --> write        done --> answer

    A burst is asked for when its words are there, so that it never holds up the channel. Bursts end at
    multiples of `burst` words, a power of two; up to `ahead` words wait for theirs. A run has at most
    `records` records.

    Throughput: one flit per cycle.
    """

    def __init__(
        self,
        record: data.StructLayout,
        lanes: int,
        records: int,
        *,
        address_width: int,
        burst: int,
        ahead: int,
    ):
        self._burst = burst
        self._ahead = ahead
        super().__init__(
            {
                "target": In(stream.Signature(address_width)),
                "input": In(stream.Signature(flit_layout(record, lanes))),
                "write": Out(stream.Signature(burst_layout(address_width))),
                "written": Out(stream.Signature(lanes * record.size)),
                "done": In(1),
                "answer": Out(stream.Signature(range(records + 1))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        flit = self.input.p
        m.submodules.queue = queue = fifo.SyncFIFOBuffered(width=len(self.written.p), depth=self._ahead)
        running = Signal()
        ended = Signal()  # the last flit is here
        address = Signal.like(self.target.p, reset_less=True)
        count = Signal.like(self.answer.p)
        unasked = Signal(range(self._ahead + 1))  # words of the queue for which no burst was asked
        pending = Signal(len(address))  # bursts that are not done
        room = Signal(range(self._burst + 1))
        full = Signal()
        m.d.comb += [
            self.target.ready.eq(~running),
            self.input.ready.eq(running & ~ended & queue.w_rdy),
            queue.w_data.eq(flit.records),
            queue.w_en.eq(self.input.valid & self.input.ready & (flit.count != 0)),
            self.written.p.eq(queue.r_data),
            self.written.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.written.ready),
            room.eq(self._burst - address % self._burst),
            full.eq(unasked >= room),
            self.write.p.address.eq(address),
            self.write.p.length.eq(Mux(full, room, unasked)),
            self.write.valid.eq(full | (ended & (unasked != 0))),
            self.answer.p.eq(count),
            self.answer.valid.eq(ended & (unasked == 0) & (pending == 0)),
        ]
        asks = Signal()
        m.d.comb += asks.eq(self.write.valid & self.write.ready)
        m.d.sync += [
            unasked.eq(unasked + queue.w_en - Mux(asks, self.write.p.length, 0)),
            pending.eq(pending + asks - self.done),
        ]
        with m.If(asks):
            m.d.sync += address.eq(address + self.write.p.length)
        with m.If(self.input.valid & self.input.ready):
            m.d.sync += [count.eq(count + flit.count), ended.eq(flit.last)]
        with m.If(self.answer.valid & self.answer.ready):
            m.d.sync += [running.eq(0), ended.eq(0)]
        with m.If(self.target.valid & self.target.ready):
            m.d.sync += [address.eq(self.target.p), count.eq(0), running.eq(1)]
        return m
