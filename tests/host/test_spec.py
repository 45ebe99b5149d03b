"""Join specs: each rule of "Semantics, exactly" that the host answers for."""

import pickle

import numpy as np
import pyarrow as pa
import pytest

from host.spec import JoinSpec
from hw.dimension import Dimension
from hw.dimension import Test as Kind
from hw.errors import DataError, SpecError
from sim.oracle import Windows, three_steps

R = pa.schema(
    [("t", pa.int64()), ("x", pa.int32()), ("y", pa.int32()), ("u", pa.float64()), ("name", pa.string())]
)
S = pa.schema(
    [("t", pa.int64()), ("a", pa.int32()), ("c", pa.int32()), ("v", pa.float64()), ("tag", pa.string())]
)


def spec(on, window=100, r=R, s=S, **options):
    return JoinSpec(on, window, "t", r, s, **options)


def table(schema, **columns):
    size = len(next(iter(columns.values())))
    columns.setdefault("t", list(range(size)))
    return pa.table({name: columns[name] for name in schema.names if name in columns}).cast(
        pa.schema([field for field in schema if field.name in columns])
    )


def small(on, r, s, window=100, **options):
    """A spec over just the columns of two tables."""
    return JoinSpec(on, window, "t", r.schema, s.schema, **options)


def kinds(on, **options):
    return [
        (dim.test, dim.negated, dim.exact, dim.role)
        for dim in spec(on, **options).dimensions
        if dim.role == "value"
    ]


VALUE = "value"


@pytest.mark.parametrize(
    ("on", "dims"),
    [
        ("r.x = s.a", [(Kind.EQUAL, False, True, VALUE)]),
        ("r.x BETWEEN s.a AND s.c", [(Kind.BAND, False, True, VALUE)]),
        ("r.x >= s.a AND r.x < s.c", [(Kind.BAND, False, True, VALUE)]),
        ("r.x > s.a", [(Kind.AT_LEAST, False, True, VALUE)]),
        ("s.a >= r.x", [(Kind.AT_MOST, False, True, VALUE)]),
        ("r.x = s.v", [(Kind.EQUAL, False, True, VALUE)]),
        ("r.x <> s.a", [(Kind.EQUAL, True, True, VALUE)]),
        ("r.x <> s.v", [(Kind.BAND, True, True, VALUE)]),
        ("r.x NOT BETWEEN s.a AND s.c", [(Kind.BAND, True, True, VALUE)]),
        ("r.x <> s.a AND r.x <> s.c", [(Kind.EQUAL, True, True, VALUE)] * 2),
        ("r.x = s.a AND r.x <> s.c", [(Kind.EQUAL, False, True, VALUE), (Kind.EQUAL, True, True, VALUE)]),
        ("r.name = s.tag", [(Kind.EQUAL, False, False, VALUE)]),
        ("r.name <> s.tag", []),
        ("abs(r.x - s.a) <= 5", [(Kind.BAND, False, True, VALUE)]),
        ("abs(r.u - s.v) <= 5", [(Kind.BAND, False, False, VALUE)]),
        ("r.x = s.a OR r.x = s.c", [(Kind.EQUAL, False, True, VALUE)]),
        ("r.x > s.a OR r.x > s.c", [(Kind.AT_LEAST, False, True, VALUE)]),
        ("r.x > s.a OR r.x < s.c", [(Kind.BAND, False, True, VALUE)]),
        ("true", []),
    ],
)
def test_dimensions(on, dims):
    assert kinds(on) == dims


def test_parts_of_an_or_are_open_elsewhere_and_flagged():
    dims = kinds("r.x = s.a OR r.y <> s.c")
    assert dims == [
        (Kind.BAND, False, True, VALUE),
        (Kind.BAND, True, True, VALUE),
        (Kind.AT_LEAST, False, True, VALUE),
        (Kind.AT_LEAST, False, True, VALUE),
    ]
    required = pa.schema([field.with_nullable(False) for field in R])
    assert len(kinds("r.x = s.a OR r.y <> s.c", r=required)) == 2


def test_window_dimensions():
    [time] = spec("true").dimensions
    assert (time.test, time.role, time.exact) == (Kind.BAND, "time", True)
    first, last = spec("true", "5 rows").dimensions
    assert (first.test, first.role, last.test, last.role) == (Kind.AT_LEAST, "index", Kind.AT_MOST, "index")


