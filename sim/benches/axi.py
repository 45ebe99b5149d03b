"""A board on AXI: its registers, joins in frames, and one word per cycle both ways.

::

    AxiStreamSource --> s_axis  [ board ]  m_axis --> AxiStreamSink
    (gaps)                          |                 (refusals)
    AxiLiteMaster <---> s_axil -----+
    (gaps and refusals)
"""

import hashlib
import os

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiResp, AxiStreamBus, AxiStreamSink, AxiStreamSource

from host.link import Header, Parser, encode
from hw.axi import REGISTER_BYTES
from hw.frame import IDENTITY_WORD, NUMBERS, VERSION, FrameKind, Link, Register, identity
from hw.socket import Tag
from hw.words import pack_boxes, pack_points

from .testbench import CLOCK_NANOSECONDS, STALLS, Stalls, Testbench, Traffic, mark_of

#: Cycles without a transfer after which the device is asked, and after how many questions it is given up.
PATIENCE, QUESTIONS = 100, 20


class AxiTestbench(Testbench):
    """A board with its streams driven by a host on a good link, which has no need to send twice."""

    def __init__(self, dut):
        super().__init__(dut)
        self.link = Link.parse(os.environ["TOUCHLINE_LINK"])
        reset = {"reset": dut.aresetn, "reset_active_level": False}
        self.source = AxiStreamSource(AxiStreamBus.from_prefix(dut, "s_axis"), dut.aclk, **reset)
        self.sink = AxiStreamSink(AxiStreamBus.from_prefix(dut, "m_axis"), dut.aclk, **reset)
        self.lite = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.aclk, **reset)
        for log in (self.source.log, self.sink.log, self.lite.write_if.log):
            log.setLevel("WARNING")  # else every byte is logged
        self.session = 0
        self.sent = self.granted = self.expected = 0  # numbers of frames
        self.lengths: list[int] = []  # of result frames, in words
        self.traffic = Traffic()

    @classmethod
    async def start(cls, dut) -> "AxiTestbench":
        """A bench whose clock runs and whose board has answered a RESET."""
        bench = cls(dut)
        cocotb.start_soon(Clock(dut.aclk, CLOCK_NANOSECONDS, unit="ns").start())
        await bench.reset()
        cocotb.start_soon(bench._watch())
        await bench.begin()
        return bench

    async def reset(self) -> None:
        """Resets the board."""
        self.dut.aresetn.value = 0
        await ClockCycles(self.dut.aclk, 2)
        self.dut.aresetn.value = 1
        await RisingEdge(self.dut.aclk)

    async def begin(self) -> None:
        """Begins a session; drops what comes before the answer, which is the last to come."""
        self.session += 77
        self.send(FrameKind.RESET)
        while (frames := await self.frames())[-1][0].kind is not FrameKind.READY:
            pass
        assert frames[-1] == (Header(FrameKind.READY, 0, 0, self.link.frames, self.session), b"")
        self.sent = self.expected = 0

    def stall(self, stalls: Stalls) -> None:
        """Lets all channels wait at random from now on."""
        lite = self.lite
        sources = (self.source, lite.write_if.aw_channel, lite.write_if.w_channel, lite.read_if.ar_channel)
        sinks = (self.sink, lite.write_if.b_channel, lite.read_if.r_channel)
        for channels, chance in ((sources, stalls.source), (sinks, stalls.sink)):
            for channel in channels:
                channel.set_pause_generator(self._pauses(chance) if chance else None)
                channel.pause = False

    def _pauses(self, chance: float):
        while True:
            yield bool(self.random.random() < chance)

    async def _watch(self) -> None:
        """Notes the cycle of each transfer. A word on offer must stay as it is until it is taken."""
        dut, held = self.dut, None
        while True:
            await RisingEdge(dut.aclk)
            if int(dut.s_axis_tvalid.value) and int(dut.s_axis_tready.value):
                self.traffic.taken.append(self.cycle)
            valid = int(dut.m_axis_tvalid.value)
            word = (dut.m_axis_tdata.value, dut.m_axis_tlast.value) if valid else None
            assert held is None or word == held, "a word changed or vanished before it was taken"
            held = word
            if valid and int(dut.m_axis_tready.value):
                self.traffic.given.append(self.cycle)
                held = None
            self.cycle += 1

    def send(self, kind: FrameKind, number: int = 0, payload: bytes = b"", credit: int | None = None) -> None:
        """Sends a frame that acknowledges all results until now."""
        credit = self.link.frames if credit is None else credit
        header = Header(kind, number, self.expected, credit, self.session)
        self.source.send_nowait(encode(self.link, header, payload))

    async def frames(self) -> list[tuple[Header, bytes]]:
        """Waits for the next frame; takes what has come. Each must end with `tlast`, and only there."""
        taken = []
        await self.sink.wait()
        while not self.sink.empty():
            raw = bytes(self.sink.recv_nowait().tdata)
            [(header, payload)] = Parser(self.link).feed(raw)
            assert encode(self.link, header, payload) == raw, "tlast is not at the end of a frame"
            self.granted = self.sent + ((header.acknowledge - self.sent) % -NUMBERS) + header.credit
            if header.kind is FrameKind.DATA:
                assert header.sequence == self.expected % NUMBERS
                self.expected += 1
                self.lengths.append(8 * len(payload) // self.link.width)
            taken.append((header, payload))
        return taken

    def payloads(self, words: np.ndarray) -> list[bytes]:
        """Tuples as payloads of full frames."""
        size = self.link.tuple_words(self.parameters)
        count, stride = self.link.payload // size, size * self.link.width // 8
        rows = [row.tobytes()[:stride].ljust(stride, b"\0") for row in words]
        return [b"".join(rows[at : at + count]) for at in range(0, len(rows), count)]

    def results(self, payload: bytes) -> list[int]:
        """The results in a frame."""
        stride = self.link.result_words * self.link.width // 8
        return [int.from_bytes(payload[at : at + stride], "little") for at in range(0, len(payload), stride)]

    async def exchange(self, words, *, until: int | None = 0, stalls: Stalls = STALLS["none"]) -> Traffic:
        """Sends tuples, and takes results until the mark `until` has come (None: until all are sent)."""
        self.stall(stalls)
        return await self.transfer(self.payloads(words), until)

    async def transfer(self, payloads: list[bytes], until: int | None, credit: int | None = None) -> Traffic:
        """Sends payloads as the device has room, and takes results like `exchange`."""
        self.traffic = traffic = Traffic()
        pending = payloads[::-1]
        moves = idle = questions = 0
        while pending or until is not None or not self.source.idle():
            # One frame ahead, so that none waits and each acknowledges what came before it.
            if pending and self.source.empty() and self.sent < self.granted:
                self.send(FrameKind.DATA, self.sent, pending.pop(), credit)
                self.sent += 1
            await RisingEdge(self.dut.aclk)
            if not self.sink.empty():
                for header, payload in await self.frames():
                    if header.kind is FrameKind.DATA:
                        results = self.results(payload)
                        traffic.words += results
                        questions = 0
                        if until in map(mark_of, results):
                            until = None
            before, moves = moves, len(traffic.taken) + len(traffic.given)
            idle = idle + 1 if moves == before else 0
            if idle == PATIENCE:
                # Results may wait for credit.
                assert questions < QUESTIONS, f"stuck: {len(pending)} payloads left, waiting for mark {until}"
                self.send(FrameKind.POLL, credit=credit)
                idle, questions = 0, questions + 1
        return traffic

    async def register(self, number: int) -> int:
        """The value of a register."""
        return await self.lite.read_dword(number * REGISTER_BYTES)

    async def bytes_from(self, register: Register, size: int) -> bytes:
        """The bytes from a register on."""
        return (await self.lite.read(register.value * REGISTER_BYTES, size)).data


@cocotb.test()
@cocotb.parametrize(stalls=list(STALLS))
async def registers_are_read_and_never_written(dut, stalls):
    """Reads and writes at the same time, with address and data in any order."""
    bench = await AxiTestbench.start(dut)
    bench.stall(STALLS[stalls])
    text = identity(bench.parameters, bench.link).encode()
    want = {Register.IDENTITY: IDENTITY_WORD, Register.VERSION: VERSION, Register.LENGTH: len(text)}

    async def write():
        for number in bench.random.integers(0, NUMBERS, 50).tolist():
            answer = await bench.lite.write(number * REGISTER_BYTES, bench.random.bytes(REGISTER_BYTES))
            assert answer.resp == AxiResp.SLVERR

    writing = cocotb.start_soon(write())
    for register in Register:
        if register not in (Register.DIGEST, Register.TEXT):
            assert await bench.register(register.value) == want.get(register, 0)
    assert await bench.bytes_from(Register.DIGEST, 32) == hashlib.sha256(text).digest()
    assert await bench.bytes_from(Register.TEXT, len(text)) == text
    await writing
    assert await bench.register(Register.IDENTITY.value) == IDENTITY_WORD
    damaged = bytearray(encode(bench.link, Header(FrameKind.POLL)))
    damaged[3] ^= 1
    bench.source.send_nowait(damaged)
    await bench.frames()
    assert await bench.register(Register.DAMAGED.value) == 1


@cocotb.test()
@cocotb.parametrize(stalls=list(STALLS))
async def exactly_once(dut, stalls):
    """Every pair of the oracle comes out once, and nothing else."""
    bench = await AxiTestbench.start(dut)
    streams = bench.streams(60 * bench.parameters.capacity)
    words = np.concatenate([streams.words, bench.flush(7)])
    traffic = await bench.exchange(words, until=7, stalls=STALLS[stalls])
    assert sorted(traffic.pairs) == streams.pairs(bench.parameters.capacity)
    assert traffic.results.tag[-1] == Tag.MARK.value
    assert await bench.register(Register.TUPLES.value) == len(streams.words)
    assert await bench.register(Register.PAIRS.value) == len(traffic.pairs)
    await bench.ends_empty()


def _points(bench: AxiTestbench, match: np.ndarray) -> np.ndarray:
    """R tuples of which those meet `_box` that are to `match`."""
    return pack_points(bench.parameters.dims, np.arange(len(match)), [match.astype(np.uint64)])


def _box(bench: AxiTestbench) -> np.ndarray:
    """An S tuple."""
    one = [np.ones(1, np.uint64)]
    return pack_boxes(bench.parameters.dims, np.arange(1), one, one)


@cocotb.test()
async def a_word_per_cycle_both_ways(dut):
    """With as many words of results as of tuples, no stream pauses in a frame or between frames."""
    bench = await AxiTestbench.start(dut)
    link = bench.link
    tuple_words, result_words = link.tuple_words(bench.parameters), link.result_words
    assert link.payload % (tuple_words * result_words) == 0, "frames must be full both ways"
    await bench.exchange(_box(bench), until=None)
    number = np.arange(100 * link.payload // tuple_words)
    match = (number + 1) * tuple_words // result_words > number * tuple_words // result_words
    traffic = await bench.exchange(np.concatenate([_points(bench, match), bench.flush()]))
    assert [r for r, _ in traffic.pairs] == number[match].tolist()
    frame = link.header_words + link.payload + link.crc_words
    first, out = traffic.taken[0], set(traffic.given)
    assert traffic.taken[: 100 * frame] == list(range(first, first + 100 * frame))
    gaps = [cycle for cycle in range(first, first + 100 * frame) if cycle not in out]
    cocotb.log.info("%d frames of %d words in; the last gap out is in cycle %d", 100, frame, gaps[-1] - first)
    assert bench.lengths.count(link.payload) > 90
    assert gaps[-1] < first + 10 * frame  # results fill their first frames while nothing is to be sent


@cocotb.test()
@cocotb.parametrize(stalls=["none", "both"])
async def frames_of_every_length(dut, stalls):
    """Whole tuples in a frame count, the rest does not; results without credit fill frames of all lengths."""
    bench = await AxiTestbench.start(dut)
    link = bench.link
    bench.stall(STALLS[stalls])
    size = link.tuple_words(bench.parameters)
    pairs = 0
    for length in range(1, link.payload + 1):
        count = length // size
        payload = b"".join(bench.payloads(_points(bench, np.ones(count, bool))))
        payload += bench.random.bytes(length * link.width // 8 - len(payload))
        # A mark goes ahead: while its frame waits for credit, all that follows collects in the next.
        [begin] = bench.payloads(np.concatenate([bench.flush(0), _box(bench)]))
        [end] = bench.payloads(bench.flush(length))
        await bench.transfer([begin, payload, end], None, credit=0)
        pairs += count
        while await bench.register(Register.PAIRS.value) < pairs:
            pass
        traffic = await bench.transfer([], length)
        assert [r for r, _ in traffic.pairs] == list(range(count))
    assert set(bench.lengths) == set(range(link.result_words, link.payload + 1, link.result_words))
    await bench.ends_empty()


@cocotb.test()
async def a_reset_lets_the_word_on_offer_be(dut):
    """A RESET in the middle of a frame of results; then nothing is left of before."""
    bench = await AxiTestbench.start(dut)
    words = np.concatenate([_box(bench), _points(bench, np.ones(bench.link.payload, bool)), bench.flush()])
    for stop in range(1, 3 * bench.link.payload, 5):
        await bench.transfer(bench.payloads(words)[: bench.link.frames], None)
        await ClockCycles(dut.aclk, stop)
        bench.sink.pause = True
        beginning = cocotb.start_soon(bench.begin())
        await ClockCycles(dut.aclk, 50)
        bench.sink.pause = False
        await beginning
        await bench.ends_empty()
