"""Arrival order is total, and the later row of a pair owns it."""

import datetime

import numpy as np
import pyarrow as pa
import pytest

from host.arrival import Arrivals, owned
from host.spec import JoinSpec
from hw.errors import DataError, SpecError


def arrange(r, s, **options):
    return JoinSpec("true", "1 rows", "t", r.schema, s.schema, **options).arrange(r, s)


def ids(side):
    return side.rows["id"].to_pylist()


def test_by_time_then_r_before_s():
    r = pa.table({"t": [3, 1, 2], "id": [0, 1, 2]})
    s = pa.table({"t": [2, 1, 0], "id": [0, 1, 2]})
    arrivals = arrange(r, s)
    assert ids(arrivals.r) == [1, 2, 0]
    assert ids(arrivals.s) == [2, 1, 0]
    assert arrivals.r.time.tolist() == [1, 2, 3]
    assert arrivals.r.index.tolist() == [0, 1, 2]
    assert arrivals.r.before.tolist() == [1, 2, 3]
    assert arrivals.s.before.tolist() == [0, 1, 2]
    assert arrivals.r.place.tolist() == [1, 3, 5]
    assert arrivals.s.place.tolist() == [0, 2, 4]
    assert arrivals.r.own.all()
    assert arrivals.s.own.all()


def test_tiebreak_precedes_r_before_s():
    r = pa.table({"t": [1, 1], "seq": [4, 1], "id": [0, 1]})
    s = pa.table({"t": [1, 1], "seq": [3, None], "id": [0, 1]}, schema=r.schema)
    arrivals = arrange(r, s, tiebreak="seq")
    assert ids(arrivals.r) == [1, 0]
    assert ids(arrivals.s) == [1, 0]
    assert arrivals.r.place.tolist() == [1, 3]
    assert arrivals.s.place.tolist() == [0, 2]


def test_tiebreak_by_text_under_two_names():
    r = pa.table({"t": [1, 1], "a": ["b", "d"], "id": [0, 1]})
    s = pa.table({"t": [1, 1], "b": ["c", "a"], "id": [0, 1]})
    arrivals = arrange(r, s, tiebreak=[("a", "b")])
    assert arrivals.r.place.tolist() == [1, 3]
    assert arrivals.s.place.tolist() == [0, 2]


def test_rows_without_time_are_dropped_and_counted():
    r = pa.table({"t": [None, 2, None], "id": [0, 1, 2]})
    s = pa.table({"t": [1, None], "id": [0, 1]})
    arrivals = arrange(r, s)
    assert (ids(arrivals.r), ids(arrivals.s)) == ([1], [0])
    assert arrivals.r.index.tolist() == [0]
    assert (arrivals.r.dropped, arrivals.s.dropped) == (2, 1)


def awkward(seed: int, rows: int) -> pa.Table:
    """Rows that are all tied in time, with values that sort differently in Arrow and in Spark."""
    rng = np.random.default_rng(seed)
    pick = lambda values, type: pa.array([values[k] for k in rng.integers(0, len(values), rows)], type)  # noqa: E731
    return pa.table(
        {
            "t": pa.array([0] * rows),
            "b": pick([True, False, None], pa.bool_()),
            "f": pick([float("nan"), -0.0, 0.0, float("-inf"), float("inf"), None, -1.5], pa.float32()),
            "n": pick(["", "a", "B", "\u00e9", "\U0001f600", "\uffee", None], pa.string()),
            "w": pick([None, 10**30, -(10**30), -1, 1, 2**64], pa.decimal128(38, 0)),
            "d": pick([None, datetime.date(1969, 1, 1), datetime.date(2024, 1, 1)], pa.date32()),
            "z": pick([None, b"\xff", b"", b"\x00"], pa.binary()),
            "p": pick([None, {"a": 1, "b": "x"}, {"a": None, "b": "y"}, {"a": 1, "b": None}], None),
            "id": pa.array(rng.permutation(rows)),
        }
    )


