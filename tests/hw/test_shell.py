"""Deframer, framer and shell.

words (stalled at random) -> [ Deframer ]          frames, good or damaged
                             [ Framer ] -> words -> [ Deframer ]
"""

import gc
import hashlib
import random
import sys
import zlib

import numpy as np
import pytest

from hw.deframer import Deframer
from hw.dimension import Dimension
from hw.errors import ParameterError
from hw.frame import HEADER_BYTES, HEADER_LAYOUT, IDENTITY_WORD, MAGIC, FrameKind, Link, Register, identity
from hw.framer import Framer
from hw.parameters import Parameters
from hw.shell import Shell
from hw.socket import RESULT_LAYOUT, Kind, Tag
from hw.words import pack_boxes, pack_control, pack_points

from .streams import simulate

WIDTHS = [8, 16, 32, 64, 128, 512]


def frame(link: Link, kind: FrameKind, payload: list[int] = (), **fields) -> list[int]:
    """The words of a frame, by the definition: bytes, padding, CRC over all words before it."""
    size = link.width // 8
    header = HEADER_LAYOUT.const({"magic": MAGIC, "kind": kind, "length": len(payload), **fields})
    body = header.as_value().value.to_bytes(HEADER_BYTES, "little").ljust(link.header_words * size, b"\0")
    body += b"".join(word.to_bytes(size, "little") for word in payload)
    body += zlib.crc32(body).to_bytes(4, "little").ljust(link.crc_words * size, b"\0")
    return [int.from_bytes(body[at : at + size], "little") for at in range(0, len(body), size)]


