"""The host's end of the wire that `hw/frame.py` defines, and the device behind it.

`Wire` moves frames: it numbers what it sends and sends it again from the first frame that was not
acknowledged, it takes results in order and asks again for those that are missing, and it opens the
transport again when that breaks. `LinkDevice` is a device on such a wire.

No frame that has been acknowledged is ever needed again, and nothing is taken twice. So a broken
connection is mended without a trace as long as the device itself lives. A device that was reset is in
another session, or in none, and says so in whatever it sends. Then LinkLost is raised and nothing of that
exchange is handed out.
"""

import hashlib
import secrets
import struct
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from amaranth.hdl import Shape

from hw.errors import DeviceError, ParameterError
from hw.frame import (
    COUNTERS,
    CRC_BYTES,
    FRAMES_LIMIT,
    HEADER_BYTES,
    HEADER_LAYOUT,
    IDENTITY_WORD,
    MAGIC,
    NUMBERS,
    PAYLOAD_LIMIT,
    SESSIONS,
    TEXT_LIMIT,
    VERSION,
    WIDTHS,
    FrameKind,
    Link,
    Register,
)
from hw.parameters import Parameters
from hw.socket import RESULT_LAYOUT, Tag
from hw.words import unpack, word_count

from .device import Exchange, LinkLost
from .transport import Transport, open_transport, split_url

#: Seconds without any frame from the device after which the transport is opened again ...
SILENCE = 5.0
#: ... or the device is given up.
LIMIT = 30.0
#: Seconds in which a device that answers must take a tuple or give a result.
STALL = 120.0
#: Shortest and longest wait, in seconds, for something to move before the device is asked.
PATIENCE = (0.05, 2.0)
START = 0.5
#: Frames put out at once.
BURST = 64

_MAGIC = MAGIC.to_bytes(2, "little")
_HEADER = struct.Struct(
    "<" + "".join({8: "B", 16: "H"}[Shape.cast(field.shape).width] for _, field in HEADER_LAYOUT)
)
_KINDS = {kind.value: kind for kind in FrameKind}


class Header(NamedTuple):
    """The fields of a frame's header."""

    kind: FrameKind
    sequence: int = 0
    acknowledge: int = 0
    credit: int = 0
    session: int = 0


def encode(link: Link, header: Header, payload: bytes | memoryview = b"") -> bytes:
    """A frame; the payload must be whole words."""
    word = link.width // 8
    kind, sequence, acknowledge, credit, session = header
    head = _HEADER.pack(
        MAGIC, kind.value, sequence % NUMBERS, acknowledge % NUMBERS, credit, len(payload) // word, session
    ).ljust(link.header_words * word, b"\0")
    check = zlib.crc32(payload, zlib.crc32(head)).to_bytes(CRC_BYTES, "little")
    return b"".join((head, payload, check.ljust(link.crc_words * word, b"\0")))


class Parser:
    """Finds frames in bytes, wherever they begin."""

    def __init__(self, link: Link):
        self.link = link
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Header, bytes]]:
        """Takes bytes; yields the frames that are complete and undamaged."""
        self._buffer += data
        word = self.link.width // 8
        head, check = self.link.header_words * word, self.link.crc_words * word
        buffer, at = self._buffer, 0
        while (at := buffer.find(_MAGIC, at)) >= 0 and len(buffer) - at >= HEADER_BYTES:
            _, kind, sequence, acknowledge, credit, length, session = _HEADER.unpack_from(buffer, at)
            if kind not in _KINDS or length > self.link.payload:
                at += 1
                continue
            end = at + head + length * word
            if len(buffer) < end + check:
                break
            frame = bytes(memoryview(buffer)[at : end + CRC_BYTES])
            if zlib.crc32(frame[:-CRC_BYTES]) != int.from_bytes(frame[-CRC_BYTES:], "little"):
                at += 1
                continue
            at = end + check
            yield Header(_KINDS[kind], sequence, acknowledge, credit, session), frame[head:-CRC_BYTES]
        # Without a magic, all that may still begin one is the last byte.
        del buffer[: at if at >= 0 else max(0, len(buffer) - 1)]

    def skip(self) -> Iterator[tuple[Header, bytes]]:
        """Gives up the frame that is being waited for, whose length may be wrong; yields those inside it."""
        del self._buffer[:1]
        yield from self.feed(b"")

    def clear(self) -> None:
        """Forgets everything."""
        self._buffer.clear()


