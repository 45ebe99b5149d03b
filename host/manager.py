"""PanJoin's manager: one join whose subwindows lie on any number of BI-Sort devices.

::

    rows --> [ collect ] --> [ preprocess: windows, commands ] --> [ send ] --> devices
                                        ^                                          |
    pairs <-- [ rows behind ranges, windows checked ] <-- [ feedback: results, status ]

The five steps of the paper. Each stream's subwindows are a chain in order of time, dealt out to the devices
in turn. A batch probes all devices that hold tuples of the other stream and is inserted on one of them. The
manager keeps a mirror of every subwindow, so that ranges become rows and the windows, by count or by time,
are checked exactly; a subwindow whose tuples have all left the window is expired whole.

Tuples that come so late that they belong to an older subwindow are kept in a small buffer of that one, here,
where they are searched one by one. So the times of a subwindow stay close together, and devices with none
that a batch can reach are not probed.
"""

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import numpy as np

from hw.bisort import MOST_WITH_RANGES
from hw.errors import DataError, DeviceError, ParameterError
from hw.record import key_bound
from hw.socket import ID_WIDTH, RESULT_LAYOUT, Fault, Kind, Tag
from hw.subwindow_command import Command, encode
from hw.words import Results, pack_boxes, pack_control, pack_points, unpack, unpack_results

from .device import Device
from .window import EARLIEST, Window

SIDES = ("r", "s")


@dataclass(frozen=True)
class Tuples:
    """Tuples of one stream, as arrays: R's have `lo` alone, their points; S's have both bounds."""

    time: np.ndarray  #: int64
    lo: Sequence[np.ndarray]  #: codes, one array for each dimension of the devices
    hi: Sequence[np.ndarray] = ()
    row: np.ndarray | None = None  #: what pairs name them by: unless given, their numbers in order of `push`
    #: For windows of rows, their numbers in their stream, and how many of the other came before them: unless
    #: given, those that were pushed are all.
    index: np.ndarray | None = None
    before: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.time)

    def take(self, places: np.ndarray | slice) -> "Tuples":
        """Those at these places."""
        lo, hi = ([codes[places] for codes in bound] for bound in (self.lo, self.hi))
        rest = (None if own is None else own[places] for own in (self.row, self.index, self.before))
        return Tuples(self.time[places], lo, hi, *rest)

    @classmethod
    def chained(cls, parts: Sequence["Tuples"]) -> "Tuples":
        """All tuples of some parts, at least one."""
        if len(parts) == 1:
            return parts[0]
        lo, hi = (
            [np.concatenate(codes) for codes in zip(*(getattr(part, bound) for part in parts))]
            for bound in ("lo", "hi")
        )
        columns = [[getattr(part, name) for part in parts] for name in ("time", "row", "index", "before")]
        time, *rest = (None if column[0] is None else np.concatenate(column) for column in columns)
        return cls(time, lo, hi, *rest)


@dataclass
class Stream:
    """What the manager knows of one stream: all tuples that may still be met, and those that wait."""

    tuples: Tuples  #: in order of arrival
    aside: Tuples  #: late ones, in the buffers of their subwindows
    owner: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))  #: those subwindows' numbers
    belated: list[tuple[Tuples, np.ndarray]] = field(default_factory=list)  #: such as have not probed yet
    first: int = 0  #: the number, in order of arrival, of the first of `tuples`
    sent: int = 0  #: the number of the first that waits
    rows: int = 0  #: pushed so far
    late: int = 0  #: of those, dropped because they came behind the watermark
    index: int = 0  #: that of the next tuple, unless it is given
    subwindows: deque["Subwindow"] = field(default_factory=deque)
    created: int = 0

    @property
    def end(self) -> int:
        """The number of the next tuple."""
        return self.first + len(self.tuples)

    @property
    def waiting(self) -> Tuples:
        """Those that wait."""
        return self.tuples.take(slice(self.sent - self.first, None))


@dataclass
class Subwindow:
    """A subwindow: the tuples from `start` to before `end`, of which the device has sorted `merged`."""

    number: int
    device: int
    start: int
    end: int
    oldest: int  #: time; of those in its late buffer nothing is told
    newest: int
    merged: int = 0
    order: np.ndarray | None = None  #: the mirror of the main array, as numbers


