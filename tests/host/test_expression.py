"""Expressions have the types, values and errors that Spark gives them."""

import datetime
import re
from decimal import Decimal

import pyarrow as pa
import pytest
import sqlglot

from host import sqltypes
from host.evaluate import Rows, evaluate
from host.expression import Scope, build
from hw.errors import DataError, SpecError

D = Decimal
MICROS = 1_000_000
R = pa.schema(
    [
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("x", pa.int32()),
        ("y", pa.int64()),
        ("f", pa.float32()),
        ("g", pa.float64()),
        ("w", pa.decimal128(10, 2)),
        ("wide", pa.decimal128(38, 10)),
        ("b", pa.bool_()),
        ("name", pa.string()),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
        ("nts", pa.timestamp("us")),
        ("span", pa.duration("us")),
        ("list", pa.list_(pa.int32())),
        ("nano", pa.timestamp("ns")),
        ("Mixed", pa.int32()),
        ("twin", pa.int32()),
        ("TWIN", pa.int32()),
        ("only", pa.int32()),
    ]
)
S = pa.schema([("x", pa.int32()), ("a", pa.int32()), ("name", pa.string())])


def node(text, zone="UTC"):
    return build(sqlglot.parse_one(text, dialect="spark"), Scope(R, S, zone))


EXPRESSIONS = [
    "5", "-5", "2147483648", "-2147483648", "99999999999999999999", "5L", "5S", "5Y", "-128Y", "1.5D",
    "0.1F", "1.50BD", "0.5", "0.05", "10.", "-0.25", "1e0", "1.5e-3", "'x'", "true", "NULL",
    "DATE '2024-02-29'", "TIMESTAMP '2024-02-29 12:00:00.5'", "TIMESTAMP '2024-02-29T12:00:00+02:00'",
    "TIMESTAMP_NTZ '2024-02-29 12:00'", "INTERVAL 10 MINUTES", "INTERVAL '-1.5' SECOND",
    "INTERVAL 1 DAY 2 HOURS", "r.i8 + r.i8", "r.i8 + r.x", "r.x + r.y", "r.x + r.f", "r.y - r.f",
    "r.f * r.f", "r.f + 1", "r.f + 0.5", "r.f + 1D", "r.x / 2", "r.f / r.f", "r.x % 2", "r.i8 % r.y",
    "r.w + 1", "r.w + r.x", "r.w * r.w", "r.w - 0.125", "r.w + r.g", "r.w * r.f", "r.x * 0.5",
    "r.y + 0.5", "-r.w", "abs(r.i8)", "r.w + 100000000000L", "r.d + 1", "r.d - r.i8", "1 + r.d",
    "r.d - r.d", "r.d + INTERVAL 2 DAYS", "r.ts + INTERVAL 1 HOUR", "r.ts - r.span", "r.ts - r.ts",
    "r.nts - r.nts", "r.span + r.span", "-r.span", "abs(r.span)", "CAST(r.x AS DOUBLE)",
    "CAST(r.w AS DECIMAL(12, 4))", "CAST(r.w AS DECIMAL)", "CAST(r.b AS INT)", "CAST(r.d AS TIMESTAMP)",
    "r.x = r.y", "r.x BETWEEN 1 AND 2", "r.x IS NULL", "r.x IN (1, 2)",
]  # fmt: skip


def test_types_and_values_are_sparks(spark):
    values = {
        "i8": 5, "i16": 300, "x": -7, "y": 2**40 + 1, "f": 0.1, "g": 0.1, "w": D("-12.34"), "wide": D("1.5"),
        "b": True, "name": "n", "d": datetime.date(2024, 2, 28), "ts": datetime.datetime(2024, 2, 28, 23, 30),
        "nts": datetime.datetime(2024, 2, 28, 23, 30), "span": datetime.timedelta(minutes=45),
    }  # fmt: skip
    schema = pa.schema([R.field(name) for name in values])
    table = pa.Table.from_pylist([values], schema)
    spark.createDataFrame(table).createOrReplaceTempView("r")
    columns = ", ".join(f"({text}) AS c{k}" for k, text in enumerate(EXPRESSIONS))
    frame = spark.sql(f"SELECT {columns} FROM r")
    rows = frame.toArrow()
    for k, text in enumerate(EXPRESSIONS):
        built = node(text)
        found = evaluate(built, Rows.of("r", table))
        assert (text, found.type) == (text, built.type)
        name = frame.schema[k].dataType.simpleString()
        if built.type == sqltypes.INTERVAL:
            assert name.startswith("interval"), text
        else:
            assert (text, sqltypes.name(built.type)) == (text, name)
        assert (text, found[0].as_py()) == (text, rows.column(k).cast(found.type)[0].as_py())


