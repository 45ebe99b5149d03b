"""Files: slices of Parquet that tasks read for themselves, so that rows need not go through Spark first.

This is done for DataFrames that are Parquet files, read with at most a choice of columns, when Arrow reads
them exactly as Spark does and the tasks together do not read much more than there is. Otherwise Spark
shuffles the rows to the tasks.

::

    row groups   |-- 0 --|
                      |--- 1 ---|                 sorted by their first time
                                   |--- 2 ---|
    pieces       |  .  |  .  |  .  |  .  |  .  |  as many rows as may be joined at once
"""

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from host.pieces import OUTER, Phase
from host.spec import JoinSpec, as_times
from host.window import EARLIEST, LONGEST, Window
from hw.errors import DataError

from .slices import SMALLEST
from .task import Slice, Task

#: Rows of all row groups that tasks read, as a multiple of the rows there are.
MOST_READ = 4
#: Tasks for each core, so that those which end early do not wait for long.
TASKS_PER_CORE = 4
#: Times of each side that stand for all of them when cuts are chosen.
SAMPLE = 1 << 17
#: Rows whose times the driver reads at most.
MOST_ROWS = 1 << 28
_PARQUET = "org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat"


@dataclass(frozen=True)
class File:
    """A file as it was when the join was planned."""

    path: str
    size: int
    modified: int  #: nanoseconds since 1970

    @classmethod
    def now(cls, path: str) -> "File":
        """The file as it is now."""
        status = os.stat(path)
        return cls(path, status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Refuses a file that is not what it was: the times that the plan has of it may be wrong."""
        try:
            now = File.now(self.path)
            found = f"{now.size} bytes modified at {now.modified} ns"
        except FileNotFoundError:
            now, found = None, "gone"
        if now != self:
            raise DataError(
                f"{self.path} must stay as it was when the join was planned, {self.size} bytes modified at "
                f"{self.modified} ns, not {found}; accepted are files that nobody writes until the last "
                "action on the join, so call stream_join again"
            )

    @contextmanager
    def open(self) -> Iterator[pq.ParquetFile]:
        """The file for reading, which must be the same before and after."""
        self.check()
        try:
            with pq.ParquetFile(self.path, memory_map=True, coerce_int96_timestamp_unit="us") as file:
                yield file
        finally:
            self.check()


@dataclass(frozen=True)
class RowGroup:
    """A part of a file, and the least and the greatest time in it."""

    file: File
    number: int
    rows: int
    undated: int
    first: int
    last: int


@dataclass(frozen=True)
class FilePlan:
    """Row groups of R and S, and the times at which slices begin."""

    files: tuple[File, ...]  #: of both sides, also those without rows
    groups: tuple[tuple[RowGroup, ...], tuple[RowGroup, ...]]
    cuts: tuple[int, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]]  #: the columns that tasks need
    halos: tuple[tuple[int, int], tuple[int, int]]  #: how far R and S are read before and after a slice
    halo: int  #: about how many rows tasks read for that

    @property
    def why(self) -> str:
        """Why tasks read the files."""
        groups = sum(map(len, self.groups))
        return (
            f"both sides are files as they are: {groups:,} row groups, of which tasks read "
            f"{self.read / max(self.rows, 1):.1f} times the rows there are"
        )

    def live(self, window: Window) -> float:
        """About how many rows of a stream a window holds."""
        dated = [group for groups in self.groups for group in groups if group.undated < group.rows]
        span = max(group.last for group in dated) - min(group.first for group in dated) if dated else 0
        most = max(sum(group.rows for group in groups) for groups in self.groups)
        return min(1.0, max(window.r, window.s) / max(span, 1)) * most

    @property
    def rows(self) -> int:
        """Rows of both sides."""
        return sum(group.rows for groups in self.groups for group in groups)

    @property
    def read(self) -> int:
        """Rows in all row groups that tasks read."""
        return sum(
            group.rows for number in range(len(self)) for k in range(2) for group in self.needed(number, k)
        )

    def __len__(self):
        return len(self.cuts)

    def own(self, number: int) -> tuple[int, int]:
        """The first time in a slice, and the last."""
        last = self.cuts[number + 1] - 1 if number + 1 < len(self.cuts) else LONGEST
        return (self.cuts[number] if number else EARLIEST), last

    def span(self, number: int, k: int) -> tuple[int, int]:
        """The first time and the last that a slice reads of R or S."""
        (first, last), (before, after) = self.own(number), self.halos[k]
        return max(first - before, EARLIEST), min(last + after, LONGEST)

    def needed(self, number: int, k: int) -> list[RowGroup]:
        """The row groups of R or S with times in the span of a slice, by their first time."""
        first, last = self.span(number, k)
        dated = (group for group in self.groups[k] if group.undated < group.rows)
        return sorted(
            (group for group in dated if group.first <= last and group.last >= first),
            key=lambda group: group.first,
        )


def plan_files(
    frames: tuple[DataFrame, DataFrame],
    spec: JoinSpec,
    names: tuple[Sequence[str], Sequence[str]],
    how: str,
    partitions: int | None,
) -> FilePlan | str:
    """How tasks read the files of two DataFrames, or why they do not."""
    if spec.window.kind == "rows":
        return "windows of rows need all rows in one order"
    files, groups, samples = [], [], []
    for side, frame, columns in zip("rs", frames, names):
        paths = _parquet_paths(frame)
        if isinstance(paths, str):
            return f"{side} {paths}"
        conf = frame.sparkSession.conf
        modes = [conf.get(f"spark.sql.parquet.{kind}RebaseModeInRead") for kind in ("datetime", "int96")]
        found = [File.now(path) for path in paths]
        read = _row_groups(found, spec, side, columns, modes)
        if isinstance(read, str):
            return f"{side}: {read}"
        files += found
        groups.append(read[0])
        samples.append(read[1])
    w, (r_outer, s_outer) = spec.window, OUTER[how]
    halos = (w.r, w.s if s_outer else 0), (w.s, w.r if r_outer else 0)
    samples = [np.sort(sample) for sample in samples]
    times = np.sort(np.concatenate(samples))
    rows = sum(group.rows for side in groups for group in side)
    session = frames[0].sparkSession
    cores = session.sparkContext.defaultParallelism
    most = partitions or min(
        TASKS_PER_CORE * cores,
        int(session.conf.get("spark.sql.shuffle.partitions")),
        max(1, rows // SMALLEST),
    )
    while True:
        cuts = np.unique(times[np.arange(most) * len(times) // most]) if len(times) else np.zeros(1, np.int64)
        plan = FilePlan(
            tuple(files),
            (tuple(groups[0]), tuple(groups[1])),
            tuple(cuts.tolist()),
            (tuple(names[0]), tuple(names[1])),
            halos,
            _halo(samples, cuts[1:], halos, rows),
        )
        if plan.read <= MOST_READ * rows:
            return plan
        if partitions or most <= cores:
            return (
                f"{most} tasks would read {plan.read / rows:.1f} times the rows there are, because times in "
                f"row groups overlap or row groups are long; accepted is {MOST_READ}"
            )
        most = max(cores, most // 2)


def _halo(samples: list[np.ndarray], cuts: np.ndarray, halos: tuple, rows: int) -> int:
    """About how many rows slices read before and after their own, from a sample of the times."""
    count = 0
    for times, (before, after) in zip(samples, halos):
        for cut in cuts.tolist():
            ends = max(cut - before, EARLIEST), min(cut + after, LONGEST)
            first, last = np.searchsorted(times, ends)
            count += last - first
    return int(count * rows / max(sum(map(len, samples)), 1))


def _parquet_paths(frame: DataFrame) -> list[str] | str:
    """The files of a DataFrame that is nothing but some columns of Parquet files, or why it is not that."""
    if not hasattr(frame, "_jdf"):
        return "is a DataFrame of Spark Connect, which does not show its files"
    plan = frame._jdf.queryExecution().optimizedPlan()
    while plan.getClass().getSimpleName() == "Project":
        columns = plan.projectList()
        kinds = {columns.apply(k).getClass().getSimpleName() for k in range(columns.size())}
        if kinds != {"AttributeReference"}:
            return "is computed from its files, not read from them as it is"
        plan = plan.child()
    if plan.getClass().getSimpleName() != "LogicalRelation":
        return f"is made by {plan.nodeName()}, not read from Parquet as it is"
    relation = plan.relation()
    if relation.getClass().getSimpleName() != "HadoopFsRelation":
        return "is not read from files"
    if relation.fileFormat().getClass().getName() != _PARQUET:
        return f"is read from {relation.fileFormat().toString()}, not from Parquet"
    if not relation.partitionSchema().isEmpty():
        return "has columns that are in the names of folders"
    # What names the files, and what has no meaning for Parquet.
    harmless = {"path", "paths", "header", "inferschema", "infertimestamp"}
    options = relation.options().keysIterator()
    while options.hasNext():
        if (option := options.next().lower()) not in harmless:
            return f"is read with the option {option!r}"
    for setting in (
        "files.ignoreCorruptFiles",
        "files.ignoreMissingFiles",
        "parquet.int96TimestampConversion",
    ):
        if frame.sparkSession.conf.get(f"spark.sql.{setting}").strip().lower() == "true":
            return f"is read with spark.sql.{setting}"
    uris = list(relation.location().inputFiles())
    if not all(uri.startswith("file:///") for uri in uris):
        return "is not in files that all machines see under one name (file:)"
    return [unquote(uri.removeprefix("file://")) for uri in uris]


def _row_groups(
    files: list[File], spec: JoinSpec, side: str, names: Sequence[str], modes: list[str]
) -> tuple[list[RowGroup], np.ndarray] | str:
    """The row groups of a side, and a sample of its times; or why Arrow does not read them as Spark does."""
    total = 0
    for each in files:
        with each.open() as file:
            if why := _reads_otherwise(file, spec.schemas[side], names, modes):
                return f"{why} in {each.path}"
            total += file.metadata.num_rows
    if total > MOST_ROWS:
        return f"{total:,} rows are more than the {MOST_ROWS:,} whose times the driver reads"
    groups, samples = [], []
    name = spec.time[side == "s"]
    type = spec.schemas[side].field(name).type
    step = max(1, total // SAMPLE)
    for each in files:
        with each.open() as file:
            for number in range(file.num_row_groups):
                column = file.read_row_group(number, columns=[name])[name]
                times = as_times(column.cast(type).combine_chunks())
                known = times.drop_null().to_numpy()
                samples.append(known[::step])
                ends = (int(known.min()), int(known.max())) if len(known) else (0, 0)
                groups.append(RowGroup(each, number, len(times), times.null_count, *ends))
    return groups, np.concatenate(samples or [np.empty(0, np.int64)])


def _reads_otherwise(
    file: pq.ParquetFile, schema: pa.Schema, names: Sequence[str], modes: list[str]
) -> str | None:
    """Why Arrow might not read a file's columns as Spark does, if so."""
    known = file.metadata.metadata or {}
    version = known.get(b"org.apache.spark.version")
    there = {file.schema.column(k).path: file.schema.column(k) for k in range(len(file.schema))}
    for name in names:
        wanted, column = schema.field(name).type, there.get(name)
        if column is None:
            return f"`{name}` is missing or nested"
        found = file.schema_arrow.field(name).type
        old = column.physical_type == "INT96"
        dated = pa.types.is_timestamp(wanted) or pa.types.is_date(wanted)
        legacy = b"org.apache.spark.legacyINT96" if old else b"org.apache.spark.legacyDateTime"
        # Spark, too, compares versions as text.
        new = modes[old] == "CORRECTED" if version is None else version >= (b"3.1.0" if old else b"3.0.0")
        if dated and (legacy in known or not new):
            return f"`{name}` may be in the calendar of old versions"
        if old and pa.types.is_timestamp(wanted):
            if wanted.tz is None:
                return f"`{name}` is INT96, which Spark reads as {wanted}"
            continue
        if pa.types.is_timestamp(wanted) and pa.types.is_timestamp(found):
            same = found.unit in ("ms", "us") and (found.tz is None) == (wanted.tz is None)
        else:
            same = found == wanted and not pa.types.is_nested(found)
        if not same:
            return f"`{name}` is {found}, which Spark reads as {wanted}"
    return None


@dataclass(frozen=True)
class FileTask:
    """Joins slices that it reads itself. Takes batches with a column of slice numbers."""

    task: Task
    plan: FilePlan

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                with Slice(self.task, number) as joined:
                    joined.schemas = self.empty(0).schema, self.empty(1).schema
                    if number == 0:
                        # Tasks do not open those that have no times.
                        for file in self.plan.files:
                            file.check()
                        yield from self._undated(joined)
                    yield from _Reader(self, number, joined).batches()
                    yield from joined.finish()

    def _undated(self, joined: Slice) -> Iterator[pa.RecordBatch]:
        """The rows without event time, which are read only if they come out."""
        for k, groups in enumerate(self.plan.groups):
            some = [group for group in groups if group.undated]
            if not OUTER[self.task.how][k]:
                joined.metrics["undated"] += sum(group.undated for group in some)
                continue
            for group in some:
                rows = self.read(group, k)
                rows = rows.filter(rows[self.task.spec.time[k]].is_null())
                none = self.empty(1 - k)
                yield from joined.undated(*((rows, none) if k == 0 else (none, rows)))

    def empty(self, k: int) -> pa.Table:
        """No rows of R or S."""
        schema = self.task.spec.schemas["rs"[k]]
        return pa.schema([schema.field(name) for name in self.plan.names[k]]).empty_table()

    def read(self, group: RowGroup, k: int) -> pa.Table:
        """The needed columns of a row group, in the types that Spark has them in."""
        names = list(self.plan.names[k])
        with group.file.open() as file:
            table = file.read_row_group(group.number, columns=names, use_threads=False)
        return table.select(names).cast(self.empty(k).schema)


class _Reader:
    """Reads one slice in the order of time, and has it joined piece by piece."""

    def __init__(self, source: FileTask, number: int, joined: Slice):
        self._source, self._joined = source, joined
        self._own = source.plan.own(number)
        self._spans = [source.plan.span(number, k) for k in range(2)]
        self._waiting = [source.plan.needed(number, k) for k in range(2)]
        #: Of R and S, what was read and is not joined yet: times and rows, in the order of time.
        self._held: list[list[tuple[np.ndarray, pa.Table]]] = [[], []]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All that the slice gives but its counts."""
        first, last = self._own
        begin, end = (pick(span[k] for span in self._spans) for k, pick in enumerate((min, max)))
        for phase, at, to in (
            (Phase.BEFORE, begin, first - 1),
            (Phase.OWN, first, last),
            (Phase.AFTER, last + 1, end),
        ):
            while at <= to:
                start = time.perf_counter()
                until = self._until(at, to)
                r, s = (self._take(k, until) for k in range(2))
                arrivals = self._source.task.spec.arrange(r, s)
                self._joined.metrics["reading"] += int((time.perf_counter() - start) * 1e6)
                if r.num_rows or s.num_rows:
                    yield from self._joined.add(arrivals, phase)
                at = until + 1

    def _until(self, at: int, to: int) -> int:
        """The last time of a piece that begins at `at`; all rows up to it have been read."""
        while True:
            starts = [groups[0].first if groups else to + 1 for groups in self._waiting]
            after = min(starts)
            edge = min(to, max(after - 1, at - 1))
            if after > at or after > to:
                times = [
                    part[: np.searchsorted(part, edge, "right")] for held in self._held for part, _ in held
                ]
                count = sum(map(len, times))
                if count > self._joined.piece:
                    kth = self._joined.piece - 1
                    return int(np.partition(np.concatenate(times), kth)[kth])
                if after > to:
                    return to
            self._load(starts.index(after))

    def _load(self, k: int) -> None:
        rows = self._source.read(self._waiting[k].pop(0), k)
        spec = self._source.task.spec
        times = spec.times(rows, "rs"[k])
        first, last = self._spans[k]
        keep = pc.and_(pc.greater_equal(times, first), pc.less_equal(times, last))
        if times.null_count or not pc.all(keep).as_py():
            times, rows = times.filter(keep), rows.filter(keep)
        values = times.to_numpy()
        if not (values[1:] >= values[:-1]).all():
            order = np.argsort(values, kind="stable")
            values, rows = values[order], rows.take(pa.array(order))
        self._held[k].append((values, rows))

    def _take(self, k: int, until: int) -> pa.Table:
        """The rows of a side up to a time, which are held no longer."""
        taken, left = [self._source.empty(k)], []
        for times, rows in self._held[k]:
            count = int(np.searchsorted(times, until, "right"))
            taken.append(rows.slice(0, count))
            if count < len(times):
                left.append((times[count:], rows.slice(count)))
        self._held[k] = left
        return pa.concat_tables(taken)
