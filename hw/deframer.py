"""Finds frames in a stream of words, and says of each whether it came undamaged."""

from amaranth import Cat, Module, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .frame import CRC, HEADER_LAYOUT, MAGIC, Link


class _State(enum.Enum):
    MAGIC = 0
    HEADER = 1
    PAYLOAD = 2
    CRC = 3


class Deframer(wiring.Component):
    """Words in; headers and payload words out.

    Payload words of a frame are put out as they come, before it is known whether the frame is good.
    `good` is high for one cycle, in the cycle after its last word, with the frame's `header`; `damaged`
    instead if the CRC does not match or the length is not allowed.

    Latency: 1 cycle from a frame's last word. Throughput: one word per cycle, frame upon frame; it is
    always ready.
    """

    def __init__(self, link: Link):
        self._link = link
        super().__init__(
            {
                "words": In(stream.Signature(link.width, always_ready=True)),
                "payload": Out(link.width),
                "payload_valid": Out(1),
                "header": Out(HEADER_LAYOUT),
                "good": Out(1),
                "damaged": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        link = self._link
        width = link.width
        word, valid = self.words.payload, self.words.valid
        m.submodules.crc = crc = CRC(data_width=width).create()
        state = Signal(_State)
        # The words of a header shift in from the top.
        raw = Signal(link.header_words * width)
        filled = Signal(raw.shape())
        m.d.comb += [filled.eq(Cat(raw[width:], word)), crc.data.eq(word)]
        arriving = data.View(HEADER_LAYOUT, filled[: HEADER_LAYOUT.size])
        count = Signal(range(max(link.payload, link.header_words) + 1))
        check = Signal(32)
        checked = Signal(32)
        m.d.comb += checked.eq(word if width >= 32 else Cat(check[width:], word))
        m.d.sync += [self.good.eq(0), self.damaged.eq(0)]

        # The first word of a frame holds the magic, or with 8 bits its low byte.
        first = word[: min(16, width)] == MAGIC & ((1 << min(16, width)) - 1)
        with m.If(valid):
            with m.Switch(state):
                with m.Case(_State.MAGIC):
                    m.d.comb += [crc.start.eq(1), crc.valid.eq(first)]
                    with m.If(first):
                        m.d.sync += raw.eq(filled)
                        self._after_header_word(m, state, count, arriving, link.header_words == 1)
                        m.d.sync += count.eq(1) if link.header_words > 1 else []
                with m.Case(_State.HEADER):
                    m.d.comb += crc.valid.eq(1)
                    m.d.sync += [raw.eq(filled), count.eq(count + 1)]
                    with m.If(count == link.header_words - 1):
                        self._after_header_word(m, state, count, arriving, True)
                    if width == 8:
                        second = word == MAGIC >> 8
                        with m.If((count == 1) & ~second):
                            # Not a frame after all, but this byte may begin one.
                            m.d.comb += crc.start.eq(1)
                            m.d.sync += count.eq(1)
                            with m.If(~first):
                                m.d.sync += state.eq(_State.MAGIC)
                with m.Case(_State.PAYLOAD):
                    m.d.comb += [self.payload_valid.eq(1), crc.valid.eq(1)]
                    m.d.sync += count.eq(count - 1)
                    with m.If(count == 1):
                        m.d.sync += [state.eq(_State.CRC), count.eq(link.crc_words)]
                with m.Case(_State.CRC):
                    m.d.sync += [check.eq(checked), count.eq(count - 1)]
                    with m.If(count == 1):
                        m.d.sync += [
                            state.eq(_State.MAGIC),
                            self.good.eq(checked == crc.crc),
                            self.damaged.eq(checked != crc.crc),
                        ]
        m.d.comb += self.payload.eq(word)
        return m

    def _after_header_word(self, m, state, count, arriving, complete: bool):
        """Goes on after a word of the header, which may be its last."""
        if not complete:
            m.d.sync += state.eq(_State.HEADER)
            return
        m.d.sync += self.header.eq(arriving)
        with m.If(arriving.length > self._link.payload):
            m.d.sync += [state.eq(_State.MAGIC), self.damaged.eq(1)]
        with m.Elif(arriving.length == 0):
            m.d.sync += [state.eq(_State.CRC), count.eq(self._link.crc_words)]
        with m.Else():
            m.d.sync += [state.eq(_State.PAYLOAD), count.eq(arriving.length)]