# Each raises in Spark for the row beside it, and so it must here; the row after it must not raise.
OVERFLOWS = [
    ("r.x + 1", {"x": 2**31 - 1}, {"x": 2**31 - 2}, "overflows int"),
    ("r.y - 1", {"y": -(2**63)}, {"y": 1 - 2**63}, "overflows bigint"),
    ("r.i8 + r.i8", {"i8": 64}, {"i8": 63}, "overflows tinyint"),
    ("r.i8 * 2Y", {"i8": -65}, {"i8": -64}, "overflows tinyint"),
    ("-r.i16", {"i16": -(2**15)}, {"i16": 2**15 - 1}, "overflows smallint"),
    ("abs(r.x)", {"x": -(2**31)}, {"x": 1 - 2**31}, "overflows int"),
    ("CAST(r.y AS INT)", {"y": 2**31}, {"y": 2**31 - 1}, "overflows int"),
    ("CAST(r.g AS INT)", {"g": 2147483648.0}, {"g": 2147483647.9}, "overflows int"),
    ("CAST(r.g AS BIGINT)", {"g": float("nan")}, {"g": -9223372036854775808.0}, "overflows bigint"),
    ("CAST(r.f AS TINYINT)", {"f": -129.0}, {"f": -128.5}, "overflows tinyint"),
    ("CAST(r.w AS DECIMAL(3, 1))", {"w": D("99.95")}, {"w": D("99.94")}, "overflows decimal(3,1)"),
    ("CAST(r.w AS TINYINT)", {"w": D("128.00")}, {"w": D("127.99")}, "overflows tinyint"),
    ("r.ts + r.span", {"ts": 2**62, "span": 2**62}, {"ts": 2**62, "span": 2**62 - 1}, "overflows bigint"),
    ("r.x / r.y", {"x": 1, "y": 0}, {"x": None, "y": 0}, "divides by zero"),
    ("r.g / r.f", {"g": 1.0, "f": -0.0}, {"g": 1.0, "f": None}, "divides by zero"),
    ("r.x % r.y", {"x": 1, "y": 0}, {"x": -(2**31), "y": -1}, "divides by zero"),
]


def rows(*values):
    columns = {}
    for name in values[0]:
        type = R.field(name).type
        whole = pa.types.is_timestamp(type) or pa.types.is_duration(type)
        column = pa.array([row[name] for row in values], pa.int64() if whole else type)
        columns[name] = column.cast(type)
    return pa.table(columns)


@pytest.mark.parametrize(("text", "bad", "good", "message"), OVERFLOWS, ids=[case[0] for case in OVERFLOWS])
def test_errors_are_sparks(spark, text, bad, good, message):
    outcomes = {}
    for label, table in (("bad", rows(bad)), ("good", rows(good))):
        spark.createDataFrame(table).createOrReplaceTempView("r")
        try:
            spark.sql(f"SELECT {text} IS NULL FROM r").collect()
            outcomes[label] = "fine"
        except Exception as error:
            known = re.search("overflow|by_zero|out_of_range", str(error), re.IGNORECASE)
            outcomes[label] = "raised" if known else str(error)
    assert outcomes == {"bad": "raised", "good": "fine"}
    with pytest.raises(DataError, match=re.escape(message)):
        evaluate(node(text), Rows.of("r", rows(bad)))
    evaluate(node(text), Rows.of("r", rows(good)))


