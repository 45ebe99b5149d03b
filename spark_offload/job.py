"""A join of two files as a Spark job: `touchline join`, or `spark-submit spark_offload/job.py`."""

import argparse
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePosixPath

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from tqdm import tqdm

from host.pieces import OUTER
from hw import tools
from hw.errors import ParameterError, TouchlineError
from hw.parameters import ARCHITECTURES
from spark_offload.placement import FALLBACKS, OFFLOADS
from spark_offload.sink import PathExistsError
from spark_offload.stream_join import StreamJoin, observed

FORMATS = ("parquet", "csv", "json")
#: What tasks spend their time with.
TIMES = ("reading", "joining", "writing")


def parser(prog: str | None = None) -> argparse.ArgumentParser:
    """The command line: inputs, then the arguments of `stream_join`, then the output."""
    parser = argparse.ArgumentParser(prog=prog, description="Join two files with Spark.")
    parser.add_argument("r", metavar="R", help="file or folder with the rows of R")
    parser.add_argument("s", metavar="S", help="file or folder with the rows of S")
    parser.add_argument("--on", required=True, help="condition, such as 'r.x BETWEEN s.a - 10 AND s.a + 10'")
    parser.add_argument(
        "--window",
        required=True,
        nargs="+",
        type=lambda text: int(text) if text.isdecimal() else text,  # where time is an integer, so is a window
        metavar="LENGTH",
        help="'10 minutes' or '1000 rows'; two for R and S",
    )
    parser.add_argument(
        "--time", required=True, nargs="+", metavar="COLUMN", help="event time; two for R and S"
    )
    parser.add_argument(
        "--tiebreak", nargs="+", default=[], metavar="COLUMN", help="order of rows of equal time"
    )
    parser.add_argument(
        "--how", choices=OUTER, default="inner", help="which rows come out alone (default: %(default)s)"
    )
    parser.add_argument(
        "--by", nargs="+", default=[], metavar="COLUMN", help="keys, by which windows of rows are counted"
    )
    parser.add_argument("--columns", nargs="+", metavar="COLUMN", help="of the result (default: all)")
    parser.add_argument(
        "--offload", choices=OFFLOADS, default="cpu", help="what joins (default: %(default)s)"
    )
    parser.add_argument(
        "--fallback",
        choices=FALLBACKS,
        default="error",
        help="what happens where a device fails (default: %(default)s)",
    )
    parser.add_argument("--architecture", choices=ARCHITECTURES, help="default: that of the device")
    parser.add_argument(
        "--device", metavar="URL", help="such as cpu:bisort or 'sim:handshake?cores=8&segment=16'"
    )
    parser.add_argument("--partitions", type=int, metavar="N", help="slices of history, each a task")
    parser.add_argument(
        "--ordered", action="store_true", help="rows by (later arrival, earlier arrival), file by file"
    )
    parser.add_argument("--input-format", choices=FORMATS, help="default: by the input's suffix")
    parser.add_argument("--output", required=True, metavar="PATH", help="folder to write")
    parser.add_argument("--format", choices=FORMATS, default="parquet", help="default: %(default)s")
    parser.add_argument("--overwrite", action="store_true", help="replace what is at the output path")
    return parser


def run(spark: SparkSession, options: argparse.Namespace) -> dict[str, int | str]:
    """Joins, writes, and returns the counts of `task.METRICS` and the device's URL."""
    join = StreamJoin(
        read(spark, options.r, options.input_format),
        read(spark, options.s, options.input_format),
        options.on,
        _one_or_pair("window", options.window),
        _one_or_pair("time", options.time),
        offload=options.offload,
        architecture=options.architecture,
        device=options.device,
        tiebreak=tuple(options.tiebreak),
        partitions=options.partitions,
        ordered=options.ordered,
        how=options.how,
        by=tuple(options.by),
        columns=options.columns,
        fallback=options.fallback,
    )
    mode = "overwrite" if options.overwrite else "errorifexists"
    with progress(spark):
        if options.format == "parquet":
            counts = join.write_parquet(options.output, mode)
        else:
            observation = Observation()
            writer = join.frame(observation).write.format(options.format).mode(mode)
            writer.option("header", True).save(options.output)
            counts = observed(observation)
    return counts | {"device": join.device or "scheduled by Spark"}


