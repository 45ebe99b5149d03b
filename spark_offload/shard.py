"""A shard of a streaming join: every row is shown to all shards and stored by one, as in SplitJoin.

::

    new rows --+--> shard 0: meet the rows stored there, store every P-th of the new ones
               +--> shard 1: ...
               +--> shard P - 1

Two rows meet where the older is stored; rows that are new in the same micro-batch meet where R's is stored.
All shards see the same rows and the same watermark, so they number rows alike without talking. A row at or
before the watermark of its micro-batch is late. With windows of rows, rows wait until the watermark has passed
them, and then come in arrival order, as in a batch.

In an outer join a row without a partner comes out when its window has passed, which all shards know in the
same micro-batch. The shard that stores it offers it then, and those where it had a partner say so.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from host.arrival import Arrivals, Side
from host.cpu import open_cpu
from host.device import open_when_free
from host.expression import SIDES
from host.session import Session, Stats
from host.spec import JoinSpec
from hw.errors import DataError

from .chunks import Chunks, Entry, from_bytes, to_bytes
from .task import check_architecture, scheduled_device

#: What a micro-batch reports beside its results; `state_rows` are those in the state stores.
STREAM_METRICS = ("late", "undated", "state_rows", *(field.name for field in fields(Stats)))
METRICS_TYPE = pa.struct([(name, pa.int64()) for name in STREAM_METRICS])
#: Rows in a batch that goes back to Spark.
BATCH_ROWS = 1 << 16
_LOWEST = np.iinfo(np.int64).min
#: Which rows come out without a partner, of R and of S.
OUTER = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}

_NOTHING = pa.table({"row": pa.nulls(0), "number": pa.array([], pa.int64()), "age": pa.array([], pa.int64())})

#: What shards give: results, or rows that have left, or the numbers of rows that had a partner elsewhere.
OUTPUT = T.StructType(
    [
        T.StructField("owner", T.IntegerType()),
        T.StructField("kind", T.StringType()),
        T.StructField("data", T.BinaryType()),
    ]
)


@dataclass(frozen=True)
class ShardedJoin:
    """The join that all shards do a part of."""

    spec: JoinSpec
    shards: int
    how: str = "inner"
    device: str | None = "cpu:auto"  #: its URL, or cpu:; None: the one that Spark has given to the task
    architecture: str | None = None  #: which the device must have

    @property
    def settles(self) -> bool:
        """Whether shards must compare notes on which rows have had a partner."""
        return self.how != "inner" and self.shards > 1

    def described(self) -> dict:
        """All that a checkpoint depends on: it can be continued only by a join of the same description."""
        spec = self.spec
        return {
            "shards": self.shards,
            "on": spec.on,
            "window": [spec.window.kind, spec.window.r, spec.window.s],
            "time": list(spec.time),
            "how": self.how,
            "tiebreak": [list(pair) for pair in spec.tiebreak],
            "time zone": spec.timezone,
            "columns of r": _columns(spec.r_schema),
            "columns of s": _columns(spec.s_schema),
        }

    @contextmanager
    def session(self) -> Iterator[Session]:
        """What joins: a core of this machine, or a device."""
        device = self.device or scheduled_device()
        if device.startswith("cpu:"):
            yield open_cpu(device, self.spec, threads=1)
            return
        with open_when_free(device) as opened:
            check_architecture(opened, self.architecture)
            yield Session(opened, self.spec)


@dataclass(frozen=True)
class Rows:
    """Rows of one stream, their numbers in it, and their ages: in what the window counts, time or rows."""

    table: pa.Table  #: row, number, age, and before: how many rows of the other stream came before

    def __len__(self) -> int:
        return self.table.num_rows

    @property
    def number(self) -> np.ndarray:
        return self.table["number"].to_numpy()

    @property
    def age(self) -> np.ndarray:
        return self.table["age"].to_numpy()

    @property
    def before(self) -> np.ndarray:
        return self.table["before"].to_numpy()

    def where(self, mask: np.ndarray) -> "Rows":
        return self if mask.all() else Rows(self.table.filter(pa.array(mask)))

    def take(self, rows: np.ndarray) -> "Rows":
        return Rows(self.table.take(pa.array(rows)))


class Shard(StatefulProcessor):
    """What Spark runs for each shard in each micro-batch; `keys` are the shards' keys in the state store."""

    def __init__(self, join: ShardedJoin, keys: list[int]):
        self._join, self._keys = join, keys

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle, self._chunks = handle, Chunks(handle)

    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        parts = [part for frame in rows for part in zip(frame["is_s"], frame["data"])]
        yield from self._advance(key[0], parts, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[pd.DataFrame]:
        yield from self._advance(key[0], [], timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        pass

    def _advance(self, key: int, parts: list[tuple[bool, bytes]], watermark: int) -> Iterator[pd.DataFrame]:
        """One micro-batch: new rows, and a watermark that may have moved."""
        self._chunks.load(self._join.described())
        self._check()
        step = Step(self._join, self._chunks, self._keys.index(key), watermark)
        yield from step.run(*(_decoded(parts, k, self._join.spec) for k in range(2)))
        self._chunks.directory.watermark = watermark
        self._set_timer(watermark, woken=not parts)
        self._chunks.save()

    def _check(self) -> None:
        """Refuses state that was made for another join."""
        known = self._chunks.directory.join
        for name, wanted in self._join.described().items():
            if known.get(name) != wanted:
                raise DataError(
                    f"the checkpoint is of a join with {name} {known.get(name)!r}, not {wanted!r}; "
                    "go on with that one, or give a new checkpointLocation"
                )

    def _set_timer(self, watermark: int, woken: bool) -> None:
        """Has Spark wake this shard when the watermark moves, if there is anything that may leave then."""
        directory = self._chunks.directory
        if directory.timer is not None and not woken:  # Spark deletes the timer that it wakes a shard for.
            self._handle.deleteTimer(directory.timer)
        directory.timer = watermark + 1 if directory.entries else None
        if directory.timer is not None:
            self._handle.registerTimer(directory.timer)


class Step:
    """What a micro-batch does to a shard."""

    def __init__(self, join: ShardedJoin, chunks: Chunks, shard: int, watermark: int):
        self._join, self._spec, self._chunks, self._shard = join, join.spec, chunks, shard
        self._outer = OUTER[join.how]
        before = chunks.directory.watermark
        #: Event times at or before which rows are late: in the last micro-batch, and now.
        self._passed = _LOWEST if before is None else before * 1000, watermark * 1000
        self._types = [pa.struct(self._spec.schemas[side]) for side in SIDES]
        self._metrics = dict.fromkeys(STREAM_METRICS, 0)

    def run(self, *tables: pa.Table) -> Iterator[pd.DataFrame]:
        """Joins the new rows of R and of S, keeps what later ones may join; yields rows of `OUTPUT`."""
        before = self._limits(self._passed[0])
        new = self._numbered([self._in_time(table, side) for table, side in zip(tables, SIDES)])
        mine = [rows.where(rows.number % self._join.shards == self._shard) for rows in new]
        if any(map(len, new)):
            yield from self._pairs(new, mine)
        for rows, kind in zip(mine, SIDES):
            self._chunks.add(kind, rows.table)
        yield from self._leave(before, self._limits(self._passed[1]))
        self._metrics["tuples"] = sum(map(len, mine))
        self._metrics["state_rows"] = sum(
            self._chunks.rows(kind) for side in SIDES for kind in (side, f"waiting {side}")
        )
        metrics = pa.array([self._metrics], METRICS_TYPE)
        yield self._output("rows", batch(*(pa.nulls(1, type) for type in self._types), metrics))

    def _output(self, kind: str, rows: pa.Table | pa.RecordBatch, owner: int | None = None) -> pd.DataFrame:
        to = self._shard if owner is None else owner
        return pd.DataFrame({"owner": [to], "kind": [kind], "data": [to_bytes(rows)]})

    # Rows that come

    def _in_time(self, table: pa.Table, side: str) -> pa.Table:
        """The rows after the watermark. The others are counted, by one shard for all."""
        times = self._spec.times(table, side)
        kept = table.filter(pc.fill_null(pc.greater(times, self._passed[1]), False))
        if self._shard == 0:
            self._metrics["undated"] += times.null_count
            self._metrics["late"] += table.num_rows - kept.num_rows - times.null_count
        return kept

    def _numbered(self, tables: list[pa.Table]) -> list[Rows]:
        """The rows that arrive now, in arrival order, with their numbers in the whole streams."""
        by_rows = self._spec.window.kind == "rows"
        if by_rows:
            tables = [self._released(table, side) for table, side in zip(tables, SIDES)]
        arrivals = self._spec.arrange(*tables)
        counts, rows = self._chunks.directory.counts, []
        for k, side in enumerate((arrivals.r, arrivals.s)):
            number = side.index + counts[k]
            columns = [
                side.rows.to_struct_array(),
                *map(pa.array, (number, number if by_rows else side.time, side.before + counts[1 - k])),
            ]
            rows.append(Rows(pa.table(columns, ["row", "number", "age", "before"])))
        self._chunks.directory.counts = [count + len(part) for count, part in zip(counts, rows)]
        return rows

    def _released(self, table: pa.Table, side: str) -> pa.Table:
        """The rows held back that the watermark has passed now; the new ones are held back."""
        kind, released = f"waiting {side}", [table.slice(0, 0)]
        last, now = self._passed
        for entry, held in self._chunks.of(kind):
            times = self._spec.times(held, side).to_numpy()
            released.append(held.filter(pa.array((times > last) & (times <= now))))
            self._trim(entry, held, times > now)
        self._chunks.add(kind, table)
        return pa.concat_tables(released)

    def _trim(self, entry: Entry, rows: pa.Table, live: np.ndarray) -> None:
        """Drops a chunk in which nothing lives, and shortens one in which little does."""
        if 2 * np.count_nonzero(live) < len(live):
            self._chunks.replace(entry, rows.filter(pa.array(live)))

    # Rows that meet

    def _pairs(self, new: list[Rows], mine: list[Rows]) -> Iterator[pd.DataFrame]:
        """New rows of S meet the R rows that are stored here now, new rows of R the S rows stored before."""
        kept = [[table for _, table in self._chunks.of(side)] for side in SIDES]
        stored = (
            Rows(pa.concat_tables([*tables, rows.table]).combine_chunks())
            for tables, rows in zip(kept, (mine[0], new[1].take(np.empty(0, np.int64))))
        )
        with self._join.session() as session:
            for r, s in zip((next(stored), new[0]), (new[1], next(stored))):
                if not (len(r) and len(s)):
                    continue
                arrivals, orders = self._arrivals(r, s)
                result = session.join(arrivals)
                found = orders[0][result.r], orders[1][result.s]
                for name in ("pairs", "cycles", "comparisons", "stalls", "tiles"):
                    self._metrics[name] += getattr(result.stats, name)
                for start in range(0, len(result.r), BATCH_ROWS):
                    both = (
                        side.table["row"].take(pa.array(rows[start : start + BATCH_ROWS]))
                        for side, rows in zip((r, s), found)
                    )
                    yield self._output("rows", batch(*both))
                for k, side in enumerate((r, s)):
                    if self._outer[k]:
                        met = side.take(np.unique(found[k])).table.select(["number", "age"])
                        self._chunks.add(f"met {SIDES[k]}", met)

    def _arrivals(self, r: Rows, s: Rows) -> tuple[Arrivals, list[np.ndarray]]:
        """Rows in the order in which windows count them, and which row each of them is."""
        orders = [np.argsort(side.age, kind="stable") for side in (r, s)]
        r, s = (side.take(order) for side, order in zip((r, s), orders))
        if self._spec.window.kind == "rows":
            places = [(side.number, side.before) for side in (r, s)]
        else:
            # Rows of streams do not come in the order of event time, so their numbers are not in order.
            before = np.searchsorted(s.age, r.age, "left"), np.searchsorted(r.age, s.age, "right")
            places = [(np.arange(len(side)), others) for side, others in zip((r, s), before)]
        sides = (
            Side(pa.Table.from_struct_array(side.table["row"]), side.age, *place, np.ones(len(side), bool))
            for side, place in zip((r, s), places)
        )
        return Arrivals(*sides), orders

    # Rows that leave

    def _limits(self, passed: int) -> list[int]:
        """The ages below which rows of R and of S join no row after those that have come."""
        window = self._spec.window
        ends = self._chunks.directory.counts if window.kind == "rows" else (passed + 1, passed + 1)
        return [max(end - size, _LOWEST) for end, size in zip(ends, (window.r, window.s))]

    def _leave(self, before: list[int], now: list[int]) -> Iterator[pd.DataFrame]:
        """Drops the rows whose window has passed; those that had no partner come out, in an outer join."""
        for k, side in enumerate(SIDES):
            met = self._leaving(f"met {side}", before[k], now[k])
            gone = self._leaving(side, before[k], now[k])
            if not self._outer[k]:
                continue
            alone = gone.where(~np.isin(gone.number, met.number))
            if not self._join.settles:
                yield from self._alone(alone, k)
                continue
            if len(alone):
                yield self._output(f"left {side}", alone.table.select(["row", "number"]))
            owners = met.number % self._join.shards
            for owner in np.unique(owners[owners != self._shard]).tolist():
                theirs = met.where(owners == owner)
                yield self._output(f"met {side}", theirs.table.select(["number"]), owner)

    def _leaving(self, kind: str, before: int, now: int) -> Rows:
        """The rows in chunks of a kind that leave in this micro-batch, and have not left before."""
        leaving = []
        for entry, table in self._chunks.of(kind):
            age = table["age"].to_numpy()
            leaving.append(table.filter(pa.array((age >= before) & (age < now))))
            self._trim(entry, table, age >= now)
        return Rows(pa.concat_tables(leaving) if leaving else _NOTHING)

    def _alone(self, rows: Rows, k: int) -> Iterator[pd.DataFrame]:
        """Results of rows without a partner."""
        for start in range(0, len(rows), BATCH_ROWS):
            yield self._output("rows", alone(rows.table["row"].slice(start, BATCH_ROWS), k, self._types))


def alone(rows: pa.ChunkedArray, k: int, types: list[pa.DataType]) -> pa.RecordBatch:
    """The results of some rows of R (k = 0) or S (k = 1) without a partner."""
    nothing = pa.nulls(len(rows), types[1 - k])
    return batch(*((nothing, rows) if k else (rows, nothing)))


def batch(r, s, metrics: pa.Array | None = None) -> pa.RecordBatch:
    """Rows of R beside rows of S, or metrics."""
    beside = pa.nulls(len(r), METRICS_TYPE) if metrics is None else metrics
    columns = [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in (r, s, beside)]
    return pa.RecordBatch.from_arrays(columns, names=["r", "s", "metrics"])


def _decoded(parts: list[tuple[bool, bytes]], k: int, spec: JoinSpec) -> pa.Table:
    """The new rows of R (k = 0) or S (k = 1)."""
    schema = spec.schemas[SIDES[k]]
    tables = [schema.empty_table()]
    for is_s, data in parts:
        if is_s == k:
            rows = from_bytes(data)["row"].cast(pa.struct(schema))
            tables.append(pa.Table.from_struct_array(rows))
    return pa.concat_tables(tables)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
