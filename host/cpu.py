"""A session on the CPU: what `Session` is on a device, with the CPU engine in its place.

Rows are joined as they are pushed; `poll` hands over what was found. With `lateness`, rows need not
come in order, see `ContinuousSession`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrival import Arrivals, Side
from .choice import checked_structure
from .columns import Layout
from .compiled import checked_threads, spread
from .continuous import ContinuousSession
from .engine import Batch, Engine
from .output import joined_rows
from .plan import taken
from .session import JoinResult, Stats
from .spec import Encoded, JoinSpec
from .window import EARLIEST

#: Rows of a finite join that go through subwindows at a time, where a structure for them was asked for.
BATCH = 4096


class CpuSession(ContinuousSession):
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
        super().__init__(spec, lateness)
        self._layout = Layout.of(spec.dimensions)
        self._structure, self._threads = checked_structure(structure), checked_threads(threads)
        self._engine = self._new_engine()

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
            sides = (
                pc.take(rows, pa.array(of), boundscheck=False) for rows, of in ((r_rows, r), (s_rows, s))
            )
            return joined_rows(*sides)

        parts = self._pairs(arrivals, gather)
        table = pa.concat_tables(parts or [gather(*np.empty((2, 0), np.int64))])
        self._counted(arrivals, table.num_rows)
        return table

    def _pairs(self, arrivals: Arrivals, use: Callable) -> list:
        """What `use` makes of all pairs, part by part, as rows of R and of S."""
        encoded = self._spec.encode(arrivals, threads=self._threads)
        plain = self._spec.decided and bool(arrivals.r.own.all() and arrivals.s.own.all())

        def used(r: np.ndarray, s: np.ndarray, _: int):
            if not plain:
                kept = self._spec.refine(arrivals, encoded, r, s)
                r, s = encoded.points.row[r[kept]], encoded.boxes.row[s[kept]]
            return use(r, s)

        return self._run(self._batches(arrivals, encoded, plain, self._threads), True, used)

    def _counted(self, arrivals: Arrivals, pairs: int) -> Stats:
        """Adds a finite join to the statistics."""
        stats = Stats(tuples=int(arrivals.r.own.sum()) + int(arrivals.s.own.sum()), pairs=pairs)
        self.stats += stats
        return stats

    def count(self, arrivals: Arrivals) -> int:
        """How many pairs `join` gives; they are listed only where codes alone do not decide."""
        if not (self._spec.decided and arrivals.r.own.all() and arrivals.s.own.all()):
            return self.join(arrivals).stats.pairs
        encoded = self._spec.encode(arrivals, threads=self._threads)
        batches = self._batches(arrivals, encoded, True, self._threads)
        pairs = sum(self._run(batches, False, lambda r, s, count: count))
        self._counted(arrivals, pairs)
        return pairs

    def _batches(
        self, arrivals: Arrivals, encoded: Encoded, plain: bool, threads: int = 1
    ) -> tuple[Batch, Batch]:
        """Points and boxes for the engine: numbered by row if `plain`, else by place in `encoded`."""
        points, boxes = encoded.points, encoded.boxes
        by_time = self._spec.window.kind == "time"

        def batch(stack: Callable, codes: Sequence, row: np.ndarray, side: Side) -> Batch:
            numbers = (row if plain else np.arange(len(row))).astype(np.uint32)
            age = side.time if by_time else side.index
            return Batch(stack(*codes), numbers, 0, *taken([side.place, age], row))

        sides = (
            (self._layout.points, [points.codes], points.row, arrivals.r),
            (self._layout.boxes, [boxes.lo, boxes.hi], boxes.row, arrivals.s),
        )
        r, s = spread(batch, sides, threads)
        return r, s

    def _run(self, batches: tuple[Batch, Batch], pairs: bool, use: Callable) -> list:
        """Joins finite batches: as a whole, or through subwindows where their structure was asked for."""
        self._engine = self._new_engine()
        if self._structure in ("auto", "nested"):
            return self._engine.join(*batches, pairs, use)
        found = []
        counts, newest = [0, 0], EARLIEST
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
        r, s = (max(int(end) - size, EARLIEST) for end, size in zip(ends, (window.r, window.s)))
        return r, s

    # Continuous streams

    def _met(self, new: Arrivals, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        points, boxes = self._batches(new, encoded, plain=True)
        bases = [int(side.index[0]) if len(side.index) else 0 for side in (new.r, new.s)]
        most = self._spec.disjuncts
        numbers = (encoded.boxes.row * most + encoded.boxes.disjunct).astype(np.uint32)
        points = replace(points, base=bases[0])
        boxes = replace(boxes, base=bases[1] * most, numbers=numbers)
        newest = self._newest if self._lateness is None or self._newest is None else self._watermark
        limits = self._limits(EARLIEST if newest is None else newest, self._counts)
        found = self._engine.process(points, boxes, limits)
        r, s = (np.concatenate([part[k] for part in found] or [np.empty(0, np.int64)]) for k in range(2))
        return r, s

    def _kept_from(self) -> tuple[int, int]:
        r, s = self._engine.rings
        return (
            self._counts[0] if r.first is None else r.first,
            self._counts[1] if s.first is None else s.first // self._spec.disjuncts,
        )

    # Telling

    def explain(self) -> str:
        """Where each part of the join runs, and why; how many rows came too late, where that is allowed."""
        lines = [self._spec.explain(), f"on the CPU, {self._threads} threads:", self._engine.explain()]
        if self._lateness is not None:
            lines.append("  behind the watermark: {:,} rows of R and {:,} of S, dropped".format(*self.late))
        return "\n".join(lines)

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
