"""Pieces: a finite join, inner or outer, of rows that come in arrival order: only the windows are kept.

::

    arrival order   ------------------------------------------------------------->
                     before the slice  |       owned rows        |  after the slice
    pieces               ( kept )      |  join  |  join  |  join |  join, if outer

A pair is found when its later row comes, and a row has left when no later one can join it. A row that has
left without a partner is a result of an outer join. So whoever owns a slice of a longer history is shown,
before it, the rows that its own may join, and, if the join is outer, those after it that may join its own.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
import pyarrow as pa

from hw.errors import ParameterError

from .arrival import Arrivals, Side
from .session import JoinResult, chain
from .spec import JoinSpec
from .window import EARLIEST, Window

#: Whether rows of R and of S come out that have no partner.
OUTER = {"inner": (False, False), "left": (True, False), "right": (False, True), "full": (True, True)}


def checked_how(how: str) -> str:
    """`how`, if it is a kind of join."""
    if how not in OUTER:
        raise ParameterError(f"how must be one of {', '.join(OUTER)}, not {how!r}")
    return how


class Phase(IntEnum):
    """Where rows stand: before the slice (its halo), in it, or after it."""

    BEFORE = 0
    OWN = 1
    AFTER = 2


@dataclass(frozen=True)
class Piece:
    """What one step gives: row numbers are positions in `arrivals`."""

    arrivals: Arrivals
    pairs: JoinResult | None  #: None where nothing was joined
    left: tuple[np.ndarray, np.ndarray]  #: rows of R and S without a partner, which have left


@dataclass(frozen=True)
class _Kept:
    """Rows of one stream that later ones may join."""

    side: Side
    mine: np.ndarray  #: bool, whether the row is in the slice
    matched: np.ndarray  #: bool, whether it has had a partner


class Pieces:
    """Joins pieces with `join`, such as `CpuSession.join` or `Session.join`.

    `how` says which rows come out without a partner. Unless `decides`, all owned rows of these sides come out
    as they leave, because whoever evaluates the rest of the condition knows which had a partner.
    """

    def __init__(
        self,
        spec: JoinSpec,
        join: Callable[[Arrivals], JoinResult],
        how: str = "inner",
        decides: bool = True,
    ):
        self._join, self._window = join, spec.window
        self._outer, self._decides = OUTER[checked_how(how)], decides
        self._kept: list[_Kept] = []  # of R and S, once there are any
        self._newest = EARLIEST
        self._counts = [0, 0]

    @property
    def rows(self) -> int:
        """Rows kept, of both streams."""
        return sum(len(kept.mine) for kept in self._kept)

    def add(self, new: Arrivals, phase: Phase) -> Piece:
        """Joins the next rows, numbered from 0, with each other and with what is kept."""
        counts = tuple(self._counts)
        sides = []
        for k, side in enumerate((new.r, new.s)):
            fresh = np.full(len(side.time), phase is not Phase.BEFORE)
            sides.append(
                replace(side, index=side.index + counts[k], before=side.before + counts[1 - k], own=fresh)
            )
            self._counts[k] += len(side.time)
            self._newest = max(self._newest, int(side.time.max(initial=EARLIEST)))
        arrivals = Arrivals(*sides)
        if self._kept:
            arrivals = chain([Arrivals(*(kept.side for kept in self._kept)), arrivals])
        result = None if phase is Phase.BEFORE else self._join(arrivals)
        before, self._kept, left = self._kept, [], []
        for k, side in enumerate((arrivals.r, arrivals.s)):
            count = len(side.time) - (len(before[k].mine) if before else 0)
            mine, matched = np.full(count, phase is Phase.OWN), np.zeros(count, bool)
            if before:
                mine = np.concatenate([before[k].mine, mine])
                matched = np.concatenate([before[k].matched, matched])
            if result is not None:
                matched[result.s if k else result.r] = True
            live = self._live(side, k)
            if phase is Phase.AFTER:
                # Later rows are joined for the sake of the owned ones alone.
                live &= mine & ~(matched & self._decides)
            left.append(self._alone(k, mine & ~live, matched))
            self._kept.append(_Kept(_taken(side, live), mine[live], matched[live]))
        return Piece(arrivals, result, (left[0], left[1]))

    def finish(self) -> Piece | None:
        """No more rows come: all that is left leaves. None if no rows came at all."""
        kept, self._kept = self._kept, []
        if not kept:
            return None
        r, s = (self._alone(k, each.mine, each.matched) for k, each in enumerate(kept))
        return Piece(Arrivals(kept[0].side, kept[1].side), None, (r, s))

    def _alone(self, k: int, leaving: np.ndarray, matched: np.ndarray) -> np.ndarray:
        if not self._outer[k]:
            return np.empty(0, np.int64)
        return np.flatnonzero(leaving & ~(matched & self._decides))

    def _live(self, side: Side, k: int) -> np.ndarray:
        """Which rows later ones may join."""
        window: Window = self._window
        size = window.s if k else window.r
        if window.kind == "rows":
            return side.index >= self._counts[k] - size
        return side.time >= max(self._newest - size, EARLIEST)


def _taken(side: Side, where: np.ndarray) -> Side:
    """Some rows of a side, owned no more."""
    if where.all():
        rows = side.rows
    else:
        first = int(np.argmax(where)) if where.any() else len(where)
        # Mostly the oldest rows leave, which takes no copy.
        rows = side.rows.slice(first) if where[first:].all() else side.rows.filter(pa.array(where))
    time, index, before = (getattr(side, name)[where] for name in ("time", "index", "before"))
    return Side(rows, time, index, before, np.zeros(len(time), bool))
