"""WiB+-Tree: a subwindow in a B+-tree with wide unsorted leaves and narrow sorted inner nodes.

              [ k | k | k ]              inner nodes: at most FAN separators, sorted
             /    |   |    \\
       [ k | k ] ...  ...  [ k ]
       /   |   \\
    leaf leaf leaf --> next leaf         leaves: LLAT entries, unsorted

A leaf is sorted only when it is full, to be split at a change of value near its middle. Equal keys stay in
one leaf, which is chained in the LLAT when they outgrow it. Keys that only increase make new leaves at the
right end, so nothing has to be known of their range. Every search begins where the one before ended, and
climbs only as far as it must. For boxes every leaf and node knows its highest bound, so a point descends
only to leaves that reach it.

A probe tests the leaves that its band touches.
"""

import numpy as np

from .bisort import Order, Part, Sorted
from .columns import Layout
from .compiled import compiled
from .llat import Table, partition_meets_box, partition_meets_point, put
from .nested import HIGHEST, LOWEST, listed

#: Separators in an inner node.
FAN = 32
#: The most levels of inner nodes; a level multiplies leaves by at least FAN / 2.
LEVELS = 16
_ROOT, _HEIGHT, _NODES = range(3)


@compiled
def _forget(path):
    """Makes the next descent begin at the root."""
    path[1, :] = HIGHEST
    path[2, :] = LOWEST


@compiled
def _descend(tree, path, code):
    """The leaf for `code`. Rows of `path`: the node of each level, and its lowest and highest key.

    The last column is the leaf's.
    """
    state, keys, children, counts = tree[0], tree[1], tree[2], tree[3]
    if path[1, LEVELS] <= code and code <= path[2, LEVELS]:
        return np.int64(path[0, LEVELS])
    height = state[_HEIGHT]
    level = 0
    while level < height and not (path[1, level] <= code and code <= path[2, level]):
        level += 1
    if level >= height:
        path[0, max(height - 1, 0)] = state[_ROOT]
        path[1, max(height - 1, 0)], path[2, max(height - 1, 0)] = LOWEST, HIGHEST
        level = height - 1
    leaf, low, high = state[_ROOT], LOWEST, HIGHEST
    while level >= 0:
        node = np.int64(path[0, level])
        slot, end = 0, counts[node]
        while slot < end:
            middle = (slot + end) // 2
            if keys[node, middle] <= code:
                slot = middle + 1
            else:
                end = middle
        low = keys[node, slot - 1] if slot else path[1, level]
        high = keys[node, slot] - np.uint64(1) if slot < counts[node] else path[2, level]
        leaf = children[node, slot]
        level -= 1
        if level >= 0:
            path[0, level], path[1, level], path[2, level] = leaf, low, high
    path[0, LEVELS], path[1, LEVELS], path[2, LEVELS] = leaf, low, high
    return np.int64(leaf)


@compiled
def _node_top(tree, node, level):
    """The highest bound below an inner node."""
    children, counts, tops, leaf_tops = tree[2], tree[3], tree[4], tree[8]
    top = LOWEST
    for slot in range(counts[node] + 1):
        child = children[node, slot]
        top = max(top, leaf_tops[child] if level == 0 else tops[child])
    return top


@compiled
def _add_child(tree, path, separator, child):
    """Puts a new leaf beside the one that `path` leads to; splits inner nodes that are full."""
    state, keys, children, counts, tops = tree[0], tree[1], tree[2], tree[3], tree[4]
    left = state[_ROOT]
    for level in range(state[_HEIGHT]):
        node = np.int64(path[0, level])
        slot = counts[node]
        while slot and keys[node, slot - 1] > separator:
            keys[node, slot] = keys[node, slot - 1]
            children[node, slot + 1] = children[node, slot]
            slot -= 1
        keys[node, slot], children[node, slot + 1] = separator, child
        counts[node] += 1
        if counts[node] <= FAN:
            return
        other = state[_NODES]
        state[_NODES] += 1
        half = (FAN + 1) // 2
        separator = keys[node, half]
        moved = counts[node] - half - 1
        for i in range(moved):
            keys[other, i] = keys[node, half + 1 + i]
        for i in range(moved + 1):
            children[other, i] = children[node, half + 1 + i]
        counts[node], counts[other] = half, moved
        tops[node], tops[other] = _node_top(tree, node, level), _node_top(tree, other, level)
        left, child = node, other
    root = state[_NODES]
    state[_NODES] += 1
    keys[root, 0], children[root, 0], children[root, 1], counts[root] = separator, left, child, 1
    state[_ROOT] = root
    state[_HEIGHT] += 1
    tops[root] = _node_top(tree, root, state[_HEIGHT] - 1)