def test_codes_are_unsigned_and_in_arrival_order():
    r = table(R, t=[5, 1, 3], x=[1, 2, None])
    s = table(S, t=[2, 4], a=[1, 2])
    join = small("r.x = s.a OR r.x = s.a + 1", r, s)
    encoded = join.encode(join.arrange(r, s))
    assert encoded.points.row.tolist() == [0, 2]
    assert encoded.points.codes[0].tolist() == [2**31 + 2, 2**31 + 1]
    assert encoded.boxes.row.tolist() == [0, 0, 1, 1]
    assert encoded.boxes.disjunct.tolist() == [0, 1, 0, 1]
    for arrays in (encoded.points.codes, encoded.boxes.lo, encoded.boxes.hi):
        assert [array.dtype for array in arrays] == [np.uint64] * len(join.dimensions)


def test_rows_that_cannot_join_are_not_encoded():
    r = table(R, x=[1, None, 3, 4], name=["a", "b", None, "d"])
    s = table(S, a=[1, None, 3, 9], c=[5, 5, 2, 12])
    join = small("r.x BETWEEN s.a AND s.c AND r.name <> 'd' AND s.a < 9", r, s)
    encoded = join.encode(join.arrange(r, s))
    assert encoded.points.row.tolist() == [0]
    assert encoded.boxes.row.tolist() == [0]


@pytest.mark.parametrize(("on", "some"), [("r.x > s.a", False), ("r.x >= s.a", True), ("r.x < s.a", True)])
def test_strict_bounds_beyond_a_type_are_empty(on, some):
    r, s = table(R, x=[0]), table(S, a=[2**31 - 1])
    join = small(on, r, s)
    assert bool(len(join.encode(join.arrange(r, s)).boxes.row)) == some


def test_null_joins_nothing(brute):
    r, s = table(R, x=[None, 1]), table(S, a=[None, 1])
    for on, pairs in (("r.x = s.a", [(1, 1)]), ("r.x <> s.a", []), ("NOT r.x < s.a", [(1, 1)])):
        assert brute(small(on, r, s), r, s) == pairs


def test_nan_and_zeros_are_as_in_spark(brute):
    nan = float("nan")
    r, s = table(R, u=[nan, -0.0, float("inf")]), table(S, v=[nan, 0.0])
    assert brute(small("r.u = s.v", r, s), r, s) == [(0, 0), (1, 1)]
    assert brute(small("r.u > s.v", r, s), r, s) == [(0, 1), (2, 1)]
    assert brute(small("r.u <= s.v", r, s), r, s) == [(0, 0), (1, 0), (1, 1), (2, 0)]


def test_a_pair_that_several_alternatives_give_comes_once(brute):
    r, s = table(R, x=[1, 1], y=[1, 2], name=["a", "b"]), table(S, a=[1], c=[1], tag=["a"])
    on = "r.x = s.a OR r.y = s.c OR r.name = s.tag"
    for device in (None, [], [0], [4]):
        assert brute(small(on, r, s), r, s, device) == [(0, 0), (1, 0)]


def test_one_sided_terms_inside_or(brute):
    r, s = table(R, x=[1, 9], y=[0, 0]), table(S, a=[1, 9], c=[0, 5])
    assert brute(small("(r.x > 5 AND r.y = s.c) OR (s.a > 5 AND r.x = s.a)", r, s), r, s) == [(1, 0), (1, 1)]


def test_terms_are_not_evaluated_where_an_earlier_one_fails(brute):
    r, s = table(R, x=[0, 5], y=[1, 1]), table(S, a=[2, 3])
    assert brute(small("r.x <> 0 AND 10 / r.x = s.a", r, s), r, s) == [(1, 0)]
    assert brute(small("(r.x <> 0 AND 10 / r.x = s.a) OR r.y = s.a - 2", r, s), r, s) == [
        (0, 1),
        (1, 0),
        (1, 1),
    ]


def test_overflow_names_the_expression(brute):
    r, s = table(R, x=[2**31 - 1]), table(S, a=[1])
    with pytest.raises(DataError) as error:
        brute(small("r.x + 1 > s.a", r, s), r, s)
    assert (
        str(error.value) == "`r.x + 1` overflows int (ARITHMETIC_OVERFLOW); cast an operand to a wider type"
    )


