"""Conformance: every path returns exactly what the three steps return.

    rows -> [ path ] -> pairs
     |                    =
     +----> [ oracle ] -> pairs

A path is an architecture behind an engine, a device or a Spark mode. Rows come from a seed; a
failure prints the one command that repeats it.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from host.choice import STRUCTURES
from host.cpu import CpuSession
from host.device import open_device
from host.panjoin import PanJoinSession
from host.pieces import OUTER, Phase, Pieces
from host.session import Session
from host.spec import JoinSpec
from sim.oracle import Windows, three_steps
from spark_offload.joiner import Where
from spark_offload.shard import ShardedJoin

from .configurations import DEVICES, NETLISTS, parameters
from .spark.shards import END, IDS, Shards, ids, micro_batches

SECOND = 1_000_000


def _near(a, b, by) -> bool:
    return a is not None and b is not None and abs(a - b) <= by


def _both(a, b) -> bool:
    return a is not None and b is not None


#: The condition in SQL, and as Python over two rows, in which NULL joins nothing.
CONDITIONS: dict[str, tuple[str, Callable[[dict, dict], bool]]] = {
    "everything": ("true", lambda r, s: True),
    "equal": ("r.x = s.a", lambda r, s: _near(r["x"], s["a"], 0)),
    "band": ("r.x BETWEEN s.a - 2 AND s.a + 2", lambda r, s: _near(r["x"], s["a"], 2)),
    "two_bands": (
        "r.x BETWEEN s.a - 4 AND s.a + 4 AND r.y BETWEEN s.b - 3. AND s.b + 3.",
        lambda r, s: _near(r["x"], s["a"], 4) and _near(r["y"], s["b"], 3),
    ),
    "moved": ("abs(r.x - s.a) <= 2", lambda r, s: _near(r["x"], s["a"], 2)),
    "less": ("r.x < s.a", lambda r, s: _both(r["x"], s["a"]) and r["x"] < s["a"]),
    "at_least_and_more": (
        "r.x >= s.a AND r.y > s.b",
        lambda r, s: _both(r["x"], s["a"]) and _both(r["y"], s["b"]) and r["x"] >= s["a"] and r["y"] > s["b"],
    ),
    "not_equal": ("r.x <> s.a", lambda r, s: _both(r["x"], s["a"]) and r["x"] != s["a"]),
    "not_between": (
        "r.x NOT BETWEEN s.a - 5 AND s.a + 5",
        lambda r, s: _both(r["x"], s["a"]) and abs(r["x"] - s["a"]) > 5,
    ),
    "string": ("r.k = s.k", lambda r, s: _both(r["k"], s["k"]) and r["k"] == s["k"]),
    "either": (
        "r.x = s.a OR r.y BETWEEN s.b - 2. AND s.b + 2. OR r.k = s.k",
        lambda r, s: (
            _near(r["x"], s["a"], 0)
            or _near(r["y"], s["b"], 2)
            or (_both(r["k"], s["k"]) and r["k"] == s["k"])
        ),
    ),
    "one_sided": (
        "r.x BETWEEN s.a - 4 AND s.a + 4 AND r.y > 6 AND s.b < 12",
        lambda r, s: _near(r["x"], s["a"], 4) and _both(r["y"], s["b"]) and r["y"] > 6 and s["b"] < 12,
    ),
}
#: Windows as they are asked for, and as the oracle takes them, for a device's parameters.
WINDOWS = {
    "time": lambda p: ("4 seconds", Windows("time", 4 * SECOND, 4 * SECOND)),
    "uneven_time": lambda p: (("0 seconds", "9 seconds"), Windows("time", 0, 9 * SECOND)),
    "rows": lambda p: ("5 rows", Windows("rows", 5, 5)),
    "uneven_rows": lambda p: (("0 rows", "17 rows"), Windows("rows", 0, 17)),
    "device": lambda p: (f"{p.capacity} rows", Windows("rows", p.capacity, p.capacity)),
    "larger": lambda p: (f"{2 * p.capacity + 5} rows", Windows("rows", *[2 * p.capacity + 5] * 2)),
}
#: Rows in both streams together, at the edges of the device's segments and windows.
SIZES = {
    "nothing": lambda p: 0,
    "one": lambda p: 1,
    "segment": lambda p: 2 * p.segment + 1,
    "window": lambda p: 2 * p.capacity,
    "windows": lambda p: 5 * p.capacity + 3,
}
STALLS = {"none": (0, 0), "source": (150, 0), "sink": (0, 150), "both": (90, 120)}


@dataclass(frozen=True)
class Problem:
    """Rows and a join, and the pairs of row ids that the oracle finds."""

    r: pa.Table
    s: pa.Table
    spec: JoinSpec
    expected: Counter

    def outer(self, how: str) -> Counter:
        """The pairs, and the rows without a partner beside None."""
        result = self.expected.copy()
        for k, table in enumerate((self.r, self.s)):
            if how in (("left", "right")[k], "full"):
                alone = set(table["id"].to_pylist()) - {pair[k] for pair in self.expected}
                result.update((None, row) if k else (row, None) for row in alone)
        return result


def problem(rng: np.random.Generator, count: int, condition: str, window: str, p, by: str = "") -> Problem:
    """Rows for a condition and a window; with `by`, each key of that column is a problem of its own."""
    on, predicate = CONDITIONS[condition]
    text, windows = WINDOWS[window](p)
    r_count = int(rng.integers(0, count + 1)) if count > 1 else count
    r = _rows(rng, r_count, "x", "y", count)
    s = _rows(rng, count - r_count, "a", "b", count)
    spec = JoinSpec(on, text, "ts", r.schema, s.schema, by=[by] if by else [])

    # The total order, straight from its definition: time, R before S, then the row's own values.
    merged = [(row, side) for side, table in enumerate((r, s)) for row in table.to_pylist()]
    merged.sort(key=lambda item: (item[0]["ts"], item[1], [(v is not None, v) for v in item[0].values()]))
    expected = Counter()
    for key in {row[by] for row, _ in merged} - {None} if by else [None]:
        mine = [(row, side) for row, side in merged if not by or row[by] == key]
        rows = [[row for row, side in mine if side == wanted] for wanted in (0, 1)]
        pairs = three_steps(
            np.array([side for _, side in mine], bool),
            np.array([row["ts"].timestamp() * SECOND for row, _ in mine], np.int64),
            windows,
            lambda i, j, rows=rows: predicate(rows[0][i], rows[1][j]),
        )
        expected.update((rows[0][i]["id"], rows[1][j]["id"]) for i, j in pairs)
    return Problem(r, s, spec, expected)


def _rows(rng: np.random.Generator, count: int, whole: str, real: str, span: int) -> pa.Table:
    """Rows with ties in time, NULLs in every key, and an id that comes last."""
    times = np.sort(rng.integers(0, max(2, span // 2), count)) * SECOND

    def some(values, type):
        return pa.array(values, type, mask=rng.random(count) < 0.08)

    return pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
            whole: some(rng.integers(0, 15, count), pa.int32()),
            real: some(rng.integers(0, 60, count) / 4, pa.float32()),
            "k": some(rng.choice(["", "a", "b", "ab", "é"], count), pa.string()),
            "id": pa.array(rng.permutation(count), pa.int64()),
        }
    ).take(pa.array(rng.permutation(count)))


def _ids(arrivals, result) -> Counter:
    r, s = (
        side.rows["id"].to_numpy()[rows] for side, rows in ((arrivals.r, result.r), (arrivals.s, result.s))
    )
    return Counter(zip(r.tolist(), s.tolist()))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize(
    "device",
    [
        *("parallel", "serial", "paper", "opblock", "opblock_serial"),
        *("bisort", "bisort_serial", "splitjoin", "splitjoin_ordered"),
        *("lowlatency", "lowlatency_keyed", "scalejoin"),
    ],
)
def test_device(device, condition, window, size, seed, rng, monkeypatch):
    _check_device(device, condition, window, size, seed, rng, monkeypatch)


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("device", NETLISTS)
def test_netlist(device, condition, seed, rng, monkeypatch):
    """What synthesis made does what the gateware does; cells are slow, so windows and sizes are drawn."""
    for size in ("segment", "windows"):
        _check_device(device, condition, rng.choice(list(WINDOWS)), size, seed, rng, monkeypatch)


def _check_device(device, condition, window, size, seed, rng, monkeypatch) -> None:
    p = parameters(device)
    monkeypatch.setattr("host.runner.CHUNK", int(rng.choice([7, 1 << 16])))
    given = problem(rng, SIZES[size](p), condition, window, p)
    stalls = STALLS[rng.choice(list(STALLS))]
    with open_device(f"{DEVICES[device]}&stalls={seed},{stalls[0]},{stalls[1]}") as opened:
        arrivals = given.spec.arrange(given.r, given.s)
        result = Session(opened, given.spec).join(arrivals)
    assert _ids(arrivals, result) == given.expected


@pytest.mark.parametrize("stalls", STALLS)
@pytest.mark.parametrize("window", ["time", "uneven_rows", "device", "larger"])
@pytest.mark.parametrize("device", DEVICES)
def test_stalls(device, window, stalls, seed, rng):
    p = parameters(device)
    given = problem(rng, 5 * p.capacity, "two_bands", window, p)
    source, sink = STALLS[stalls]
    with open_device(f"{DEVICES[device]}&stalls={seed},{source},{sink}") as opened:
        arrivals = given.spec.arrange(given.r, given.s)
        result = Session(opened, given.spec).join(arrivals)
    assert _ids(arrivals, result) == given.expected


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("condition", ["two_bands", "either", "everything"])
@pytest.mark.parametrize(
    "device", ["parallel", "paper", "opblock", "bisort", "splitjoin", "lowlatency", "scalejoin"]
)
def test_continuous(device, condition, window, seed, rng):
    """Rows pushed in parts of random size, and polled now and then, give what one batch gives."""
    p = parameters(device)
    given = problem(rng, 6 * p.capacity, condition, window, p)
    found = Counter()
    with open_device(f"{DEVICES[device]}&stalls={seed},60,60") as opened:
        session = Session(opened, given.spec)
        for parts in _parts(given, rng, 3 * p.capacity):
            session.push(*parts)
            if rng.random() < 0.5:
                found.update(_pairs(session.poll()))
        found.update(_pairs(session.poll()))
        assert session.poll().num_rows == 0
        assert session.stats.tuples == given.r.num_rows + given.s.num_rows
    assert found == given.expected


def _parts(given: Problem, rng: np.random.Generator, seconds: int, late: int = 0):
    """The rows of both streams, cut at random times into parts; some rows come up to `late` after theirs."""
    times = np.sort(rng.choice(np.arange(seconds) * SECOND, 7, replace=False))
    at = [table["ts"].cast(pa.int64()).to_numpy() for table in (given.r, given.s)]
    at = [
        time + np.where(rng.random(len(time)) < 0.2, rng.integers(0, late + 1, len(time)), 0) for time in at
    ]
    for after, until in zip([-1, *times], [*times, 10**9 * SECOND]):
        yield [
            table.filter(pa.array((time > after) & (time <= until)))
            for table, time in zip((given.r, given.s), at)
        ]


def _pairs(table: pa.Table):
    return zip(table["r_id"].to_pylist(), table["s_id"].to_pylist())


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("condition", CONDITIONS)
def test_panjoin(condition, window, seed, rng):
    """PanJoin's manager over six devices: all rows at once, and pushed in parts or late."""
    p = parameters("bisort")
    given = problem(rng, 4 * p.capacity, condition, window, p)
    options = {"ranges": bool(rng.integers(2)), "late_buffer": int(rng.choice([0, 2, 64]))}
    late = rng.random() < 0.5
    if late:
        options["lateness"] = "12 seconds"
    found = Counter()
    with ExitStack() as stack:
        devices = [
            stack.enter_context(open_device(f"{DEVICES['bisort']}&stalls={seed + k},40,40")) for k in range(6)
        ]
        session = stack.enter_context(PanJoinSession(given.spec, devices, **options))
        arrivals = given.spec.arrange(given.r, given.s)
        assert _ids(arrivals, session.join(arrivals)) == given.expected
        for parts in _parts(given, rng, 2 * p.capacity, 10 * SECOND if late else 0):
            session.push(*parts)
            if rng.random() < 0.5:
                found.update(_pairs(session.poll()))
        session.finish()
        found.update(_pairs(session.poll()))
        assert session.late == (0, 0)
    assert found == given.expected


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_cpu(structure, condition, window, rng, monkeypatch):
    """The CPU engine, for all rows at once and pushed in parts, with small subwindows."""
    p = parameters("parallel")
    monkeypatch.setattr("host.cpu.BATCH", int(rng.choice([9, 64])))
    monkeypatch.setattr("host.engine.SMALLEST", 8)
    monkeypatch.setattr("host.engine.ALONE", int(rng.choice([0, 8192])))
    monkeypatch.setattr("host.choice.STRIPED_FROM", int(rng.choice([0, 48])))
    monkeypatch.setattr("host.choice.LEAST_IN_STRIPE", 1)
    monkeypatch.setattr("host.bisort.BUFFER", int(rng.choice([1, 16])))
    monkeypatch.setattr("host.bisort.PACKED", int(rng.choice([1, 8192])))
    given = problem(rng, SIZES[rng.choice(list(SIZES))](p), condition, window, p)
    arrivals = given.spec.arrange(given.r, given.s)
    threads = int(rng.integers(1, 3))
    session = CpuSession(given.spec, structure, threads)
    assert _ids(arrivals, session.join(arrivals)) == given.expected
    assert session.count(arrivals) == given.expected.total()
    session = CpuSession(given.spec, structure, threads)
    found = Counter()
    for parts in _parts(given, rng, 4 * p.capacity):
        session.push(*parts)
        found.update(_pairs(session.poll()))
    assert found == given.expected
    assert session.stats.pairs == given.expected.total()


