"""`stream_join` gives what plain Spark gives, however history is cut."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql import window as W

from hw.errors import ParameterError, SpecError
from hw.parameters import ARCHITECTURES
from spark_offload import explain, stream_join

from ..configurations import DEVICES

BAND = "r.x BETWEEN s.a - 3 AND s.a + 3"
MICROS = {
    T.TimestampType: "unix_micros({})",
    T.DateType: "unix_date({})",
    T.LongType: "{}",
    T.IntegerType: "{}",
}


@pytest.fixture(scope="module")
def streams(spark):
    """Two streams of 150 rows over 30 distinct times, so that most rows have company."""
    rng = np.random.default_rng(7)

    def stream(value):
        at = pd.to_datetime(rng.integers(0, 30, 150), unit="s")
        rows = pd.DataFrame({"ts": at, value: rng.integers(0, 40, 150), "seq": rng.permutation(150)})
        return spark.createDataFrame(rows).repartition(3).cache()

    return stream("x"), stream("a")


def bag(frame: DataFrame) -> Counter:
    """The rows with their multiplicity; text, because NaN is not equal to itself and a map has no hash."""
    return Counter(map(str, (tuple(row) for row in frame.collect())))


def plain_time(r, s, on, w_r, w_s, time="ts") -> DataFrame:
    """A join over time windows in plain Spark, with windows in the unit of the time column."""
    unit = MICROS[type(r.schema[time].dataType)]
    apart = f"{unit.format('r.' + time)} - {unit.format('s.' + time)}"
    return r.alias("r").join(s.alias("s"), F.expr(f"{on} AND {apart} BETWEEN -{w_r} AND {w_s}"))


def plain_rows(r, s, on, w_r, w_s, tiebreak=()) -> DataFrame:
    """A join over row windows in plain Spark: numbers every row in the arrival order first."""
    none = F.lit(None)
    union = r.select(
        "ts", *tiebreak, F.lit(0).alias("side"), F.struct("*").alias("r"), none.cast(s.schema).alias("s")
    )
    union = union.union(
        s.select(
            "ts", *tiebreak, F.lit(1).alias("side"), none.cast(r.schema).alias("r"), F.struct("*").alias("s")
        )
    )
    before = W.Window.orderBy("ts", *tiebreak, "side", "r", "s").rowsBetween(W.Window.unboundedPreceding, -1)
    count = {
        side: F.coalesce(F.sum(F.when(F.col("side") == side, 1)).over(before), F.lit(0)) for side in (0, 1)
    }
    numbered = union.select("*", count[0].alias("rs"), count[1].alias("ss"))
    left = numbered.where("side = 0").select(F.col("r").alias("row"), "rs", "ss")
    right = numbered.where("side = 1").select(F.col("s").alias("row"), "rs", "ss")
    window = f"left.rs >= right.rs - {w_r} AND left.ss - {w_s} <= right.ss"
    on = on.replace("r.", "left.row.").replace("s.", "right.row.")
    return (
        left.alias("left")
        .join(right.alias("right"), F.expr(f"{window} AND {on}"))
        .select("left.row.*", "right.row.*")
    )


@pytest.mark.parametrize("partitions", [1, 2, 3, 7, None])
def test_time_windows_differ_per_stream(streams, partitions):
    result = stream_join(*streams, BAND, ("4 seconds", "2 seconds"), "ts", partitions=partitions)
    assert bag(result) == bag(plain_time(*streams, BAND, 4_000_000, 2_000_000))


@pytest.mark.parametrize(
    "partitions, sizes", [(1, (30, 10)), (2, (30, 10)), (7, (30, 10)), (5, (0, 1)), (4, (1, 0)), (3, (0, 0))]
)
def test_row_windows_differ_per_stream(streams, partitions, sizes):
    window = tuple(f"{size} rows" for size in sizes)
    result = stream_join(*streams, BAND, window, "ts", partitions=partitions)
    assert bag(result) == bag(plain_rows(*streams, BAND, *sizes))


def test_tiebreak_orders_rows_of_equal_time(streams):
    expected = bag(plain_rows(*streams, BAND, 20, 20, ["seq"]))
    assert expected != bag(plain_rows(*streams, BAND, 20, 20))
    for partitions in (1, 7):
        result = stream_join(*streams, BAND, "20 rows", "ts", tiebreak=("seq",), partitions=partitions)
        assert bag(result) == expected


def test_windows_larger_than_slices(streams):
    """Halos reach over several slices, up to all of them."""
    for window, expected in (
        ("1 hour", plain_time(*streams, BAND, 3_600_000_000, 3_600_000_000)),
        ("1000 rows", plain_rows(*streams, BAND, 1000, 1000)),
        ("100 rows", plain_rows(*streams, BAND, 100, 100)),
    ):
        assert bag(stream_join(*streams, BAND, window, "ts", partitions=7)) == bag(expected)


def test_window_without_limit(spark):
    """Bounds of windows saturate: 2**63 - 1 is as good as no window."""
    r = spark.createDataFrame([(-(2**63), 1), (0, 1), (2**63 - 1, 1)], "t long, x int")
    s = spark.createDataFrame([(-(2**63), 1), (2**63 - 1, 1)], "t long, a int")
    result = stream_join(r, s, "r.x = s.a", 2**63 - 1, "t", partitions=3)
    assert bag(result) == Counter(
        {
            f"({-(2**63)}, 1, {-(2**63)}, 1)": 1,
            f"(0, 1, {2**63 - 1}, 1)": 1,
            f"({2**63 - 1}, 1, {2**63 - 1}, 1)": 1,
        }
    )


def test_skewed_times(spark):
    """All but a few rows share one time, so most slices vanish."""
    rng = np.random.default_rng(3)
    times = np.where(rng.random(120) < 0.9, 5, rng.integers(0, 10, 120))
    r = spark.createDataFrame(pd.DataFrame({"t": times, "x": rng.integers(0, 40, 120)}))
    s = spark.createDataFrame(pd.DataFrame({"t": rng.permutation(times), "a": rng.integers(0, 40, 120)}))
    result = stream_join(r, s, BAND, (1, 0), "t", partitions=6)
    assert bag(result) == bag(plain_time(r, s, BAND, 1, 0, "t"))


def test_row_windows_cut_between_rows_of_one_time(spark):
    """Cuts use the whole order key."""
    rng = np.random.default_rng(4)
    frames = [
        spark.createDataFrame(
            pd.DataFrame({"ts": 1, value: rng.integers(0, 9, 100), "k": rng.permutation(100)})
        )
        for value in "xa"
    ]
    observation = Observation()
    result = stream_join(
        *frames, BAND, "7 rows", "ts", tiebreak=("k",), partitions=4, observation=observation
    )
    assert bag(result) == bag(plain_rows(*frames, BAND, 7, 7, ["k"]))
    assert observation.get["slices"] == 4


@pytest.mark.parametrize("empty", ["r", "s", "both"])
@pytest.mark.parametrize("window", ["2 seconds", "2 rows"])
def test_empty_inputs(streams, empty, window):
    r, s = (frame.limit(0) if empty in (name, "both") else frame for name, frame in zip("rs", streams))
    result = stream_join(r, s, BAND, window, "ts", partitions=2)
    assert result.columns == ["r_ts", "x", "r_seq", "s_ts", "a", "s_seq"]
    assert result.collect() == []


def test_null_and_nan(spark):
    """NULL joins nothing, NaN joins NaN, and a row without time has no place in the order."""
    values = "(1, 'a', double('NaN')), (2, 'b', 1), (3, 'c', NULL), (NULL, 'd', 1), (4, 'e', {})"
    r = spark.sql(f"SELECT * FROM VALUES {values.format('-0.0')} AS (t, x, v)")
    s = spark.sql(f"SELECT * FROM VALUES {values.format('0.0')} AS (t, a, w)")
    for partitions in (1, 3):
        observation = Observation()
        result = stream_join(
            r, s, "r.v = s.w", ("100 rows", "100 rows"), "t", partitions=partitions, observation=observation
        )
        assert {(row.x, row.a) for row in result.collect()} == {("a", "a"), ("b", "b"), ("e", "e")}
        assert observation.get["undated"] == 2
        assert (observation.get["tuples"], observation.get["pairs"]) == (8, 3)


@pytest.mark.parametrize(
    "kind, window", [("timestamp_ntz", "1 hour"), ("timestamp", "1 hour"), ("date", "1 day"), ("int", 1)]
)
def test_types_of_event_time(spark, new_york, kind, window):
    """Clocks go forward and back in the rows' time zone; neither may move a window."""
    convert = {
        "timestamp": "timestamp_seconds(1730527200 + 3600 * id)",
        "timestamp_ntz": "timestamp_ntz'2024-03-09 06:00:00' + id * INTERVAL '1' HOUR",
        "date": "date'2024-03-09' + cast(id AS int)",
        "int": "cast(id AS int)",
    }[kind]
    times = spark.range(72).selectExpr("id", f"{convert} AS ts")
    assert times.schema["ts"].dataType.simpleString() == kind
    result = stream_join(times, times, "r.id <> s.id", window, "ts", partitions=5)
    found = Counter((row.r_id, row.s_id) for row in result.collect())
    assert found == Counter((i, j) for i in range(72) for j in range(72) if abs(i - j) == 1)


