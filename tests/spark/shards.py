"""Shards of a streaming join without Spark: micro-batches go through the processor, state lies in memory."""

import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.streaming.tws_tester import TwsTester

from spark_offload.chunks import from_bytes, to_bytes
from spark_offload.settling import Settler, sent
from spark_offload.shard import STREAM_METRICS, Shard, ShardedJoin
from spark_offload.shard_keys import shard_keys
from spark_offload.streaming import unpacked
from spark_offload.task import ROW_NUMBERS

SECOND = 1_000_000
#: A watermark, in milliseconds, that has passed everything.
END = 10**9
#: The columns that `ids` reads.
IDS = (("id",), ("id",))


class Shards:
    """All shards of a join, and what has come out of them.

    `keep` is Spark's part of the condition, for the ids of a pair.
    """

    def __init__(self, join: ShardedJoin, keep: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None):
        self.join, self.keep, self.keys = join, keep, shard_keys(join.shards)
        # Late rows are the shards' own affair.
        self.tester = TwsTester(
            Shard(join, self.keys), timeMode="EventTime", eventTimeExtractor=lambda row: 2**62
        )
        self.settler = TwsTester(Settler(join), timeMode="None")
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
            frame = pd.DataFrame(
                [
                    (is_s, to_bytes(pa.table({"row": half.to_struct_array()})))
                    for is_s, table in parts
                    for half in (table.slice(0, table.num_rows // 2), table.slice(table.num_rows // 2))
                ],
                columns=["is_s", "data"],
            )
            # Every other shard gets them the other way round.
            outputs += [
                self.tester.testInPandas(key, frame[:: 1 - 2 * (k % 2)]) for k, key in enumerate(self.keys)
            ]
        outputs = [output for output in outputs if len(output)]
        if not outputs:
            return self._rows([])
        batches = self._unpacked(outputs)
        if self.join.numbered:
            batches = self._settled(batches)
        return self._rows(batches)

    def _unpacked(self, outputs: list[pd.DataFrame]) -> list[pa.RecordBatch]:
        batches = []
        for _, owned in pd.concat(outputs).groupby("owner"):
            batches += unpacked(self.join)([pa.RecordBatch.from_pandas(owned, preserve_index=False)])
        return batches

    def _settled(self, batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
        kept = []
        for batch in batches:
            r, s = (batch[name].fill_null(0).to_numpy() for name in ("c0", "c1"))
            pair = pc.and_(*(batch[name].is_valid() for name in ROW_NUMBERS))
            kept.append(batch.filter(pc.or_(pc.invert(pair), pa.array(self.keep(r, s)))))
        told = pa.Table.from_batches(sent(self.join, self.keys)(kept)).to_pandas()
        return self._unpacked(
            [
                self.settler.testInPandas(key, rows.drop(columns="owner").assign(owner=key))
                for key, rows in told.groupby("owner")
            ]
        )

    def settled_numbers(self) -> list[tuple[str, int]]:
        """What the settlers keep, by stream."""
        found = []
        for key in self.keys:
            directory = self.settler.peekValueState("directory", key)
            for entry in json.loads(directory[0])["entries"] if directory else ():
                data = self.settler.peekMapState("chunks", key)[(entry["number"],)][0]
                found += [(entry["kind"], number) for number in from_bytes(data)["number"].to_pylist()]
        return found

    def fail(self, r: pa.Table, s: pa.Table, watermark: int) -> None:
        """A micro-batch that fails when all is done: Spark goes on from the state before it."""
        handle, told = self.tester.handle, (self.metrics.copy(), self.state_rows)
        stores = [
            store
            for each in (handle, self.settler.handle)
            for store in (*each.value_states.values(), *each.map_states.values())
        ]
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
        empty = pa.table({side: pa.nulls(0, pa.int64()) for side in "rs"})
        rows = pa.Table.from_batches(batches) if batches else None
        if rows is None:
            return empty
        told = [row for row in rows["metrics"].to_pylist() if row is not None]
        told = [dict(zip(STREAM_METRICS, row, strict=True)) for row in told]
        for row in told:
            self.metrics.update({name: row[name] for name in STREAM_METRICS if name != "state_rows"})
        self.state_rows = sum(row["state_rows"] for row in told[-self.join.shards :])
        rows = rows.filter(rows["metrics"].is_null())
        return pa.table({"r": rows["c0"], "s": rows["c1"]})


def ids(rows: pa.Table) -> Counter:
    """Results as pairs of ids."""
    return Counter(zip(*(rows[side].to_pylist() for side in "rs")))


def micro_batches(rng: np.random.Generator, tables: list[pa.Table], count: int):
    """Rows as they come, up to 3 seconds late, and the highest watermark at which all are in time."""
    at = [table["ts"].cast(pa.int64()).fill_null(0).to_numpy() for table in tables]
    comes = [time + rng.integers(0, 3 * SECOND, len(time)) for time in at]
    end = max((int(come.max()) for come in comes if len(come)), default=0) + 1
    cuts = [*np.sort(rng.integers(0, end, count - 1)).tolist(), end]
    last, watermark = -1, 0
    for cut in cuts:
        to_come = [time[(come > last) & (time > 0)] for time, come in zip(at, comes)]
        earliest = min((int(times.min()) for times in to_come if len(times)), default=None)
        if earliest is not None:
            watermark = max(watermark, int(rng.integers(0, (earliest - 1) // 1000 + 1)))
        yield (
            [table.filter(pa.array((come > last) & (come <= cut))) for table, come in zip(tables, comes)],
            watermark,
        )
        last = cut