@pytest.mark.parametrize("window", ["time", "uneven_time", "rows", "uneven_rows"])
@pytest.mark.parametrize("how", OUTER)
@pytest.mark.parametrize("device", [None, "parallel", "splitjoin"])
def test_pieces(device, how, window, seed, rng):
    """Joins of every kind, by key and not, of rows that come in pieces, in slices with what they must see."""
    p = parameters(device or "parallel")
    for by in ("", "k"):
        given = problem(rng, 4 * p.capacity, rng.choice(["two_bands", "either"]), window, p, by)
        with open_device(f"{DEVICES[device or 'parallel']}&stalls={seed},60,60") as opened:
            session = Session(opened, given.spec) if device else CpuSession(given.spec, threads=1)
            whole = given.spec.arrange(given.r, given.s)
            places = np.sort(rng.integers(0, len(whole.r.time) + len(whole.s.time) + 1, 2))
            found = Counter()
            for begin, end in pairwise([0, *places, len(whole.r.time) + len(whole.s.time)]):
                pieces = Pieces(given.spec, session.join, how)
                for phase, part in _in_pieces(given.spec, whole, begin, end, how, rng):
                    found.update(_rows_of(pieces.add(part, phase), phase))
                if last := pieces.finish():
                    found.update(_rows_of(last, Phase.AFTER))
        assert found == given.outer(how)


