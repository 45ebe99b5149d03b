"""Parquet that tasks write for themselves is what Spark writes, and is there as a whole or not at all."""

import json
import os
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.testing import assertDataFrameEqual

from hw.errors import DataError, ParameterError
from spark_offload import StreamJoin, explain, sink
from spark_offload.files import FilePlan
from spark_offload.sink import Folder, Format, PathExistsError, WritingTask

from .test_plain_spark import _exact, wide

BAND = "r.x BETWEEN s.a - 1 AND s.a + 1"
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


@pytest.fixture(scope="module")
def streams(spark, tmp_path_factory):
    """R and S in files; a row of R has no time."""
    root = tmp_path_factory.mktemp("streams")
    for name, value in (("r", "x"), ("s", "a")):
        rows = spark.range(40).selectExpr("if(id = 3, NULL, id) AS t", f"int(id % 7) AS {value}", "id")
        rows.coalesce(1).write.parquet(str(root / name))
    return tuple(spark.read.parquet(str(root / name)) for name in "rs")


def bag(frame) -> Counter:
    return Counter(map(tuple, frame.collect()))


def there(folder: Path) -> set[str]:
    """What is in a folder, but for the sums that Spark keeps of files."""
    return {path.name for path in folder.iterdir() if not path.name.endswith(".crc")}


def stored(folder: Path) -> tuple:
    """All that tells how the columns of a folder's files are stored."""
    found = set()
    for path in folder.glob("*.parquet"):
        file = pq.ParquetFile(path)
        columns = tuple(
            (
                *(column.path, column.physical_type, str(column.logical_type), column.length),
                *(column.max_definition_level, column.max_repetition_level),
            )
            for column in map(file.schema.column, range(len(file.schema)))
        )
        known = file.metadata.metadata
        schema = T.StructType.fromJson(json.loads(known[b"org.apache.spark.sql.parquet.row.metadata"]))
        codec = file.metadata.row_group(0).column(0).compression
        found.add((columns, schema.json(), known[b"org.apache.spark.version"], codec))
    [one] = found
    return one


@pytest.mark.parametrize("timestamps", ["INT96", "TIMESTAMP_MICROS"])
def test_every_type_is_stored_as_spark_stores_it(spark, tmp_path, new_york, timestamps):
    """Spark's own files of the same join have the same columns, types, levels, metadata and rows."""
    r, s = wide(spark, "r"), wide(spark, "s").drop("ltz")
    if timestamps == "INT96":
        r, s = r.drop("ntz"), s.drop("ntz")
    before = "timestamp_micros(unix_micros(ts) - 2000000000000001) AS old"
    r = r.selectExpr("*", before)
    spark.conf.set(TIMESTAMPS, timestamps)
    try:
        join = StreamJoin(
            *(r, s, "r.i8 BETWEEN s.i16 - 2 AND s.i32 + 2", "20 minutes", "ts"),
            tiebreak=["id"],
            how="full",
            partitions=2,
        )
        assert isinstance(join._format(), Format)
        counts = join.write_parquet(tmp_path / "ours")
        join.frame().write.parquet(str(tmp_path / "spark"))
    finally:
        spark.conf.unset(TIMESTAMPS)
    assert stored(tmp_path / "ours") == stored(tmp_path / "spark")
    ours, theirs = (spark.read.parquet(str(tmp_path / name)) for name in ("ours", "spark"))
    assert ours.schema == theirs.schema
    assertDataFrameEqual(_exact(ours), _exact(theirs))
    assert ours.count() == counts["pairs"] + counts["alone"] > counts["alone"] > 0


