"""The CPU engine against the oracle: any dimensions, batches and structures; its memory and its choices.

points, boxes -> batches -> [ engine, one structure ] -> pairs
      |                                                   =
      +---------------------> [ point in box ] ------> pairs
"""

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from numba.core.errors import TypingError

from host.bisort import (
    BUFFER,
    GROUP,
    NOTED_GROUP,
    PART,
    SHORT,
    BiSort,
    Order,
    Sorted,
    _walk_each,
    after,
    seek,
)
from host.choice import STRUCTURES, Shares, Statistics, choose_order, choose_structure
from host.columns import Layout
from host.compiled import compiled, counting
from host.engine import Batch, Engine
from host.llat import SIGMA, Table, partitions
from host.plan import SpecDimension
from host.rap_table import RapTable, adjusted, even_splitters
from hw.dimension import Dimension, Test
from sim.oracle import point_in_box

SHAPES = {
    "band": [(Test.BAND, False)],
    "equal": [(Test.EQUAL, False)],
    "at_least": [(Test.AT_LEAST, False)],
    "at_most": [(Test.AT_MOST, False)],
    "not_equal": [(Test.EQUAL, True)],
    "two_bands": [(Test.BAND, False), (Test.BAND, False)],
    "outside_and_band": [(Test.BAND, True), (Test.BAND, False)],
    "many": [(Test.BAND, False), (Test.AT_MOST, False), (Test.EQUAL, True), (Test.AT_LEAST, False)],
}
#: How values are spread: few of them, many, rising with time, at the ends of the range.
VALUES = {
    "few": lambda rng, count: rng.integers(0, 12, count),
    "many": lambda rng, count: rng.integers(0, 4 * count + 1, count),
    "rising": lambda rng, count: np.arange(count) + rng.integers(0, 30, count),
    "ends": lambda rng, count: rng.choice(np.array([0, 1, 2**63, 2**64 - 2, 2**64 - 1], np.uint64), count),
}


def tuples(rng, shape, values, count, window):
    """Points and boxes that arrive one a tick, alternating at random, and the pairs among them."""
    is_s = rng.random(count) < rng.choice([0.2, 0.5, 0.8])
    time = np.cumsum(rng.integers(0, 3, count)).astype(np.uint64)
    r, s = (~is_s).sum(), is_s.sum()
    dims, codes, lo, hi = [], [], [], []
    for test, negated in SHAPES[shape]:
        dims.append(SpecDimension("", test, negated))
        codes.append(VALUES[values](rng, r).astype(np.uint64))
        low = VALUES[values](rng, s).astype(np.uint64)
        # Mostly narrow boxes, some wide; or all equally wide.
        width = np.where(rng.random(s) < 0.05, rng.integers(0, 2**40, s), rng.integers(0, 4, s)).astype(
            np.uint64
        )
        if rng.random() < 0.5:
            width[:] = rng.integers(0, 4)
        lo.append(low)
        hi.append(low + np.minimum(width, np.uint64(2**64 - 1) - low))
    dims.append(SpecDimension("", Test.BAND, role="time"))
    codes.append(time[~is_s])
    lo.append(time[is_s] - np.minimum(time[is_s], np.uint64(window[0])))
    hi.append(time[is_s] + np.uint64(window[1]))
    tests = tuple(Dimension(dim.test, 64, dim.negated) for dim in dims)
    expected = np.array(point_in_box(tests, codes, lo, hi, (r, s)), np.int64).reshape(-1, 2)
    layout = Layout.of(dims)
    place = np.arange(count)
    batches = []
    for columns, mine in ((layout.points(codes), ~is_s), (layout.boxes(lo, hi), is_s)):
        numbers = np.arange(columns.shape[1], dtype=np.uint32)
        batches.append(Batch(columns, numbers, 0, place[mine], time[mine].astype(np.int64)))
    return layout, batches, expected


