"""`make bench`, second part: the CPU engine against other engines in the same run, and its own figures.

Every measurement is a process of its own with a time limit, and the least of several repetitions counts.
Ratios are between figures of one run; what is absolute by nature stands beside the machine's name.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tabulate import tabulate

from host.bisort import BiSort, Order, Sorted
from host.columns import Layout
from host.cpu import CpuSession
from host.engine import Batch, Engine
from host.plan import SpecDimension
from host.rap_table import RapTable, even_splitters
from host.spec import JoinSpec
from host.wib_tree import WibTree
from hw.dimension import Test

SECOND = 1_000_000
ROWS_PER_SECOND = 1000
#: Seconds that one measurement may take; what takes longer is reported as such.
LIMIT = 240
REPEATS = 3
#: Seconds in the windows of equality joins.
SHORT_WINDOW = 30
ON = "r.x BETWEEN s.a - 10 AND s.a + 10"
BAND = "r.x >= s.a - 10 AND r.x <= s.a + 10"
NAMED = ("r.id AS r_id", "r.x", "s.id AS s_id", "s.a")


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


# Peers: each takes both streams, the window and whether to list pairs, and returns a function to be timed,
# which returns how many pairs it found.


def touchline(r: pa.Table, s: pa.Table, window: int, listed: bool) -> Callable[[], int]:
    def run() -> int:
        spec = JoinSpec(ON, window, "ts", r.schema, s.schema)
        session = CpuSession(spec)
        arrivals = spec.arrange(r, s)
        if listed:
            return session.rows(arrivals, ["id", "x"], ["id", "a"]).num_rows
        return session.count(arrivals)

    return run


def duckdb(r: pa.Table, s: pa.Table, window: int, listed: bool) -> Callable[[], int]:
    import duckdb

    connection = duckdb.connect(config={"threads": len(os.sched_getaffinity(0))})
    for name, table in (("r", r), ("s", s)):
        connection.register(f"{name}_arrow", table)
        connection.execute(f"CREATE TABLE {name} AS SELECT * FROM {name}_arrow")
    # The selective pair of conditions first: the other way round takes hundreds of times longer.
    source = f"FROM r JOIN s ON {BAND} AND {within(window)}"

    def run() -> int:
        if listed:
            return connection.execute(f"SELECT {', '.join(NAMED)} {source}").to_arrow_table().num_rows
        return connection.execute(f"SELECT count(*) {source}").fetchone()[0]

    return run


def polars(r: pa.Table, s: pa.Table, window: int, listed: bool) -> Callable[[], int]:
    import polars as pl

    left = pl.from_arrow(r).lazy()
    right = pl.from_arrow(s).rename({"ts": "s_ts", "id": "s_id"}).lazy()
    joined = left.join_where(
        right.with_columns(
            low=pl.col("a") - 10,
            high=pl.col("a") + 10,
            since=pl.col("s_ts") - window,
            to=pl.col("s_ts") + window,
        ),
        pl.col("x") >= pl.col("low"),
        pl.col("x") <= pl.col("high"),
        pl.col("ts") >= pl.col("since"),
        pl.col("ts") <= pl.col("to"),
    )

    def run() -> int:
        if listed:
            return joined.select("id", "x", "s_id", "a").collect().to_arrow().num_rows
        return joined.select(pl.len()).collect().item()

    return run


def clickhouse(r: pa.Table, s: pa.Table, window: int, listed: bool) -> Callable[[], int]:
    from chdb.session import Session

    folder = tempfile.mkdtemp()
    session = Session(f"{folder}/db")
    for name, table in (("r", r), ("s", s)):
        pq.write_table(table, f"{folder}/{name}.parquet")
        session.query(f"CREATE TABLE {name} ENGINE = Memory AS SELECT * FROM file('{folder}/{name}.parquet')")
    source = f"FROM r INNER JOIN s ON {BAND} AND {within(window)}"

    def run() -> int:
        if listed:
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


def _spark_join(r: pa.Table, s: pa.Table, window: int, listed: bool, binned: bool) -> Callable[[], int]:
    spark = _spark()
    frames = [spark.createDataFrame(table).repartition(2).cache() for table in (r, s)]
    for frame in frames:
        frame.count()
    if binned:
        frames = [_binned(frame, name, window) for name, frame in zip("rs", frames)]
    for name, frame in zip("rs", frames):
        frame.createOrReplaceTempView(name)
    bins = "r.vbin = s.vbin AND r.tbin = s.tbin AND " if binned else ""
    joined = spark.sql(f"SELECT {', '.join(NAMED)} FROM r JOIN s ON {bins}{BAND} AND {within(window)}")

    def run() -> int:
        return joined.toArrow().num_rows if listed else joined.count()

    return run


def spark_binned(r: pa.Table, s: pa.Table, window: int, listed: bool) -> Callable[[], int]:
    return _spark_join(r, s, window, listed, binned=True)


def spark_naive(r: pa.Table, s: pa.Table, window: int, listed: bool) -> Callable[[], int]:
    return _spark_join(r, s, window, listed, binned=False)


PEERS = {
    "touchline": touchline,
    "duckdb": duckdb,
    "polars": polars,
    "clickhouse": clickhouse,
    "spark, hand-binned": spark_binned,
    "spark, naive": spark_naive,
}


def band(name: str, rows: int, seconds: int, listed: bool) -> dict:
    """One measurement of a band join over time windows."""
    run = PEERS[name](stream("x", rows, 1), stream("a", rows, 2), seconds * SECOND, listed)
    return timed(run)


def timed(run: Callable[[], int], repeats: int = REPEATS) -> dict:
    """The least time of several runs after one that does not count, and what they return."""
    found, times = run(), []
    for _ in range(repeats):
        start = time.perf_counter()
        assert run() == found
        times.append(time.perf_counter() - start)
        if sum(times) > LIMIT / 4:
            break
    return {"seconds": min(times), "found": found}


# Streaming


def pushed(rows: int, batch: int, seconds: int) -> dict:
    """Micro-batches of `batch` rows of each stream through `push` and `poll`."""
    r, s = stream("x", rows, 1), stream("a", rows, 2)
    spec = JoinSpec(ON, seconds * SECOND, "ts", r.schema, s.schema)

    def run() -> int:
        session, found = CpuSession(spec), 0
        for start in range(0, rows, batch):
            # Parts are cut by time, so that none is late.
            session.push(r.slice(start, batch), s.slice(start, batch))
            found += session.poll().num_rows
        return found

    return timed(run)


def spark_streamed(rows: int, batch: int, seconds: int) -> dict:
    """The same through Spark's stream-stream join on bins."""
    from pyspark.sql import functions as F

    spark = _spark()
    folder = Path(tempfile.mkdtemp())
    for name, value, seed in (("r", "x", 1), ("s", "a", 2)):
        table = stream(value, rows, seed)
        (folder / name).mkdir()
        for number, start in enumerate(range(0, rows, batch)):
            pq.write_table(table.slice(start, batch), folder / name / f"{number:06}.parquet")
    window = seconds * SECOND
    frames = []
    for name in "rs":
        schema = spark.read.parquet(str(folder / name)).schema
        frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / name))
        frame = frame.withColumn("at", F.timestamp_micros("ts")).withWatermark("at", "0 seconds")
        frames.append(_binned(frame, name, window).alias(name))
    condition = f"r.vbin = s.vbin AND r.tbin = s.tbin AND {BAND} AND {within(window)}"
    condition += (
        f" AND r.at >= s.at - INTERVAL {seconds} SECONDS AND r.at <= s.at + INTERVAL {seconds} SECONDS"
    )
    joined = frames[0].join(frames[1], F.expr(condition))
    found = []
    start = time.perf_counter()
    query = (
        joined.writeStream.foreachBatch(lambda frame, _: found.append(frame.count()))
        .option("checkpointLocation", str(folder / "state"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(LIMIT)
    return {"seconds": time.perf_counter() - start, "found": sum(found)}


# The papers' two-attribute band and equality, at steady state


def _tuples(dims: list[SpecDimension], columns: list, age: np.ndarray, first: int) -> Batch:
    numbers = np.arange(len(age), dtype=np.uint32)
    return Batch(columns, numbers, first, 2 * (first + numbers.astype(np.int64)), age)


def steady(rate: int, equality: bool, window: int, seconds: int = 5) -> dict:
    """Full windows of `window` seconds at `rate` tuples a second per stream; then `seconds` more are timed.

    Values are uniform in 1..10,000 with bands of 10 each way, or keys with one match in the window.
    """
    test = Test.EQUAL if equality else Test.BAND
    values = 1 if equality else 2
    dims = [SpecDimension("", test) for _ in range(values)] + [SpecDimension("", Test.BAND, role="time")]
    layout, rng = Layout.of(dims), np.random.default_rng(3)
    highest = 2 * rate * window if equality else 10_000
    span = np.uint64(window * SECOND)

    def batch(begin: int, length: int) -> tuple[Batch, Batch]:
        count, first = rate * length, rate * begin
        sides = []
        for boxes in (False, True):
            time = (np.arange(first, first + count) * SECOND // rate + window * SECOND).astype(np.uint64)
            codes = [rng.integers(11, highest + 11, count).astype(np.uint64) for _ in range(values)]
            margin = np.uint64(0 if equality else 10)
            if boxes:
                low, high = ([code - margin for code in codes], [code + margin for code in codes])
                columns = layout.boxes([*low, time - span], [*high, time + span])
            else:
                columns = layout.points([*codes, time])
            sides.append(_tuples(dims, columns, time.astype(np.int64), first))
        return sides[0], sides[1]

    engine = Engine(layout, (window * SECOND, window * SECOND), "auto", len(os.sched_getaffinity(0)))
    step = max(1, window // 32)
    for begin in range(0, window, step):
        engine.fill(*batch(begin, min(step, window - begin)))
    times, found = [], 0
    for k in range(seconds + 1):
        new = batch(window + k, 1)
        limit = (window + k + 1) * SECOND
        start = time.perf_counter()
        # The oldest time that later tuples reach: theirs less the window, on the streams' own clock.
        parts = engine.process(*new, (limit, limit))
        times.append(time.perf_counter() - start)
        if k == 0:  # kernels may have been compiled
            times.clear()
            continue
        found += sum(count for *_, count in parts)
    return {
        "seconds": sum(times) / seconds,
        "found": found // seconds,
        "bytes": engine.bytes / engine.encoded_bytes,
        "explained": engine.explain(),
    }


# Structures


def structure(name: str, rows: int, batch: int, matches: int) -> dict:
    """Tuples a second that one core inserts into a subwindow, and that probe it when it is full."""
    rng = np.random.default_rng(4)
    layout = Layout.of([SpecDimension("", Test.BAND)])
    highest = 2**31
    width = np.uint64(highest * matches // rows)
    order = Order(0)

    def run(boxes: bool, count: int) -> Sorted:
        low = rng.integers(0, highest, count).astype(np.uint64)
        columns = np.stack([low, low + width]) if boxes else low[None, :]
        numbers = np.arange(count, dtype=np.uint32)
        return Sorted.build(np.ascontiguousarray(columns), numbers, 0, np.array([0, count]), order)

    made = {
        "bisort": lambda: BiSort(layout, False, order, 0, levelled=False),
        "levels": lambda: BiSort(layout, False, order, 0),
        "rap_table": lambda: RapTable(
            layout, False, order, 0, rows, even_splitters(0, highest, RapTable.partitions(rows))
        ),
        "wib_tree": lambda: WibTree(layout, False, order, 0, rows),
        "nested": lambda: BiSort(layout, False, Order(-1), 0),
    }[name]
    batches = [run(False, batch) for _ in range(rows // batch)]
    made().insert(batches[0], 0, batch)  # compiles
    subwindow, start = made(), time.perf_counter()
    inserted = 0
    for new in batches:
        inserted += subwindow.insert(new, 0, batch)
        if time.perf_counter() - start > LIMIT / 8:
            break
    inserting = inserted / (time.perf_counter() - start)
    probes = run(True, batch)
    parts = subwindow.parts()
    best = 0.0
    for _ in range(REPEATS + 1):
        start = time.perf_counter()
        for part in parts:
            part.meet(probes, 0, batch, 1, False)
        best = max(best, batch / (time.perf_counter() - start))
    return {"inserting": inserting, "probing": best}


MEASUREMENTS = {
    "band": band,
    "pushed": pushed,
    "spark_streamed": spark_streamed,
    "steady": steady,
    "structure": structure,
}


def measured(name: str, *arguments) -> dict:
    """One measurement in a process of its own; a reason in its place if there is no figure."""
    command = [sys.executable, "-m", "spark_offload.bench_cpu", "--measure", name, json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"why": f"more than {LIMIT} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line or "Exception" in line]
        return {"why": (lines or [f"exit status {done.returncode}"])[-1][:80]}
    return json.loads(done.stdout.splitlines()[-1])


# Tables


def _seconds(got: dict) -> str:
    return f"{got['seconds']:.3f} s" if "seconds" in got else got["why"]


def _table(title: str, rows: list, headers: tuple) -> None:
    print(f"\n{title}\n\n{tabulate(rows, headers)}", flush=True)


def compare_bands(sizes: list[tuple[int, int]]) -> None:
    """Count and list, against every peer."""
    for rows, seconds in sizes:
        for listed in (False, True):
            got = {name: measured("band", name, rows, seconds, listed) for name in PEERS}
            ours = got["touchline"]
            lines = []
            for name, result in got.items():
                ratio = "" if "seconds" not in result else f"{result['seconds'] / ours['seconds']:.1f}"
                same = "" if "found" not in result else "yes" if result["found"] == ours["found"] else "NO"
                lines.append((name, _seconds(result), ratio, same))
            what = "4 columns of all pairs as Arrow" if listed else "count"
            title = f"{rows:,} x {rows:,} rows, window {seconds} s, {ours.get('found', 0):,} pairs: {what}"
            _table(title, lines, ("engine", "time", "times ours", "same result"))


def compare_streams(rows: int) -> None:
    """Micro-batches through `push` and `poll`, and through Spark."""
    lines = []
    for batch in (1_000, 10_000, 100_000):
        ours, theirs = measured("pushed", rows, batch, 1), measured("spark_streamed", rows, batch, 1)
        ratio = f"{theirs['seconds'] / ours['seconds']:.0f}" if "seconds" in theirs else ""
        rate = f"{2 * rows / ours['seconds']:,.0f}" if "seconds" in ours else ours["why"]
        same = "yes" if theirs.get("found") == ours.get("found") else "NO"
        lines.append((f"{batch:,}", rate, _seconds(theirs), ratio, same))
    lines.append(
        ("Flink", "skipped: its wheel needs other versions of pandas and pyarrow than Spark", "", "", "")
    )
    headers = ("rows per batch and stream", "tuples/s", "Spark, binned", "times ours", "same result")
    _table(f"Streaming, {rows:,} rows per stream, window 1 s", lines, headers)


def steady_states(rates: list[int], keys: list[int]) -> None:
    """The papers' benchmark with 15-minute windows, and equality, with as much as memory holds."""
    lines = []
    for kind, rate in [*(("two bands", rate) for rate in rates), *(("equality", rate) for rate in keys)]:
        got = measured("steady", rate, kind == "equality", 900 if kind == "two bands" else SHORT_WINDOW)
        if "seconds" not in got:
            lines.append((kind, f"{rate:,}", got["why"], "", "", ""))
            continue
        sustained = "yes" if got["seconds"] <= 1 else "no"
        pairs = f"{got['found'] / max(got['seconds'], 1):,.0f}"
        lines.append((kind, f"{rate:,}", f"{got['seconds']:.2f} s", sustained, pairs, f"{got['bytes']:.2f}"))
    headers = ("predicate", "tuples/s per stream", "per second of stream", "sustained", "pairs/s", "bytes")
    title = f"Full windows of 15 minutes (equality: {SHORT_WINDOW} s), pairs listed, on {machine()}"
    _table(title, lines, headers)


def structures(sizes: list[int], batches: list[int], matches: list[int]) -> None:
    """Insertion and probing of each structure, in millions of tuples a second on one core."""
    lines = []
    for rows in sizes:
        for batch in batches:
            for count in matches:
                line = [f"{rows:,}", f"{batch:,}", f"{count:,}"]
                for name in ("bisort", "levels", "rap_table", "wib_tree"):
                    got = measured("structure", name, rows, batch, count)
                    line.append(
                        got.get("why") or f"{got['inserting'] / 1e6:.2f} / {got['probing'] / 1e6:.2f}"
                    )
                lines.append(line)
    headers = ("subwindow", "batch", "matches", "bisort", "levels", "rap_table", "wib_tree")
    _table("Millions of tuples/s on one core, inserted / counted by probing", lines, headers)


def growth(rates: list[int]) -> None:
    """Time per tuple as the window doubles while matches per tuple stay."""
    lines, before = [], None
    for rate in rates:
        got = measured("steady", rate, True, SHORT_WINDOW)
        if "seconds" not in got:
            lines.append((f"{rate * SHORT_WINDOW:,}", got["why"], ""))
            continue
        each = got["seconds"] / (2 * rate) * 1e9
        lines.append(
            (f"{rate * SHORT_WINDOW:,}", f"{each:.0f} ns", "" if before is None else f"{each / before:.2f}")
        )
        before = each
    _table("Doubling the window, one match per tuple", lines, ("rows per window", "per tuple", "times"))


def machine() -> str:
    """The processor, and how many cores of it."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.processor()
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def main() -> None:
    """Prints the tables, or one measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "ARGUMENTS"), help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=("bands", "streams", "steady", "structures", "growth"))
    options = parser.parse_args()
    if options.measure:
        name, arguments = options.measure
        print(json.dumps(MEASUREMENTS[name](*json.loads(arguments))))
        return
    parts = {
        "bands": lambda: compare_bands([(200_000, 1), (200_000, 10), (2_000_000, 1)]),
        "streams": lambda: compare_streams(200_000),
        "steady": lambda: steady_states([5_125, 20_000, 50_000], [500_000]),
        "structures": lambda: structures([2**16, 2**20], [32, 1024, 32_768], [1, 1024]),
        "growth": lambda: growth([10_000, 20_000, 40_000]),
    }
    for name, run in parts.items():
        if options.only in (None, name):
            run()


if __name__ == "__main__":
    main()
