"""Queues in memory that show their front in registers."""

from amaranth import Module, Mux, Shape, Signal
from amaranth.lib import fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .skid import Skid
from .window_memory import ram_style


class ShortQueue(wiring.Component):
    """Places for `depth` items in memory, and one in the register behind it, which shows the front.

    Neither `ready` nor what is shown waits for the memory. What takes the front moves a pointer, and so has
    most of a cycle, not all of it as with `Queue`.

    Latency: 2 cycles. Throughput: one item per cycle, from a depth of 3 on; with 2, two in three cycles.
    """

    def __init__(self, shape, depth: int):
        self._depth = depth
        super().__init__({"input": In(stream.Signature(shape)), "output": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        shape = self.input.payload.shape()
        width = (self._depth - 1).bit_length()
        m.submodules.places = places = memory.Memory(
            shape=shape, depth=1 << width, init=[], attrs=ram_style(shape, 1 << width)
        )
        write, read = places.write_port(), places.read_port()
        last, first = Signal(width), Signal(width)
        filled = Signal(range(self._depth + 1))
        fits = Signal(init=1)  # one more, even if nothing has left meanwhile
        some = filled != 0
        m.d.comb += [
            self.input.ready.eq(fits),
            write.addr.eq(last),
            write.data.eq(self.input.payload),
            write.en.eq(self.input.valid & fits),
            read.addr.eq(first),
            read.en.eq(~self.output.valid | self.output.ready),
            self.output.payload.eq(read.data),
        ]
        # Both are known before it is known whether something comes.
        m.d.sync += fits.eq(Mux(write.en, filled < self._depth - 1, filled < self._depth))
        with m.If(write.en):
            m.d.sync += last.eq(last + 1)
        with m.If(read.en):
            m.d.sync += [self.output.valid.eq(some), first.eq(first + some)]
        with m.If(write.en & ~(read.en & some)):
            m.d.sync += filled.eq(filled + 1)
        with m.Elif(~write.en & read.en & some):
            m.d.sync += filled.eq(filled - 1)
        return m


class Queue(wiring.Component):
    """Places for `depth` items in memory, and two in the registers behind it.

    A memory takes a long time to show a word, and to be told to go on: so what looks at the front, and what
    takes it, has a cycle of its own.

    Latency: 3 cycles. Throughput: one item per cycle, from a depth of 3 on.
    """

    def __init__(self, shape, depth: int):
        self._depth = depth
        super().__init__({"input": In(stream.Signature(shape)), "output": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        shape = self.input.payload.shape()
        m.submodules.skid = skid = Skid(shape)
        m.submodules.fifo = queue = fifo.SyncFIFOBuffered(width=Shape.cast(shape).width, depth=self._depth)
        m.d.comb += [
            queue.w_data.eq(self.input.p),
            queue.w_en.eq(self.input.valid),
            self.input.ready.eq(queue.w_rdy),
            skid.input.payload.eq(queue.r_data),
            skid.input.valid.eq(queue.r_rdy),
            queue.r_en.eq(skid.input.ready),
        ]
        wiring.connect(m, skid.output, wiring.flipped(self.output))
        return m
