"""Outer joins, keys and residual filters give what plain Spark gives, however history is cut."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import Observation
from pyspark.sql import functions as F
from pyspark.sql import window as W

from hw.errors import ParameterError, SpecError
from spark_offload import explain, stream_join

from ..configurations import DEVICES

BAND = "r.x BETWEEN s.a - 1 AND s.a + 1"
LIKE = f"{BAND} AND r.name LIKE s.pattern"


@pytest.fixture(scope="module")
def streams(spark):
    """Two streams with ties, and NULL in times, keys and values."""
    rng = np.random.default_rng(11)

    def stream(value, text, names):
        count = 130
        rows = pd.DataFrame(
            {
                "t": pd.array(np.where(rng.random(count) < 0.05, None, rng.integers(0, 30, count)), "Int64"),
                value: pd.array(
                    np.where(rng.random(count) < 0.05, None, rng.integers(0, 20, count)), "Int64"
                ),
                "k": rng.choice(["a", "b", None], count),
                text: rng.choice(names, count),
                "id": rng.permutation(count),
            }
        )
        return spark.createDataFrame(rows).repartition(3).cache()

    return stream("x", "name", ["ab", "abc", "b"]), stream("a", "pattern", ["ab%", "%c", "_"])


def bag(frame) -> Counter:
    return Counter(map(tuple, frame.collect()))


def plain(r, s, on, window, how, by=()):
    """The same in plain Spark; windows of rows are counted per key."""
    keys = "".join(f" AND r.{name} = s.{name}" for name in by)
    if window[0].endswith("rows"):
        order = W.Window.partitionBy(*by).orderBy("t", "side", "row")
        rows = [
            frame.where("t IS NOT NULL").select(
                *by, "t", F.lit(side).alias("side"), F.struct(value, "k", text, "id").alias("row"), "id"
            )
            for side, (frame, value, text) in enumerate(((r, "x", "name"), (s, "a", "pattern")))
        ]
        # As `row` orders ties it must be of one type, and hold the columns in their order.
        union = (
            rows[0]
            .withColumn("row", F.expr("struct(row.x AS v, row.k, row.name AS text, row.id)"))
            .union(
                rows[1].withColumn("row", F.expr("struct(row.a AS v, row.k, row.pattern AS text, row.id)"))
            )
        )
        before = order.rowsBetween(W.Window.unboundedPreceding, -1)
        count = [F.count_if(F.col("side") == side).over(before) for side in (0, 1)]
        numbered = union.select("side", "id", count[0].alias("rs"), count[1].alias("ss"))
        r, s = (
            frame.join(numbered.where(f"side = {side}").drop("side"), "id", "left").select(
                *frame.columns, "rs", "ss"
            )
            for side, frame in enumerate((r, s))
        )
        sizes = [length.split()[0] for length in window]
        within = f"r.rs >= s.rs - {sizes[0]} AND r.ss - {sizes[1]} <= s.ss"
        return r.alias("r").join(s.alias("s"), F.expr(f"{on} AND {within}{keys}"), how).drop("rs", "ss")
    within = f"r.t - s.t BETWEEN -{window[0]} AND {window[1]}"
    return r.alias("r").join(s.alias("s"), F.expr(f"{on} AND {within}{keys}"), how)


@pytest.mark.parametrize(
    "how, on, by, window, partitions",
    [
        ("left", BAND, (), ("4", "2"), 5),
        ("right", BAND, ("k",), ("0", "9"), 3),
        ("full", BAND, (), ("30", "0"), 4),
        ("full", LIKE, ("k",), ("4", "2"), 4),
        ("left", LIKE, (), ("5 rows", "9 rows"), 3),
        ("inner", BAND, ("k",), ("3 rows", "5 rows"), 4),
        ("full", BAND, ("k",), ("4 rows", "1 rows"), 5),
        ("right", f"NOT ({LIKE})", (), ("2", "2"), 2),
        ("left", "upper(r.name) = 'AB'", (), ("0", "1"), 2),
    ],
)
def test_against_plain_spark(streams, how, on, by, window, partitions):
    observation = Observation()
    given = tuple(length if length.endswith("rows") else int(length) for length in window)
    result = stream_join(
        *streams, on, given, "t", how=how, by=by, partitions=partitions, observation=observation
    )
    found, expected = bag(result), bag(plain(*streams, on, window, how, by))
    assert found == expected
    pairs = sum(count for row, count in found.items() if row[4] is not None and row[9] is not None)
    counts = observation.get
    assert (counts["pairs"], counts["alone"]) == (pairs, found.total() - pairs)
    assert counts["tuples"] == sum(frame.where("t IS NOT NULL").count() for frame in streams)
    assert counts["slices"] == partitions
    assert counts["memory"] > 0 and counts["fallbacks"] == 0


def test_a_device_joins_outer_too(streams):
    r, s = (frame.drop("name", "pattern") for frame in streams)
    options = {"offload": "sim", "device": DEVICES["splitjoin"], "partitions": 3}
    result = stream_join(r, s, BAND, (4, 2), "t", how="full", by=["k"], **options)
    assert bag(result) == bag(plain(r, s, BAND, ("4", "2"), "full", ("k",)))


def test_columns(streams):
    """Only what is asked for comes out; what Spark needs for its own part is sent along."""
    result = stream_join(*streams, LIKE, (4, 2), "t", how="left", columns=["s_id", "x"], partitions=3)
    assert result.columns == ["s_id", "x"]
    expected = plain(*streams, LIKE, ("4", "2"), "left").select("s.id", "x")
    assert bag(result) == bag(expected)


def test_pieces_are_bounded_by_their_pairs(streams, monkeypatch):
    """Slices go through in pieces, whatever they hold."""
    from spark_offload import task

    source = streams[0].select("t", "x", "id").where("t IS NOT NULL")
    other = streams[1].select("t", "a", "id").where("t IS NOT NULL")
    spec = stream_join_spec(source, other)
    steps = []
    monkeypatch.setattr(task, "FIRST_PIECE", 8)
    monkeypatch.setattr(task, "PIECE", 32)
    monkeypatch.setattr(task, "LEAST_PIECE", 8)
    add = task.Pieces.add
    monkeypatch.setattr(
        task.Pieces, "add", lambda self, new, phase: steps.append(new) or add(self, new, phase)
    )
    joined = task.Task(spec, task.Where("cpu:auto"), (("id",), ("id",)), "full")
    batches = list(joined(in_batches(source, other, 10)))
    assert len(steps) > 5
    pairs = Counter(
        (row["c0"], row["c1"]) for batch in batches for row in batch.to_pylist() if row["metrics"] is None
    )
    expected = plain(source, other, BAND, ("3", "3"), "full").select("r.id", "s.id")
    assert pairs == bag(expected)


def stream_join_spec(r, s):
    from host.spec import JoinSpec

    return JoinSpec(BAND, 3, "t", r.limit(0).toArrow().schema, s.limit(0).toArrow().schema)


def in_batches(r, s, rows):
    """One slice of all rows in arrival order, as Spark hands it to a task."""
    import pyarrow as pa

    r, s = r.toArrow(), s.toArrow()
    order = sorted(
        [(t, False, k) for k, t in enumerate(r["t"].to_pylist())]
        + [(t, True, k) for k, t in enumerate(s["t"].to_pylist())]
    )
    tables = {False: r.to_pylist(), True: s.to_pylist()}
    for start in range(0, len(order), rows):
        part = order[start : start + rows]
        yield pa.RecordBatch.from_pydict(
            {
                "slice": pa.array([0] * len(part), pa.int32()),
                "phase": pa.array([1] * len(part), pa.int32()),
                "is_s": [is_s for _, is_s, _ in part],
                "t": [t for t, _, _ in part],
                "r": pa.array(
                    [None if is_s else tables[False][k] for _, is_s, k in part], pa.struct(r.schema)
                ),
                "s": pa.array(
                    [tables[True][k] if is_s else None for _, is_s, k in part], pa.struct(s.schema)
                ),
            }
        )


def test_explain_says_what_spark_evaluates(streams):
    text = explain(*streams, LIKE, 3, "t", by=["k"])
    line = "`r.name LIKE s.pattern`: no dimension, evaluated on each pair because it is not point-in-box"
    assert f"  {line}" in text.splitlines()
    assert "by r.k = s.k" in text.splitlines()
    text = explain(*streams, BAND, "3 rows", "t", by=["k"])
    assert "by r.k = s.k, and windows count the rows of each key alone" in text.splitlines()


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"how": "outer"}, ParameterError, "how must be one of inner, left, right, full, not 'outer'"),
        (
            {"how": "left", "ordered": True},
            ParameterError,
            "ordered needs how='inner' and one order of all rows, not how='left'",
        ),
        (
            {"by": ["k"], "window": "3 rows", "ordered": True},
            ParameterError,
            "ordered needs how='inner' and one order of all rows, not windows of rows by key",
        ),
        (
            {"by": [("x", "k")]},
            SpecError,
            "by columns `r.x` and `s.k` must have one type that can be ordered, not int64 and string",
        ),
        ({"by": ["z"]}, SpecError, "`r.z` is not a column of R, which has: t, x, k, name, id"),
        (
            {"columns": ["x", "y"]},
            SpecError,
            "columns must name some of r_t, x, r_k, name, r_id, s_t, a, s_k, pattern, s_id, each once, "
            "not ['x', 'y']",
        ),
        ({"columns": "x"}, ParameterError, "columns must be names of columns, or None for all, not 'x'"),
        (
            {"on": "name LIKE s.pattern"},
            SpecError,
            "`name` must say which stream it is of, r.name or s.name, because Spark evaluates "
            "'name LIKE s.pattern'",
        ),
    ],
)
def test_bad_arguments(streams, options, error, message):
    arguments = {"on": BAND, "window": 3, "time": "t"} | options
    with pytest.raises(error) as caught:
        stream_join(*streams, **arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize("how", ["inner", "full"])
def test_a_condition_that_changes_its_mind(streams, how):
    """Pairs and rows without a partner come of several evaluations, which must agree."""
    on = f"{BAND} AND rand() < 0.5"
    with pytest.raises(SpecError) as caught:
        stream_join(*streams, on, 3, "t", how=how)
    assert str(caught.value) == f"on must give the same for the same rows every time, not {on!r}"


def test_spark_says_what_is_wrong_with_its_part(streams):
    with pytest.raises(AnalysisException, match="UNRESOLVED_ROUTINE"):
        stream_join(*streams, f"{BAND} AND nonsense(r.name, s.pattern)", 3, "t")


@pytest.mark.parametrize("from_files", [False, True])
@pytest.mark.parametrize(
    "how, term",
    [
        ("full", "array_contains(r.tags, s.tag)"),
        ("inner", "r.bytes = s.bytes"),
        ("left", "r.map['k'] = s.tag"),
        ("right", "NOT (r.place.name <=> s.tag)"),
        ("full", "r.tags = array(s.tag)"),
    ],
)
def test_terms_that_name_what_has_no_point(spark, tmp_path, how, term, from_files):
    """Spark alone compares arrays, maps, structs and bytes."""
    names = "elt(1 + cast(id AS int) * 7 % 4, 'a', 'b', 'c', NULL)"
    r = spark.range(60).selectExpr(
        *("id % 20 AS t", "id % 5 AS x", f"binary({names}) AS bytes", "id"),
        *(f"array({names}, 'a') AS tags", f"map('k', {names}) AS map", f"struct({names} AS name) AS place"),
    )
    s = spark.range(50).selectExpr(
        "id % 25 AS t", "id % 4 AS a", f"{names} AS tag", "binary('b') AS bytes", "id"
    )
    if from_files:
        for side, frame in (("r", r), ("s", s)):
            frame.write.parquet(str(tmp_path / side))
        r, s = (spark.read.parquet(str(tmp_path / side)) for side in "rs")
    on = f"{BAND} AND {term}"
    columns = ["r_id", "s_id", "tag", "place"]
    result = stream_join(r, s, on, 4, "t", how=how, tiebreak=["id"], partitions=3, columns=columns)
    expected = plain(r, s, on, ("4", "4"), how).select("r.id", "s.id", "tag", "place")
    assert bag(result) == bag(expected)
    assert "no dimension, evaluated on each pair because" in explain(r, s, on, 4, "t", tiebreak=["id"])


def test_keys_must_be_points(spark):
    frame = spark.range(3).selectExpr("id AS t", "binary(string(id)) AS k")
    with pytest.raises(
        SpecError, match=r"`r\.k` is binary, which a condition cannot use; accepted are integers"
    ):
        stream_join(frame, frame, "true", 3, "t", by=["k"])