@pytest.fixture(autouse=True)
def deep_expressions():
    """Amaranth's simulator recurses through the exclusive-or of a wide CRC."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("width", WIDTHS)
def test_good_frames_are_found_between_garbage_and_damage(width, seed):
    link = Link(width, 20, 4)
    dut = Deframer(link)
    chance = random.Random(seed)
    words, good, damaged = [], [], 0
    for number in range(60):
        payload = [chance.getrandbits(width) for _ in range(chance.randint(0, link.payload))]
        sent = frame(link, FrameKind.DATA, payload, sequence=number)
        act = chance.random()
        if act < 0.3:
            place = chance.randrange(link.header_words, len(sent))
            # Only bits that the CRC covers: padding behind it is nobody's.
            bit = chance.randrange(min(width, 32))
            sent[place] ^= 1 << bit
            damaged += 1
        else:
            good.append((number, payload))
        if act > 0.8:
            # Garbage that does not look like a magic.
            words += [chance.getrandbits(width) & ~0xFF for _ in range(chance.randint(1, 5))]
        words += sent
    found, broken = [], 0

    async def testbench(ctx):
        nonlocal broken
        payload = []
        pending = list(words)
        while pending or len(found) + broken < 60:
            valid = bool(pending) and chance.random() < 0.8
            ctx.set(dut.words.valid, valid)
            ctx.set(dut.words.payload, pending[0] if valid else 0)
            if valid:
                pending.pop(0)
            if ctx.get(dut.payload_valid):
                payload.append(ctx.get(dut.payload))
            await ctx.tick()
            if ctx.get(dut.good):
                header = ctx.get(dut.header)
                found.append((header.sequence, payload))
                payload = []
            if ctx.get(dut.damaged):
                broken += 1
                payload = []

    simulate(dut, [testbench])
    assert found == good
    assert broken == damaged


@pytest.mark.parametrize("stalled", [False, True])
@pytest.mark.parametrize("width", WIDTHS)
def test_framed_words_are_the_definition_and_flow_without_a_gap(width, stalled, seed):
    link = Link(width, 20, 4)
    dut = Framer(link)
    chance = random.Random(seed)
    frames = [[chance.getrandbits(width) for _ in range(length)] for length in (0, 1, 20, 3, 0, 7)]
    want = [frame(link, FrameKind.DATA, payload, sequence=number) for number, payload in enumerate(frames)]
    sent = [[]]

    async def testbench(ctx):
        waiting, left = list(enumerate(frames)), []
        started = 0  # cycles since the first start
        while sum(map(len, sent)) < sum(map(len, want)):
            ready = not (stalled and chance.random() < 0.4)
            ctx.set(dut.words.ready, ready)
            ctx.set(dut.payload, left[0] if left else 0)
            start = bool(waiting) and ctx.get(dut.idle)
            ctx.set(dut.start, start)
            if start:
                number, payload = waiting[0]
                fields = {"magic": MAGIC, "kind": FrameKind.DATA, "sequence": number, "length": len(payload)}
                ctx.set(dut.header, fields)
            assert ctx.get(dut.words.valid) == (started >= 2)
            if ready and ctx.get(dut.words.valid):
                sent[-1].append(ctx.get(dut.words.payload))
                if ctx.get(dut.last):
                    sent.append([])
            if ctx.get(dut.step):
                left.pop(0)
            if start:
                left = waiting.pop(0)[1].copy()
            started += bool(started or start)
            assert started < 2000
            await ctx.tick()
        assert not ctx.get(dut.words.valid) and not waiting and not left

    simulate(dut, [testbench])
    assert sent == [*want, []]


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")  # what is refused is not used
def test_a_joiner_that_needs_memory_is_refused():
    with pytest.raises(ParameterError) as error:
        Shell(Parameters("bisort", lanes=4), Link(8, 120))
    assert str(error.value) == (
        "architecture bisort needs external memory, which no board behind a link wires; "
        "accepted: handshake, opblock, splitjoin, lowlatency, scalejoin"
    )


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")  # what is refused is not used
def test_a_payload_too_small_for_a_tuple_is_refused():
    with pytest.raises(ParameterError) as error:
        Shell(Parameters(), Link(8, 16, 4))
    assert str(error.value) == (
        "link payload must be at least 29 words for tuples and results of 8-bit words, not 16"
    )
    del error
    gc.collect()  # what was refused goes while its warning is ignored


KEY = Parameters(cores=2, segment=2, lanes=2, dims=(Dimension.parse("equal8"),))
BUILD = bytes(range(32))


class Host:
    """A host that is driven by hand: sends frames, and takes those that the device sends."""

    def __init__(self, ctx, dut: Shell, link: Link, chance: random.Random):
        self.ctx, self.dut, self.link, self.chance = ctx, dut, link, chance
        self.waiting: list[int] = []
        self.words: list[int] = []
        self.session = 0

    def send(self, kind: FrameKind, payload: list[int] = (), **fields) -> None:
        self.waiting += frame(self.link, kind, payload, **{"session": self.session} | fields)

    async def begin(self, session: int) -> None:
        self.session = session
        self.send(FrameKind.RESET)
        [(ready, _)] = await self.frames(800)
        assert (ready.kind, ready.session) == (FrameKind.READY, session)
        assert (ready.sequence, ready.acknowledge, ready.credit) == (0, 0, self.link.frames)

    async def cycles(self, count: int) -> None:
        ctx, dut = self.ctx, self.dut
        for _ in range(count):
            valid = bool(self.waiting) and self.chance.random() < 0.8
            ready = self.chance.random() < 0.7
            ctx.set(dut.incoming.valid, valid)
            ctx.set(dut.incoming.payload, self.waiting.pop(0) if valid else 0)
            ctx.set(dut.outgoing.ready, ready)
            if ready and ctx.get(dut.outgoing.valid):
                self.words.append(ctx.get(dut.outgoing.payload))
            await ctx.tick()

    async def frames(self, count: int = 400) -> list:
        """The frames that came until now, each (header, payload), and all of them good."""
        await self.cycles(count)
        assert not self.waiting
        size, link, found = self.link.width // 8, self.link, []
        while self.words:
            body = b"".join(word.to_bytes(size, "little") for word in self.words)
            header = HEADER_LAYOUT.from_bits(int.from_bytes(body[:HEADER_BYTES], "little"))
            words = self.words[link.header_words : link.header_words + header.length]
            fields = {
                name: getattr(header, name) for name in ("sequence", "acknowledge", "credit", "session")
            }
            want = frame(link, header.kind, words, **fields)
            assert self.words[: len(want)] == want
            del self.words[: len(want)]
            found.append((header, words))
        return found

    def tuple_words(self, *tuples: np.ndarray) -> list[int]:
        """Tuples as payload words."""
        size = self.link.width // 8
        stride = self.link.tuple_words(KEY) * size
        body = b"".join(row.tobytes()[:stride].ljust(stride, b"\0") for rows in tuples for row in rows)
        return [int.from_bytes(body[at : at + size], "little") for at in range(0, len(body), size)]

    def results(self, frames: list) -> list[tuple[int, int]]:
        """The pairs in DATA frames."""
        width, pairs = self.link.width, []
        for header, words in frames:
            if header.kind is FrameKind.DATA:
                for at in range(0, len(words), self.link.result_words):
                    raw = sum(
                        word << (k * width) for k, word in enumerate(words[at : at + self.link.result_words])
                    )
                    result = RESULT_LAYOUT.from_bits(raw & ((1 << RESULT_LAYOUT.size) - 1))
                    pairs.append(
                        (result.body.pair.r_id, result.body.pair.s_id) if result.tag == Tag.PAIR else "mark"
                    )
        return pairs


def with_host(width: int, seed: int, script) -> None:
    link = Link(width, 40, 4)
    dut = Shell(KEY, link, BUILD)

    async def testbench(ctx):
        host = Host(ctx, dut, link, random.Random(seed))
        await host.begin(0x4D77)
        await script(host)

    simulate(dut, [testbench])


def _points(first: int, count: int) -> np.ndarray:
    return pack_points(KEY.dims, np.arange(first, first + count), [np.ones(count, np.uint64)])


def _boxes(count: int) -> np.ndarray:
    one = [np.ones(count, np.uint64)]
    return pack_boxes(KEY.dims, np.arange(count), one, one)


def _end() -> list[np.ndarray]:
    return [pack_control(KEY.dims, kind) for kind in (Kind.FLUSH, Kind.MARK)]


@pytest.mark.parametrize("width", [8, 32, 128])
def test_registers_tell_who_the_device_is(width, seed):
    async def script(host):
        text = identity(KEY, host.link).encode()
        want = {
            Register.IDENTITY.value: IDENTITY_WORD,
            Register.LENGTH.value: len(text),
            Register.TEXT.value + 1: int.from_bytes(text[4:8], "little"),
            Register.DIGEST.value + 7: int.from_bytes(hashlib.sha256(text).digest()[28:], "little"),
            Register.BUILD.value + 7: int.from_bytes(BUILD[28:], "little"),
            Register.TUPLES.value: 0,
        }
        for address, value in want.items():
            host.send(FrameKind.READ, sequence=address)
            [(header, words)] = await host.frames()
            assert (header.kind, header.sequence) == (FrameKind.VALUE, address)
            assert sum(word << (k * width) for k, word in enumerate(words)) == value

    with_host(width, seed, script)


@pytest.mark.parametrize("width", [8, 32, 128])
def test_tuples_in_and_results_out(width, seed):
    async def script(host):
        host.send(FrameKind.DATA, host.tuple_words(_boxes(2)), sequence=0, credit=4)
        host.send(FrameKind.DATA, host.tuple_words(_points(0, 2), *_end()), sequence=1, credit=4)
        frames = await host.frames(1500)
        assert sorted(host.results(frames)[:-1]) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        assert host.results(frames)[-1] == "mark"
        numbers = [header.sequence for header, _ in frames if header.kind is FrameKind.DATA]
        assert numbers == list(range(len(numbers)))
        assert frames[-1][0].acknowledge == 2

    with_host(width, seed, script)


@pytest.mark.parametrize("width", [8, 64])
def test_frames_out_of_order_are_left_and_the_next_number_is_told(width, seed):
    async def script(host):
        host.send(FrameKind.DATA, host.tuple_words(_boxes(1)), sequence=1, credit=4)
        [(header, _)] = await host.frames()
        assert (header.kind, header.acknowledge) == (FrameKind.STATUS, 0)
        host.send(FrameKind.DATA, host.tuple_words(_boxes(1)), sequence=0, credit=4)
        [(header, _)] = await host.frames()
        assert (header.kind, header.acknowledge) == (FrameKind.STATUS, 1)
        host.send(FrameKind.DATA, host.tuple_words(_boxes(1)), sequence=0, credit=4)  # sent twice
        [(header, _)] = await host.frames()
        assert (header.kind, header.acknowledge) == (FrameKind.STATUS, 1)
        host.send(FrameKind.READ, sequence=Register.TUPLES.value)
        [(_, words)] = await host.frames()
        assert words[0] == 1

    with_host(width, seed, script)


@pytest.mark.parametrize("width", [8, 64])
def test_results_wait_for_credit_and_come_again_when_asked_for(width, seed):
    async def script(host):
        host.send(FrameKind.DATA, host.tuple_words(_boxes(2), _points(0, 1)), sequence=0)
        host.send(FrameKind.DATA, host.tuple_words(_points(1, 1), *_end()), sequence=1)
        frames = await host.frames(1500)
        assert not host.results(frames) and frames[-1][0].kind is FrameKind.STATUS
        host.send(FrameKind.POLL, credit=1)
        first = [f for f in await host.frames(1500) if f[0].kind is FrameKind.DATA]
        assert [header.sequence for header, _ in first] == [0]
        host.send(FrameKind.RESEND, acknowledge=0, credit=4)
        again = [f for f in await host.frames(1500) if f[0].kind is FrameKind.DATA]
        assert again[0][1] == first[0][1]
        assert sorted(host.results(again)[:-1]) == [(0, 0), (0, 1), (1, 0), (1, 1)]
        # Once acknowledged, frames are gone: the next resend starts behind them.
        host.send(FrameKind.RESEND, acknowledge=len(again), credit=4)
        [(header, _)] = await host.frames(1500)
        assert (header.kind, header.sequence) == (FrameKind.STATUS, len(again))

    with_host(width, seed, script)


def test_a_reset_forgets_everything(seed):
    async def script(host):
        host.send(FrameKind.DATA, host.tuple_words(_boxes(2), _points(0, 1), *_end()), sequence=0)
        await host.frames(800)
        await host.begin(3)
        host.send(FrameKind.DATA, host.tuple_words(_points(5, 1), *_end()), sequence=0, credit=4)
        assert host.results(await host.frames(800)) == ["mark"]

    with_host(8, seed, script)


@pytest.mark.parametrize("width", [8, 64])
def test_frames_of_another_session_change_nothing_and_are_answered_with_the_right_one(width, seed):
    async def script(host):
        own = host.session
        host.send(FrameKind.DATA, host.tuple_words(_boxes(1), _points(0, 1), *_end()), sequence=0)
        await host.frames(1500)
        for other in (0, own ^ 1, own ^ 0x100):
            # Each would take effect in the session of the device: the numbers fit.
            for kind, fields in (
                (FrameKind.DATA, {"sequence": 1, "credit": 4}),
                (FrameKind.POLL, {"credit": 4}),
                (FrameKind.RESEND, {"credit": 4}),
            ):
                payload = host.tuple_words(_boxes(1)) if kind is FrameKind.DATA else []
                host.send(kind, payload, session=other, **fields)
                [(header, _)] = await host.frames()
                assert (header.kind, header.session, header.sequence, header.acknowledge) == (
                    FrameKind.STATUS,
                    own,
                    0,
                    1,
                )
            host.send(FrameKind.READ, sequence=Register.TUPLES.value, session=other, credit=4)
            [(header, words)] = await host.frames()
            assert (header.kind, header.session, words[0]) == (FrameKind.VALUE, own, 2)
        host.send(FrameKind.POLL, credit=4)
        assert host.results(await host.frames(1500)) == [(0, 0), "mark"]

    with_host(width, seed, script)


def test_a_device_without_a_session_takes_nothing(seed):
    link = Link(8, 40, 4)
    dut = Shell(KEY, link)

    async def testbench(ctx):
        host = Host(ctx, dut, link, random.Random(seed))
        host.send(FrameKind.DATA, host.tuple_words(_boxes(1)), session=0)
        [(header, _)] = await host.frames()
        assert (header.kind, header.session, header.acknowledge) == (FrameKind.STATUS, 0, 0)

    simulate(dut, [testbench])


@pytest.mark.parametrize("width", [8, 64])
def test_room_is_told_when_there_was_none(width, seed):
    """Results without credit hold the joiner up until the ring is full; then credit lets all of it go."""

    async def script(host):
        sent = taken = 0
        while taken == sent:
            host.send(FrameKind.DATA, host.tuple_words(_boxes(2), _points(0, 2), *_end()), sequence=sent)
            sent += 1
            header = (await host.frames(600))[-1][0]
            taken = header.acknowledge
            assert sent < 30
        assert header.credit == 0
        host.send(FrameKind.POLL, credit=4)
        results = [header for header, _ in await host.frames(1500) if header.kind is FrameKind.DATA]
        host.send(FrameKind.POLL, acknowledge=len(results))
        told = [(header.kind, header.acknowledge, header.credit) for header, _ in await host.frames(1500)]
        assert told[0] == (FrameKind.STATUS, taken, 0)  # the answer
        assert told[1] == (FrameKind.STATUS, taken, 1)
        assert len(told) == 2

    with_host(width, seed, script)
