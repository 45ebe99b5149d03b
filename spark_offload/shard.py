"""A shard of a streaming join: every row is shown to all shards and stored by one, as in SplitJoin.

::

    new rows --+--> shard 0: meet the rows stored there, store every P-th of the new ones
               +--> shard 1: ...
               +--> shard P - 1

Two rows meet where the older is stored; rows that are new in the same micro-batch meet where R's is stored.
All shards see the same rows and the same watermark, so they number rows alike without talking. A row at or
before the watermark of its micro-batch is late. With windows of rows, rows wait until the watermark has
passed them, and then come in arrival order, as in a batch.

In an outer join a row without a partner comes out when its window has passed, which all shards know in the
same micro-batch. The shard that stores it offers it then, and those where it had a partner say so. If Spark
has to say which pairs there are, every row that leaves comes out, with a number, as pairs do, and
`settling.py` finds those without a partner.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from host import encoding
from host.arrival import Arrivals, Side
from host.evaluate import Rows as Columns
from host.expression import SIDES
from host.pieces import OUTER
from host.session import Stats
from host.spec import JoinSpec
from host.window import EARLIEST

from .chunks import Chunks, Entry, from_bytes, to_bytes
from .groups import Groups
from .joiner import Joiner, Where
from .task import METRICS_TYPE, ROW_NUMBERS

#: What shards report for each micro-batch: `state_rows` are in the state stores, `joining` is microseconds,
#: `on_cpu` and `fallbacks` count shards that no device joined, and those in which one failed.
STREAM_METRICS = (
    *("late", "undated", "state_rows", "joining", "on_cpu", "fallbacks"),
    *(field.name for field in fields(Stats)),
)
#: Rows in a batch that goes back to Spark.
BATCH_ROWS = 1 << 16

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
    how: str
    where: Where
    columns: tuple[tuple[str, ...], tuple[str, ...]]  #: of R and S, that come out

    @property
    def settles(self) -> bool:
        """Whether a row may have partners in several shards, and none of them may be its own."""
        return self.how != "inner" and self.shards > 1 and not self.spec.by and not self.numbered

    @property
    def numbered(self) -> bool:
        """Whether pairs and rows that leave come with their numbers: Spark decides which pairs there are."""
        return self.how != "inner" and bool(self.spec.left)

    @property
    def types(self) -> list[list[pa.DataType]]:
        """Of the columns of R and of S that come out."""
        return [
            [self.spec.schemas[side].field(name).type for name in names]
            for side, names in zip(SIDES, self.columns)
        ]

    def described(self) -> dict:
        """All that a checkpoint depends on: it can be continued only by a join of the same description."""
        spec = self.spec
        return {
            "shards": self.shards,
            "on": spec.on,
            "window": [spec.window.kind, spec.window.r, spec.window.s],
            "time": list(spec.time),
            "how": self.how,
            "by": [list(pair) for pair in spec.by],
            "tiebreak": [list(pair) for pair in spec.tiebreak],
            "time zone": spec.timezone,
            "columns of r": _columns(spec.r_schema),
            "columns of s": _columns(spec.s_schema),
        }


@dataclass(frozen=True)
class Rows:
    """Rows of one stream, their numbers in it, and their ages: in what the window counts, time or rows."""

    #: row, number, age, and before: how many rows of the other stream came before. With windows of rows by
    #: key, age and before count the rows of a key alone, and group is the number of the key.
    table: pa.Table

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

    @property
    def group(self) -> np.ndarray:
        return self.table["group"].to_numpy()

    def where(self, mask: np.ndarray) -> "Rows":
        return self if mask.all() else Rows(self.table.filter(pa.array(mask)))

    def take(self, rows: np.ndarray) -> "Rows":
        return Rows(self.table.take(pa.array(rows)))

    def columns(self, names: tuple[str, ...]) -> list[pa.Array]:
        """Some columns of the rows themselves."""
        rows = pa.Table.from_struct_array(self.table["row"])
        return [rows[name].combine_chunks() for name in names]


class Shard(StatefulProcessor):
    """What Spark runs for each shard in each micro-batch; `keys` are the shards' keys in the state store."""

    def __init__(self, join: ShardedJoin, keys: list[int]):
        self._join, self._keys = join, keys

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle, self._chunks = handle, Chunks(handle)

    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        # Shuffled parts come in any order, but rows that are tied must have the same order in all shards.
        parts = sorted(part for frame in rows for part in zip(frame["is_s"], frame["data"]))
        yield from self._advance(key[0], parts, timerValues.getCurrentWatermarkInMs())

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo) -> Iterator[pd.DataFrame]:
        yield from self._advance(key[0], [], timerValues.getCurrentWatermarkInMs())

    def close(self) -> None:
        pass

    def _advance(self, key: int, parts: list[tuple[bool, bytes]], watermark: int) -> Iterator[pd.DataFrame]:
        """One micro-batch: new rows, and a watermark that may have moved."""
        self._chunks.load(self._join.described())
        step = Step(self._join, self._chunks, self._keys.index(key), watermark)
        yield from step.run(*(_decoded(parts, k, self._join.spec) for k in range(2)))
        self._chunks.directory.watermark = watermark
        self._set_timer(watermark, woken=not parts)
        self._chunks.save()

    def _set_timer(self, watermark: int, woken: bool) -> None:
        """Has Spark wake this shard when the watermark moves, if there is anything that may leave then."""
        directory = self._chunks.directory
        if directory.timer is not None and not woken:  # Spark deletes the timer that it wakes a shard for.
            self._handle.deleteTimer(directory.timer)
        directory.timer = watermark + 1 if directory.entries else None
        if directory.timer is not None:
            self._handle.registerTimer(directory.timer)