def part(batch: Batch, start: int, end: int) -> Batch:
    first, last = np.searchsorted(batch.place, (start, end))
    chosen = slice(first, last)
    columns = np.ascontiguousarray(batch.columns[:, chosen])
    return Batch(
        columns, batch.numbers[chosen] - np.uint32(first), first, batch.place[chosen], batch.age[chosen]
    )


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_pairs(structure, shape, values, rng, monkeypatch):
    monkeypatch.setattr("host.engine.SMALLEST", int(rng.choice([8, 300])))
    monkeypatch.setattr("host.llat.PARTITION", int(rng.choice([4, 96])))
    monkeypatch.setattr("host.engine.SHORTEST_BLOCK", int(rng.choice([16, 512])))
    monkeypatch.setattr("host.choice.STRIPED_FROM", int(rng.choice([0, 48])))
    monkeypatch.setattr("host.engine.ALONE", int(rng.choice([0, 8192])))
    monkeypatch.setattr("host.engine.MEASURED_FOR", int(rng.choice([0, 8192])))
    monkeypatch.setattr("host.bisort.PACKED", int(rng.choice([1, 8192])))
    count = 1500
    window = tuple(int(size) for size in rng.choice([0, 40, 700, 10**6], 2))
    layout, batches, expected = tuples(rng, shape, values, count, window)
    threads = int(rng.integers(1, 3))
    engine = Engine(layout, window, structure, threads)
    found, start = [], 0
    while start < count:
        end = start + int(rng.choice([1, 20, 150, 900]))
        new = [part(batch, start, end) for batch in batches]
        newest = max(int(batch.age[-1]) for batch in new if len(batch))
        pairs = engine.process(*new, (newest - window[0], newest - window[1]))
        for r, s, number in pairs:
            assert len(r) == len(s) == number
            found.append(np.stack([r, s], 1))
        start = end
    found = np.concatenate(found or [np.empty((0, 2), np.int64)])
    assert len(found) == len(expected) and (found[np.lexsort(found.T[::-1])] == expected).all()
    if structure not in ("auto", "nested"):
        used = {sub.name for ring in engine.rings for sub in ring.subwindows}
        assert used <= {structure, "nested"}
    assert sum(count for *_, count in Engine(layout, window, structure, 1).join(*batches, pairs=False)) == (
        len(expected)
    )


@pytest.mark.parametrize(
    "structure, most", [("levels", 1.25), ("bisort", 1.25), ("rap_table", 2.6), ("wib_tree", 2.6)]
)
def test_memory_is_bounded(structure, most, rng):
    """Bytes of the subwindows against those of the encoded windows, while windows slide."""
    count, window = 60_000, 20_000
    layout, batches, _ = streams(rng, count)
    engine = Engine(layout, (window, window), structure, 1)
    for start in range(0, 2 * count, 1000):
        new = [part(batch, start, start + 1000) for batch in batches]
        newest = int(new[0].age[-1])
        engine.process(*new, (newest - window, newest - window), pairs=False)
        if start > 4 * window:
            size = window * (layout.bytes_per(False) + layout.bytes_per(True))
            assert engine.bytes <= most * size
            assert abs(engine.encoded_bytes / size - 1) < 0.15


def streams(rng, count, values=None):
    """A band on values and a time window, both streams alternating."""
    dims = [SpecDimension("", Test.BAND), SpecDimension("", Test.BAND, role="time")]
    layout = Layout.of(dims)
    time = np.arange(count, dtype=np.uint64) + np.uint64(10**9)
    x, a = (rng.integers(100, 10_000_000, count) if values is None else values for _ in range(2))
    x, a = x.astype(np.uint64), a.astype(np.uint64)
    w = np.uint64(20_000)
    five = np.uint64(5)
    columns = layout.points([x, time]), layout.boxes([a - five, time - w], [a + five, time + w])
    numbers, age = np.arange(count, dtype=np.uint32), time.astype(np.int64)
    batches = [Batch(part, numbers, 0, 2 * np.arange(count) + k, age) for k, part in enumerate(columns)]
    return layout, batches, time


DISTRIBUTIONS = {
    "uniform": lambda rng, count: rng.integers(2**30, 2**30 + 2**24, count),
    "one_mode": lambda rng, count: rng.normal(2**31, 2**20, count),
    "three_modes": lambda rng, count: rng.normal(rng.choice([2**28, 2**31, 2**31 + 2**30], count), 2**22),
    # Views of videos: most values within a small part of the range, and a long tail.
    "rank_size": lambda rng, count: 2**31 / rng.permutation(np.arange(1, count + 1)) ** 0.9,
}


