"""`stream_join`: a sliding-window join of two DataFrames, one slice of history per task."""

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.pandas.types import from_arrow_type, to_arrow_type

from host.condition import named_columns
from host.encoding import is_sortable
from host.output import result_names
from host.pieces import OUTER, Phase, checked_how
from host.spec import JoinSpec
from hw.errors import ParameterError, SpecError, TouchlineError

from .explanation import Estimate, explained
from .files import FilePlan, FileTask, plan_files
from .placement import place
from .shard import ShardedJoin
from .sink import (
    WRITTEN,
    Folder,
    Format,
    PathExistsError,
    WritingTask,
    checked_mode,
    local_folder,
    only_spark,
    parts,
)
from .slices import Slices, sort_keys
from .streaming import OBSERVED, both_streaming, check_streams, joined, settled, shard_count, stream_counts
from .task import IS_PAIR, METRICS, MOSTS, NUMBERS, ROW_NUMBERS, Task, verdict

Length = str | int
Names = Collection[str | tuple[str, str]]

#: Seconds in which Spark hands over the counts of an action that has ended.
COUNTS_DUE = 60
_METRICS = T.StructField("metrics", T.ArrayType(T.LongType()))
_NUMBERS = [T.StructField(name, from_arrow_type(type)) for name, type in NUMBERS]


def stream_join(
    r: DataFrame,
    s: DataFrame,
    on: str,
    window: Length | tuple[Length, Length],
    time: str | tuple[str, str],
    offload: str = "cpu",
    architecture: str | None = None,
    device: str | None = None,
    tiebreak: Names = (),
    partitions: int | None = None,
    observation: Observation | None = None,
    ordered: bool = False,
    how: str = "inner",
    by: Names = (),
    columns: Collection[str] | None = None,
    fallback: str = "error",
) -> DataFrame:
    """The pairs of rows of `r` and `s` for which `on` holds while both are in their windows.

    `on` is SQL text that names the columns as `r.x` and `s.a`. What of it is no comparison of points with
    boxes, such as `r.name LIKE s.pattern`, Spark itself evaluates on each pair. `window` is a duration or a
    number of rows ("10 minutes", "1000 rows"), or a pair of them for R and S. `time` names the event time, or
    is a pair of names; rows without event time join nothing. Rows arrive in the order of event time, then of
    the columns `tiebreak`, then R before S, then of their own values, and the result depends on nothing else:
    neither on partitions nor on the order of the input. `by` names columns that must be equal, and by which
    windows of rows are counted: each key has its own. `how` is inner, left, right or full: the last three
    also give the rows of R, of S or of both that have no partner, with NULL beside them.

    `offload` says what joins: "cpu", the task's own core, where `device` may name a structure, such as
    cpu:bisort; "sim", the simulated gateware of `architecture` (handshake) or of the URL `device`; "fpga",
    the device at the URL `device` (serial:, tcp: or xdma:), at which tasks take turns, and without one the
    devices that Spark schedules as the resource "fpga", one for each task; or "auto", such a device if there
    is one that takes all dimensions of the join, and else the CPU. Where a device fails, that is an error, or
    the CPU joins, with a warning, if `fallback` is "cpu". A device that is not of the `architecture` that is
    asked for is refused; the CPU has none, and needs none to be named.
    `partitions` says into how many slices, each a task, history is cut. The call itself reads the columns
    of the arrival order once, to choose the cuts. Tasks read what is in Parquet files for themselves, where
    they can do that exactly as Spark does.

    If `r` and `s` are streaming DataFrames, so is the result, and `partitions` is the number of shards. Both
    need a watermark on their event time. Late rows are dropped and counted, rows without a partner come out
    when their window has passed, and a `StreamingQueryListener` finds the counts of `shard.STREAM_METRICS`
    as `streaming.OBSERVED`.

    All columns of both sides come out, or those that `columns` names; a name that both have becomes `r_name`
    and `s_name`. The first action on the result gives `observation` the counts of `task.METRICS`. If
    `ordered`, rows come by (later arrival, earlier arrival): sorted within each partition, and each partition
    before the next.
    """
    join = StreamJoin(
        *(r, s, on, window, time, offload, architecture, device, tiebreak, partitions, ordered),
        *(how, by, columns, fallback),
    )
    return join.frame(observation)


