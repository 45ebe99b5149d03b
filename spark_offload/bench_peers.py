"""What the CPU engine is compared with: the same band join in other engines, on the same data."""

import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from host.cpu import CpuSession
from host.spec import JoinSpec
from hw.cache import cache_directory, locked

SECOND = 1_000_000
ROWS_PER_SECOND = 1000
ON = "r.x BETWEEN s.a - 10 AND s.a + 10"
BAND = "r.x >= s.a - 10 AND r.x <= s.a + 10"
NAMED = ("r.id AS r_id", "r.x", "s.id AS s_id", "s.a")
#: Flink's wheel, in an environment of its own: it excludes the versions of pyarrow that Touchline needs.
FLINK = "apache-flink>=2,<3"
#: Seconds that may go by until it is installed.
INSTALLING = 900


# Data


def stream(value: str, rows: int, seed: int) -> pa.Table:
    """A stream of 1,000 rows a second with values uniform in 1..10,000."""
    rng = np.random.default_rng(seed)
    ts = np.arange(rows) * (SECOND // ROWS_PER_SECOND) + rng.integers(0, SECOND // ROWS_PER_SECOND, rows)
    values = rng.integers(1, 10_001, rows).astype(np.int32)
    return pa.table({"ts": ts, value: values, "id": np.arange(rows)})


def within(window: int) -> str:
    """The time window in SQL."""
    return f"r.ts >= s.ts - {window} AND r.ts <= s.ts + {window}"


@dataclass(frozen=True)
class Query:
    """A band join over a time window: its streams, and what is asked for."""

    rows: int  #: per stream
    window: int
    listed: bool  #: whether pairs are listed, or only counted
    time_first: bool | None = None  #: whether the condition begins with the window; None as suits the engine

    @property
    def streams(self) -> tuple[pa.Table, pa.Table]:
        """R and S."""
        return stream("x", self.rows, 1), stream("a", self.rows, 2)

    @property
    def condition(self) -> str:
        """In SQL, with the band first unless asked otherwise: that is what suits all of them."""
        terms = [BAND, within(self.window)]
        return " AND ".join(terms[::-1] if self.time_first else terms)


# Peers: each takes a query, and returns a function to be timed, which returns how many pairs it found.


def touchline(query: Query) -> Callable[[], int]:
    r, s = query.streams
    # The window is no part of the condition, but may be stated there once more.
    on = ON if query.time_first is None else query.condition

    def run() -> int:
        spec = JoinSpec(on, query.window, "ts", r.schema, s.schema)
        session = CpuSession(spec)
        arrivals = spec.arrange(r, s)
        if query.listed:
            return session.rows(arrivals, ["id", "x"], ["id", "a"]).num_rows
        return session.count(arrivals)

    return run


def duckdb(query: Query) -> Callable[[], int]:
    import duckdb

    connection = duckdb.connect(config={"threads": len(os.sched_getaffinity(0))})
    for name, table in zip("rs", query.streams):
        connection.register(f"{name}_arrow", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_arrow")
    source = f"FROM r JOIN s ON {query.condition}"

    def run() -> int:
        if query.listed:
            return connection.sql(f"SELECT {', '.join(NAMED)} {source}").to_arrow_table().num_rows
        return connection.execute(f"SELECT count(*) {source}").fetchone()[0]

    return run


def polars(query: Query) -> Callable[[], int]:
    import polars as pl

    r, s = query.streams
    left = pl.from_arrow(r).lazy()
    right = pl.from_arrow(s).rename({"ts": "s_ts", "id": "s_id"}).lazy()
    value = [pl.col("x") >= pl.col("low"), pl.col("x") <= pl.col("high")]
    moment = [pl.col("ts") >= pl.col("since"), pl.col("ts") <= pl.col("to")]
    joined = left.join_where(
        right.with_columns(
            low=pl.col("a") - 10,
            high=pl.col("a") + 10,
            since=pl.col("s_ts") - query.window,
            to=pl.col("s_ts") + query.window,
        ),
        *(moment + value if query.time_first else value + moment),
    )

    def run() -> int:
        if query.listed:
            return joined.select("id", "x", "s_id", "a").collect().to_arrow().num_rows
        return joined.select(pl.len()).collect().item()

    return run


def clickhouse(query: Query) -> Callable[[], int]:
    from chdb.session import Session

    folder = tempfile.mkdtemp()
    session = Session(f"{folder}/db")
    for name, table in zip("rs", query.streams):
        pq.write_table(table, f"{folder}/{name}.parquet")
        session.query(f"CREATE TABLE {name} ENGINE = Memory AS SELECT * FROM file('{folder}/{name}.parquet')")
    source = f"FROM r INNER JOIN s ON {query.condition}"

    def run() -> int:
        if query.listed:
            result = session.query(f"SELECT {', '.join(NAMED)} {source}", "ArrowTable")
            return result.num_rows
        return int(session.query(f"SELECT count() {source}", "CSV").data())

    return run


def _spark():
    from pyspark.sql import SparkSession

    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "6g",
        "spark.driver.maxResultSize": "0",
        "spark.log.level": "OFF",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    return SparkSession.builder.master("local[2]").config(map=options).getOrCreate()


def _binned(frame, stream: str, window: int):
    """Rows with the bins of value and of time that they lie in, or that their box touches."""
    from pyspark.sql import functions as F

    if stream == "r":
        return frame.withColumn("vbin", F.expr("x div 21")).withColumn("tbin", F.expr(f"ts div {window}"))
    return frame.withColumn("vbin", F.expr("explode(sequence((a - 10) div 21, (a + 10) div 21))")).withColumn(
        "tbin", F.expr(f"explode(sequence((ts - {window}) div {window}, (ts + {window}) div {window}))")
    )


def _spark_join(query: Query, binned: bool) -> Callable[[], int]:
    spark = _spark()
    frames = [spark.createDataFrame(table).repartition(2).cache() for table in query.streams]
    for frame in frames:
        frame.count()
    if binned:
        frames = [_binned(frame, name, query.window) for name, frame in zip("rs", frames)]
    for name, frame in zip("rs", frames):
        frame.createOrReplaceTempView(name)
    bins = "r.vbin = s.vbin AND r.tbin = s.tbin AND " if binned else ""
    joined = spark.sql(f"SELECT {', '.join(NAMED)} FROM r JOIN s ON {bins}{query.condition}")

    def run() -> int:
        return joined.toArrow().num_rows if query.listed else joined.count()

    return run


def spark_binned(query: Query) -> Callable[[], int]:
    return _spark_join(query, binned=True)


def spark_naive(query: Query) -> Callable[[], int]:
    return _spark_join(query, binned=False)


PEERS = {
    "touchline": touchline,
    "duckdb": duckdb,
    "polars": polars,
    "clickhouse": clickhouse,
    "spark, hand-binned": spark_binned,
    "spark, naive": spark_naive,
}


# Streams


def spark_streamed(rows: int, batch: int, seconds: int, limit: int, warm: int = 1) -> dict:
    """Tuples a second through Spark's stream-stream join on bins, `batch` rows of each stream at a time.

    The first `warm` micro-batches, in which the query is planned and code is compiled, are not measured.
    """
    from pyspark.sql import functions as F

    window = seconds * SECOND

    def join(r, s):
        condition = f"r.vbin = s.vbin AND r.tbin = s.tbin AND {BAND} AND {within(window)}"
        condition += (
            f" AND r.at >= s.at - INTERVAL {seconds} SECONDS AND r.at <= s.at + INTERVAL {seconds} SECONDS"
        )
        r, s = (_binned(frame, name, window).alias(name) for name, frame in (("r", r), ("s", s)))
        return r.join(s, F.expr(condition)).selectExpr(*NAMED)

    return _streamed(join, rows, batch, limit, warm)


def spark_sharded(rows: int, batch: int, seconds: int, limit: int, warm: int, shards: int) -> dict:
    """The same through `stream_join` in Spark."""
    from . import stream_join
    from .streaming import PROVIDER, ROCKSDB

    _spark().conf.set(PROVIDER, ROCKSDB)

    def join(r, s):
        columns = ("r_id", "x", "s_id", "a")
        return stream_join(r, s, ON, f"{seconds} seconds", "at", partitions=shards, columns=columns)

    return _streamed(join, rows, batch, limit, warm)


def _streamed(join: Callable, rows: int, batch: int, limit: int, warm: int) -> dict:
    """Tuples a second through a join of two streaming DataFrames in Spark."""
    from pyspark.sql import functions as F

    spark = _spark()
    folder = Path(tempfile.mkdtemp())
    frames = []
    for name, value, seed in (("r", "x", 1), ("s", "a", 2)):
        table = stream(value, rows, seed)
        (folder / name).mkdir()
        for number, start in enumerate(range(0, rows, batch)):
            path = folder / name / f"{number:06}.parquet"
            pq.write_table(table.slice(start, batch), path)
            os.utime(path, (number, number))  # Spark takes files by age, in milliseconds
        schema = spark.read.parquet(str(folder / name)).schema
        frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        # Rows at the beginning of 1970 would be late.
        frame = frame.withColumn("at", F.timestamp_micros(F.col("ts") + SECOND))
        frames.append(frame.withWatermark("at", "0 seconds"))
    found = []
    query = (
        join(*frames)
        .writeStream.foreachBatch(lambda frame, _: found.append(frame.count()))
        .option("checkpointLocation", str(folder / "state"))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(limit):
        query.stop()
        raise TimeoutError(f"more than {limit} s")
    spent = [
        progress["durationMs"]["triggerExecution"] for progress in query.recentProgress[warm : rows // batch]
    ]
    return {"rate": 2 * batch * len(spent) / sum(spent) * 1000, "found": sum(found)}


def flink_streamed(rows: int, seconds: int, limit: int) -> dict:
    """The same through Flink's interval join on bins, tuple by tuple."""
    python = flink_python()
    folder = Path(tempfile.mkdtemp())
    for name, value, seed in (("r", "x", 1), ("s", "a", 2)):
        options = pyarrow.csv.WriteOptions(include_header=False)
        pyarrow.csv.write_csv(stream(value, rows, seed), folder / f"{name}.csv", options)
    script = Path(__file__).with_name("bench_flink.py")
    command = [python, str(script), str(folder), str(seconds * SECOND), "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit, env=_without_spark())
    if done.returncode:
        raise RuntimeError(f"Flink: {_last_line(done.stderr)}")
    got = json.loads(done.stdout.splitlines()[-1])
    return {"rate": 2 * rows / min(got["seconds"]), "found": got["found"]}


def flink_python() -> str:
    """The Python of Flink's environment, which is made when there is none."""
    folder = cache_directory() / "flink"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.with_suffix(".lock"), INSTALLING):
        ready = folder / "ready"
        if not ready.exists() or ready.read_text() != FLINK:
            venv.create(folder, clear=True, with_pip=True)
            command = [folder / "bin/python", "-m", "pip", "install", "--quiet", FLINK]
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALLING)
            if done.returncode:
                raise RuntimeError(f"{FLINK} cannot be installed: {_last_line(done.stderr)}")
            ready.write_text(FLINK)
    return str(folder / "bin/python")


def _without_spark() -> dict[str, str]:
    """The environment without what points Python programs to Spark's or this one's packages."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("SPARK", "PYSPARK")) and name not in ("PYTHONPATH", "VIRTUAL_ENV")
    }


def _last_line(text: str) -> str:
    """The last line of what a program printed that names an error, or the last at all."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    named = [line for line in lines if "Error" in line or "Exception" in line or "ERROR" in line]
    return (named or lines or ["no message"])[-1][:160]
