"""PanJoin's manager: one join whose subwindows lie on any number of BI-Sort devices.

::

    rows --> [ collect ] --> [ preprocess: windows, commands ] --> [ send ] --> devices
                                        ^                                          |
    pairs <-- [ rows behind ranges, windows checked ] <-- [ feedback: results, status ]

The five steps of the paper. Each stream's subwindows are a chain in order of time, dealt out to the devices
in turn. A batch probes all devices that hold tuples of the other stream and is inserted on one of them. The
manager keeps a mirror of every subwindow, so that ranges become rows and the windows, by count or by time,
are checked exactly; a subwindow whose tuples have all left the window is expired whole.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from hw.bisort import MOST_WITH_RANGES
from hw.errors import DataError, DeviceError, ParameterError
from hw.record import key_bound
from hw.socket import ID_WIDTH, RESULT_LAYOUT, Fault, Kind, Tag
from hw.subwindow_command import Command, encode
from hw.words import pack_boxes, pack_control, pack_points, unpack, unpack_results

from .device import Device
from .window import Window

SIDES = ("r", "s")
_LOWEST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Tuples:
    """Tuples of one stream, as arrays: R's have `lo` alone, their points; S's have both bounds."""

    time: np.ndarray  #: int64
    lo: Sequence[np.ndarray]  #: codes, one array for each dimension of the devices
    hi: Sequence[np.ndarray] = ()

    def take(self, places: np.ndarray) -> "Tuples":
        """Those at these places."""
        lo, hi = ([codes[places] for codes in bound] for bound in (self.lo, self.hi))
        return Tuples(self.time[places], lo, hi)


@dataclass
class Stream:
    """What the manager knows of one stream: all tuples that may still be met, and those that wait."""

    time: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    lo: list[np.ndarray] = field(default_factory=list)
    hi: list[np.ndarray] = field(default_factory=list)
    row: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  #: as numbered by `push`
    before: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  #: tuples of the other stream
    first: int = 0  #: the number, in order of arrival, of the first of these
    sent: int = 0  #: the number of the first that waits
    rows: int = 0  #: pushed so far
    late: int = 0  #: of those, dropped because they came behind the watermark
    subwindows: deque["Subwindow"] = field(default_factory=deque)
    created: int = 0

    @property
    def end(self) -> int:
        """The number of the next tuple."""
        return self.first + len(self.time)

    @property
    def waiting(self) -> np.ndarray:
        """The times of those that wait."""
        return self.time[self.sent - self.first :]


@dataclass
class Subwindow:
    """A subwindow: the tuples from `start` to before `end`, of which the device has sorted `merged`."""

    device: int
    start: int
    end: int
    merged: int = 0
    order: np.ndarray | None = None  #: the mirror of the main array, as numbers


class Manager:
    """A join of two streams over `devices`, which are alike and are this manager's alone.

    The devices decide the dimensions that they have, the manager the `window`. Tuples are sent when `batch`
    of a stream have been collected (as many as the devices take, unless given), when those of `span` time
    have, or when `poll` asks. With `lateness`, tuples may come as much time behind the newest; later ones are
    dropped and counted, and windows of rows hold tuples back until none can come before them; without it
    they refuse tuples that are not newer than all pushed before. With `ranges` the devices answer with
    ranges, and the rows are found here. After a failure of an exchange or an answer it refuses to go on.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        window: Window,
        *,
        batch: int | None = None,
        span: int | None = None,
        lateness: int = 0,
        ranges: bool = False,
    ):
        parameters = _checked(devices, ranges)
        if batch is not None and not 1 <= batch <= parameters.buffer:
            raise ParameterError(
                f"batch must be from 1 to {parameters.buffer}, the devices' buffer, not {batch!r}"
            )
        for name, value in (("span", span), ("lateness", lateness)):
            if value is not None and value < 0:
                raise ParameterError(f"{name} must not be negative, not {value!r}")
        self._devices = devices
        self._parameters = parameters
        self._sizes = dict(zip(SIDES, (window.r, window.s)))
        self._by_rows = window.kind == "rows"
        self._batch = batch or parameters.buffer
        self._span = span
        self._lateness = lateness
        self._ranges = ranges
        self._newest = _LOWEST
        self._held: list[tuple[str, Tuples, np.ndarray]] = []
        self._streams = {side: Stream() for side in SIDES}
        self._found: list[tuple[np.ndarray, np.ndarray]] = []
        self._failure: BaseException | None = None
        self._threads = ThreadPoolExecutor(len(devices))
        for device in devices:
            device.restart()

    def __enter__(self) -> "Manager":
        return self

    def __exit__(self, *exception) -> None:
        self._threads.shutdown()

    @property
    def late(self) -> tuple[int, int]:
        """How many tuples of R and S came behind the watermark and were dropped."""
        return self._streams["r"].late, self._streams["s"].late

    @property
    def subwindows(self) -> dict[str, list[int]]:
        """The device of each subwindow of R and of S, the oldest first."""
        return {side: [sub.device for sub in stream.subwindows] for side, stream in self._streams.items()}

    # Collecting

    def push(self, r: Tuples | None = None, s: Tuples | None = None) -> None:
        """Takes tuples of both streams; those of equal time come R first, then in the order given.

        Tuples of a wrong shape or out of order are refused, and leave the manager as it was.
        """
        self._check_working()
        pushed = {side: given for side, given in zip(SIDES, (r, s)) if given is not None}
        for side, given in pushed.items():
            _check_tuples(side, given, len(self._parameters.dims))
        if self._by_rows and not self._lateness:
            self._check_newer([given.time for given in pushed.values() if len(given.time)])
        watermark = self._watermark()
        for side, given in pushed.items():
            stream = self._streams[side]
            rows = stream.rows + np.arange(len(given.time))
            stream.rows += len(rows)
            in_time = np.flatnonzero(given.time >= watermark)
            stream.late += len(rows) - len(in_time)
            self._held.append((side, given.take(in_time), rows[in_time]))
        times = [given.time.max() for _, given, _ in self._held if len(given.time)]
        self._newest = max([self._newest, *map(int, times)])
        # Windows of rows depend on the order, so rows wait until nothing can come before them.
        self._arrive(self._watermark() if self._by_rows and self._lateness else None)
        self._send_full()

    def poll(self, *, last: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """All pairs that have not been returned before, as numbers of R and S tuples in the order of `push`.

        With `last` nothing more will come, so that nothing is held back.
        """
        self._check_working()
        if last:
            self._arrive(None)
        self._process()
        found, self._found = self._found, []
        return tuple(np.concatenate([pair[k] for pair in found] or [np.empty(0, np.int64)]) for k in range(2))

    def _check_working(self) -> None:
        """Refuses to go on after a failure: what the devices hold is no longer known."""
        if self._failure is not None:
            raise DeviceError(
                "the manager cannot go on after a failure, make a new one: "
                f"{type(self._failure).__name__}: {self._failure}"
            ) from self._failure

    def _check_newer(self, times: list[np.ndarray]) -> None:
        """Refuses tuples whose place is before, or could be before, that of tuples that have arrived."""
        oldest = min((int(part.min()) for part in times), default=None)
        pushed = any(stream.rows for stream in self._streams.values())
        if pushed and oldest is not None and oldest <= self._newest:
            raise DataError(
                f"pushed tuples must have times after that of the newest before them ({self._newest}) where "
                f"windows are of rows and lateness is 0, not {oldest}"
            )

    def _watermark(self) -> int:
        return max(_LOWEST, self._newest - self._lateness) if self._newest > _LOWEST else _LOWEST

    def _arrive(self, watermark: int | None) -> None:
        """Puts held tuples, or those before the watermark, into their streams in order of arrival."""
        ready = []
        for side, given, rows in self._held:
            places = np.arange(len(rows)) if watermark is None else np.flatnonzero(given.time < watermark)
            ready.append((side, given.take(places), rows[places]))
        left = [
            (side, given.take(places), rows[places])
            for side, given, rows in self._held
            if watermark is not None and len(places := np.flatnonzero(given.time >= watermark))
        ]
        self._held = left
        arriving = {}
        for side in SIDES:
            parts = [(given, rows) for own, given, rows in ready if own == side and len(rows)]
            if not parts:
                arriving[side] = None
                continue
            joined = Tuples(
                np.concatenate([given.time for given, _ in parts]),
                *(
                    [np.concatenate(codes) for codes in zip(*(getattr(given, bound) for given, _ in parts))]
                    for bound in ("lo", "hi")
                ),
            )
            order = np.argsort(joined.time, kind="stable")
            arriving[side] = joined.take(order), np.concatenate([rows for _, rows in parts])[order]
        times = {side: part[0].time if part else np.empty(0, np.int64) for side, part in arriving.items()}
        ends = {side: self._streams[side].end for side in SIDES}
        before = {
            "r": ends["s"] + np.searchsorted(times["s"], times["r"], "left"),
            "s": ends["r"] + np.searchsorted(times["r"], times["s"], "right"),
        }
        for side, part in arriving.items():
            if part is None:
                continue
            given, rows = part
            stream = self._streams[side]
            stream.time = np.concatenate([stream.time, given.time])
            stream.row = np.concatenate([stream.row, rows])
            stream.before = np.concatenate([stream.before, before[side]])
            for kept, bound in ((stream.lo, given.lo), (stream.hi, given.hi)):
                kept[:] = [np.concatenate(parts) for parts in zip(kept, bound)] if kept else list(bound)

    def _send_full(self) -> None:
        collected = [stream.waiting for stream in self._streams.values()]
        oldest = min((int(times.min()) for times in collected if len(times)), default=self._newest)
        full = max(map(len, collected)) >= self._batch
        if full or (self._span is not None and self._newest - oldest >= self._span):
            self._process()

    # Preprocessing and sending

    def _process(self) -> None:
        """Sends what was collected, in batches of the stream whose oldest tuple is older."""
        while True:
            waiting = {side: stream.waiting for side, stream in self._streams.items() if len(stream.waiting)}
            if not waiting:
                break
            side = min(waiting, key=lambda side: waiting[side][0])
            stream = self._streams[side]
            try:
                self._send(side, stream.sent, min(stream.end, stream.sent + self._batch))
                self._expire()
            except BaseException as failure:
                self._failure = failure
                raise

    def _send(self, side: str, start: int, end: int) -> None:
        """One batch: it probes every device with tuples of the other stream, and goes into the newest
        subwindow of its own."""
        stream, other = self._streams[side], self._streams["s" if side == "r" else "r"]
        creates = not stream.subwindows or (
            stream.subwindows[-1].end - stream.subwindows[-1].start >= self._parameters.segment
        )
        if creates:
            device = stream.created % len(self._devices)
            if sum(sub.device == device for sub in stream.subwindows) > self._parameters.cores:
                raise DataError(
                    f"the window of {side} needs more than {len(stream.subwindows)} subwindows of "
                    f"{self._parameters.segment} tuples, which is what {len(self._devices)} devices hold"
                )
            stream.subwindows.append(Subwindow(device, start, start))
            stream.created += 1
        target = stream.subwindows[-1]
        probed = {sub.device for sub in other.subwindows}
        messages = {}
        for number in sorted(probed | {target.device}):
            own = number == target.device
            flags = {"insert": own, "probe": number in probed, "ranges": self._ranges}
            commands = [encode(Command.TUPLES, side, **flags)]
            if own and creates:
                commands.append(encode(Command.CREATE, side))
            messages[number] = [
                *(self._token(Kind.INSTRUCTION, bits) for bits in commands),
                self._words(side, start, end),
                self._token(Kind.INSTRUCTION, encode(Command.STATUS, side)),
                self._token(Kind.MARK),
            ]
        answers = self._threads.map(
            lambda item: self._devices[item[0]].exchange(np.concatenate(item[1]), marks=1).results,
            messages.items(),
        )
        results = dict(zip(messages, answers))
        stream.sent = target.end = end
        for number, words in results.items():
            self._feedback(number, side, words)
        self._settle(side, target, results[target.device])

    def _token(self, kind: Kind, id: int = 0) -> np.ndarray:
        return pack_control(self._parameters.dims, kind, id)

    def _words(self, side: str, start: int, end: int) -> np.ndarray:
        stream = self._streams[side]
        part = slice(start - stream.first, end - stream.first)
        ids = np.arange(start, end) % (1 << ID_WIDTH)
        lo, hi = ([codes[part] for codes in bound] for bound in (stream.lo, stream.hi))
        dims = self._parameters.dims
        return pack_points(dims, ids, lo) if side == "r" else pack_boxes(dims, ids, lo, hi)

    # Feedback

    def _feedback(self, number: int, side: str, words: np.ndarray) -> None:
        """The pairs that a device found for a batch of `side`."""
        results = unpack_results(words)
        wrong = np.flatnonzero(results.tag == Tag.ERROR.value)
        if len(wrong):
            fault, value = Fault(int(results.fault[wrong[0]])), int(results.value[wrong[0]])
            raise DeviceError(f"{self._devices[number].url}: the device reports {fault.name}, value {value}")
        pairs = results.tag == Tag.PAIR.value
        r, s = (self._numbers(name, ids[pairs]) for name, ids in zip(SIDES, (results.r_id, results.s_id)))
        if self._ranges:
            more = self._expanded(number, side, words[results.tag == Tag.RANGE.value])
            r, s = (np.concatenate(both) for both in zip((r, s), more))
            inside = self._meets(r, s)
            r, s = r[inside], s[inside]
        kept = self._in_window(r, s)
        rows = (
            self._streams[name].row[numbers[kept] - self._streams[name].first]
            for name, numbers in zip(SIDES, (r, s))
        )
        self._found.append(tuple(rows))

    def _numbers(self, side: str, ids: np.ndarray) -> np.ndarray:
        """The numbers of tuples with these ids, which are the same modulo 2**32."""
        first = self._streams[side].first
        return first + (ids.astype(np.int64) - first) % (1 << ID_WIDTH)

    def _expanded(self, number: int, side: str, words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pairs behind the ranges that a device found, as numbers of R and of S."""
        other = "s" if side == "r" else "r"
        subwindows = [sub for sub in self._streams[other].subwindows if sub.device == number]
        which, id, start, end, negated = (
            unpack(RESULT_LAYOUT, words, path).astype(np.int64)
            for path in ("query", *(f"body.range.{name}" for name in ("id", "start", "end", "not")))
        )
        probes = self._numbers(side, id)
        parts = [(np.empty(0, np.int64),) * 2]
        for place, sub in enumerate(subwindows):
            mirror = self._mirror(other, sub)
            of_this = which == place
            inside = (
                [(start, end)] if not negated.any() else [(np.zeros_like(start), start), (end, len(mirror))]
            )
            for low, high in inside:
                length = np.where(of_this, high - low, 0)
                offset = np.repeat(np.cumsum(length) - length, length)
                at = np.repeat(low, length) + np.arange(len(offset)) - offset
                parts.append((np.repeat(probes, length), mirror[at]))
        found = tuple(np.concatenate([part[k] for part in parts]) for k in range(2))
        return found if side == "r" else found[::-1]

    def _mirror(self, side: str, sub: Subwindow) -> np.ndarray:
        """The main array of a subwindow: the tuples that were merged, sorted as the device sorts them."""
        if sub.order is None or len(sub.order) != sub.merged:
            stream, dim = self._streams[side], self._parameters.dims[0]
            keys = stream.hi[0] if side == "s" and key_bound(dim) == "hi" else stream.lo[0]
            at = sub.start - stream.first
            sub.order = sub.start + np.argsort(keys[at : at + sub.merged], kind="stable")
        return sub.order

    def _settle(self, side: str, target: Subwindow, words: np.ndarray) -> None:
        """Takes the device's status: how much of the newest subwindow is in its main array."""
        status = words[unpack(RESULT_LAYOUT, words, "tag") == Tag.STATUS.value]
        newest, waiting = (
            int(unpack(RESULT_LAYOUT, status, f"body.status.{name}")[0]) for name in ("newest", "waiting")
        )
        if newest + waiting != target.end - target.start:
            raise DeviceError(
                f"{self._devices[target.device].url}: the newest subwindow of {side} has {newest} tuples and "
                f"{waiting} wait; accepted: {target.end - target.start} in all"
            )
        # With a new subwindow, all that waited went into the one before it.
        for sub in self._streams[side].subwindows:
            if sub.device == target.device:
                sub.merged = sub.end - sub.start
        target.merged = newest

    def _meets(self, r: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Which pairs lie in all dimensions: ranges are exact in the first at best."""
        points, boxes = (self._streams[side] for side in SIDES)
        keep = np.ones(len(r), bool)
        for k, dim in enumerate(self._parameters.dims):
            box = {"lo": boxes.lo[k][s - boxes.first], "hi": boxes.hi[k][s - boxes.first]}
            keep &= dim.contains(points.lo[k][r - points.first], box)
        return keep

    def _in_window(self, r: np.ndarray, s: np.ndarray) -> np.ndarray:
        """Which pairs are within both windows."""
        points, boxes = (self._streams[side] for side in SIDES)
        r_at, s_at = r - points.first, s - boxes.first
        if self._by_rows:
            return (r >= boxes.before[s_at] - self._sizes["r"]) & (
                s >= points.before[r_at] - self._sizes["s"]
            )
        r_time, s_time = points.time[r_at], boxes.time[s_at]
        # Times may be more than an int64 apart; the later less the earlier is right modulo 2**64.
        later = r_time >= s_time
        apart = np.where(later, r_time - s_time, s_time - r_time).astype(np.uint64)
        return np.where(later, apart <= self._sizes["s"], apart <= self._sizes["r"])

    def _expire(self) -> None:
        """Expires the subwindows that no later tuple can meet, and forgets their tuples."""
        for side, stream in self._streams.items():
            other = self._streams["s" if side == "r" else "r"]
            # What comes later, or waits, meets nothing before this.
            if self._by_rows:
                met = other.before[other.sent - other.first :].min(initial=stream.end)
            else:
                met = other.waiting.min(initial=self._watermark())
            live = int(met) - self._sizes[side]
            expired = []
            # The newest stays: it is what tuples go into.
            while len(stream.subwindows) > 1:
                sub = stream.subwindows[0]
                times = stream.time[sub.start - stream.first : sub.end - stream.first]
                if (sub.end > live) if self._by_rows else (times.max() >= live):
                    break
                expired.append(stream.subwindows.popleft().device)
            for number in expired:
                bits = encode(Command.EXPIRE, side)
                words = [self._token(Kind.INSTRUCTION, bits), self._token(Kind.MARK)]
                results = self._devices[number].exchange(np.concatenate(words), marks=1).results
                self._feedback(number, side, results)
            gone = (stream.subwindows[0].start if stream.subwindows else stream.sent) - stream.first
            if gone:
                stream.first += gone
                stream.time, stream.row, stream.before = (
                    values[gone:] for values in (stream.time, stream.row, stream.before)
                )
                for bound in (stream.lo, stream.hi):
                    bound[:] = [codes[gone:] for codes in bound]


def _check_tuples(side: str, given: Tuples, dims: int) -> None:
    """Refuses tuples of `side` that are not as devices with `dims` dimensions take them."""
    if given.time.dtype != np.int64:
        raise DataError(f"pushed tuples of {side}: time must be int64, not {given.time.dtype}")
    for name, bound, count in (("lo", given.lo, dims), ("hi", given.hi, dims if side == "s" else 0)):
        if len(bound) != count:
            why = "one for each dimension of the devices" if count else "because points have lo alone"
            raise DataError(
                f"pushed tuples of {side}: {name} must be {count} arrays, {why}, not {len(bound)}"
            )
        for k, codes in enumerate(bound):
            if len(codes) != len(given.time):
                raise DataError(
                    f"pushed tuples of {side}: {name}[{k}] must be as long as time ({len(given.time)}), "
                    f"not {len(codes)}"
                )


def _checked(devices: Sequence[Device], ranges: bool):
    """The parameters of devices that a manager can use."""
    if not devices:
        raise ParameterError("a manager needs at least one device, not 0")
    parameters = devices[0].parameters
    for device in devices:
        if device.parameters.architecture != "bisort" or device.parameters != parameters:
            raise ParameterError(
                f"device {device.url}: a manager needs bisort devices that are alike, such as "
                f"{parameters.options()}, not {device.parameters.architecture} "
                f"with {device.parameters.options()}"
            )
    if ranges and parameters.cores >= MOST_WITH_RANGES:
        raise ParameterError(
            f"ranges need devices with at most {MOST_WITH_RANGES - 1} cores, not {parameters.cores}"
        )
    return parameters