PAYLOAD = """
    SELECT id, array(id, NULL) AS list, map('k', id) AS map, named_struct('at', timestamp_seconds(id)) AS st,
        binary(string(id)) AS bin, timestamp'2024-03-10 12:00:00.123456' AS ltz, date'2024-02-29' AS day,
        timestamp_ntz'2024-03-10 02:30:00' AS ntz, cast(id / 3 AS decimal(38, 10)) AS dec, id > 1 AS bool,
        float('-0.0') AS f, double('NaN') AS d, cast(id AS byte) AS i8, cast(id AS short) AS i16,
        INTERVAL '1 02:03:04' DAY TO SECOND AS span, if(id = 2, NULL, concat('row ', id)) AS text,
        cast(NULL AS void) AS nothing, map('k', array(struct(timestamp_ntz'2024-01-01'))) AS nested
    FROM range(5)
"""


def test_every_type_of_payload_comes_through(spark, new_york):
    r = spark.sql(PAYLOAD)
    s = r.select("id")
    result = stream_join(r, s, "r.id = s.id", 1, "id", tiebreak=("id",), partitions=3)
    assert result.columns == ["r_id", *r.columns[1:], "s_id"]
    assert [field.dataType for field in result.schema][:-1] == [field.dataType for field in r.schema]
    assert bag(result.drop("s_id")) == bag(r)


