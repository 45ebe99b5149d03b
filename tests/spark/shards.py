"""Shards of a streaming join without Spark: micro-batches go through the processor, state lies in memory."""

from collections import Counter
from copy import deepcopy

import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.tws_tester import TwsTester

from spark_offload.chunks import to_bytes
from spark_offload.shard import STREAM_METRICS, Shard, ShardedJoin
from spark_offload.shard_keys import shard_keys
from spark_offload.streaming import unpacked


class Shards:
    """All shards of a join, and what has come out of them."""

    def __init__(self, join: ShardedJoin):
        self.join, self.keys = join, shard_keys(join.shards)
        # Late rows are the shards' own affair.
        self.tester = TwsTester(
            Shard(join, self.keys), timeMode="EventTime", eventTimeExtractor=lambda row: 2**62
        )
        self.metrics = Counter()
        self.state_rows = 0

    def run(self, r: pa.Table, s: pa.Table, watermark: int) -> pa.Table:
        """What a micro-batch gives, whose watermark is in milliseconds: columns r and s."""
        outputs = []
        if watermark > self.tester._currentWatermarkMs:
            self.tester._usingPandas = True
            outputs.append(self.tester.setWatermark(watermark))
        parts = [(side == "s", table) for side, table in (("r", r), ("s", s)) if table.num_rows]
        if parts:
            packed = [to_bytes(pa.table({"row": table.to_struct_array()})) for _, table in parts]
            frame = pd.DataFrame({"is_s": [is_s for is_s, _ in parts], "data": packed})
            outputs += [self.tester.testInPandas(key, frame) for key in self.keys]
        outputs = [output for output in outputs if len(output)]
        if not outputs:
            return self._rows([])
        together = pd.concat(outputs)
        batches = []
        for _, owned in together.groupby("owner"):
            batches += unpacked(self.join)([pa.RecordBatch.from_pandas(owned, preserve_index=False)])
        return self._rows(batches)

    def fail(self, r: pa.Table, s: pa.Table, watermark: int) -> None:
        """A micro-batch that fails when all is done: Spark goes on from the state before it."""
        handle, told = self.tester.handle, (self.metrics.copy(), self.state_rows)
        stores = [*handle.value_states.values(), *handle.map_states.values()]
        states = [deepcopy(store.state) for store in stores]
        timers, now = deepcopy(handle._timers._key_to_timers), self.tester._currentWatermarkMs
        self.run(r, s, watermark)
        for store, state in zip(stores, states):
            store.state = state
        handle._timers._key_to_timers = timers
        self.tester._currentWatermarkMs = now
        handle.setWatermark(now)
        self.metrics, self.state_rows = told

    def _rows(self, batches: list[pa.RecordBatch]) -> pa.Table:
        empty = pa.table({side: pa.nulls(0, pa.struct(self.join.spec.schemas[side])) for side in "rs"})
        rows = pa.Table.from_batches(batches) if batches else None
        if rows is None:
            return empty
        told = [row for row in rows["metrics"].to_pylist() if row is not None]
        for row in told:
            self.metrics.update({name: row[name] for name in STREAM_METRICS if name != "state_rows"})
        self.state_rows = sum(row["state_rows"] for row in told[-self.join.shards :])
        return rows.filter(rows["metrics"].is_null()).select(["r", "s"])
