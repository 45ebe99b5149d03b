"""Fits the dimensions of a join to those of a device.

A device dimension takes one of the join's if it is at least as general; two one-sided ones together
take a band. What no device dimension takes is left to the host's recheck, and device dimensions
that nobody needs are wide open. So one device serves many joins.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hw.dimension import Dimension, Test

from .expression import Node
from .program import Query
from .pushdown import Pushed

#: Which device tests can stand for a test of the join, cheapest first. A tuple takes one dimension each.
_STANDS_FOR = {
    Test.EQUAL: ((Test.EQUAL,), (Test.BAND,), (Test.AT_LEAST, Test.AT_MOST)),
    Test.BAND: ((Test.BAND,), (Test.AT_LEAST, Test.AT_MOST)),
    Test.AT_LEAST: ((Test.AT_LEAST,), (Test.BAND,)),
    Test.AT_MOST: ((Test.AT_MOST,), (Test.BAND,)),
}
_NEGATED_STANDS_FOR = {
    Test.EQUAL: ((Test.EQUAL,), (Test.BAND,)),
    Test.BAND: ((Test.BAND,),),
}


@dataclass(frozen=True)
class Codes:
    """Points and boxes as one device takes them, and which join dimensions it does not decide alone."""

    points: list[np.ndarray]
    lo: list[np.ndarray]
    hi: list[np.ndarray]
    sent: np.ndarray  #: bool per box; a box that no point can lie in is not sent
    unchecked: frozenset[int]
    unfiltered: tuple[Node, ...] = ()  #: filters that a programmed device does not decide alone
    query: Query | None = None  #: what a programmed device must be told


class Fit:
    """Which dimension of the join each device dimension takes.

    `sources[d]` is the number of the join's dimension that device dimension `d` takes, or None. `capacity` is
    how many tuples of each stream the device's windows hold.
    """

    #: Filters that the device does; see `ChainFit`.
    pushed: Sequence[Pushed] = ()

    def __init__(self, wanted: Sequence, device: Sequence[Dimension], capacity: int = 0):
        self._wanted = wanted
        self.device = device
        self.capacity = capacity
        self.sources: list[int | None] = [None] * len(device)
        for number, dimension in enumerate(wanted):
            table = _NEGATED_STANDS_FOR if dimension.negated else _STANDS_FOR
            for tests in table.get(dimension.test, ()):
                places = self._free(tests, dimension.negated)
                if places:
                    for place in places:
                        self.sources[place] = number
                    break

    def _free(self, tests: tuple[Test, ...], negated: bool) -> list[int] | None:
        """Places of free device dimensions with these tests, the widest first; None unless all are there."""
        places = []
        for test in tests:
            free = [
                place
                for place, dim in enumerate(self.device)
                if dim.test is test and dim.negated == negated and self.sources[place] is None
            ]
            if not free:
                return None
            places.append(max(free, key=lambda place: self.device[place].width))
        return places

    @property
    def missing(self) -> frozenset[int]:
        """The join's dimensions that no device dimension takes."""
        return frozenset(range(len(self._wanted))) - frozenset(self.sources)

    def explain(self) -> str:
        """One line per dimension of the join: where it is decided."""
        lines = []
        for number, dimension in enumerate(self._wanted):
            places = [
                f"d{place} ({dim})" for place, dim in enumerate(self.device) if self.sources[place] == number
            ]
            where = "device " + " and ".join(places) if places else "host, no device dimension is free for it"
            lines.append(f"{dimension.text}: {where}")
        return "\n".join(lines)

    def instructions(self, codes: Codes) -> list[np.ndarray]:
        """Words that must go ahead of tuples with these codes."""
        return []

    def narrow(
        self,
        points: Sequence[np.ndarray],
        lo: Sequence[np.ndarray],
        hi: Sequence[np.ndarray],
        filtered: Sequence[np.ndarray] = (),
        spans: Sequence[tuple[int, int]] | None = None,
    ) -> Codes:
        """The codes of some points and boxes (one array per dimension of the join) on this device.

        Codes are taken from the smallest point on, and lose low bits where the device's width does
        not hold the rest: a coarser code never loses a pair, and the host rechecks it. `filtered` are the
        codes that the filters in `pushed` test.

        With `spans`, the smallest and largest code of each dimension, what one call makes can meet what
        another made: all beyond a span becomes its end, and is rechecked. That of a negated dimension must
        hold all codes.
        """
        point_count, box_count = len(points[0]), len(lo[0])
        sent = np.ones(box_count, bool)
        unchecked = set(self.missing)
        codes = Codes([], [], [], sent, frozenset())
        for dim, number in zip(self.device, self.sources):
            if number is None or not (point_count or spans):
                _append_open(codes, dim, point_count, box_count)
                continue
            ends = spans[number] if spans else (points[number].min(), points[number].max())
            smallest, largest = map(np.uint64, ends)
            span = int(largest - smallest)
            shift = max(0, span.bit_length() - dim.width)
            if dim.negated and (shift or span == dim.highest):
                # No code is left that stands for "somewhere else", which a negated test needs.
                unchecked.add(number)
                _append_open(codes, dim, point_count, box_count)
                continue
            if shift or (spans and not dim.negated):
                unchecked.add(number)
            within = (lo[number] <= largest) & (hi[number] >= smallest)
            at = np.uint64(shift)
            codes.points.append((np.clip(points[number], smallest, largest) - smallest) >> at)
            low = (np.clip(lo[number], smallest, largest) - smallest) >> at
            high = (np.clip(hi[number], smallest, largest) - smallest) >> at
            if dim.negated:
                elsewhere = np.uint64(dim.highest)
                low, high = np.where(within, low, elsewhere), np.where(within, high, elsewhere)
            elif not spans:
                sent &= within
            codes.lo.append(low)
            codes.hi.append(high)
        return Codes(codes.points, codes.lo, codes.hi, sent, frozenset(unchecked))


def _append_open(codes: Codes, dim: Dimension, point_count: int, box_count: int) -> None:
    """Adds codes that pass the test of `dim`, whatever it is."""
    point = 1 if dim.negated and dim.test is Test.AT_MOST else 0
    low = 1 if dim.negated else 0
    high = 0 if dim.test is Test.AT_MOST and dim.negated else 1
    codes.points.append(np.full(point_count, point, np.uint64))
    codes.lo.append(np.full(box_count, low, np.uint64))
    codes.hi.append(np.full(box_count, high, np.uint64))
