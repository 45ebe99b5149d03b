"""Sessions on the CPU: late rows, rows by column, memory, and kernels that are compiled once."""

import os
import subprocess
import sys
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest

from host.cpu import CpuSession, open_cpu
from host.spec import JoinSpec
from hw.errors import DataError, ParameterError
from sim.oracle import Windows, three_steps


def rows(times, **columns) -> pa.Table:
    return pa.table({"ts": pa.array(np.asarray(times, np.int64)), **columns})


def spec_for(r, s, window, on="r.x BETWEEN s.a - 2 AND s.a + 2") -> JoinSpec:
    return JoinSpec(on, window, "ts", r.schema, s.schema)


@pytest.mark.parametrize("window, kind, size", [(30, "time", 30), ("12 rows", "rows", 12)])
@pytest.mark.parametrize("on", ["r.x BETWEEN s.a - 2 AND s.a + 2", "r.x = s.a OR r.x = s.a + 1"])
def test_rows_out_of_order(window, kind, size, on, rng):
    """Rows up to `lateness` behind the newest give what they give in order; later ones are counted."""
    count, lateness = 400, 25
    tables = []
    for name in "xa":
        # No two rows have the same time, so the order among them is known.
        times = np.arange(count) * 4 + rng.integers(0, 2, count) + (2 if name == "a" else 0)
        tables.append(rows(times, **{name: rng.integers(0, 20, count), "id": np.arange(count)}))
    spec = spec_for(*tables, window, on)
    session = CpuSession(spec, lateness=lateness)
    arrival = np.argsort(
        np.concatenate([table["ts"].to_numpy() for table in tables]) + rng.integers(0, 60, 2 * count)
    )
    newest, accepted, late, found = None, ([], []), [0, 0], Counter()
    for part in np.array_split(arrival, 37):
        new = []
        for k, mine in enumerate((part[part < count], part[part >= count] - count)):
            table = tables[k].take(pa.array(mine))
            new.append(table)
            on_time = table["ts"].to_numpy() >= (-(10**9) if newest is None else newest - lateness)
            accepted[k].extend(mine[on_time].tolist())
            late[k] += int((~on_time).sum())
        session.push(*new)
        newest = max([newest or 0, *(table["ts"].to_numpy().max(initial=0) for table in new)])
        found.update(_pairs(session.poll()))
    session.finish()
    found.update(_pairs(session.poll()))
    assert session.late == tuple(late) and min(late) > 0
    assert f"behind the watermark: {late[0]} rows of R and {late[1]} of S, dropped" in session.explain()
    kept = [tables[k].take(pa.array(sorted(accepted[k]))) for k in range(2)]
    time = np.concatenate([table["ts"].to_numpy() for table in kept])
    order = np.argsort(time)
    is_s = np.repeat([False, True], [table.num_rows for table in kept])[order]
    x, a = kept[0]["x"].to_numpy(), kept[1]["a"].to_numpy()

    def matches(i, j):
        return abs(x[i] - a[j]) <= 2 if "OR" not in on else x[i] - a[j] in (0, 1)

    pairs = three_steps(is_s, time[order], Windows(kind, size, size), matches)
    ids = [table["id"].to_pylist() for table in kept]
    assert found == Counter((ids[0][i], ids[1][j]) for i, j in pairs)


def test_late_rows_are_refused_without_lateness():
    r, s = rows([5], x=[1]), rows([7], a=[1])
    session = CpuSession(spec_for(r, s, 10))
    session.push(r, s)
    with pytest.raises(DataError) as error:
        session.push(rows([6], x=[1]), s.slice(0, 0))
    assert str(error.value) == (
        "pushed rows must have times at or after that of the newest row before them (7), not 6"
    )
    session.push(rows([8], x=[1]), s.slice(0, 0))
    assert session.poll().num_rows == 2


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"structure": "hash"},
            "structure must be one of auto, bisort, levels, rap_table, wib_tree, nested, not 'hash'",
        ),
        ({"threads": 0}, "threads must be a positive integer or None, not 0"),
    ],
)
def test_bad_parameters(options, message):
    r, s = rows([5], x=[1]), rows([7], a=[1])
    with pytest.raises(ParameterError) as error:
        CpuSession(spec_for(r, s, 10), **options)
    assert str(error.value) == message


