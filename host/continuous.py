"""Continuous joins: rows are joined as they are pushed, and what they find is gathered for `poll`.

With `lateness`, rows need not come in order: the watermark follows the newest time at that distance, rows
behind it are dropped and counted, and windows of rows hold rows back until the watermark has passed them.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .arrival import Arrivals, Side
from .output import joined_rows
from .row_store import RowStore
from .session import Session, Stats
from .spec import Encoded, JoinSpec
from .window import EARLIEST, parse_window

#: Columns that rows are kept with, to encode them again.
_TIME, _BEFORE = "touchline time", "touchline before"


class ContinuousSession(Session, ABC):
    """A session that keeps windows from one `push` to the next, somewhere: that is for its heirs to say.

    `lateness` is how far rows may be behind the newest ("10 seconds", or a number where times are), by
    default they must come in order. Pairs are checked again in the dimensions `unchecked`.
    """

    def __init__(self, spec: JoinSpec, lateness: str | int | None = None, unchecked: Collection[int] = ()):
        self._spec = spec
        self._lateness = None if lateness is None else parse_window(lateness, spec.time_type).r
        self._unchecked = unchecked
        self._plain = spec.decided and not unchecked
        self._newest: int | None = None
        self._counts = (0, 0)
        self._rows = tuple(RowStore() for _ in range(2))
        self._held = [spec.r_schema.empty_table(), spec.s_schema.empty_table()]
        self._ready: list[pa.Table] = []
        self.late = (0, 0)  #: rows of R and S that came behind the watermark
        self.stats = Stats()  #: of everything this session has joined

    @abstractmethod
    def _met(self, new: Arrivals, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        """Joins new rows with each other and with what is kept, and keeps what later ones may join.

        Pairs are told as numbers of R's rows and of S's boxes: a box is numbered by its row and by which of
        the row's boxes it is.
        """

    @abstractmethod
    def _kept_from(self) -> tuple[int, int]:
        """The numbers of the first rows of R and of S that may still be met."""

    def push(self, r: pa.Table, s: pa.Table) -> None:
        """Joins the next rows of both streams. Rows that are refused leave the session as it was."""
        self._check_columns(r, s)
        if self._lateness is None:
            self._advance(self._after_all_before(self._spec.arrange(r, s)))
            return
        times = [self._spec.times(table, side) for side, table in zip("rs", (r, s))]
        tables, late = [r, s], [0, 0]
        if self._newest is not None:
            for k, table in enumerate((r, s)):
                tables[k] = table.filter(pc.fill_null(pc.greater_equal(times[k], self._watermark), True))
                late[k] = table.num_rows - tables[k].num_rows
        seen = [pc.max(time).as_py() for time in times]
        self._newest = max((time for time in (self._newest, *seen) if time is not None), default=None)
        self.late = self.late[0] + late[0], self.late[1] + late[1]
        if self._spec.window.kind == "time":
            self._advance(self._numbered(self._spec.arrange(*tables)))
            return
        self._held = [pa.concat_tables(both) for both in zip(self._held, tables)]
        if self._newest is not None:
            self._release(self._watermark)

    def finish(self) -> None:
        """Joins the rows that are still held back: no more will come."""
        self._release(None)

    def poll(self) -> pa.Table:
        """The joined rows of everything pushed so far that have not been returned before."""
        ready, self._ready = self._ready, []
        if not ready:
            return joined_rows(self._spec.r_schema.empty_table(), self._spec.s_schema.empty_table())
        return pa.concat_tables(ready)

    @property
    def _watermark(self) -> int:
        """The time from which on rows are in time."""
        return max(self._newest - self._lateness, EARLIEST)

    def _release(self, until: int | None) -> None:
        """Joins the rows that were held back and are before `until`: nothing can come between them."""
        known = list(self._held)
        if until is not None:
            for k, side in enumerate("rs"):
                ready = pc.fill_null(pc.less(self._spec.times(known[k], side), until), True)
                self._held[k], known[k] = known[k].filter(pc.invert(ready)), known[k].filter(ready)
        else:
            self._held = [table.slice(0, 0) for table in known]
        self._advance(self._numbered(self._spec.arrange(*known)))

    def _advance(self, new: Arrivals) -> None:
        """Joins new rows with each other and with what is kept."""
        encoded = self._spec.encode(new)
        for store, side in zip(self._rows, (new.r, new.s)):
            store.append(side.rows if self._plain else _with_order(side))
        self.stats += Stats(tuples=len(new.r.time) + len(new.s.time))
        self._gather(*self._met(new, encoded))

    def _gather(self, r: np.ndarray, box: np.ndarray) -> None:
        """Makes rows of pairs, and forgets the rows that can be part of no other."""
        r, s = (r, box) if self._plain or not len(r) else self._refined(r, box)
        if len(r):
            tables = (store.take(rows) for store, rows in zip(self._rows, (r, s)))
            names = self._spec.r_schema.names, self._spec.s_schema.names
            self._ready.append(joined_rows(*(table.select(name) for table, name in zip(tables, names))))
        for store, first in zip(self._rows, self._kept_from()):
            store.drop(first)
        self.stats += Stats(pairs=len(r))

    def _refined(self, r: np.ndarray, box: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of the pairs that are results, as rows of R and of S."""
        most = self._spec.disjuncts
        sides, places = [], []
        for store, rows in zip(self._rows, (r, box // most)):
            distinct, place = np.unique(rows, return_inverse=True)
            table = store.take(distinct)
            time, before = (table[name].to_numpy() for name in (_TIME, _BEFORE))
            sides.append(Side(table, time, distinct, before, np.ones(len(distinct), bool)))
            places.append(place)
        arrivals = Arrivals(*sides)
        encoded = self._spec.encode(arrivals)
        boxes = encoded.boxes.row * most + encoded.boxes.disjunct
        kept = self._spec.refine(
            arrivals,
            encoded,
            places[0],
            np.searchsorted(boxes, places[1] * most + box % most),
            self._unchecked,
        )
        return r[kept], box[kept] // most


def _with_order(side: Side) -> pa.Table:
    """Rows beside what is needed to encode them again."""
    return side.rows.append_column(_TIME, pa.array(side.time)).append_column(_BEFORE, pa.array(side.before))
