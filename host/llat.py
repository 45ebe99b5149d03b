"""LLAT, the linked list adaptive table: tuples in entries of equal size, chained where one is not enough.

    entry 0 | entry 1 | ... | entry P - 1 || P | P + 1 | ... | 2P - 1
       |                                     ^
       +--- next ----------------------------+      the first unused entry is handed out next

For N tuples in P partitions an entry holds N / P * SIGMA tuples, so 2P entries are always enough: each
that is used up holds more than its share, and at most P of them can.

Memory: 2 * SIGMA times the codes and numbers of N tuples.
"""

import numpy as np

from .columns import ID_BYTES
from .compiled import compiled, inlined
from .nested import match_boxes, match_points

#: How much more than its share an entry can hold.
SIGMA = 1.10
#: Tuples that a partition has on average.
PARTITION = 96


def partitions(rows: int) -> int:
    """How many partitions a table for `rows` tuples has."""
    return max(1, rows // PARTITION)


class Table:
    """The arrays of an LLAT for `rows` tuples; `taken` entries are in use from the start."""

    def __init__(self, columns: int, rows: int, reserved: bool):
        self.partitions = partitions(rows)
        self.size = int(np.ceil(rows / self.partitions * SIGMA))
        entries = 2 * self.partitions
        self.arrays = (
            np.empty((columns, entries * self.size), np.uint64),
            np.empty(entries * self.size, np.uint32),
            np.full(entries, -1, np.int32),  # the next entry of the same partition
            np.arange(entries, dtype=np.int32),  # the last entry of the partition that begins here
            np.zeros(entries, np.int32),  # tuples in the entry
            np.array([self.partitions if reserved else 0]),  # the first unused entry
            np.zeros(columns, np.uint64),  # codes are kept as they are: distances from 0
        )

    @property
    def bytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays)

    @property
    def used(self) -> int:
        """Bytes of codes and numbers that tuples take up."""
        data, _, _, _, count, *_ = self.arrays
        return int(count.sum()) * (8 * len(data) + ID_BYTES)


@inlined
def put(table, size, entry, columns, at, number):
    """Adds a tuple to the partition that begins at `entry`; False if no entry is left for it."""
    data, ids, following, last, count, unused, _ = table
    tail = last[entry]
    if count[tail] == size:
        if unused[0] == len(following):
            return False
        following[tail] = last[entry] = unused[0]
        tail = last[entry]
        unused[0] += 1
    place = tail * size + count[tail]
    for column in range(len(data)):
        data[column, place] = columns[column, at]
    ids[place] = number
    count[tail] += 1
    return True


@compiled
def partition_meets_box(
    table, size, entry, base, boxes, box, hi, negated, checks, number, outs, found, pairs
):
    """Tests the points of a partition against a box; see `match_points`."""
    data, ids, following, _, count, _, origins = table
    out_r, out_s = outs
    while entry >= 0:
        first = entry * size
        out_r, out_s, found = match_points(
            data, ids, base, origins, first, first + count[entry], boxes, box, hi, negated, checks, number,
            (out_r, out_s), found, pairs,
        )  # fmt: skip
        entry = following[entry]
    return out_r, out_s, found


@compiled
def partition_meets_point(
    table, size, entry, base, points, point, hi, negated, checks, number, outs, found, pairs
):
    """Tests the boxes of a partition against a point; see `match_boxes`."""
    data, ids, following, _, count, _, origins = table
    out_r, out_s = outs
    while entry >= 0:
        first = entry * size
        out_r, out_s, found = match_boxes(
            data, ids, base, origins, first, first + count[entry], points, point, hi, negated, checks, number,
            (out_r, out_s), found, pairs,
        )  # fmt: skip
        entry = following[entry]
    return out_r, out_s, found
