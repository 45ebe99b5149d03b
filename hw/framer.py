"""Sends frames: a header, payload words, and the CRC of both."""

from amaranth import Module, Mux, Signal
from amaranth.lib import enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .frame import CRC, HEADER_LAYOUT, Link


class _State(enum.Enum):
    IDLE = 0
    HEADER = 1
    PAYLOAD = 2
    CRC = 3


class Framer(wiring.Component):
    """`start` takes a `header`; `payload` must show the frame's words, and `step` asks for the next.

    ::

        header, payload --> [ word ] --> words
                               |  ^
                               v  | then the CRC
                             [ CRC ]

    A word lies in a register before it goes into the CRC: a payload comes late in its cycle, from a RAM.

    Latency: the header's first word is out two cycles after `start`. Throughput: one word per cycle; a
    frame can be started in the cycle in which the last word of the one before enters the register (`idle`).
    """

    def __init__(self, link: Link):
        self._link = link
        super().__init__(
            {
                "header": In(HEADER_LAYOUT),
                "start": In(1),
                "idle": Out(1),
                "payload": In(link.width),
                "step": Out(1),
                "words": Out(stream.Signature(link.width)),
                "last": Out(1),  # the word on offer is its frame's last
            }
        )

    def elaborate(self, platform):
        m = Module()
        link = self._link
        width = link.width
        m.submodules.crc = crc = CRC(data_width=width).create()
        state = Signal(_State)
        header = Signal(HEADER_LAYOUT)
        rest = Signal(link.header_words * width)  # of the header
        count = Signal(range(max(link.payload, link.header_words) + 1))
        first = Signal()  # of the header or of the CRC
        moves = Signal()
        enters = Signal()  # the next word, if there is one, enters the register

        # The register: a word, or a place for one of the CRC.
        word = Signal(width)
        opens = Signal()  # it is a frame's first word
        checks = Signal()  # it is a place for the CRC, ...
        checks_first = Signal()  # ... the first
        check = Signal(32)  # of the CRC, what is not sent yet
        sent = Mux(checks_first, crc.crc, check) if width < 32 else crc.crc
        m.d.comb += [
            moves.eq(self.words.valid & self.words.ready),
            enters.eq(moves | ~self.words.valid),
            self.words.payload.eq(Mux(checks, sent, word)),
            crc.data.eq(word),
            crc.start.eq(opens),
            crc.valid.eq(moves & ~checks),
        ]
        with m.If(moves):
            m.d.sync += check.eq(sent >> width)

        # What enters it.
        ends = (state == _State.CRC) & (count == 1)
        m.d.comb += [
            self.step.eq((state == _State.PAYLOAD) & enters),
            self.idle.eq((state == _State.IDLE) | (ends & enters)),
        ]
        with m.If(enters):
            m.d.sync += [
                self.words.valid.eq(state != _State.IDLE),
                word.eq(Mux(state == _State.HEADER, rest, self.payload)),
                opens.eq((state == _State.HEADER) & first),
                checks.eq(state == _State.CRC),
                checks_first.eq(first),
                self.last.eq(ends),
                rest.eq(rest >> width),
                count.eq(count - 1),
                first.eq(count == 1),
            ]
            with m.If(count == 1):
                with m.Switch(state):
                    with m.Case(_State.HEADER):
                        m.d.sync += [
                            state.eq(Mux(header.length == 0, _State.CRC, _State.PAYLOAD)),
                            count.eq(Mux(header.length == 0, link.crc_words, header.length)),
                        ]
                    with m.Case(_State.PAYLOAD):
                        m.d.sync += [state.eq(_State.CRC), count.eq(link.crc_words)]
                    with m.Case(_State.CRC):
                        m.d.sync += state.eq(_State.IDLE)
        with m.If(self.start & self.idle):
            m.d.sync += [
                header.eq(self.header),
                rest.eq(self.header),
                state.eq(_State.HEADER),
                count.eq(link.header_words),
                first.eq(1),
            ]
        return m
