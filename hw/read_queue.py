"""Words that are asked for only when there is room for them, so that nobody waits behind them."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .bursts import Bursts
from .memory_port import LENGTH_WIDTH, MemoryPort, burst_layout
from .queue import Queue


class ReadQueue(wiring.Component):
    """Stands between a reader that may refuse words and a memory that it shares with others.

    ::

        read ----> [ bursts ] --- room? --> requests
        data <---- [ queue ] <------------- words

    Room for `ahead` words hides a latency of about `ahead - burst` cycles. A request may have no words, or
    more than a burst can have if `length_width` allows that.

    Latency: 3 cycles for words. Throughput: one word per cycle.
    """

    def __init__(self, port: MemoryPort, *, burst: int, ahead: int, length_width: int = LENGTH_WIDTH):
        self._burst = burst
        self._ahead = ahead
        words = stream.Signature(port.width)
        super().__init__(
            {
                "read": In(stream.Signature(burst_layout(port.address_width, length_width))),
                "data": Out(words),
                "requests": Out(stream.Signature(burst_layout(port.address_width))),
                "words": In(words),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.bursts = bursts = Bursts(len(self.read.p.address), len(self.read.p.length), self._burst)
        m.submodules.queue = queue = Queue(self.words.payload.shape(), self._ahead)
        free = Signal(range(self._ahead + 1), init=self._ahead)
        fits = Signal()
        m.d.comb += [
            bursts.request.valid.eq(self.read.valid),
            bursts.request.p.address.eq(self.read.p.address),
            bursts.request.p.count.eq(self.read.p.length),
            self.read.ready.eq(bursts.request.ready),
            fits.eq(bursts.bursts.p.length <= free),
            self.requests.valid.eq(bursts.bursts.valid & fits),
            self.requests.p.eq(bursts.bursts.p),
            bursts.bursts.ready.eq(self.requests.ready & fits),
        ]
        wiring.connect(m, wiring.flipped(self.words), queue.input)
        wiring.connect(m, queue.output, wiring.flipped(self.data))
        asked = Mux(self.requests.valid & self.requests.ready, self.requests.p.length, 0)
        m.d.sync += free.eq(free - asked + (self.data.valid & self.data.ready))
        return m
