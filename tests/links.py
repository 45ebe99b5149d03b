"""What tests of the link share: lines with faults, and batches whose pairs are known."""

import numpy as np

from host.link import LinkDevice
from host.transport import MemoryTransport
from hw.errors import DeviceError
from hw.parameters import Parameters
from hw.socket import Kind, Tag
from hw.words import pack_boxes, pack_control, pack_points, unpack_results
from sim.board import Steps

PARAMETERS = Parameters(cores=4, segment=16, lanes=16)


class Faults:
    """Damages each byte with a chance of `rate`: flips a bit, drops it, doubles it, or puts one before it.

    Units of more than a byte are dropped, doubled or put in whole, as on a link that moves words.
    """

    def __init__(self, rng: np.random.Generator, rate: float, kinds: tuple[str, ...], unit: int = 1):
        self._rng, self._rate, self._kinds, self._unit = rng, rate, kinds, unit
        self.count = 0

    def __call__(self, data: bytes) -> bytes:
        unit = self._unit
        hit = np.flatnonzero(self._rng.random(len(data) // unit) < self._rate) * unit
        self.count += len(hit)
        damaged = bytearray(data)
        for at in hit[::-1].tolist():
            match self._rng.choice(self._kinds):
                case "flip":
                    damaged[at + int(self._rng.integers(unit))] ^= 1 << int(self._rng.integers(8))
                case "drop":
                    del damaged[at : at + unit]
                case "double":
                    damaged[at:at] = damaged[at : at + unit]
                case "insert":
                    damaged[at:at] = self._rng.bytes(unit)
        return bytes(damaged)


class Line(MemoryTransport):
    """A line to a model or board: with faults, and things that happen when so many bytes have been sent.

    The line takes at most `chunk` bytes at once, and hands over at most `sip`. With `tick`, so much time
    passes in a step of the board.
    """

    def __init__(
        self,
        board: Steps,
        faults=lambda data: data,
        events=(),
        chunk: int | None = None,
        tick: float | None = None,
        sip: int | None = None,
    ):
        self.board, self.faults, self.chunk, self.tick, self.sip = board, faults, chunk, tick, sip
        self.events = sorted(events, key=lambda event: event[0])
        self.sent = self.received = self.opened = 0
        self.closed_for = 0  # how many times opening fails
        self.unread = b""
        self.most_unread = 0
        super().__init__(self._step, "line:")

    def _open(self) -> None:
        if self.closed_for:
            self.closed_for -= 1
            raise OSError("no such line")
        self.opened += 1
        self._under_way = b""
        self.unread = b""
        super()._open()

    def _step(self, data: bytes) -> bytes:
        self._under_way += self.faults(data)
        taken, out = self.board.step(self._under_way)
        self._under_way = self._under_way[taken:]
        self.received += len(out)
        return self.faults(out)

    def send(self, data: bytes) -> int:
        data = data[: self.chunk]
        self.sent += len(data)
        if self.events and self.sent > self.events[0][0]:
            self.events.pop(0)[1](self)
        return super().send(data)

    def receive(self, timeout: float, room: bool = False) -> bytes:
        self.unread += super().receive(min(timeout, self.tick or timeout), room)
        self.most_unread = max(self.most_unread, len(self.unread))
        data = self.unread[: self.sip]
        self.unread = self.unread[len(data) :]
        return data


def cut(times: int):
    """An event: the line breaks, and can be opened again after so many times."""

    def event(line: Line) -> None:
        line.closed_for = times
        raise DeviceError("line: cut")

    return event


def reset(line: Line) -> None:
    """An event: somebody resets the device."""
    line.board.reset()


def dies(line: Line) -> None:
    """An event: the device falls silent for good."""
    line.faults = lambda data: b""


def batch(rng, count: int, parameters: Parameters = PARAMETERS) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """`count` R tuples and as many S tuples, flush and mark; and the pairs among them."""
    dims = parameters.dims
    x, a = rng.integers(0, 20, (2, count)).astype(np.uint64)
    low, high = np.zeros(count, np.uint64), np.full(count, 2**32 - 1, np.uint64)
    r = pack_points(dims, np.arange(count), [x, low, low, low])
    s = pack_boxes(dims, np.arange(count), [a, low, low, low], [a + np.uint64(1), high, high, high])
    words = np.empty((2 * count, r.shape[1]), np.uint32)
    words[::2], words[1::2] = r, s
    inside = (x[:, None] >= a) & (x[:, None] <= a + np.uint64(1))
    pairs = list(zip(*(part.tolist() for part in np.nonzero(inside))))
    return np.concatenate([words, *(pack_control(dims, kind, 7) for kind in (Kind.FLUSH, Kind.MARK))]), pairs


def pairs_of(exchange) -> list[tuple[int, int]]:
    results = unpack_results(exchange.results)
    assert results.tag[-1] == Tag.MARK.value and results.mark_id[-1] == 7
    found = results.tag == Tag.PAIR.value
    return sorted(zip(results.r_id[found].tolist(), results.s_id[found].tolist()))


def run(line: Line, rng, batches: int = 2, count: int = 50, width: int = 8) -> LinkDevice:
    """Opens the device and runs batches on it; all pairs must come, each once."""
    device = LinkDevice(line, width=width)
    for _ in range(batches):
        words, expected = batch(rng, count, device.parameters)
        exchange = device.exchange(words, marks=1)
        assert pairs_of(exchange) == expected
        assert exchange.counters["tuples"] == 2 * count and exchange.counters["pairs"] == len(expected)
        assert (exchange.marks, exchange.cycles) == (1, 0)
    return device