def test_names_that_both_sides_have_are_prefixed(spark):
    r = spark.createDataFrame([(1, 2, 3)], "t int, `a.b` int, V int")
    s = spark.createDataFrame([(1, 2, 3)], "t int, w int, v int")
    result = stream_join(r, s, "r.V = s.v", 1, "t")
    assert result.columns == ["r_t", "a.b", "r_V", "s_t", "w", "s_v"]
    assert [tuple(row) for row in result.collect()] == [(1, 2, 3, 1, 2, 3)]


def test_result_can_be_used_twice(streams):
    """The result is an ordinary DataFrame: it can meet itself."""
    result = stream_join(*streams, BAND, "1 second", "ts", partitions=2)
    assert result.union(result).count() == 2 * result.count() > 0


def test_observation_counts(streams):
    observation = Observation()
    result = stream_join(*streams, BAND, "2 seconds", "ts", "sim", partitions=3, observation=observation)
    pairs = result.count()
    counts = observation.get
    assert (counts["slices"], counts["tuples"], counts["pairs"]) == (3, 300, pairs)
    assert counts["cycles"] > 300


def test_small_slices_are_merged_unless_asked_for(streams):
    observation = Observation()
    stream_join(*streams, BAND, "2 seconds", "ts", observation=observation).count()
    assert observation.get["slices"] == 1


def test_an_input_that_changes_is_refused_for_row_windows(spark):
    now = spark.sql("SELECT unix_millis(current_timestamp())").first()[0]
    r = (
        spark.range(1_000_000)
        .where(f"id < unix_millis(current_timestamp()) - {now}")
        .selectExpr("id AS ts", "id AS x")
    )
    s = spark.range(1000).selectExpr("id AS ts", "id AS a")
    with pytest.raises(
        Exception, match=r"r must give the same rows each time it is read, not \d+ and then \d+"
    ):
        stream_join(r, s, BAND, "10 rows", "ts", partitions=3).collect()


