"""PanJoin's manager over two simulated devices, against all pairs of the definition.

::

    rows --> [ manager ] --> pairs
               |     |          =
            device device    [ oracle ]
"""

from itertools import pairwise

import numpy as np
import pytest

from host.device import open_device
from host.manager import Manager, Tuples
from host.window import Window
from hw.errors import DataError, ParameterError

from ..configurations import DEVICES, parameters

#: The device that conformance tests build too, and the dimensions that its boxes use here.
URL = DEVICES["bisort"]
DIMS = parameters("bisort").dims


@pytest.fixture
def devices(seed):
    opened = [open_device(f"{URL}&stalls={seed + number},40,40") for number in range(2)]
    yield opened
    for device in opened:
        device.close()


def _streams(rng, count: int, span: int = 60, jitter: int = 0) -> list[Tuples]:
    """R and S; times grow by at most 2 from row to row, but for a `jitter`."""
    streams = []
    for side in range(2):
        time = np.cumsum(rng.integers(0, 3, count)) - rng.integers(0, jitter + 1, count)
        low = [rng.integers(0, span, count).astype(np.uint64), rng.integers(0, 9, count).astype(np.uint64)]
        low += [np.zeros(count, np.uint64)] * (len(DIMS) - 2)
        high = [low[0] + rng.integers(0, 9, count).astype(np.uint64), low[1] + np.uint64(4)]
        high += [np.ones(count, np.uint64)] * (len(DIMS) - 2)
        streams.append(Tuples(time, low, high if side else ()))
    return streams


def _expected(r: Tuples, s: Tuples, window: Window) -> np.ndarray:
    """All pairs of rows that the definition gives, as a table of R x S."""
    found = np.ones((len(r.time), len(s.time)), bool)
    for k, dim in enumerate(DIMS):
        found &= dim.contains(r.lo[k][:, None], {"lo": s.lo[k], "hi": s.hi[k]})
    if window.kind == "time":
        age = r.time[:, None] - s.time
        return found & (age >= -window.r) & (age <= window.s)
    order = [np.argsort(side.time, kind="stable") for side in (r, s)]
    index = [np.argsort(by) for by in order]
    before_r = np.searchsorted(np.sort(s.time), r.time, "left")
    before_s = np.searchsorted(np.sort(r.time), s.time, "right")
    return found & (index[0][:, None] >= before_s - window.r) & (index[1] >= before_r[:, None] - window.s)


def _run(manager: Manager, r: Tuples, s: Tuples, rng, parts: int = 6) -> np.ndarray:
    """What the manager finds when rows come in parts, cut where R's and S's times are cut."""
    cuts = np.sort(rng.choice(np.arange(1, len(r.time)), parts - 1, replace=False))
    table = np.zeros((len(r.time), len(s.time)), int)
    for start, end in zip([0, *cuts], [*cuts, len(r.time)]):
        places = np.arange(start, end)
        manager.push(r.take(places), s.take(places))
        if rng.random() < 0.5:
            np.add.at(table, manager.poll(), 1)
    np.add.at(table, manager.poll(last=True), 1)
    assert not len(manager.poll(last=True)[0])
    return table


@pytest.mark.parametrize("ranges", [False, True])
def test_time_windows_with_late_rows(devices, ranges, rng):
    """Rows come out of order; a pair counts once, whichever of its rows came first."""
    r, s = _streams(rng, 150, jitter=6)
    window = Window("time", 15, 9)
    with Manager(devices, window, lateness=10_000, ranges=ranges) as manager:
        # Nothing is late: all subwindows stay, as many as the devices hold.
        few = np.arange(40)
        r, s = r.take(few), s.take(few)
        assert (_run(manager, r, s, rng) == _expected(r, s, window)).all()
        assert manager.late == (0, 0)
        assert set(manager.subwindows["r"]) == {0, 1}


@pytest.mark.parametrize("batch", [None, 3])
@pytest.mark.parametrize("ranges", [False, True])
def test_windows_slide_over_the_devices(devices, ranges, batch, rng):
    """Subwindows are dealt out in turn and expire whole; nothing is lost or found twice."""
    r, s = _streams(rng, 200)
    window = Window("time", 12, 12)
    with Manager(devices, window, ranges=ranges, batch=batch) as manager:
        # In order, but the streams are pushed with different clocks: cut both at the same times.
        times = np.unique(np.concatenate([r.time, s.time]))
        table = np.zeros((200, 200), int)
        for low in range(0, len(times), 40):
            part = times[low : low + 40]
            manager.push(*(side.take(np.flatnonzero(np.isin(side.time, part))) for side in (r, s)))
            np.add.at(table, manager.poll(), 1)
        assert (table == _expected(r, s, window)).all()
        assert manager.late == (0, 0)
        dealt = manager.subwindows["r"]
        assert len(dealt) < 200 // parameters("bisort").segment
        assert all(one != next for one, next in pairwise(dealt))


def test_windows_of_rows(devices, rng):
    """Rows come out of order, and wait until the watermark says which is next."""
    r, s = _streams(rng, 160, jitter=5)
    window = Window("rows", 20, 7)
    table = np.zeros((160, 160), int)
    with Manager(devices, window, lateness=10, ranges=True, span=4) as manager:
        newest = [np.maximum.accumulate(side.time) for side in (r, s)]
        for start in range(-10, 400, 15):
            parts = (np.flatnonzero((times >= start) & (times < start + 15)) for times in newest)
            manager.push(*(side.take(places) for side, places in zip((r, s), parts)))
            np.add.at(table, manager.poll(), 1)
        np.add.at(table, manager.poll(last=True), 1)
        assert manager.late == (0, 0)
    assert (table == _expected(r, s, window)).all()


def test_rows_behind_the_watermark_are_dropped_and_counted(devices):
    def one(time):
        codes = [np.zeros(len(time), np.uint64)] * len(DIMS)
        return np.array(time, np.int64), codes

    with Manager(devices, Window("time", 100, 100), lateness=10) as manager:
        manager.push(Tuples(*one([50])), Tuples(*one([50]), one([50])[1]))
        manager.push(Tuples(*one([39, 40, 60])), Tuples(*one([39]), one([39])[1]))
        r, s = manager.poll()
        assert manager.late == (1, 1)
        assert sorted(zip(r.tolist(), s.tolist())) == [(0, 0), (2, 0), (3, 0)]


def test_refusals(devices):
    window = Window("time", 5, 5)
    with pytest.raises(ParameterError, match="a manager needs at least one device, not 0"):
        Manager([], window)
    with pytest.raises(ParameterError, match="batch must be from 1 to 8, the devices' buffer, not 9"):
        Manager(devices, window, batch=9)
    with pytest.raises(ParameterError, match="lateness must not be negative, not -1"):
        Manager(devices, window, lateness=-1)
    with open_device(DEVICES["parallel"]) as other, pytest.raises(ParameterError, match="not handshake with"):
        Manager([*devices, other], window)
    r, s = _streams(np.random.default_rng(1), 300)
    with (
        Manager(devices, Window("rows", 1000, 1000)) as manager,
        pytest.raises(DataError, match="needs more than 6 subwindows of 8 tuples, which is what 2"),
    ):
        manager.push(r, s)