class Wire:
    """Frames to and from a device, each exactly once and in order, however bad the transport is.

    Numbers of frames count on without end here, and are sent modulo 256. Tuple frames before `base` are
    acknowledged, those before `sent` have been sent at least once, and `next` is sent next::

        acknowledged | base ... in flight ... | next ... to be sent again ... | sent ... | room
    """

    def __init__(self, transport: Transport, width: int, silence: float, limit: float, stall: float):
        self.transport = transport
        self.know(Link(width, payload=PAYLOAD_LIMIT, frames=2))
        self._credit = 0  # until the device has told its sizes, it may not send results
        self._silence, self._limit, self._stall = silence, limit, stall
        self._session = 0  # until the first reset; then registers can be read, whatever the device does
        self._forget()

    def know(self, link: Link) -> None:
        """Takes the link's true sizes."""
        self._link = link
        self._parser = Parser(link)
        self._credit = link.frames

    def reset(self) -> None:
        """Begins a session: the device forgets everything, and whatever came before its answer is skipped."""
        self._forget()
        # Any but the last one, and never 0.
        self._session = 1 + (self._session + secrets.randbelow(SESSIONS - 2)) % (SESSIONS - 1)
        self._beginning = True
        self._run(lambda: not self._beginning, FrameKind.RESET)

    def _forget(self) -> None:
        self._beginning = False  # a RESET is not answered yet
        self._base = self._next = self._sent = self._room = 0
        self._payloads: deque[memoryview] = deque()  # from `base` on
        self._expected = 0
        self._received: list[bytes] = []
        self._values: dict[int, int] = {}
        self._unacknowledged = 0  # results since the last header was sent
        self._gap: int | None = None  # how far ahead the frame before was, if one is missing
        self._went_back = -1  # the base from which frames were sent again
        self._sample: tuple[int, float] | None = None  # a frame, and when it was sent
        self._patience = START
        self._out = b""
        self._parser.clear()

    def read(self, register: int) -> int:
        """The value of a register, now."""
        self._values.clear()
        self._run(lambda: register in self._values, FrameKind.READ, register)
        return self._values[register]

    def transfer(self, payloads: Sequence[memoryview], enough: Callable[[list[bytes]], bool]) -> None:
        """Sends payloads while it shows `enough` the results that come, until that says so."""
        self._payloads.extend(payloads)

        def finished() -> bool:
            received, self._received = self._received, []
            return enough(received) and not self._payloads

        self._run(finished, FrameKind.POLL)

    def _run(self, finished: Callable[[], bool], question: FrameKind, number: int = 0) -> None:
        """Moves bytes both ways until `finished`; puts the question whenever nothing moves."""
        transport = self.transport
        opening = self._beginning or not self._session
        self._question = question, number
        self._heard = self._moved = self._opened = transport.now()
        self._progress()
        if question is not FrameKind.POLL:
            self._ask(filler=self._beginning)
        while not finished():
            try:
                self._fill()
                if self._out:
                    self._out = self._out[transport.send(self._out) :]
                wait = max(0.0, self._due - transport.now())
                self._take_all(self._parser.feed(transport.receive(wait, room=bool(self._out))))
            except LinkLost:
                raise
            except DeviceError as error:
                if opening:
                    raise
                self._reopen(str(error))
            now = transport.now()
            silent = f"{transport.url}: no answer to {question.name} for {now - self._heard:.3g} seconds"
            if opening and now - self._heard > self._limit:
                raise DeviceError(f"{silent}: not a Touchline device, or not at this rate and width")
            if not opening and now - max(self._heard, self._opened) > self._silence:
                self._reopen(silent)
            elif now - self._moved > self._stall:
                raise LinkLost(
                    f"{transport.url}: hang: the device answers, but has taken no tuple and given no result "
                    f"for {self._stall:g} seconds ({len(self._payloads)} frames wait for it)"
                )
            elif now >= self._due:
                self._nudge()

    def _fill(self) -> None:
        """Puts out what may be sent, once everything before it is gone."""
        if self._out:
            return
        frames = []
        last = min(self._room, self._base + len(self._payloads), self._next + BURST)
        for number in range(self._next, last):
            header = self._header(FrameKind.DATA, number)
            frames.append(encode(self._link, header, self._payloads[number - self._base]))
            if number == self._sent:
                self._sent += 1
                self._sample = self._sample or (number, self.transport.now())
        self._next = max(self._next, last)
        if not frames and self._unacknowledged * 2 >= self._credit > 0:
            frames.append(encode(self._link, self._header(FrameKind.POLL)))
        self._out = b"".join(frames)

    def _take_all(self, frames: Iterator[tuple[Header, bytes]]) -> None:
        for header, payload in frames:
            if not self._beginning:
                self._take(header, payload)
            elif header.kind is FrameKind.READY and header.session == self._session:
                self._beginning = False
                self._room = header.credit

    def _take(self, header: Header, payload: bytes) -> None:
        """A frame from the device."""
        others = (FrameKind.STATUS, FrameKind.DATA) if self._session else ()
        if header.kind not in (FrameKind.VALUE, *others):
            return
        if self._session and header.session != self._session:
            raise LinkLost(
                f"{self.transport.url}: the device was reset: it is in session {header.session}, "
                f"not {self._session}"
            )
        self._heard = self.transport.now()
        self._acknowledged(header)
        if header.kind is FrameKind.VALUE:
            # An answer from before the device had all that was sent belongs to an earlier question.
            if self._base == self._sent:
                self._values[header.sequence] = int.from_bytes(payload[:4], "little")
            return
        ahead = (header.sequence - self._expected) % NUMBERS
        if header.kind is FrameKind.DATA and ahead == 0:
            self._received.append(payload)
            self._expected += 1
            self._unacknowledged += 1
            self._gap = None
            self._progress()
        elif 0 < ahead <= FRAMES_LIMIT:
            # Numbers grow until the device starts again from the missing frame. If they fall and it is
            # still missing, it was lost again.
            first = self._gap is None or ahead < self._gap
            if first or (ahead == self._gap and header.kind is FrameKind.DATA):
                self._out += encode(self._link, self._header(FrameKind.RESEND))
            self._gap = ahead

    def _acknowledged(self, header: Header) -> None:
        """What the device has taken, and how much more it will."""
        count = (header.acknowledge - self._base) % NUMBERS
        if count > self._sent - self._base:
            return  # in a session of which this host knows nothing
        self._room = max(self._room, self._base + count + header.credit)
        if count:
            self._base += count
            self._next = max(self._next, self._base)
            for _ in range(count):
                self._payloads.popleft()
            if self._sample and self._base > self._sample[0]:
                took = self._heard - self._sample[1]
                self._patience = min(max(4 * took, PATIENCE[0]), PATIENCE[1])
                self._sample = None
            self._progress()
        elif header.kind is FrameKind.STATUS and self._base < self._next and self._went_back != self._base:
            # Something came, and was not what it expects: frames are missing there.
            self._go_back()

    def _progress(self) -> None:
        self._moved = self.transport.now()
        self._due = self._moved + self._patience
        self._tries = 0
        self._pause = PATIENCE[0]

    def _nudge(self) -> None:
        """Nothing has moved: gives up what is half received, sends again, and asks."""
        self._tries += 1
        self._due = self.transport.now() + min(self._patience * 2**self._tries, PATIENCE[1])
        self._take_all(self._parser.skip())
        if not self._out:
            self._gap = None
            self._go_back()
            # The device, too, may wait for the rest of a frame whose length is wrong.
            self._ask(filler=self._base < self._sent or self._tries > 1)

    def _go_back(self) -> None:
        self._next = self._went_back = self._base
        self._sample = None

    def _ask(self, filler: bool) -> None:
        kind, number = self._question
        words = min(self._link.payload, 128 << self._tries) + self._link.header_words + self._link.crc_words
        zeros = bytes(words * self._link.width // 8 if filler else 0)
        self._out += zeros + encode(self._link, self._header(kind, number))

    def _header(self, kind: FrameKind, number: int = 0) -> Header:
        """A header; each acknowledges what has come, and grants what may come."""
        self._unacknowledged = 0
        return Header(kind, number, self._expected, self._credit, self._session)

    def _reopen(self, reason: str) -> None:
        """Opens the transport again, with growing pauses, to go on where the device is."""
        transport = self.transport
        while True:
            if transport.now() - self._heard > self._limit:
                raise LinkLost(f"{reason}; gave up {self._limit:g} seconds after its last answer")
            transport.pause(self._pause)
            self._pause = min(2 * self._pause, PATIENCE[1])
            try:
                transport.reopen()
                break
            except DeviceError as error:
                reason = str(error)
        self._opened = transport.now()
        self._out = b""
        self._parser.clear()
        self._nudge()


class LinkDevice:
    """A device at the other end of a wire. Its clock cannot be seen from here, so `cycles` is always 0.

    `options` are parameters as in a URL, and `parameters` all of them; a device that has others is refused.
    With `reset=False` the device is left as it is: then it can be looked at, and used after `restart()`.
    """

    def __init__(
        self,
        transport: Transport,
        options: dict[str, str] | None = None,
        parameters: Parameters | None = None,
        *,
        width: int = 8,
        silence: float = SILENCE,
        limit: float = LIMIT,
        stall: float = STALL,
        reset: bool = True,
    ):
        self.url = transport.url
        self._transport = transport
        self._options = options or {}
        if parameters:
            self._options = split_url(f":?architecture={parameters.architecture}&{parameters.options()}")[2]
        self._width = width
        self._wire = Wire(transport, width, silence, limit, stall)
        try:
            self._begin(reset)
        except BaseException:
            transport.close()
            raise

    def exchange(self, words: np.ndarray, *, marks: int = 0, bucket: int | None = None) -> Exchange:
        """See `Device.exchange`."""
        if bucket:
            raise ParameterError(f"{self.url}: only sim: devices can be watched")
        if not self._sound:
            raise LinkLost(f"{self.url}: not reset, or an exchange failed: restart() the device first")
        self._sound = False
        found: list[np.ndarray] = []
        missing = marks

        def enough(payloads: list[bytes]) -> bool:
            nonlocal missing
            if payloads:
                found.append(self._results(payloads))
                missing -= int((unpack(RESULT_LAYOUT, found[-1], "tag") == Tag.MARK.value).sum())
            return missing <= 0

        self._wire.transfer(self._payloads(words), enough)
        results = np.concatenate(found or [np.empty((0, word_count(RESULT_LAYOUT)), np.uint32)])
        counters = self._account() if marks else dict.fromkeys(COUNTERS, 0)
        self._sound = True
        return Exchange(results, marks - missing, 0, counters, None)

    def restart(self) -> None:
        """See `Device.restart`."""
        self._transport.reopen()
        self._begin(reset=True)

    def health(self) -> dict[str, int]:
        """The counters since the last reset, and how many frames came damaged since power-up."""
        return self._read_counters() | {"damaged": self._wire.read(Register.DAMAGED.value)}

    def close(self) -> None:
        """See `Device.close`."""
        self._transport.close()

    def __enter__(self) -> "LinkDevice":
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def _begin(self, reset: bool) -> None:
        """Makes sure that the device is the one that is wanted."""
        self._sound = False
        if reset:
            self._wire.reset()
        self.parameters, self.link = self._identify()
        if self.link.width != self._width:
            raise DeviceError(
                f"{self.url}: width must be {self.link.width}, as the device says, not {self._width}"
            )
        self._wire.know(self.link)
        self._counted = self._read_counters()
        self._sound = reset

    def _identify(self) -> tuple[Parameters, Link]:
        """What the device tells about itself."""
        read = self._wire.read
        for register, expected in ((Register.IDENTITY, IDENTITY_WORD), (Register.VERSION, VERSION)):
            if (value := read(register.value)) != expected:
                raise DeviceError(
                    f"{self.url}: register {register.name} must be {expected:#x}, not {value:#x}"
                )
        length = read(Register.LENGTH.value)
        if length > TEXT_LIMIT:
            raise DeviceError(f"{self.url}: register LENGTH must be at most {TEXT_LIMIT}, not {length}")
        text, digest, self.build = (
            b"".join(read(first.value + k).to_bytes(4, "little") for k in range(-(-size // 4)))[:size]
            for first, size in ((Register.TEXT, length), (Register.DIGEST, 32), (Register.BUILD, 32))
        )
        if hashlib.sha256(text).digest() != digest:
            raise DeviceError(f"{self.url}: the device's digest is not that of its text {text!r}")
        architecture, _, query = text.decode("ascii", "replace").partition("?")
        options = split_url(f":?{query}")[2]
        link = Link.parse(options.pop("link"))
        parameters = Parameters.from_options(architecture, options)
        wanted = {"architecture": architecture} | options | self._options
        try:
            asked = Parameters.from_options(wanted.pop("architecture"), wanted)
        except ParameterError as error:
            raise ParameterError(f"{self.url}: {error}; the device is {text.decode()}") from None
        for name in self._options:
            actual, value = getattr(parameters, name), getattr(asked, name)
            if actual != value:
                raise DeviceError(
                    f"{self.url}: {name} must be {value}, not {actual}; the device is {text.decode()}"
                )
        return parameters, link

    def _payloads(self, words: np.ndarray) -> list[memoryview]:
        """Tuples cut into frames' payloads, as many whole ones in each as fit."""
        size = self.link.tuple_words(self.parameters) * self.link.width // 8
        data = memoryview(_resized(words, size).reshape(-1))
        step = size * (self.link.payload // self.link.tuple_words(self.parameters))
        return [data[at : at + step] for at in range(0, len(data), step)]

    def _results(self, payloads: list[bytes]) -> np.ndarray:
        """Results of frames' payloads, as rows of 32-bit words."""
        size = self.link.result_words * self.link.width // 8
        data = np.frombuffer(b"".join(payloads), np.uint8)
        if len(data) % size:
            raise DeviceError(f"{self.url}: results must be multiples of {size} bytes, not {len(data)}")
        rows = _resized(data.reshape(-1, size), 4 * word_count(RESULT_LAYOUT))
        return rows.view("<u4").astype(np.uint32, copy=False)

    def _read_counters(self) -> dict[str, int]:
        return {name: self._wire.read(register.value) for name, register in COUNTERS.items()}

    def _account(self) -> dict[str, int]:
        """How far the counters went since they were last read."""
        now = self._read_counters()
        counters = {name: (count - self._counted[name]) % 2**32 for name, count in now.items()}
        self._counted = now
        return counters


def open_link(url: str, parameters: Parameters | None = None, **how: float | bool) -> LinkDevice:
    """Opens the device at a `serial:`, `tcp:` or `xdma:` URL.

    Options of the URL that are not the transport's are `width` (of the link, in bits; 8 unless given) and
    parameters that the device must have, such as `cores=8`. `how` is as of LinkDevice.
    """
    width = split_url(url)[2].get("width", "8")
    if width not in map(str, WIDTHS):
        raise ParameterError(f"{url}: width must be one of {', '.join(map(str, WIDTHS))}, not {width!r}")
    transport, options = open_transport(url)
    options.pop("width", None)
    return LinkDevice(transport, options, parameters, width=int(width), **how)


def _resized(rows: np.ndarray, size: int) -> np.ndarray:
    """Rows as bytes, with zeros behind or bytes cut off so that each has `size`."""
    raw = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<")).view(np.uint8)
    table = np.zeros((len(rows), size), np.uint8)
    shared = min(size, raw.shape[1])
    table[:, :shared] = raw[:, :shared]
    return table
