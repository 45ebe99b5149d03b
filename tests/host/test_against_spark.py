"""Every kind of condition gives the pairs that Spark gives, on rows full of awkward values."""

import datetime
import re
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from host import sqltypes
from host.spec import JoinSpec
from hw.errors import DataError, SpecError

D = Decimal
NAN, INF = float("nan"), float("inf")
EPOCH = datetime.datetime(1970, 1, 1)
TYPES = {
    "i8": (pa.int8(), [-128, 127, 0, 1, -1, 5]),
    "i16": (pa.int16(), [-(2**15), 2**15 - 1, 127, -128, 0, 5]),
    "i32": (pa.int32(), [-(2**31), 2**31 - 1, 0, 5, -5, 2**24 + 1]),
    "i64": (pa.int64(), [-(2**63), 2**63 - 1, 2**53, 2**53 + 1, 5, 0, 2**31, -(2**53) - 1]),
    "f32": (pa.float32(), [NAN, INF, -INF, 0.0, -0.0, 5.0, 0.1, 1e-45, 3.4e38, 2.0**24, 0.5]),
    "f64": (
        pa.float64(),
        [
            NAN,
            INF,
            -INF,
            0.0,
            -0.0,
            5.0,
            0.1,
            5e-324,
            -5e-324,
            1.7e308,
            float(2**53),
            2.5,
            4.999999999999999,
            0.5,
        ],
    ),
    "n52": (
        pa.decimal128(5, 2),
        [D("-999.99"), D("999.99"), D("0.00"), D("5.00"), D("0.10"), D("-0.01"), D("2.50")],
    ),
    "n184": (
        pa.decimal128(18, 4),
        [D("-99999999999999.9999"), D("5.0000"), D("0.1000"), D("2.5001"), D("0")],
    ),
    "n200": (pa.decimal128(20, 0), [D(10**20 - 1), D(1 - 10**20), D(2**63), D(2**63 - 1), D(5), D(0)]),
    "n3810": (
        pa.decimal128(38, 10),
        [
            D(10**28 - 1),
            D("5.0000000001"),
            D(5),
            D("0.1"),
            D(0),
            D(2**53 + 1),
            D("9007199254740993.0000000001"),
        ],
    ),
    "b": (pa.bool_(), [True, False]),
    "name": (pa.string(), ["", "a", "b", "ab", "ba", "\u00e9", "a" * 40]),
    "d": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    "ts": (
        pa.timestamp("us", "UTC"),
        [
            datetime.datetime(2024, 2, 29),
            datetime.datetime(1969, 12, 31, 23, 59, 59, 999999),
            datetime.datetime(1, 1, 1),
        ],
    ),
    "nts": (
        pa.timestamp("us"),
        [
            datetime.datetime(2024, 2, 29),
            datetime.datetime(2024, 2, 29, 0, 0, 0, 1),
            datetime.datetime(9999, 12, 31),
        ],
    ),
    # Small values, so that sums of them do not overflow.
    "x": (pa.int32(), list(range(-6, 7))),
    "y": (pa.int64(), list(range(-6, 7))),
    "z": (pa.int16(), list(range(-3, 4))),
    "u": (pa.float64(), [0.1, 0.2, 0.3, 0.1 + 0.2, -0.1, 1e16, NAN, INF, -INF, -0.0, 1.1, 1.0, 2.1]),
    "v": (pa.float32(), [0.1, 0.2, 0.3, -0.1, 1e8, NAN, INF, -INF, 1.1, 1.0]),
    "when": (
        pa.timestamp("us", "UTC"),
        [EPOCH + datetime.timedelta(seconds=s) for s in (0, 1, 59, 60, 61, 86400)],
    ),
    "stamp": (pa.timestamp("us"), [EPOCH + datetime.timedelta(seconds=s) for s in (0, 1, 59, 60, 61, 86400)]),
    "day": (pa.date32(), [datetime.date(2024, 2, day) for day in (1, 2, 3, 28, 29)]),
    "span": (pa.duration("us"), [datetime.timedelta(seconds=s) for s in (-60, 0, 1, 60, 86400)]),
    "w": (pa.decimal128(10, 2), [D("0.10"), D("0.20"), D("0.30"), D("-0.10"), D("1.10"), D("5.00")]),
}
NUMBERS = [name for name in TYPES if name[0] in "if" or name in ("n52", "n184", "n200", "n3810")]
OPS = ["=", "<>", "<", "<=", ">", ">="]