@pytest.mark.parametrize("window", ["time", "uneven_time", "rows", "uneven_rows"])
@pytest.mark.parametrize("how", OUTER)
@pytest.mark.parametrize("device", [None, "parallel", "splitjoin"])
def test_shards(device, how, window, seed, rng):
    """Streaming joins of every kind, by key and not, of rows that come out of order, in micro-batches."""
    p = parameters(device or "parallel")
    where = Where(f"{DEVICES[device]}&stalls={seed},60,60" if device else "cpu:auto")
    for by in ("", "k"):
        given = problem(rng, 4 * p.capacity, rng.choice(["two_bands", "either"]), window, p, by)
        shards = Shards(ShardedJoin(given.spec, int(rng.integers(1, 4)), how, where, IDS))
        # Spark's first watermark is the beginning of 1970, where the rows begin.
        later = [pc.add(table["ts"], pa.scalar(SECOND, pa.duration("us"))) for table in (given.r, given.s)]
        tables = [table.set_column(0, "ts", times) for table, times in zip((given.r, given.s), later)]
        found = Counter()
        for parts, watermark in micro_batches(rng, tables, 4):
            found.update(ids(shards.run(*parts, watermark)))
        found.update(ids(shards.run(*(table.slice(0, 0) for table in tables), END)))
        missing = given.outer(how) - found
        assert not found - given.outer(how) and not shards.metrics["late"]
        # A window of rows has not passed as long as too few rows have come.
        assert all(None in pair for pair in missing) and missing.total() <= shards.state_rows