def test_rows_by_column(rng):
    r = rows(np.arange(500), x=rng.integers(0, 50, 500), z=[f"row {k}" for k in range(500)])
    s = rows(np.arange(500), a=rng.integers(0, 50, 500))
    spec = spec_for(r, s, 20)
    session, arrivals = CpuSession(spec, threads=2), spec.arrange(r, s)
    result = session.join(arrivals)
    table = session.rows(arrivals, ["z", "ts"], ["ts", "a"])
    assert table.column_names == ["z", "r_ts", "s_ts", "a"]
    expected = Counter(
        (f"row {i}", i, j, int(s["a"][j].as_py())) for i, j in zip(result.r.tolist(), result.s.tolist())
    )
    assert Counter(zip(*(column.to_pylist() for column in table.columns))) == expected
    assert (
        session.rows(
            arrivals.__class__(*(_empty(side) for side in (arrivals.r, arrivals.s))), ["z"], ["a"]
        ).num_rows
        == 0
    )


def _empty(side):
    from dataclasses import replace

    none = {name: getattr(side, name)[:0] for name in ("time", "index", "before", "own")}
    return replace(side, rows=side.rows.slice(0, 0), **none)


def test_explain_names_the_choice(rng):
    r = rows(np.arange(3000), x=rng.integers(0, 5000, 3000), y=rng.integers(0, 3, 3000))
    s = rows(np.arange(3000), a=rng.integers(0, 5000, 3000), b=rng.integers(0, 3, 3000))
    for on in (
        "r.y = s.b AND r.x BETWEEN s.a - 2 AND s.a + 2",
        "r.x BETWEEN s.a - 2 AND s.a + 2 AND r.y = s.b",
    ):
        spec = spec_for(r, s, 1000, on)
        session = open_cpu("cpu:auto", spec, 1)
        assert "dimensions and structure are chosen when rows come" in session.explain()
        session.push(r, s)
        (key,) = (k for k, dim in enumerate(spec.dimensions) if "r.x" in dim.text)
        assert f"sorted by dimension {key}" in session.explain()
        assert "newest levels: batches of 3000 rows pay for sorting" in session.explain()
        used, encoded = session.memory
        assert encoded <= used <= 1.25 * encoded


def test_nothing_is_chosen_for_nothing(rng):
    """Pushes without rows, also where a new choice is due, leave the order as it is."""
    count = 1100
    r = rows(np.arange(count), x=rng.integers(0, 50, count), y=rng.integers(0, 5000, count))
    s = rows(np.arange(count), a=rng.integers(0, 50, count), b=rng.integers(0, 5000, count))
    spec = spec_for(r, s, 8000, "r.x BETWEEN s.a - 9 AND s.a + 9 AND r.y BETWEEN s.b - 9 AND s.b + 9")
    session = open_cpu("cpu:auto", spec, 1)
    for start in range(0, count, 100):  # the last begins a subwindow
        session.push(r.slice(start, 100), s.slice(start, 100))
    (key,) = (k for k, dim in enumerate(spec.dimensions) if "r.y" in dim.text)
    told = session.explain()
    assert f"sorted by dimension {key}" in told and "2 subwindows" in told
    session.push(r.slice(0, 0), s.slice(0, 0))
    assert session.explain() == told


def test_a_second_process_does_not_compile(tmp_path):
    code = (
        "import numpy as np; from host.rap_table import adjusted; one = np.ones(4, np.int64); "
        "adjusted(one, one.astype(np.uint64), one.astype(np.uint64), 4); "
        "stats = adjusted.stats; print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))"
    )
    environment = os.environ | {"TOUCHLINE_CACHE": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    for wanted in ("0 1", "1 0"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=300,
            env=environment,
            check=True,
        )
        assert done.stdout.strip() == wanted
    assert any((tmp_path / "kernels").iterdir())


def _pairs(table: pa.Table):
    return zip(table["r_id"].to_pylist(), table["s_id"].to_pylist())