class Step:
    """What a micro-batch does to a shard.

    A row's age is its event time, or its number in what the window counts; `group` is there with windows of
    rows by key only.
    """

    def __init__(self, join: ShardedJoin, chunks: Chunks, shard: int, watermark: int):
        self._join, self._spec, self._chunks, self._shard = join, join.spec, chunks, shard
        self._outer = OUTER[join.how]
        before = chunks.directory.watermark
        #: Event times at or before which rows are late: in the last micro-batch, and now.
        self._passed = EARLIEST if before is None else before * 1000, watermark * 1000
        self._metrics = dict.fromkeys(STREAM_METRICS, 0)

    def run(self, *tables: pa.Table) -> Iterator[pd.DataFrame]:
        """Joins the new rows of R and of S, keeps what later ones may join; yields rows of `OUTPUT`."""
        yield from self._undated(tables)
        tables = [self._mine(self._in_time(table, side), side) for table, side in zip(tables, SIDES)]
        counts = self._chunks.directory.counts
        new = self._numbered(tables)
        mine = [rows.where(self._stored(rows)) for rows in new]
        if any(map(len, new)):
            yield from self._pairs(new, mine)
        for rows, kind in zip(mine, SIDES):
            self._chunks.add(kind, rows.table)
        yield from self._leave(*self._limits(counts))
        self._metrics["tuples"] = sum(map(len, mine))
        self._metrics["state_rows"] = sum(
            self._chunks.rows(kind) for side in SIDES for kind in (side, f"waiting {side}")
        )
        metrics = pa.array([[self._metrics[name] for name in STREAM_METRICS]], METRICS_TYPE)
        nothing = [pa.nulls(1, type) for types in self._join.types for type in types]
        yield self._output("rows", _batch(self._join, nothing, [None, None], metrics))

    def _output(self, kind: str, rows: pa.Table | pa.RecordBatch, owner: int | None = None) -> pd.DataFrame:
        to = self._shard if owner is None else owner
        return pd.DataFrame({"owner": [to], "kind": [kind], "data": [to_bytes(rows)]})

    # Rows that come

    def _undated(self, tables: list[pa.Table]) -> Iterator[pd.DataFrame]:
        """Rows without event time have no partner. One shard speaks for all."""
        for k, (table, side) in enumerate(zip(tables, SIDES)):
            undated = table.filter(self._spec.times(table, side).is_null())
            if self._shard == 0 and undated.num_rows:
                self._metrics["undated"] += undated.num_rows
                if self._outer[k]:
                    yield self._output("rows", alone(undated, k, self._join))

    def _in_time(self, table: pa.Table, side: str) -> pa.Table:
        """The rows after the watermark. Late ones are counted, by one shard for all."""
        times = self._spec.times(table, side)
        if self._shard == 0:
            self._metrics["late"] += pc.sum(pc.less_equal(times, self._passed[1])).as_py() or 0
        return table.filter(pc.fill_null(pc.greater(times, self._passed[1]), False))

    def _mine(self, table: pa.Table, side: str) -> pa.Table:
        """The rows of the keys that this shard has, if rows join only within a key; otherwise all."""
        if not self._spec.by:
            return table
        hashed = np.zeros(table.num_rows, np.uint64)
        for pair in self._spec.by:
            column = Columns.of(side, table).column(side, pair[SIDES.index(side)])
            hashed = encoding.mix(hashed ^ encoding.encode(column)[0])
        return table.filter(pa.array(hashed % np.uint64(self._join.shards) == self._shard))

    def _stored(self, rows: Rows) -> np.ndarray:
        """Which rows this shard stores."""
        if self._spec.by:
            return np.ones(len(rows), bool)
        return rows.number % self._join.shards == self._shard

    def _numbered(self, tables: list[pa.Table]) -> list[Rows]:
        """The rows that arrive now, in arrival order, with their numbers in the whole streams."""
        by_rows = self._spec.window.kind == "rows"
        if by_rows:
            tables = [self._released(table, side) for table, side in zip(tables, SIDES)]
        arrivals = self._spec.arrange(*tables)
        sides, counts = (arrivals.r, arrivals.s), self._chunks.directory.counts
        self._chunks.directory.counts = [count + len(side.time) for count, side in zip(counts, sides)]
        columns = [
            {
                "row": side.rows.to_struct_array(),
                "number": side.index + counts[k],
                "age": side.index + counts[k] if by_rows else side.time,
                "before": side.before + counts[1 - k],
            }
            for k, side in enumerate(sides)
        ]
        if self._spec.by_key:
            known = [table for _, table in self._chunks.of("groups")]
            self._groups = Groups(self._spec, known[0] if known else None)
            for mine, grouped in zip(columns, self._groups.number(arrivals)):
                mine.update(zip(("age", "before", "group"), grouped))
            if any(map(len, (arrivals.r.time, arrivals.s.time))):
                self._chunks.put("groups", self._groups.table)
        return [Rows(pa.table(mine)) for mine in columns]

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
        with Joiner(self._spec, self._join.where, f"shard {self._shard}", self._metrics) as join:
            for r, s in zip((next(stored), new[0]), (new[1], next(stored))):
                if not (len(r) and len(s)):
                    continue
                arrivals, orders = self._arrivals(r, s)
                result = join(arrivals)
                found = orders[0][result.r], orders[1][result.s]
                self._metrics["pairs"] += len(result.r)
                for name in ("cycles", "comparisons", "stalls", "tiles"):
                    self._metrics[name] += getattr(result.stats, name)
                both = [side.columns(names) for side, names in zip((r, s), self._join.columns)]
                for start in range(0, len(result.r), BATCH_ROWS):
                    chosen = [rows[start : start + BATCH_ROWS] for rows in found]
                    taken = [
                        column.take(pa.array(rows)) for side, rows in zip(both, chosen) for column in side
                    ]
                    numbers = [None, None]
                    if self._join.numbered:
                        numbers = [self._global(side.number[rows]) for side, rows in zip((r, s), chosen)]
                    yield self._output("rows", _batch(self._join, taken, numbers))
                for k, side in enumerate((r, s)):
                    if self._outer[k] and not self._join.numbered:
                        met = side.take(np.unique(found[k])).table.drop_columns(["row", "before"])
                        self._chunks.add(f"met {SIDES[k]}", met)

    def _arrivals(self, r: Rows, s: Rows) -> tuple[Arrivals, list[np.ndarray]]:
        """Rows in the order in which windows count them, and which row each of them is."""
        orders = [
            np.lexsort([side.age, side.group]) if self._spec.by_key else np.argsort(side.age, kind="stable")
            for side in (r, s)
        ]
        r, s = (side.take(order) for side, order in zip((r, s), orders))
        if self._spec.by_key:
            # Keys one after another, each numbered as if it were alone: `on` has that keys are equal.
            span = 1 + max(int(numbers.max()) for side in (r, s) for numbers in (side.age, side.before))
            places = [(side.age + span * side.group, side.before + span * side.group) for side in (r, s)]
        elif self._spec.window.kind == "rows":
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

    def _limits(self, counts: list[int]) -> list[list]:
        """The ages below which rows of R and of S had left, and those below which they leave now.

        With windows of rows by key each group has its own. `counts` are those before this micro-batch.
        """
        if self._spec.by_key:
            ends = self._groups.begun, self._groups.counts
        elif self._spec.window.kind == "rows":
            ends = counts, self._chunks.directory.counts
        else:
            ends = [[passed + 1] * 2 for passed in self._passed]
        sizes = self._spec.window.r, self._spec.window.s
        limits = [[end - size for end, size in zip(both, sizes)] for both in ends]
        return limits if self._spec.by_key else [[max(limit, EARLIEST) for limit in both] for both in limits]

    def _leave(self, before, now) -> Iterator[pd.DataFrame]:
        """Drops the rows whose window has passed; those that had no partner come out, in an outer join."""
        for k, side in enumerate(SIDES):
            met = self._leaving(f"met {side}", before[k], now[k])
            gone = self._leaving(side, before[k], now[k])
            if not self._outer[k]:
                continue
            if self._join.numbered:
                yield from self._alone(gone, k)
                continue
            single = gone.where(~np.isin(gone.number, met.number))
            if not self._join.settles:
                yield from self._alone(single, k)
                continue
            if len(single):
                yield self._output(f"left {side}", single.table.select(["row", "number"]))
            owners = met.number % self._join.shards
            for owner in np.unique(owners[owners != self._shard]).tolist():
                theirs = met.where(owners == owner)
                yield self._output(f"met {side}", theirs.table.select(["number"]), owner)

    def _leaving(self, kind: str, before, now) -> Rows:
        """The rows in chunks of a kind that leave in this micro-batch, and have not left before."""
        leaving = [_NOTHING]
        for entry, table in self._chunks.of(kind):
            rows = Rows(table)
            first, last = (limit[rows.group] if self._spec.by_key else limit for limit in (before, now))
            leaving.append(table.filter(pa.array((rows.age >= first) & (rows.age < last))))
            self._trim(entry, table, rows.age >= last)
        return Rows(pa.concat_tables(leaving[1:] or leaving))

    def _alone(self, rows: Rows, k: int) -> Iterator[pd.DataFrame]:
        """Results of rows without a partner."""
        for start in range(0, len(rows), BATCH_ROWS):
            part = pa.Table.from_struct_array(rows.table["row"].slice(start, BATCH_ROWS))
            number = self._global(rows.number[start : start + BATCH_ROWS])
            yield self._output("rows", alone(part, k, self._join, number))

    def _global(self, number: np.ndarray) -> np.ndarray:
        """Numbers that no other row of the stream has, in any shard; modulo shards they say who stores it."""
        return number * self._join.shards + self._shard if self._spec.by else number