def _in_pieces(spec, whole, begin: int, end: int, how: str, rng):
    """All rows, cut at random and where the slice begins and ends; those after it only if needed."""
    is_s = np.zeros(len(whole.r.time) + len(whole.s.time), bool)
    is_s[whole.s.place] = True
    cuts = np.unique(np.concatenate([[0, begin, end, len(is_s)], rng.integers(0, len(is_s) + 1, 4)]))
    for first, last in pairwise(cuts):
        phase = Phase.BEFORE if last <= begin else Phase.OWN if last <= end else Phase.AFTER
        if phase is Phase.AFTER and how == "inner":
            return
        tables = []
        for side, mine in ((whole.r, ~is_s), (whole.s, is_s)):
            tables.append(side.rows.slice(np.count_nonzero(mine[:first]), np.count_nonzero(mine[first:last])))
        yield phase, spec.ordered(*tables, is_s[first:last])


def _rows_of(piece, phase) -> Counter:
    """What a piece gives: pairs whose later row is in the slice, and rows without a partner."""
    r, s = (side.rows["id"].to_pylist() for side in (piece.arrivals.r, piece.arrivals.s))
    rows = Counter([(r[i], None) for i in piece.left[0]] + [(None, s[j]) for j in piece.left[1]])
    if phase is Phase.OWN:
        rows.update(_ids(piece.arrivals, piece.pairs))
    return rows