def test_modes(spark, streams, tmp_path):
    """The four of Spark, at a path that is new, and at one where something is."""
    out = tmp_path / "deep" / "out"
    join = StreamJoin(*streams, BAND, 5, "t", partitions=2)
    assert isinstance(join._files(), FilePlan)
    once = bag(join.frame())
    counts = join.write_parquet(out)
    assert bag(spark.read.parquet(str(out))) == once
    assert (counts["pairs"], counts["slices"], counts["undated"]) == (sum(once.values()), 2, 2)
    names = there(out)
    assert len(names) == 3 and "_SUCCESS" in names
    assert all(
        name.startswith("part-0000") and "-c000.snappy.parquet" in name for name in names - {"_SUCCESS"}
    )
    for mode in ("error", "errorifexists"):
        with pytest.raises(PathExistsError) as error:
            join.write_parquet(out, mode)
        assert str(error.value) == (
            f"path '{out}' exists already; accepted are another one, or the mode overwrite, append or ignore"
        )
    assert join.write_parquet(out, "ignore") is None
    assert there(out) == names
    join.write_parquet(str(out), "Append", compression="zstd")
    assert bag(spark.read.parquet(str(out))) == once + once
    assert {name.split(".", 1)[1] for name in there(out) - names} == {"zstd.parquet"}
    (out / "other").mkdir()
    join.write_parquet(f"file:{out}", "overwrite")
    assert bag(spark.read.parquet(str(out))) == once
    assert len(there(out)) == 3 and not there(out) & (names - {"_SUCCESS"})
    with pytest.raises(ParameterError) as error:
        join.write_parquet(out, "replace")
    assert str(error.value) == (
        "mode must be one of error, errorifexists, overwrite, append, ignore, not 'replace'"
    )
    with pytest.raises(ParameterError) as error:
        join.write_parquet(out / "_SUCCESS", "overwrite")
    assert str(error.value) == f"path must be a folder, or not exist, not the file '{out / '_SUCCESS'}'"


def test_an_empty_result_has_its_columns(spark, streams, tmp_path):
    """From files, and through a shuffle of no rows at all."""
    r, s = streams
    for name, (left, right) in {"files": (r, s), "nothing": (r.where("false"), s.where("false"))}.items():
        join = StreamJoin(left, right, "r.x = s.a + 100", 5, "t", partitions=2)
        assert join.write_parquet(tmp_path / name)["pairs"] == 0
        assert len(there(tmp_path / name)) == 2
        found = spark.read.parquet(str(tmp_path / name))
        assert found.schema == join.frame().schema and found.count() == 0


def test_a_failing_task_leaves_no_output(spark, streams, tmp_path):
    """A bound that overflows, in one of the tasks: nothing new is there, and what was there stays."""
    r, s = streams
    large = s.selectExpr("t", "if(id = 39, 2147483647, a) AS a")
    join = StreamJoin(r, large, "r.x <= s.a + 1", 5, "t", partitions=2)
    with pytest.raises(PythonException, match="overflow"):
        join.write_parquet(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "kept").touch()
    with pytest.raises(PythonException, match="overflow"):
        join.write_parquet(tmp_path / "out", "overwrite")
    assert there(tmp_path / "out") == {"kept"}


@pytest.mark.parametrize("mode, renames", [("append", 3), ("overwrite", 7)])
def test_a_rename_that_fails_undoes_the_others(tmp_path, monkeypatch, mode, renames):
    """Each in turn: all is as it was. Then none: only what another job is about to write is left alone."""
    out = tmp_path / "out"
    (out / "below").mkdir(parents=True)
    (out / "_temporary-other").mkdir()
    for name in ("_SUCCESS", "part-old", "part-older", "below/part-old", "_temporary-other/part-other"):
        (out / name).write_text("old")

    def kept() -> dict[str, str]:
        return {str(path.relative_to(out)): path.read_text() for path in out.rglob("*") if path.is_file()}

    before, rename = kept(), os.rename
    for failing in count():
        calls = count()

        def fail(source, target, calls=calls, failing=failing):
            if next(calls) == failing:
                raise OSError("no rename")
            rename(source, target)

        monkeypatch.setattr(os, "rename", fail)
        try:
            with Folder(str(out), mode) as target:
                for name in ("_SUCCESS", "part-0", "part-1"):
                    Path(target.temporary, name).write_text("new")
                target.commit_all()
            break
        except OSError as error:
            assert str(error) == "no rename"
        assert kept() == before
    assert failing == renames
    other = {"_temporary-other/part-other": "old"}
    old = before if mode == "append" else other
    assert kept() == old | dict.fromkeys(("_SUCCESS", "part-0", "part-1"), "new")


def test_paths_that_cannot_be_made(tmp_path):
    """One error that names the path, and folders that were made for it are gone."""
    (tmp_path / "file").touch()
    for path, reason in {"file/out": "Not a directory", f"new/{'x' * 300}": "File name too long"}.items():
        with pytest.raises(ParameterError) as error, Folder(str(tmp_path / path), "overwrite"):
            pass
        assert str(error.value) == (
            f"path must be a folder that can be made or written to, not '{tmp_path / path}': {reason}"
        )
        assert there(tmp_path) == {"file"}


class Attempt:
    """What tasks ask Spark for."""

    def partitionId(self):
        return 7


