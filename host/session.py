"""A session: a join on a device, for finite streams (`join`) and continuous ones (`push`, `poll`).

Data flows one way: arrivals -> points and boxes -> the device's codes -> words -> device -> pairs
-> recheck. A handshake chain keeps its tuples until others push them out, so each run ends with a
flush, and a continuous session sends what is still live again with the next rows. Nothing of a run is
handed on before its mark has come, so a run that a device dies in is run again, there or elsewhere.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import pyarrow as pa

from hw.errors import DataError, DeviceError, ParameterError
from hw.socket import Fault, Kind, Tag, tuple_layout
from hw.words import pack, pack_boxes, pack_control, pack_points, unpack_results

from .arrival import Arrivals, Side
from .device import Device, Exchange, LinkLost
from .fit import Codes, Fit
from .output import joined_rows
from .spec import Encoded, JoinSpec
from .tiling import Reach, tiles
from .window import Window

#: Words per exchange while a stream slides through the device.
CHUNK = 1 << 16
#: Horizons cost two words each, so they are not sent more often than this many tuples apart.
HORIZON_DISTANCE = 32
#: How many stretches of time a watched run is cut into.
BUCKETS = 240
#: How often a run is run again when its device was lost.
RETRIES = 3


@dataclass(frozen=True)
class Stats:
    """What a join took. Sums of the parts are the stats of the whole."""

    tuples: int = 0  #: rows that were joined, each counted where it is owned
    pairs: int = 0  #: rows of the result
    cycles: int = 0  #: clock cycles of the device; 0 behind a wire, where its clock is not seen
    comparisons: int = 0  #: by the device's comparators, those with empty places included
    stalls: int = 0  #: cycles in which results held the device up
    tiles: int = 0  #: runs of the device, each ended by a flush

    def __add__(self, other: "Stats") -> "Stats":
        return Stats(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Stats)))


@dataclass(frozen=True)
class JoinResult:
    """Pairs as row numbers in `arrivals.r.rows` and `arrivals.s.rows`, in no particular order."""

    r: np.ndarray
    s: np.ndarray
    stats: Stats
    activity: np.ndarray | None = None  #: [stretch of time, core] pairs found, if watched


class Session:
    """A join on an open device; `spares` are devices like it that take over when it is lost."""

    def __init__(self, device: Device, spec: JoinSpec, spares: Sequence[Device] = ()):
        for spare in spares:
            if spare.parameters != device.parameters:
                raise ParameterError(
                    f"spare device {spare.url}: parameters must be {device.parameters.options()}, "
                    f"not {spare.parameters.options()}"
                )
        self._device = device
        self._spares = list(spares)
        self._spec = spec
        self._fit = Fit(spec.dimensions, device.parameters.dims)
        self._kept: Arrivals | None = None  # rows that later ones may still join
        self._newest: int | None = None
        self._counts = (0, 0)
        self._waiting: list[Arrivals] = []
        self._ready: list[pa.Table] = []
        self.stats = Stats()  #: of everything this session has joined

    def explain(self) -> str:
        """Where each part of the join runs, and why."""
        return f"{self._spec.explain()}\non {self._device.url}:\n{self._fit.explain()}"

    def join(self, arrivals: Arrivals, *, watch: bool = False) -> JoinResult:
        """All pairs among `arrivals` whose later row is owned."""
        encoded = self._spec.encode(arrivals)
        point_place = arrivals.r.place[encoded.points.row]
        box_place = arrivals.s.place[encoded.boxes.row]
        reach = Reach.of(self._spec.dimensions, encoded, point_place, box_place)
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        stats = Stats(tuples=int(arrivals.r.own.sum()) + int(arrivals.s.own.sum()))
        activity = []
        new = (
            int(np.searchsorted(np.maximum.accumulate(own[rows]), True))
            for own, rows in (
                (arrivals.r.own, encoded.points.row),
                (arrivals.s.own, encoded.boxes.row),
            )
        )
        for exchange, unchecked in self._runs(encoded, reach, *new, watch):
            stats += self._account(exchange)
            if watch:
                activity.append(exchange.activity)
            point, box = self._pairs_of(exchange)
            kept = self._spec.refine(arrivals, encoded, point, box, unchecked)
            pairs.append((encoded.points.row[point[kept]], encoded.boxes.row[box[kept]]))
        r, s = (np.concatenate([part[k] for part in pairs] or [np.empty(0, np.int64)]) for k in range(2))
        stats += Stats(pairs=len(r))
        self.stats += stats
        return JoinResult(r, s, stats, np.concatenate(activity) if activity else None)

    def push(self, r: pa.Table, s: pa.Table) -> None:
        """Takes the next rows of both streams; they must come after all earlier ones in arrival order.

        Rows wait for `poll`, but never more of them than the windows hold: then they are joined here. Rows
        that are refused leave the session as it was.
        """
        self._check_columns(r, s)
        self._waiting.append(self._after_all_before(self._spec.arrange(r, s)))
        waiting = sum(len(arrivals.r.time) + len(arrivals.s.time) for arrivals in self._waiting)
        live = len(self._kept.r.time) + len(self._kept.s.time) if self._kept else 0
        if waiting >= max(live, self._device.parameters.capacity):
            self._advance()

    def _check_columns(self, r: pa.Table, s: pa.Table) -> None:
        """Refuses rows with other columns than the join was planned for."""
        for side, table, schema in (("r", r, self._spec.r_schema), ("s", s, self._spec.s_schema)):
            if [(field.name, field.type) for field in table.schema] != [(f.name, f.type) for f in schema]:
                raise DataError(
                    f"pushed rows of {side} must have the columns that the join was planned for "
                    f"({_columns(schema)}), not {_columns(table.schema)}"
                )

    def poll(self) -> pa.Table:
        """The joined rows of everything pushed so far that have not been returned before."""
        self._advance()
        ready, self._ready = self._ready, []
        if not ready:
            return joined_rows(self._spec.r_schema.empty_table(), self._spec.s_schema.empty_table())
        return pa.concat_tables(ready)

    def _advance(self) -> None:
        """Joins the waiting rows with each other and with what is still live, and keeps what stays live."""
        if not self._waiting:
            return
        parts = [self._kept, *self._waiting] if self._kept else self._waiting
        arrivals = _chain(parts)
        result = self.join(arrivals)
        self._waiting = []
        if len(result.r):
            r_rows, s_rows = (pa.array(rows) for rows in (result.r, result.s))
            self._ready.append(joined_rows(arrivals.r.rows.take(r_rows), arrivals.s.rows.take(s_rows)))
        self._kept = _still_live(arrivals, self._spec.window)

    def _after_all_before(self, new: Arrivals) -> Arrivals:
        """The new rows with their numbers in the whole streams, if they do come after all earlier rows."""
        times = np.concatenate([new.r.time, new.s.time])
        if not len(times):
            return new
        # The windows of rows depend on the order of rows of equal time, those of time do not.
        by_rows = self._spec.window.kind == "rows"
        if self._newest is not None and not times.min() >= self._newest + by_rows:
            raise DataError(
                f"pushed rows must have times {'after' if by_rows else 'at or after'} that of the newest row "
                f"before them ({self._newest}), not {times.min()}"
            )
        self._newest = int(times.max())
        return self._numbered(new)

    def _numbered(self, new: Arrivals) -> Arrivals:
        """The new rows with their numbers in the whole streams."""
        counts = self._counts
        self._counts = counts[0] + len(new.r.time), counts[1] + len(new.s.time)
        return Arrivals(
            replace(new.r, index=new.r.index + counts[0], before=new.r.before + counts[1]),
            replace(new.s, index=new.s.index + counts[1], before=new.s.before + counts[0]),
        )

    def _runs(
        self, encoded: Encoded, reach: Reach, new_point: int, new_box: int, watch: bool
    ) -> Iterator[tuple[Exchange, frozenset[int]]]:
        """Runs the device; yields what comes out, and the dimensions it leaves to the recheck.

        `new_point` and `new_box` are the first of the owned ones; older ones need not meet each other.
        """
        if not reach.candidates:
            return
        parameters = self._device.parameters
        live = reach.live()
        if live <= parameters.capacity:
            yield from self._slide(encoded, reach, parameters.capacity - live, watch)
            return
        for tile in tiles(reach, parameters.capacity, new_point, new_box):
            points = [codes[tile.points] for codes in encoded.points.codes]
            lo, hi = (
                [codes[tile.boxes] for codes in bound] for bound in (encoded.boxes.lo, encoded.boxes.hi)
            )
            codes = self._fit.narrow(points, lo, hi)
            words = self._words(codes, tile.points.start, tile.boxes.start)
            order = words if tile.loaded == "points" else words[::-1]
            for exchange in self._run(np.concatenate([*order, self._end()]), watch, len(order[1])):
                yield exchange, codes.unchecked

    def _slide(self, encoded: Encoded, reach: Reach, spare: int, watch: bool):
        """Both streams go through the device once, in arrival order."""
        codes = self._fit.narrow(encoded.points.codes, encoded.boxes.lo, encoded.boxes.hi)
        points, boxes = self._words(codes, 0, 0)
        box_place = reach.box_place[codes.sent]
        merged = np.empty((len(points) + len(boxes), points.shape[1]), np.uint32)
        point_at = np.arange(len(points)) + np.searchsorted(box_place, reach.point_place)
        box_at = np.arange(len(boxes)) + np.searchsorted(reach.point_place, box_place)
        merged[point_at], merged[box_at] = points, boxes
        if spare >= HORIZON_DISTANCE:
            merged = self._with_horizons(merged, codes, reach, point_at, box_at, spare)
        merged = np.concatenate([merged, self._end()])
        for exchange in self._run(merged, watch, len(merged)):
            yield exchange, codes.unchecked

    def _with_horizons(self, merged, codes: Codes, reach: Reach, point_at, box_at, spare: int) -> np.ndarray:
        """Tells the device, every `spare` tuples, which are the oldest that later ones may meet.

        With `spare` places more than the windows need, whatever leaves until the next horizon lies
        before this one. With fewer spare places than tuples between horizons that cannot be promised.
        """
        at = np.arange(0, len(merged), spare)
        next_point = np.searchsorted(point_at, at)
        next_box = np.searchsorted(box_at, at)
        numbers = np.flatnonzero(codes.sent)
        first = np.append(reach.first[codes.sent], len(point_at))
        first_box = np.searchsorted(reach.last[codes.sent], np.arange(len(point_at)), "right")
        first_box = np.append(numbers, len(codes.sent))[np.append(first_box, len(box_at))]
        layout = tuple_layout(self._device.parameters.dims)
        tokens = [
            pack(layout, {"kind": kind.value, "id": oldest}, len(at))
            for kind, oldest in (
                (Kind.HORIZON_R, first[next_box]),
                (Kind.HORIZON_S, first_box[next_point]),
            )
        ]
        return np.insert(merged, np.repeat(at, 2), np.stack(tokens, 1).reshape(-1, merged.shape[1]), 0)

    def _words(self, codes: Codes, first_point: int, first_box: int) -> tuple[np.ndarray, np.ndarray]:
        """Points and boxes as words; their ids are their numbers."""
        dims = self._device.parameters.dims
        points = np.arange(first_point, first_point + len(codes.points[0]))
        boxes = first_box + np.flatnonzero(codes.sent)
        lo, hi = ([bound[codes.sent] for bound in bounds] for bounds in (codes.lo, codes.hi))
        return pack_points(dims, points, codes.points), pack_boxes(dims, boxes, lo, hi)

    def _end(self) -> np.ndarray:
        """The words after which everything has come out, and the device is empty."""
        dims = self._device.parameters.dims
        return np.concatenate([pack_control(dims, Kind.FLUSH), pack_control(dims, Kind.MARK)])

    def _run(self, words: np.ndarray, watch: bool, count: int) -> list[Exchange]:
        """Sends words that end with a mark, once more if the device is lost; returns what came back."""
        parameters = self._device.parameters
        expected = (count + parameters.capacity) * (parameters.segment // parameters.lanes)
        bucket = -(-expected // BUCKETS) if watch else None
        left = RETRIES
        while True:
            try:
                return [
                    self._device.exchange(
                        words[start : start + CHUNK], marks=int(start + CHUNK >= len(words)), bucket=bucket
                    )
                    for start in range(0, len(words), CHUNK)
                ]
            except LinkLost as lost:
                if not left:
                    raise
                left -= 1
                self._replace(lost)

    def _replace(self, lost: LinkLost) -> None:
        """Makes the device ready for another try, or takes the next spare that can be."""
        for device in (self._device, *self._spares):
            try:
                device.restart()
            except DeviceError:
                continue
            if device is not self._device:
                self._spares.remove(device)
                self._device = device
            return
        raise lost

    def _account(self, exchange: Exchange) -> Stats:
        """What an exchange took; a device that lost a live tuple is not to be trusted."""
        took = exchange.counters
        if took["live_evictions"]:
            raise DeviceError(
                f"{self._device.url}: {took['live_evictions']} tuples left their window while others could "
                "still meet them; accepted: 0"
            )
        parameters = self._device.parameters
        return Stats(
            cycles=exchange.cycles,
            comparisons=took["steps"] * parameters.cores * parameters.lanes,
            stalls=took["stalls"],
            tiles=exchange.marks,
        )

    def _pairs_of(self, exchange: Exchange) -> tuple[np.ndarray, np.ndarray]:
        """The pairs of an exchange, as numbers of points and boxes."""
        results = unpack_results(exchange.results)
        wrong = np.flatnonzero(results.tag == Tag.ERROR.value)
        if len(wrong):
            fault, value = int(results.fault[wrong[0]]), int(results.value[wrong[0]])
            raise DeviceError(f"{self._device.url}: the device reports {Fault(fault).name}, value {value}")
        pairs = results.tag == Tag.PAIR.value
        return results.r_id[pairs].astype(np.int64), results.s_id[pairs].astype(np.int64)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _chain(parts: list[Arrivals]) -> Arrivals:
    """Arrivals that came one after another, as one."""
    return Arrivals(
        *(
            Side(
                pa.concat_tables([side.rows for side in sides]),
                *(
                    np.concatenate([getattr(side, name) for side in sides])
                    for name in ("time", "index", "before", "own")
                ),
            )
            for sides in ([part.r for part in parts], [part.s for part in parts])
        )
    )


def _still_live(arrivals: Arrivals, window: Window) -> Arrivals:
    """The rows that rows yet to come may join, which are owned no more."""
    newest = max((int(side.time[-1]) for side in (arrivals.r, arrivals.s) if len(side.time)), default=0)
    sides = []
    for side, size in ((arrivals.r, window.r), (arrivals.s, window.s)):
        if window.kind == "rows":
            first = max(0, len(side.time) - size)
        else:
            first = int(np.searchsorted(side.time, max(newest - size, np.iinfo(np.int64).min)))
        live = slice(first, None)
        time, index, before = (getattr(side, name)[live] for name in ("time", "index", "before"))
        sides.append(Side(side.rows.slice(first), time, index, before, np.zeros(len(time), bool)))
    return Arrivals(*sides)
