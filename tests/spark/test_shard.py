"""Shards of a streaming join give what the oracle gives, however rows come, and whatever fails on the way.

::

    rows -> micro-batches, out of order -> [ shards, state in memory ] -> results
     |                                                                       =
     +--------------------------> [ three steps ] --------------------> results
"""

from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from host.pieces import OUTER
from host.spec import JoinSpec
from hw.errors import DataError
from sim.oracle import Windows, three_steps
from spark_offload import chunks
from spark_offload.joiner import Where
from spark_offload.shard import ShardedJoin

from .shards import END, IDS, SECOND, Shards, ids, micro_batches

ON = "r.x BETWEEN s.a - 2 AND s.a + 2"
#: A term that only Spark can evaluate, and what it says.
ODD = "(r.id + s.id) % 2 = 1"


def odd(r: np.ndarray | int, s: np.ndarray | int) -> np.ndarray | bool:
    return (r + s) % 2 == 1


WINDOWS = {
    "3 seconds": Windows("time", 3 * SECOND, 3 * SECOND),
    ("0 seconds", "5 seconds"): Windows("time", 0, 5 * SECOND),
    "4 rows": Windows("rows", 4, 4),
    ("0 rows", "9 rows"): Windows("rows", 0, 9),
    "1000 rows": Windows("rows", 1000, 1000),
}