@pytest.fixture
def attempts(spark, streams, tmp_path, monkeypatch):
    """A folder that is being written, and a task for it, to be run here."""
    monkeypatch.setattr(sink.TaskContext, "get", Attempt)
    join = StreamJoin(*streams, BAND, 5, "t", partitions=1)
    with Folder(str(tmp_path / "out"), "errorifexists") as target:
        yield target, WritingTask(join._tasks()[1], join._places, join._format(), target.temporary), join


SLICE = pa.RecordBatch.from_pydict({"id": [0]})


def test_only_the_attempt_that_counts_is_seen(spark, attempts, tmp_path, monkeypatch):
    """One attempt dies when it has written rows, two come to their end; nothing is doubled, nothing stays."""
    target, task, join = attempts
    monkeypatch.setattr(sink, "GROUP_ROWS", 1)

    def dying(batches):
        yield next(task.task(batches))
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError, match="killed"):
        list(replace(task, task=dying)([SLICE]))
    first, second = (row["file"] for _ in range(2) for batch in task([SLICE]) for row in batch.to_pylist())
    assert first != second and len(os.listdir(target.temporary)) == 3
    target.commit([second], task.format)
    target.__exit__()
    assert there(tmp_path / "out") == {"_SUCCESS", f"part-00007-{target.job}-c000.snappy.parquet"}
    assert bag(spark.read.parquet(str(tmp_path / "out"))) == bag(join.frame())


def test_row_groups_are_small(spark, attempts, monkeypatch):
    """Rows are written as soon as there are enough: a task does not hold its result."""
    target, task, _ = attempts
    monkeypatch.setattr(sink, "GROUP_ROWS", 50)
    monkeypatch.setattr("spark_offload.task.BATCH_ROWS", 20)
    [row] = [row for batch in task([SLICE]) for row in batch.to_pylist()]
    groups = pq.ParquetFile(f"{target.temporary}/{row['file']}").metadata
    assert [groups.row_group(k).num_rows for k in range(groups.num_row_groups - 1)] == [60] * (
        groups.num_rows // 60
    )


def test_a_folder_that_machines_do_not_share(attempts):
    target, task, _ = attempts
    with pytest.raises(DataError) as error:
        target.commit(["part-00000-a.parquet"], task.format)
    shared = "accepted are paths that driver and executors see under one name"
    assert str(error.value) == (
        f"{target.temporary}/part-00000-a.parquet, which a task has written, is not there; {shared}"
    )
    with pytest.raises(DataError) as error:
        list(replace(task, folder="/nowhere")([SLICE]))
    assert str(error.value).startswith("/nowhere/part-00007-")
    assert str(error.value).endswith(
        f".parquet cannot be made, because the folder that the driver has made is not there; {shared}"
    )


@pytest.mark.parametrize(
    "setting, value, reason",
    [
        ("files.maxRecordsPerFile", "5", "spark.sql.files.maxRecordsPerFile is 5, not 0"),
        ("parquet.writeLegacyFormat", "true", "spark.sql.parquet.writeLegacyFormat is true, not false"),
        (
            "parquet.compression.codec",
            "lz4",
            "the codec is lz4, not one of none, uncompressed, snappy, gzip, lz4_raw, zstd",
        ),
        (
            "parquet.outputTimestampType",
            "TIMESTAMP_MILLIS",
            f"{TIMESTAMPS} is TIMESTAMP_MILLIS, not TIMESTAMP_MICROS",
        ),
        (
            "parquet.outputTimestampType",
            "INT96",
            f"{TIMESTAMPS} is INT96 beside timestamps without time zone, not TIMESTAMP_MICROS",
        ),
        (
            "sources.commitProtocolClass",
            "org.apache.spark.internal.io.HadoopMapReduceCommitProtocol",
            "spark.sql.sources.commitProtocolClass is org.apache.spark.internal.io."
            "HadoopMapReduceCommitProtocol, not "
            "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol",
        ),
    ],
)
def test_what_only_spark_writes(spark, streams, setting, value, reason):
    r, s = streams
    dated = r.selectExpr("*", "timestamp_seconds(id) AS at", "timestamp_ntz'2024-01-01' AS ntz")
    spark.conf.set(f"spark.sql.{setting}", value)
    try:
        lines = explain(dated, s, BAND, 5, "t").splitlines()
    finally:
        spark.conf.unset(f"spark.sql.{setting}")
    assert [line.split("  ")[-1].strip() for line in lines if line.startswith("write_parquet")] == [reason]


