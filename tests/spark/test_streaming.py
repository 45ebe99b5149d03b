"""Streaming joins in Spark: micro-batches, watermarks, restarts, and what is refused."""

import os
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import AnalysisException, StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hw.errors import ParameterError, SpecError
from spark_offload import StreamJoin, stream_join
from spark_offload.shard_keys import shard_keys
from spark_offload.streaming import OBSERVED, PROVIDER, ROCKSDB

SECOND = 1_000_000
BAND = "r.x BETWEEN s.a - 3 AND s.a + 3"
SCHEMA = "ts timestamp, {} int, seq long"
#: How a query ends on a machine that has no time for it.
OVERLOADED = "Python worker failed to connect back"
#: Seconds in which a query with a few micro-batches must end.
LIMIT = 300


@pytest.fixture(autouse=True)
def rocksdb(spark):
    """State stores as streaming joins need them, and as many partitions as shards."""
    settings = {PROVIDER: ROCKSDB, "spark.sql.shuffle.partitions": "2"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


def rows(rng: np.random.Generator, value: str, count: int, first: int, last: int) -> pa.Table:
    """Rows of times between two seconds, with ties and NULLs."""
    ts = rng.integers(first * 4, last * 4, count) * (SECOND // 4)
    return pa.table(
        {
            "ts": pa.array(ts, pa.timestamp("us", tz="UTC"), mask=rng.random(count) < 0.02),
            value: pa.array(rng.integers(0, 40, count), pa.int32(), mask=rng.random(count) < 0.05),
            "seq": pa.array(rng.integers(0, 6, count)),
        }
    )


class Source:
    """A folder of Parquet files, each a micro-batch of a stream."""

    def __init__(self, folder: Path, value: str):
        self.folder, self.schema, self.count = folder, SCHEMA.format(value), 0
        folder.mkdir()

    def add(self, table: pa.Table) -> None:
        path = self.folder / f"{self.count:03}.parquet"
        pq.write_table(table, path)
        os.utime(path, (self.count, self.count))  # Spark takes files by their times
        self.count += 1

    def stream(self, spark, delay: str | None = "2 seconds") -> DataFrame:
        frame = spark.readStream.schema(self.schema).option("maxFilesPerTrigger", 1)
        frame = frame.option("latestFirst", False).parquet(str(self.folder))
        return frame if delay is None else frame.withWatermark("ts", delay)

    def batch(self, spark) -> DataFrame:
        return spark.read.schema(self.schema).parquet(str(self.folder))


@pytest.fixture
def sources(tmp_path) -> tuple[Source, Source]:
    return Source(tmp_path / "r", "x"), Source(tmp_path / "s", "a")


def run(joined: DataFrame, folder: Path) -> list[dict]:
    """Runs a query to the end of its input, into Parquet files; returns the counts of its micro-batches."""
    progress, deadline, ended = [], time.monotonic() + LIMIT, False
    while not ended:
        query = (
            joined.writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .option("path", str(folder / "output"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(LIMIT)
            ended = True
        except StreamingQueryException as error:
            # Spark waits 10 s for a worker: a busy machine is one more reason to start again.
            if OVERLOADED not in str(error) or time.monotonic() > deadline:
                raise
        progress += query.recentProgress
    return [each.observedMetrics[OBSERVED].asDict() for each in progress if each.observedMetrics]


def bag(frame: DataFrame) -> Counter:
    return Counter(map(tuple, frame.collect()))


def output(spark, folder: Path) -> Counter:
    return bag(spark.read.parquet(str(folder / "output")))


def test_keys_are_spread_evenly(spark):
    """The hash of the key of shard k is k, so shards lie on different partitions."""
    keys = shard_keys(200)
    hashes = spark.range(1).select(*(F.hash(F.lit(key)) for key in keys)).first()
    assert list(hashes) == list(range(200))


def test_a_stream_gives_what_the_batch_gives(spark, sources, tmp_path, rng):
    """Over a restart, with late rows, which are dropped and counted."""
    for first in (10, 14):
        for source, value in zip(sources, "xa"):
            source.add(rows(rng, value, 60, first, first + 5))
    arguments = {"on": BAND, "window": ("3 seconds", "1 second"), "time": "ts", "partitions": 2}
    r, s = (source.stream(spark) for source in sources)
    counts = run(stream_join(r, s, **arguments), tmp_path)
    expected = bag(stream_join(*(source.batch(spark) for source in sources), **arguments))
    assert output(spark, tmp_path) == expected
    undated = sum(source.batch(spark).where("ts IS NULL").count() for source in sources)
    assert sum(count["undated"] for count in counts) == undated
    assert sum(count["tuples"] for count in counts) == 240 - undated
    assert sum(count["pairs"] for count in counts) == expected.total()
    assert sum(count["late"] for count in counts) == 0

    # The watermark is now at 2 seconds before the newest row of the slower stream, which is before 19.
    late = rows(rng, "x", 5, 3, 9).drop_columns("ts")
    late = late.add_column(0, "ts", pa.array(np.arange(3, 8) * SECOND, pa.timestamp("us", tz="UTC")))
    sources[0].add(late)
    sources[1].add(rows(rng, "a", 50, 18, 22))
    counts = run(stream_join(r, s, **arguments), tmp_path)
    assert sum(count["late"] for count in counts) == 5
    in_time = sources[0].batch(spark).where("ts IS NULL OR ts >= timestamp'1970-01-01 00:00:10'")
    expected = bag(stream_join(in_time, sources[1].batch(spark), **arguments))
    assert output(spark, tmp_path) == expected


@pytest.mark.parametrize(
    "bad, error, message",
    [
        (
            {"r": "batch"},
            SpecError,
            "r and s must both be batch or both be streaming DataFrames, not batch and streaming",
        ),
        (
            {"s": "no watermark"},
            SpecError,
            "`s.ts` has no watermark, so the join would never know which rows are late; use "
            "s.withWatermark('ts', '10 seconds')",
        ),
        ({"ordered": True}, ParameterError, "ordered must be False for streaming DataFrames, not True"),
        (
            {"provider": "org.example.Other"},
            ParameterError,
            f"{PROVIDER} must be {ROCKSDB} for streaming joins, not org.example.Other",
        ),
    ],
)
def test_bad_streams(spark, sources, bad, error, message):
    makers = {
        "stream": lambda source: source.stream(spark),
        "batch": lambda source: source.batch(spark),
        "no watermark": lambda source: source.stream(spark, delay=None),
    }
    frames = {side: makers[bad.get(side, "stream")](source) for side, source in zip("rs", sources)}
    bad = {name: value for name, value in bad.items() if name not in frames}
    spark.conf.set(PROVIDER, bad.pop("provider", ROCKSDB))
    with pytest.raises(error) as caught:
        stream_join(**frames, on=BAND, window="1 second", time="ts", **bad)
    assert str(caught.value) == message


def test_native_spark_refuses_the_same_query(spark, sources):
    """A band alone is nothing that Spark's stream-stream join takes."""
    for source, value in zip(sources, "xa"):
        source.add(rows(np.random.default_rng(1), value, 1, 10, 11))
    r, s = (source.stream(spark).alias(side) for side, source in zip("rs", sources))
    near = F.expr(f"{BAND} AND r.ts BETWEEN s.ts - INTERVAL 1 SECOND AND s.ts + INTERVAL 3 SECONDS")
    query = r.join(s, near).writeStream.format("noop").trigger(availableNow=True).start()
    with pytest.raises(StreamingQueryException, match="without equality predicate"):
        query.awaitTermination(LIMIT)


@pytest.mark.parametrize("on", [BAND, f"{BAND} AND (r.x + s.a) % 2 = 0"])
def test_windows_of_rows_by_key_in_an_outer_join(spark, sources, tmp_path, rng, on):
    """Rows wait for the watermark, and then give what the batch gives, where windows have passed."""
    for first in (10, 14):
        for source, value in zip(sources, "xa"):
            source.add(rows(rng, value, 40, first, first + 5))
    end = {"ts": pa.array([10**9 * SECOND], pa.timestamp("us", tz="UTC")), "seq": pa.array([-1])}
    for source, value in zip(sources, "xa"):
        source.add(pa.table({**end, value: pa.array([None], pa.int32())}).select(["ts", value, "seq"]))
    arguments = {"on": on, "window": ("2 rows", "3 rows"), "time": "ts", "partitions": 2, "how": "full"}
    arguments |= {"by": [("seq", "seq")], "columns": ["r_seq", "x", "s_seq", "a"]}
    counts = run(stream_join(*(source.stream(spark) for source in sources), **arguments), tmp_path)
    expected = bag(stream_join(*(source.batch(spark).where("seq >= 0") for source in sources), **arguments))
    found = output(spark, tmp_path)
    assert not found - expected
    assert all(None in (row[0], row[2]) for row in expected - found)
    assert (expected - found).total() <= counts[-1]["state_rows"]


def test_an_outer_join_with_a_term_that_only_spark_can_evaluate(spark, sources, tmp_path, rng):
    """Rows whose pairs Spark takes out have no partner, over a restart too."""
    arguments = {"on": f"{BAND} AND (r.seq + s.seq) % 3 = 0", "window": ("3 seconds", "1 second")}
    arguments |= {"time": "ts", "partitions": 2, "how": "full"}
    joined, counts = stream_join(*(source.stream(spark) for source in sources), **arguments), []
    for first in (10, 13, 10**6):
        for source, value in zip(sources, "xa"):
            source.add(rows(rng, value, 40, first, first + 4))
        counts += run(joined, tmp_path)
    expected = bag(stream_join(*(source.batch(spark) for source in sources), **arguments))
    found = output(spark, tmp_path)
    assert not found - expected
    # What has come last is still in its window.
    newest = {row[0] or row[3] for row in expected - found}
    assert all(time is not None and time.year == 1970 and time.day > 1 for time in newest), newest
    single = [row for row in found.elements() if row[2] is None or row[5] is None]
    assert any(row[0] and row[0].day == 1 for row in single) and any(
        row[3] and row[3].day == 1 for row in single
    )
    assert sum(count["alone"] for count in counts) == len(single)
    assert sum(count["pairs"] for count in counts) == found.total() - len(single)


@pytest.mark.parametrize(
    "on, shards", [(BAND, 2), (f"{BAND} AND array_contains(array(r.seq, 1L), s.seq)", 1)]
)
def test_update_is_append_and_only_some_columns_come_out(spark, sources, tmp_path, rng, on, shards):
    """Rows that have come out do not change; a row of an outer join comes out without a partner once."""
    for source, value in zip(sources, "xa"):
        end = {"ts": pa.array([10**9 * SECOND], pa.timestamp("us", tz="UTC"))}
        source.add(rows(rng, value, 60, 10, 15))
        source.add(pa.table(end | {value: pa.array([None], pa.int32()), "seq": [-1]}))
    arguments = {"on": on, "window": "1 second", "time": "ts", "how": "full", "columns": ["a", "x"]}
    join = StreamJoin(*(source.stream(spark) for source in sources), partitions=shards, **arguments)
    found = Counter()

    def take(frame: DataFrame, _: int) -> None:
        found.update(map(tuple, frame.collect()))

    def start(mode: str):
        to = join.frame().writeStream.outputMode(mode).foreachBatch(take).trigger(availableNow=True)
        return to.option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    with pytest.raises(AnalysisException, match="Invalid streaming output mode: complete"):
        start("complete")
    query = start("update")
    assert query.awaitTermination(LIMIT)
    expected = bag(stream_join(*(source.batch(spark).where("seq >= 0") for source in sources), **arguments))
    assert found == expected
    counts = [each.observedMetrics[OBSERVED] for each in query.recentProgress]
    pairs = stream_join(*(source.batch(spark) for source in sources), **arguments | {"how": "inner"}).count()
    assert sum(count["pairs"] for count in counts) == pairs
    assert sum(count["alone"] for count in counts) == expected.total() - pairs > 0
    with pytest.raises(ParameterError) as error:
        join.write_parquet(tmp_path / "out")
    assert str(error.value) == "write_parquet needs batch DataFrames; of streams use frame().writeStream"
