"""Tasks that read Parquet for themselves give what Spark gives, and leave alone what they read otherwise."""

import os
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import Observation
from pyspark.sql import functions as F

from host.pieces import OUTER
from host.spec import JoinSpec
from hw.errors import DataError
from spark_offload import explain, stream_join, task
from spark_offload.files import File, FilePlan, FileTask, _row_groups, plan_files
from spark_offload.stream_join import StreamJoin

BAND = "r.x BETWEEN s.a - 1 AND s.a + 1"


def bag(frame) -> Counter:
    return Counter(map(tuple, frame.collect()))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Two folders of files whose times overlap, in small row groups; some rows have no time."""
    rng, root = np.random.default_rng(5), tmp_path_factory.mktemp("files")
    for name, value in (("r", "x"), ("s", "a")):
        (root / name).mkdir()
        for number in range(3):
            count = 70
            times = rng.integers(number * 20, number * 20 + 30, count)
            if number != 1:
                times.sort()
            table = pa.table(
                {
                    "k": pa.array(rng.choice(["a", "b"], count), mask=rng.random(count) < 0.1),
                    "t": pa.array(times, mask=rng.random(count) < 0.05),
                    value: pa.array(rng.integers(0, 15, count).astype(np.int32)),
                    "id": np.arange(count) + 1000 * number,
                    "unused": pa.array([[1]] * count),
                }
            )
            pq.write_table(table, root / name / f"{number}.parquet", row_group_size=20)
    return root


def frames(spark, folders):
    r, s = (spark.read.parquet(str(folders / name)) for name in "rs")
    return r.select("id", "t", "x", "k"), s.select("t", "id", "a", "k")


def joined_ids(spec, plan, how) -> Counter:
    """What the tasks of a plan give, run here."""
    joined = FileTask(task.Task(spec, task.Where("cpu:auto"), (("id",), ("id",)), how), plan)
    found = Counter()
    for number in range(len(plan)):
        for batch in joined([pa.RecordBatch.from_pydict({"id": [number]})]):
            found.update((row["c0"], row["c1"]) for row in batch.to_pylist() if row["metrics"] is None)
    return found


def plain(r, s, on, how):
    within = "r.t - s.t BETWEEN -4 AND 2"
    return r.alias("r").join(s.alias("s"), F.expr(f"{on} AND {within}"), how)


@pytest.mark.parametrize("how, residual", [("inner", ""), ("full", ""), ("left", " AND r.k LIKE s.k")])
def test_against_plain_spark(spark, folders, how, residual):
    r, s = frames(spark, folders)
    on, observation = BAND + residual, Observation()
    join = StreamJoin(r, s, on, (4, 2), "t", how=how, partitions=3)
    assert isinstance(join._files(), FilePlan)
    assert bag(join.frame(observation)) == bag(plain(r, s, on, how))
    undated = sum(frame.where("t IS NULL").count() for frame in (r, s))
    counts = observation.get
    assert (counts["slices"], counts["undated"], counts["tuples"]) == (3, undated, 420 - undated)


@pytest.mark.parametrize("how", OUTER)
def test_pieces(spark, folders, monkeypatch, how):
    """Row groups are read as time goes on, and joined in pieces that hold what may be joined at once."""
    r, s = frames(spark, folders)
    for name, rows in (("FIRST_PIECE", 8), ("PIECE", 30), ("LEAST_PIECE", 8)):
        monkeypatch.setattr(task, name, rows)
    sizes = []
    add = task.Pieces.add
    monkeypatch.setattr(
        task.Pieces,
        "add",
        lambda self, new, phase: sizes.append(len(new.r.time) + len(new.s.time)) or add(self, new, phase),
    )
    join = StreamJoin(r, s, BAND, (4, 2), "t", how=how, partitions=4)
    plan = join._files()
    assert joined_ids(join.spec, plan, how) == bag(plain(r, s, BAND, how).select("r.id", "s.id"))
    assert len(sizes) > 12 and max(sizes) < 60


def test_timestamps_as_spark_writes_them(spark, tmp_path):
    """Spark's own files hold times in a form without statistics."""
    for name, value in (("r", "x"), ("s", "a")):
        rows = spark.range(200).selectExpr(
            "if(id % 50 = 7, NULL, timestamp_micros(id * 777 - 60000)) AS ts", f"int(id % 9) AS {value}", "id"
        )
        rows.repartition(2, "id").sortWithinPartitions("id").write.parquet(str(tmp_path / name))
    r, s = (spark.read.parquet(str(tmp_path / name)) for name in "rs")
    options = {"window": "10 milliseconds", "time": "ts", "how": "full", "partitions": 2}
    join = StreamJoin(r, s, BAND, **options)
    assert isinstance(join._files(), FilePlan)
    within = "abs(unix_micros(r.ts) - unix_micros(s.ts)) <= 10000"
    expected = r.alias("r").join(s.alias("s"), F.expr(f"{BAND} AND {within}"), "full")
    assert bag(join.frame()) == bag(expected)


