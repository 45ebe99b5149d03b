"""Puts results into the order of their later tuples, with a buffer for what is between punctuations.

::

    results --> [ bucket | bucket | ... ] --> pairs, those of the oldest open time first
                           ^
                      punctuation

A result's time is the number of its later tuple. Only so many tuples are under way at once, and each has a
bucket: a result goes into the one of its time, and comes out when no bucket before can get another.
"""

from amaranth import Array, Cat, Module, Signal
from amaranth.lib import memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .message import stamp_width
from .parameters import Parameters
from .scanner import found_layout
from .socket import PAIR_LAYOUT
from .window_memory import ram_style


class ResultSorter(wiring.Component):
    """A bucket for each time from `time` on, with room for as many results as one tuple can have.

    Results of `time` come out at once; it goes on when `punctuation` is past it and they have. While `hold`
    is high it stays and nothing more comes. `filled` is the most that ever was in the buffer.

    Latency: 2 cycles, for results of `time`. Throughput: a result per cycle; an empty bucket takes a cycle.
    """

    def __init__(self, parameters: Parameters):
        self._p = parameters
        width = stamp_width(parameters)
        self._count, self._room = parameters.sorter_size
        super().__init__(
            {
                "results": In(stream.Signature(found_layout(parameters))),
                "punctuation": In(width),
                "hold": In(1),
                "time": Out(width),
                "pairs": Out(stream.Signature(PAIR_LAYOUT)),
                "filled": Out(range(self._count * self._room + 1)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        depth = self._count * self._room
        size = (self._count - 1).bit_length()
        m.submodules.buffer = buffer = memory.Memory(
            shape=PAIR_LAYOUT, depth=depth, init=[], attrs=ram_style(PAIR_LAYOUT, depth)
        )
        write, read = buffer.write_port(), buffer.read_port()
        counts = Array(Signal(range(self._room + 1), name=f"count_{k}") for k in range(self._count))
        bucket = self.results.payload.stamp[:size]
        current = self.time[:size]
        place = Signal(range(self._room + 1))  # of the next result in the current bucket
        fetches, ends = Signal(), Signal()
        m.d.comb += [
            self.results.ready.eq(1),
            write.addr.eq(Cat(counts[bucket][: (self._room - 1).bit_length()], bucket)),
            write.data.eq(self.results.payload.pair),
            write.en.eq(self.results.valid),
            fetches.eq(~self.hold & (place != counts[current]) & (~self.pairs.valid | self.pairs.ready)),
            ends.eq(
                ~self.hold
                & (place == counts[current])
                & ((self.punctuation - self.time)[: len(self.time)].as_signed() > 0)
            ),
            read.addr.eq(Cat(place[: (self._room - 1).bit_length()], current)),
            read.en.eq(fetches),
            self.pairs.payload.eq(read.data),
        ]
        with m.If(~self.pairs.valid | self.pairs.ready):
            m.d.sync += self.pairs.valid.eq(fetches)
        with m.If(self.results.valid):
            m.d.sync += counts[bucket].eq(counts[bucket] + 1)
        with m.If(fetches):
            m.d.sync += place.eq(place + 1)
        with m.If(ends):
            m.d.sync += [counts[current].eq(0), place.eq(0), self.time.eq(self.time + 1)]

        fill = Signal.like(self.filled)
        m.d.sync += fill.eq(fill + self.results.valid - fetches)
        with m.If(fill > self.filled):
            m.d.sync += self.filled.eq(fill)
        return m