def table(seed: int, rows: int) -> pa.Table:
    """Rows in which each awkward value occurs, in any combination, and about one in ten is NULL."""
    rng = np.random.default_rng(seed)
    columns = {"t": pa.array(range(rows), pa.int64())}
    for name, (type, values) in TYPES.items():
        picks = [*rng.permutation(len(values)), *rng.integers(0, len(values), rows)][:rows]
        null = rng.random(rows) < 0.1
        columns[name] = pa.array([None if n else values[k] for k, n in zip(picks, null, strict=True)], type)
    return pa.table(columns)


def pure() -> list[str]:
    """Comparisons of each type of number with each other, and of other types with themselves."""
    conditions = []
    for k, a in enumerate(NUMBERS):
        for j, b in enumerate(NUMBERS):
            if {a, b} == {"n200", "n3810"}:
                continue  # more than 38 digits
            conditions += [f"r.{a} {OPS[(k + j) % 6]} s.{b}", f"s.{b} {OPS[(k + j + 3) % 6]} r.{a}"]
    for a in ("b", "d", "ts", "nts", "span"):
        conditions += [f"r.{a} {op} s.{a}" for op in OPS]
    for a, b in (("d", "ts"), ("ts", "d"), ("d", "nts"), ("nts", "d"), ("ts", "nts"), ("nts", "ts")):
        conditions += [f"r.{a} {op} s.{b}" for op in ("=", "<", ">=", "<>")]
    return [*conditions, "r.name = s.name", "r.name <> s.name", "s.name = r.name"]


