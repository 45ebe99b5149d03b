"""Several joins at once on a chain of OP-Blocks, and joins of three streams, against the oracle."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from host.chain import ChainSession
from host.device import open_device
from host.session import Session
from host.share import Sharing
from host.spec import JoinSpec
from host.three_way import COMPOSITE_TIME, ThreeWay, composite_schema
from hw.dimension import Dimension
from hw.errors import DataError, ParameterError, SpecError
from hw.parameters import Parameters
from hw.socket import Kind, tuple_layout
from hw.words import unpack
from sim.oracle import Windows, three_steps, three_streams

from ..configurations import DEVICES

REFINED = ThreeWay._refined
#: A clock: the type of time, the integer it is made from, and the unit of windows.
INTEGERS = (pa.int64(), pa.int64(), None)


def table(rng, count: int, *names: str, span: int = 8, nulls: float = 0.05) -> pa.Table:
    """Rows in order of time, with NULLs."""
    columns = {"ts": pa.array(np.sort(rng.integers(0, 3 * count // 4 + 1, count)))}
    for name in names:
        values = rng.integers(0, span, count)
        columns[name] = pa.array(values, pa.int32(), mask=rng.random(count) < nulls)
    return pa.table(columns | {"id": pa.array(np.arange(count))})


def ids(arrivals, result) -> Counter:
    r, s = (
        side.rows["id"].to_numpy()[rows] for side, rows in ((arrivals.r, result.r), (arrivals.s, result.s))
    )
    return Counter(zip(r.tolist(), s.tolist()))


def steps(r: list[dict], s: list[dict], r_window: int, s_window: int, matches) -> list[tuple[dict, dict]]:
    """The oracle's pairs of rows, whose times are in `ts`; R comes before S at equal times."""
    merged = sorted(
        [(row["ts"], 0, k) for k, row in enumerate(r)] + [(row["ts"], 1, k) for k, row in enumerate(s)]
    )
    sides = [[rows[k] for _, side, k in merged if side == wanted] for wanted, rows in enumerate((r, s))]
    pairs = three_steps(
        np.array([side for _, side, _ in merged], bool),
        np.array([time for time, _, _ in merged], np.int64),
        Windows("time", r_window, s_window),
        lambda i, j: matches(sides[0][i], sides[1][j]),
    )
    return [(sides[0][i], sides[1][j]) for i, j in pairs]


def known(*values) -> bool:
    return all(value is not None for value in values)


@pytest.mark.parametrize("count", [0, 1, 20, 150])
@pytest.mark.parametrize("device", ["opblock", "opblock_serial"])
def test_two_queries_at_once_give_what_each_gives_alone(device, count, rng, seed):
    r, s = table(rng, count, "x", "y"), table(rng, count, "x", "y")
    conditions = ("r.x = s.x AND r.y > 3", "r.y BETWEEN s.y - 1 AND s.y + 1 AND s.x <> 2")
    specs = [JoinSpec(on, window, "ts", r.schema, s.schema) for on, window in zip(conditions, (6, "9 rows"))]
    with open_device(f"{DEVICES[device]}&stalls={seed},60,90") as opened:
        arrivals = [spec.arrange(r, s) for spec in specs]
        together = ChainSession(opened).join_all(specs, arrivals)
        alone = [Session(opened, spec).join(each) for spec, each in zip(specs, arrivals)]
    for each, one, other in zip(arrivals, together, alone):
        assert ids(each, one) == ids(each, other)
    want = Counter(
        (a["id"], b["id"])
        for a, b in steps(
            r.to_pylist(),
            s.to_pylist(),
            6,
            6,
            lambda a, b: known(a["x"], a["y"], b["x"]) and a["x"] == b["x"] and a["y"] > 3,
        )
    )
    assert ids(arrivals[0], together[0]) == want