def test_error_names_the_expression():
    with pytest.raises(DataError) as error:
        evaluate(node("r.x * 2 + 1"), Rows.of("r", rows({"x": 2**30})))
    assert (
        str(error.value) == "`r.x * 2` overflows int (ARITHMETIC_OVERFLOW); cast an operand to a wider type"
    )
    with pytest.raises(DataError) as error:
        evaluate(node("1 / r.x"), Rows.of("r", rows({"x": 0})))
    assert str(error.value) == "`1 / r.x` divides by zero (DIVIDE_BY_ZERO)"


def test_decided_rows_are_not_evaluated():
    table = rows({"x": 0}, {"x": 5}, {"x": None})
    assert evaluate(node("r.x = 0 OR 10 / r.x > 1"), Rows.of("r", table)).to_pylist() == [True, True, None]
    assert evaluate(node("r.x <> 0 AND 10 / r.x > 1"), Rows.of("r", table)).to_pylist() == [False, True, None]


def test_names_are_found_in_any_case_and_without_a_side():
    assert node("R.mixed").value == ("r", "Mixed")
    assert node("r.TWIN").value == ("r", "TWIN")
    assert node("a").value == ("s", "a")
    assert node("`only`").sides == {"r"}


HAS = ", ".join(R.names)
ZONE = "America/New_York"
ACCEPTED = "comparisons, BETWEEN, IN, IS NULL, AND, OR, NOT, + - * / %, abs and CAST"


@pytest.mark.parametrize(
    ("text", "zone", "message"),
    [
        ("r.nope", "UTC", f"`r.nope` is not a column of R, which has: {HAS}"),
        ("s.nope", "UTC", "`s.nope` is not a column of S, which has: x, a, name"),
        ("nope", "UTC", f"`nope` is not a column; R has: {HAS}; S has: x, a, name"),
        ("x", "UTC", "`x` is a column of both streams; accepted are r.x and s.x"),
        ("q.x", "UTC", "`q.x` names no stream; accepted are r.x and s.x"),
        ("r.Twin", "UTC", f"`r.Twin` names several columns of R, which has: {HAS}"),
        ("r.x.y", "UTC", "`r.x.y` is a nested field; accepted are columns such as r.y or s.y"),
        (
            "r.list",
            "UTC",
            "`r.list` is list<item: int32>, which a condition cannot use; accepted are integers, float, "
            "double, decimal, boolean, string, date, and timestamps and intervals in microseconds",
        ),
        (
            "r.nano",
            "UTC",
            "`r.nano` is timestamp[ns], which a condition cannot use; accepted are integers, float, "
            "double, decimal, boolean, string, date, and timestamps and intervals in microseconds",
        ),
        ("r.x = r.name", "UTC", "cannot compare int with string in `r.x = r.name`; cast one of them"),
        ("r.b < r.x", "UTC", "cannot compare boolean with int in `r.b < r.x`; cast one of them"),
        ("r.name + 1", "UTC", "cannot calculate `r.name + 1` with string and int"),
        ("-r.b", "UTC", "cannot calculate `-r.b` with boolean"),
        ("r.span * 2", "UTC", "cannot calculate `r.span * 2` with interval day to second and int"),
        ("r.d + r.y", "UTC", "cannot calculate `r.d + r.y` with date and bigint"),
        (
            "r.d + INTERVAL 1 HOUR",
            "UTC",
            "`r.d + INTERVAL '1' HOUR` adds an interval to a date; accepted are days, or a timestamp",
        ),
        (
            "r.ts + INTERVAL 1 MONTH",
            "UTC",
            "`INTERVAL '1' MONTH` is not understood; accepted are intervals of one unit from weeks to "
            "microseconds, such as INTERVAL 10 MINUTES, and sums of them",
        ),
        ("r.w / 2", "UTC", "`r.w / 2` divides decimals, which is not understood; cast an operand to double"),
        (
            "r.wide * r.w",
            "UTC",
            "`r.wide * r.w`: a result of 49 digits, 12 of them after the point, is more than the 38 that "
            "decimals hold; cast an operand to fewer digits or to double",
        ),
        (
            "CAST(r.g AS DECIMAL(5, 2))",
            "UTC",
            "cannot cast double to decimal(5,2) in `CAST(r.g AS DECIMAL(5, 2))`",
        ),
        (
            "CAST(r.x AS STRING) = 'a'",
            "UTC",
            f"`CAST(r.x AS STRING)` is not understood; accepted are {ACCEPTED}",
        ),
        (
            "CAST('5' AS INT)",
            "UTC",
            "cannot cast string to int in `CAST('5' AS INT)`; write the value without quotes",
        ),
        ("upper(r.name)", "UTC", f"`UPPER(r.name)` is not understood; accepted are {ACCEPTED}"),
        ("r.name LIKE 'a%'", "UTC", f"`r.name LIKE 'a%'` is not understood; accepted are {ACCEPTED}"),
        ("128Y", "UTC", "`128` does not fit tinyint"),
        (
            "r.d = '2024-2-1'",
            "UTC",
            "'2024-2-1' in `r.d = '2024-2-1'` is not a date; accepted is '2024-12-31'",
        ),
        (
            "r.ts > 'noon'",
            "UTC",
            "'noon' in `r.ts > 'noon'` is not a timestamp; accepted is '2024-12-31' or "
            "'2024-12-31 23:59:59.999999'",
        ),
        ("NOT r.x", "UTC", "`r.x` is int, where a condition (boolean) is needed"),
        (
            "r.ts - r.ts",
            ZONE,
            f"`r.ts - r.ts` depends on clock changes in {ZONE}; accepted are the time zone UTC, "
            "timestamp_ntz columns, or adding intervals of less than a day",
        ),
        (
            "r.ts + INTERVAL 1 DAY",
            ZONE,
            f"`r.ts + INTERVAL '1' DAY` depends on clock changes in {ZONE}; accepted are the time zone UTC, "
            "timestamp_ntz columns, or adding intervals of less than a day",
        ),
        (
            "r.ts = r.nts",
            ZONE,
            f"cannot compare timestamp with timestamp_ntz in `r.ts = r.nts` in the time zone {ZONE}",
        ),
        ("r.d < r.ts", "Mars/Base", "timezone must be UTC or a name such as 'Europe/Paris', not 'Mars/Base'"),
    ],
)
def test_refused(text, zone, message):
    with pytest.raises(SpecError) as error:
        node(text, zone)
    assert str(error.value) == message