def stream(rng: np.random.Generator, value: str, count: int) -> pa.Table:
    """Rows with ties in time, NULLs, a key, and an id that comes last."""
    ts = rng.integers(4, 60, count) * (SECOND // 2)
    return pa.table(
        {
            "ts": pa.array(ts, pa.timestamp("us", tz="UTC"), mask=rng.random(count) < 0.03),
            value: pa.array(rng.integers(0, 12, count), pa.int32(), mask=rng.random(count) < 0.05),
            "k": pa.array(rng.choice(["", "a", "b", "é"], count), mask=rng.random(count) < 0.05),
            "id": pa.array(rng.permutation(count), pa.int64()),
        }
    )


def expected(r: pa.Table, s: pa.Table, windows: Windows, how: str, by: bool, residual: bool) -> Counter:
    """The results that the three steps give for rows that are all in time, key by key if windows are so."""
    keys = {None} if not by else {*r["k"].to_pylist(), *s["k"].to_pylist()}
    found = Counter()
    for key in keys:
        merged = [
            (row, side)
            for side, table in enumerate((r, s))
            for row in table.to_pylist()
            if row["ts"] is not None and (not by or row["k"] == key)
        ]
        merged.sort(key=lambda item: (item[0]["ts"], item[1], [(v is not None, v) for v in item[0].values()]))
        rows = [[row for row, side in merged if side == wanted] for wanted in (0, 1)]

        def near(i, j, rows=rows):
            a, b = rows[0][i], rows[1][j]
            if by and (a["k"] is None or a["k"] != b["k"]):
                return False
            if residual and not odd(a["id"], b["id"]):
                return False
            return a["x"] is not None and b["a"] is not None and abs(a["x"] - b["a"]) <= 2

        times = np.array([row["ts"].timestamp() * SECOND for row, _ in merged], np.int64)
        pairs = three_steps(np.array([side for _, side in merged], bool), times, windows, near)
        found.update((rows[0][i]["id"], rows[1][j]["id"]) for i, j in pairs)
    partners = [{pair[k] for pair in found} for k in range(2)]
    for k, table in enumerate((r, s)):
        if OUTER[how][k]:
            single = set(table["id"].to_pylist()) - partners[k]
            found.update((row, None) if k == 0 else (None, row) for row in single)
    return found


@pytest.mark.parametrize("by", [False, True])
@pytest.mark.parametrize(
    "how, residual", [*((how, False) for how in OUTER), *((how, True) for how in OUTER if how != "inner")]
)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_any_micro_batches_give_what_the_oracle_gives(window, how, residual, by, rng, monkeypatch):
    """Workers that forget, attempts that fail and are repeated, and chunks of any size change nothing."""
    monkeypatch.setattr(chunks, "CHUNK_ROWS", int(rng.choice([1, 8, 4096])))
    r, s = stream(rng, "x", 70), stream(rng, "a", 60)
    on = f"{ON} AND {ODD}" if residual else ON
    spec = JoinSpec(on, window, "ts", r.schema, s.schema, by=["k"] if by else [], residual=residual)
    shards = Shards(ShardedJoin(spec, int(rng.integers(1, 5)), how, Where("cpu:auto"), IDS), odd)
    found = Counter()
    for parts, watermark in micro_batches(rng, [r, s], 7):
        if rng.random() < 0.3:
            chunks._seen.clear()
        if rng.random() < 0.3:
            shards.fail(*parts, watermark)
        found.update(ids(shards.run(*parts, watermark)))
    nothing = r.slice(0, 0), s.slice(0, 0)
    found.update(ids(shards.run(*nothing, END)))
    whole = expected(r, s, WINDOWS[window], how, by, residual)
    undated = sum(table["ts"].null_count for table in (r, s))
    assert shards.metrics["late"] == 0
    assert shards.metrics["undated"] == undated
    assert shards.metrics["tuples"] == 130 - undated
    if not residual:  # otherwise Spark counts them
        assert shards.metrics["pairs"] == sum(count for pair, count in whole.items() if None not in pair)
    # Settlers know each row that had a partner once, and only while it is in its window.
    numbers = shards.settled_numbers()
    assert len(numbers) == len(set(numbers)) <= shards.state_rows
    if WINDOWS[window].kind == "time":
        assert found == whole
        assert shards.state_rows == 0
    else:
        # A window of rows passes only when enough rows have come.
        assert not found - whole
        assert all(None in pair for pair in whole - found)
        assert (whole - found).total() <= shards.state_rows


def join_of(window="3 seconds", shards=2, how="inner", device="cpu:auto", on=ON, **options) -> ShardedJoin:
    """A join of the streams of `stream`."""
    r, s = (stream(np.random.default_rng(1), value, 1) for value in "xa")
    spec = JoinSpec(on, window, "ts", r.schema, s.schema, **options)
    return ShardedJoin(spec, shards, how, Where(device), IDS)


def test_rows_that_nothing_orders(rng):
    """Shards agree on the numbers of rows that differ only in what has no order."""
    tables = []
    for value in "xa":
        some = [[("id", k)] for k in range(8)]
        columns = {"ts": pa.array([SECOND] * 8, pa.timestamp("us", tz="UTC")), value: pa.array([1] * 8)}
        tables.append(pa.table(columns | {"m": pa.array(some, pa.map_(pa.string(), pa.int64()))}))
    spec = JoinSpec("r.x = s.a", "1 second", "ts", *(table.schema for table in tables), tiebreak=[("x", "a")])
    shards = Shards(ShardedJoin(spec, 3, "inner", Where("cpu:auto"), (("m",), ("m",))))
    rows = shards.run(*tables, 0)
    found = Counter(zip(*([row[0][1] for row in rows[side].to_pylist()] for side in "rs")))
    assert found == Counter({(r, s): 1 for r in range(8) for s in range(8)})


def test_late_rows(rng):
    """A row at the watermark of its micro-batch is late, one a microsecond after it is not."""
    r, s = (stream(rng, value, 3).drop_columns("ts") for value in "xa")
    times = pa.array([5_000_000, 5_000_001, None], pa.timestamp("us", tz="UTC"))
    r, s = (table.add_column(0, "ts", times) for table in (r, s))
    shards = Shards(join_of(on="true", shards=3))
    assert ids(shards.run(r, s, 5_000)).total() == 1
    assert shards.metrics["late"] == 2 and shards.metrics["undated"] == 2 and shards.metrics["tuples"] == 2


def test_state_is_bounded(rng):
    """What has left its window leaves the state store, chunk by chunk."""
    shards = Shards(join_of("1 second", how="full"))
    rows = []
    for k in range(12):
        parts = [
            pa.table(
                {
                    "ts": pa.array(
                        k * SECOND + np.sort(rng.integers(1, SECOND, 50)), pa.timestamp("us", tz="UTC")
                    ),
                    **{name: part[name] for name in part.column_names[1:]},
                }
            )
            for part in (stream(rng, value, 50) for value in "xa")
        ]
        shards.run(*parts, 1000 * k)
        rows.append(shards.state_rows)
    # Two seconds of both streams, and what shares a chunk with that.
    assert max(rows) == max(rows[3:6]) <= 400
    keys = [len(shards.tester.peekMapState("chunks", key)) for key in shards.keys]
    assert max(keys) <= 4 * 3


@pytest.mark.parametrize(
    "other, message",
    [
        ({"shards": 3}, "shards 2, not 3"),
        ({"window": "4 seconds"}, "window ['time', 3000000, 3000000], not ['time', 4000000, 4000000]"),
        ({"how": "left"}, "how 'inner', not 'left'"),
        ({"on": "r.x = s.a"}, f"on {ON!r}, not 'r.x = s.a'"),
        ({"by": ["k"]}, "by [], not [['k', 'k']]"),
        ({"timezone": "Asia/Tokyo"}, "time zone 'UTC', not 'Asia/Tokyo'"),
    ],
)
def test_another_join_on_the_same_checkpoint(rng, other, message):
    tables = stream(rng, "x", 5), stream(rng, "a", 5)
    shards = Shards(join_of())
    shards.run(*tables, 0)
    state = shards.tester.handle
    shards = Shards(join_of(**other))
    shards.tester.handle.value_states, shards.tester.handle.map_states = state.value_states, state.map_states
    shards.tester.processor.init(shards.tester.handle)
    for kept in (*state.value_states.values(), *state.map_states.values()):
        kept.handle = shards.tester.handle
    with pytest.raises(DataError) as caught:
        shards.run(*tables, 0)
    assert str(caught.value) == (
        f"the checkpoint is of a join with {message}; go on with that one, or give a new checkpointLocation"
    )