def test_hash_collisions_are_refined(brute, monkeypatch):
    monkeypatch.setattr("host.encoding._hash", lambda array: np.zeros(len(array), np.uint64))
    r, s = table(R, name=["a", "b"]), table(S, tag=["b", "c"])
    assert brute(small("r.name = s.tag", r, s), r, s) == [(1, 0)]
    assert brute(small("r.name <> s.tag", r, s), r, s) == [(0, 0), (0, 1), (1, 1)]


def test_own_bounds_saturate(brute):
    ends = [-(2**63), 0, 2**63 - 1]
    r, s = pa.table({"t": ends}), pa.table({"t": ends})
    assert brute(small("true", r, s, (2**63 - 1, 2**63 - 1)), r, s) == [
        (a, b) for a in range(3) for b in range(3) if abs(ends[a] - ends[b]) <= 2**63 - 1
    ]
    assert len(brute(small("true", r, s, ("9999999999999999999 rows",) * 2), r, s)) == 9


@pytest.mark.parametrize("seed", range(20))
def test_windows_are_the_oracles(brute, seed):
    rng = np.random.default_rng(seed)
    r, s = (
        pa.table({"t": rng.integers(0, 12, rows), "k": rng.integers(0, 2, rows)})
        for rows in rng.integers(0, 30, 2)
    )
    kind = ("rows", "time")[seed % 2]
    sizes = tuple(int(size) for size in rng.integers(0, 6, 2))
    window = sizes if kind == "time" else tuple(f"{size} rows" for size in sizes)
    join = small("r.k = s.k", r, s, window)
    # Numbers in arrival order, so that rows are the oracle's.
    arrivals = join.arrange(r, s)
    r, s = arrivals.r.rows, arrivals.s.rows
    order = np.argsort(np.concatenate([arrivals.r.place, arrivals.s.place]))
    is_s = (np.arange(len(order)) >= r.num_rows)[order]
    time = np.concatenate([arrivals.r.time, arrivals.s.time])[order]
    r_k, s_k = r["k"].to_numpy(), s["k"].to_numpy()
    wanted = three_steps(is_s, time, Windows(kind, *sizes), lambda a, b: bool(r_k[a] == s_k[b]))
    assert brute(join, r, s) == sorted(wanted)


def test_indexes_count_rows_that_are_later_dropped(brute):
    r, s = table(R, t=[0, 1], x=[1, None]), table(S, t=[2], a=[1])
    assert brute(small("r.x = s.a", r, s, "1 rows"), r, s) == []
    assert brute(small("r.x = s.a", r, s, "2 rows"), r, s) == [(0, 0)]


@pytest.mark.parametrize("window", [4, "5 rows"])
@pytest.mark.parametrize("seed", range(4))
def test_slices_with_halos_give_each_pair_once(brute, window, seed):
    """Every cut of history, each with its halo, finds its own pairs; together they are all pairs."""
    rng = np.random.default_rng(seed)
    r, s = (pa.table({"t": np.sort(rng.integers(0, 40, 40)), "#": np.arange(40)}) for _ in range(2))
    join = small("true", r, s, window)
    whole = join.arrange(r, s)
    is_s = np.zeros(80, bool)
    is_s[whole.s.place] = True
    seen_s = np.concatenate([[0], np.cumsum(is_s)])
    found = []
    for first in range(0, 80, 16):
        start, end = max(first - 30, 0), first + 16
        s_from, s_to = seen_s[start], seen_s[end]
        r_from, r_to = start - s_from, end - s_to
        cut = join.ordered(
            whole.r.rows.slice(r_from, r_to - r_from),
            whole.s.rows.slice(s_from, s_to - s_from),
            is_s[start:end],
            r_base=r_from,
            s_base=s_from,
            own=np.arange(start, end) >= first,
        )
        found += brute.arrivals(join, cut)
    assert sorted(found) == brute.arrivals(join, whole)
    assert len(set(found)) == len(found)


