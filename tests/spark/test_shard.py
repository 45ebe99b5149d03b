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
from sim.oracle import Windows, three_steps
from spark_offload import chunks
from spark_offload.shard import ShardedJoin

from .shards import Shards

SECOND = 1_000_000
ON = "r.x BETWEEN s.a - 2 AND s.a + 2"
WINDOWS = {
    "3 seconds": Windows("time", 3 * SECOND, 3 * SECOND),
    ("0 seconds", "5 seconds"): Windows("time", 0, 5 * SECOND),
    "4 rows": Windows("rows", 4, 4),
    ("0 rows", "9 rows"): Windows("rows", 0, 9),
    "1000 rows": Windows("rows", 1000, 1000),
}
#: A watermark, in milliseconds, that has passed everything.
END = 10**9


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


def expected(r: pa.Table, s: pa.Table, windows: Windows, how: str, by: bool) -> Counter:
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


def ids(rows: pa.Table) -> Counter:
    """Results as pairs of ids."""
    sides = [[row and row["id"] for row in rows[side].to_pylist()] for side in "rs"]
    return Counter(zip(*sides))


def micro_batches(rng: np.random.Generator, tables: list[pa.Table], count: int):
    """Rows as they come, up to 3 seconds late, and the highest watermark at which all are in time."""
    at = [table["ts"].cast(pa.int64()).fill_null(0).to_numpy() for table in tables]
    comes = [time + rng.integers(0, 3 * SECOND, len(time)) for time in at]
    cuts = [*np.sort(rng.integers(2 * SECOND, 30 * SECOND, count - 1)).tolist(), 40 * SECOND]
    last, watermark = -1, 0
    for cut in cuts:
        to_come = [time[(come > last) & (time > 0)] for time, come in zip(at, comes)]
        earliest = min((int(times.min()) for times in to_come if len(times)), default=None)
        if earliest is not None:
            watermark = max(watermark, int(rng.integers(0, (earliest - 1) // 1000 + 1)))
        yield (
            [table.filter(pa.array((come > last) & (come <= cut))) for table, come in zip(tables, comes)],
            watermark,
        )
        last = cut


@pytest.mark.parametrize("by", [False, True])
@pytest.mark.parametrize("how", OUTER)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_any_micro_batches_give_what_the_oracle_gives(window, how, by, rng, monkeypatch):
    """Workers that forget, attempts that fail and are repeated, and chunks of any size change nothing."""
    monkeypatch.setattr(chunks, "CHUNK_ROWS", int(rng.choice([1, 8, 4096])))
    r, s = stream(rng, "x", 70), stream(rng, "a", 60)
    spec = JoinSpec(ON, window, "ts", r.schema, s.schema, by=["k"] if by else [])
    shards = Shards(ShardedJoin(spec, int(rng.integers(1, 5)), how))
    found = Counter()
    for parts, watermark in micro_batches(rng, [r, s], 7):
        if rng.random() < 0.3:
            chunks._seen.clear()
        if rng.random() < 0.3:
            shards.fail(*parts, watermark)
        found.update(ids(shards.run(*parts, watermark)))
    nothing = r.slice(0, 0), s.slice(0, 0)
    found.update(ids(shards.run(*nothing, END)))
    whole = expected(r, s, WINDOWS[window], how, by)
    undated = sum(table["ts"].null_count for table in (r, s))
    assert shards.metrics["late"] == 0
    assert shards.metrics["undated"] == undated
    assert shards.metrics["tuples"] == 130 - undated
    assert shards.metrics["pairs"] == sum(count for pair, count in whole.items() if None not in pair)
    if WINDOWS[window].kind == "time":
        assert found == whole
        assert shards.state_rows == 0
    else:
        # A window of rows passes only when enough rows have come.
        assert not found - whole
        assert all(None in pair for pair in whole - found)
        assert (whole - found).total() <= shards.state_rows