def read(spark: SparkSession, path: str, format: str | None) -> DataFrame:
    """The rows of a file; CSV has a header, and types are inferred where the format has none."""
    if format is None:
        suffixes = {suffix.removeprefix(".") for suffix in PurePosixPath(path).suffixes}
        format = next((name for name in FORMATS if name in suffixes), None)
    if format is None:
        raise ParameterError(
            f"input {path!r} must end in .{', .'.join(FORMATS)}, or --input-format must say what it is"
        )
    return spark.read.format(format).options(header=True, inferSchema=True, inferTimestamp=True).load(path)


@contextmanager
def progress(spark: SparkSession) -> Iterator[None]:
    """A bar, where there is a terminal, that counts the tasks of whatever Spark runs meanwhile."""
    tracker, over = spark.sparkContext.statusTracker(), threading.Event()

    def follow():
        stages = {}
        with tqdm(desc="joining", unit="task", disable=None, leave=False) as bar:
            while not over.wait(0.2):
                for number in {*stages, *tracker.getActiveStageIds()}:
                    stages[number] = tracker.getStageInfo(number) or stages.get(number)
                known = [stage for stage in stages.values() if stage]
                bar.total = sum(stage.numTasks for stage in known)
                bar.n = sum(stage.numCompletedTasks for stage in known)
                bar.refresh()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        over.set()
        follower.join(timeout=5)


def summary(counts: dict[str, int | str]) -> str:
    """The closing lines: what went in, what came out, and what it took."""
    tuples, cycles = counts["tuples"], counts["cycles"]
    cpu = counts["device"].startswith("cpu:")
    lines = {
        "tuples": f"{tuples:,}",
        "without event time": f"{counts['undated']:,}" if counts["undated"] else None,
        "pairs": f"{counts['pairs']:,}",
        "without a partner": f"{counts['alone']:,}" if counts["alone"] else None,
        "device": f"{counts['device']}, {counts['slices']:,} slices",
        "joined by the CPU": f"{counts['on_cpu']:,} slices" if not cpu and counts["on_cpu"] else None,
        "device failed in": f"{counts['fallbacks']:,} slices" if counts["fallbacks"] else None,
        "halo": f"{counts['halo']:,} tuples, {counts['halo'] / max(tuples, 1):.1%}",
        "cycles": f"{cycles:,}" if cycles else None,
        "tuples per cycle": f"{tuples / cycles:.4f}" if cycles else None,
        "comparisons": f"{counts['comparisons']:,}" if counts["comparisons"] else None,
        "seconds in tasks": ", ".join(f"{name} {counts[name] / 1e6:.1f}" for name in TIMES),
        "memory per task": f"{counts['memory'] / 2**20:,.0f} MiB at most",
    }
    return "\n".join(f"{name:<18}  {value}" for name, value in lines.items() if value is not None)


def complaint(error: Exception) -> str:
    """One line that says what is wrong; of an error in a worker, the line that the worker ended with."""
    path = None
    if isinstance(error, PathExistsError):
        path = error.path
    elif isinstance(error, PySparkException) and error.getCondition() == "PATH_ALREADY_EXISTS":
        path = error.getMessageParameters()["outputPath"]
    if path is not None:
        return f"output {path} exists already; name another, or give --overwrite"
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    raised = [
        found[1] for line in lines if (found := re.match(r"(?:: )?[\w.]+(?:Error|Exception): (.*)", line))
    ]
    return (raised or lines)[-1 if raised else 0]


def main(argv: list[str] | None = None, prog: str | None = None) -> int:
    """Runs the job and returns the exit status: 0, or 2 after one line that says what was wrong."""
    options = parser(prog).parse_args(argv)
    try:
        tools.java()
        spark = (
            SparkSession.builder.appName("touchline join")
            .config("spark.ui.showConsoleProgress", False)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        print(summary(run(spark, options)))
    except (TouchlineError, PySparkException, Py4JError) as error:
        print(f"touchline: {complaint(error)}", file=sys.stderr)
        return 2
    return 0


def _one_or_pair(name: str, values: list):
    if len(values) > 2:
        raise ParameterError(f"--{name} must be one value, or two for R and S, not {len(values)}: {values!r}")
    return values[0] if len(values) == 1 else tuple(values)


if __name__ == "__main__":
    sys.exit(main())
