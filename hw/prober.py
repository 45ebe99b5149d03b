"""The prober: a walk over partitions and bounds, both sorted, that finds the place of each bound.

::

    words of the partitions ---> [ E records ] --+
                                                 +-> which are below? -> positions
    bounds in these partitions -> [ one bound ] -+
                                      next bound: is it beyond this word too?
"""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .boundary import is_below
from .fetcher import sought_layout
from .skid import Skid


def position_layout(batch: int, capacity: int) -> data.StructLayout:
    """How many of the array's records lie before a bound, or what closes the stream."""
    return data.StructLayout(
        {"slot": range(batch), "upper": 1, "position": range(capacity + 1), "closing": 1}
    )


class Prober(wiring.Component):
    """Finds the positions of bounds in the words that were read for them, a word or a bound at a time.

    A word that the next bound lies beyond leaves with the bound that is found in it, so that a cycle without
    a new word is one in which a further bound falls into the same word.

    Latency: 2 cycles. Throughput: one word or bound per cycle, or both.
    """

    def __init__(self, record: data.StructLayout, lanes: int, batch: int, *, partition: int, partitions: int):
        self._lanes = lanes
        width = record["key"].width
        words = partition // lanes
        super().__init__(
            {
                "count": In(range(partition * partitions + 1)),
                "sought": In(stream.Signature(sought_layout(width, batch, partitions, words))),
                "words": In(stream.Signature(data.ArrayLayout(record, lanes))),
                "positions": Out(stream.Signature(position_layout(batch, partition * partitions))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        words, sought = self.words, self.sought
        shape = sought.payload.shape()
        busy = Signal()
        current = Signal(shape, reset_less=True)
        bound = current.target.bound
        following = sought.p

        opened = Signal()  # the word on offer belongs to a partition in which bounds were sought
        owned = Signal()  # ... and `current` is one of them
        held = Signal.like(current.last)
        number = Signal.like(current.last)  # of the word within its partition
        is_last = Signal()
        draining = Signal()
        seeking = Signal()
        highest = words.p[self._lanes - 1].key
        beyond = Signal()
        passing = Signal()
        room = Signal()
        found = Signal()
        taken = Signal()
        m.d.comb += [
            is_last.eq(number == Mux(opened, held, current.last)),
            draining.eq(opened & (current.fresh & ~owned | bound.closing)),
            seeking.eq(busy & ~draining & ~current.target.none),
            beyond.eq(is_below(highest, bound.code) & ~is_last),
            passing.eq(
                sought.valid
                & (
                    following.fresh
                    | following.target.bound.closing
                    | is_below(highest, following.target.bound.code) & ~is_last
                )
            ),
            found.eq(busy & ~draining & room & (current.target.none | words.valid & ~beyond)),
            words.ready.eq(busy & draining | seeking & (beyond | room & passing)),
            taken.eq(words.valid & words.ready),
            sought.ready.eq(~busy | found),
        ]
        with m.If(seeking):
            m.d.sync += [opened.eq(1), owned.eq(1)]
            with m.If(~opened):
                m.d.sync += held.eq(current.last)
        with m.If(taken):
            m.d.sync += number.eq(number + 1)
            with m.If(is_last):
                m.d.sync += [number.eq(0), opened.eq(0)]
        with m.If(sought.ready):
            m.d.sync += [busy.eq(sought.valid), current.eq(following), owned.eq(0)]

        # The lanes are compared in the cycle of the decision, and counted in the next.
        m.submodules.skid = skid = Skid(self.positions.payload.shape())
        deciding = Signal()
        below = Signal(self._lanes, reset_less=True)
        word = Signal(len(number) + len(current.target.partition), reset_less=True)  # of the array
        final = Signal(reset_less=True)  # it is the array's last
        of = Signal(shape["target"].shape, reset_less=True)
        m.d.comb += room.eq(~deciding | skid.input.ready)
        here = Cat(number, current.target.partition)
        with m.If(room):
            m.d.sync += [
                deciding.eq(found),
                below.eq(Cat(is_below(record.key, bound.code) for record in words.p)),
                word.eq(here),
                final.eq(here == (self.count - 1) // self._lanes),
                of.eq(current.target),
            ]
        # Behind the last record anything may lie.
        rank = Signal(range(self._lanes + 1))
        m.d.comb += rank.eq(self._lanes)
        for lane in reversed(range(self._lanes)):
            with m.If(~below[lane] | final & (lane > (self.count - 1) % self._lanes)):
                m.d.comb += rank.eq(lane)
        m.d.comb += [
            skid.input.p.position.eq(Mux(of.none, 0, word * self._lanes + rank)),
            skid.input.p.slot.eq(of.bound.slot),
            skid.input.p.upper.eq(of.bound.code.upper),
            skid.input.p.closing.eq(of.bound.closing),
            skid.input.valid.eq(deciding),
        ]
        wiring.connect(m, skid.output, wiring.flipped(self.positions))
        return m
