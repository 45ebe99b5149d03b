"""Nested loops: tests stored points against a box, and stored boxes against a point, one after the other.

They are the whole join where windows are tiny or no dimension can be indexed, and the last step of every
structure, which only narrows down what they have to look at. Stretches are tested dimension by dimension,
which the compiler turns into vector instructions.
"""

import numpy as np

from .compiled import compiled, inlined

#: How many candidates are tested at once.
TILE = 512
LOWEST, HIGHEST = np.uint64(0), np.uint64(2**64 - 1)


@inlined
def above(code, origin):
    """How far a code is above an origin, 0 if it is not: what is kept as distances is compared with that.

    Origins are below all that is kept, unless they are 0. So 0 is below all distances, as `code` is then.
    """
    return max(code, origin) - origin


@compiled
def listed(mask, count):
    """The dimensions whose bit is set in `mask`."""
    chosen = np.empty(count, np.int64)
    found = 0
    for k in range(count):
        if mask >> k & 1:
            chosen[found] = k
            found += 1
    return chosen[:found]


@inlined
def grown(array, used, wanted):
    """`array`, or a copy of its first `used` entries in one that has room for `wanted` more."""
    if used + wanted <= len(array):
        return array
    larger = np.empty(max(2 * len(array), used + wanted), array.dtype)
    larger[:used] = array[:used]
    return larger


@compiled
def match_points(
    points, ids, base, origins, first, last, boxes, box, hi, negated, checks, number, outs, found, pairs
):
    """Tests the points `first .. last - 1` against a box; returns the numbers found so far, and how many.

    Points are kept as distances from `origins`. With `pairs`, `outs` holds the `found` numbers of points
    and of boxes before these, and grows.
    """
    out_r, out_s = outs
    mask = np.empty(TILE, np.uint8)
    if pairs:
        out_r, out_s = grown(out_r, found, last - first), grown(out_s, found, last - first)
    elif len(checks) == 0:
        return out_r, out_s, found + last - first
    for begin in range(first, last, TILE):
        count = min(TILE, last - begin)
        mask[:count] = 1
        for c in range(len(checks)):
            k = checks[c]
            column, differs = points[k, begin : begin + count], np.uint8(negated[k])
            lowest = above(boxes[k, box], origins[k])
            highest = HIGHEST if hi[k] < 0 else above(boxes[hi[k], box], origins[k])
            for i in range(count):
                mask[i] &= np.uint8((column[i] >= lowest) & (column[i] <= highest)) ^ differs
        if pairs:
            for i in range(count):
                out_r[found] = base + ids[begin + i]
                out_s[found] = number
                found += mask[i]
        else:
            found += np.int64(mask[:count].sum())
    return out_r, out_s, found


@compiled
def match_boxes(
    boxes, ids, base, origins, first, last, points, point, hi, negated, checks, number, outs, found, pairs
):
    """Tests the boxes `first .. last - 1` against a point; see `match_points`."""
    out_r, out_s = outs
    mask = np.empty(TILE, np.uint8)
    if pairs:
        out_r, out_s = grown(out_r, found, last - first), grown(out_s, found, last - first)
    elif len(checks) == 0:
        return out_r, out_s, found + last - first
    for begin in range(first, last, TILE):
        count = min(TILE, last - begin)
        mask[:count] = 1
        for c in range(len(checks)):
            k = checks[c]
            lows, differs = boxes[k, begin : begin + count], np.uint8(negated[k])
            code = above(points[k, point], origins[k])
            if hi[k] < 0:
                for i in range(count):
                    mask[i] &= np.uint8(lows[i] <= code) ^ differs
            else:
                highs, reached = boxes[hi[k], begin : begin + count], above(points[k, point], origins[hi[k]])
                for i in range(count):
                    mask[i] &= np.uint8((lows[i] <= code) & (reached <= highs[i])) ^ differs
        if pairs:
            for i in range(count):
                out_r[found] = number
                out_s[found] = base + ids[begin + i]
                found += mask[i]
        else:
            found += np.int64(mask[:count].sum())
    return out_r, out_s, found


@inlined
def leading(checks, negated, spare):
    """Splits `checks`: two that are not negated (`spare` where there is none), and the rest."""
    leads, lead, rest = np.full(2, spare), 0, 0
    others = np.empty(len(checks), np.int64)
    for c in range(len(checks)):
        k = checks[c]
        if not negated[k] and lead < 2:
            leads[lead] = k
            lead += 1
        else:
            others[rest] = k
            rest += 1
    return leads[0], leads[1], others[:rest]


@compiled
def relation(lows, highs, box_lows, box_highs, hi, negated, begin):
    """Which dimensions, from `begin` on, decide between points and boxes with these extreme codes per column.

    A bit for each dimension that some pair may fail; -1 if no pair passes them all.
    """
    wanted = 0
    for k in range(begin, len(hi)):
        if negated[k]:
            wanted |= 1 << k
        elif highs[k] < box_lows[k] or (hi[k] >= 0 and lows[k] > box_highs[hi[k]]):
            return -1
        elif lows[k] < box_highs[k] or (hi[k] >= 0 and highs[k] > box_lows[hi[k]]):
            wanted |= 1 << k
    return wanted


@compiled
def block_pairs(points, boxes, hi, negated, values, chunk):
    """Tasks for `boxes_find_points`: every block of points with every block of boxes that may have pairs.

    Blocks are in arrival order, each with the places of its first and last tuple, and the dimensions after
    the first `values` are the windows'. So the blocks of boxes that a block of points can meet stand side
    by side, and move on with it.
    """
    lows, highs, first_place, last_place = points
    box_lows, box_highs, box_first_place, box_last_place, bounds = boxes
    tasks = np.empty((64, 4), np.int64)
    count, oldest = 0, 0
    for block in range(len(lows)):
        for other in range(oldest, len(box_lows)):
            near = relation(lows[block], highs[block], box_lows[other], box_highs[other], hi, negated, values)
            if near < 0:
                if box_last_place[other] < first_place[block]:
                    oldest = other + 1
                elif box_first_place[other] > last_place[block]:
                    break
                continue
            wanted = relation(lows[block], highs[block], box_lows[other], box_highs[other], hi, negated, 0)
            if wanted < 0:
                continue
            for begin in range(bounds[other], bounds[other + 1], chunk):
                if count == len(tasks):
                    larger = np.empty((2 * count, 4), np.int64)
                    larger[:count] = tasks
                    tasks = larger
                tasks[count, 0], tasks[count, 1] = block, begin
                tasks[count, 2], tasks[count, 3] = min(begin + chunk, bounds[other + 1]), wanted
                count += 1
    return tasks[:count]
