"""PanJoin's manager over two simulated devices, against all pairs of the definition.

::

    rows --> [ manager ] --> pairs
               |     |          =
            device device    [ oracle ]
"""

import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from host.device import open_device
from host.manager import Manager, Tuples
from host.window import Window
from hw.errors import DataError, DeviceError, ParameterError
from hw.parameters import Parameters
from hw.socket import Kind
from hw.subwindow_command import Command, encode
from hw.words import pack_control

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


def _delayed(rng, stream: Tuples, most: int) -> tuple[Tuples, np.ndarray]:
    """The tuples as they come if some are up to `most` late, and when each comes."""
    comes = stream.time + np.where(rng.random(len(stream)) < 0.15, rng.integers(0, most + 1, len(stream)), 0)
    order = np.argsort(comes, kind="stable")
    return stream.take(order), comes[order]


@pytest.mark.parametrize("ranges", [False, True])
def test_late_tuples_are_kept_aside(devices, ranges, seed):
    """Late buffers change where tuples are found, not what; with them less is probed."""
    window, lateness = Window("time", 5, 8), 14
    probes = []
    for late_buffer in (0, 1, 64):
        rng = np.random.default_rng(seed)
        (r, r_comes), (s, s_comes) = (_delayed(rng, stream, lateness) for stream in _streams(rng, 150))
        table, most = np.zeros((150, 150), int), 0
        with Manager(
            devices, window, lateness=lateness, late_buffer=late_buffer, ranges=ranges, batch=4
        ) as manager:
            for start in range(0, int(max(r_comes[-1], s_comes[-1])) + 1, 5):
                parts = (
                    np.flatnonzero((comes >= start) & (comes < start + 5)) for comes in (r_comes, s_comes)
                )
                manager.push(*(side.take(places) for side, places in zip((r, s), parts)))
                np.add.at(table, manager.poll(), 1)
                most = max(most, *manager.aside)
            assert manager.late == (0, 0)
            assert (table == _expected(r, s, window)).all()
            assert (most > 0) == (late_buffer > 0)
            probes.append(manager.probes)
    assert probes[2] < probes[0]


def _points(*times: int) -> Tuples:
    """R tuples that meet all of `_boxes`."""
    return Tuples(np.array(times, np.int64), [np.zeros(len(times), np.uint64)] * len(DIMS))


def _boxes(*times: int) -> Tuples:
    """S tuples that meet all of `_points`."""
    points = _points(*times)
    return replace(points, hi=points.lo)


def test_rows_behind_the_watermark_are_dropped_and_counted(devices):
    with Manager(devices, Window("time", 100, 100), lateness=10) as manager:
        manager.push(_points(50), _boxes(50))
        manager.push(_points(39, 40, 60), _boxes(39))
        r, s = manager.poll()
        assert manager.late == (1, 1)
        assert sorted(zip(r.tolist(), s.tolist())) == [(0, 0), (2, 0), (3, 0)]


def test_refusals(devices):
    window = Window("time", 5, 5)
    with pytest.raises(ParameterError, match="a manager needs at least one device, not 0"):
        Manager([], window)
    with pytest.raises(ParameterError, match="batch must be from 1 to 8, the devices' buffer, not 9"):
        Manager(devices, window, batch=9)
    for name in ("lateness", "late_buffer"):
        with pytest.raises(ParameterError, match=f"{name} must not be negative, not -1"):
            Manager(devices, window, **{name: -1})
    with open_device(DEVICES["parallel"]) as other, pytest.raises(ParameterError, match="not handshake with"):
        Manager([*devices, other], window)
    r, s = _streams(np.random.default_rng(1), 300)
    with (
        Manager(devices, Window("rows", 1000, 1000)) as manager,
        pytest.raises(DataError, match="needs more than 6 subwindows of 8 tuples, which is what 2"),
    ):
        manager.push(r, s)
    wide = SimpleNamespace(url="wide", parameters=Parameters.from_options("bisort", {"cores": "16"}))
    with pytest.raises(ParameterError, match="ranges need devices with at most 15 cores, not 16"):
        Manager([wide], window, ranges=True)


