"""A queue in distributed RAM whose `ready`, `valid` and front are registers."""

from amaranth import Module, Shape, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out
from amaranth.utils import ceil_log2

from .segment import DISTRIBUTED


class RegisteredQueue(wiring.Component):
    """Places for `depth` items in memory, at least 3, and one in the register behind it.

    Whether there is room is told a cycle late, as if one more had come. What is put in and what is taken are
    counted apart, so that no path goes from one side to the other.

    Latency: 2 cycles. Throughput: one item per cycle.
    """

    def __init__(self, shape, depth: int):
        if depth < 3:
            raise ValueError(f"Depth of a queue must be at least 3, not {depth}")
        self._depth = depth
        super().__init__({"input": In(stream.Signature(shape)), "output": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        width = ceil_log2(self._depth)
        m.submodules.places = places = memory.Memory(
            shape=Shape.cast(self.input.payload.shape()), depth=1 << width, init=[], attrs=DISTRIBUTED
        )
        write, read = places.write_port(), places.read_port(domain="comb")
        # One bit more than an address has tells a full queue from an empty one.
        given, taken = Signal(width + 1), Signal(width + 1)
        room = Signal(init=1)
        front = Signal(self.output.payload.shape(), reset_less=True)
        m.d.comb += [
            self.input.ready.eq(room),
            self.output.payload.eq(front),
            write.addr.eq(given[:width]),
            write.data.eq(self.input.payload),
            write.en.eq(self.input.valid & room),
            read.addr.eq(taken[:width]),
        ]
        m.d.sync += [given.eq(given + write.en), room.eq((given - taken)[: width + 1] < self._depth - 1)]
        with m.If(self.output.ready | ~self.output.valid):
            m.d.sync += [
                self.output.valid.eq(given != taken),
                front.eq(read.data),
                taken.eq(taken + (given != taken)),
            ]
        return m
