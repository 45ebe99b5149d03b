"""`stream_join` against plain Spark on a wide table: every type, awkward values, names, zones, partitions."""

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from spark_offload import stream_join

ROWS = 60
#: Columns by name, made of a number {v} from 0 to 11; one in eight values is NULL. Around the hour that
#: New York has twice.
COLUMNS = {
    "i8": "cast({v} - 6 AS byte)",
    "i16": "cast({v} - 6 AS short)",
    "i32": "cast({v} - 6 AS int)",
    "i64": "cast({v} - 6 AS bigint) * 1000000007",
    "f32": "elt({v} + 1, 'NaN', '-Infinity', '-0.0', '0.0', '0.1', '1', '2', '3', '4', '5', '6', '7')::float",
    "f64": "elt({v} + 1, 'NaN', 'Infinity', '-0.0', '0.0', '0.1', '1', '2', '3', '4', '5', '6', '7')::double",
    "n203": "cast({v} / 8 AS decimal(20, 3))",
    "n3810": "cast({v} / 3 AS decimal(38, 10))",
    "flag": "{v} % 2 = 0",
    "name": "elt({v} % 4 + 1, '', 'a', 'A', 'é')",
    "day": "date'2024-11-02' + cast({v} % 3 AS int)",
    "ltz": "timestamp_seconds(1730606400 + 1200 * {v})",
    "ntz": "timestamp_ntz'2024-11-03 00:00:00' + make_dt_interval(0, 0, 20 * {v})",
    "span": "make_dt_interval(0, {v})",
    # These only come along.
    "bytes": "binary(string({v}))",
    "list": "array({v}, NULL)",
    "map": "map('k', {v})",
    "nested": "named_struct('at', timestamp_seconds({v}), 'all', array(named_struct('n', {v})))",
    # What the join calls its own columns, and names that must be quoted.
    "slice": "{v}",
    "own": "{v} > 3",
    "metrics": "{v}",
    "r": "{v}",
    "s": "{v}",
    "a.b": "{v}",
    "tick`y": "{v}",
}


def wide(spark: SparkSession, side: str) -> DataFrame:
    """Rows over ten times, so that each has company."""
    columns = []
    for name, text in COLUMNS.items():
        value = f"pmod(hash(id, '{side} {name[:4]}'), 12)"
        null = f"pmod(hash('{side}', id, '{name[:4]}'), 8) = 0"
        columns.append(f"if({null}, NULL, {text.format(v=value)}) AS `{name.replace('`', '``')}`")
    at = f"timestamp_seconds(1730606400 + 600 * pmod(hash(id, '{side}'), 10)) AS ts"
    return spark.range(ROWS).selectExpr("id", at, *columns)


@pytest.fixture(scope="module")
def tables(spark):
    """R in a few partitions, S in one."""
    return wide(spark, "r").repartition(3).cache(), wide(spark, "s").coalesce(1).cache()


def check(r: DataFrame, s: DataFrame, on: str, **options) -> None:
    """Compares a join over 20 minutes with plain Spark's, names and types included."""
    joined = stream_join(r, s, on, "20 minutes", "ts", tiebreak=("id",), **options)
    near = "abs(unix_seconds(r.ts) - unix_seconds(s.ts)) <= 1200"
    plain = r.alias("r").join(s.alias("s"), F.expr(f"{on} AND {near}"))
    both = {*r.columns} & {*s.columns}
    names = [
        f"{side}_{name}" if name in both else name for side, f in zip("rs", (r, s)) for name in f.columns
    ]
    plain = plain.toDF(*names)
    assert not plain.isEmpty()
    assertDataFrameEqual(_exact(joined), _exact(plain))


def _exact(frame: DataFrame) -> DataFrame:
    """Floating-point numbers as text: to `assertDataFrameEqual` NaN is like any other, and -0.0 is 0.0."""
    return frame.select(
        *(
            column.cast("string").alias(field.name)
            if field.dataType.typeName() in ("float", "double")
            else column
            for field in frame.schema
            for column in (frame[f"`{field.name.replace('`', '``')}`"],)
        )
    )


@pytest.mark.parametrize(
    "on",
    [
        "r.i8 BETWEEN s.i16 - 2 AND s.i32 + 2 AND r.i64 >= s.i64",
        "r.f32 <= s.f64 AND r.f64 >= s.f32",
        "r.n203 BETWEEN s.n203 - 0.5 AND s.n203 + 0.5 AND r.n3810 >= s.n203 AND r.flag = s.flag",
        "r.name = s.name AND r.day <= s.day AND r.span > s.span",
        "r.ltz <= s.ltz AND r.ntz >= s.ntz AND r.ntz > s.day",
    ],
)
def test_every_type(tables, on, new_york):
    check(*tables, on, partitions=3)


def test_rows_that_are_the_same_count_each(spark):
    """Twice the same rows of R and thrice those of S, all at one time, are six times each pair."""
    r, s = (
        spark.sql(
            f"SELECT timestamp_seconds(0) AS ts, 1 AS id, int(id % 4) AS {name} FROM range({4 * times})"
        )
        for name, times in (("x", 2), ("a", 3))
    )
    check(r, s, "r.x BETWEEN s.a AND s.a + 1", partitions=3)
    assert stream_join(r, s, "r.x = s.a", "1 second", "ts").count() == 4 * 2 * 3


def test_one_giant_partition_and_many_empty_ones(spark):
    times = "timestamp_seconds(1200 * (id % 40))"
    r = spark.range(20_000).selectExpr("id", f"{times} AS ts", "int(id % 500) AS x").coalesce(1)
    s = spark.range(7).selectExpr("id", f"{times} AS ts", "int(id * 7) AS a").repartition(40)
    check(r, s, "r.x BETWEEN s.a - 1 AND s.a + 1", partitions=5)
    check(s, r, "r.a BETWEEN s.x - 1 AND s.x + 1", partitions=5)


def test_names_that_differ_in_case(spark):
    columns = "SELECT id, timestamp_seconds(600 * id) AS ts, int(id) AS {0}, int(-id) AS {1} FROM range(9)"
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        r, s = spark.sql(columns.format("x", "X")), spark.sql(columns.format("a", "x"))
        check(r, s, "r.x = s.a AND r.X <= s.x")
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    check(
        spark.sql(columns.format("x", "y")), spark.sql(columns.format("a", "b")), "R.X = S.A AND r.Y <= S.b"
    )