@pytest.mark.parametrize(
    "change, options, reason",
    [
        (lambda r: r.where("x > 1"), {}, "r is made by Filter, not read from Parquet as it is"),
        (
            lambda r: r.withColumn("x", F.expr("x + 1")),
            {},
            "r is computed from its files, not read from them as it is",
        ),
        (lambda r: r.limit(5), {}, "r is made by GlobalLimit, not read from Parquet as it is"),
        (lambda r: r, {"window": "5 rows"}, "windows of rows need all rows in one order"),
        (
            lambda r: r.sparkSession.createDataFrame([(1, 1, 1, "a")], "id long, t long, x int, k string"),
            {},
            "r is made by LogicalRDD, not read from Parquet as it is",
        ),
    ],
)
def test_reasons_to_shuffle(spark, folders, change, options, reason):
    r, s = frames(spark, folders)
    text = explain(change(r), s, BAND, **({"window": (4, 2), "time": "t"} | options))
    [line] = [line for line in text.splitlines() if line.startswith("rows ")]
    assert line.split("Spark shuffles them")[1].strip() == reason


def halves(path, value, times):
    """Writes two row groups, of one size whatever the times are."""
    count = len(times)
    table = pa.table(
        {
            "t": pa.array(times, pa.int64()),
            value: pa.array(np.arange(count) % 5, pa.int32()),
            "id": np.arange(count),
        }
    )
    pq.write_table(table, path, row_group_size=count // 2, compression="none", use_dictionary=False)


def planned(root) -> tuple[JoinSpec, FilePlan]:
    """A join of r0 and r1 with s, in two slices."""
    files = [[File.now(str(root / f"{name}.parquet")) for name in names] for names in (["r0", "r1"], ["s"])]
    spec = JoinSpec(BAND, (4, 2), "t", *(pq.read_schema(side[0].path) for side in files))
    names = ("t", "x", "id"), ("t", "a", "id")
    groups = [_row_groups(files[k], spec, "rs"[k], names[k], ["CORRECTED"] * 2)[0] for k in range(2)]
    return spec, FilePlan((*files[0], *files[1]), tuple(groups), (0, 500), names, ((4, 0), (2, 0)), 0)


EARLY, LATE = list(range(20)), list(range(1000, 1020))


def expected_ids(r0, r1, s) -> Counter:
    return Counter(
        (i, j)
        for r in (r0, r1)
        for i, at in enumerate(r)
        for j, to in enumerate(s)
        if at is not None and -4 <= at - to <= 2 and abs(i % 5 - j % 5) <= 1
    )


def changed(file: File, found: str) -> str:
    return (
        f"{file.path} must stay as it was when the join was planned, {file.size} bytes modified at "
        f"{file.modified} ns, not {found}; accepted are files that nobody writes until the last "
        "action on the join, so call stream_join again"
    )


@pytest.fixture
def three_files(tmp_path):
    """Two row groups each, by time; r1 has none."""
    for name, value, times in (("r0", "x", EARLY + LATE), ("r1", "x", [None] * 40), ("s", "a", EARLY + LATE)):
        halves(tmp_path / f"{name}.parquet", value, times)
    return tmp_path


@pytest.mark.parametrize("name, value", [("r0", "x"), ("r1", "x"), ("s", "a")])
def test_files_that_are_rewritten(three_files, name, value):
    """The number of rows does not tell that times are in other row groups, or that there are any now."""
    times = {"r0": EARLY + LATE, "r1": [None] * 40, "s": EARLY + LATE}
    spec, plan = planned(three_files)
    assert joined_ids(spec, plan, "inner") == expected_ids(**times)
    [file] = [file for file in plan.files if file.path.endswith(f"{name}.parquet")]
    times[name] = LATE + EARLY
    halves(file.path, value, times[name])
    os.utime(file.path, ns=(0, file.modified + 1))
    size = os.path.getsize(file.path)
    with pytest.raises(DataError) as error:
        joined_ids(spec, plan, "inner")
    assert str(error.value) == changed(file, f"{size} bytes modified at {file.modified + 1} ns")
    assert joined_ids(*planned(three_files), "inner") == expected_ids(**times)


def test_files_that_change_while_they_are_read(three_files, monkeypatch):
    """Also where what is read then is no Parquet; a file that is gone is named, too."""
    spec, plan = planned(three_files)
    file, read = plan.files[2], pq.ParquetFile.read_row_group

    def broken(self, number, columns, **options):
        if "a" in columns:
            os.utime(file.path, ns=(0, file.modified + 1))
            raise pa.ArrowInvalid("no Parquet")
        return read(self, number, columns, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", broken)
    with pytest.raises(DataError) as error:
        joined_ids(spec, plan, "inner")
    assert str(error.value) == changed(file, f"{file.size} bytes modified at {file.modified + 1} ns")
    os.remove(file.path)
    with pytest.raises(DataError) as error:
        joined_ids(spec, plan, "inner")
    assert str(error.value) == changed(file, "gone")


def test_conversion_of_old_timestamps(spark, folders):
    r, s = frames(spark, folders)
    spark.conf.set("spark.sql.parquet.int96TimestampConversion", "TRUE")
    try:
        why = StreamJoin(r, s, BAND, (4, 2), "t")._files()
    finally:
        spark.conf.unset("spark.sql.parquet.int96TimestampConversion")
    assert why == "r is read with spark.sql.parquet.int96TimestampConversion"


def test_files_that_arrow_reads_otherwise(spark, tmp_path):
    """Nanoseconds, types that were changed, and dates of old calendars go through Spark."""
    spec = StreamJoin(
        spark.sql("SELECT 1 AS t, timestamp'2020-01-01' AS at"),
        spark.sql("SELECT 1 AS t"),
        "r.t = s.t",
        1,
        "t",
    ).spec
    day = pa.array([0], pa.timestamp("us", "UTC"))
    for name, table, metadata, reason in (
        (
            "ns",
            {"t": pa.array([1], pa.int32()), "at": day.cast(pa.timestamp("ns", "UTC"))},
            {},
            "is timestamp[ns",
        ),
        ("type", {"t": pa.array([1], pa.int64()), "at": day}, {}, "`t` is int64, which Spark reads as int32"),
        (
            "old",
            {"t": pa.array([1], pa.int32()), "at": day},
            {"org.apache.spark.legacyDateTime": ""},
            "`at` may be in the calendar of old versions",
        ),
        ("nested", {"t": pa.array([1], pa.int32())}, {}, "`at` is missing or nested"),
    ):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table(table).replace_schema_metadata(metadata), path, version="2.6")
        assert reason in _row_groups([File.now(str(path))], spec, "r", ["t", "at"], ["CORRECTED"] * 2)


@pytest.mark.parametrize("int96", [False, True])
@pytest.mark.parametrize("zone", ["UTC", None])
def test_calendars_of_versions(tmp_path, int96, zone):
    """What Spark takes for the old calendar goes through Spark: by the version, or else the setting."""
    table = pa.table({"t": pa.array([1], pa.int32()), "at": pa.array([0], pa.timestamp("us", zone))})
    spec = JoinSpec("r.t = s.t", 1, "t", table.schema, table.schema)
    old, path = "`at` may be in the calendar of old versions in ", tmp_path / "file.parquet"
    for version, mode, new in (
        ("2.4.8", "CORRECTED", False),
        ("3.0.0", "LEGACY", not int96),
        ("3.0.3", "LEGACY", not int96),
        ("3.1.0", "LEGACY", True),
        ("4.0.0", "LEGACY", True),
        (None, "EXCEPTION", False),
        (None, "CORRECTED", True),
    ):
        metadata = {"org.apache.spark.version": version} if version else {}
        written = table.replace_schema_metadata(metadata)
        pq.write_table(written, path, use_deprecated_int96_timestamps=int96)
        modes = ["CORRECTED", mode] if int96 else [mode, "CORRECTED"]
        found = _row_groups([File.now(str(path))], spec, "r", ["t", "at"], modes)
        if not new:
            assert found == f"{old}{path}"
        elif int96 and zone is None:
            assert found == f"`at` is INT96, which Spark reads as timestamp[us] in {path}"
        else:
            assert [group.rows for group in found[0]] == [1]


def test_unsorted_files_are_not_read_over_and_over(spark, folders, monkeypatch):
    r, s = frames(spark, folders)
    join = StreamJoin(r, s, BAND, 1000, "t")
    names = ("t", "x"), ("t", "a")
    plan = plan_files((r, s), join.spec, names, "inner", 60)
    assert plan == (
        "60 tasks would read 31.0 times the rows there are, because times in row groups overlap or row "
        "groups are long; accepted is 4"
    )


def test_explain_estimates_the_halo(spark, folders):
    r, s = frames(spark, folders)
    observation = Observation()
    text = explain(r, s, BAND, (4, 2), "t", partitions=3)
    stream_join(r, s, BAND, (4, 2), "t", partitions=3, observation=observation).count()
    halo = observation.get["halo"]
    [line] = [line for line in text.splitlines() if line.startswith("halo ")]
    assert f"{halo} rows" in line or abs(int(line.split()[1]) - halo) <= 0.2 * halo
    assert "tasks read Parquet" in text