@pytest.mark.parametrize("values", DISTRIBUTIONS)
def test_rap_table_is_balanced_after_three_adjustments(values, rng):
    """Splitters begin evenly over 32 bits; the error is the mean distance of a partition from its share."""
    count, partitions = 65_536, 256
    splitters = even_splitters(0, 2**32 - 1, partitions)
    errors = []
    for _ in range(5):
        keys = np.sort(DISTRIBUTIONS[values](rng, count).astype(np.uint64))
        where = np.searchsorted(splitters, keys, "right")
        counts = np.bincount(where, minlength=partitions)
        share = count / partitions
        errors.append(np.abs(counts - share).mean() / share)
        lows, highs = np.zeros(partitions, np.uint64), np.zeros(partitions, np.uint64)
        first = np.searchsorted(where, np.arange(partitions))
        some = counts > 0
        lows[some], highs[some] = keys[first[some]], keys[(first + counts - 1)[some]]
        splitters = adjusted(counts, lows, highs, partitions)
        assert (np.diff(splitters.astype(object)) >= 0).all()
    assert errors[0] > 1.5
    assert max(errors[3:]) < 0.35


@pytest.mark.parametrize("structure", ["rap_table", "wib_tree"])
def test_a_full_table_leaves_no_gap_in_the_keys(structure, rng):
    """More rows come than a table was made for: what follows it holds keys of the whole range too."""
    layout, batches, _ = streams(rng, 60_000)
    window = 20_000
    engine = Engine(layout, (window, window), structure, 1)
    start = 0
    for size in [400] * 60 + [3000] * 30:
        new = [part(batch, start, start + size) for batch in batches]
        newest = int(new[0].age[-1])
        engine.process(*new, (newest - window, newest - window), pairs=False)
        start += size
        for sub in (sub for ring in engine.rings for sub in ring.subwindows if sub.rows > 100):
            assert sub.structure.lows[0] < 2_000_000 and sub.structure.highs[0] > 8_000_000


def test_increasing_values_go_to_the_wib_tree(rng):
    """Small batches begin with a RaP-Table; values that rise move on to a WiB+-Tree, others do not."""
    for rising, wanted in ((True, "wib_tree"), (False, "rap_table")):
        count, window = 4000, 2000
        values = 10**6 + np.arange(count) * 10 if rising else None
        layout, batches, _ = streams(rng, count, values)
        engine = Engine(layout, (window, window), "auto", 1)
        for start in range(0, 2 * count, 12):
            new = [part(batch, start, start + 12) for batch in batches]
            newest = int(new[0].age[-1])
            engine.process(*new, (newest - window, newest - window), pairs=False)
        assert {ring.subwindows[-1].name for ring in engine.rings} == {wanted}
        for sub in (sub for ring in engine.rings for sub in ring.subwindows):
            assert len(np.unique(sub.sample[0])) > 0.9 * min(sub.rows, 512)
        assert wanted in engine.explain()


@pytest.mark.parametrize(
    "order, known, structure",
    [
        (Order(-1), Statistics(10_000, 10_000, 1, 0), "nested"),
        (Order(0), Statistics(4, 20, 1, 0), "nested"),
        (Order(0), Statistics(10_000, 10**6, 1, 0), "levels"),
        (Order(0), Statistics(4, 10**6, 5000, 0), "levels"),
        (Order(0), Statistics(4, 10**6, 1, 0.9), "wib_tree"),
        (Order(0), Statistics(4, 10**6, 1, 0), "rap_table"),
        (Order(0, 1, np.array([5], np.uint64)), Statistics(4, 10**6, 1, 0), "levels"),
    ],
)
def test_strategy(order, known, structure):
    chosen, why = choose_structure(order, known)
    assert chosen == structure
    assert why


def test_the_plan_does_not_depend_on_the_order_of_dimensions(rng):
    """The selective dimension is sorted by, wherever it stands, and a second one makes stripes."""
    wide, narrow = (
        rng.integers(0, 10, (2, 5000)).astype(np.uint64),
        rng.integers(0, 10_000, (2, 5000)).astype(np.uint64),
    )
    dims = [
        SpecDimension("", Test.BAND),
        SpecDimension("", Test.BAND),
        SpecDimension("", Test.BAND, role="time"),
    ]
    layout = Layout.of(dims)
    time = np.zeros(5000, np.uint64)
    for first, second, key in ((wide, narrow, 1), (narrow, wide, 0)):
        points = layout.points([first[0], second[0], time])
        boxes = layout.boxes(
            [first[1], second[1], time], [first[1] + np.uint64(1), second[1] + np.uint64(1), time]
        )
        shares = Shares.measure(layout, points, boxes)
        order = choose_order(layout, shares, points, 10**6)
        assert (order.key, order.stripe) == (key, 1 - key)
        assert choose_order(layout, shares, points, 100).stripe == -1


