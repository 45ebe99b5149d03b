"""Settling: which rows of a stream had no partner, once Spark has said which pairs there are.

::

    shards --> pairs, rows that leave --> Spark: on? --+--> settler (state store) --> pairs, rows alone
                                                       |    ...
                                                       +--> settler

The numbers of rows go to the settler of the shard that stores them, which keeps those that had a partner
until they leave; they leave in a micro-batch after which they have no more pairs. Pairs and metrics go
through a settler as they are, because a stream cannot be read twice.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import cycle, islice

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from host.expression import SIDES
from host.pieces import OUTER

from .chunks import Chunks, from_bytes, to_bytes
from .shard import OUTPUT, ShardedJoin
from .task import ROW_NUMBERS


def sent(
    join: ShardedJoin, keys: list[int]
) -> Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What sends the shards' results, of which Spark has taken out some pairs, to the settlers.

    In rows of `OUTPUT`, whose `kind` is "rows", or "left r", "met s" and so on; `owner` is a settler's key.
    """

    def send(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # Tasks begin with different settlers, so that few batches are spread as well.
        task = TaskContext.get()
        turns = islice(cycle(keys), task.partitionId() % len(keys) if task else 0, None)
        for batch, turn in zip(batches, turns):
            yield pa.RecordBatch.from_pylist(
                [
                    {"owner": turn if key is None else key, "kind": kind, "data": to_bytes(rows)}
                    for key, kind, rows in parts(batch)
                    if rows.num_rows
                ],
                schema,
            )

    def parts(batch: pa.RecordBatch) -> Iterator[tuple[int | None, str, pa.RecordBatch]]:
        numbers = [batch.column(name) for name in ROW_NUMBERS]
        both = pc.and_(*(number.is_valid() for number in numbers))
        yield None, "rows", batch.filter(pc.or_(both, batch.column("metrics").is_valid()))
        for side, number, outer in zip(SIDES, numbers, OUTER[join.how]):
            if outer:
                met = pa.record_batch({"number": pc.unique(number.filter(both))})
                yield from owned(f"met {side}", met, met["number"])
                left = pc.and_not(number.is_valid(), both)
                yield from owned(f"left {side}", batch.filter(left), number.filter(left))

    def owned(kind: str, rows: pa.RecordBatch, number: pa.Array) -> Iterator[tuple[int, str, pa.RecordBatch]]:
        owner = number.to_numpy() % join.shards
        for shard, key in enumerate(keys):
            yield key, kind, rows.filter(pa.array(owner == shard))

    schema = to_arrow_schema(OUTPUT)
    return send


class Settler(StatefulProcessor):
    """What Spark runs for the rows of each shard in each micro-batch."""

    def __init__(self, join: ShardedJoin):
        self._join = join

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._chunks = Chunks(handle)

    def handleInputRows(self, key, rows, timerValues) -> Iterator[pd.DataFrame]:
        self._chunks.load(self._join.described())
        told: dict[str, list[pa.Table]] = {}
        for frame in rows:
            passed = frame["kind"] == "rows"
            yield frame.loc[passed, OUTPUT.names]
            for kind, data in frame.loc[~passed, ["kind", "data"]].itertuples(index=False):
                told.setdefault(kind, []).append(from_bytes(data))
        for side, name in zip(SIDES, ROW_NUMBERS):
            if met := told.get(f"met {side}"):
                self._remember(f"met {side}", pa.concat_tables(met)["number"].to_numpy())
            if left := told.get(f"left {side}"):
                single = self._single(side, pa.concat_tables(left), name)
                yield pd.DataFrame({"owner": [key[0]], "kind": ["rows"], "data": [to_bytes(single)]})
        self._chunks.save()

    def close(self) -> None:
        pass

    def _remember(self, kind: str, met: np.ndarray) -> None:
        """Keeps the numbers of rows that had a partner, each once."""
        known = [table["number"].to_numpy() for _, table in self._chunks.of(kind)]
        new = np.setdiff1d(met, np.concatenate(known)) if known else np.unique(met)
        self._chunks.add(kind, pa.table({"number": new}))

    def _single(self, side: str, left: pa.Table, name: str) -> pa.Table:
        """Those of the rows that leave that had no partner; the others are forgotten."""
        number = left[name].to_numpy()
        had = np.zeros(len(number), bool)
        for entry, table in self._chunks.of(f"met {side}"):
            met = table["number"].to_numpy()
            had |= np.isin(number, met)
            gone = np.isin(met, number)
            if gone.any():  # nothing but their leaving says that they are gone
                self._chunks.replace(entry, table.filter(pa.array(~gone)))
        return left.filter(pa.array(~had))
