"""What runs in a Spark worker: the rows of a slice go in, its pairs come out, both as Arrow batches."""

import resource
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from itertools import groupby, pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from host.arrival import Arrivals
from host.pieces import OUTER, Phase, Piece, Pieces
from host.session import Stats
from host.spec import JoinSpec
from hw.errors import DataError

from .joiner import Joiner, Where

#: Rows in a batch that goes back to Spark.
BATCH_ROWS = 50_000
#: Rows that are joined at a time: at first, before it is known how many pairs they have, and at most, unless
#: the windows hold more; those with many pairs are smaller, to the least.
FIRST_PIECE, PIECE, LEAST_PIECE = 1 << 15, 1 << 18, 1 << 10
#: Pairs that a piece may have, as far as those before it tell.
MOST_PAIRS = 1 << 22

#: What a slice reports beside its pairs: `undated` rows have no event time, `halo` rows are sent beside the
#: owned ones, `alone` rows come out without a partner; `reading`, `joining` and `writing` (until Spark has
#: taken the results) are microseconds; `on_cpu` and `fallbacks` count slices that no device joined, and those
#: in which one failed.
SUMS = (
    *("slices", "undated", "halo", "alone", "reading", "joining", "writing", "on_cpu", "fallbacks"),
    *(field.name for field in fields(Stats)),
)
#: What counts as the most of any task: the bytes that a worker has ever held.
MOSTS = ("memory",)
METRICS = (*SUMS, *MOSTS)
#: A list, because beside results, where it is null, it takes the least room.
METRICS_TYPE = pa.list_(pa.int64())


