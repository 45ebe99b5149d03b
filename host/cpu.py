"""A session on the CPU: what `Session` is on a device, with the CPU engine in its place.

Rows are joined as they are pushed; `poll` hands over what was found. With `lateness`, rows need not
come in order: the watermark follows the newest time at that distance, rows behind it are dropped and
counted, and windows of rows hold rows back until the watermark has passed them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrival import Arrivals, Side
from .choice import checked_structure
from .columns import Layout
from .compiled import checked_threads
from .engine import Batch, Engine
from .output import joined_rows
from .plan import taken
from .row_store import RowStore
from .session import JoinResult, Session, Stats
from .spec import Encoded, JoinSpec
from .window import parse_window

#: Rows of a finite join that go through subwindows at a time, where a structure for them was asked for.
BATCH = 4096
_LOWEST = np.iinfo(np.int64).min
#: Columns that rows are kept with, to encode them again.
_TIME, _BEFORE = "touchline time", "touchline before"


class CpuSession(Session):
    """A join on the CPU.

    `structure` is one of `choice.STRUCTURES`; `threads` how many cores are used, all of them unless given;
    `lateness` how far rows may be behind the newest ("10 seconds", or a number where times are), by default
    they must come in order.
    """

    def __init__(
        self,
        spec: JoinSpec,
        structure: str = "auto",
        threads: int | None = None,
        lateness: str | int | None = None,
    ):
        self._spec = spec
        self._layout = Layout.of(spec.dimensions)
        self._structure, self._threads = checked_structure(structure), checked_threads(threads)
        self._lateness = None if lateness is None else parse_window(lateness, spec.time_type).r
        self._engine = self._new_engine()
        self._newest: int | None = None
        self._counts = (0, 0)
        self._rows = tuple(RowStore() for _ in range(2))
        self._held = [spec.r_schema.empty_table(), spec.s_schema.empty_table()]
        self._ready: list[pa.Table] = []
        self.late = (0, 0)  #: rows of R and S that came behind the watermark
        self.stats = Stats()  #: of everything this session has joined

    def _new_engine(self) -> Engine:
        window = self._spec.window
        return Engine(self._layout, (window.r, window.s), self._structure, self._threads)

    # Finite streams

    def join(self, arrivals: Arrivals, *, watch: bool = False) -> JoinResult:
        """All pairs among `arrivals` whose later row is owned. There is nothing to `watch`."""
        parts = self._pairs(arrivals, lambda r, s: (r, s))
        r, s = (np.concatenate([part[k] for part in parts] or [np.empty(0, np.int64)]) for k in range(2))
        return JoinResult(r, s, self._counted(arrivals, len(r)))

    def rows(self, arrivals: Arrivals, r_columns: Sequence[str], s_columns: Sequence[str]) -> pa.Table:
        """The joined rows of what `join` gives, with these columns of R and of S."""
        r_rows, s_rows = arrivals.r.rows.select(r_columns), arrivals.s.rows.select(s_columns)

        def gather(r: np.ndarray, s: np.ndarray) -> pa.Table:
            return joined_rows(r_rows.take(pa.array(r)), s_rows.take(pa.array(s)))

        parts = self._pairs(arrivals, gather)
        table = pa.concat_tables(parts or [gather(*np.empty((2, 0), np.int64))])
        self._counted(arrivals, table.num_rows)
        return table

    def _pairs(self, arrivals: Arrivals, use: Callable) -> list:
        """What `use` makes of all pairs, part by part, as rows of R and of S."""
        encoded = self._spec.encode(arrivals)
        plain = self._spec.decided and bool(arrivals.r.own.all() and arrivals.s.own.all())

        def used(r: np.ndarray, s: np.ndarray, _: int):
            if not plain:
                kept = self._spec.refine(arrivals, encoded, r, s)
                r, s = encoded.points.row[r[kept]], encoded.boxes.row[s[kept]]
            return use(r, s)

        return self._run(self._batches(arrivals, encoded, plain), True, used)

    def _counted(self, arrivals: Arrivals, pairs: int) -> Stats:
        """Adds a finite join to the statistics."""
        stats = Stats(tuples=int(arrivals.r.own.sum()) + int(arrivals.s.own.sum()), pairs=pairs)
        self.stats += stats
        return stats

    def count(self, arrivals: Arrivals) -> int:
        """How many pairs `join` gives; they are listed only where codes alone do not decide."""
        if not (self._spec.decided and arrivals.r.own.all() and arrivals.s.own.all()):
            return self.join(arrivals).stats.pairs
        batches = self._batches(arrivals, self._spec.encode(arrivals), plain=True)
        pairs = sum(self._run(batches, False, lambda r, s, count: count))
        self._counted(arrivals, pairs)
        return pairs

    def _batches(self, arrivals: Arrivals, encoded: Encoded, plain: bool) -> tuple[Batch, Batch]:
        """Points and boxes for the engine: numbered by row if `plain`, else by place in `encoded`."""
        points, boxes = encoded.points, encoded.boxes
        by_time = self._spec.window.kind == "time"
        sides = []
        for columns, row, side in (
            (self._layout.points(points.codes), points.row, arrivals.r),
            (self._layout.boxes(boxes.lo, boxes.hi), boxes.row, arrivals.s),
        ):
            numbers = (row if plain else np.arange(len(row))).astype(np.uint32)
            age = side.time if by_time else side.index
            sides.append(Batch(columns, numbers, 0, *taken([side.place, age], row)))
        return sides[0], sides[1]

    def _run(self, batches: tuple[Batch, Batch], pairs: bool, use: Callable) -> list:
        """Joins finite batches: as a whole, or through subwindows where their structure was asked for."""
        self._engine = self._new_engine()
        if self._structure in ("auto", "nested"):
            return self._engine.join(*batches, pairs, use)
        found = []
        counts, newest = [0, 0], _LOWEST
        places = [batch.place for batch in batches if len(batch)]
        first, last = min((p[0] for p in places), default=0), max((p[-1] for p in places), default=-1)
        for start in range(int(first), int(last) + 1, BATCH):
            new = [_between(batch, start, start + BATCH) for batch in batches]
            for k, batch in enumerate(new):
                if len(batch):
                    counts[k], newest = int(batch.age[-1]) + 1, max(newest, int(batch.age[-1]))
            parts = self._engine.process(*new, self._limits(newest, counts), pairs)
            found += [use(*part) for part in parts]
        return found

    def _limits(self, newest: int, counts: Sequence[int]) -> tuple[int, int]:
        """The ages below which no row of R and of S is joined by later ones.

        Later rows have times from `newest` on, and come after `counts` rows.
        """
        window = self._spec.window
        ends = (newest, newest) if window.kind == "time" else counts
        r, s = (max(int(end) - size, _LOWEST) for end, size in zip(ends, (window.r, window.s)))
        return r, s

    # Continuous streams

    def push(self, r: pa.Table, s: pa.Table) -> None:
        """Joins the next rows of both streams. Rows that are refused leave the session as it was."""
        self._check_columns(r, s)
        if self._lateness is None:
            self._advance(self._after_all_before(self._spec.arrange(r, s)))
            return
        times = [self._spec.times(table, side) for side, table in zip("rs", (r, s))]
        tables, late = [r, s], [0, 0]
        if self._newest is not None:
            for k, table in enumerate((r, s)):
                tables[k] = table.filter(pc.fill_null(pc.greater_equal(times[k], self._watermark), True))
                late[k] = table.num_rows - tables[k].num_rows
        seen = [pc.max(time).as_py() for time in times]
        self._newest = max((time for time in (self._newest, *seen) if time is not None), default=None)
        self.late = self.late[0] + late[0], self.late[1] + late[1]
        if self._spec.window.kind == "time":
            self._advance(self._numbered(self._spec.arrange(*tables)))
            return
        self._held = [pa.concat_tables(both) for both in zip(self._held, tables)]
        if self._newest is not None:
            self._release(self._watermark)

    def finish(self) -> None:
        """Joins the rows that are still held back: no more will come."""
        self._release(None)

    def poll(self) -> pa.Table:
        """The joined rows of everything pushed so far that have not been returned before."""
        ready, self._ready = self._ready, []
        if not ready:
            return joined_rows(self._spec.r_schema.empty_table(), self._spec.s_schema.empty_table())
        return pa.concat_tables(ready)

    @property
    def _watermark(self) -> int:
        """The time from which on rows are in time."""
        return max(self._newest - self._lateness, _LOWEST)

    def _release(self, until: int | None) -> None:
        """Joins the rows that were held back and are before `until`: nothing can come between them."""
        known = list(self._held)
        if until is not None:
            for k, side in enumerate("rs"):
                ready = pc.fill_null(pc.less(self._spec.times(known[k], side), until), True)
                self._held[k], known[k] = known[k].filter(pc.invert(ready)), known[k].filter(ready)
        else:
            self._held = [table.slice(0, 0) for table in known]
        self._advance(self._numbered(self._spec.arrange(*known)))

    def _advance(self, new: Arrivals) -> None:
        """Joins new rows with each other and with what is kept, and keeps what later ones may join."""
        encoded = self._spec.encode(new)
        points, boxes = self._batches(new, encoded, plain=True)
        bases = [int(side.index[0]) if len(side.index) else 0 for side in (new.r, new.s)]
        # A box is numbered by its row and by which of the row's boxes it is.
        most = self._spec.disjuncts
        numbers = (encoded.boxes.row * most + encoded.boxes.disjunct).astype(np.uint32)
        points = replace(points, base=bases[0])
        boxes = replace(boxes, base=bases[1] * most, numbers=numbers)
        for store, side in zip(self._rows, (new.r, new.s)):
            store.append(side.rows if self._spec.decided else _with_order(side))
        newest = self._newest if self._lateness is None or self._newest is None else self._watermark
        limits = self._limits(_LOWEST if newest is None else newest, self._counts)
        found = self._engine.process(points, boxes, limits)
        r, s = (np.concatenate([part[k] for part in found] or [np.empty(0, np.int64)]) for k in range(2))
        if len(r) and not self._spec.decided:
            r, s = self._refined(r, s)
        if len(r):
            tables = (store.take(rows) for store, rows in zip(self._rows, (r, s)))
            names = self._spec.r_schema.names, self._spec.s_schema.names
            self._ready.append(joined_rows(*(table.select(name) for table, name in zip(tables, names))))
        for store, ring, count, boxes_per_row in zip(self._rows, self._engine.rings, self._counts, (1, most)):
            store.drop(count if ring.first is None else ring.first // boxes_per_row)
        self.stats += Stats(tuples=len(new.r.time) + len(new.s.time), pairs=len(r))

    def _refined(self, r: np.ndarray, box: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of the pairs that are results, as rows of R and of S."""
        most = self._spec.disjuncts
        sides, places = [], []
        for store, rows in zip(self._rows, (r, box // most)):
            distinct, place = np.unique(rows, return_inverse=True)
            table = store.take(distinct)
            time, before = (table[name].to_numpy() for name in (_TIME, _BEFORE))
            sides.append(Side(table, time, distinct, before, np.ones(len(distinct), bool)))
            places.append(place)
        arrivals = Arrivals(*sides)
        encoded = self._spec.encode(arrivals)
        boxes = encoded.boxes.row * most + encoded.boxes.disjunct
        kept = self._spec.refine(
            arrivals, encoded, places[0], np.searchsorted(boxes, places[1] * most + box % most)
        )
        return r[kept], box[kept] // most

    # Telling

    def explain(self) -> str:
        """Where each part of the join runs, and why."""
        return f"{self._spec.explain()}\non the CPU, {self._threads} threads:\n{self._engine.explain()}"

    @property
    def memory(self) -> tuple[int, int]:
        """Bytes that the windows take, and bytes of the codes and numbers in them."""
        return self._engine.bytes, self._engine.encoded_bytes


def open_cpu(url: str, spec: JoinSpec, threads: int | None = None) -> CpuSession:
    """A session for a URL such as `cpu:auto` or `cpu:wib_tree`, which names the structure."""
    return CpuSession(spec, url.removeprefix("cpu:"), threads)


def _between(batch: Batch, start: int, end: int) -> Batch:
    """The rows of a batch with places from `start` to before `end`."""
    first, last = np.searchsorted(batch.place, (start, end))
    part = slice(first, last)
    columns = np.ascontiguousarray(batch.columns[:, part])
    return Batch(columns, batch.numbers[part], batch.base, batch.place[part], batch.age[part])


def _with_order(side: Side) -> pa.Table:
    """Rows beside what is needed to encode them again."""
    return side.rows.append_column(_TIME, pa.array(side.time)).append_column(_BEFORE, pa.array(side.before))
