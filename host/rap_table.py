"""RaP-Table: a subwindow in partitions between splitters, unsorted in each, kept in an LLAT.

    splitters     s1     s2     s3           partition = how many splitters are at or below the key
    partitions  0  |  1   |  2   |  3        count, lowest and highest key of each: the histograms
    LLAT        entries, chained where a partition has more than its share

The next subwindow's splitters come from this one's histograms (Algorithm 1), as if keys were spread evenly
within a partition, so a few subwindows after the distribution changed all partitions are about equal again.
Keys that only increase escape every table made from older ones: `wib_tree` is for those.

A probe tests the partitions that its band touches.
"""

import numpy as np

from .bisort import PART, Order, Part, Sorted, after
from .columns import Layout
from .compiled import compiled
from .llat import Table, partition_meets_box, partition_meets_point, partitions, put
from .nested import HIGHEST, listed


@compiled
def adjusted(counts, lows, highs, wanted):
    """Algorithm 1: splitters for `wanted` equal partitions, from the histograms of others.

    The j-th lies where j shares of the tuples have been counted: so far into the partition in which
    that happens as tuples of it are still needed. (The paper's formula leaves out its lowest key.)
    """
    splitters = np.empty(wanted - 1, np.uint64)
    total = counts.sum()
    before, j = 0, 1
    for i in range(len(counts)):
        while j < wanted and j * total <= (before + counts[i]) * wanted:
            if counts[i]:
                share = (j * total / wanted - before) / counts[i]
                splitters[j - 1] = lows[i] + np.uint64(share * np.float64(highs[i] - lows[i]))
            else:
                splitters[j - 1] = lows[i]
            j += 1
        before += counts[i]
    return splitters


def even_splitters(low: int, high: int, wanted: int) -> np.ndarray:
    """Splitters at equal distances, for when nothing is known but the lowest and the highest key."""
    step = (high - low) // wanted or 1
    return np.array([min(low + step * j, 2**64 - 1) for j in range(1, wanted)], np.uint64)


@compiled
def _insert(table, size, histograms, splitters, heads, batch, ids, shift, first, last, key, hi_key):
    """Inserts tuples, which are sorted; returns the first that found no place."""
    counts, lows, highs, tops = histograms
    at = 0
    for i in range(first, last):
        code = batch[key, i]
        at = after(splitters, heads, 0, len(splitters), at, code)
        if not put(table, size, at, batch, i, ids[i] + shift):
            return i
        counts[at] += 1
        lows[at], highs[at] = min(lows[at], code), max(highs[at], code)
        tops[at] = HIGHEST if hi_key < 0 else max(tops[at], batch[hi_key, i])
    return last


@compiled
def _boxes_find(table, size, base, splitters, heads, key, boxes, first, last, hi, negated, wanted, pairs):
    box_data, box_ids, box_base = boxes
    out_r, out_s = np.empty(1024 * pairs, np.int64), np.empty(1024 * pairs, np.int64)
    found, lowest, highest = 0, 0, 0
    checks, inner = listed(wanted | 1 << key, len(hi)), listed(wanted & ~(1 << key), len(hi))
    for box in range(first, last):
        low = box_data[key, box]
        high = HIGHEST if hi[key] < 0 else box_data[hi[key], box]
        lowest = after(splitters, heads, 0, len(splitters), lowest, low)
        highest = after(splitters, heads, lowest, len(splitters), max(lowest, highest), high)
        for partition in range(lowest, highest + 1):
            # Whatever lies in the partitions between the outer ones lies in the band.
            tested = inner if lowest < partition < highest else checks
            out_r, out_s, found = partition_meets_box(
                table, size, partition, base, box_data, box, hi, negated, tested, box_base + box_ids[box],
                (out_r, out_s), found, pairs,
            )  # fmt: skip
    return out_r[: found * pairs], out_s[: found * pairs], found


@compiled
def _points_find(
    table, size, base, splitters, heads, tops, key, points, first, last, hi, negated, wanted, pairs
):
    point_data, point_ids, point_base = points
    out_r, out_s = np.empty(1024 * pairs, np.int64), np.empty(1024 * pairs, np.int64)
    found, at = 0, 0
    checks = listed(wanted | 1 << key, len(hi))
    rising = tops.copy()
    for partition in range(1, len(rising)):
        rising[partition] = max(rising[partition], rising[partition - 1])
    for point in range(first, last):
        code = point_data[key, point]
        at = after(splitters, heads, 0, len(splitters), at, code)
        for partition in range(at, -1, -1):
            if rising[partition] < code:
                break
            if tops[partition] >= code:
                out_r, out_s, found = partition_meets_point(
                    table, size, partition, base, point_data, point, hi, negated, checks,
                    point_base + point_ids[point], (out_r, out_s), found, pairs,
                )  # fmt: skip
    return out_r[: found * pairs], out_s[: found * pairs], found


class RapTable:
    """A subwindow of at most `rows` tuples in a RaP-Table."""

    def __init__(
        self, layout: Layout, boxes: bool, order: Order, base: int, rows: int, splitters: np.ndarray
    ):
        self._layout, self._boxes, self.order, self.base = layout, boxes, order, base
        columns = layout.box_columns if boxes else len(layout)
        self._table = Table(columns, rows, reserved=True)
        self.splitters = splitters
        self._heads = splitters[::PART].copy()
        count = self._table.partitions
        #: Tuples per partition, its lowest and highest key, and for boxes the highest bound.
        self.histograms = (
            np.zeros(count, np.int64),
            np.full(count, HIGHEST),
            np.zeros(count, np.uint64),
            np.zeros(count, np.uint64),
        )
        self.lows, self.highs = np.full(columns, HIGHEST), np.zeros(columns, np.uint64)
        self.capacity = rows

    @property
    def bytes(self) -> int:
        """Bytes in use."""
        return self._table.bytes + sum(
            array.nbytes for array in (*self.histograms, self.splitters, self._heads)
        )

    def parts(self) -> list[Part]:
        """What a probe has to look into."""
        return [Part(self.lows, self.highs, self._meet)]

    def insert(self, run: Sorted, first: int, last: int) -> int:
        """Takes in a part of a sorted block; returns the first tuple there is no place for."""
        last = min(last, first + self.capacity - int(self.histograms[0].sum()))
        key = self.order.key
        hi = self._layout.hi[key] if self._boxes else key
        shift = np.uint32(run.base - self.base)
        done = _insert(
            self._table.arrays, self._table.size, self.histograms, self.splitters, self._heads,
            run.data, run.ids, shift, first, last, key, hi,
        )  # fmt: skip
        if done > first:
            inserted = run.data[:, first:done]
            self.lows = np.minimum(self.lows, inserted.min(axis=1))
            self.highs = np.maximum(self.highs, inserted.max(axis=1))
        return done

    def seal(self) -> None:
        """Nothing more will be inserted."""

    def _meet(self, batch: Sorted, first: int, last: int, wanted: int, pairs: bool):
        """The pairs of a part of a sorted batch of the other stream with this subwindow."""
        where = self._table.arrays, self._table.size, self.base, self.splitters, self._heads
        probe = (batch.data, batch.ids, batch.base), first, last
        how = self._layout.hi, self._layout.negated, wanted, pairs
        if self._boxes:
            return _points_find(*where, self.histograms[3], self.order.key, *probe, *how)
        return _boxes_find(*where, self.order.key, *probe, *how)

    def next_splitters(self, rows: int) -> np.ndarray:
        """The splitters of the subwindow after this one, for `rows` tuples."""
        return adjusted(*self.histograms[:3], partitions(rows))