def test_pickles():
    join = spec("r.x = s.a AND r.name = s.tag", ("1 rows", "2 rows"), tiebreak=[("x", "a")])
    copy = pickle.loads(pickle.dumps(join))
    assert (copy.dimensions, copy.window, copy.time, copy.tiebreak) == (
        join.dimensions,
        join.window,
        join.time,
        join.tiebreak,
    )


def test_explain():
    join = spec("r.x > 5 AND abs(r.x - s.a) <= 3 AND r.name = s.tag AND r.name <> s.tag AND r.u - s.v < 1e0")
    assert join.explain() == "\n".join(
        [
            "on r.x > 5 AND abs(r.x - s.a) <= 3 AND r.name = s.tag AND r.name <> s.tag AND r.u - s.v < 1e0",
            "  `r.x > 5`: one-sided filter of R",
            "  `ABS(r.x - s.a) <= 3`: dimension 0, exact",
            "  `r.name = s.tag`: dimension 1, refined on the host because strings are compared by hash",
            "  `r.name <> s.tag`: no dimension, refined on the host because strings are compared by hash",
            "  `r.u - s.v < 1e0`: dimension 2, refined on the host because the sum is rounded, "
            "so the bound is widened",
            "dimensions",
            "  0: band (value, exact): ABS(r.x - s.a) <= 3",
            "  1: equal (value, refined): r.name = s.tag",
            "  2: at most (value, refined): r.u - s.v < 1e0",
            "  3: band (time, exact): -100 <= r.t - s.t <= 100",
        ]
    )


def test_explain_alternatives():
    text = spec("(r.x > 5 AND r.y = s.c) OR r.x = s.a").explain()
    assert "alternative 1 of 2\n  `r.x > 5`: one-sided filter of R, as a flag dimension\n" in text
    assert spec("false").explain().splitlines()[1] == "  never true: no box is sent"


def test_never_true_has_no_boxes():
    r, s = table(R, x=[1]), table(S, a=[1])
    for window in (9, "9 rows"):
        join = small("false", r, s, window)
        encoded = join.encode(join.arrange(r, s))
        assert len(encoded.boxes.row) == 0
        assert (
            len(encoded.boxes.lo)
            == len(encoded.boxes.hi)
            == len(encoded.points.codes)
            == len(join.dimensions)
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": "when"}, "`r.when` is not a column of R, which has: t, x, y, u, name"),
        ({"time": ("t", "when")}, "`s.when` is not a column of S, which has: t, a, c, v, tag"),
        ({"time": ("t",)}, "time must be a column name, or a pair of names for R and S, not ('t',)"),
        ({"time": None}, "time must be a column name, or a pair of names for R and S, not None"),
        (
            {"time": ("u", "v")},
            "time column `r.u` must be a timestamp (in microseconds), date or integer, not double",
        ),
        (
            {"time": ("t", "when"), "s_schema": S.append(pa.field("when", pa.date32()))},
            "time columns must have one type in R and S, not bigint and date",
        ),
        ({"tiebreak": "x"}, "`s.x` is not a column of S, which has: t, a, c, v, tag"),
        (
            {"tiebreak": [("x", "tag")]},
            "tiebreak columns `r.x` and `s.tag` must have one type that can be ordered, not int32 and string",
        ),
    ],
)
def test_refused(change, message):
    arguments = {"on": "true", "window": 5, "time": "t", "r_schema": R, "s_schema": S, **change}
    with pytest.raises(SpecError) as error:
        JoinSpec(**arguments)
    assert str(error.value) == message


def test_other_rows_than_planned_are_refused():
    join = spec("r.x = s.a")
    s = table(S, a=[1])
    with pytest.raises(DataError, match=r"^`r\.x` is missing, where the join was planned for int32$"):
        join.arrange(pa.table({"t": [1]}), s)
    with pytest.raises(DataError, match=r"^`r\.x` is double, where the join was planned for int32$"):
        join.arrange(pa.table({"t": [1], "x": [1.5]}), s)


def test_contains_is_the_gatewares():
    for dim in spec("r.x <> s.a", "5 rows").dimensions:
        codes = np.arange(3, dtype=np.uint64)
        whole = Dimension(dim.test, 64, dim.negated)
        wanted = whole.contains(codes, {"lo": np.uint64(1), "hi": np.uint64(1)})
        assert dim.contains(codes, np.uint64(1), np.uint64(1)).tolist() == wanted.tolist()