def test_blocks_are_sorted_by_stripe_and_key(rng):
    codes = rng.integers(0, 1000, (2, 5000)).astype(np.uint64)
    splitters = np.array([100, 500, 500, 900], np.uint64)
    run = Sorted.build(
        codes, np.arange(5000, dtype=np.uint32), 0, np.array([0, 2000, 5000]), Order(0, 1, splitters), 2
    )
    assert sorted(run.ids.tolist()) == list(range(5000))
    assert (run.data == codes[:, run.ids]).all()
    for block in range(2):
        for stripe in range(5):
            part = run.data[:, run.offsets[block, stripe] : run.offsets[block, stripe + 1]]
            assert (np.searchsorted(splitters, part[1], "right") == stripe).all()
            assert (np.diff(part[0].astype(np.int64)) >= 0).all()


@compiled
def searched(keys, heads, first, last, at, value):
    """Both searches of BI-Sort."""
    return seek(keys, heads, first, last, at, value), after(keys, heads, first, last, at, value)


@pytest.mark.parametrize("highest", [3, 200, 2**64 - 1])
def test_a_search_may_begin_anywhere(highest, rng):
    """Rebounding binary search, in stretches of any length: what a search from their begin finds."""
    keys = np.sort(rng.integers(0, highest, 700, np.uint64, endpoint=True))
    heads = keys[::PART].copy()
    for _ in range(2000):
        first, last = np.sort(rng.integers(0, len(keys) + 1, 2))
        if rng.random() < 0.5:
            last = min(last, first + rng.integers(0, 40))
        at = int(rng.integers(first, last, endpoint=True))
        value = rng.choice(keys) if rng.random() < 0.7 else rng.integers(0, highest, 1, np.uint64, True)[0]
        part = keys[first:last]
        wanted = first + np.searchsorted(part, value, "left"), first + np.searchsorted(part, value, "right")
        assert searched(keys, heads, first, last, at, value) == wanted


@pytest.mark.parametrize("array", [np.arange(64, dtype=np.uint64)[::4], np.arange(64, dtype=np.int64)])
def test_vectors_are_of_unsigned_numbers_without_gaps(array):
    below = counting(PART, "<")
    words = r"vectors are of uint32 or uint64, side by side in memory, not of "
    with pytest.raises(TypingError, match=words):
        compiled(lambda keys: below(keys, 0, np.uint64(8)))(array)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize(
    "lowest, highest, kind",
    [
        (0, 3, np.uint64),
        (0, 200, np.uint64),
        (0, 2**64 - 1, np.uint64),
        (0, 200, np.uint32),
        (1000, 1200, np.uint32),
        (2**64 - 2**32 + 1, 2**64 - 1, np.uint32),
    ],
)
def test_searches_that_go_ahead_find_what_single_ones_do(lowest, highest, kind, ordered, rng):
    """In stretches of any length, for codes in any order: those that have keys are told, no others listed."""
    keys = np.sort(rng.integers(lowest, highest, 5000, np.uint64, endpoint=True))
    origin = np.uint64(max(lowest, 1) - 1 if kind is np.uint32 else 0)
    kept = (keys - origin).astype(kind)
    heads, ids = kept[::PART].copy(), rng.permutation(len(keys)).astype(np.uint32)
    around = max(lowest - 60, 0), min(highest + 60, 2**64 - 1)
    for _ in range(300):
        first, last = np.sort(rng.integers(0, len(keys) + 1, 2))
        # Up to a group for each step of the searches, and one more.
        codes = rng.integers(*around, rng.integers(1, 4 * GROUP), np.uint64, endpoint=True)
        if ordered:
            codes.sort()
        highs = codes + np.minimum(rng.integers(0, 50, len(codes), np.uint64), np.uint64(2**64 - 1) - codes)
        reach, bounded = np.uint64(rng.choice([0, 1, 40])), bool(rng.random() < 0.8)
        begin = int(rng.integers(0, len(codes)))
        lists = bool(rng.random() < 0.5)
        probe_ids = rng.permutation(len(codes)).astype(np.uint32)
        places, sought, starts, left, left_at = np.empty((5, GROUP), np.int64)
        listed = np.empty((2, len(codes) * SHORT), np.int64)
        parts = first // PART, max(first, last - 1) // PART
        part = int(rng.integers(*parts, endpoint=True))  # where other searches have ended
        hits, count, told, left_over = 0, 0, [], []
        for ahead in range(begin, len(codes) + 2 * GROUP, GROUP):
            hits, part, lefts, count = _walk_each(
                kept, kept, ids, 7, heads, origin, first, last, part, codes, reach, highs, bounded,
                (probe_ids, 9), begin, ahead, len(codes), places, sought, starts, hits * lists, left, left_at,
                *listed, count, True,
            )  # fmt: skip
            assert parts[0] <= part <= parts[1]
            told += zip(sought[:hits], starts[:hits])
            left_over += zip(left[:lefts], left_at[:lefts])
        lows = codes - np.minimum(reach, codes)
        wanted = [
            (code, at)
            for code, at in enumerate(first + np.searchsorted(keys[first:last], lows, "left"))
            if code >= begin and at < last and (not bounded or keys[at] <= highs[code])
        ]
        # The first key may be that of the next part, which is not looked at yet.
        due = set(wanted)
        assert [one for one in told if one in due] == wanted
        assert all(at % PART == 0 and at - PART >= first for _, at in set(told) - due)
        ends = last * np.ones(len(codes), np.int64)
        if bounded:
            ends = first + np.searchsorted(keys[first:last], highs, "right")
        assert left_over == [
            (code, at + SHORT) for code, at in wanted if lists and min(ends[code] + 1, last) > at + SHORT
        ]
        assert listed[:, :count].T.tolist() == [
            [7 + ids[place], 9 + probe_ids[code]]
            for code, at in wanted
            for place in range(at, min(ends[code], at + SHORT) if lists else at)
        ]


