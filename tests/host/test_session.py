"""Sessions: windows larger than the device, continuous streams, and devices that go wrong."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from host.device import SimulatedDevice, open_device
from host.runner import Runner
from host.session import Session, Stats
from host.spec import JoinSpec
from hw.errors import DataError, DeviceError
from hw.handshake import Handshake
from hw.parameters import Parameters
from hw.socket import Kind, tuple_layout
from hw.words import pack_control, unpack

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
    steps = (2 * count + p.capacity - p.segment) * p.segment
    assert (stats.tuples, stats.pairs, stats.tiles) == (2 * count, 0, 1)
    assert stats.comparisons == steps * p.cores * p.lanes
    assert stats.stalls == 0
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
            with pytest.raises(DataError) as error:
                session.push(rows([6], x=[1]), s.slice(0, 0))
            assert str(error.value) == message
            # What was refused leaves no trace.
            session.push(rows([8], x=[1]), s.slice(0, 0))
            assert session.poll().num_rows == 2


def test_rows_of_other_columns_are_refused():
    r, s = rows([5], x=[1]), rows([7], a=[1])
    spec = JoinSpec("r.x = s.a", 10, "ts", r.schema, s.schema)
    with open_device(DEVICES["parallel"]) as device:
        session = Session(device, spec)
        with pytest.raises(DataError) as error:
            session.push(r, rows([7], b=[1]))
        assert str(error.value) == (
            "pushed rows of s must have the columns that the join was planned for (ts: int64, a: int64), "
            "not ts: int64, b: int64"
        )
        session.push(r, s)
        assert session.poll().num_rows == 1


def test_waiting_rows_never_outgrow_the_windows():
    """A producer that never polls is held up by the join itself, not by memory running out."""
    p = parameters("parallel")
    r, s = (rows([], **{name: np.array([], np.int64)}) for name in ("x", "a"))
    spec = JoinSpec("r.x = s.a", 3, "ts", r.schema, s.schema)
    with open_device(DEVICES["parallel"]) as device:
        session = Session(device, spec)
        for time in range(200):
            session.push(rows([time], x=[1]), rows([time], a=[1]))
            assert sum(len(new.r.time) + len(new.s.time) for new in session._waiting) < 2 * p.capacity
            assert session._kept is None or session._kept.r.rows.num_rows <= 4
        assert session.poll().num_rows == 200 * 7 - 12


def test_a_result_that_is_an_error_is_reported():
    with open_device(DEVICES["parallel"]) as device:
        strange = pack_control(device.parameters.dims, Kind.MARK)
        strange[0, 0] |= 7
        words = np.concatenate([strange, pack_control(device.parameters.dims, Kind.MARK)])
        exchange = device.exchange(words, marks=1)
        with pytest.raises(DeviceError) as error:
            Runner(device).results(exchange)
        assert str(error.value) == f"{device.url}: the device reports UNKNOWN_KIND, value 7"


def test_explain_says_where_each_dimension_is_decided():
    r, s = rows([], x=np.array([], np.int64)), rows([], a=np.array([], np.int64))
    spec = JoinSpec("r.x = s.a", 3, "ts", r.schema, s.schema)
    with open_device(DEVICES["paper"]) as device:
        text = Session(device, spec).explain()
    assert "r.x = s.a: device d0 (equal32)" in text
    assert "host, no device dimension is free for it" in text


def test_an_error_in_the_middle_leaves_no_tuples_for_the_next_join(monkeypatch):
    """A run is over, and the device empty, before its pairs are rechecked, which may fail."""
    monkeypatch.setattr("host.runner.CHUNK", 16)
    count = 40
    r = rows(range(count), x=pa.array([2**31 - 1] * count, pa.int32()))
    s = rows(range(count), a=pa.array([1] * count, pa.int32()))
    overflowing = JoinSpec("r.x + s.a > 0 AND r.x >= s.a", "12 rows", "ts", r.schema, s.schema)
    with open_device(DEVICES["parallel"]) as device:
        with pytest.raises(DataError, match=r"r.x \+ s.a"):
            Session(device, overflowing).join(overflowing.arrange(r, s))
        fine = JoinSpec("true", "30 rows", "ts", r.schema, s.schema)
        result = Session(device, fine).join(fine.arrange(r, s))
    pairs = set(zip(result.r.tolist(), result.s.tolist()))
    assert len(pairs) == len(result.r) == sum(-30 <= i - j <= 29 for i in range(count) for j in range(count))


def test_a_flush_longer_than_a_million_cycles_is_no_hang():
    """Patience follows from the parameters; a chain that is slow by choice is not stuck."""
    with open_device(DEVICES["parallel"]) as device:
        slow = Parameters(cores=2, segment=1024, lanes=1)
        assert SimulatedDevice.patience(slow) > 2 * Handshake.flush_cycles(slow) > 2_000_000
        assert SimulatedDevice.patience(device.parameters) < 2_000_000


def test_older_rows_do_not_meet_each_other_again():
    """One row after many costs a pass of the window, not a join of the windows."""
    count = 1000
    r, s = (rows(range(count), **{name: np.arange(count)}) for name in ("x", "a"))
    spec = JoinSpec("r.x = s.a", f"{count} rows", "ts", r.schema, s.schema)
    with open_device(DEVICES["parallel"]) as device:
        session = Session(device, spec)
        session.push(r, s)
        assert session.poll().num_rows == count
        first = session.stats
        session.push(rows([count], x=[7]), s.slice(0, 0))
        assert session.poll().num_rows == 1
        assert session.stats.tiles - first.tiles == 1
        assert session.stats.cycles - first.cycles < 2 * count
        assert first.cycles > 20 * count


@pytest.mark.parametrize("window, most", [("11 rows", 1.2), ("12 rows", 1.2), ("1 rows", 1.2)])
def test_windows_close_to_the_device_cost_no_horizons(window, most):
    count = 600
    number = np.arange(count)
    r, s = rows(2 * number, x=2 * number), rows(2 * number + 1, a=2 * (number % (count - 1)) + 1)
    spec = JoinSpec("r.x = s.a", window, "ts", r.schema, s.schema)
    with open_device(DEVICES["parallel"]) as device:
        stats = Session(device, spec).join(spec.arrange(r, s)).stats
    assert stats.cycles / stats.tuples < most


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_horizons_are_the_oldest_that_may_still_be_met(chunk, monkeypatch, rng):
    """Each horizon, against a search of everything that follows it; and the device agrees."""
    monkeypatch.setattr("host.batches.HORIZON_DISTANCE", 1)
    monkeypatch.setattr("host.runner.CHUNK", chunk)
    count = 120
    r, s = (
        rows(np.sort(rng.integers(0, 60, count)), **{name: rng.integers(0, 9, count)}) for name in ("x", "a")
    )
    spec = JoinSpec("r.x BETWEEN s.a AND s.a + 6", 2, "ts", r.schema, s.schema)
    arrivals = spec.arrange(r, s)
    sent = []
    with open_device(DEVICES["default"]) as device:
        exchange = device.exchange
        monkeypatch.setattr(
            device, "exchange", lambda words, **options: sent.append(words) or exchange(words, **options)
        )
        result = Session(device, spec).join(arrivals)
    words = np.concatenate(sent)
    layout = tuple_layout(parameters("default").dims)
    kinds, ids = (unpack(layout, words, name).astype(int) for name in ("kind", "id"))
    encoded = spec.encode(arrivals)
    r_time, s_time = arrivals.r.time[encoded.points.row], arrivals.s.time[encoded.boxes.row]
    horizons = 0
    for at in np.flatnonzero(kinds == Kind.HORIZON_R.value):
        later = s_time[ids[at:][kinds[at:] == Kind.S.value]]
        met = np.flatnonzero(r_time >= later.min() - 2) if len(later) else []
        assert ids[at] <= min(met, default=len(r_time))
        horizons += ids[at] > 0
    for at in np.flatnonzero(kinds == Kind.HORIZON_S.value):
        later = r_time[ids[at:][kinds[at:] == Kind.R.value]]
        met = np.flatnonzero(s_time >= later.min() - 2) if len(later) else []
        assert ids[at] <= min(met, default=len(s_time))
        horizons += ids[at] > 0
    assert horizons > 2
    assert len(result.r) == sum(
        abs(a - b) <= 2 and 0 <= x - y <= 6
        for a, x in zip(arrivals.r.time, arrivals.r.rows["x"].to_numpy())
        for b, y in zip(arrivals.s.time, arrivals.s.rows["a"].to_numpy())
    )


def test_live_evictions_are_an_error():
    r, s = rows([0], x=[1]), rows([0], a=[1])
    spec = JoinSpec("r.x = s.a", 10, "ts", r.schema, s.schema)
    with open_device(DEVICES["parallel"]) as device:
        exchange = device.exchange
        device.exchange = lambda *words, **options: replace(
            exchange(*words, **options), counters={"live_evictions": 3, "steps": 0, "stalls": 0}
        )
        with pytest.raises(DeviceError) as error:
            Session(device, spec).join(spec.arrange(r, s))
    assert str(error.value) == (
        f"{DEVICES['parallel']}: 3 tuples left their window while others could still meet them; accepted: 0"
    )


@pytest.mark.parametrize("value, stalls", [(1, "1,128,0"), (0, "1,0,200")], ids=["input", "output"])
def test_stalls_in_the_url_slow_the_device_down(value, stalls):
    """Without matches the device waits for tuples, with many for its results to be taken."""
    count = 200
    r, s = rows(range(count), x=np.zeros(count, np.int64)), rows(range(count), a=np.full(count, value))
    spec = JoinSpec("r.x = s.a", "3 rows", "ts", r.schema, s.schema)
    cycles = []
    for option in ("", f"&stalls={stalls}"):
        with open_device(DEVICES["parallel"] + option) as device:
            cycles.append(Session(device, spec).join(spec.arrange(r, s)).stats.cycles)
    assert cycles[1] > 1.3 * cycles[0]


def test_stats_of_a_second_join_are_its_own():
    count = 60
    r, s = (rows(range(count), **{name: np.arange(count)}) for name in ("x", "a"))
    spec = JoinSpec("r.x = s.a", "40 rows", "ts", r.schema, s.schema)
    with open_device(DEVICES["parallel"]) as device:
        first, second = (Session(device, spec).join(spec.arrange(r, s)).stats for _ in range(2))
    assert replace(first, cycles=0) == replace(second, cycles=0)  # a reset costs the first some
    assert first.tiles > 1


def test_a_watched_run_shows_every_cycle_with_a_match():
    """With one match per cycle and core at the most, activity counts the pairs."""
    p = parameters("paper")
    count = 100
    r, s = (rows(range(count), **{name: np.arange(count)}) for name in ("x", "a"))
    spec = JoinSpec("r.x = s.a", f"{p.capacity} rows", "ts", r.schema, s.schema)
    with open_device(DEVICES["paper"]) as device:
        result = Session(device, spec).join(spec.arrange(r, s), watch=True)
    assert result.activity.shape[1] == p.cores
    assert result.activity.sum() == len(result.r) == count


@pytest.mark.parametrize("device", ["splitjoin_ordered", "parallel"])
@pytest.mark.parametrize("window", [4, 60])
def test_ordered_sessions_go_by_both_arrivals(device, window, rng):
    """Whatever the device, and whether the windows fit it or not; in a batch and pushed in parts."""
    count = 120
    r, s = (
        rows(np.sort(rng.integers(0, 90, count)), **{name: rng.integers(0, 4, count)}) for name in ("x", "a")
    )
    r, s = (table.append_column("n", pa.array(np.arange(count))) for table in (r, s))
    spec = JoinSpec("r.x = s.a", window, "ts", r.schema, s.schema)
    arrivals = spec.arrange(r, s)
    r_place, s_place = (
        dict(zip(side.rows["n"].to_pylist(), side.place.tolist())) for side in (arrivals.r, arrivals.s)
    )

    def in_order(pairs):
        keys = [sorted((r_place[i], s_place[j]), reverse=True) for i, j in pairs]
        return keys == sorted(keys) and len(keys) > 50

    with open_device(DEVICES[device]) as opened:
        result = Session(opened, spec, ordered=True).join(arrivals)
        numbers = (
            side.rows["n"].to_numpy()[found].tolist()
            for side, found in ((arrivals.r, result.r), (arrivals.s, result.s))
        )
        whole = list(zip(*numbers))
        assert in_order(whole)
        session, polled = Session(opened, spec, ordered=True), []
        for start in range(0, 90, 30):
            later = pc.field("ts") >= start
            session.push(*(table.filter(later & (pc.field("ts") < start + 30)) for table in (r, s)))
            table = session.poll()
            polled += zip(table["r_n"].to_pylist(), table["s_n"].to_pylist())
    assert polled == whole


def test_a_broken_promise_of_order_is_an_error():
    count = 12
    r, s = rows(range(count), x=np.zeros(count, np.int64)), rows(range(count), a=np.zeros(count, np.int64))
    spec = JoinSpec("r.x = s.a", "3 rows", "ts", r.schema, s.schema)
    with open_device(DEVICES["splitjoin_ordered"]) as device:
        exchange = device.exchange

        def swapped(*words, **options):
            answer = exchange(*words, **options)
            order = np.arange(len(answer.results))
            order[[4, 5]] = 5, 4
            return replace(answer, results=answer.results[order])

        device.exchange = swapped
        with pytest.raises(DeviceError) as error:
            Session(device, spec).join(spec.arrange(r, s))
    assert str(error.value).startswith(
        f"{DEVICES['splitjoin_ordered']}: results must come in the order comparisons:1, but pair 5 of "
    )
