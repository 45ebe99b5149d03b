"""The shell: a joiner behind a link. Tuples come in frames, results leave in frames.

::

    words in --> [ deframer ] --> [ ring ] --> [ unpack ] --> tuples  +--------+
                      |                                               | joiner |
                  [ control ]  registers, numbers, credits            |        |
                      |                                               |        |
    words out <- [  framer  ] <-- [ ring ] <-- [  pack  ] <-- results +--------+

The protocol is in `hw/frame.py`. Any joiner plugs in.
"""

import hashlib

from amaranth import Cat, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .deframer import Deframer
from .errors import ParameterError
from .frame import COUNTERS, IDENTITY_WORD, MAGIC, NUMBERS, VERSION, FrameKind, Link, Register, identity
from .frame_ring import FrameRing
from .framer import Framer
from .joiner import joiner, memory_port
from .parameters import ARCHITECTURES, Parameters
from .skid import Skid
from .socket import RESULT_LAYOUT, tuple_layout
from .stamp import Stamp


class Unpack(wiring.Component):
    """Words of a frame's payload become tuples.

    Latency: a tuple is on offer one cycle after its last word. Throughput: one word per cycle.
    """

    def __init__(self, shape: data.Layout, width: int):
        self._words = -(-shape.size // width)
        super().__init__(
            {
                "word": In(width),
                "valid": In(1),
                "ready": Out(1),
                "last": In(1),  # of its frame: what is left of a tuple then is not one
                "tuples": Out(stream.Signature(shape)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = len(self.word)
        count = Signal(range(self._words))
        collected = Signal(self._words * width)
        payload = Signal(self.tuples.payload.shape(), reset_less=True)
        filled = Cat(collected[width:], self.word)
        complete = count == self._words - 1
        m.d.comb += [
            self.ready.eq(~(complete & self.tuples.valid & ~self.tuples.ready)),
            self.tuples.payload.eq(payload),
        ]
        with m.If(self.tuples.ready):
            m.d.sync += self.tuples.valid.eq(0)
        with m.If(self.valid & self.ready):
            m.d.sync += [collected.eq(filled), count.eq(Mux(complete | self.last, 0, count + 1))]
            with m.If(complete):
                m.d.sync += [self.tuples.valid.eq(1), payload.eq(filled)]
        return m


class Pack(wiring.Component):
    """Results become words.

    Latency: the first word is out one cycle after its result was taken. Throughput: one word per cycle.
    """

    def __init__(self, shape: data.Layout, width: int):
        self._words = -(-shape.size // width)
        super().__init__(
            {
                "results": In(stream.Signature(shape)),
                "words": Out(stream.Signature(width)),
                "first": Out(1),  # the word on offer is the first of its result
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = len(self.words.payload)
        rest = Signal(self._words * width, reset_less=True)
        count = Signal(range(self._words + 1))
        m.d.comb += [
            self.words.valid.eq(count != 0),
            self.words.payload.eq(rest),
            self.first.eq(count == self._words),
            self.results.ready.eq((count == 0) | ((count == 1) & self.words.ready)),
        ]
        with m.If(self.words.valid & self.words.ready):
            m.d.sync += [rest.eq(rest >> width), count.eq(count - 1)]
        with m.If(self.results.valid & self.results.ready):
            m.d.sync += [rest.eq(self.results.payload), count.eq(self._words)]
        return m


class Shell(wiring.Component):
    """A joiner behind a link of `link.width` bits; `build` is what the registers BUILD show.

    Latency: a tuple reaches the joiner 5 cycles after the last word of its frame. Throughput: one word per
    cycle in and one out at the same time.
    """

    def __init__(self, parameters: Parameters, link: Link, build: bytes = bytes(32)):
        if memory_port(parameters):
            accepted = ", ".join(name for name in ARCHITECTURES if name != parameters.architecture)
            raise ParameterError(
                f"architecture {parameters.architecture} needs external memory, which no board behind a link "
                f"wires; accepted: {accepted}"
            )
        self._parameters = parameters
        self._link = link
        self._build = build
        least = max(link.tuple_words(parameters), link.result_words, link.words(4))
        if link.payload < least:
            raise ParameterError(
                f"link payload must be at least {least} words for tuples and results "
                f"of {link.width}-bit words, not {link.payload!r}"
            )
        super().__init__(
            {
                "incoming": In(stream.Signature(link.width)),
                "outgoing": Out(stream.Signature(link.width)),
                "last": Out(1),  # the word on offer is its frame's last
                "register": In(8),  # a register to look at beside the link ...
                "value": Out(32),  # ... and what is in it
            }
        )

    def elaborate(self, platform):
        m = Module()
        link = self._link
        reset = Signal()
        m.submodules.deframer = deframer = Deframer(link)
        m.submodules.framer = framer = Framer(link)
        m.submodules.received = received = FrameRing(link)
        m.submodules.results = results = FrameRing(link)
        m.submodules.joiner = plug = Stamp(joiner, self._parameters, reset=reset)
        m.submodules.unpack = unpack = ResetInserter(reset)(
            Unpack(tuple_layout(self._parameters.dims), link.width)
        )
        m.submodules.pack = pack = ResetInserter(reset)(Pack(RESULT_LAYOUT, link.width))
        # No path goes from the joiner into the shell, or back.
        for name, source, sink in (
            ("tuples", unpack.tuples, plug.tuples),
            ("found", plug.results, pack.results),
        ):
            skid = Skid(source.payload.shape())
            m.submodules[name] = ResetInserter(reset)(skid)
            wiring.connect(m, source, skid.input)
            wiring.connect(m, skid.output, sink)
        m.d.comb += [
            deframer.words.payload.eq(self.incoming.payload),
            deframer.words.valid.eq(self.incoming.valid),
            self.incoming.ready.eq(1),
            received.clear.eq(reset),
            results.clear.eq(reset),
        ]
        wiring.connect(m, framer.words, wiring.flipped(self.outgoing))
        m.d.comb += self.last.eq(framer.last)

        # Received payloads go to their ring; they count once their frame is good and its number is next. A
        # frame is judged in one cycle and acted on in the next, so payloads are a cycle late as well.
        expected = Signal(8)  # the number of the next frame from the host
        oldest = Signal(8)  # the number of the oldest result frame that is kept
        current = Signal(8)  # the number of the result frame that is shown
        allowed = Signal(8)  # the number of the first result frame that the host has not granted
        damaged = Signal(32)
        answer = Signal()  # a STATUS is due
        ready_due = Signal()
        value_due = Signal()
        told_full = Signal()  # the last header granted nothing
        again = Signal()  # frames are sent again only between two frames
        address = Signal(8)
        session = Signal.like(deframer.header.session)
        judged = deframer.header
        kind = judged.kind
        current_session = (session != 0) & (judged.session == session)
        apart = (kind == FrameKind.RESET) | (kind == FrameKind.READ)  # from any session
        # A payload that found the ring full is not in it, or not all of it.
        next_in_order = (
            (kind == FrameKind.DATA)
            & current_session
            & (judged.sequence == expected)
            & ~received.full
            & (received.filled == judged.length)
            & (judged.length != 0)
        )
        header = Signal.like(judged, reset_less=True)
        good = Signal()
        in_session = Signal(reset_less=True)
        in_order = Signal()
        acknowledged = Signal(8, reset_less=True)
        asked = Signal(8)  # the kind of what must be answered, from this cycle on
        m.d.sync += [
            received.word.eq(deframer.payload),
            received.write.eq(deframer.payload_valid & ~received.full),
            header.eq(judged),
            good.eq(deframer.good),
            reset.eq(deframer.good & (kind == FrameKind.RESET)),
            in_session.eq(current_session),
            in_order.eq(deframer.good & next_in_order),
            received.abort.eq(deframer.damaged | (deframer.good & ~next_in_order)),
            acknowledged.eq(judged.acknowledge - oldest),
            asked.eq(0),
            damaged.eq(damaged + deframer.damaged),
        ]
        # Whoever is in another session is told so.
        with m.If(deframer.good & (apart | current_session)):
            m.d.sync += asked.eq(kind)
        with m.Elif(deframer.good | deframer.damaged):
            m.d.sync += asked.eq(FrameKind.POLL)
        m.d.comb += received.commit.eq(in_order)
        with m.If(in_order):
            m.d.sync += expected.eq(expected + 1)
        # An acknowledgement of frames that were never sent is none.
        with m.If(good & in_session & ~reset & (acknowledged <= results.ahead)):
            m.d.comb += results.release.eq(acknowledged)
            m.d.sync += [oldest.eq(header.acknowledge), allowed.eq(header.acknowledge + header.credit)]

        # Ring to joiner.
        m.d.comb += [
            unpack.word.eq(received.word_shown),
            unpack.valid.eq(received.available),
            unpack.last.eq(received.last),
            received.step.eq(received.available & unpack.ready & ~received.last),
            received.take.eq(received.available & unpack.ready & received.last),
            received.release.eq(received.take),
        ]

        # Joiner to ring. A frame is closed when another result might not fit, or when nothing else is to do.
        most = link.payload - link.result_words
        room = Signal(init=1)  # at most so many words are in the frame
        idle = Signal()
        closing = Signal()
        m.d.sync += idle.eq(framer.idle & ~results.available)
        m.d.comb += [
            closing.eq((results.filled != 0) & Mux(pack.words.valid, pack.first & ~room, idle)),
            pack.words.ready.eq(~results.full & ~closing),
            results.word.eq(pack.words.payload),
            results.write.eq(pack.words.valid & pack.words.ready),
        ]
        m.d.comb += results.commit.eq(closing)
        written = Mux(results.write, results.filled < most, results.filled <= most)
        m.d.sync += room.eq(closing | reset | written)

        # One frame at a time leaves.
        sending_results = Signal()
        sending_value = Signal()
        value = Signal(32)
        self._registers(m, [(address, value), (self.register, self.value)], plug.counters, damaged)
        rest_of_value = Signal(max(32, link.width))
        m.d.comb += [
            framer.header.magic.eq(MAGIC),
            framer.header.acknowledge.eq(expected),
            framer.header.credit.eq(received.free),
            framer.header.session.eq(session),
            framer.payload.eq(Mux(sending_value, rest_of_value, results.word_shown)),
            results.step.eq(framer.step & sending_results & ~results.last),
            results.take.eq(framer.step & sending_results & results.last),
        ]
        with m.If(framer.step & sending_value):
            m.d.sync += rest_of_value.eq(rest_of_value >> link.width)
        granted = Signal(8)
        m.d.comb += granted.eq(allowed - current)
        may_send = results.available & (granted != 0) & ~granted[7]
        with m.If(told_full & ~received.full):
            m.d.sync += [answer.eq(1), told_full.eq(0)]
        with m.If(framer.start):
            m.d.sync += told_full.eq(received.full)
        m.d.sync += current.eq(current + results.take)
        with m.If(framer.idle & again & ~reset):
            # Not while frames are freed.
            with m.If(~good):
                m.d.comb += results.rewind.eq(1)
                m.d.sync += [again.eq(0), current.eq(oldest)]
        with m.Elif(framer.idle & ~reset):
            m.d.sync += [sending_results.eq(0), sending_value.eq(0)]
            with m.If(ready_due):
                m.d.comb += [framer.start.eq(1), framer.header.kind.eq(FrameKind.READY)]
                m.d.sync += ready_due.eq(0)
            with m.Elif(value_due):
                m.d.comb += [
                    framer.start.eq(1),
                    framer.header.kind.eq(FrameKind.VALUE),
                    framer.header.sequence.eq(address),
                    framer.header.length.eq(link.words(4)),
                ]
                m.d.sync += [value_due.eq(0), sending_value.eq(1), rest_of_value.eq(value)]
            with m.Elif(may_send):
                m.d.comb += [
                    framer.start.eq(1),
                    framer.header.kind.eq(FrameKind.DATA),
                    framer.header.sequence.eq(current),
                    framer.header.length.eq(results.length),
                ]
                m.d.sync += [sending_results.eq(1), answer.eq(0)]
            with m.Elif(answer):
                m.d.comb += [
                    framer.start.eq(1),
                    framer.header.kind.eq(FrameKind.STATUS),
                    framer.header.sequence.eq(current),
                ]
                m.d.sync += answer.eq(0)
        # What is asked in the cycle in which something is answered is still to be answered.
        with m.Switch(asked):
            with m.Case(FrameKind.DATA, FrameKind.POLL):
                m.d.sync += answer.eq(1)
            with m.Case(FrameKind.READ):
                m.d.sync += [value_due.eq(1), address.eq(header.sequence)]
            with m.Case(FrameKind.RESEND):
                m.d.sync += [again.eq(1), answer.eq(1)]
            with m.Case(FrameKind.RESET):
                m.d.sync += [
                    *(ready_due.eq(1), session.eq(header.session)),
                    *(
                        signal.eq(0)
                        for signal in (
                            expected,
                            oldest,
                            current,
                            allowed,
                            again,
                            answer,
                            value_due,
                            told_full,
                            sending_results,
                            sending_value,
                        )
                    ),
                ]
        return m

    def _registers(self, m: Module, ports: list[tuple[Value, Value]], counters: Value, damaged: Value):
        """Shows the registers: at each port, an address and a value, the value at the address."""
        text = identity(self._parameters, self._link).encode()
        words = [0] * NUMBERS
        words[Register.IDENTITY.value] = IDENTITY_WORD
        words[Register.VERSION.value] = VERSION
        words[Register.LENGTH.value] = len(text)
        for first, content in (
            (Register.DIGEST, hashlib.sha256(text).digest()),
            (Register.BUILD, self._build),
            (Register.TEXT, text),
        ):
            for at in range(0, len(content), 4):
                words[first.value + at // 4] = int.from_bytes(content[at : at + 4], "little")
        m.submodules.registers = fixed = memory.Memory(shape=32, depth=NUMBERS, init=words)
        for address, value in ports:
            read = fixed.read_port(domain="comb")
            m.d.comb += [read.addr.eq(address), value.eq(read.data)]
            with m.Switch(address):
                with m.Case(Register.DAMAGED.value):
                    m.d.comb += value.eq(damaged)
                for name, register in COUNTERS.items():
                    with m.Case(register.value):
                        m.d.comb += value.eq(counters[name])