BOUNDS = [
    "r.x BETWEEN s.x - 2 AND s.x + 2",
    "s.x BETWEEN r.x - 2 AND r.x + 2",
    "r.x NOT BETWEEN s.x - 2 AND s.y",
    "NOT (r.f64 BETWEEN s.f32 AND s.f64)",
    "s.x NOT BETWEEN r.x - 1 AND r.y",
    "r.f64 BETWEEN s.n52 - 0.5 AND s.n52 + 0.5",
    "r.n52 BETWEEN s.f64 AND s.i64",
    "r.f32 BETWEEN s.f64 AND s.i32",
    "r.i32 > s.f64 AND r.i32 < s.n3810",
    "r.i64 > s.f64 AND r.i64 <= s.n200",
    "r.x = s.x AND r.x >= s.z",
    "r.x <> s.x AND r.x <> s.z AND r.x <> 3",
    "r.i32 <> s.f64",
    "r.i8 <> s.n52",
    "r.x + 1 = s.x * 2",
    "r.x % 3 = s.y % 4",
    "r.x / 2 = s.y / 2",
    "r.u * 2 < s.u + 1",
    "r.v + 0.1F <= s.v",
    "r.v + 1 <= s.v - 0.5",
    "-r.x <= abs(s.y)",
    "r.w * 3 = s.w + 0.1",
    "r.w - s.w <= 0.1",
    "-r.w < s.w - 1",
    "CAST(r.w AS DOUBLE) <= s.u",
    "CAST(r.u > 0.15 AS INT) = s.z",
    "CAST(r.x AS TINYINT) < s.i8",
    "CAST(r.w AS DECIMAL(6, 1)) = s.w",
    "CAST(r.w AS INT) = s.x",
    "CAST(r.x AS FLOAT) < s.v",
    "r.when + INTERVAL 1 MINUTE >= s.when",
    "r.when BETWEEN s.when - INTERVAL 1 MINUTE AND s.when + INTERVAL '1' SECOND",
    "r.stamp < s.stamp + s.span",
    "r.day + 1 = s.day",
    "r.day - s.z >= DATE '2024-02-02' AND r.x = s.x",
    "r.day >= s.day - INTERVAL 2 DAYS",
    "CAST(r.when AS DATE) = CAST(s.stamp AS DATE)",
    "r.when >= TIMESTAMP '1970-01-01 00:01:00' AND r.x < s.x",
    "r.day = '2024-02-29' OR s.day = r.day",
    "r.x IN (s.x, s.z, 2)",
    "r.x NOT IN (s.x, 2)",
    "r.x IN (s.y, 2.5, s.u)",
    "r.x <=> s.z",
    "NOT (r.x <=> s.z)",
    "r.f64 <=> s.f64",
    "r.u = s.u OR r.x = s.x",
    "r.b AND r.x = s.x",
    "NOT r.b AND r.x <= s.x",
    "r.b = (s.x > 0)",
    "r.b IS TRUE OR s.b IS NOT TRUE",
    "(r.b OR r.x > 2) AND s.x <= r.z",
    "r.x > 2 OR s.x > 2",
    "r.x IS NULL OR s.x = r.x",
    "r.x IS NOT NULL AND s.x IS NULL",
    "(r.x = s.x OR r.name = s.name) AND (r.b OR s.b)",
    "r.x = s.x AND r.name <> s.name",
    "r.x <> s.x OR r.name = s.name",
    "r.x NOT BETWEEN s.z AND s.x OR r.w = s.w",
    "NOT (r.x < s.x AND (r.y > s.y OR r.b))",
    "r.n3810 <> s.n3810",
    "r.n200 BETWEEN s.n200 AND s.i64",
    "r.i64 = s.n200 OR r.n3810 > s.n3810",
    "r.n200 > 5 AND r.n200 <= s.n200",
    "true",
    "false OR r.x = s.x",
    "NULL",
    "r.x = NULL",
    "1 < 2 AND r.x = s.y",
    "r.u > 0.1 AND r.u = s.u",
    "r.u > 1e-1 AND s.u < 1.1D AND r.x <> s.x",
    "r.i64 > 9223372036854775806 AND s.i64 < -9223372036854775807",
    "r.i8 = -128Y OR s.i64 = -9223372036854775808L",
    "r.f64 = CAST('NaN' AS DOUBLE) AND s.f64 = r.f64",
    "r.n52 > 10. AND s.n52 < .5",
]
MIXED = [
    "r.x - s.x <= 2",
    "r.x - s.x < 2",
    "s.x - r.x >= 2",
    "r.x + s.x = 3",
    "r.x - s.x <> 1",
    "abs(r.x - s.x) <= 2",
    "abs(r.x - s.y) < 2.5",
    "abs(r.x - s.x) >= 3",
    "abs(r.x - s.x) > s.z",
    "abs(r.x - s.x) = s.z",
    "abs(r.x - s.x) <= r.z",
    "2 >= abs(s.x - r.x)",
    "abs(r.y - s.y) <= s.z",
    "NOT (abs(r.x - s.x) <= 2)",
    "r.x - s.x BETWEEN -2 AND s.z",
    "r.x - s.x NOT BETWEEN -2 AND 2",
    "r.x - s.x + r.z <= s.y",
    "r.x - s.x <= r.z + s.z",
    "r.u - s.u <= 0.1",
    "r.u - s.u >= 0.1",
    "r.u - s.u > 0.2D",
    "s.u - r.u >= 0.1D",
    "s.u - r.u <= 0.1D",
    "s.u - r.u < CAST('NaN' AS DOUBLE)",
    "r.u + s.u = 0.3D",
    "r.u + s.u - 0.1D <= s.v",
    "abs(r.u - s.u) <= 0.2D",
    "abs(r.u - s.u) <= 0.1",
    "abs(r.u - s.u) >= 0.1D",
    "abs(r.u - s.u) = 0.1D",
    "r.u - s.u BETWEEN -0.1D AND 0.1D",
    "r.u - s.u NOT BETWEEN -0.1D AND 0.1D",
    "r.v - s.v <= 0.1F",
    "r.v - s.v >= 0.1",
    "abs(r.v - s.v) <= 0.1D",
    "abs(r.v - s.u) <= 0.1D",
    "r.x - s.u <= 0.5",
    "r.y - s.v >= 0.5",
    "r.w - s.u < 0.1",
    "s.v - r.w <= 0.1",
    "abs(r.f64 - s.f64) <= 1.7e308",
    "r.f64 - s.f64 >= s.f32",
    "r.f32 + s.f32 >= 3.4e38",
    "r.f32 + s.f32 - 3e38 <= 1e38",
    "r.f64 + s.f64 - 1.7e308D >= 1e307",
    "r.w - s.w <= 0.1",
    "abs(r.w - s.w) = 0.1",
    "abs(r.w - s.w) = -0.1",
    "abs(r.w - s.w) <= s.w",
    "abs(r.w - s.x) >= 4.5",
    "r.w - s.w + r.x <= 1",
    "r.when - s.when <= INTERVAL 1 MINUTE",
    "abs(r.when - s.when) <= INTERVAL 59 SECONDS",
    "r.stamp - s.stamp BETWEEN INTERVAL '-1' SECOND AND s.span",
    "r.day - s.day <= INTERVAL 1 DAY",
    "r.stamp + s.span > s.stamp",
    "r.day + s.z >= s.day",
    "r.n184 - s.n52 <= 0.0001",
    "r.n200 - s.n52 <= 0.0001",
]