@dataclass(frozen=True)
class Task:
    """Joins slices.

    Takes batches with the columns slice, phase, is_s, t, r, s, sorted by slice, phase and arrival, and yields
    batches with a column for each of `columns`, then `metrics`. `metrics` is null beside a result; one row
    per slice has metrics and nothing else. If not `decides`, pairs are candidates: see `numbered`.
    """

    spec: JoinSpec
    where: Where
    columns: tuple[tuple[str, ...], tuple[str, ...]]  #: of R and S, that come out
    how: str = "inner"
    decides: bool = True  #: whether the spec is the whole condition
    ordered: bool = False  #: pairs of a slice come by (later arrival, earlier arrival)
    owned: tuple[tuple[int, ...], tuple[int, ...]] | None = None  #: rows of R and S that slices must have

    @property
    def numbered(self) -> bool:
        """Whether rows come with what `Verdict` needs to find those that have no partner."""
        return not self.decides and self.how != "inner"

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, runs in groupby(_runs(batches, "slice"), key=lambda run: run[0]):
            with Slice(self, number) as joined:
                for phase, parts in groupby(
                    _runs((part for _, part in runs), "phase"), key=lambda run: run[0]
                ):
                    yield from self._phase(joined, Phase(phase), (part for _, part in parts))
                yield from joined.finish()

    def _phase(
        self, joined: "Slice", phase: Phase, parts: Iterable[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Joins the rows of one phase, in pieces."""
        waiting, count = [], 0
        for part in parts:
            waiting.append(part)
            count += part.num_rows
            if count >= joined.piece:
                yield from self._piece(joined, phase, waiting)
                waiting, count = [], 0
        if waiting:
            yield from self._piece(joined, phase, waiting)

    def _piece(self, joined: "Slice", phase: Phase, parts: list[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        start = time.perf_counter()
        rows = pa.Table.from_batches(parts)
        joined.schemas = tuple(pa.schema(list(rows.schema.field(name).type)) for name in "rs")
        dated = pc.is_valid(rows["t"])
        if not pc.all(dated).as_py():
            if phase is Phase.OWN:
                yield from joined.undated(*self._streams(rows.filter(pc.invert(dated))))
            rows = rows.filter(dated)
        arrivals = self.spec.ordered(*self._streams(rows), rows["is_s"].to_numpy())
        joined.metrics["reading"] += _micros(start)
        yield from joined.add(arrivals, phase)

    def _streams(self, rows: pa.Table) -> tuple[pa.Table, pa.Table]:
        r, s = (pa.Table.from_struct_array(rows[name].drop_null().combine_chunks()) for name in "rs")
        return r, s


class Slice:
    """One slice on its way: pieces in, batches out, counts kept. A context manager that closes its device."""

    def __init__(self, task: Task, number: int):
        self._task, self._number = task, number
        self._stack = ExitStack()
        self.metrics = dict.fromkeys(METRICS, 0) | {"slices": 1}
        self._owned = [0, 0]
        self._emitted = 0
        self._joined = Stats()
        self.piece = FIRST_PIECE
        #: Of R and S, as rows come: zones may be spelled in other ways than in the spec.
        self.schemas = (task.spec.r_schema, task.spec.s_schema)

    def __enter__(self) -> "Slice":
        task = self._task
        join = self._stack.enter_context(Joiner(task.spec, task.where, f"slice {self._number}", self.metrics))
        self._pieces = Pieces(task.spec, join, task.how, task.decides)
        return self

    def __exit__(self, *exception) -> None:
        self._stack.close()

    # Rows

    def add(self, new: Arrivals, phase: Phase) -> Iterator[pa.RecordBatch]:
        """Joins the next rows."""
        counts = [len(side.time) for side in (new.r, new.s)]
        if phase is Phase.OWN:
            self._owned = [a + b for a, b in zip(self._owned, counts)]
        else:
            self.metrics["halo"] += sum(counts)
        piece = self._pieces.add(new, phase)
        pairs = 0
        if piece.pairs is not None:
            pairs = len(piece.pairs.r)
            self._joined += piece.pairs.stats
            # What has many pairs goes in smaller pieces, but the windows are read again with each.
            most = max(PIECE, self._pieces.rows)
            self.piece = max(LEAST_PIECE, min(most, MOST_PAIRS * sum(counts) // max(pairs, 1)))
        yield from self._written(self._rows(piece, phase))

    def undated(self, r: pa.Table, s: pa.Table) -> Iterator[pa.RecordBatch]:
        """Rows without event time, which join nothing."""
        self.metrics["undated"] += r.num_rows + s.num_rows
        for k, table in enumerate((r, s)):
            if OUTER[self._task.how][k] and table.num_rows:
                yield from self._written(self._alone(k, table, np.full(table.num_rows, -1)))

    def finish(self) -> Iterator[pa.RecordBatch]:
        """The rows that are left, then the counts."""
        if last := self._pieces.finish():
            yield from self._written(self._rows(last, Phase.AFTER))
        self._check()
        for field in fields(Stats):
            self.metrics[field.name] = getattr(self._joined, field.name)
        self.metrics["tuples"] = sum(self._owned)
        self.metrics["pairs"] = self._emitted
        self.metrics["memory"] = memory()
        nothing = [
            pa.nulls(1, schema.field(name).type)
            for schema, names in zip(self.schemas, self._task.columns)
            for name in names
        ]
        numbers = [pa.nulls(1, type) for _, type in NUMBERS] if self._task.numbered else []
        yield _batch(nothing, numbers, pa.array([[self.metrics[name] for name in METRICS]], METRICS_TYPE))

    def _check(self) -> None:
        """Refuses other rows than those that were counted, where the ranks of later rows rest on that."""
        if self._task.owned is None:
            return
        for name, now, owned in zip("rs", self._owned, self._task.owned):
            if now != owned[self._number]:
                raise DataError(
                    f"{name} must give the same rows each time it is read, not {owned[self._number]} and "
                    f"then {now} in slice {self._number}; persist() it, or use a time window"
                )

    def _written(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        start = time.perf_counter()
        yield from batches
        self.metrics["writing"] += _micros(start)

    def _rows(self, piece: Piece, phase: Phase) -> Iterator[pa.RecordBatch]:
        """The pairs and the rows without a partner of a piece."""
        task = self._task
        r, s = (
            side.rows.select(list(names))
            for side, names in zip((piece.arrivals.r, piece.arrivals.s), task.columns)
        )
        pairs = piece.pairs
        if pairs is not None and (phase is Phase.OWN or task.numbered):
            if task.ordered:
                pairs = pairs.in_order(piece.arrivals)
            if phase is Phase.OWN:
                self._emitted += len(pairs.r)
            r, s = ([column.combine_chunks() for column in table.columns] for table in (r, s))
            for start in range(0, len(pairs.r), BATCH_ROWS):
                chosen = [rows[start : start + BATCH_ROWS] for rows in (pairs.r, pairs.s)]
                columns = [
                    column.take(pa.array(rows)) for side, rows in zip((r, s), chosen) for column in side
                ]
                numbers = []
                if task.numbered:
                    numbers = [
                        np.full(len(chosen[0]), phase is not Phase.OWN),
                        piece.arrivals.r.index[chosen[0]],
                        piece.arrivals.s.index[chosen[1]],
                    ]
                yield self._results(columns, numbers, len(chosen[0]))
        for k, (side, rows) in enumerate(zip((piece.arrivals.r, piece.arrivals.s), piece.left)):
            if len(rows):
                yield from self._alone(k, side.rows.take(pa.array(rows)), side.index[rows])

    def _alone(self, k: int, table: pa.Table, index: np.ndarray) -> Iterator[pa.RecordBatch]:
        """Rows of R or S beside nothing."""
        mine = table.select(list(self._task.columns[k]))
        if self._task.decides:
            self.metrics["alone"] += table.num_rows
        for start in range(0, table.num_rows, BATCH_ROWS):
            part = mine.slice(start, BATCH_ROWS)
            count = min(BATCH_ROWS, table.num_rows - start)
            other = self.schemas[1 - k]
            nothing = [pa.nulls(count, other.field(name).type) for name in self._task.columns[1 - k]]
            columns = [*part.columns, *nothing] if k == 0 else [*nothing, *part.columns]
            numbers = []
            if self._task.numbered:
                none = pa.nulls(count, pa.int64())
                own = pa.array(index[start : start + count])
                numbers = [pa.array(np.zeros(count, bool)), *((own, none) if k == 0 else (none, own))]
            yield self._results(columns, numbers, count)

    def _results(self, columns: list, numbers: list, count: int) -> pa.RecordBatch:
        plain = [
            column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column for column in columns
        ]
        return _batch(plain, list(map(pa.array, numbers)), pa.nulls(count, METRICS_TYPE))


#: Beside results of which Spark decides which stay, the numbers of their rows; a row that has left has one
#: number, -1 if it cannot have had a partner. Slices say, too, whether a pair belongs to another of them.
ROW_NUMBERS = ("r_number", "s_number")
NUMBERS = (("foreign", pa.bool_()), *((name, pa.int64()) for name in ROW_NUMBERS))
#: What is a pair, where there are numbers, in SQL.
IS_PAIR = " AND ".join(f"{name} IS NOT NULL" for name in ROW_NUMBERS)


def verdict(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Finds the rows without a partner, once Spark has taken out the pairs for which the condition fails.

    Takes batches as a numbered `Task` yields them, in that order, and yields them without the numbers.
    """
    matched = [np.zeros(0, bool), np.zeros(0, bool)]  # by number
    counts = {"pairs": 0, "alone": 0}
    for _, batch in _runs(batches, "metrics"):
        foreign, *numbers = (batch.column(name) for name, _ in NUMBERS)
        rows = batch.drop_columns([name for name, _ in NUMBERS])
        if batch.column("metrics").is_valid()[0].as_py():
            # Slices end. The counts of the first are known now, and those after it had no rows.
            metrics = batch.column("metrics").to_pylist()
            for name, count in counts.items():
                metrics[0][METRICS.index(name)] = count
            last = rows.schema.get_field_index("metrics")
            yield rows.set_column(last, "metrics", pa.array(metrics, METRICS_TYPE))
            matched, counts = [flags[:0] for flags in matched], {"pairs": 0, "alone": 0}
            continue
        both = pc.and_(numbers[0].is_valid(), numbers[1].is_valid())
        pairs = pc.and_not(both, foreign)
        keep = pairs
        for k, number in enumerate(numbers):
            highest = pc.max(number).as_py() or 0
            if highest >= len(matched[k]):
                matched[k] = np.concatenate([matched[k], np.zeros(highest + 1, bool)])
            matched[k][number.filter(both).to_numpy()] = True
            places = number.fill_null(-1).to_numpy()
            missing = (places < 0) | ~matched[k][places]
            keep = pc.or_(keep, pc.and_(pc.and_not(number.is_valid(), both), pa.array(missing)))
        counts["pairs"] += pc.sum(pairs).as_py()
        counts["alone"] += pc.sum(keep).as_py() - pc.sum(pairs).as_py()
        yield rows.filter(keep)


def _runs(batches: Iterable[pa.RecordBatch], column: str) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Parts of batches in which a column has one value."""
    for batch in batches:
        values = batch.column(column)
        if pa.types.is_list(values.type):
            values = values.is_valid()
        values = values.to_numpy(zero_copy_only=False)
        cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
        for first, last in pairwise([0, *cuts.tolist(), len(values)]):
            if first < last:
                yield int(values[first]), batch.slice(first, last - first)


def memory() -> int:
    """Bytes that this process has held, at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _micros(start: float) -> int:
    return int((time.perf_counter() - start) * 1e6)


def _batch(columns: list[pa.Array], numbers: list[pa.Array], metrics: pa.Array) -> pa.RecordBatch:
    names = [f"c{k}" for k in range(len(columns))]
    names += [name for name, _ in NUMBERS] if numbers else []
    return pa.RecordBatch.from_arrays([*columns, *numbers, metrics], names=[*names, "metrics"])