def met(*names: str):
    """Makes a predicate over two rows of one over values, in which NULL joins nothing."""

    def over(test):
        def matches(a, b):
            values = [(a if name[0] == "r" else b)[name[2:]] for name in names]
            return known(*values) and test(*values)

        return matches

    return over


def widened(rows: pa.Table, wide: int) -> pa.Table:
    """The rows with values from 3 on so much larger, in the same order, that codes become coarse."""
    for name in set(rows.column_names) - {"ts", "id"}:
        values = rows[name].cast(pa.int64())
        values = pc.add(values, pc.multiply(pc.greater(values, 2).cast(pa.int64()), wide))
        rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows


SAME_X = ("r.x = s.x", met("r.x", "s.x")(lambda a, b: a == b))
#: Joins over the same streams: condition, meaning and window of each, and how many blocks project.
SHARED = {
    "separate": ((*SAME_X, 6), ("r.y >= s.y", met("r.y", "s.y")(lambda a, b: a >= b), 6), 0),
    "windows": ((*SAME_X, 6), (*SAME_X, 3), 0),
    "same_point": ((*SAME_X, 3), ("r.x < s.y", met("r.x", "s.y")(lambda a, b: a < b), 6), 0),
    "uneven": ((*SAME_X, (2, 2)), ("r.x < s.y", met("r.x", "s.y")(lambda a, b: a < b), (0, 14)), 0),
    "crossed": (
        ("r.x = s.x AND r.y = s.y", met("r.x", "s.x", "r.y", "s.y")(lambda a, b, c, d: a == b and c == d), 6),
        (
            "r.x >= s.y AND r.y = s.x",
            met("r.x", "s.y", "r.y", "s.x")(lambda a, b, c, d: a >= b and c == d),
            6,
        ),
        1,
    ),
    "crossed_bands": (
        (
            "r.x = s.x AND r.y <= s.y AND r.x > 1",
            met("r.x", "s.x", "r.y", "s.y")(lambda a, b, c, d: a == b and c <= d and a > 1),
            6,
        ),
        ("r.x <= s.y", met("r.x", "s.y")(lambda a, b: a <= b), 3),
        1,
    ),
    "rows": (
        ("r.x >= s.y", met("r.x", "s.y")(lambda a, b: a >= b), "7 rows"),
        ("r.x >= s.y AND s.x <> 2", met("r.x", "s.y", "s.x")(lambda a, b, c: a >= b and c != 2), "7 rows"),
        0,
    ),
    "unequal": (
        ("r.x <> s.x", met("r.x", "s.x")(lambda a, b: a != b), 6),
        (
            "r.x = s.x AND r.y <> s.y",
            met("r.x", "s.x", "r.y", "s.y")(lambda a, b, c, d: a == b and c != d),
            6,
        ),
        0,
    ),
    "too_many": ((*SAME_X, "7 rows"), ("r.y < s.x", met("r.y", "s.x")(lambda a, b: a < b), 6), None),
}


@pytest.mark.parametrize("wide", [0, 2**40])
@pytest.mark.parametrize("count", [0, 1, 12, 60])
@pytest.mark.parametrize("queries", SHARED)
def test_joins_of_the_same_streams_share_their_tuples(queries, count, wide, rng, seed):
    """Each tuple is sent once for all joins; windows that do not fit are cut into tiles for each join."""
    r, s = (widened(table(rng, count, "x", "y", span=5), wide) for _ in "rs")
    *conditions, projections = SHARED[queries]
    specs = [JoinSpec(on, window, "ts", r.schema, s.schema) for on, _, window in conditions]
    arrivals = specs[0].arrange(r, s)
    with open_device(f"{DEVICES['opblock']}&stalls={seed},60,90") as opened:
        session = ChainSession(opened)
        text = session.explain(specs, shared=True)
        together, apart = (session.join_all(specs, given) for given in (arrivals, [arrivals, arrivals]))
    whose, at, (r_rows, s_rows) = in_order(r, s)
    for (_, matches, window), one, other in zip(conditions, together, apart):
        sizes = window if isinstance(window, tuple) else (window, window)
        kind = "rows" if isinstance(sizes[0], str) else "time"
        windows = Windows(kind, *(int(str(size).removesuffix(" rows")) for size in sizes))
        pairs = three_steps(whose, at, windows, lambda i, j, of=matches: of(r_rows[i], s_rows[j]))
        want = Counter((r_rows[i]["id"], s_rows[j]["id"]) for i, j in pairs)
        assert ids(arrivals, one) == want
        assert ids(arrivals, other) == want
    if projections is None:
        assert "each join has its own tuples: they need 5 dimensions, the device has 4" in text
    else:
        assert text.count(": project R to ") == projections