@pytest.mark.parametrize("window", ["time", "uneven_rows", "larger"])
@pytest.mark.parametrize(
    "offload, device, condition",
    [
        ("sim", "default", "two_bands"),
        ("sim", "default", "either"),
        ("sim", "opblock", "one_sided"),
        ("cpu", None, "two_bands"),
        ("sim", "splitjoin", "either"),
        ("sim", "lowlatency", "two_bands"),
        ("sim", "scalejoin", "two_bands"),
        ("cpu", None, "either"),
    ],
)
def test_spark(spark, offload, device, condition, window, rng):
    from spark_offload import stream_join

    p = parameters(device or "default")
    given = problem(rng, 300, condition, window, p)
    joined = stream_join(
        spark.createDataFrame(given.r),
        spark.createDataFrame(given.s),
        on=CONDITIONS[condition][0],
        window=WINDOWS[window](p)[0],
        time="ts",
        offload=offload,
        device=device and DEVICES[device],
        partitions=int(rng.integers(1, 6)),
    )
    assert Counter(_pairs(joined.select("r_id", "s_id").toArrow())) == given.expected


@pytest.mark.parametrize(
    "source, how, by, residual, window",
    [
        ("rows", "full", "k", False, "uneven_rows"),
        ("rows", "right", "", True, "rows"),
        ("rows", "left", "k", True, "time"),
        ("files", "left", "", True, "time"),
        ("files", "full", "k", False, "uneven_time"),
        ("files", "inner", "", False, "time"),
    ],
)
def test_spark_joins_of_every_kind(spark, tmp_path, source, how, by, residual, window, rng):
    """Outer, by key, with a term that Spark evaluates; through a shuffle, or from files that tasks read."""
    from spark_offload.files import FilePlan
    from spark_offload.stream_join import StreamJoin

    p = parameters("default")
    given = problem(rng, 300, "two_bands", window, p, by)
    on = CONDITIONS["two_bands"][0]
    if residual:
        on += " AND concat(r.k, s.k) LIKE 'a%'"
        keys = [dict(zip(t["id"].to_pylist(), t["k"].to_pylist())) for t in (given.r, given.s)]
        starts = {(i, j): _both(keys[0][i], keys[1][j]) for i, j in given.expected}
        kept = [pair for pair in starts if starts[pair] and (keys[0][pair[0]] + keys[1][pair[1]])[:1] == "a"]
        given = replace(given, expected=Counter({pair: given.expected[pair] for pair in kept}))
    frames = [spark.createDataFrame(table) for table in (given.r, given.s)]
    if source == "files":
        for name, table in (("r", given.r), ("s", given.s)):
            pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=int(rng.integers(20, 200)))
        frames = [spark.read.parquet(str(tmp_path / f"{name}.parquet")) for name in "rs"]
    join = StreamJoin(
        *frames,
        on,
        WINDOWS[window](p)[0],
        "ts",
        how=how,
        by=[by] if by else [],
        partitions=int(rng.integers(1, 5)),
    )
    assert isinstance(join._files(), FilePlan) == (source == "files")
    assert Counter(_pairs(join.frame().select("r_id", "s_id").toArrow())) == given.outer(how)
