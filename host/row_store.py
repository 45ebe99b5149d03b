"""The rows of a stream that results may still need, found by their number in the stream."""

import numpy as np
import pyarrow as pa

#: So many times the rows that are wanted is little to copy.
SMALL = 8


class RowStore:
    """Rows in pieces: each is joined with the one before it once it is half as long, so there are few."""

    def __init__(self):
        self._pieces: list[pa.Table] = []
        self._first = 0  # the number of the first row

    def __len__(self) -> int:
        return sum(piece.num_rows for piece in self._pieces)

    def append(self, rows: pa.Table) -> None:
        """Adds the next rows."""
        if not rows.num_rows:
            return
        while self._pieces and self._pieces[-1].num_rows <= 2 * rows.num_rows:
            rows = pa.concat_tables([self._pieces.pop(), rows])
        self._pieces.append(rows.combine_chunks())

    def drop(self, limit: int) -> None:
        """Forgets rows before number `limit`, as far as they are whole pieces or half of one."""
        while self._pieces and self._first < limit:
            piece, gone = self._pieces[0], min(limit - self._first, self._pieces[0].num_rows)
            if gone < piece.num_rows and 2 * gone < piece.num_rows:
                break
            # A slice would keep all of the piece in memory.
            self._pieces[:1] = [] if gone == piece.num_rows else [_copied(piece.slice(gone))]
            self._first += gone

    def take(self, numbers: np.ndarray) -> pa.Table:
        """The rows with these numbers."""
        places = numbers - self._first
        # Arrow makes one piece of several before it takes anything, which is dear where that is little.
        if len(self._pieces) == 1 or len(self) <= SMALL * len(places):
            return pa.concat_tables(self._pieces).take(pa.array(places))
        starts = np.cumsum([0, *(piece.num_rows for piece in self._pieces)])
        of = (np.searchsorted(starts, places, "right") - 1).astype(np.uint8)
        order = np.argsort(of, kind="stable")
        cuts = np.searchsorted(of[order], np.arange(len(self._pieces) + 1))
        parts = [
            piece.take(pa.array(places[order[first:last]] - start))
            for piece, start, first, last in zip(self._pieces, starts, cuts, cuts[1:])
            if first < last
        ]
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.concat_tables(parts or [self._pieces[0].slice(0, 0)]).take(pa.array(back))


def _copied(rows: pa.Table) -> pa.Table:
    return rows.take(pa.array(np.arange(rows.num_rows)))