def test_dates_become_timestamps_in_the_sessions_zone(spark):
    days = pa.array(range(-40000, 24800, 7), pa.int32()).cast(pa.date32())
    table = pa.table({"d": days})
    for zone in (ZONE, "Asia/Beirut", "UTC"):
        spark.conf.set("spark.sql.session.timeZone", zone)
        try:
            frame = spark.createDataFrame(table).selectExpr(
                "unix_micros(CAST(d AS TIMESTAMP)) AS u", "unix_micros(TIMESTAMP '2024-03-10 02:30:00') AS l"
            )
            wanted = frame.toArrow()
        finally:
            spark.conf.set("spark.sql.session.timeZone", "UTC")
        found = evaluate(node("CAST(r.d AS TIMESTAMP)", zone), Rows.of("r", table)).cast(pa.int64())
        assert found.to_pylist() == wanted["u"].to_pylist()
        assert node("TIMESTAMP '2024-03-10 02:30:00'", zone).value == wanted["l"][0].as_py()


def test_dates_beyond_the_known_clock_changes_are_refused():
    table = pa.table({"d": pa.array([40000], pa.int32()).cast(pa.date32())})
    with pytest.raises(DataError) as error:
        evaluate(node("CAST(r.d AS TIMESTAMP)", ZONE), Rows.of("r", table))
    assert str(error.value) == (
        "`CAST(r.d AS TIMESTAMP)` is after 2037-12-31, when midnight in America/New_York is not known; "
        "accepted are earlier dates, or the time zone UTC"
    )