def test_ties_across_pushes_are_refused_where_they_matter(devices):
    """Of equal times R comes first, so an R tuple pushed after an S tuple of its time would be misplaced."""
    refusal = re.escape("must have times after that of the newest before them (5) where windows are of rows")
    with Manager(devices, Window("rows", 1, 1)) as manager:
        manager.push(s=_boxes(np.iinfo(np.int64).min, 5, 5))
        for time in (5, 4):
            with pytest.raises(DataError, match=f"{refusal} and lateness is 0, not {time}"):
                manager.push(_points(7, time))
        manager.push(_points(), _boxes())
        manager.push(_points(6))
        # The refused tuples were not counted.
        assert [part.tolist() for part in manager.poll()] == [[0], [2]]
    for window, lateness in ((Window("rows", 1, 1), 1), (Window("time", 0, 0), 0)):
        with Manager(devices, window, lateness=lateness) as manager:
            manager.push(s=_boxes(5))
            manager.push(_points(5))
            assert [part.tolist() for part in manager.poll(last=True)] == [[0], [0]]


def test_times_at_both_ends_of_int64(devices):
    """Differences of times and the ends of windows are exact, however far apart or low the times are."""
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    for apart, found in ((2**63 - 1, True), (2**63, False), (2**64 - 1, False)):
        for size in (100, 2**63 - 1):
            for sides in ((_points(low), _boxes(low + apart)), (_points(low + apart), _boxes(low))):
                with Manager(devices, Window("time", size, size)) as manager:
                    manager.push(*sides)
                    assert len(manager.poll()[0]) == (found and size > 100), (apart, size)
    with Manager(devices, Window("time", high, high)) as manager:
        times = range(low, low + 20)
        manager.push(_points(*times), _boxes(*times))
        assert len(np.unique(manager.poll(), axis=1).T) == 20 * 20


def test_nothing_goes_on_after_a_failure(devices, monkeypatch):
    """Neither after an exchange that fails nor after an ERROR from a device, though the next would work."""
    first = devices[0]
    exchange = first.exchange

    def fails(words, **options):
        raise DeviceError("unplugged")

    def errs(words, **options):
        illegal = pack_control(DIMS, Kind.INSTRUCTION, encode(Command.EXPIRE, "s"))
        return exchange(np.concatenate([illegal, words]), **options)

    for broken, message in ((fails, "unplugged"), (errs, "the device reports ILLEGAL_INSTRUCTION, value")):
        with Manager(devices, Window("time", 5, 5)) as manager:
            manager.push(_points(1), _boxes(1))
            with monkeypatch.context() as patch, pytest.raises(DeviceError, match=message):
                patch.setattr(first, "exchange", broken)
                manager.poll()
            refusal = f"cannot go on after a failure, make a new one: DeviceError: .*{message}"
            for call in (manager.poll, manager.poll, lambda m=manager: m.push(_points(2))):
                with pytest.raises(DeviceError, match=refusal):
                    call()


def test_tuples_of_a_wrong_shape_are_refused(devices):
    r, s, count = _points(1, 2), _boxes(1, 2), len(DIMS)
    short = [*s.lo[:-1], s.lo[-1][:1]]
    each = "one for each dimension of the devices"
    refused = (
        ("r", replace(r, lo=r.lo[1:]), f"lo must be {count} arrays, {each}, not {count - 1}"),
        ("r", s, f"hi must be 0 arrays, because points have lo alone, not {count}"),
        ("r", replace(r, lo=short), f"lo[{count - 1}] must be as long as time (2), not 1"),
        ("s", r, f"hi must be {count} arrays, {each}, not 0"),
        ("s", replace(s, hi=short), f"hi[{count - 1}] must be as long as time (2), not 1"),
        ("s", replace(s, time=s.time.astype(np.uint64)), "time must be int64, not uint64"),
    )
    with Manager(devices, Window("time", 5, 5)) as manager:
        for side, given, message in refused:
            with pytest.raises(DataError, match=re.escape(f"pushed tuples of {side}: {message}")):
                manager.push(**({"r": r, "s": s} | {side: given}))
        manager.push(r, s)
        assert len(manager.poll()[0]) == 4
