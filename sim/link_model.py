"""The device's end of the wire in Python: what a board does, frame for frame, without its clock.

::

    bytes in --> frames --> ring --> joiner --> results --> ring --> bytes out
                   |                                         |
                   +---- numbers, credits, registers --------+

The joiner compares every tuple with the last `capacity` of the other stream, in NumPy.
"""

import hashlib
import struct
import zlib
from collections import deque

import numpy as np

from hw.frame import (
    COUNTERS,
    CRC_BYTES,
    IDENTITY_WORD,
    MAGIC,
    NUMBERS,
    VERSION,
    FrameKind,
    Link,
    Register,
    identity,
)
from hw.parameters import Parameters
from hw.socket import COUNTERS_LAYOUT, RESULT_LAYOUT, Kind, Tag, tuple_layout
from hw.words import pack, unpack, word_count

_HEADER = struct.Struct("<HBBBBHH")


class Joiner:
    """A joiner with count windows, one tuple after the other."""

    def __init__(self, parameters: Parameters):
        self._dims = parameters.dims
        self._capacity = parameters.capacity
        self._layout = tuple_layout(parameters.dims)
        self.reset()

    def reset(self) -> None:
        """Empties windows and counters."""
        self.counters = dict.fromkeys(COUNTERS_LAYOUT.members, 0)
        self._windows = self._empty()

    def run(self, words: np.ndarray) -> np.ndarray:
        """What comes out for these words."""
        kinds, ids = (unpack(self._layout, words, path).tolist() for path in ("kind", "id"))
        points = np.stack([self._field(words, f"point.d{k}") for k in range(len(self._dims))], 1)
        boxes = np.stack(
            [
                self._field(words, f"box.d{k}.{bound}")
                if bound in dim.bounds
                else np.zeros_like(points[:, 0])
                for k, dim in enumerate(self._dims)
                for bound in ("lo", "hi")
            ],
            1,
        )
        tags, r_ids, s_ids = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        for kind, number, point, box in zip(kinds, ids, points, boxes):
            if kind == Kind.FLUSH.value:
                self._windows = self._empty()
            elif kind == Kind.MARK.value:
                # A mark's id lies where a pair has that of R.
                for part, value in ((tags, Tag.MARK.value), (r_ids, number), (s_ids, 0)):
                    part.append(np.array([value]))
            elif kind in (Kind.R.value, Kind.S.value):
                matches = self._meet(kind, number, point, box)
                own = np.full(len(matches), number)
                tags.append(np.full(len(matches), Tag.PAIR.value))
                r_ids.append(own if kind == Kind.R.value else matches)
                s_ids.append(matches if kind == Kind.R.value else own)
        tag, r_id, s_id = map(np.concatenate, (tags, r_ids, s_ids))
        return pack(RESULT_LAYOUT, {"tag": tag, "body.pair.r_id": r_id, "body.pair.s_id": s_id}, len(tag))

    def _meet(self, kind: int, number: int, point: np.ndarray, box: np.ndarray) -> np.ndarray:
        """The ids in the other stream's window that this tuple joins; then it is in its own."""
        numbers, codes = self._windows[1 - kind]
        points, boxes = (point[None, :], codes) if kind == Kind.R.value else (codes, box[None, :])
        inside = np.ones(len(numbers), bool)
        for k, dim in enumerate(self._dims):
            inside &= dim.contains(points[:, k], {"lo": boxes[:, 2 * k], "hi": boxes[:, 2 * k + 1]})
        own, own_codes = self._windows[kind]
        added = point if kind == Kind.R.value else box
        self._windows[kind] = (
            np.append(own, number)[-self._capacity :],
            np.concatenate([own_codes, added[None, :]])[-self._capacity :],
        )
        matches = numbers[inside]
        self.counters["tuples"] += 1
        self.counters["pairs"] += len(matches)
        return matches

    def _field(self, words: np.ndarray, path: str) -> np.ndarray:
        return unpack(self._layout, words, f"dims.{path}").astype(np.uint64)

    def _empty(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Both windows: ids, and points of R or boxes of S."""
        widths = (len(self._dims), 2 * len(self._dims))
        return [(np.empty(0, np.int64), np.empty((0, width), np.uint64)) for width in widths]


class LinkModel:
    """A device: `step` takes bytes and returns bytes. `pace` is how many frames its joiner takes per step."""

    def __init__(self, parameters: Parameters, link: Link, pace: int | None = None):
        self._link = link
        self._pace = pace
        self._joiner = Joiner(parameters)
        self._word = link.width // 8
        self._tuple_bytes = link.tuple_words(parameters) * self._word
        self._tuple_words = word_count(tuple_layout(parameters.dims))
        self._text = identity(parameters, link).encode()
        self._damaged = 0
        self._incoming = bytearray()
        self.reset()

    def reset(self, session: int = 0) -> None:
        """What the RESET frame and the board's reset button do."""
        self._session = session
        self._joiner.reset()
        self._expected = self._oldest = self._allowed = 0
        self._ring: deque[bytes] = deque()  # payloads for the joiner
        self._results = b""  # not yet in a frame
        self._kept: list[bytes] = []  # payloads from `oldest` on
        self._shown = 0  # of those kept, how many were sent
        self._answer = False
        self._told_full = False  # the last header granted nothing

    def step(self, data: bytes) -> tuple[int, bytes]:
        """Takes all the bytes; returns their number, and the bytes that leave meanwhile."""
        self._incoming += data
        out = []
        while (frame := self._find()) is not None:
            out.append(self._take(*frame))
            self._join(None if self._pace is None else 0)
            out.append(self._send())
        self._join(self._pace)
        out.append(self._send())
        return len(data), b"".join(out)

    def _find(self) -> tuple | None:
        """The next undamaged frame; what has been looked at is gone, as in the deframer."""
        buffer, head, tail = self._incoming, self._link.header_words, self._link.crc_words
        while True:
            while buffer and not self._may_begin():
                del buffer[:1]
            if len(buffer) < head * self._word:
                return None
            _, kind, *numbers, length, session = _HEADER.unpack_from(buffer)
            if length > self._link.payload:
                del buffer[: head * self._word]
                self._damage()
                continue
            end = (head + length) * self._word
            if len(buffer) < end + tail * self._word:
                return None
            check = int.from_bytes(buffer[end : end + CRC_BYTES], "little")
            good = zlib.crc32(buffer[:end]) == check
            payload = bytes(buffer[head * self._word : end])
            del buffer[: end + tail * self._word]
            if good:
                return kind, *numbers, session, payload
            self._damage()

    def _may_begin(self) -> bool:
        known = min(2, len(self._incoming))
        return self._incoming[:known] == MAGIC.to_bytes(2, "little")[:known]

    def _damage(self) -> None:
        self._damaged += 1
        self._answer = True

    def _take(
        self, kind: int, number: int, acknowledge: int, credit: int, session: int, payload: bytes
    ) -> bytes:
        """Acts on a frame from the host; returns an answer that does not wait."""
        if kind == FrameKind.RESET.value:
            self.reset(session)
            return self._frame(FrameKind.READY, 0)
        current = session == self._session != 0
        if current:
            self._release(acknowledge, credit)
        if kind == FrameKind.READ.value:
            value = self._register(number).to_bytes(4, "little")
            return self._frame(FrameKind.VALUE, number, value.ljust(self._link.words(4) * self._word, b"\0"))
        if not current:
            self._answer = True
            return b""
        if kind == FrameKind.RESEND.value:
            self._shown = 0
        if kind == FrameKind.DATA.value and number == self._expected and len(self._ring) < self._link.frames:
            self._ring.append(payload)
            self._expected = (self._expected + 1) % NUMBERS
        self._answer |= kind in (FrameKind.DATA.value, FrameKind.POLL.value, FrameKind.RESEND.value)
        return b""

    def _release(self, acknowledge: int, credit: int) -> None:
        """Frees what the host has taken, and notes how much more it will take."""
        released = (acknowledge - self._oldest) % NUMBERS
        if released <= self._shown:
            del self._kept[:released]
            self._shown -= released
            self._oldest = acknowledge
            self._allowed = (acknowledge + credit) % NUMBERS

    def _join(self, pace: int | None) -> None:
        """Lets the joiner take frames, unless results wait for room."""
        count = len(self._ring) if pace is None else pace
        size = self._link.result_words * self._word
        while count and self._ring and not self._results:
            raw = np.frombuffer(self._ring.popleft(), np.uint8)
            # What is left at a frame's end is no tuple.
            raw = raw[: len(raw) // self._tuple_bytes * self._tuple_bytes].reshape(-1, self._tuple_bytes)
            words = np.zeros((len(raw), 4 * self._tuple_words), np.uint8)
            shared = min(words.shape[1], raw.shape[1])
            words[:, :shared] = raw[:, :shared]
            results = self._joiner.run(words.view("<u4")).view(np.uint8)
            table = np.zeros((len(results), size), np.uint8)
            shared = min(size, results.shape[1])
            table[:, :shared] = results[:, :shared]
            self._results += table.tobytes()
            count -= 1
            self._close_frames()

    def _close_frames(self) -> None:
        step = self._link.payload // self._link.result_words * self._link.result_words * self._word
        while self._results and len(self._kept) < self._link.frames:
            self._kept.append(self._results[:step])
            self._results = self._results[step:]

    def _send(self) -> bytes:
        """The frames that may leave now: results, or else an answer."""
        out = []
        self._close_frames()
        self._answer |= self._told_full and len(self._ring) < self._link.frames
        while self._shown < len(self._kept):
            granted = (self._allowed - self._oldest - self._shown) % NUMBERS
            if not 0 < granted < 128:
                break
            self._shown += 1
            out.append(
                self._frame(FrameKind.DATA, self._oldest + self._shown - 1, self._kept[self._shown - 1])
            )
            self._answer = False
        if self._answer:
            self._answer = False
            out.append(self._frame(FrameKind.STATUS, self._oldest + self._shown))
        return b"".join(out)

    def _frame(self, kind: FrameKind, number: int, payload: bytes = b"") -> bytes:
        credit = self._link.frames - len(self._ring)
        self._told_full = not credit
        size = len(payload) // self._word
        header = (MAGIC, kind.value, number % NUMBERS, self._expected, credit, size, self._session)
        head = _HEADER.pack(*header).ljust(self._link.header_words * self._word, b"\0")
        check = zlib.crc32(head + payload).to_bytes(CRC_BYTES, "little")
        return head + payload + check.ljust(self._link.crc_words * self._word, b"\0")

    def _register(self, number: int) -> int:
        counters = {COUNTERS[name].value: count for name, count in self._joiner.counters.items()}
        fixed = {
            Register.IDENTITY.value: IDENTITY_WORD,
            Register.VERSION.value: VERSION,
            Register.LENGTH.value: len(self._text),
            Register.DAMAGED.value: self._damaged,
        }
        for first, content in (
            (Register.DIGEST, hashlib.sha256(self._text).digest()),
            (Register.TEXT, self._text),
        ):
            for at in range(0, len(content), 4):
                fixed[first.value + at // 4] = int.from_bytes(content[at : at + 4], "little")
        return (fixed | counters).get(number, 0)
