"""The ids of a segment whose tuples are all looked at together."""

from amaranth import Module, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .segment import DISTRIBUTED
from .socket import ID_WIDTH


class IdStore(wiring.Component):
    """The last `length` ids, in distributed RAM: cheaper than registers where one is read at a time.

    `shift` takes `entering` in; `id` is the one that came `index` shifts before the newest, and
    `leaving` the oldest.

    Latency: `id` and `leaving` follow in the same cycle, a shift is visible one cycle later.
    Throughput: one shift and one id per cycle.
    """

    def __init__(self, length: int):
        self._length = length
        super().__init__(
            {
                "entering": In(ID_WIDTH),
                "shift": In(1),
                "index": In(range(length)),
                "id": Out(ID_WIDTH),
                "leaving": Out(ID_WIDTH),
            }
        )

    def elaborate(self, platform):
        m = Module()
        # A power of two of places, so that addresses wrap by themselves.
        head = Signal(range(max(2, self._length)))
        m.submodules.ids = ids = memory.Memory(
            shape=ID_WIDTH, depth=1 << len(head), init=[], attrs=DISTRIBUTED
        )
        write = ids.write_port()
        chosen = ids.read_port(domain="comb")
        oldest = ids.read_port(domain="comb")
        m.d.comb += [
            write.addr.eq(head),
            write.data.eq(self.entering),
            write.en.eq(self.shift),
            chosen.addr.eq(head - 1 - self.index),
            self.id.eq(chosen.data),
            oldest.addr.eq(head - self._length),
            self.leaving.eq(oldest.data),
        ]
        with m.If(self.shift):
            m.d.sync += head.eq(head + 1)
        return m