def test_own_values_order_ties_as_spark_sorts(spark):
    r = awkward(21, 60)
    arrivals = arrange(r, r.slice(0, 0))
    order = spark.createDataFrame(r).orderBy(*r.column_names).select("id").toArrow()["id"].to_pylist()
    assert ids(arrivals.r) == order


@pytest.mark.parametrize("seed", range(3))
def test_order_does_not_depend_on_input_order(seed):
    r, s = awkward(seed, 40), awkward(seed + 100, 40)
    rng = np.random.default_rng(seed)
    shuffled = [table.take(pa.array(rng.permutation(table.num_rows))) for table in (r, s)]
    first, second = arrange(r, s), arrange(*shuffled)
    assert first.r.rows.equals(second.r.rows) or ids(first.r) == ids(second.r)
    assert ids(first.s) == ids(second.s)
    assert first.r.before.tolist() == second.r.before.tolist()


def test_columns_that_cannot_be_ordered_need_a_tiebreak():
    schema = pa.schema([("t", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
    with pytest.raises(SpecError) as error:
        JoinSpec("true", "1 rows", "t", schema, schema)
    assert str(error.value) == (
        "`r.m` is map<string, int64>, which cannot be ordered; "
        "name columns that order rows of equal time with tiebreak="
    )
    JoinSpec("true", "1 rows", "t", schema, schema, tiebreak="t")


def test_ordered_with_bases_and_halo():
    r, s = pa.table({"t": [1, 3]}), pa.table({"t": [2, 2, 5]})
    spec = JoinSpec("true", 9, "t", r.schema, s.schema)
    arrivals = spec.ordered(
        r, s, [False, True, True, False, True], r_base=10, s_base=100, own=[False, False, False, True, True]
    )
    assert arrivals.r.index.tolist() == [10, 11]
    assert arrivals.s.index.tolist() == [100, 101, 102]
    assert arrivals.r.before.tolist() == [100, 102]
    assert arrivals.s.before.tolist() == [11, 11, 12]
    assert arrivals.r.own.tolist() == [False, True]
    r_rows, s_rows = np.array([0, 0, 1, 1]), np.array([0, 2, 1, 2])
    assert owned(arrivals, r_rows, s_rows).tolist() == [False, True, True, True]


def test_arranged_is_ordered_with_defaults():
    r, s = pa.table({"t": [1, 2, 2]}), pa.table({"t": [0, 2]})
    spec = JoinSpec("true", 9, "t", r.schema, s.schema)
    arranged, ordered = spec.arrange(r, s), spec.ordered(r, s, [True, False, False, False, True])
    for a, b in ((arranged.r, ordered.r), (arranged.s, ordered.s)):
        for name in ("time", "index", "before", "own"):
            assert getattr(a, name).tolist() == getattr(b, name).tolist()
            assert getattr(a, name).dtype == getattr(b, name).dtype


def test_no_rows():
    empty = pa.table({"t": pa.array([], pa.int64())})
    arrivals = arrange(empty, empty)
    assert len(arrivals.r.place) == len(arrivals.s.place) == 0


def test_an_order_of_other_rows_is_refused():
    r = pa.table({"t": [1, 2]})
    with pytest.raises(DataError, match=r"^the order names 1 rows of R, but there are 2 rows and 2 times$"):
        Arrivals.ordered(r, r, np.arange(2), np.arange(2), [False, True])
    with pytest.raises(DataError, match=r"^own must have one entry per row \(2\), not 1$"):
        Arrivals.ordered(r, r, np.arange(2), np.arange(2), [False, True], own=[True])


def test_ordered_rows_need_times():
    r = pa.table({"t": [1, None]})
    spec = JoinSpec("true", 9, "t", r.schema, r.schema)
    with pytest.raises(DataError, match=r"^1 rows of R have no time; leave them out of the order$"):
        spec.ordered(r, r, [False, False, True, True])