def alone(rows: pa.Table, k: int, join: ShardedJoin, number: np.ndarray | None = None) -> pa.RecordBatch:
    """The results of some rows of R (k = 0) or S (k = 1) without a partner.

    Where Spark decides which pairs there are, `number` says which rows they are; without it, no row had any.
    """
    both = [[pa.nulls(rows.num_rows, type) for type in types] for types in join.types]
    both[k] = [rows[name].combine_chunks() for name in join.columns[k]]
    numbers = [None, None]
    numbers[k] = np.full(rows.num_rows, -1) if number is None else number
    return _batch(join, [*both[0], *both[1]], numbers)


def _batch(
    join: ShardedJoin,
    columns: list[pa.Array],
    numbers: list[np.ndarray | None],
    metrics: pa.Array | None = None,
) -> pa.RecordBatch:
    """Columns of R beside columns of S, or metrics; numbers only where they are needed."""
    named = {f"c{k}": column for k, column in enumerate(columns)}
    count = len(columns[0])
    if join.numbered:
        none = pa.nulls(count, pa.int64())
        named |= {
            name: none if known is None else pa.array(known) for name, known in zip(ROW_NUMBERS, numbers)
        }
    named["metrics"] = pa.nulls(count, METRICS_TYPE) if metrics is None else metrics
    return pa.RecordBatch.from_pydict(named)


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
