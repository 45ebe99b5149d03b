"""Codes keep the order of values, and bounds are rounded inward onto them."""

import datetime
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host import encoding, sqltypes

NAN, INF = math.nan, math.inf
INTS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.sampled_from([-(2**63), 2**63 - 1, 0, -1, 2**53 + 1]))


def key(value):
    """A value's place in Spark's order."""
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


def codes(values, type):
    return encoding.encode(pa.array(values, type))[0].tolist()


@given(st.lists(INTS, min_size=2, max_size=20))
def test_integers_keep_order(values):
    assert [x for _, x in sorted(zip(codes(values, pa.int64()), values, strict=True))] == sorted(values)


@pytest.mark.parametrize("width", [32, 64])
@given(values=st.lists(st.floats(width=32), min_size=2, max_size=20))
def test_floats_keep_order(width, values):
    found = codes(values, pa.float32() if width == 32 else pa.float64())
    for a, x in zip(found, values, strict=True):
        for b, y in zip(found, values, strict=True):
            assert (a < b) == (key(x) < key(y))
            assert (a == b) == (key(x) == key(y))


@pytest.mark.parametrize("type", [pa.float32(), pa.float64()])
def test_nan_is_one_above_infinity_and_zeros_are_equal(type):
    nan, inf, plus, minus = codes([NAN, INF, 0.0, -0.0], type)
    assert nan == inf + 1
    assert plus == minus


@given(st.lists(st.decimals(-(10**27), 10**27, places=10, allow_nan=False), min_size=2, max_size=10))
def test_wide_decimals_never_swap(values):
    found = codes(values, pa.decimal128(38, 10))
    for a, x in zip(found, values, strict=True):
        for b, y in zip(found, values, strict=True):
            assert not (a < b and x > y)


@pytest.mark.parametrize(
    ("type", "values"),
    [
        (pa.int8(), [-128, -1, 0, 127]),
        (pa.int16(), [-(2**15), 0, 2**15 - 1]),
        (pa.int32(), [-(2**31), 0, 2**31 - 1]),
        (pa.bool_(), [False, True]),
        (pa.date32(), [datetime.date(1, 1, 1), datetime.date(1970, 1, 1), datetime.date(9999, 12, 31)]),
        (sqltypes.TIMESTAMP, [datetime.datetime(1, 1, 1), datetime.datetime(2024, 1, 1)]),
        (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("0"), Decimal("999.99")]),
        (pa.decimal128(18, 0), [Decimal(1 - 10**18), Decimal(10**18 - 1)]),
    ],
)
def test_ends_of_types(type, values):
    found = codes(values, type)
    assert found == sorted(set(found))
    if pa.types.is_integer(type):
        assert (found[0], found[-1]) == (0, 2**type.bit_width - 1)


def test_null_has_no_code():
    found, valid = encoding.encode(pa.array([1, None], pa.int64()))
    assert valid.tolist() == [True, False]
    assert found[1] == 0


def test_slices_are_encoded_alone():
    whole = pa.array([Decimal(k) for k in range(10)], pa.decimal128(9, 0))
    assert encoding.encode(whole.slice(3, 4))[0].tolist() == codes(
        [Decimal(k) for k in range(3, 7)], whole.type
    )
    names = pa.array(["x", "", "abc", "abd", None, "x"])
    assert encoding.encode(names.slice(2))[0].tolist() == encoding.encode(names)[0].tolist()[2:]


def test_string_hashes():
    names = ["", "a", "b", "ab", "ba", "aa", "\u00e9", "a" * 100, "\x00", "\x00\x00"]
    found = codes(names, pa.string())
    assert len(set(found)) == len(names)
    # Codes must not change from one process or version to the next: they may be kept in a state store.
    assert codes(["touchline", ""], pa.string()) == [7575705324331353446, 0]
    assert codes([None, None], pa.string()) == [0, 0]


BOUNDS = [
    (
        pa.int32(),
        pa.float64(),
        [-INF, -2147483648.5, -1.5, -0.0, 2.0, 2.5, 2147483647.0, 2147483647.5, INF, NAN],
    ),
    (pa.int8(), pa.int64(), [-(2**63), -129, -128, 0, 127, 128]),
    (
        pa.int64(),
        pa.decimal128(22, 2),
        [Decimal(-(2**63)) - 1, Decimal("-0.50"), Decimal("7.00"), Decimal(2**63)],
    ),
    (pa.float32(), pa.float64(), [-INF, -1e300, 0.1, -0.1, 5e-324, 1.0, 1e300, INF, NAN, -0.0]),
    (
        pa.decimal128(5, 2),
        pa.decimal128(9, 4),
        [Decimal(x) for x in ("-99999.9999", "0.0001", "1.2300", "1000")],
    ),
    (pa.int64(), pa.int64(), [-(2**63), 0, 2**63 - 1]),
]
POINTS = {
    pa.int32(): [-(2**31), -2, -1, 0, 1, 2, 3, 2**31 - 1],
    pa.int8(): [-128, -1, 0, 1, 127],
    pa.int64(): [-(2**63), -1, 0, 6, 7, 8, 2**63 - 1],
    pa.float32(): [-INF, -3.4e38, -0.1, 0.0, 1e-45, 0.1, 1.0, 3.4e38, INF, NAN],
    pa.decimal128(5, 2): [Decimal(x) for x in ("-999.99", "0", "0.01", "1.22", "1.23", "1.24", "999.99")],
}


@pytest.mark.parametrize(("type", "other", "bounds"), BOUNDS, ids=lambda value: str(value)[:20])
def test_bounds_are_rounded_inward(type, other, bounds):
    points = pa.array(POINTS[type], type)
    code = encoding.encode(points)[0]
    array = pa.array(bounds, other)
    for side, strict in ((side, strict) for side in ("lower", "upper") for strict in (False, True)):
        limit, none = getattr(encoding, side)(array, type, strict)
        for k, bound in enumerate(bounds):
            for point, c in zip(points.to_pylist(), code, strict=True):
                p, b = key(point), key(bound)
                wanted = (
                    (p > b or (p == b and not strict))
                    if side == "lower"
                    else (p < b or (p == b and not strict))
                )
                found = not none[k] and (c >= limit[k] if side == "lower" else c <= limit[k])
                assert found == wanted, (side, strict, point, bound)


def test_signed_codes():
    assert encoding.signed(np.array([-(2**63), 0, 2**63 - 1])).tolist() == [0, 2**63, 2**64 - 1]
