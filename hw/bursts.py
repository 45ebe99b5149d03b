"""Cuts long requests into bursts that end where memory likes them to."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .memory_port import burst_layout


class Bursts(wiring.Component):
    """Cuts `count` words from `address` on at every multiple of `longest`, a power of two.

    `request` is taken with the last of its bursts, so that a request which stays as it is needs no register.
    `last` is high with that burst. A request of no words is taken without a burst.

    Latency: none. Throughput: one burst per cycle, without gaps between requests.
    """

    def __init__(self, address_width: int, count_width: int, longest: int):
        self._longest = longest
        super().__init__(
            {
                "request": In(
                    stream.Signature(data.StructLayout({"address": address_width, "count": count_width}))
                ),
                "bursts": Out(stream.Signature(burst_layout(address_width))),
                "last": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        request, bursts = self.request, self.bursts
        gone = Signal.like(request.p.count)
        address = Signal.like(request.p.address)
        left = Signal.like(request.p.count)
        room = Signal(range(self._longest + 1))
        m.d.comb += [
            address.eq(request.p.address + gone),
            left.eq(request.p.count - gone),
            room.eq(self._longest - address % self._longest),
            self.last.eq(left <= room),
            bursts.p.address.eq(address),
            bursts.p.length.eq(Mux(self.last, left, room)),
            bursts.valid.eq(request.valid & (left != 0)),
            request.ready.eq(self.last & (bursts.ready | (left == 0))),
        ]
        with m.If(bursts.valid & bursts.ready):
            m.d.sync += gone.eq(Mux(self.last, 0, gone + bursts.p.length))
        return m
