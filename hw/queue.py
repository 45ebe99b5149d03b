"""Queues in memory that show their front in registers."""

from amaranth import Module, Mux, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .skid import Skid
from .window_memory import ram_style


def rounded(depth: int) -> int:
    """The places of the memory that holds `depth` items."""
    return 1 << (depth - 1).bit_length()


class ShortQueue(wiring.Component):
    """Places for `depth` items in memory, and one in the register behind it, which shows the front.

    Neither `ready` nor what is shown waits for the memory. What takes the front moves a pointer, and so has
    most of a cycle, not all of it as with `Queue`.

    `attrs` of the memory are besides its style.

    Latency: 2 cycles. Throughput: one item per cycle, from a depth of 3 on; with 2, two in three cycles.
    """

    def __init__(self, shape, depth: int, attrs: dict | None = None):
        self._depth = depth
        self._attrs = attrs or {}
        super().__init__({"input": In(stream.Signature(shape)), "output": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        shape = self.input.payload.shape()
        size = rounded(self._depth)
        width = size.bit_length() - 1
        m.submodules.places = places = memory.Memory(
            shape=shape, depth=size, init=[], attrs=ram_style(shape, size) | self._attrs
        )
        write, read = places.write_port(), places.read_port()
        # Pointers go round twice, so that full is not empty.
        last, first = Signal(width + 1), Signal(width + 1)
        fits = Signal(init=1)  # one more, even if nothing has left meanwhile
        some = last != first
        m.d.comb += [
            self.input.ready.eq(fits),
            write.addr.eq(last),
            write.data.eq(self.input.payload),
            write.en.eq(self.input.valid & fits),
            read.addr.eq(first),
            read.en.eq(~self.output.valid | self.output.ready),
            self.output.payload.eq(read.data),
        ]
        filled = (last - first)[: width + 1]
        # Both are known before it is known whether something comes.
        m.d.sync += fits.eq(Mux(write.en, filled < self._depth - 1, filled < self._depth))
        with m.If(write.en):
            m.d.sync += last.eq(last + 1)
        with m.If(read.en):
            m.d.sync += [self.output.valid.eq(some), first.eq(first + some)]
        return m


class Queue(wiring.Component):
    """A `ShortQueue`, and two places in the registers behind it.

    A memory takes a long time to show a word, and to be told to go on: so what looks at the front, and what
    takes it, has a cycle of its own. `apart` is for a block RAM, which shows a word so late that only a
    register beside it can take it: there is one more.

    Latency: 3 cycles, 4 if `apart`. Throughput: one item per cycle, from a depth of 3 on.
    """

    def __init__(self, shape, depth: int, apart: bool = False):
        self._depth = depth
        self._apart = apart
        super().__init__({"input": In(stream.Signature(shape)), "output": Out(stream.Signature(shape))})

    def elaborate(self, platform):
        m = Module()
        shape = self.input.payload.shape()
        m.submodules.skid = skid = Skid(shape)
        # What is read while it is written is not shown, as the queue is empty then: so nothing need stand
        # between memory and register that shows what was there before.
        attrs = {"no_rw_check": 1} if self._apart else None
        m.submodules.queue = queue = ShortQueue(shape, self._depth, attrs)
        wiring.connect(m, wiring.flipped(self.input), queue.input)
        if self._apart:
            some, item = Signal(), Signal(shape, reset_less=True)
            m.d.comb += [
                queue.output.ready.eq(~some | skid.input.ready),
                skid.input.valid.eq(some),
                skid.input.payload.eq(item),
            ]
            with m.If(queue.output.ready):
                m.d.sync += [some.eq(queue.output.valid), item.eq(queue.output.payload)]
        else:
            wiring.connect(m, queue.output, skid.input)
        wiring.connect(m, skid.output, wiring.flipped(self.output))
        return m