def test_explain(streams):
    for offload, where, what in (
        ("cpu", "on the CPU, 1 threads:", "core"),
        ("sim", "on sim:handshake:", "device"),
    ):
        text = explain(*streams, BAND, "2 seconds", "ts", partitions=3, offload=offload)
        assert where in text
        tasks = f"in at most 3 tasks, each with a {what}, a slice of history and the window before it"
        assert tasks in text.splitlines()


def test_explain_says_which_filters_and_columns_go_to_op_blocks(streams):
    on = f"{BAND} AND r.x > 3 AND s.a + 1 <= 40 AND r.x IS NOT NULL"
    options = {"offload": "sim", "device": DEVICES["opblock"], "partitions": 3}
    lines = explain(*streams, on, "2 seconds", "ts", **options).splitlines()
    assert "r.x > 3: device d0, selected" in lines
    assert "s.a + 1 <= 40: device d2, selected" in lines
    assert "NOT (r.x IS NULL): host, it is no comparison with a constant" in lines
    assert "block 0: select R where r.x > 3" in lines
    assert "block 1: select S where s.a + 1 <= 40" in lines
    assert "blocks 2 to 5: join cores of query 0, windows of 16 tuples" in lines
    assert "columns of R that go to the device: ts, x; that do not: seq" in lines