def random_condition(rng: np.random.Generator) -> str:
    """A condition made of comparisons, sums that mix R and S, AND, OR and NOT."""
    columns, operators = list("xyzuvw"), ["+", "-"]
    literals = ["1", "0.1", "2.5", "-1", "0.3D", "1e0", "0.1F", "2L", "0", "-0.25", "10."]

    def expression(side: str, depth: int) -> str:
        if depth == 0 or (pick := rng.random()) < 0.4:
            return f"{side}.{rng.choice(columns)}" if rng.random() < 0.75 else str(rng.choice(literals))
        inner = expression(side, depth - 1)
        if pick < 0.8:
            return f"({inner} {rng.choice([*operators, '*'][: 4 - depth])} {expression(side, depth - 1)})"
        return f"(- {inner})" if pick < 0.9 else f"abs({inner})"

    def mixed() -> str:
        parts = rng.permutation([expression("r", 1), expression("s", 1)])
        total = f"{parts[0]} {rng.choice(operators)} {parts[1]}"
        if rng.random() < 0.3:
            total = f"({total}) {rng.choice(operators)} {expression('s', 1)}"
        return f"abs({total})" if rng.random() < 0.3 else total

    def comparison() -> str:
        left = expression("r", 2) if (pick := rng.random()) < 0.5 else mixed()
        if pick < 0.1 or pick > 0.9:
            between = f"{rng.choice(['', 'NOT '])}BETWEEN {expression('s', 1)} AND {expression('s', 1)}"
            return f"{left} {between}"
        if pick < 0.15:
            return f"{left} IN ({expression('s', 1)}, {expression('s', 1)}, {rng.choice(literals)})"
        if pick < 0.2:
            return f"{left} <=> {expression('s', 1)}"
        sides = [left, expression("s", 2)]
        return f" {rng.choice(OPS)} ".join(sides if rng.random() < 0.7 else sides[::-1])

    def condition(depth: int) -> str:
        if depth == 0 or (pick := rng.random()) < 0.5:
            return comparison()
        if pick < 0.65:
            return f"NOT ({condition(depth - 1)})"
        return f"(({condition(depth - 1)}) {rng.choice(['AND', 'OR'])} ({condition(depth - 1)}))"

    return condition(2)


FILES = {"pure": pure(), "bounds": BOUNDS, "mixed": MIXED}


@pytest.fixture(scope="module")
def streams(spark):
    """R and S with the same columns, in Arrow and as views of Spark."""
    tables = table(11, 44), table(12, 40)
    for name, rows in zip("rs", tables, strict=True):
        spark.createDataFrame(rows).coalesce(1).createOrReplaceTempView(name)
    return tables


def pairs_differ(spark, streams, brute, conditions: list[str]) -> list[tuple]:
    """The conditions whose pairs are not Spark's, with some of the pairs lost and made up."""
    r, s = streams
    wrong = []
    for condition, pairs in expected(spark, conditions).items():
        spec = JoinSpec(condition, 1000, "t", r.schema, s.schema)
        for device in (None, []):
            found = brute(spec, r, s, device)
            lost, made_up = (sorted(set(a) - set(b))[:3] for a, b in ((pairs, found), (found, pairs)))
            if lost or made_up:
                wrong.append((condition, device, lost, made_up))
    return wrong


def expected(spark, conditions: list[str]) -> dict[str, list[tuple[int, int]]]:
    """Spark's pairs for all conditions at once, by the rows' times."""
    columns = ", ".join(f"({condition}) AS c{k}" for k, condition in enumerate(conditions))
    rows = spark.sql(f"SELECT r.t AS r, s.t AS s, {columns} FROM r CROSS JOIN s").toArrow()
    pairs = list(zip(rows["r"].to_pylist(), rows["s"].to_pylist(), strict=True))
    return {
        condition: sorted(pair for pair, holds in zip(pairs, rows[f"c{k}"].to_pylist(), strict=True) if holds)
        for k, condition in enumerate(conditions)
    }


