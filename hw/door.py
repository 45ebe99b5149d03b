"""A door: two places in which messages wait for a decision that takes most of a cycle."""

from amaranth import Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .fan import FanNode
from .skid import Skid
from .stamp import Stamp


class Door(wiring.Component):
    """A `Skid` for few `flags`, by which is decided what goes on, and for a wide `message`, which stays where
    it was put: no register of it waits for the decision. Its `addresses`, fields by which the next door tells
    its flags, come sooner than the rest, which lies far apart.

    Latency: 1 cycle. Throughput: one transfer per cycle.
    """

    def __init__(self, flags, message, addresses: tuple[str, ...] = ()):
        self._addresses = addresses
        shape = data.StructLayout({"flags": flags, "message": message})
        super().__init__({"input": In(stream.Signature(shape)), "output": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.skid = skid = Skid(self.input.p.flags.shape())
        into, out, next_out = Signal(), Signal(), Signal()
        places = [Signal(self.input.p.message.shape(), name=f"place_{k}", reset_less=True) for k in range(2)]
        m.d.comb += [
            skid.input.valid.eq(self.input.valid),
            skid.input.payload.eq(self.input.p.flags),
            self.input.ready.eq(skid.input.ready),
            self.output.valid.eq(skid.output.valid),
            self.output.p.flags.eq(skid.output.payload),
            self.output.p.message.eq(Mux(out, *map(Value.cast, reversed(places)))),
            skid.output.ready.eq(self.output.ready),
        ]
        for k, place in enumerate(places):
            with m.If(self.input.ready & (into == k)):
                m.d.sync += place.eq(self.input.p.message)
        with m.If(self.input.valid & self.input.ready):
            m.d.sync += into.eq(~into)
        m.d.comb += next_out.eq(out ^ (self.output.valid & self.output.ready))
        m.d.sync += out.eq(next_out)
        if self._addresses:
            # The same again: a register that drives few others, and so lies beside them.
            m.submodules.first = first = Stamp(FanNode, 1)
            m.d.comb += first.value.eq(next_out)
            for name in self._addresses:
                m.d.comb += self.output.p.message[name].eq(Mux(first.copy, places[1][name], places[0][name]))
        return m
