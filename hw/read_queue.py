"""Words that are asked for only when there is room for them, so that nobody waits behind them."""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .bursts import Bursts
from .memory_port import LENGTH_WIDTH, MemoryPort, burst_layout
from .queue import Queue
from .skid import Skid


class ReadQueue(wiring.Component):
    """Stands between a reader that may refuse words and a memory that it shares with others.

    ::

        read -> [ skid ] -> [ bursts ] -> [ skid ] --- room? --> requests
        data <- [ queue ] <------------------------------------- words

    Room for `ahead` words hides a latency of about `ahead - burst` cycles. A request may have no words, or
    more than a burst can have if `length_width` allows that.

    Latency: 2 cycles for requests, 3 for words. Throughput: one word per cycle.
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
        m.submodules.asked = asked = Skid(self.read.payload.shape())
        m.submodules.bursts = bursts = Bursts(len(self.read.p.address), len(self.read.p.length), self._burst)
        m.submodules.cut = cut = Skid(self.requests.payload.shape())
        m.submodules.queue = queue = Queue(self.words.payload.shape(), self._ahead)
        wiring.connect(m, wiring.flipped(self.read), asked.input)
        wiring.connect(m, bursts.bursts, cut.input)
        free = Signal(range(self._ahead + 1), init=self._ahead)
        fits = Signal()
        m.d.comb += [
            bursts.request.valid.eq(asked.output.valid),
            bursts.request.p.address.eq(asked.output.p.address),
            bursts.request.p.count.eq(asked.output.p.length),
            asked.output.ready.eq(bursts.request.ready),
            fits.eq(cut.output.p.length <= free),
            self.requests.valid.eq(cut.output.valid & fits),
            self.requests.p.eq(cut.output.p),
            cut.output.ready.eq(self.requests.ready & fits),
        ]
        wiring.connect(m, wiring.flipped(self.words), queue.input)
        wiring.connect(m, queue.output, wiring.flipped(self.data))
        gone = Mux(self.requests.valid & self.requests.ready, self.requests.p.length, 0)
        m.d.sync += free.eq(free - gone + (self.data.valid & self.data.ready))
        return m
