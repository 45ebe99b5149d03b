"""A queue in memory that shows its front in registers."""

from amaranth import Module, Shape
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from .skid import Skid


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
