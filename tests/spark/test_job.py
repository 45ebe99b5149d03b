"""The job and the command line: files in, files out, a summary, and errors of one line."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import functions as F

from spark_offload import job
from spark_offload.cli import main

ROOT = Path(__file__).parents[2]
BAND = "r.x BETWEEN s.a - 1 AND s.a + 1"


@pytest.fixture
def files(spark, tmp_path):
    """Two small streams in each format; one R row has no time."""
    r = spark.sql("SELECT timestamp_seconds(if(id = 3, NULL, id)) AS ts, int(id) AS x FROM range(20)")
    s = spark.sql("SELECT timestamp_seconds(id) AS ts, int(id) AS a FROM range(20)")
    for name, frame in (("r", r), ("s", s)):
        for format in job.FORMATS:
            frame.coalesce(1).write.option("header", True).format(format).save(
                str(tmp_path / f"{name}.{format}")
            )
    return tmp_path


def line(files, suffix="parquet", **changes):
    options = {"on": [BAND], "window": ["1 second"], "time": ["ts"], "partitions": ["2"]}
    options |= {"output": [str(files / "out")]} | changes
    flags = [word for name, values in options.items() for word in (f"--{name.replace('_', '-')}", *values)]
    return ["join", str(files / f"r.{suffix}"), str(files / f"s.{suffix}"), *flags]


@pytest.mark.parametrize("format", job.FORMATS)
def test_formats(spark, files, capsys, format):
    assert main(line(files, format, format=[format])) == 0
    result = spark.read.format(format).options(header=True, inferSchema=True).load(str(files / "out"))
    assert result.count() == sum(abs(i - j) <= 1 for i in range(20) for j in range(20) if i != 3)
    assert sorted(result.columns) == ["a", "r_ts", "s_ts", "x"]


def test_summary(files, capsys):
    assert main(line(files, offload=["sim"])) == 0
    lines = dict(text.split("  ", 1) for text in capsys.readouterr().out.splitlines())
    assert [name.strip() for name in lines] == [
        "tuples", "without event time", "pairs", "device", "halo", "cycles", "tuples per cycle",
        "comparisons", "seconds in tasks", "memory per task",
    ]  # fmt: skip
    values = [value.strip() for value in lines.values()]
    assert values[:4] == ["39", "1", "55", "sim:handshake, 2 slices"]
    assert values[4].endswith("%") and values[9].endswith(" MiB at most")
    cycles = int(values[5].replace(",", ""))
    assert values[6] == f"{39 / cycles:.4f}"


def test_outer_by_key_on_whatever_there_is(spark, files, capsys):
    options = {"how": ["left"], "by": ["ts"], "columns": ["x", "a"], "offload": ["auto"], "fallback": ["cpu"]}
    assert main(line(files, "json", **options)) == 0
    result = spark.read.parquet(str(files / "out"))
    assert result.columns == ["x", "a"]
    assert sorted(map(tuple, result.collect())) == [(x, x if x != 3 else None) for x in range(20)]
    lines = dict(text.split("  ", 1) for text in capsys.readouterr().out.splitlines())
    assert lines["without a partner"].strip() == "1"


@pytest.mark.parametrize("format", job.FORMATS)
def test_partitioned_directories(spark, files, format):
    """Columns that only the names of folders hold are columns like others, also in the condition."""
    for name in "rs":
        frame = spark.read.parquet(str(files / f"{name}.parquet")).withColumn("k", F.expr("second(ts) % 2"))
        frame.write.partitionBy("k").option("header", True).format(format).save(
            str(files / f"{name}_by_k.{format}")
        )
    on = f"{BAND} AND r.k = s.k"
    arguments = line(files, format, on=[on], format=[format])
    assert main([argument.replace(f".{format}", f"_by_k.{format}") for argument in arguments]) == 0
    result = spark.read.format(format).options(header=True, inferSchema=True).load(str(files / "out"))
    assert sorted(result.columns) == ["a", "r_k", "r_ts", "s_k", "s_ts", "x"]
    found = Counter((row.x, row.a, row.r_k, row.s_k) for row in result.collect())
    assert found == Counter((i, i, i % 2, i % 2) for i in range(20) if i != 3)


def test_windows_and_times_of_their_own(spark, files):
    assert main(line(files, window=["3 rows", "5 rows"], time=["ts", "ts"], tiebreak=["ts"])) == 0
    assert spark.read.parquet(str(files / "out")).count() > 0


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"partitions": ["0"]}, "partitions must be a positive integer or None, not 0"),
        (
            {"device": ["tty0"]},
            "with offload='cpu' device must be a URL that starts with cpu:, not 'tty0'",
        ),
        (
            {"window": ["1 second", "2 seconds", "3 seconds"]},
            "--window must be one value, or two for R and S, not 3: ['1 second', '2 seconds', '3 seconds']",
        ),
    ],
)
def test_errors_are_one_line(files, capsys, changes, message):
    assert main(line(files, **changes)) == 2
    assert capsys.readouterr() == ("", f"touchline: {message}\n")


def test_an_output_that_exists_is_kept_unless_told(files, capsys):
    assert main(line(files)) == 0
    capsys.readouterr()
    assert main(line(files)) == 2
    message = f"output {files / 'out'} exists already; name another, or give --overwrite"
    assert capsys.readouterr() == ("", f"touchline: {message}\n")
    assert main([*line(files), "--overwrite"]) == 0


def test_inputs_that_cannot_be_read(files, capsys):
    assert main(["join", "r.txt", *line(files)[2:]]) == 2
    message = "input 'r.txt' must end in .parquet, .csv, .json, or --input-format must say what it is"
    assert capsys.readouterr() == ("", f"touchline: {message}\n")
    assert main(["join", str(files / "none.parquet"), *line(files)[2:]]) == 2
    error = capsys.readouterr().err
    assert error.startswith("touchline: [PATH_NOT_FOUND] Path does not exist: ") and error.count("\n") == 1


def test_an_error_in_a_worker_is_one_line(spark, files, capsys):
    """A bound that overflows is found where the rows are."""
    spark.sql("SELECT timestamp_seconds(0) AS ts, 2147483647 AS a").write.parquet(
        str(files / "s.parquet"), "overwrite"
    )
    assert main(line(files, on=["r.x <= s.a + 1"])) == 2
    error = capsys.readouterr().err
    assert error.startswith("touchline: ") and "overflow" in error and error.count("\n") == 1


def test_spark_submit_to_a_cluster(spark, files):
    """Two executors, each a process of its own, that find Touchline on the path they are given."""
    output = files / "submitted"
    submit = [Path(sys.executable).with_name("spark-submit"), "--master", "local-cluster[2,1,1024]"]
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK"))
    }
    found = subprocess.run(
        [*submit, ROOT / "spark_offload" / "job.py", *line(files, output=[str(output)])[1:]],
        env=inherited
        | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_DIRS": str(files)},
        cwd=files,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert found.returncode == 0, found.stderr
    assert "pairs               55" in found.stdout
    r, s = (spark.read.parquet(str(files / f"{name}.parquet")) for name in "rs")
    plain = r.alias("r").join(
        s.alias("s"), F.expr(f"{BAND} AND abs(unix_seconds(r.ts) - unix_seconds(s.ts)) <= 1")
    )
    assert Counter(map(tuple, spark.read.parquet(str(output)).collect())) == Counter(
        map(tuple, plain.collect())
    )
