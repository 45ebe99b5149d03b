"""One of several values, by number."""

from amaranth import Module, Mux
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class Choice(wiring.Component):
    """The value at `number` of `values`. Latency: none. Throughput: one per cycle."""

    #: Together with the registers behind it, a synthesis would make one large function of each bit.
    KEPT = True

    def __init__(self, width: int, count: int):
        super().__init__({"values": In(width).array(count), "number": In(range(count)), "value": Out(width)})

    def elaborate(self, platform):
        m = Module()
        left = list(self.values)
        for bit in self.number:
            pairs = zip(left[::2], [*left[1::2], left[-1]])
            left = [Mux(bit, odd, even) for even, odd in pairs]
        m.d.comb += self.value.eq(left[0])
        return m
