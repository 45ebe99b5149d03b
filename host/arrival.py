"""Arrival order: every row's place among the rows of both streams."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hw.errors import DataError

from .compiled import compiled


@dataclass(frozen=True)
class Side:
    """One stream's rows in arrival order, and where each stands."""

    rows: pa.Table
    time: np.ndarray  #: int64, in the time column's unit
    index: np.ndarray  #: int64, the row's number in its own stream
    before: np.ndarray  #: int64, how many rows of the other stream came before
    own: np.ndarray  #: bool, False for older rows sent again beside the owned ones (the halo)
    dropped: int = 0  #: rows left out because their time is NULL

    @property
    def place(self) -> np.ndarray:
        """Each row's number in the order of both streams."""
        return self.index + self.before


@dataclass(frozen=True)
class Arrivals:
    """Both streams, arranged."""

    r: Side
    s: Side

    @classmethod
    def ordered(
        cls,
        r: pa.Table,
        s: pa.Table,
        r_time: np.ndarray,
        s_time: np.ndarray,
        is_s: np.ndarray,
        *,
        r_base: int = 0,
        s_base: int = 0,
        own: np.ndarray | None = None,
        dropped: tuple[int, int] = (0, 0),
    ) -> "Arrivals":
        """Arrivals from rows that are already in order.

        `is_s` says for each place in the merged order whether an S row stands there, `own` whether
        that row is owned (all are unless given). `r_base` and `s_base` are the numbers of the first
        R and S row in their streams.
        """
        is_s = np.asarray(is_s, bool)
        own = np.ones(len(is_s), bool) if own is None else np.asarray(own, bool)
        if len(own) != len(is_s):
            raise DataError(f"own must have one entry per row ({len(is_s)}), not {len(own)}")
        seen_s = np.cumsum(is_s)
        sides = []
        for rows, time, base, other, mine, lost in (
            (r, r_time, r_base, s_base + seen_s, ~is_s, dropped[0]),
            (s, s_time, s_base, r_base + np.arange(1, len(is_s) + 1) - seen_s, is_s, dropped[1]),
        ):
            count = int(mine.sum())
            if not rows.num_rows == len(time) == count:
                raise DataError(
                    f"the order names {count} rows of {'RS'[len(sides)]}, "
                    f"but there are {rows.num_rows} rows and {len(time)} times"
                )
            index = np.arange(base, base + count, dtype=np.int64)
            sides.append(
                Side(rows, np.asarray(time, np.int64), index, other[mine].astype(np.int64), own[mine], lost)
            )
        return cls(*sides)


def owned(arrivals: Arrivals, r: np.ndarray, s: np.ndarray) -> np.ndarray:
    """Whether each pair of rows (positions in `arrivals.r`, `arrivals.s`) is ours: its later row is owned."""
    r_place, s_place = (
        side.index[rows] + side.before[rows] for side, rows in ((arrivals.r, r), (arrivals.s, s))
    )
    return np.where(r_place > s_place, arrivals.r.own[r], arrivals.s.own[s])


def in_order(arrivals: Arrivals, r: np.ndarray, s: np.ndarray) -> np.ndarray:
    """The order in which pairs of rows go by (later arrival, earlier arrival), as numbers of the pairs."""
    r_place, s_place = arrivals.r.place[r], arrivals.s.place[s]
    return np.lexsort([np.minimum(r_place, s_place), np.maximum(r_place, s_place)])


def arrange(
    tables: tuple[pa.Table, pa.Table],
    times: tuple[np.ndarray, np.ndarray],
    ties: list[np.ndarray],
    values,
    dropped: tuple[int, int],
    first: Sequence[np.ndarray] = (),
) -> Arrivals:
    """Arrivals of unsorted rows: by `first`, time, `ties`, R before S, then the row's own values.

    `first` and `ties` are sort keys over R's rows followed by S's. `values(table)` gives the sort keys of a
    table's rows; it is asked only for rows that are otherwise tied.
    """
    if not (first or ties) and all((time[1:] > time[:-1]).all() for time in times):
        return _merged(tables, times, dropped)
    is_s = np.repeat([False, True], [table.num_rows for table in tables])
    keys = [*first, np.concatenate(times), *ties, is_s]
    order = np.lexsort(keys[::-1])
    same = np.ones(max(len(order) - 1, 0), bool)
    for key in keys:
        same &= key[order][1:] == key[order][:-1]
    if same.any():
        _order_ties(order, same, is_s, tables, values)
    rows = (order[~is_s[order]], order[is_s[order]] - tables[0].num_rows)
    return Arrivals.ordered(
        *(table.take(pa.array(taken)) for table, taken in zip(tables, rows)),
        *(time[taken] for time, taken in zip(times, rows)),
        is_s[order],
        dropped=dropped,
    )


@compiled
def _before(r_time, s_time):
    """How many rows of the other stream come before each row of R, and of S; R comes first at equal times."""
    r_before, s_before = np.empty(len(r_time), np.int64), np.empty(len(s_time), np.int64)
    j = 0
    for i in range(len(r_time)):
        while j < len(s_time) and s_time[j] < r_time[i]:
            s_before[j] = i
            j += 1
        r_before[i] = j
    s_before[j:] = len(r_time)
    return r_before, s_before


def _merged(tables, times, dropped) -> Arrivals:
    """Arrivals of rows that are in order within their streams, where no two have the same time."""
    sides = (
        Side(
            table,
            time.astype(np.int64, copy=False),
            np.arange(len(time)),
            before,
            np.ones(len(time), bool),
            lost,
        )
        for table, time, before, lost in zip(tables, times, _before(*times), dropped)
    )
    return Arrivals(*sides)


def _order_ties(order, same, is_s, tables, values) -> None:
    """Sort each run of tied rows in `order` by the rows' own values, in place."""
    tied = np.concatenate([same, [False]]) | np.concatenate([[False], same])
    group = np.cumsum(np.concatenate([[True], ~same]))
    for side, table in enumerate(tables):
        places = np.flatnonzero(tied & (is_s[order] == bool(side)))
        if not len(places):
            continue
        rows = order[places]
        keys = values(table.take(pa.array(rows - side * tables[0].num_rows)))
        order[places] = rows[np.lexsort([*keys[::-1], group[places]])]