class Manager:
    """A join of two streams over `devices`, which are alike and are this manager's alone.

    The devices decide the dimensions that they have, the manager the `window`. Tuples are sent when `batch`
    of a stream have been collected (as many as the devices take, unless given), when those of `span` time
    have, or when `poll` asks. With `lateness`, tuples may come as much time behind the newest; later ones are
    dropped and counted, and windows of rows hold tuples back until none can come before them; without it
    they refuse tuples that are not newer than all pushed before. Up to `late_buffer` tuples that belong to
    an older subwindow are kept aside for each. With `ranges` the devices answer with ranges, and the rows
    are found here. After a failure of an exchange or an answer it refuses to go on.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        window: Window,
        *,
        batch: int | None = None,
        span: int | None = None,
        lateness: int = 0,
        late_buffer: int = 64,
        ranges: bool = False,
    ):
        parameters = _checked(devices, ranges)
        if batch is not None and not 1 <= batch <= parameters.buffer:
            raise ParameterError(
                f"batch must be from 1 to {parameters.buffer}, the devices' buffer, not {batch!r}"
            )
        for name, value in (("span", span), ("lateness", lateness), ("late_buffer", late_buffer)):
            if value is not None and value < 0:
                raise ParameterError(f"{name} must not be negative, not {value!r}")
        self._devices = devices
        self._parameters = parameters
        self._sizes = dict(zip(SIDES, (window.r, window.s)))
        self._by_rows = window.kind == "rows"
        self._batch = batch or parameters.buffer
        self._span = span
        self._lateness = lateness
        self._late_buffer = late_buffer
        self._ranges = ranges
        self._newest = EARLIEST
        self._held: list[tuple[str, Tuples]] = []
        none = {side: _none(side, len(parameters.dims)) for side in SIDES}
        self._streams = {side: Stream(none[side], none[side]) for side in SIDES}
        self._found: list[tuple[np.ndarray, np.ndarray]] = []
        self._failure: BaseException | None = None
        self.probes = 0  #: tuples that were sent to a device to probe
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
    def aside(self) -> tuple[int, int]:
        """How many tuples of R and S are in late buffers."""
        return len(self._streams["r"].aside), len(self._streams["s"].aside)

    @property
    def subwindows(self) -> dict[str, list[int]]:
        """The device of each subwindow of R and of S, the oldest first."""
        return {side: [sub.device for sub in stream.subwindows] for side, stream in self._streams.items()}

    def first_row(self, side: str, default: int) -> int:
        """The lowest `row` of a tuple that may still be part of a pair, `default` if there is none."""
        stream = self._streams[side]
        held = [given for of, given in self._held if of == side] + [given for given, _ in stream.belated]
        rows = [part.row for part in (stream.tuples, stream.aside, *held) if len(part)]
        return min((int(part.min()) for part in rows), default=default)

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
            self._check_newer([given.time for given in pushed.values() if len(given)])
        watermark = self._watermark()
        for side, given in pushed.items():
            stream = self._streams[side]
            row = stream.rows + np.arange(len(given)) if given.row is None else given.row
            stream.rows += len(given)
            in_time = np.flatnonzero(given.time >= watermark)
            stream.late += len(given) - len(in_time)
            if len(in_time):
                self._held.append((side, replace(given, row=row).take(in_time)))
        self._newest = max([self._newest, *(int(given.time.max()) for _, given in self._held)])
        # Windows of rows depend on the order, so rows wait until nothing can come before them.
        self._arrive(self._watermark() if self._by_rows and self._lateness else None)
        self._send_full()

    def poll(self, *, last: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """All pairs that have not been returned before, as the `row` of R and of S tuples.

        With `last` nothing more will come, so that nothing is held back.
        """
        self._check_working()
        if last:
            self._arrive(None)
        self._process()
        return self.found()

    def found(self) -> tuple[np.ndarray, np.ndarray]:
        """What `poll` returns, but tuples that were collected and not sent wait on."""
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
        return max(EARLIEST, self._newest - self._lateness) if self._newest > EARLIEST else EARLIEST

    def _arrive(self, watermark: int | None) -> None:
        """Puts held tuples, or those before the watermark, into their streams in order of arrival."""
        arriving = {side: [] for side in SIDES}
        left = []
        for side, given in self._held:
            now = np.ones(len(given), bool) if watermark is None else given.time < watermark
            arriving[side].append(given.take(now))
            left.append((side, given.take(~now)))
        self._held = [(side, given) for side, given in left if len(given)]
        ordered = {}
        for side, parts in arriving.items():
            if parts:
                joined = Tuples.chained(parts)
                ordered[side] = joined.take(np.argsort(joined.time, kind="stable"))
        times = {side: ordered[side].time if side in ordered else np.empty(0, np.int64) for side in SIDES}
        ends = {side: self._streams[side].index for side in SIDES}
        for side, given in ordered.items():
            stream, other = self._streams[side], _other(side)
            if given.index is None:
                where = "left" if side == "r" else "right"
                given = replace(
                    given,
                    index=ends[side] + np.arange(len(given)),
                    before=ends[other] + np.searchsorted(times[other], given.time, where),
                )
            stream.index = int(given.index.max(initial=stream.index - 1)) + 1
            owner = self._owners(stream, given.time)
            belated = given.take(owner >= 0)
            if len(belated):
                stream.belated.append((belated, owner[owner >= 0]))
            stream.tuples = Tuples.chained([stream.tuples, given.take(owner < 0)])

    def _owners(self, stream: Stream, times: np.ndarray) -> np.ndarray:
        """For tuples by time, the numbers of subwindows whose late buffers take them; -1 for all others."""
        owner = np.full(len(times), -1)
        closed = list(stream.subwindows)[:-1]
        if self._by_rows or not closed:
            return owner
        # A subwindow ends where the newest of all up to it is.
        place = np.searchsorted(np.maximum.accumulate([sub.newest for sub in closed]), times)
        numbers = np.append([sub.number for sub in closed], -1)[place]
        full = np.isin(stream.owner, numbers)
        kept = np.array([np.count_nonzero(stream.owner[full] == number) for number in numbers], np.int64)
        kept += sum((np.count_nonzero(other == numbers[:, None], axis=1) for _, other in stream.belated), 0)
        rank = np.arange(len(times)) - np.searchsorted(place, place)
        return np.where((numbers >= 0) & (kept + rank < self._late_buffer), numbers, -1)

    def _send_full(self) -> None:
        collected = [stream.waiting.time for stream in self._streams.values()]
        oldest = min((int(times.min()) for times in collected if len(times)), default=self._newest)
        full = max(map(len, collected)) >= self._batch
        if full or (self._span is not None and self._newest - oldest >= self._span):
            self._process()

    # Preprocessing and sending

    def _process(self) -> None:
        """Sends what was collected, in batches of the stream whose oldest tuple is older."""
        try:
            for side, stream in self._streams.items():
                for given, owner in stream.belated:
                    self._probe(side, given, 0)
                    stream.aside = Tuples.chained([stream.aside, given])
                    stream.owner = np.concatenate([stream.owner, owner])
                stream.belated = []
            while True:
                waiting = {
                    side: int(stream.waiting.time[0])
                    for side, stream in self._streams.items()
                    if stream.sent < stream.end
                }
                if not waiting:
                    break
                self._send(min(waiting, key=waiting.get))
                self._expire()
        except BaseException as failure:
            self._failure = failure
            raise

    def _send(self, side: str) -> None:
        """One batch: it probes devices with tuples of the other stream, and goes into its own's newest
        subwindow."""
        stream = self._streams[side]
        start, end = stream.sent, min(stream.end, stream.sent + self._batch)
        batch = stream.tuples.take(slice(start - stream.first, end - stream.first))
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
            time = int(batch.time[0])
            stream.subwindows.append(Subwindow(stream.created, device, start, start, time, time))
            stream.created += 1
        target = stream.subwindows[-1]
        commands = [encode(Command.CREATE, side)] if creates else []
        answer = self._probe(side, batch, start, target.device, commands)
        stream.sent = target.end = end
        target.oldest = min(target.oldest, int(batch.time.min()))
        target.newest = max(target.newest, int(batch.time.max()))
        self._settle(side, target, answer)

    def _probe(
        self, side: str, batch: Tuples, first: int, target: int | None = None, commands: Sequence[int] = ()
    ) -> np.ndarray | None:
        """Sends a batch, whose ids go from `first` on, to all devices that it has to probe, and to `target`,
        which inserts it after some `commands`; returns what that one answers."""
        probed = self._reached(side, batch.time)
        self.probes += len(probed) * len(batch)
        words = self._words(side, batch, first)
        messages = {}
        for number in sorted(probed | ({target} - {None})):
            own = number == target
            flags = {"insert": own, "probe": number in probed, "ranges": self._ranges}
            before = [encode(Command.TUPLES, side, **flags), *(commands if own else ())]
            messages[number] = [
                *(self._token(Kind.INSTRUCTION, bits) for bits in before),
                words,
                self._token(Kind.INSTRUCTION, encode(Command.STATUS, side)),
                self._token(Kind.MARK),
            ]
        answers = self._threads.map(
            lambda item: self._devices[item[0]].exchange(np.concatenate(item[1]), marks=1).results,
            messages.items(),
        )
        results = dict(zip(messages, answers))
        for number, answer in results.items():
            self._feedback(number, side, batch, first, answer)
        aside = self._streams[_other(side)].aside
        if len(aside):
            places = np.divmod(np.arange(len(batch) * len(aside)), len(aside))
            self._keep(side, batch, places[0], aside, places[1], exact=False)
        return results.get(target)

    def _reached(self, side: str, times: np.ndarray) -> set[int]:
        """The devices with subwindows of the other stream that tuples of these times may meet."""
        other = _other(side)
        lowest, highest = int(times.min()) - self._sizes[other], int(times.max()) + self._sizes[side]
        return {
            sub.device
            for sub in self._streams[other].subwindows
            if self._by_rows or (sub.oldest <= highest and sub.newest >= lowest)
        }

    def _token(self, kind: Kind, id: int = 0) -> np.ndarray:
        return pack_control(self._parameters.dims, kind, id)

    def _words(self, side: str, batch: Tuples, first: int) -> np.ndarray:
        ids = np.arange(first, first + len(batch)) % (1 << ID_WIDTH)
        dims = self._parameters.dims
        return pack_points(dims, ids, batch.lo) if side == "r" else pack_boxes(dims, ids, batch.lo, batch.hi)

    # Feedback

    def _checked_results(self, number: int, words: np.ndarray) -> Results:
        """What a device answered, unless it complains."""
        results = unpack_results(words)
        wrong = np.flatnonzero(results.tag == Tag.ERROR.value)
        if len(wrong):
            fault, value = Fault(int(results.fault[wrong[0]])), int(results.value[wrong[0]])
            raise DeviceError(f"{self._devices[number].url}: the device reports {fault.name}, value {value}")
        return results

    def _feedback(self, number: int, side: str, batch: Tuples, first: int, words: np.ndarray) -> None:
        """The pairs that a device found for a batch of `side`, whose ids go from `first` on."""
        results = self._checked_results(number, words)
        other = self._streams[_other(side)]
        pairs = results.tag == Tag.PAIR.value
        ids = results.r_id[pairs], results.s_id[pairs]
        own, met = (_places(*each) for each in zip(ids if side == "r" else ids[::-1], (first, other.first)))
        if self._ranges:
            more = self._expanded(number, side, first, words[results.tag == Tag.RANGE.value])
            own, met = (np.concatenate(both) for both in zip((own, met), more))
        self._keep(side, batch, own, other.tuples, met, exact=not self._ranges)

    def _keep(
        self, side: str, batch: Tuples, own: np.ndarray, others: Tuples, met: np.ndarray, *, exact: bool
    ) -> None:
        """Keeps those of the pairs, places in a batch of `side` and in tuples of the other stream, that are
        within both windows and, unless they are known to be (`exact`), in all dimensions."""
        points, boxes, r, s = (batch, others, own, met) if side == "r" else (others, batch, met, own)
        if not exact:
            inside = self._meets(points, r, boxes, s)
            r, s = r[inside], s[inside]
        kept = self._in_window(points, r, boxes, s)
        self._found.append((points.row[r[kept]], boxes.row[s[kept]]))

    def _expanded(
        self, number: int, side: str, first: int, words: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The pairs behind the ranges that a device found, as places in the batch and in the other stream."""
        other = self._streams[_other(side)]
        subwindows = [sub for sub in other.subwindows if sub.device == number]
        which, id, start, end, negated = (
            unpack(RESULT_LAYOUT, words, path).astype(np.int64)
            for path in ("query", *(f"body.range.{name}" for name in ("id", "start", "end", "not")))
        )
        probes = _places(id, first)
        parts = [(np.empty(0, np.int64),) * 2]
        for place, sub in enumerate(subwindows):
            mirror = self._mirror(_other(side), sub) - other.first
            of_this = which == place
            inside = (
                [(start, end)] if not negated.any() else [(np.zeros_like(start), start), (end, len(mirror))]
            )
            for low, high in inside:
                length = np.where(of_this, high - low, 0)
                offset = np.repeat(np.cumsum(length) - length, length)
                at = np.repeat(low, length) + np.arange(len(offset)) - offset
                parts.append((np.repeat(probes, length), mirror[at]))
        own, met = (np.concatenate([part[k] for part in parts]) for k in range(2))
        return own, met

    def _mirror(self, side: str, sub: Subwindow) -> np.ndarray:
        """The main array of a subwindow: the tuples that were merged, sorted as the device sorts them."""
        if sub.order is None or len(sub.order) != sub.merged:
            stream, dim = self._streams[side], self._parameters.dims[0]
            keys = (stream.tuples.hi if side == "s" and key_bound(dim) == "hi" else stream.tuples.lo)[0]
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

    def _meets(self, points: Tuples, r: np.ndarray, boxes: Tuples, s: np.ndarray) -> np.ndarray:
        """Which pairs of places lie in all dimensions: ranges are exact in the first at best."""
        keep = np.ones(len(r), bool)
        for k, dim in enumerate(self._parameters.dims):
            keep &= dim.contains(points.lo[k][r], {"lo": boxes.lo[k][s], "hi": boxes.hi[k][s]})
        return keep

    def _in_window(self, points: Tuples, r: np.ndarray, boxes: Tuples, s: np.ndarray) -> np.ndarray:
        """Which pairs of places are within both windows."""
        if self._by_rows:
            return (points.index[r] >= boxes.before[s] - self._sizes["r"]) & (
                boxes.index[s] >= points.before[r] - self._sizes["s"]
            )
        r_time, s_time = points.time[r], boxes.time[s]
        # Times may be more than an int64 apart; the later less the earlier is right modulo 2**64.
        later = r_time >= s_time
        apart = np.where(later, r_time - s_time, s_time - r_time).astype(np.uint64)
        return np.where(later, apart <= self._sizes["s"], apart <= self._sizes["r"])

    def _expire(self) -> None:
        """Expires the subwindows that no later tuple can meet, and forgets their tuples."""
        for side, stream in self._streams.items():
            other = self._streams[_other(side)].waiting
            # What comes later, or waits, meets nothing before this.
            if self._by_rows:
                met = other.before.min(initial=stream.index) if len(other) else stream.index
            else:
                met = other.time.min(initial=self._watermark())
            live = int(met) - self._sizes[side]
            expired = []
            # The newest stays: it is what tuples go into.
            while len(stream.subwindows) > 1:
                sub = stream.subwindows[0]
                age = int(stream.tuples.index[sub.end - 1 - stream.first]) if self._by_rows else sub.newest
                if age >= live:
                    break
                expired.append(stream.subwindows.popleft())
            for sub in expired:
                bits = encode(Command.EXPIRE, side)
                words = [self._token(Kind.INSTRUCTION, bits), self._token(Kind.MARK)]
                answer = self._devices[sub.device].exchange(np.concatenate(words), marks=1)
                self._checked_results(sub.device, answer.results)
            if expired:
                kept = stream.owner > expired[-1].number
                stream.aside, stream.owner = stream.aside.take(kept), stream.owner[kept]
            gone = (stream.subwindows[0].start if stream.subwindows else stream.sent) - stream.first
            if gone:
                stream.first += gone
                stream.tuples = stream.tuples.take(slice(gone, None))


def _other(side: str) -> str:
    return "s" if side == "r" else "r"


def _none(side: str, dims: int) -> Tuples:
    """No tuples of `side`."""
    codes, numbers = [np.empty(0, np.uint64)] * dims, np.empty(0, np.int64)
    return Tuples(numbers, codes, codes if side == "s" else (), numbers, numbers, numbers)


def _places(ids: np.ndarray, first: int) -> np.ndarray:
    """How far behind `first` the tuples with these ids are; ids are numbers modulo 2**32."""
    return (ids.astype(np.int64) - first) % (1 << ID_WIDTH)


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
