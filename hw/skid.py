"""A buffer that cuts the way of `ready`: nothing passes through it within a cycle."""

from amaranth import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out


class Skid(wiring.Component):
    """Two places, so that a stream flows on while `ready` takes a cycle to travel back.

    `frees` tells a cycle ahead whether `input` will be ready.

    Latency: 1 cycle. Throughput: one transfer per cycle.
    """

    def __init__(self, shape):
        super().__init__(
            {
                "input": In(stream.Signature(shape)),
                "output": Out(stream.Signature(shape)),
                "frees": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        front = Signal(self.input.payload.shape(), reset_less=True)
        back = Signal(self.input.payload.shape(), reset_less=True)
        waiting = Signal()  # `back` holds the one after `front`
        m.d.comb += [self.output.payload.eq(front), self.input.ready.eq(~waiting)]
        # Before it is known whether something comes: that may be the end of a long path.
        with m.If(~waiting):
            m.d.sync += back.eq(self.input.payload)
        with m.If(self.output.ready | ~self.output.valid):
            with m.If(waiting):
                m.d.sync += front.eq(back)
            with m.Else():
                m.d.sync += front.eq(self.input.payload)
        # Each is a function of four bits, so that `ready` may come late.
        stays, comes = self.output.valid & ~self.output.ready, waiting | self.input.valid
        m.d.comb += self.frees.eq(~(stays & comes))
        m.d.sync += [self.output.valid.eq(stays | comes), waiting.eq(~self.frees)]
        return m