@pytest.mark.parametrize("name", ["parquet.encryption.footer.key", "parquet.crypto.factory.class"])
def test_only_spark_encrypts(spark, streams, name):
    join = StreamJoin(*streams, BAND, 5, "t")
    spark.conf.set(name, "secret")
    try:
        assert join._format() == f"{name} is set"
    finally:
        spark.conf.unset(name)
    assert isinstance(join._format(), Format)


def test_folders_that_are_not_marked(spark, streams, tmp_path):
    """Spark is told not to say that all is there."""
    name = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
    join = StreamJoin(*streams, BAND, 5, "t", partitions=1)
    spark.conf.set(name, "false")
    try:
        assert join._format() == f"{name} is false"
        join.write_parquet(tmp_path / "out")
    finally:
        spark.conf.unset(name)
    assert [name.partition("-")[0] for name in there(tmp_path / "out")] == ["part"]
    assert bag(spark.read.parquet(str(tmp_path / "out"))) == bag(join.frame())


@pytest.mark.parametrize(
    "how, kind",
    [("inner", "if(id % 2 = 0, NULL, named_struct('a', 1, 'b', 'x'))"), ("full", "struct(1 AS a)")],
)
def test_fields_that_are_never_null(spark, streams, tmp_path, how, kind):
    """In structs that are NULL, or that are beside no partner."""
    r, s = streams
    join = StreamJoin(
        r.selectExpr("*", f"{kind} AS c"), s, f"{BAND} AND r.id < 9", 5, "t", how=how, partitions=1
    )
    assert join._format() == "the field `a` of a struct is never NULL, but the struct may be"
    join.write_parquet(tmp_path / "out")
    found = spark.read.parquet(str(tmp_path / "out"))
    assert bag(found) == bag(join.frame())
    assert found.where("c IS NULL").count() and found.where("c.a = 1").count()


def test_types_that_only_spark_writes(spark, streams):
    r, s = streams
    assert StreamJoin(r.selectExpr("*", "NULL AS none"), s, BAND, 5, "t")._format() == (
        "there is a column of void"
    )


def test_spark_replaces_what_it_reads(spark, streams, tmp_path):
    """Where Spark writes, too, what was there stays until all is done, and if a task fails."""
    for name, frame in zip("rs", streams):
        frame.selectExpr("*", "string(id % 2) AS k").write.parquet(str(tmp_path / name))
    r, s = (spark.read.parquet(str(tmp_path / name)) for name in "rs")
    large = s.selectExpr("t", "if(id = 39, 2147483647, a) AS a", "k")
    before = there(tmp_path / "r")
    with pytest.raises(PythonException, match="overflow"):
        StreamJoin(r, large, "r.x <= s.a + 1 AND r.k LIKE s.k", 5, "t", partitions=2).write_parquet(
            tmp_path / "r", "overwrite"
        )
    assert there(tmp_path / "r") == before
    join = StreamJoin(r, s, f"{BAND} AND r.k LIKE s.k", 5, "t", partitions=2)
    expected = bag(join.frame())
    counts = join.write_parquet(tmp_path / "r", "overwrite")
    assert bag(spark.read.parquet(str(tmp_path / "r"))) == expected
    assert counts["pairs"] == expected.total() > 0
    assert there(tmp_path / "r") & before == {"_SUCCESS"}


def test_spark_writes_what_only_it_can_decide(spark, streams, tmp_path, monkeypatch):
    """The same modes and counts, through Spark."""
    r, s = (frame.selectExpr("*", "string(id % 2) AS k") for frame in streams)
    join = StreamJoin(r, s, f"{BAND} AND r.k LIKE s.k", 5, "t", partitions=2)
    assert "only Spark can evaluate `r.k LIKE s.k`" in join.explain()
    counts = join.write_parquet(tmp_path / "out")
    expected = r.alias("r").join(s.alias("s"), F.expr(f"{BAND} AND abs(r.t - s.t) <= 5 AND r.k LIKE s.k"))
    assert bag(spark.read.parquet(str(tmp_path / "out"))) == bag(expected)
    assert counts["pairs"] == expected.count()
    for _ in range(2):
        with pytest.raises(PathExistsError):
            join.write_parquet(tmp_path / "out")
        assert join.write_parquet(tmp_path / "out", "ignore") is None
        monkeypatch.setattr(sink, "hadoop", lambda frame: None)  # then the path is Spark's alone
