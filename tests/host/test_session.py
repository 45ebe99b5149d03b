"""Sessions: windows larger than the device, continuous streams, and devices that go wrong."""

import numpy as np
import pyarrow as pa
import pytest

from host.device import open_device
from host.session import Session, Stats
from host.spec import JoinSpec
from hw.errors import DataError, DeviceError
from hw.socket import Kind
from hw.words import pack_control

from ..configurations import DEVICES, parameters


def rows(times, **columns) -> pa.Table:
    return pa.table({"ts": pa.array(np.asarray(times, np.int64)), **columns})


def test_a_thousand_probes_against_a_window_of_a_hundred_thousand(rng):
    """The device holds 128 tuples of each stream; one side stays in it, the other goes past."""
    assert parameters("default").capacity == 128
    r = rows(np.full(1000, 1), x=rng.integers(0, 3000, 1000))
    s = rows(np.zeros(100_000), a=rng.integers(0, 3000, 100_000))
    spec = JoinSpec("r.x BETWEEN s.a - 1 AND s.a + 1", "100000 rows", "ts", r.schema, s.schema)
    with open_device(DEVICES["default"]) as device:
        arrivals = spec.arrange(r, s)
        result = Session(device, spec).join(arrivals)
    assert result.stats.tiles == 8
    x, a = arrivals.r.rows["x"].to_numpy(), arrivals.s.rows["a"].to_numpy()
    order = np.argsort(a, kind="stable")
    first, last = (np.searchsorted(a[order], x + by, side) for by, side in ((-1, "left"), (1, "right")))
    expected = np.stack(
        [
            np.repeat(np.arange(1000), last - first),
            np.concatenate([order[begin:end] for begin, end in zip(first, last)]),
        ]
    )
    got = np.stack([result.r, result.s])
    assert (got[:, np.lexsort(got)] == expected[:, np.lexsort(expected)]).all()
    assert result.stats.pairs == expected.shape[1]


def test_stats_count_the_papers_configuration():
    """A window of exactly the device's size slides through once, a comparison per core, lane and step."""
    p = parameters("paper")
    count = 3 * p.capacity
    number = np.arange(count)
    # Keys of R are even, those of S odd and within the same range: all are sent, and none match.
    r, s = rows(2 * number, x=2 * number), rows(2 * number + 1, a=2 * (number % (count - 1)) + 1)
    spec = JoinSpec("r.x = s.a", f"{p.capacity} rows", "ts", r.schema, s.schema)
    with open_device(DEVICES["paper"]) as device:
        session = Session(device, spec)
        stats = session.join(spec.arrange(r, s)).stats
    steps = (2 * count + p.capacity) * p.segment
    assert (stats.tuples, stats.pairs, stats.tiles) == (2 * count, 0, 1)
    assert stats.comparisons == steps * p.cores * p.lanes
    assert stats.live_evictions == 0 and stats.stalls == 0
    assert session.stats == stats


def test_stats_add_up():
    assert Stats(1, 2, 3) + Stats(tuples=10, tiles=1) == Stats(11, 2, 3, tiles=1)


def test_late_rows_are_refused_by_name():
    r, s = rows([5], x=[1]), rows([7], a=[1])
    for window, message in (
        (10, "pushed rows must have times at or after that of the newest row before them (7), not 6"),
        ("10 rows", "pushed rows must have times after that of the newest row before them (7), not 6"),
    ):
        spec = JoinSpec("r.x = s.a", window, "ts", r.schema, s.schema)
        with open_device(DEVICES["parallel"]) as device:
            session = Session(device, spec)
            session.push(r, s)
            assert session.poll().num_rows == 1
            session.push(rows([6], x=[1]), s.slice(0, 0))
            with pytest.raises(DataError) as error:
                session.poll()
        assert str(error.value) == message


def test_waiting_rows_never_outgrow_the_windows():
    """A producer that never polls is held up by the join itself, not by memory running out."""
    p = parameters("parallel")
    r, s = (rows([], **{name: np.array([], np.int64)}) for name in ("x", "a"))
    spec = JoinSpec("r.x = s.a", 3, "ts", r.schema, s.schema)
    with open_device(DEVICES["parallel"]) as device:
        session = Session(device, spec)
        for time in range(200):
            session.push(rows([time], x=[1]), rows([time], a=[1]))
            assert sum(a.num_rows + b.num_rows for a, b in session._waiting) < 2 * p.capacity
            assert session._kept is None or session._kept.r.rows.num_rows <= 4
        assert session.poll().num_rows == 200 * 7 - 12


def test_a_result_that_is_an_error_is_reported():
    with open_device(DEVICES["parallel"]) as device:
        strange = pack_control(device.parameters.dims, Kind.MARK)
        strange[0, 0] |= 7
        words = np.concatenate([strange, pack_control(device.parameters.dims, Kind.MARK)])
        exchange = device.exchange(words, marks=1)
        spec = JoinSpec("true", 1, "ts", rows([]).schema, rows([]).schema)
        with pytest.raises(DeviceError) as error:
            Session(device, spec)._pairs_of(exchange)
        assert str(error.value) == f"{device.url}: the device reports UNKNOWN_KIND, value 7"


def test_explain_says_where_each_dimension_is_decided():
    r, s = rows([], x=np.array([], np.int64)), rows([], a=np.array([], np.int64))
    spec = JoinSpec("r.x = s.a", 3, "ts", r.schema, s.schema)
    with open_device(DEVICES["paper"]) as device:
        text = Session(device, spec).explain()
    assert "r.x = s.a: device d0 (equal32)" in text
    assert "host, no device dimension is free for it" in text