@pytest.mark.parametrize(
    "window, filters, columns",
    [
        (
            "2 seconds",
            {
                "r.v > 6 OR r.x < 12: device d2 and d0, selected",
                "NOT (s.seq BETWEEN 40 AND 90): device d2 and d3, selected",
                "block 1: select S where NOT (s.seq BETWEEN 40 AND 90)",
            },
            ("ts, x, v; that do not: seq", "ts, a, seq; that do not: note"),
        ),
        (
            "30 rows",
            {
                "r.v > 6 OR r.x < 12: device d3 and d0, selected",
                "NOT (s.seq BETWEEN 40 AND 90): host, no device dimension is free for it",
            },
            ("x, v; that do not: ts, seq", "a; that do not: ts, seq, note"),
        ),
    ],
)
def test_op_blocks_do_filters_and_prune_columns(streams, window, filters, columns):
    """Filters in `on`, with OR and NULLs, against Spark's own; those on the DataFrames are Spark's."""
    r, s = streams
    r = r.where("seq > 20").withColumn("v", F.expr("if(seq % 5 = 0, NULL, seq % 9)"))
    s = s.withColumn("note", F.lit("payload"))
    on = f"{BAND} AND (r.v > 6 OR r.x < 12) AND s.seq NOT BETWEEN 40 AND 90"
    options = {"offload": "sim", "architecture": "opblock", "partitions": 3}
    told = explain(r, s, on, window, "ts", **options).splitlines()
    assert filters | {"block 0: select R where r.v > 6 OR r.x < 12"} <= set(told)
    assert {f"columns of {side} that go to the device: {text}" for side, text in zip("RS", columns)} <= set(
        told
    )
    result = stream_join(r, s, on, window, "ts", **options)
    rows = window.endswith("rows")
    plain = plain_rows(r, s, on, 30, 30) if rows else plain_time(r, s, on, 2_000_000, 2_000_000)
    assert bag(result) == bag(plain) and bag(plain)


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"offload": "gpu"}, ParameterError, "offload must be one of cpu, sim, fpga, auto, not 'gpu'"),
        ({"partitions": 0}, ParameterError, "partitions must be a positive integer or None, not 0"),
        ({"partitions": "2"}, ParameterError, "partitions must be a positive integer or None, not '2'"),
        (
            {"offload": "sim", "architecture": "footshake"},
            ParameterError,
            f"architecture must be one of {', '.join(ARCHITECTURES)} or None, not 'footshake'",
        ),
        (
            {"offload": "sim", "architecture": "opblock", "device": DEVICES["default"]},
            ParameterError,
            f"architecture is 'opblock', but the device {DEVICES['default']!r} is 'handshake'; "
            "leave one of the two out",
        ),
        (
            {"device": "tty0"},
            ParameterError,
            "with offload='cpu' device must be a URL that starts with cpu:, not 'tty0'",
        ),
        (
            {"device": "cpu:hash"},
            ParameterError,
            "structure must be one of auto, bisort, levels, rap_table, wib_tree, nested, not 'hash'",
        ),
        (
            {"offload": "fpga"},
            ParameterError,
            "with offload='fpga' device must be a URL, or Spark must schedule devices "
            "(spark.task.resource.fpga.amount=1, and spark.executor.resource.fpga.amount with its "
            "discoveryScript), not None",
        ),
        (
            {"offload": "fpga", "device": "sim:handshake"},
            ParameterError,
            "with offload='fpga' device must be a URL that starts with serial:, tcp:, xdma:, "
            "not 'sim:handshake'",
        ),
        ({"s": 5}, SpecError, "s must be a DataFrame, not 5"),
    ],
)
def test_bad_arguments(streams, options, error, message):
    arguments = {"r": streams[0], "s": streams[1], "on": BAND, "window": "1 second", "time": "ts"} | options
    with pytest.raises(error) as caught:
        stream_join(**arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "columns, message",
    [
        ("2 AS x, 3 AS X", "r has more than one column named 'x'; rename all but one"),
        (
            "2 AS x, 3 AS s_t",
            "the result would have more than one column named 's_t', because names that r and s share "
            "are prefixed with r_ and s_; rename a column of r or s",
        ),
        (
            "2 AS x, map(1, 2) AS m",
            "`r.m` is map<int32, int32>, which cannot be ordered; "
            "name columns that order rows of equal time with tiebreak=",
        ),
        (
            "2 AS x, INTERVAL '1' MONTH AS m",
            "`r.m` is interval month, which Spark cannot hand to Python as Arrow; drop the column or cast it",
        ),
        (
            "2 AS x, array(parse_json('1')) AS v",
            "`r.v` is array<variant>, which Spark cannot hand to Python as Arrow; drop the column or cast it",
        ),
    ],
)
def test_bad_columns(spark, columns, message):
    with pytest.raises(SpecError) as caught:
        stream_join(spark.sql(f"SELECT 1 AS t, {columns}"), spark.sql("SELECT 1 AS t, 2 AS a"), BAND, 1, "t")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"offload": "sim", "device": DEVICES["splitjoin"]},
        {"offload": "sim", "architecture": "scalejoin", "device": DEVICES["scalejoin"]},
    ],
    ids=["cpu", "sim", "scalejoin"],
)
@pytest.mark.parametrize("window", ["4 seconds", "9 rows"])
def test_ordered_rows_go_by_both_arrivals(streams, options, window):
    """Sorted in every partition, and each partition before the next."""
    r, s = streams
    joined = stream_join(
        r, s, BAND, window, "ts", tiebreak=["seq"], partitions=4, ordered=True, **options
    ).withColumn("part", F.spark_partition_id())
    got = joined.collect()
    assert len({row.part for row in got}) > 1
    # R comes before S where time and tie-breaker are the same.
    arrivals = [sorted([(row.r_ts, row.r_seq, 0), (row.s_ts, row.s_seq, 1)], reverse=True) for row in got]
    assert arrivals == sorted(arrivals)
    assert [row.part for row in got] == sorted(row.part for row in got)
    plain = stream_join(r, s, BAND, window, "ts", tiebreak=["seq"])
    assert bag(joined.drop("part")) == bag(plain)


@pytest.mark.parametrize(
    "kind", ["{}", "array<{}>", "map<{}, int>", "map<int, {}>", "struct<x: int, y: array<{}>>"]
)
def test_strings_with_a_collation_are_refused(spark, kind):
    """Arrow knows no collations: 'A' and 'a' would not join, and would have another order."""
    plain = spark.range(1).selectExpr("id AS t", f"CAST(NULL AS {kind.format('string')}) AS name")
    collated = "string collate utf8_lcase"
    other = spark.range(1).selectExpr("id AS t", f"CAST(NULL AS {kind.format(collated)}) AS name")
    for side, frames in (("r", (other, plain)), ("s", (plain, other))):
        with pytest.raises(SpecError) as caught:
            stream_join(*frames, "r.t = s.t", 1, "t")
        assert str(caught.value) == (
            f"`{side}.name` has the collation UTF8_LCASE, by which rows are not joined; "
            "accepted is UTF8_BINARY: collate the column, or drop it"
        )