@pytest.mark.parametrize("queries", ["separate", "crossed"])
def test_shared_tuples_are_sent_once(queries, monkeypatch):
    """Half the tuples, also where a projection puts dimensions in another order."""
    count = 40
    columns = {"ts": np.arange(count), "x": np.arange(count) % 3, "y": np.arange(count) // 2 % 3}
    rows = pa.table(columns | {"id": np.arange(count)})
    specs = [JoinSpec(on, 2, "ts", rows.schema, rows.schema) for on, *_ in SHARED[queries][:2]]
    arrivals = specs[0].arrange(rows, rows)
    tuples, found = [], []
    with open_device(DEVICES["opblock"]) as opened:
        exchange, layout = opened.exchange, tuple_layout(opened.parameters.dims)

        def counted(words, **options):
            tuples.append(int((unpack(layout, words, "kind") <= Kind.S.value).sum()))
            return exchange(words, **options)

        monkeypatch.setattr(opened, "exchange", counted)
        for given in (arrivals, [arrivals, arrivals]):
            found.append([ids(arrivals, each) for each in ChainSession(opened).join_all(specs, given)])
    assert tuples == [2 * count, 4 * count]
    assert found[0] == found[1] and all(found[0])


def in_order(*tables: pa.Table) -> tuple[np.ndarray, np.ndarray, list[list[dict]]]:
    """The rows as they arrive, straight from the definition: whose they are, times, and each table's."""
    merged = [(row, side) for side, each in enumerate(tables) for row in each.to_pylist()]
    merged.sort(key=lambda item: (item[0]["ts"], item[1], [(v is not None, v) for v in item[0].values()]))
    whose = np.array([side for _, side in merged], int)
    rows = [[row for row, side in merged if side == wanted] for wanted in range(len(tables))]
    return whose, np.array([row["ts"] for row, _ in merged], np.int64), rows


def check_three(opened, tables, conditions, windows, matches, clock=INTEGERS) -> int:
    """A join of three tables against the oracle; `matches` are over rows. Returns the number of triples."""
    time, first, unit = clock

    def lengths(kind, *numbers):
        name = "rows" if kind == "rows" else unit
        return numbers if name is None else tuple(f"{number} {name}" for number in numbers)

    given = [each.set_column(0, "ts", each["ts"].cast(first).cast(time)) for each in tables]
    schemas = [each.schema for each in given]
    inner = JoinSpec(conditions[0], lengths(*windows[0]), "ts", *schemas[:2])
    times = (COMPOSITE_TIME, "ts")
    outer = JoinSpec(conditions[1], lengths(*windows[1]), times, composite_schema(inner), schemas[2])
    joined, stats = ChainSession(opened).join_three(inner, outer, *given)
    whose, at, (r, s) = in_order(*tables[:2])
    _, t_time, (t,) = in_order(tables[2])
    triples = three_streams(
        whose,
        at,
        Windows(*windows[0]),
        lambda i, j: matches[0](r[i], s[j]),
        t_time,
        Windows(*windows[1]),
        lambda i, j, k: matches[1](r[i], s[j], t[k]),
    )
    names = [name for name in joined.column_names if name.endswith("id")]
    want = Counter((r[i]["id"], s[j]["id"], t[k]["id"]) for i, j, k in triples)
    assert Counter(zip(*(joined[name].to_pylist() for name in names))) == want
    assert stats.pairs == len(triples)
    return len(triples)


WINDOWS = {
    "times": (("time", 5, 3), ("time", 4, 7)),
    "rows": (("rows", 9, 6), ("rows", 14, 5)),
    "rows_then_time": (("rows", 6, 9), ("time", 4, 7)),
    "time_then_rows": (("time", 5, 3), ("rows", 0, 8)),
}


def three_tables(rng, count: int) -> list[pa.Table]:
    names = (("x",), ("a", "c"), ("d",))
    return [table(rng, count, *each, span=5) for each in names]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("count", [0, 3, 16, 60])
@pytest.mark.parametrize("device", ["opblock", "opblock_serial"])
def test_three_streams(device, count, window, rng, seed):
    """(R join S) join T, with more rows than the device holds, NULLs and ties in time."""
    with open_device(f"{DEVICES[device]}&stalls={seed},50,80") as opened:
        found = check_three(
            opened,
            three_tables(rng, count),
            ("r.x BETWEEN s.a - 1 AND s.a", "r.c >= s.d"),
            WINDOWS[window],
            (
                lambda a, b: known(a["x"], b["a"]) and b["a"] - 1 <= a["x"] <= b["a"],
                lambda a, b, c: known(b["c"], c["d"]) and b["c"] >= c["d"],
            ),
        )
    assert found or count < 16


@pytest.mark.parametrize(
    "clock",
    [(pa.timestamp("us", "UTC"), pa.int64(), "microseconds"), (pa.date32(), pa.int32(), "days")],
    ids=["timestamp", "date"],
)
@pytest.mark.parametrize("window", ["times", "time_then_rows"])
def test_clocks_of_three_streams(clock, window, rng):
    with open_device(DEVICES["opblock"]) as opened:
        assert check_three(
            opened,
            three_tables(rng, 20),
            ("r.x = s.a", "r.x <= s.d"),
            WINDOWS[window],
            (
                lambda a, b: known(a["x"], b["a"]) and a["x"] == b["a"],
                lambda a, b, c: known(a["x"], c["d"]) and a["x"] <= c["d"],
            ),
            clock,
        )


#: The outer condition, as Python, and whether the device alone decides it.
OUTER = {
    "of_r": ("r.x = s.d", lambda a, b, c: known(c["d"]) and a["x"] == c["d"], True),
    "of_s": ("r.c < s.d", lambda a, b, c: known(b["c"], c["d"]) and b["c"] < c["d"], True),
    "unequal": ("r.c <> s.d", lambda a, b, c: known(b["c"], c["d"]) and b["c"] != c["d"], True),
    "moved": (
        "cast(r.c AS double) - s.d <= 1.5D",
        lambda a, b, c: known(b["c"], c["d"]) and b["c"] - c["d"] <= 1.5,
        False,
    ),
    "both": (
        "r.x + r.c BETWEEN s.d - 1 AND s.d + 1",
        lambda a, b, c: known(b["c"], c["d"]) and abs(a["x"] + b["c"] - c["d"]) <= 1,
        False,
    ),
    "filtered": (
        "r.c <= s.d AND r.x > 1 AND s.d <> 2",
        lambda a, b, c: known(b["c"], c["d"]) and b["c"] <= c["d"] != 2 and a["x"] > 1,
        False,
    ),
    "either": (
        "r.c = s.d OR r.x = s.d",
        lambda a, b, c: known(c["d"]) and (b["c"] == c["d"] or a["x"] == c["d"]),
        False,
    ),
}


@pytest.mark.parametrize("condition", OUTER)
def test_what_the_device_decides_of_three_streams_is_not_rechecked(condition, rng, monkeypatch):
    """Composites become rows again only where something is left open."""
    refined = []
    monkeypatch.setattr(ThreeWay, "_refined", lambda *given: refined.append(1) or REFINED(*given))
    on, matches, decided = OUTER[condition]
    with open_device(DEVICES["opblock"]) as opened:
        assert check_three(
            opened,
            three_tables(rng, 40),
            ("r.x = s.a", on),
            WINDOWS["times"],
            (lambda a, b: known(a["x"], b["a"]) and a["x"] == b["a"], matches),
        )
    assert bool(refined) != decided


def test_coarse_codes_of_three_streams_are_rechecked(rng):
    with open_device(DEVICES["opblock"]) as opened:
        assert check_three(
            opened,
            [widened(each, 2**40) for each in three_tables(rng, 60)],
            ("r.x >= s.a", "r.c < s.d"),
            WINDOWS["times"],
            (
                lambda a, b: known(a["x"], b["a"]) and a["x"] >= b["a"],
                lambda a, b, c: known(b["c"], c["d"]) and b["c"] < c["d"],
            ),
        )


def test_wrong_specs_of_three_streams_are_refused(rng):
    r, s, t = (table(rng, 3, "x") for _ in range(3))
    inner = JoinSpec("r.x = s.x", 5, "ts", r.schema, s.schema)
    composites = composite_schema(inner)
    times = (COMPOSITE_TIME, "ts")
    tied = JoinSpec("r.r_x = s.x", 5, times, composites, t.schema, tiebreak=[("r_id", "id")])
    other_time = JoinSpec("r.r_x = s.x", 5, ("r_ts", "ts"), composites, t.schema)
    with open_device(DEVICES["opblock"]) as device:
        session = ChainSession(device)
        with pytest.raises(SpecError, match=r"no tiebreak, because .*, not \(\('r_id', 'id'\),\)"):
            session.join_three(inner, tied, r, s, t)
        with pytest.raises(SpecError, match="outer must be a spec over composite_schema"):
            session.join_three(inner, other_time, r, s, t)
    with open_device(DEVICES["parallel"]) as device:
        with pytest.raises(ParameterError, match="need the architecture opblock, not handshake"):
            ChainSession(device)


def test_more_queries_than_blocks_are_refused(rng):
    r, s = table(rng, 3, "x"), table(rng, 3, "x")
    specs = [JoinSpec("r.x = s.x", 5, "ts", r.schema, s.schema)] * 4
    with open_device(DEVICES["opblock_serial"]) as device:
        with pytest.raises(
            SpecError, match=r"^needs 4 blocks, the device has 3: query 0 a join core; query 1"
        ):
            ChainSession(device).join_all(specs, [spec.arrange(r, s) for spec in specs])


def test_filters_for_which_no_channel_is_left_are_the_hosts(rng):
    r, s = table(rng, 3, "x", "y"), table(rng, 3, "x", "y")
    specs = [JoinSpec("r.x = s.x AND r.y > 3", 5, "ts", r.schema, s.schema)] * 9
    p = Parameters("opblock", 18, 1, 1, dims=(Dimension.parse("band8"),) * 3)
    text = ChainSession(SimpleNamespace(parameters=p, url="sim:opblock")).explain(specs)
    assert "select R where" not in text


def test_explain_lists_all_queries(rng):
    r, s = table(rng, 3, "x", "y"), table(rng, 3, "x", "y")
    specs = [JoinSpec(on, 5, "ts", r.schema, s.schema) for on in ("r.x = s.x AND r.y > 3", "r.y < s.y")]
    with open_device(DEVICES["opblock"]) as device:
        text = ChainSession(device).explain(specs)
    assert text.endswith(
        "block 0: select R where r.y > 3\n"
        "blocks 1 to 3: join cores of query 0, windows of 12 tuples\n"
        "blocks 4 to 5: join cores of query 1, windows of 8 tuples"
    )


def test_a_single_join_has_its_own_tuples_also_where_it_could_share(rng):
    spec = JoinSpec("r.x = s.x", 5, "ts", *[table(rng, 3, "x").schema] * 2)
    text = unopened().explain([spec], shared=True)
    assert "each join has its own tuples: there is one join only" in text
    assert "all joins share their tuples" not in text


@pytest.mark.parametrize(
    "window, how",
    [
        (
            4,
            "-5 <= r.ts - s.ts <= 5: device d1 (band32)\n"
            "r.x = s.d: device d2, R's value\n"
            "r.x + r.c > s.d: host, both members decide it\n"
            "-4 <= r.rs_time - s.ts <= 4: device d3, the later member's time\n"
            "blocks 0 to 2: join cores of query 0, windows of 12 tuples\n"
            "blocks 3 to 5: join cores of query 1, windows of 12 tuples",
        ),
        ("4 rows", "first the pairs:\nr.x = s.a: device d0 (equal32)"),
    ],
)
def test_explain_says_how_three_streams_are_joined(window, how, rng):
    r, s, t = (each.schema for each in three_tables(rng, 3))
    inner = JoinSpec("r.x = s.a", 5, "ts", r, s)
    times = (COMPOSITE_TIME, "ts")
    outer = JoinSpec("r.x = s.d AND r.x + r.c > s.d", window, times, composite_schema(inner), t)
    assert how in unopened().explain_three(inner, outer)


def unopened() -> ChainSession:
    """A session that only plans: six blocks of four tuples."""
    p = Parameters("opblock", 6, 4, 4, dims=(Dimension.parse("band32"),) * 4)
    return ChainSession(SimpleNamespace(parameters=p, url="sim:opblock"))


def test_filters_that_guard_an_expression_are_left_to_the_host():
    """Where `on` would fail on a row that a filter keeps out, the host filters first; else it does fail."""
    r = pa.table({"ts": [1, 2], "x": pa.array([2**31 - 1, 5], pa.int32()), "id": [0, 1]})
    s = pa.table({"ts": [1, 2], "a": pa.array([1, 6], pa.int32()), "id": [0, 1]})
    for on, fine in (("r.x + 1 = s.a AND r.x < 100", True), ("r.x + 1 = s.a AND r.x > 0", False)):
        spec = JoinSpec(on, 5, "ts", r.schema, s.schema)
        with open_device(DEVICES["opblock"]) as device:
            arrivals = spec.arrange(r, s)
            session = Session(device, spec)
            assert "selected" in session.explain()
            if fine:
                assert ids(arrivals, session.join(arrivals)) == Counter([(1, 1)])
            else:
                with pytest.raises(DataError, match="overflows"):
                    session.join(arrivals)


def scaled(rows: pa.Table, scale: int) -> pa.Table:
    """The rows with x and y as 64-bit integers, times `scale`."""
    for name in ("x", "y"):
        values = pc.multiply(rows[name].cast(pa.int64()), scale)
        rows = rows.set_column(rows.column_names.index(name), name, values)
    return rows


def random_filter(rng, side: str, depth: int, scale: int):
    """A condition over one side's x and y as SQL, and as Python over a row, in which None is NULL."""
    if depth and rng.random() < 0.8:
        parts = [random_filter(rng, side, depth - 1, scale) for _ in range(int(rng.integers(1, 4)))]
        every = bool(rng.random() < 0.4)
        negated = bool(rng.random() < 0.3)

        def connected(row):
            values = [part(row) for _, part in parts]
            decided = [value for value in values if value is not None and value != every]
            truth = (not every) if decided else None if None in values else every
            return truth if truth is None else truth != negated

        text = (" AND " if every else " OR ").join(f"({text})" for text, _ in parts)
        return f"{'NOT ' * negated}({text})", connected
    name, low = str(rng.choice(["x", "y"])), int(rng.integers(-1, 9)) * scale
    high = low + int(rng.integers(0, 4)) * scale
    tests = {
        f"= {low}": lambda value: value == low,
        f"<> {low}": lambda value: value != low,
        f"< {low}": lambda value: value < low,
        f">= {low}": lambda value: value >= low,
        f"BETWEEN {low} AND {high}": lambda value: low <= value <= high,
        f"NOT BETWEEN {low} AND {high}": lambda value: not low <= value <= high,
        f"IN ({low}, {high})": lambda value: value in (low, high),
    }
    text = str(rng.choice(list(tests)))
    return f"{side}.{name} {text}", lambda row: None if row[name] is None else tests[text](row[name])


@pytest.mark.parametrize("scale", [1, 2**33])
def test_filters_with_or_are_done_by_blocks(scale, rng, seed):
    """Random conditions over one side; where codes are too wide for the device, the host rechecks."""
    pushed = 0

    def near(a, b):
        return known(a["x"], b["x"]) and abs(a["x"] - b["x"]) <= 2 * scale

    with open_device(f"{DEVICES['opblock']}&stalls={seed},40,60") as device:
        for _ in range(30):
            r, s = (scaled(table(rng, 40, "x", "y", nulls=0.2), scale) for _ in "rs")
            side = str(rng.choice(["r", "s"]))
            text, holds = random_filter(rng, side, 2, scale)
            on = f"r.x BETWEEN s.x - {2 * scale} AND s.x + {2 * scale} AND ({text})"
            spec = JoinSpec(on, 9, "ts", r.schema, s.schema)
            session = Session(device, spec)
            pushed += bool(session._fit.pushed)
            arrivals = spec.arrange(r, s)
            found = ids(arrivals, session.join(arrivals))
            want = steps(r.to_pylist(), s.to_pylist(), 9, 9, near)
            met = [(a["id"], b["id"]) for a, b in want if holds(a if side == "r" else b)]
            assert found == Counter(met), on
    assert pushed > 5


#: A filter of one side over y and z, and as Python over their values.
FILTERS = {
    "(r.y > 5 OR r.z < 2) AND (r.y < 3 OR r.z > 4)": lambda y, z: (
        (y(lambda v: v > 5) or z(lambda v: v < 2)) and (y(lambda v: v < 3) or z(lambda v: v > 4))
    ),
    "(s.y <> 3 OR s.z < 2)": lambda y, z: y(lambda v: v != 3) or z(lambda v: v < 2),
    "(r.y NOT BETWEEN 2 AND 4 OR r.z = 1)": lambda y, z: y(lambda v: not 2 <= v <= 4) or z(lambda v: v == 1),
    "(r.y < 3 OR r.z < 3)": lambda y, z: y(lambda v: v < 3) or z(lambda v: v < 3),
    "(r.y < 3 OR r.z > 5) AND (r.y > 2 OR r.z < 1)": lambda y, z: (
        (y(lambda v: v < 3) or z(lambda v: v > 5)) and (y(lambda v: v > 2) or z(lambda v: v < 1))
    ),
    "(r.y IN (1, 5) OR r.y IS NULL)": lambda y, z: y(lambda v: v in (1, 5)) or not y(lambda v: True),
}


@pytest.mark.parametrize("on", FILTERS)
def test_filters_with_or_where_values_are_null(on, rng):
    """NULL in one alternative leaves the others."""
    side = on.strip("(")[0]
    r, s = (table(rng, 150, "x", "y", "z", span=7, nulls=0.3) for _ in "rs")
    spec = JoinSpec(f"r.x >= s.x AND {on}", 4, "ts", r.schema, s.schema)
    arrivals = spec.arrange(r, s)

    def matches(a, b):
        row = a if side == "r" else b
        y, z = (lambda test, v=row[name]: v is not None and test(v) for name in "yz")
        return known(a["x"], b["x"]) and a["x"] >= b["x"] and FILTERS[on](y, z)

    with open_device(DEVICES["opblock"]) as device:
        session = Session(device, spec)
        assert bool(session._fit.pushed) != ("IS NULL" in on)
        found = ids(arrivals, session.join(arrivals))
    want = Counter((a["id"], b["id"]) for a, b in steps(r.to_pylist(), s.to_pylist(), 4, 4, matches))
    assert found == want and want


def test_a_filter_that_is_pushed_down_is_evaluated_nowhere_else(rng, monkeypatch):
    """The host sends rows that fail it, and rechecks nothing."""
    r, s = table(rng, 60, "x", "y"), table(rng, 60, "x", "y")
    on = "r.x = s.x AND (r.y > 5 OR r.x < 2) AND s.y NOT BETWEEN 2 AND 6"
    spec = JoinSpec(on, 9, "ts", r.schema, s.schema)
    arrivals = spec.arrange(r, s)
    with open_device(DEVICES["opblock"]) as device:
        session = Session(device, spec)
        sent = spec.encode(arrivals, session._fit.pushed)
        monkeypatch.setattr("host.plan.holds", None)
        monkeypatch.setattr("host.spec.holds", None)
        found = ids(arrivals, session.join(arrivals))
    # NULL in y may still be met by the other alternative of R, but never by that of S.
    assert len(sent.points.row) == 60 - r["x"].null_count
    assert len(sent.boxes.row) == sum(known(row["x"], row["y"]) for row in s.to_pylist())

    def matches(a, b):
        fits = known(a["x"], b["x"], b["y"]) and a["x"] == b["x"] and not 2 <= b["y"] <= 6
        return fits and ((known(a["y"]) and a["y"] > 5) or a["x"] < 2)

    want = Counter((a["id"], b["id"]) for a, b in steps(r.to_pylist(), s.to_pylist(), 9, 9, matches))
    assert found == want and want


@pytest.mark.parametrize("span", [20, 2**31 - 1])
def test_coarse_filters_are_rechecked(rng, span):
    """Codes that do not fit 16 bits are made coarser: whatever the device then lets pass is checked again."""
    count = 120
    r, s = table(rng, count, "x", "y", span=span), table(rng, count, "x", "y", span=span)
    middle = span // 2
    other = s["y"].drop_null()[3].as_py()
    on = f"r.x < s.x AND r.y >= {middle} AND s.y <> {other}"
    spec = JoinSpec(on, 8, "ts", r.schema, s.schema)
    with open_device(DEVICES["opblock_serial"]) as device:
        arrivals = spec.arrange(r, s)
        session = Session(device, spec)
        found = ids(arrivals, session.join(arrivals))
        assert session._fit.pushed

    def matches(a, b):
        return (
            known(a["x"], a["y"], b["x"], b["y"]) and a["x"] < b["x"] and a["y"] >= middle and b["y"] != other
        )

    want = steps(r.to_pylist(), s.to_pylist(), 8, 8, matches)
    assert found == Counter((a["id"], b["id"]) for a, b in want)


def test_points_that_share_boxes_through_others_have_codes_of_one_range(rng):
    """Of a chain of four, a is compared with x, x with b, b with y, and so on: all count from one point."""
    r, s = table(rng, 20, "a", "b", "c", "d"), table(rng, 20, "x", "y", "z")
    r = r.set_column(1, "a", pc.add(r["a"], 1000).cast(pa.int32()))
    conditions = ("r.a = s.x AND r.b = s.y AND r.c = s.z", "r.b = s.x AND r.c = s.y AND r.d = s.z")
    specs = [JoinSpec(on, 5, "ts", r.schema, s.schema) for on in conditions]
    arrivals = specs[0].arrange(r, s)
    sharing = Sharing(specs, Parameters("opblock", 8, 16, 16, dims=(Dimension.parse("band32"),) * 6))
    assert not sharing.refused
    points, _ = sharing._gathered([spec.encode(arrivals) for spec in specs], np.arange(20), np.arange(20))
    values = {point for spec in specs for point, _ in spec.made_of()[:3]}
    assert len(values) == 4
    assert len({sharing._range(point, points, 32) for point in values}) == 1
