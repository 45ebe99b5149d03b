"""Joins of streaming DataFrames: rows are packed, shown to all shards, joined there, and unpacked again.

::

    R -> pack --+--> shards (state store) --+--> [ settle ] --> unpack -> rows [ -> Spark: on? -> settlers ]
    S -> pack --+                           |
                                            +--> metrics

Rows go through Spark's stateful operator as a few Arrow streams, not one by one. `settle` is for outer joins
over several shards: what leaves one of them without a partner may have had one in another. Settlers are for
outer joins with terms that only Spark can evaluate.
"""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.conf import RuntimeConfig

from host.expression import SIDES
from host.spec import JoinSpec
from hw.errors import ParameterError, SpecError

from .chunks import from_bytes, to_bytes
from .settling import Settler, sent
from .shard import OUTPUT, STREAM_METRICS, Shard, ShardedJoin, alone
from .shard_keys import shard_keys
from .task import IS_PAIR

#: The name under which a `StreamingQueryListener` finds the counts of `shard.STREAM_METRICS`.
OBSERVED = "stream_join"
#: Rows in a packed stream.
PACKED_ROWS = 1 << 18
#: Shards that are used unless others are asked for, if Spark shuffles into as many partitions.
MOST_SHARDS = 4
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"

_PACKED = T.StructType([T.StructField("is_s", T.BooleanType()), T.StructField("data", T.BinaryType())])


def both_streaming(r: DataFrame, s: DataFrame) -> bool:
    """Whether the two are streams; they must be of one kind."""
    if r.isStreaming != s.isStreaming:
        kinds = " and ".join("streaming" if frame.isStreaming else "batch" for frame in (r, s))
        raise SpecError(f"r and s must both be batch or both be streaming DataFrames, not {kinds}")
    return r.isStreaming


def check_streams(r: DataFrame, s: DataFrame, spec: JoinSpec, ordered: bool) -> None:
    """Refuses what streams cannot do, missing watermarks, and state stores that cannot hold shards."""
    if ordered:
        raise ParameterError("ordered must be False for streaming DataFrames, not True")
    for side, frame, name in zip(SIDES, (r, s), spec.time):
        if "spark.watermarkDelayMs" not in (frame.schema[name].metadata or {}):
            raise SpecError(
                f"`{side}.{name}` has no watermark, so the join would never know which rows are late; use "
                f"{side}.withWatermark({name!r}, '10 seconds')"
            )
    conf = r.sparkSession.conf
    provider = conf.get(PROVIDER)
    if provider != ROCKSDB:
        raise ParameterError(f"{PROVIDER} must be {ROCKSDB} for streaming joins, not {provider}")


def shard_count(partitions: int | None, conf: RuntimeConfig) -> int:
    """How many shards there are: as many as asked for, or a few."""
    return partitions or min(int(conf.get("spark.sql.shuffle.partitions")), MOST_SHARDS)


def joined(r: DataFrame, s: DataFrame, join: ShardedJoin, schema: T.StructType) -> DataFrame:
    """The results in the columns c0, c1, ..., and beside nothing the `metrics` of each shard."""
    keys = shard_keys(join.shards)
    shown = _packed(r, "r").union(_packed(s, "s"))
    shown = shown.withColumn("shard", F.explode(F.array(*map(F.lit, keys))))
    output = shown.groupBy("shard").transformWithStateInPandas(
        Shard(join, keys), OUTPUT, "append", "EventTime"
    )
    if join.settles:
        output = output.repartitionById(join.shards, "owner")
    return output.mapInArrow(unpacked(join), schema)


def settled(results: DataFrame, join: ShardedJoin, schema: T.StructType) -> DataFrame:
    """Results, once Spark has taken out pairs, without the rows that had a partner: see `settling.py`."""
    keys = shard_keys(join.shards)
    output = results.mapInArrow(sent(join, keys), OUTPUT)
    output = output.groupBy("owner").transformWithStateInPandas(Settler(join), OUTPUT, "append", "None")
    return output.mapInArrow(unpacked(join), schema)


def stream_counts(join: ShardedJoin) -> Iterator[Column]:
    """The counts of a micro-batch. Which pairs Spark keeps, it alone can count."""
    counts = {
        name: F.coalesce(F.sum(F.get("metrics", F.lit(k))), F.lit(0)) for k, name in enumerate(STREAM_METRICS)
    }
    results = F.count_if(F.col("metrics").isNull())
    if join.numbered:
        counts["pairs"] = F.count_if(F.expr(IS_PAIR))
    elif join.spec.left:
        counts["pairs"] = results
    counts["alone"] = results - counts["pairs"]
    return (count.alias(name) for name, count in counts.items())


def _packed(frame: DataFrame, side: str) -> DataFrame:
    """The rows of one stream as a few Arrow streams."""
    is_s = side == "s"

    def pack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        waiting: list[pa.RecordBatch] = []
        for batch in batches:
            waiting.append(batch)
            if sum(part.num_rows for part in waiting) >= PACKED_ROWS:
                yield packed(waiting)
                waiting = []
        if waiting:
            yield packed(waiting)

    def packed(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
        data = to_bytes(pa.Table.from_batches(batches))
        return pa.RecordBatch.from_pydict({"is_s": [is_s], "data": [data]})

    return frame.select(F.struct("*").alias("row")).mapInArrow(pack, _PACKED)


def unpacked(join: ShardedJoin) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What turns the shards' output into rows."""

    def unpack(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        left: list[tuple[str, pa.Table]] = []
        met: dict[str, list[np.ndarray]] = {side: [np.empty(0, np.int64)] for side in SIDES}
        for batch in batches:
            for kind, data in zip(batch["kind"].to_pylist(), batch["data"].to_pylist()):
                what, _, side = kind.partition(" ")
                rows = from_bytes(data)
                if what == "rows":
                    yield from rows.to_batches()
                elif what == "left":
                    left.append((side, rows))
                else:
                    met[side].append(rows["number"].to_numpy())
        for side, rows in left:
            single = ~np.isin(rows["number"].to_numpy(), np.concatenate(met[side]))
            rows = pa.Table.from_struct_array(rows["row"].filter(pa.array(single)))
            yield alone(rows, SIDES.index(side), join)

    return unpack