@compiled
def _split(tree, table, size, path, leaf, key, hi_key):
    """Splits a full leaf with different keys in two; False if no entry is left for that."""
    data, ids, following, last, count, unused, _ = table
    leaf_next, leaf_lows, leaf_highs, leaf_tops = tree[5], tree[6], tree[7], tree[8]
    total, entries, entry = 0, 0, leaf
    while entry >= 0:
        total += count[entry]
        entries += 1
        entry = following[entry]
    if unused[0] == len(following):
        return False
    columns, numbers = np.empty((len(data), total), np.uint64), np.empty(total, np.uint32)
    chain = np.empty(entries + 1, np.int64)
    at, entry = 0, leaf
    for i in range(entries):
        chain[i] = entry
        first, amount = entry * size, count[entry]
        columns[:, at : at + amount] = data[:, first : first + amount]
        numbers[at : at + amount] = ids[first : first + amount]
        at += amount
        entry = following[entry]
    order = np.argsort(columns[key])
    middle, by = total // 2, 0
    # The change of value that is nearest to the middle.
    while True:
        cut = middle + by
        if 0 < cut < total and columns[key, order[cut - 1]] != columns[key, order[cut]]:
            break
        by = -by if by > 0 else 1 - by
    lower = (cut + size - 1) // size
    upper = (total - cut + size - 1) // size
    available = entries
    while available < lower + upper:
        chain[available] = unused[0]
        unused[0] += 1
        available += 1
    for begin, end, first_entry, used_entries in (
        (0, cut, 0, lower), (cut, total, lower, upper),
    ):  # fmt: skip
        head = chain[first_entry]
        for i in range(used_entries):
            entry = chain[first_entry + i]
            start = begin + i * size
            amount = min(size, end - start)
            for j in range(amount):
                place, source = entry * size + j, order[start + j]
                for column in range(len(data)):
                    data[column, place] = columns[column, source]
                ids[place] = numbers[source]
            count[entry] = amount
            following[entry] = chain[first_entry + i + 1] if i + 1 < used_entries else -1
        last[head] = chain[first_entry + used_entries - 1]
        leaf_lows[head], leaf_highs[head] = columns[key, order[begin]], columns[key, order[end - 1]]
        top = LOWEST
        for j in range(begin, end):
            top = max(top, HIGHEST if hi_key < 0 else columns[hi_key, order[j]])
        leaf_tops[head] = top
    new = chain[lower]
    leaf_next[new] = leaf_next[leaf]
    leaf_next[leaf] = new
    _add_child(tree, path, columns[key, order[cut]], new)
    _forget(path)
    return True


@compiled
def _insert(tree, table, size, path, batch, ids, shift, first, last, key, hi_key):
    """Inserts tuples, which are sorted; returns the first that found no place."""
    tops, leaf_lows, leaf_highs, leaf_tops = tree[4], tree[6], tree[7], tree[8]
    tails, count = table[3], table[4]
    for i in range(first, last):
        code = batch[key, i]
        leaf = _descend(tree, path, code)
        if count[tails[leaf]] == size and leaf_lows[leaf] != leaf_highs[leaf]:
            if not _split(tree, table, size, path, leaf, key, hi_key):
                return i
            leaf = _descend(tree, path, code)
        if not put(table, size, leaf, batch, i, ids[i] + shift):
            return i
        leaf_lows[leaf], leaf_highs[leaf] = min(leaf_lows[leaf], code), max(leaf_highs[leaf], code)
        top = HIGHEST if hi_key < 0 else batch[hi_key, i]
        leaf_tops[leaf] = max(leaf_tops[leaf], top)
        for level in range(tree[0][_HEIGHT]):
            node = np.int64(path[0, level])
            tops[node] = max(tops[node], top)
    return last


@compiled
def _boxes_find(tree, table, size, base, key, boxes, first, last, hi, negated, wanted, pairs):
    box_data, box_ids, box_base = boxes
    leaf_next, leaf_lows, leaf_highs = tree[5], tree[6], tree[7]
    out_r, out_s = np.empty(1024 * pairs, np.int64), np.empty(1024 * pairs, np.int64)
    found = 0
    path = np.empty((3, LEVELS + 1), np.uint64)
    _forget(path)
    checks, inner = listed(wanted | 1 << key, len(hi)), listed(wanted & ~(1 << key), len(hi))
    for box in range(first, last):
        low = box_data[key, box]
        high = HIGHEST if hi[key] < 0 else box_data[hi[key], box]
        leaf = _descend(tree, path, low)
        while leaf >= 0 and leaf_lows[leaf] <= high:
            if leaf_highs[leaf] >= low:
                tested = inner if leaf_lows[leaf] >= low and leaf_highs[leaf] <= high else checks
                out_r, out_s, found = partition_meets_box(
                    table, size, leaf, base, box_data, box, hi, negated, tested, box_base + box_ids[box],
                    (out_r, out_s), found, pairs,
                )  # fmt: skip
            leaf = leaf_next[leaf]
    return out_r[: found * pairs], out_s[: found * pairs], found


