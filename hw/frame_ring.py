"""A ring of frames: payloads on their way in until they are read, or out until they are acknowledged."""

from amaranth import Module, Mux, Signal
from amaranth.lib import memory, wiring
from amaranth.lib.wiring import In, Out

from .frame import Link


class FrameRing(wiring.Component):
    """`frames` slots of `payload` words, filled, shown and freed in order.

    ::

        freed      kept until released       shown next     being filled
        ----- | tail ...................... | next ........ | head
                 <-- `rewind` shows these again

    `write` puts `word` into the slot at the head, `commit` closes it and goes on to the next, `abort` starts
    it again. A commit must not come in the cycle of the last write. While `full`, writes must not come.
    `word_shown` is word number `index` of the slot at `next`, if `available`; `step` goes to its next word
    and `take` to the next slot. `release` frees the oldest slots, as many as it says, and must not come
    with a rewind.

    Latency: a slot is available one cycle after its commit. Throughput: one word in and one out per cycle.
    """

    def __init__(self, link: Link):
        self._link = link
        places = range(link.frames + 1)
        super().__init__(
            {
                "word": In(link.width),
                "write": In(1),
                "commit": In(1),
                "abort": In(1),
                "clear": In(1),
                "full": Out(1),
                "filled": Out(range(link.payload + 1)),  # words in the slot at the head
                "free": Out(places),  # slots that are neither kept nor closed
                "available": Out(1),
                "ahead": Out(places),  # slots from the tail to `next`
                "length": Out(range(link.payload + 1)),
                "last": Out(1),  # the word shown is the slot's last
                "word_shown": Out(link.width),
                "step": In(1),
                "take": In(1),
                "rewind": In(1),
                "release": In(places),
            }
        )

    def elaborate(self, platform):
        m = Module()
        link = self._link
        # One bit more than slots need, so that full and empty differ.
        head, tail, shown = (Signal(range(2 * link.frames), name=name) for name in ("head", "tail", "shown"))
        slot_bits = len(head) - 1
        index = Signal(range(link.payload))
        number = Signal(range(link.payload + 1), init=1)  # of the word shown, from 1
        next_shown = Signal.like(shown)
        next_index = Signal.like(index)
        row_bits = (link.payload - 1).bit_length()
        m.submodules.words = words = memory.Memory(shape=link.width, depth=link.frames << row_bits, init=[])
        m.submodules.lengths = lengths = memory.Memory(
            shape=self.filled.shape(), depth=link.frames, init=[], attrs={"ram_style": "distributed"}
        )
        write, read = words.write_port(), words.read_port()
        note, look = lengths.write_port(), lengths.read_port(domain="comb")

        def row(slot, number):
            return (slot[:slot_bits] << row_bits) | number

        used = Signal(range(link.frames + 1))
        m.d.comb += [
            used.eq((head - tail)[: len(head)]),
            self.full.eq(used == link.frames),
            self.free.eq(link.frames - used),
            self.available.eq(shown != head),
            self.ahead.eq((shown - tail)[: len(head)]),
            write.addr.eq(row(head, self.filled)),
            write.data.eq(self.word),
            write.en.eq(self.write),
            note.addr.eq(head[:slot_bits]),
            note.data.eq(self.filled),
            note.en.eq(self.commit),
            self.last.eq(number == self.length),
            # Addresses are one cycle ahead, so that word and length are there when `shown` and `index` are.
            look.addr.eq(next_shown[:slot_bits]),
            read.addr.eq(row(next_shown, next_index)),
            read.en.eq(1),
            self.word_shown.eq(read.data),
            next_shown.eq(Mux(self.clear, 0, Mux(self.rewind, tail, shown + self.take))),
            next_index.eq(Mux(self.clear | self.rewind | self.take, 0, index + self.step)),
        ]
        with m.If(self.write):
            m.d.sync += self.filled.eq(self.filled + 1)
        with m.If(self.commit | self.abort):
            m.d.sync += self.filled.eq(0)
        m.d.sync += [
            head.eq(head + self.commit),
            tail.eq(tail + self.release),
            shown.eq(next_shown),
            index.eq(next_index),
            number.eq(next_index + 1),
            # In a register of its own, since all that goes on with a slot waits for its last word.
            self.length.eq(Mux(self.commit & (look.addr == note.addr), note.data, look.data)),
        ]
        with m.If(self.clear):
            m.d.sync += [head.eq(0), tail.eq(0), self.filled.eq(0)]
        return m
