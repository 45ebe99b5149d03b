"""Slices: cuts of the arrival order, and who needs whose rows."""

import numpy as np
import pytest
from pyspark.sql import functions as F

from host.window import Window
from spark_offload.slices import Slices, sort_keys

#: Tie-breakers of every kind, as SQL over `id`; the timestamps fall in an hour that New York has twice.
TIEBREAKS = [
    "id",
    "cast(id AS decimal(30, 5)) / 7",
    "cast(id % 7 AS float) / 3",
    "if(id % 3 = 0, double('NaN'), -id)",
    "if(id % 3 = 0, NULL, id)",
    "concat('ключ', id % 11)",
    "cast(string(id) AS binary)",
    "id % 2 = 0",
    "timestamp'2024-11-03 05:30:00 UTC' + id * INTERVAL '37' SECOND",
    "timestamp_ntz'2024-03-10 01:30:00' + id * INTERVAL '37' SECOND",
    "date'1969-12-01' + cast(id AS int)",
    "id * INTERVAL '1' MINUTE",
    "if(id % 9 = 0, NULL, named_struct('a', id % 5, 'b', struct(date'1969-12-01' + cast(id AS int))))",
]


@pytest.fixture
def new_york(spark):
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", zone)


@pytest.mark.parametrize("tiebreak", TIEBREAKS)
def test_rows_land_in_the_slice_that_counted_them(spark, new_york, tiebreak):
    rows = spark.range(200).selectExpr("1L AS t", f"{tiebreak} AS k", "id % 2 = 1 AS is_s")
    ties = sort_keys(F.col("k"), rows.schema["k"].dataType)
    rows = rows.select("t", *(key.alias(f"k{k}") for k, key in enumerate(ties)), "is_s")
    slices = Slices.measure(rows, 5)
    number = slices.number([F.col(name) for name in rows.columns], [field.dataType for field in rows.schema])
    counts = (
        rows.groupBy(number.alias("slice"))
        .agg(F.count_if(~F.col("is_s")).alias("r"), F.count_if("is_s").alias("s"))
        .orderBy("slice")
        .collect()
    )
    assert len(slices) > 1
    assert [tuple(row) for row in counts] == list(zip(range(len(slices)), slices.r, slices.s))


def test_without_rows_there_is_one_slice(spark):
    slices = Slices.measure(spark.range(0).selectExpr("id AS t", "true AS is_s"), 3)
    assert (len(slices), slices.r, slices.s) == (1, (0,), (0,))


def test_times_are_whole_numbers_without_regard_to_zone(spark, new_york):
    row = spark.sql(
        "SELECT timestamp_ntz'2024-03-10 02:30:00.000001' AS ntz, timestamp_ntz'0001-01-01 00:00:00' AS old, "
        "timestamp'1970-01-01 00:00:01 UTC' AS ltz, date'1969-12-31' AS day"
    )
    micros = row.select(*(sort_keys(F.col(field.name), field.dataType)[0] for field in row.schema)).first()
    assert tuple(micros) == (1_710_037_800_000_001, -62_135_596_800_000_000, 1_000_000, -1)


@pytest.mark.parametrize("size", [0, 1, 3, 10, 1000])
def test_halos_of_row_windows(spark, size):
    """The last slice that needs a slice's rows is the last before which fewer than `size` others come."""
    counts = tuple(np.random.default_rng(size).integers(0, 5, 12).tolist())
    slices = Slices(((0, False),) * 12, counts, counts)
    numbers = spark.range(12).select(F.col("id").cast("int").alias("n"))
    last = numbers.select("n", slices.last("r", Window("rows", size, 0), None, F.col("n")).alias("last"))
    for n, found in last.collect():
        needed = [p for p in range(n + 1, 12) if sum(counts[n + 1 : p]) < size]
        assert found == max(needed, default=n)