@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize("widths", [(5, 5), (0, 40)])
@pytest.mark.parametrize(
    "begins, kinds",
    [
        ([0, 0, 100], [np.uint32]),
        ([2**64 - 10_000, 2**64 - 2**32, 2**64 - 20_000], [np.uint32]),
        ([10**12, 10**12 + 2**32 - 9_050], [np.uint32]),
        ([10**12, 10**12 + 2**32], [np.uint64]),  # too far apart for 32 bits, though each fits
        ([2**64 - 10_000, 0, 5_000], [np.uint64]),
    ],
)
@pytest.mark.parametrize("stripe", [-1, 1])
def test_blocks_of_distances_find_what_codes_do(begins, kinds, widths, boxes, stripe, rng, monkeypatch):
    """Merged blocks of near and far codes, probed around and beyond them, against comparing all."""
    monkeypatch.setattr("host.bisort.PACKED", 1)
    layout = Layout.of([SpecDimension("", Test.BAND), SpecDimension("", Test.BAND)])
    rows, span, most = 2 * BUFFER, 8_999, 0

    def made(begin: int, is_boxes: bool, count: int) -> np.ndarray:
        lows = rng.integers(0, 300, (2, count)).astype(np.uint64) + np.uint64(begin)
        lows[:, 0] = begin + span
        if not is_boxes:
            return lows
        highs = lows + np.minimum(rng.integers(widths[0], widths[1] + 1, lows.shape).astype(np.uint64), ~lows)
        return np.concatenate([lows, highs])

    splitters = np.sort(np.array([begin + 150 for begin in begins], np.uint64))
    order = Order(0, stripe, splitters if stripe >= 0 else np.empty(0, np.uint64))
    kept = BiSort(layout, boxes, order, 0)
    blocks = [made(begin, boxes, rows) for begin in begins]
    for k, block in enumerate(blocks):
        numbers = np.arange(rows * k, rows * (k + 1), dtype=np.uint32)
        assert kept.insert(Sorted.build(block, numbers, 0, np.array([0, rows]), order), 0, rows) == rows
    kept.seal()
    assert [block.data.dtype for block in kept._all()] == kinds
    stored = np.concatenate(blocks, axis=1)
    for begin in [*begins, 0, min(begins) // 2, 2**64 - 1 - span]:
        batch = made(begin, not boxes, 300)
        probe = Sorted.build(batch, np.arange(300, dtype=np.uint32), 0, np.array([0, 300]), order)
        points, box = (batch, stored) if boxes else (stored, batch)
        fits = (box[:2, :, None] <= points[:, None, :]) & (points[:, None, :] <= box[2:, :, None])
        wanted = {(int(point), int(one)) for one, point in np.argwhere(fits.all(axis=0))}
        (found,) = (part.meet(probe, 0, 300, 3, True) for part in kept.parts())
        assert found[2] == len(wanted) and set(zip(found[0].tolist(), found[1].tolist())) == wanted
        assert [part.meet(probe, 0, 300, 3, False)[2] for part in kept.parts()] == [len(wanted)]
        most = max(most, len(wanted))
    assert most > 20


def test_levels_double_and_the_plain_array_is_one(rng):
    """Few tuples stay unsorted; more are merged into the array, or become a level under longer ones."""
    layout = Layout.of([SpecDimension("", Test.BAND)])
    plain, levelled = (BiSort(layout, False, Order(0), 0, levelled=each) for each in (False, True))
    total = 0
    for count in [BUFFER // 3] * 2 + rng.integers(BUFFER, 5 * BUFFER, 60).tolist():
        codes = rng.integers(0, 1000, (1, count)).astype(np.uint64)
        numbers = np.arange(total, total + count, dtype=np.uint32)
        for each in (plain, levelled):
            run = Sorted.build(codes, numbers, 0, np.array([0, count]), Order(0))
            assert each.insert(run, 0, count) == count
        total += count
        if total < BUFFER:
            assert [block.order.key for block in plain._all()] == [-1]
            continue
        lengths = [len(block) for block in levelled._all()]
        assert [len(block) for block in plain._all()] == [total] and sum(lengths) == total
        assert all(longer > 2 * shorter for longer, shorter in pairwise(lengths))
    levelled.seal()
    for each in (plain, levelled):
        (block,) = each._all()
        assert (np.diff(block.data[0].astype(np.int64)) >= 0).all()
        assert sorted(block.ids.tolist()) == list(range(total))


def test_splitters_lie_where_shares_are_counted():
    """Algorithm 1 by hand: 16 tuples, 4 partitions; after 4, 8 and 12 of them."""
    counts = np.array([2, 3, 5, 6])
    lows, highs = np.array([[10, 100, 200, 300], [20, 130, 250, 360]], np.uint64)
    # 2 of the 3 in the second partition, 3 of the 5 in the third, 2 of the 6 in the last.
    assert adjusted(counts, lows, highs, 4).tolist() == [120, 230, 320]
    assert adjusted(counts, lows, highs, 2).tolist() == [230]
    # What is empty is passed over.
    empty = np.array([0, 16, 0, 0])
    assert adjusted(empty, lows, highs, 4).tolist() == [107, 115, 122]


def test_twice_as_many_entries_as_partitions_hold_any_split(rng):
    """An LLAT for N tuples takes all N, however they fall into the partitions."""
    layout = Layout.of([SpecDimension("", Test.BAND)])
    for _ in range(40):
        rows = int(rng.integers(1, 3000))
        table = Table(1, rows, reserved=True)
        assert len(table.arrays[2]) == 2 * partitions(rows)
        assert table.size == int(np.ceil(rows / partitions(rows) * SIGMA))
        # A few values of very different frequency, between splitters of any kind.
        weights = rng.random(20) ** rng.integers(1, 30)
        keys = rng.choice(rng.integers(0, 10**6, 20), rows, p=weights / weights.sum()).astype(np.uint64)
        splitters = np.sort(rng.choice(rng.integers(0, 10**6, 30), partitions(rows) - 1)).astype(np.uint64)
        made = RapTable(layout, False, Order(0), 0, rows, splitters)
        run = Sorted.build(keys[None, :], np.arange(rows, dtype=np.uint32), 0, np.array([0, rows]), Order(0))
        assert made.insert(run, 0, rows) == rows
        assert made.histograms[0].sum() == rows


def test_rap_table_keeps_all_of_one_value(rng):
    """All tuples in one partition: the LLAT chains as many entries as there are."""
    layout = Layout.of([SpecDimension("", Test.BAND)])
    codes = np.full((1, 3000), 7, np.uint64)
    run = Sorted.build(codes, np.arange(3000, dtype=np.uint32), 0, np.array([0, 3000]), Order(0))
    table = RapTable(layout, False, Order(0), 0, 3000, even_splitters(0, 2**32, partitions(3000)))
    assert table.insert(run, 0, 3000) == 3000
    assert table.insert(run, 0, 1) == 0
    boxes = Sorted.build(
        np.array([[7], [7]], np.uint64), np.zeros(1, np.uint32), 0, np.array([0, 1]), Order(0)
    )
    (found,) = (part.meet(boxes, 0, 1, 1, True) for part in table.parts())
    assert sorted(found[0].tolist()) == list(range(3000))


@pytest.mark.parametrize("boxes", [False, True])
@pytest.mark.parametrize(
    "begin, spread",
    [(0, 5), (10**15, 400), (2**64 - 2**20, 2**20 - 1), (7, 2**31), (2**63, 2**32 - 2)],
)
def test_equal_keys_are_found_by_bits(begin, spread, boxes, rng, monkeypatch):
    """Keys that are dense, sparse or mostly the same, and probes that are there, near them or beyond."""
    monkeypatch.setattr("host.bisort.PACKED", 1)
    layout = Layout.of([SpecDimension("", Test.EQUAL), SpecDimension("", Test.BAND)])
    rows, order = 3 * BUFFER, Order(0)

    def made(keys: np.ndarray, is_boxes: bool) -> np.ndarray:
        lows = rng.integers(0, 100, len(keys)).astype(np.uint64)
        return np.stack([keys, lows, lows + np.uint64(20)] if is_boxes else [keys, lows])

    def near(count: int) -> np.ndarray:
        keys = rng.integers(0, spread, count, endpoint=True).astype(np.uint64)
        keys[rng.random(count) < 0.3] = spread // 3
        return keys + np.uint64(begin)

    kept, stored = BiSort(layout, boxes, order, 0), []
    for k in range(3):
        stored.append(made(near(rows), boxes))
        numbers = np.arange(rows * k, rows * (k + 1), dtype=np.uint32)
        kept.insert(Sorted.build(stored[-1], numbers, 0, np.array([0, rows]), order), 0, rows)
    stored = np.concatenate(stored, axis=1)
    blocks = kept._all()
    assert all(len(block.noted[0]) and block.data.dtype == np.uint32 for block in blocks)
    each = NOTED_GROUP // 2  # several groups of searches in all
    asked = [stored[0][rng.integers(0, stored.shape[1], each)], near(each), near(each) ^ np.uint64(1)]
    asked.append(np.array([0, 1, begin - 1 if begin else 0, 2**64 - 1, 2**64 - 2], np.uint64))
    probes = made(np.concatenate(asked), not boxes)
    count = probes.shape[1]
    probe = Sorted.build(probes, np.arange(count, dtype=np.uint32), 0, np.array([0, count]), order)
    points, box = (probes, stored) if boxes else (stored, probes)
    fits = box[0][:, None] == points[0]
    fits &= (box[1][:, None] <= points[1]) & (points[1] <= box[2][:, None])
    wanted = Counter((int(point), int(one)) for one, point in np.argwhere(fits))
    found = Counter()
    for part in kept.parts():
        r, s, listed = part.meet(probe, 0, count, 3, True)
        found.update(zip(r.tolist(), s.tolist()))
        assert part.meet(probe, 0, count, 3, False)[2] == listed == len(r)
    assert found == wanted and wanted


def test_only_boxes_of_several_widths_need_tops(rng):
    """Those of the parts: where all are equally wide, two searches find them. Merged blocks may not be."""
    layout, rows = Layout.of([SpecDimension("", Test.BAND)]), 3 * BUFFER
    kept, tops = BiSort(layout, True, Order(0), 0), []
    for k, width in enumerate((20, 20, 21)):
        lows = rng.integers(0, 10**6, rows).astype(np.uint64)
        numbers = np.arange(rows * k, rows * (k + 1), dtype=np.uint32)
        columns = np.stack([lows, lows + np.uint64(width)])
        kept.insert(Sorted.build(columns, numbers, 0, np.array([0, rows]), Order(0)), 0, rows)
        kept.seal()
        (block,) = kept._all()
        tops.append([len(each) for each in block.tops[:2]])
    assert tops == [[0, 0], [0, 0], [3 * rows // PART] * 2]
