"""`make bench`, third part: joins in Spark from end to end, against Spark alone in the same run.

    batch       a band join over a time window, Parquet in, four columns of every pair out to Parquet,
                against Spark's own join on hand-written bins
    streams     the same join of streaming DataFrames, micro-batch by micro-batch, against Spark's
                stream-stream join on such bins
    scale       20M x 20M rows, and the memory that it takes

Every measurement is a process of its own; ratios are between figures of one run.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
from tabulate import tabulate

from .bench_cpu import machine
from .bench_peers import (
    NAMED,
    ON,
    SECOND,
    Query,
    _binned,
    _spark,
    spark_sharded,
    spark_streamed,
    stream,
)

#: Seconds that one measurement may take.
LIMIT = 1800
REPEATS = 2
ROWS, LARGE = 2_000_000, 20_000_000
#: Rows of each stream in a micro-batch; micro-batches before those that are measured; and shards for ours.
MICRO_BATCHES, WARM, MEASURED, SHARDS = (20_000, 100_000, 250_000), 3, 6, 2
#: For the large join: a row has about one partner.
SELECTIVE = "r.x BETWEEN s.a - 2 AND s.a + 2"
COLUMNS = ("r_id", "x", "s_id", "a")

#: What, the target, what was reached, and whether that is enough.
Verdict = tuple[str, str, str, str]


def written(name: str, rows: int) -> dict:
    """The least time of a join of files to files, and for ours where it went."""
    folder = Path(tempfile.mkdtemp())
    query = Query(rows, SECOND, listed=True)
    for part, table in zip("rs", query.streams):
        pq.write_table(table, folder / f"{part}.parquet")
    try:
        run = (ours if name == "touchline" else hand_binned)(folder, query)
        runs = []
        for _ in range(REPEATS + 1):
            start, used = time.perf_counter(), cpu_seconds()
            told = run() or {}
            runs.append({"seconds": time.perf_counter() - start, "cpu": cpu_seconds() - used} | told)
        # The first run compiles, and starts workers.
        best = min(runs[1:], key=lambda each: each["seconds"])
        best["cpu"] = min(each["cpu"] for each in runs[1:])
        found = sum(pq.ParquetFile(path).metadata.num_rows for path in (folder / "out").glob("*.parquet"))
        return best | {"found": found}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cpu_seconds() -> float:
    """Processor time of this process and all that it started: Spark, and its workers."""
    parents, used = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        parents[int(path.parent.name)] = int(fields[1])
        used[int(path.parent.name)] = sum(map(int, fields[11:15]))  # its own, and of children that have ended
    mine, known = {os.getpid()}, 0
    while len(mine) > known:
        known = len(mine)
        mine |= {process for process, parent in parents.items() if parent in mine}
    return sum(used.get(process, 0) for process in mine) / os.sysconf("SC_CLK_TCK")


def ours(folder: Path, query: Query) -> Callable[[], dict]:
    """The join of this repository, which reports how long its tasks read, joined and wrote."""
    from . import StreamJoin

    spark = _spark()

    def run() -> dict:
        r, s = (spark.read.parquet(str(folder / f"{part}.parquet")) for part in "rs")
        join = StreamJoin(r, s, ON, query.window, "ts", columns=COLUMNS)
        counts = join.write_parquet(str(folder / "out"), mode="overwrite")
        return {name: counts[name] for name in ("reading", "joining", "writing", "slices", "memory")}

    return run


def hand_binned(folder: Path, query: Query) -> Callable[[], None]:
    """Spark alone, with an equality on bins of value and time."""
    spark = _spark()

    def run() -> None:
        for part in "rs":
            frame = spark.read.parquet(str(folder / f"{part}.parquet"))
            _binned(frame, part, query.window).createOrReplaceTempView(part)
        on = f"r.vbin = s.vbin AND r.tbin = s.tbin AND {query.condition}"
        joined = spark.sql(f"SELECT {', '.join(NAMED)} FROM r JOIN s ON {on}")
        joined.write.mode("overwrite").parquet(str(folder / "out"))

    return run


def scaled(rows: int) -> dict:
    """Counts of a join with few pairs for each row, written."""
    from . import StreamJoin

    folder = Path(tempfile.mkdtemp())
    try:
        for part, value, seed in (("r", "x", 1), ("s", "a", 2)):
            pq.write_table(stream(value, rows, seed), folder / f"{part}.parquet")
        spark = _spark()
        r, s = (spark.read.parquet(str(folder / f"{part}.parquet")) for part in "rs")
        start = time.perf_counter()
        counts = StreamJoin(r, s, SELECTIVE, SECOND, "ts", columns=COLUMNS).write_parquet(str(folder / "out"))
        return counts | {"seconds": time.perf_counter() - start}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def streamed(name: str, size: int) -> dict:
    """Micro-batches through a streaming join."""
    rows = (WARM + MEASURED) * size
    if name == "touchline":
        return spark_sharded(rows, size, 1, LIMIT, WARM, SHARDS)
    return spark_streamed(rows, size, 1, LIMIT, WARM)


def streams(rows: int | None) -> list[Verdict]:
    """Prints tuples a second of both, and their ratio."""
    lines, rates, right = [], [], True
    for size in MICRO_BATCHES:
        ours, theirs = (_measured("streamed", name, size) for name in ("touchline", "spark"))
        if "why" in ours or "why" in theirs:
            right &= "why" not in ours
            lines.append((f"{size:,}", ours.get("why", ""), theirs.get("why", "")))
            continue
        same = "yes" if ours["found"] == theirs["found"] else "NO"
        rates.append((ours["rate"], theirs["rate"]))
        right &= same == "yes"
        told = (f"{rate:,.0f}" for rate in rates[-1])
        lines.append((f"{size:,}", *told, f"{rates[-1][0] / rates[-1][1]:.1f}", same))
    headers = ("rows per micro-batch and stream", "tuples/s", "Spark, hand-binned", "times", "same")
    print(f"\nStreaming DataFrames, window 1 s, {SHARDS} shards, on {machine()}\n")
    print(tabulate(lines, headers, disable_numparse=True))
    best = [max(each) for each in zip(*rates)]  # each in the micro-batches that suit it best
    ratio = best[0] / best[1] if best and right else 0.0
    return [_verdict("streams, for the throughput of Spark with hand-written bins", ratio, 3)]


def scale(rows: int | None) -> list[Verdict]:
    """Prints what a task of a large join takes."""
    rows = rows or LARGE
    got = _measured("scaled", rows)
    print(f"\n{rows:,} x {rows:,} rows, window 1 s, {SELECTIVE}, on {machine()}\n")
    if "why" in got:
        print(got["why"])
        return []
    lines = {
        "pairs": f"{got['pairs']:,}",
        "tasks": f"{got['slices']:,}",
        "halo": f"{got['halo']:,} rows, {got['halo'] / (2 * rows):.3%}",
        "memory of a worker": f"{got['memory'] / 2**20:,.0f} MiB at most",
        "rows per second": f"{2 * rows / got['seconds']:,.0f}",
    }
    print(tabulate(lines.items(), tablefmt="plain", disable_numparse=True))
    return []


def batch(rows: int | None) -> list[Verdict]:
    """Prints the time of both, their ratio, and the shares of ours."""
    rows = rows or ROWS
    got = {name: _measured("written", name, rows) for name in ("touchline", "spark, hand-binned")}
    mine = got["touchline"]
    lines = []
    for name, each in got.items():
        if "seconds" not in each:
            lines.append((name, each["why"]))
            continue
        ratios = [f"{each[what] / mine[what]:.1f}" if what in mine else "" for what in ("seconds", "cpu")]
        same = "yes" if each["found"] == mine.get("found") else "NO"
        times = [f"{each[what]:.2f} s" for what in ("seconds", "cpu")]
        lines.append((name, times[0], ratios[0], times[1], ratios[1], f"{each['found']:,}", same))
    print(f"\n{rows:,} x {rows:,} rows, window 1 s, Parquet to Parquet\n")
    headers = ("engine", "time", "times ours", "processor", "times ours", "pairs", "same")
    print(tabulate(lines, headers, disable_numparse=True))
    if "reading" in mine:
        total = mine["reading"] + mine["joining"] + mine["writing"]
        shares = ", ".join(f"{name} {mine[name] / total:.0%}" for name in ("reading", "joining", "writing"))
        print(f"\nours, of the time in tasks: {shares}; {mine['slices']} tasks, ", end="")
        print(f"{mine['memory'] / 2**20:,.0f} MiB at most in a worker")
    theirs = got["spark, hand-binned"]
    same = "found" in mine and mine["found"] == theirs.get("found")
    ratio = theirs["seconds"] / mine["seconds"] if same else 0.0
    return [_verdict(f"{rows:,} x {rows:,} rows, for the time of Spark with hand-written bins", ratio, 5)]


def _verdict(what: str, ratio: float, target: int) -> Verdict:
    return what, f"at least {target} times", f"{ratio:.1f}", "yes" if ratio >= target else "NO"


def _measured(name: str, *arguments) -> dict:
    command = [sys.executable, "-m", "spark_offload.bench_spark", "--measure", name, json.dumps(arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return {"why": f"more than {LIMIT} s"}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line or "Exception" in line]
        return {"why": f"not run: {(lines or [f'exit status {done.returncode}'])[-1][:120]}"}
    return json.loads(done.stdout.splitlines()[-1])


MEASUREMENTS = {"written": written, "scaled": scaled, "streamed": streamed}
SECTIONS = {"batch": batch, "streams": streams, "scale": scale}


def main() -> None:
    """Prints the tables, or one measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "ARGUMENTS"), help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--rows", type=int, help=f"of each stream (default: {ROWS:,}, {LARGE:,} for scale)")
    options = parser.parse_args()
    if options.measure:
        name, arguments = options.measure
        print(json.dumps(MEASUREMENTS[name](*json.loads(arguments))))
        return
    verdicts = [verdict for name in options.only for verdict in SECTIONS[name](options.rows)]
    print(f"\nTargets, on {machine()}\n")
    print(tabulate(verdicts, ("what", "target", "reached", "enough"), disable_numparse=True))


if __name__ == "__main__":
    main()