@compiled
def _points_find(tree, table, size, base, key, points, first, last, hi, negated, wanted, pairs):
    point_data, point_ids, point_base = points
    state, keys, children, counts, tops = tree[0], tree[1], tree[2], tree[3], tree[4]
    leaf_lows, leaf_tops = tree[6], tree[8]
    out_r, out_s = np.empty(1024 * pairs, np.int64), np.empty(1024 * pairs, np.int64)
    found = 0
    checks = listed(wanted | 1 << key, len(hi))
    waiting = np.empty((LEVELS * (FAN + 2), 2), np.int64)
    for point in range(first, last):
        code = point_data[key, point]
        waiting[0, 0], waiting[0, 1], left = state[_ROOT], state[_HEIGHT], 1
        while left:
            left -= 1
            node, level = waiting[left, 0], waiting[left, 1]
            if level:
                for slot in range(counts[node] + 1):
                    if slot and keys[node, slot - 1] > code:
                        break
                    child = children[node, slot]
                    if (leaf_tops[child] if level == 1 else tops[child]) >= code:
                        waiting[left, 0], waiting[left, 1] = child, level - 1
                        left += 1
            elif leaf_lows[node] <= code and leaf_tops[node] >= code:
                out_r, out_s, found = partition_meets_point(
                    table, size, node, base, point_data, point, hi, negated, checks,
                    point_base + point_ids[point], (out_r, out_s), found, pairs,
                )  # fmt: skip
    return out_r[: found * pairs], out_s[: found * pairs], found


class WibTree:
    """A subwindow of at most `rows` tuples in a WiB+-Tree."""

    def __init__(self, layout: Layout, boxes: bool, order: Order, base: int, rows: int):
        self._layout, self._boxes, self.order, self.base = layout, boxes, order, base
        columns = layout.box_columns if boxes else len(layout)
        self._table = Table(columns, rows, reserved=False)
        leaves = 2 * self._table.partitions
        # Inner nodes are at least half full but for the root.
        nodes = level = leaves // (FAN // 2) + 1
        while level > 1:
            level = level // (FAN // 2) + 1
            nodes += level
        self._tree = (
            np.zeros(3, np.int64),
            np.empty((nodes, FAN + 1), np.uint64),
            np.empty((nodes, FAN + 2), np.int32),
            np.zeros(nodes, np.int32),
            np.zeros(nodes, np.uint64),
            np.full(leaves, -1, np.int32),  # the next leaf
            np.full(leaves, HIGHEST),  # the lowest and the highest key in it
            np.zeros(leaves, np.uint64),
            np.zeros(leaves, np.uint64),  # its highest bound
        )
        self._table.arrays[5][0] = 1  # the first leaf
        self._path = np.empty((3, LEVELS + 1), np.uint64)
        _forget(self._path)
        self.lows, self.highs = np.full(columns, HIGHEST), np.zeros(columns, np.uint64)
        self.capacity, self._rows = rows, 0

    @property
    def bytes(self) -> int:
        """Bytes in use."""
        return self._table.bytes + self._path.nbytes + sum(array.nbytes for array in self._tree)

    def parts(self) -> list[Part]:
        """What a probe has to look into."""
        return [Part(self.lows, self.highs, self._meet)]

    def insert(self, run: Sorted, first: int, last: int) -> int:
        """Takes in a part of a sorted block; returns the first tuple there is no place for."""
        last = min(last, first + self.capacity - self._rows)
        key = self.order.key
        hi = self._layout.hi[key] if self._boxes else key
        shift = np.uint32(run.base - self.base)
        done = _insert(
            self._tree, self._table.arrays, self._table.size, self._path, run.data, run.ids, shift,
            first, last, key, hi,
        )  # fmt: skip
        if done > first:
            inserted = run.data[:, first:done]
            self.lows = np.minimum(self.lows, inserted.min(axis=1))
            self.highs = np.maximum(self.highs, inserted.max(axis=1))
            self._rows += done - first
        return done

    def seal(self) -> None:
        """Nothing more will be inserted."""

    def _meet(self, batch: Sorted, first: int, last: int, wanted: int, pairs: bool):
        """The pairs of a part of a sorted batch of the other stream with this subwindow."""
        find = _points_find if self._boxes else _boxes_find
        return find(
            self._tree, self._table.arrays, self._table.size, self.base, self.order.key,
            (batch.data, batch.ids, batch.base), first, last,
            self._layout.hi, self._layout.negated, wanted, pairs,
        )  # fmt: skip