@pytest.mark.parametrize("kind", FILES)
def test_pairs_are_sparks(spark, streams, brute, kind):
    assert not pairs_differ(spark, streams, brute, FILES[kind])


def test_pairs_are_sparks_for_random_conditions(spark, streams, brute, rng):
    conditions = []
    while len(conditions) < 60:
        condition = random_condition(rng)
        try:
            JoinSpec(condition, 1000, "t", streams[0].schema, streams[1].schema)
            conditions.append(condition)
        except SpecError as error:
            # The only things in these conditions that are refused.
            assert re.search("alternatives once OR|more than one place", str(error)), error
    assert not pairs_differ(spark, streams, brute, conditions)


@pytest.mark.parametrize(
    ("condition", "row"),
    [
        ("r.i32 + 1 > s.x", {"i32": 2**31 - 1}),
        ("r.x < s.i64 - 1", {"i64": -(2**63)}),
        ("r.i32 - s.i32 <= 5", {"i32": -(2**31)}),
        ("r.z / r.x = s.u", {"x": 0}),
    ],
)
def test_overflow_is_sparks(spark, brute, condition, row):
    values = {"t": 1, "i32": 1, "i64": 1, "x": 1, "z": 1, "u": 1.0}
    schema = pa.schema([("t", pa.int64()), *((name, TYPES[name][0]) for name in values if name != "t")])
    tables = (
        pa.Table.from_pylist([{**values, **row}], schema),
        pa.Table.from_pylist([{**values, **row}], schema),
    )
    if "- s.i32" in condition:
        tables = tables[0], pa.Table.from_pylist([{**values, "i32": 1}], schema)
    for name, rows in zip("rs", tables, strict=True):
        spark.createDataFrame(rows).createOrReplaceTempView(f"{name}_overflow")
    with pytest.raises(Exception, match=r"ARITHMETIC_OVERFLOW|DIVIDE_BY_ZERO"):
        spark.sql(f"SELECT ({condition}) FROM r_overflow r CROSS JOIN s_overflow s").collect()
    with pytest.raises(DataError, match=r"ARITHMETIC_OVERFLOW|DIVIDE_BY_ZERO"):
        brute(JoinSpec(condition, 9, "t", schema, schema), *tables)


@pytest.mark.parametrize("kind", ["integer", "timestamp", "timestamp_ntz", "date"])
def test_time_windows_are_sparks(spark, brute, seed, kind):
    rng = np.random.default_rng(seed)
    type, unit, window = {
        "integer": (pa.int32(), "", (3, 5)),
        "timestamp": (sqltypes.TIMESTAMP, "SECONDS", ("3 seconds", "5 seconds")),
        "timestamp_ntz": (sqltypes.TIMESTAMP_NTZ, "SECONDS", ("3 seconds", "5 seconds")),
        "date": (sqltypes.DATE, "DAYS", ("3 days", "5 days")),
    }[kind]
    tables = []
    for name, rows in (("r", 50), ("s", 45)):
        times = [None if rng.random() < 0.1 else int(t) for t in rng.integers(0, 30, rows)]
        scale = 1_000_000 if unit == "SECONDS" else 1
        column = pa.array(
            [None if t is None else t * scale for t in times], pa.int64() if unit == "SECONDS" else pa.int32()
        )
        tables.append(
            pa.table({"at": column.cast(type), "k": rng.integers(0, 4, rows), "id": np.arange(rows)})
        )
        spark.createDataFrame(tables[-1]).createOrReplaceTempView(f"{name}_timed")
    interval = (lambda n: f"INTERVAL {n} {unit}") if unit else str
    wanted = spark.sql(
        "SELECT r.id, s.id FROM r_timed r JOIN s_timed s ON r.k = s.k "
        f"AND r.at >= s.at - {interval(3)} AND r.at <= s.at + {interval(5)}"
    ).collect()
    spec = JoinSpec("r.k = s.k", window, "at", tables[0].schema, tables[1].schema)
    assert brute(spec, *tables) == sorted(tuple(row) for row in wanted)
