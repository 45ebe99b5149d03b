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
    """`start` takes a `header`; while `sending`, `payload` must show its words, and `step` asks for the next.

    Latency: the header's first word is out one cycle after `start`. Throughput: one word per cycle; a
    frame can be started in the cycle in which the last word of the one before goes out (`idle`).
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
                "done": Out(1),  # the last word goes out in this cycle
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
        check = Signal(32)
        count = Signal(range(max(link.payload, link.header_words) + 1))
        moves = Signal()
        first = Signal()
        m.d.comb += [
            self.words.valid.eq(state != _State.IDLE),
            moves.eq(self.words.valid & self.words.ready),
            crc.data.eq(self.words.payload),
            self.last.eq((state == _State.CRC) & (count == 1)),
            self.done.eq(self.last & moves),
            self.idle.eq((state == _State.IDLE) | self.done),
        ]
        with m.Switch(state):
            with m.Case(_State.HEADER):
                m.d.comb += [self.words.payload.eq(rest), crc.start.eq(first), crc.valid.eq(moves)]
                with m.If(moves):
                    m.d.sync += [rest.eq(rest >> width), count.eq(count - 1), first.eq(0)]
                    with m.If(count == 1):
                        m.d.sync += [
                            state.eq(Mux(header.length == 0, _State.CRC, _State.PAYLOAD)),
                            count.eq(Mux(header.length == 0, link.crc_words, header.length)),
                        ]
            with m.Case(_State.PAYLOAD):
                m.d.comb += [self.words.payload.eq(self.payload), crc.valid.eq(moves), self.step.eq(moves)]
                with m.If(moves):
                    m.d.sync += count.eq(count - 1)
                    with m.If(count == 1):
                        m.d.sync += [state.eq(_State.CRC), count.eq(link.crc_words)]
            with m.Case(_State.CRC):
                sent = Mux(first, crc.crc, check) if width < 32 else crc.crc
                m.d.comb += self.words.payload.eq(sent)
                with m.If(moves):
                    m.d.sync += [check.eq(sent >> width), first.eq(0), count.eq(count - 1)]
                    with m.If(self.last):
                        m.d.sync += state.eq(_State.IDLE)
        # `first` also marks the first word of the CRC, which is not in `check` yet.
        with m.If(moves & (state != _State.CRC) & (count == 1)):
            m.d.sync += first.eq(1)
        with m.If(self.start & self.idle):
            m.d.sync += [
                header.eq(self.header),
                rest.eq(self.header),
                state.eq(_State.HEADER),
                count.eq(link.header_words),
                first.eq(1),
            ]
        return m