def explain(
    r: DataFrame,
    s: DataFrame,
    on: str,
    window: Length | tuple[Length, Length],
    time: str | tuple[str, str],
    *,
    measure: bool = False,
    **options,
) -> str:
    """What `stream_join` with the same arguments would do, and where.

    Spark jobs run only to `measure`: they count rows, and those that tasks read besides their own.
    """
    return StreamJoin(r, s, on, window, time, **options).explain(measure)


@dataclass
class StreamJoin:
    """The arguments of `stream_join`, checked."""

    r: DataFrame
    s: DataFrame
    on: str
    window: Length | tuple[Length, Length]
    time: str | tuple[str, str]
    offload: str = "cpu"
    architecture: str | None = None
    device: str | None = None
    tiebreak: Names = ()
    partitions: int | None = None
    ordered: bool = False
    how: str = "inner"
    by: Names = ()
    columns: Collection[str] | None = None
    fallback: str = "error"

    def __post_init__(self):
        if self.partitions is not None and (type(self.partitions) is not int or self.partitions < 1):
            raise ParameterError(f"partitions must be a positive integer or None, not {self.partitions!r}")
        for name, frame in (("r", self.r), ("s", self.s)):
            if not isinstance(frame, DataFrame):
                raise SpecError(f"{name} must be a DataFrame, not {frame!r}")
        self.streaming = both_streaming(self.r, self.s)
        checked_how(self.how)
        conf = self.r.sparkSession.conf
        # Spark names columns without regard to case unless told otherwise.
        fold = str if conf.get("spark.sql.caseSensitive") == "true" else str.lower
        self._names = result_names(self.r.columns, self.s.columns, fold)
        self.spec = JoinSpec(
            self.on,
            self.window,
            self.time,
            _arrow_schema("r", self.r.schema),
            _arrow_schema("s", self.s.schema),
            tiebreak=self.tiebreak,
            by=self.by,
            timezone=conf.get("spark.sql.session.timeZone"),
            residual=True,
        )
        if self.streaming:
            check_streams(self.r, self.s, self.spec, self.ordered)
        self._chosen = self._choose(fold)
        if self.ordered and (self.how != "inner" or self.spec.by_key):
            what = f"how={self.how!r}" if self.how != "inner" else "windows of rows by key"
            raise ParameterError(f"ordered needs how='inner' and one order of all rows, not {what}")
        if self.spec.left:
            self._check_residual()
        self.placement = place(self.spec, self.offload, self.device, self.architecture, self.fallback, conf)
        self.device = self.placement.where.device

    def explain(self, measure: bool = False) -> str:
        """Where each part of the join runs and why, in how many tasks, and what rows are read besides."""
        what = "a core" if (self.device or "").startswith("cpu:") else "a device"
        if self.streaming:
            tasks = f"in {self._shards} shards, each with {what} and a part of the windows in its state store"
            source = "Spark shows each to all shards, because one of them stores it and all join it"
            if self.spec.by:
                source = "Spark shows each to all shards, because one of them has its key, and joins it alone"
            return explained(
                *(self.spec, self.how, self.placement, tasks, source, "streams have no end"), streaming=True
            )
        plan = self._files()
        most = self.partitions or self.r.sparkSession.conf.get("spark.sql.shuffle.partitions")
        if isinstance(plan, FilePlan):
            most, source = len(plan), f"tasks read Parquet, because {plan.why}"
            estimate = Estimate(plan.rows, plan.halo, len(plan), plan.live(self.spec.window))
        else:
            source = f"Spark shuffles them, because {plan}"
            estimate = "rows are counted when the join starts, or by explain(..., measure=True)"
            if measure:
                estimate = self._measured()
                most = estimate.tasks
        tasks = f"in at most {most} tasks, each with {what}, a slice of history and the window before it"
        format = self._format()
        writer = (
            f"Spark, because {format}"
            if isinstance(format, str)
            else "tasks, because Arrow writes as Spark does"
        )
        return explained(self.spec, self.how, self.placement, tasks, source, estimate, writer)

    def _measured(self) -> Estimate:
        """Counts rows and halos, in two Spark jobs."""
        rows, slices = self._sliced()
        spread = rows.agg(
            F.sum(F.col("last") - F.col("first")), F.try_subtract(F.max("t"), F.min("t"))
        ).first()
        count, window = sum(slices.r) + sum(slices.s), self.spec.window
        live = float(max(window.r, window.s))
        if window.kind == "time":
            live = min(1.0, live / max(spread[1] or 0, 1)) * max(sum(slices.r), sum(slices.s))
        return Estimate(count, spread[0] or 0, len(slices), live)

    def frame(self, observation: Observation | None = None) -> DataFrame:
        """The result. Of batches, reads the columns of the arrival order to choose the cuts."""
        schema = self._schema()
        if self.streaming:
            join = ShardedJoin(self.spec, self._shards, self.how, self.placement.where, self._carried)
            results = self._decided(joined(self.r, self.s, join, schema))
            if self._numbered:
                results = settled(results, join, schema)
            results = results.observe(OBSERVED, *stream_counts(join))
        else:
            rows, task = self._tasks()
            results = self._decided(rows.mapInArrow(task.__call__, schema))
            if self._numbered:
                kept = [field for field in schema if field not in _NUMBERS]
                results = results.mapInArrow(verdict, T.StructType(kept))
            if observation is not None:
                results = results.observe(observation, *self._counts())
        return results.where("metrics IS NULL").select(
            *(F.col(f"c{place}").alias(name) for place, name in zip(self._places, self._chosen))
        )

    def write_parquet(
        self, path: str | os.PathLike, mode: str = "errorifexists", compression: str | None = None
    ) -> dict[str, int] | None:
        """Writes the result as `frame().write.mode(mode).parquet(path)` does, and returns its counts.

        The counts are those of `task.METRICS`; with the mode "ignore" there are none if something is at the
        path. Tasks write their files for themselves, which is much faster, where Arrow writes them exactly as
        Spark does and the path is one that all machines see under one name (file:); otherwise Spark does.
        At such a path, whoever writes, what is replaced is there until all tasks are done, so that it may be
        what is read, and a job that fails leaves nothing behind. Elsewhere, and in Spark Connect, Spark
        removes what it replaces before the tasks start.
        """
        path, mode = os.fspath(path), checked_mode(mode)
        if self.streaming:
            raise ParameterError("write_parquet needs batch DataFrames; of streams use frame().writeStream")
        folder, format = local_folder(self.r, path), self._format(compression)
        try:
            if folder is None:
                return self._written_by_spark(path, mode, compression)
            with Folder(folder, mode) as target:
                if isinstance(format, str):
                    counts = self._written_by_spark(f"file:{target.temporary}", "append", compression)
                    target.commit_all()
                    return counts
                rows, task = self._tasks()
                task = WritingTask(task, self._places, format, target.temporary)
                written = rows.mapInArrow(task.__call__, WRITTEN).collect()
                target.commit([row.file for row in written if row.file], format)
        except PathExistsError:
            if mode == "ignore":
                return None
            raise
        counts = {}
        for k, name in enumerate(METRICS):
            values = [row.metrics[k] for row in written]
            counts[name] = max(values, default=0) if name in MOSTS else sum(values)
        return counts

    def _format(self, compression: str | None = None) -> Format | str:
        """How tasks write the result for themselves, or why Spark has to."""
        if self.spec.left:
            return f"only Spark can evaluate `{self.spec.left[0].text}`"
        if reason := only_spark(self.r):
            return reason
        session = self.r.sparkSession
        types = [self._schema().fields[place].dataType for place in self._places]
        schema = T.StructType([T.StructField(name, type) for name, type in zip(self._chosen, types)])
        return Format.of(schema, session.conf, compression, session.version)

    def _written_by_spark(self, path: str, mode: str, compression: str | None) -> dict[str, int]:
        """Lets Spark write the result."""
        observation = Observation()
        # What ignores a path that exists would never deliver counts.
        writer = self.frame(observation).write.mode("errorifexists" if mode == "ignore" else mode)
        try:
            writer.parquet(path, compression=compression)
        except AnalysisException as error:
            if error.getCondition() != "PATH_ALREADY_EXISTS":
                raise
            raise PathExistsError(path) from None
        return observed(observation)

    def _tasks(self) -> tuple[DataFrame, Task | FileTask]:
        """Rows as tasks take them, and the task."""
        task = Task(
            self.spec,
            self.placement.where,
            columns=self._carried,
            how=self.how,
            decides=not self.spec.left,
            ordered=self.ordered,
        )
        plan = self._files()
        if isinstance(plan, FilePlan):
            return self.r.sparkSession.range(0, len(plan), 1, len(plan)), FileTask(task, plan)
        return self._shuffled(task)

    @property
    def _shards(self) -> int:
        """How many shards a stream has."""
        return shard_count(self.partitions, self.r.sparkSession.conf)

    def _files(self) -> FilePlan | str:
        """How tasks read the input for themselves, or why Spark has to shuffle it."""
        names = self._sent("r"), self._sent("s")
        return plan_files((self.r, self.s), self.spec, names, self.how, self.partitions)

    @property
    def _numbered(self) -> bool:
        """Whether rows come from tasks with what `verdict` needs."""
        return bool(self.spec.left) and self.how != "inner"

    def _counts(self) -> Iterator[Column]:
        """The metrics of all slices. Which pairs Spark keeps, it alone can count."""
        for k, name in enumerate(METRICS):
            if name == "pairs" and self.spec.left and not self._numbered:
                yield F.count_if(F.col("metrics").isNull()).alias(name)
            else:
                total = (F.max if name in MOSTS else F.sum)(F.get("metrics", F.lit(k)))
                yield F.coalesce(total, F.lit(0)).alias(name)

    def _sliced(self) -> tuple[DataFrame, Slices]:
        """All rows with the slice that owns them, and the first and the last that needs them."""
        rows = self._side("r").union(self._side("s"))
        order = rows.drop("r", "s")
        slices = Slices.measure(order.where("t IS NOT NULL"), self.partitions)
        number = slices.number(
            [F.col(name) for name in order.columns], [field.dataType for field in order.schema]
        )
        given = (self.spec.window, F.col("t"), F.col("owner"))
        # Rows of S show which rows of R, in slices before, have a partner, and the other way round.
        firsts = [
            slices.first(stream, *given) if OUTER[self.how][stream == "r"] else F.col("owner")
            for stream in "rs"
        ]
        if self.spec.window.kind == "rows":
            firsts = [F.least(*firsts)] * 2  # what is counted must all be there
        lasts = [slices.last(stream, *given) for stream in "rs"]
        first, last = (F.when(F.col("is_s"), s).otherwise(r) for r, s in (firsts, lasts))
        return rows.withColumn("owner", number).withColumns({"first": first, "last": last}), slices

    def _shuffled(self, task: Task) -> tuple[DataFrame, Task]:
        """Slices that Spark's shuffle brings together, and the task that knows what they must have."""
        rows, slices = self._sliced()
        if self.spec.window.kind == "rows":
            task = replace(task, owned=(slices.r, slices.s))
        order = rows.drop("r", "s", "owner", "first", "last")
        phase = F.when(F.col("owner") == F.col("slice"), Phase.OWN.value)
        phase = phase.when(F.col("owner") < F.col("slice"), Phase.BEFORE.value).otherwise(Phase.AFTER.value)
        sliced = (
            rows.withColumn("slice", F.explode(F.sequence("first", "last")))
            .repartitionById(len(slices), "slice")
            .withColumn("phase", phase)
            .sortWithinPartitions("slice", "phase", *order.columns, *self._values("r"), *self._values("s"))
            .select("slice", "phase", "is_s", "t", "r", "s")
        )
        return sliced, task

    # Columns

    def _choose(self, fold: Callable[[str], str]) -> list[str]:
        """The names of the columns that come out."""
        there = [*self._names[0], *self._names[1]]
        if self.columns is None:
            return there
        if isinstance(self.columns, str) or not all(isinstance(name, str) for name in self.columns):
            raise ParameterError(f"columns must be names of columns, or None for all, not {self.columns!r}")
        known = {fold(name): name for name in there}
        chosen = [known.get(fold(name)) for name in self.columns]
        if None in chosen or len(set(chosen)) < len(chosen) or not chosen:
            raise SpecError(
                f"columns must name some of {', '.join(there)}, each once, not {list(self.columns)!r}"
            )
        return chosen

    @property
    def _carried_names(self) -> list[str]:
        """The names of what tasks give back: what comes out, and what Spark needs to evaluate `on`."""
        needed = self._named if self.spec.left else {}
        return [
            alias
            for side, frame, names in zip("rs", (self.r, self.s), self._names)
            for name, alias in zip(frame.columns, names)
            if alias in self._chosen or name in needed.get(side, ())
        ]

    @property
    def _places(self) -> tuple[int, ...]:
        """Where what comes out is among what tasks give back."""
        places = {name: k for k, name in enumerate(self._carried_names)}
        return tuple(places[name] for name in self._chosen)

    @property
    def _carried(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The columns of R and of S that tasks give back."""
        carried = set(self._carried_names)
        r, s = (
            tuple(name for name, alias in zip(frame.columns, names) if alias in carried)
            for frame, names in zip((self.r, self.s), self._names)
        )
        return r, s

    def _schema(self) -> T.StructType:
        """Of what tasks give back."""
        columns = [
            frame.schema[name] for frame, names in zip((self.r, self.s), self._carried) for name in names
        ]
        # Of streams, the metadata have the watermark.
        fields = [
            T.StructField(f"c{k}", column.dataType, metadata=column.metadata if self.streaming else None)
            for k, column in enumerate(columns)
        ]
        numbers = [field for field in _NUMBERS if not self.streaming or field.name in ROW_NUMBERS]
        return T.StructType([*fields, *(numbers if self._numbered else []), _METRICS])

    # Terms that only Spark can evaluate

    @property
    def _named(self) -> dict[str, set[str]]:
        """The columns of each side that `on` names."""
        return named_columns(self.on, self.spec.r_schema, self.spec.s_schema)

    def _check_residual(self) -> None:
        """Lets Spark say what is wrong with `on`, before any task starts."""
        r, s = (
            frame.select(F.struct(*map(_quoted, self._named[side] or frame.columns)).alias(side))
            for side, frame in (("r", self.r), ("s", self.s))
        )
        try:
            r.join(s, F.expr(self.on), self.how).schema  # noqa: B018
        except AnalysisException as error:
            if error.getCondition() != "INVALID_NON_DETERMINISTIC_EXPRESSIONS":
                raise
            raise SpecError(f"on must give the same for the same rows every time, not {self.on!r}") from None

    def _decided(self, results: DataFrame) -> DataFrame:
        """The pairs for which Spark says that all of `on` holds, and all that is no pair."""
        if not self.spec.left:
            return results
        structs, place = [], 0
        for side, names in zip("rs", self._carried):
            fields = [(f"c{place + k}", name) for k, name in enumerate(names) if name in self._named[side]]
            if fields:
                structs.append(F.struct(*(F.col(c).alias(name) for c, name in fields)).alias(side))
            place += len(names)
        pair = "metrics IS NULL" + (f" AND {IS_PAIR}" if self._numbered else "")
        holds = F.when(F.expr(pair), F.expr(self.on)).otherwise(True)
        return results.select("*", *structs).where(holds).drop("r", "s")

    def _side(self, stream: str) -> DataFrame:
        """The rows of one stream: what orders them (t, k0, k1, ..., is_s), then a struct for each stream."""
        frame, other = (self.r, self.s) if stream == "r" else (self.s, self.r)
        is_s = stream == "s"

        def keys(name: str) -> list[Column]:
            return sort_keys(F.col(stream).getField(name), frame.schema[name].dataType)

        def named(prefix: str, pairs: Sequence[tuple[str, str]]) -> Iterator[Column]:
            columns = [key for pair in pairs for key in keys(pair[is_s])]
            return (key.alias(f"{prefix}{k}") for k, key in enumerate(columns))

        [time] = keys(self.spec.time[is_s])
        beside = "r" if is_s else "s"
        nothing = T.StructType([other.schema[name] for name in self._sent(beside)])
        return (
            frame.select(F.struct(*map(_quoted, self._sent(stream))).alias(stream))
            .withColumn(beside, F.lit(None).cast(nothing))
            .select(
                *named("b", self.spec.by if self.spec.by_key else ()),
                time.cast("long").alias("t"),
                *named("k", self.spec.tiebreak),
                F.lit(is_s).alias("is_s"),
                "r",
                "s",
            )
        )

    def _values(self, stream: str) -> list[Column]:
        """What orders rows that are otherwise tied: their own values, but for those that have no order."""
        if not self._values_count:
            return []
        return [
            F.col(stream).getField(field.name)
            for field in self.spec.schemas[stream]
            if is_sortable(field.type)
        ]

    @property
    def _values_count(self) -> bool:
        """Whether the order of tied rows can be seen: time windows do not depend on it."""
        return self.ordered or self.spec.window.kind == "rows"

    def _sent(self, stream: str) -> list[str]:
        """The columns of a stream that tasks need."""
        frame, carried = (self.r, self._carried[0]) if stream == "r" else (self.s, self._carried[1])
        needed = self.spec.needed(stream) | set(carried)
        return [name for name in frame.columns if self._values_count or name in needed]


def observed(observation: Observation) -> dict[str, int]:
    """The counts of an action that has ended. Spark delivers them a moment later, and waits without limit."""
    counts = []
    waiter = threading.Thread(target=lambda: counts.append(observation.get), daemon=True)
    waiter.start()
    waiter.join(COUNTS_DUE)
    if not counts:
        raise TouchlineError(f"Spark did not deliver the counts of the join within {COUNTS_DUE} s")
    return counts[0]


def _quoted(name: str) -> Column:
    """A column by its whole name, dots and all."""
    escaped = name.replace("`", "``")
    return F.col(f"`{escaped}`")


def _arrow_schema(side: str, schema: T.StructType) -> pa.Schema:
    """The Arrow schema in which Spark hands `schema` to a task."""
    fields = []
    for field in schema:
        kinds = list(parts(field.dataType))
        for part in kinds:
            # Arrow has no collations: such strings would be compared and ordered by their bytes.
            if isinstance(part, T.StringType) and not part.isUTF8BinaryCollation():
                raise SpecError(
                    f"`{side}.{field.name}` has the collation {part.collation}, by which rows are not "
                    "joined; accepted is UTF8_BINARY: collate the column, or drop it"
                )
        try:
            # A variant has an Arrow type, but one that cannot be null beside the rows of the other stream.
            if any(isinstance(part, T.VariantType) for part in kinds):
                raise PySparkException("variant")
            fields.append(pa.field(field.name, to_arrow_type(field.dataType, timezone="UTC"), field.nullable))
        except PySparkException:
            raise SpecError(
                f"`{side}.{field.name}` is {field.dataType.simpleString()}, which Spark cannot hand to "
                "Python as Arrow; drop the column or cast it"
            ) from None
    return pa.schema(fields)
