"""BI-Sort: tuples sorted by one dimension, an index of every 8th, and searches that start at the last find.

    positions   0 .. 7 | 8 .. 15 | ...        sorted by (stripe, key)
    heads       key[0]   key[8]    ...        the index
    tops        the largest high bound in each part, for boxes that two searches do not find
    rising      the largest in it and in the parts before it in its stripe

Points lie in the order of their code in the key dimension, boxes in that of their low bound. A box finds its
points between two searches; a point finds the boxes below it and walks down until `rising` says that no
earlier one reaches it. With a second selective dimension, tuples are first dealt into stripes by
splitters of that dimension, and each stripe is sorted: the two-attribute order.

Tuples to be joined are sorted the same way, so each search goes on where the one before ended: in the index
of the next parts, 16 at a time, then by doubling (rebounding binary search), and at last in the 8 keys of a
part, a cache line that was asked for some searches earlier. So two sorted sequences are walked through like
in a merge, and where a window is no longer in the cache, a probe takes little more than the time to read a
line. Within stripes, which are short, the next 8 keys come first.

Codes of a block are kept as distances from an origin in each column, in 32 bits where all fit: so twice as
many are in a cache line, and in the cache.

Where the key of such a block is tested for equality, a probe finds its tuples without a search. There is a
bit for each stretch of distances, in their order, which says whether any of them is there, and for each word
of 64 bits the position of the first. So what is not there, which is most of a window, takes no line of keys.

Memory: codes, 4 bytes of number, for every 8th tuple 4 or 8 bytes, or up to 24 (boxes that two searches
do not find), and up to 1.5 bytes for the bits and positions.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from .columns import Layout
from .compiled import compiled, counting, fetching, inlined, popcount, spread, stretches, widening
from .nested import HIGHEST, LOWEST, above, grown, leading, listed, match_boxes, match_points

#: Tuples per entry of the index: a cache line of keys, or half of one.
PART = 8
#: Bytes of a cache line.
LINE = 64
#: Tuples from which on codes are kept as distances: fewer are in the cache anyway.
PACKED = 8192
#: Bits for each tuple, at most, that say which keys are there.
BITS = 8
#: Entries of the index that are looked at together.
PARTS = 16
#: How often the next ones are looked at before a search by doubling: those lie in the cache, others do not.
LOOKS = 16
#: How many candidates of a search are tested before their end is searched for.
SHORT = 32
#: Tuples that a subwindow keeps unsorted.
BUFFER = 256
#: Tuples that are listed together, and that are tested together, where each costs more.
TAKEN, TESTED = 8, 4
#: How many entries ahead of a search the index comes into the cache: other arrays are read in between, so
#: that the processor does not see that this one is read in order.
AHEAD = 512
#: Searches that take a step together: while a group is looked up in the index, the one before it is sought in
#: the keys, and what the one before that has found is listed; all of it has come into the cache meanwhile.
GROUP = 192
#: How many searches ahead lines of keys and of numbers are asked for into the nearest cache.
SOON = 12
#: Searches in what is noted, which take all steps at once: so many that the few that find something wait for
#: memory together. Their lines would not all fit into the nearest cache.
NOTED_GROUP = 2048
#: How many bits a pass of the radix sort looks at.
DIGIT = 8


class Part(NamedTuple):
    """A part of a subwindow: the lowest and highest code in each column, and how it is probed.

    `meet(batch, first, last, wanted, pairs)` gives the pairs of some tuples of a sorted batch of the other
    stream with this part, testing the dimensions in `wanted`: numbers of points, of boxes, and their count.
    """

    lows: np.ndarray
    highs: np.ndarray
    meet: Callable


@dataclass(frozen=True)
class Order:
    """What tuples are sorted by: the key dimension (-1: none, they stay as they came), and stripes.

    `stripe` is the dimension that splitters deal into stripes (-1: none).
    """

    key: int
    stripe: int = -1
    splitters: np.ndarray = field(default_factory=lambda: np.empty(0, np.uint64))

    def same(self, other: "Order") -> bool:
        """Whether both sort alike."""
        known = self.key == other.key and self.stripe == other.stripe
        return known and np.array_equal(self.splitters, other.splitters)


#: How many keys of a part, and how many heads, are below a value.
_below, _heads_below = counting(PART, "<"), counting(PARTS, "<")
#: How many of the next keys are up to a bound, and their numbers, written to where pairs are listed.
_up_to, _take = counting(TAKEN, "<="), widening(TAKEN)
#: Into all caches, or only into those behind the nearest, which wait for more lines at a time.
_fetch_near, _fetch_far = fetching(3), fetching(2)


@inlined
def seek(keys, heads, first, last, at, value):
    """The first position in `first .. last` whose key is at least `value`, searched from `at` on."""
    if at + PART > last or (at > first and keys[at - 1] >= value):
        return _rebound(keys, heads, first, last, at, value)
    below = _below(keys, at, value)
    if below < PART:
        return at + below
    # Further away: the same among the heads of the next parts, then in the part that they lead to.
    part = at // PART + 1
    if (part + PARTS) * PART <= last:
        skipped = _heads_below(heads, part, value)
        if skipped < PARTS:
            begin = (part + skipped - 1) * PART
            return begin + _below(keys, begin, value)
    return _rebound(keys, heads, first, last, at + PART, value)


@inlined
def _halved(keys, low, high, value):
    """Neighbours in `low .. high`: the key of the first is below `value`, that of the second is not."""
    while high - low > 1:
        middle = (low + high) // 2
        if keys[middle] < value:
            low = middle
        else:
            high = middle
    return low, high


@compiled
def _leap(heads, part, final, value):
    """The last part up to `final` whose head is below `value`, or `part`, by doubling."""
    step = 1
    while part + step <= final and heads[part + step] < value:
        part += step
        step *= 2
    return _halved(heads, part, min(part + step, final + 1), value)[0]


@compiled
def _rebound(keys, heads, first, last, at, value):
    """`seek` for what lies further away."""
    step = 1
    if at < last and keys[at] < value:
        low = at
        while step <= PART and low + step < last and keys[low + step] < value:
            low += step
            step *= 2
        high = min(low + step, last)
        if step > PART:
            part = _leap(heads, low // PART, (last - 1) // PART, value)
            low, high = max(low, part * PART), min(part * PART + PART, last)
    else:
        high = at
        while step <= PART and high - step >= first and keys[high - step] >= value:
            high -= step
            step *= 2
        low = max(high - step, first - 1)
        if step > PART:
            upper, begin, step = high // PART + 1, (first + PART - 1) // PART, 1
            while upper - step >= begin and heads[upper - step] >= value:
                upper -= step
                step *= 2
            lower = max(upper - step, begin - 1)
            lower, upper = _halved(heads, lower, upper, value)
            low, high = max(lower * PART, first - 1) if lower >= begin else first - 1, min(high, upper * PART)
    return _halved(keys, low, high, value)[1]


@inlined
def _list(keys, ids, base, at, near, high, number, dense, numbers, others, found, pairs):
    """Lists the tuples from `at` on, up to `near`, whose keys are up to `high`; where that ends.

    There must be room: where arrays are replaced in a loop, each round counts references to them, and all
    reads wait for that.
    """
    # All TAKEN are written, and those count that are to.
    taken = TAKEN
    while dense and taken == TAKEN and at + TAKEN <= near:
        taken = _up_to(keys, at, high)
        if pairs:
            _take(ids, at, base, numbers, found)
            for k in range(TAKEN):
                others[np.uint64(found + k)] = number
        at += taken
        found += taken
    while at < near and keys[at] <= high:
        if pairs:
            numbers[found] = base + ids[at]
            others[found] = number
        found += 1
        at += 1
    return at, found


@inlined
def _walk_each(
    keys, tested, ids, base, heads, origin, first, last, part, codes, reach, highs, bounded, probes, begin,
    ahead, end, parts, sought, starts, hits, left, left_at, numbers, others, found, pairs,
):  # fmt: skip
    """Three steps of searches for `codes[begin:end]`, less `reach`, by turns; most come in rising order.

    A group of them takes each step. The codes from `ahead` on are looked up in the index: `parts` gets where
    the parts begin in which they are to be sought. From one to the next only the index is walked through,
    from `part` on: so searches in the keys, which are distances from `origin`, do not wait for each other.
    The codes of the group before are sought in their parts: `sought` gets the numbers of those for which
    there are keys up to their high bound (or may be, from the next part on), and `starts` the position of the
    first. Of the group before that, which made `hits` of these, SHORT tuples at most are listed for each;
    where there may be more, it is noted in `left` and `left_at`. So lines of the index, of keys and of
    numbers are asked for at an even rate, and are there when the next step needs them; as are those of
    `tested`, the first column that candidates are tested by, or the keys if there is none. A group ahead
    they are asked for only into caches behind the nearest, which waits for few lines at a time; those of keys
    and of numbers come into it SOON searches before.

    Returns the hits, the part reached, how many searches are left, and how many tuples have been found.
    """
    probe_ids, probe_base = probes
    final, kept, lefts = (last - 1) // PART, 0, 0
    for i in range(GROUP):
        soon = min(i + SOON, GROUP - 1)
        _fetch_near(keys, parts[soon])
        _fetch_near(ids, starts[soon])
        if i < hits:
            probe, at = sought[i], starts[i]
            high = above(highs[probe], origin) if bounded else HIGHEST
            near = min(at + SHORT, last)
            number = probe_base + probe_ids[probe]
            at, found = _list(keys, ids, base, at, near, high, number, True, numbers, others, found, pairs)
            left[lefts], left_at[lefts] = probe, at
            lefts += at == near and at < last
        behind = ahead - GROUP + i
        if begin <= behind < end:
            value = above(codes[behind] - min(reach, codes[behind]), origin)
            at = parts[i]
            if at >= first and at + PART < last:
                below = _below(keys, at, value)
                at += below
                # The first key may begin the next part, whose line is not waited for: listing will tell.
                over = below // PART
                hit = not bounded or keys[np.uint64(at - over)] <= above(highs[behind], origin) or over
            else:
                at, until = max(at, first), min(at + PART, last)
                while at < until and keys[at] < value:
                    at += 1
                hit = at < last and (not bounded or keys[at] <= above(highs[behind], origin))
            # No further than the searches that have just been listed.
            sought[kept], starts[kept] = behind, at
            kept += hit
            # What is listed soon comes into the cache now; no branch, because none could be foretold.
            place = first + (at - first) * hit
            until = min(place + TAKEN, last) - 1
            _fetch_far(ids, place)
            _fetch_far(ids, until)
            _fetch_far(keys, until)
            _fetch_far(tested, place)
            _fetch_far(tested, until)
        if ahead + i < end:
            code = codes[ahead + i]
            value = above(code - min(reach, code), origin)
            # On to the last part whose head is below the value: the first key that is not is in it, or next.
            if part * PART > first and heads[part] >= value:
                part = _leap(heads, first // PART, part - 1, value)
            skipped, looks = PARTS, LOOKS
            while skipped == PARTS and looks and part + PARTS < final:
                skipped = _heads_below(heads, part + 1, value)
                part += skipped
                looks -= 1
            if skipped == PARTS:
                part = _leap(heads, part, final, value)
            parts[i] = part * PART
            _fetch_far(keys, part * PART)
            _fetch_far(heads, min(part + AHEAD, final))
    return kept, part, lefts, found


@compiled
def _note(keys, shift, bits, starts):
    """Sets the bits of sorted keys, and the positions of the first key of each word and of those after it.

    A word is collected and written again with each of its keys, so that nothing written is waited for.
    `starts` begins with zeros, and stretches without keys begin where those before them end.
    """
    last, collected = np.uint64(0), np.uint64(0)
    for i in range(len(keys)):
        at = np.uint64(keys[np.uint64(i)]) >> shift
        word, bit = at >> np.uint64(6), np.uint64(1) << (at & np.uint64(63))
        collected = bit | (collected if word == last else np.uint64(0))
        last = word
        bits[word], starts[word + np.uint64(1)] = collected, i + 1
    for word in range(1, len(starts)):
        starts[word] = max(starts[word], starts[word - 1])


@compiled
def _find_each(keys, tested, ids, noted, origin, codes, begin, end, sought, found):
    """Seeks as `_walk_each` does where only equal keys count, by what `_note` has noted of them."""
    bits, starts, shift = noted
    words, wanted, count = np.uint64(len(bits)), 0, 0
    for i in range(begin, end):
        at = above(codes[i], origin) >> shift
        word = at >> np.uint64(6)
        _fetch_near(starts, word)
        sought[wanted] = i
        if word < words:
            wanted += np.int64(bits[word] >> (at & np.uint64(63)) & np.uint64(1))
    for j in range(wanted):
        at = above(codes[sought[j]], origin) >> shift
        word = at >> np.uint64(6)
        # There is a key for each bit before this one: mostly that is all, and this is the place.
        before = bits[word] & ((np.uint64(1) << (at & np.uint64(63))) - np.uint64(1))
        found[j] = np.int64(starts[word]) + np.int64(popcount(before))
        _fetch_far(keys, found[j])
    for j in range(wanted):
        i = sought[j]
        value = above(codes[i], origin)
        at, until = found[j], np.int64(starts[(value >> shift >> np.uint64(6)) + np.uint64(1)])
        if until - at > 2 * SHORT:
            at = _halved(keys, at - 1, until, value)[1]
        while at < until and keys[at] < value:
            at += 1
        sought[count], found[count] = i, at
        count += at < until and keys[at] == value
        _fetch_far(ids, min(at, until - 1))
        _fetch_far(tested, min(at, until - 1))
    return count


@compiled
def _list_each(
    keys, ids, base, last, origin, codes, probes, sought, starts, count, left, left_at, numbers, others,
    found, pairs,
):  # fmt: skip
    """Lists as `_walk_each` does where only equal keys count: how many are left, and how many were found."""
    probe_ids, probe_base = probes
    lefts = 0
    for i in range(count):
        probe, at = sought[i], starts[i]
        near, value = min(at + SHORT, last), above(codes[probe], origin)
        number = probe_base + probe_ids[probe]
        # Equal keys are few: lines of keys and numbers behind them would be read for nothing.
        at, found = _list(keys, ids, base, at, near, value, number, False, numbers, others, found, pairs)
        left[lefts], left_at[lefts] = probe, at
        lefts += at == near and at < last
    return lefts, found


@inlined
def after(keys, heads, first, last, at, value):
    """The first position in `first .. last` whose key is above `value`, searched from `at` on."""
    return last if value == HIGHEST else seek(keys, heads, first, last, at, value + np.uint64(1))


@inlined
def stripe_of(splitters, code):
    """How many splitters are at or below `code`."""
    low, high = 0, len(splitters)
    while low < high:
        middle = (low + high) // 2
        if splitters[middle] <= code:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _radix_pass(keys, places, other_keys, other_places, count, shift):
    counts = np.zeros((1 << DIGIT) + 1, np.int64)
    last = np.uint64((1 << DIGIT) - 1)
    for i in range(count):
        counts[np.int64((keys[i] >> shift) & last) + 1] += 1
    for digit in range(1 << DIGIT):
        counts[digit + 1] += counts[digit]
    for i in range(count):
        digit = np.int64((keys[i] >> shift) & last)
        other_keys[counts[digit]] = keys[i]
        other_places[counts[digit]] = places[i]
        counts[digit] += 1


@compiled
def _sort(keys, places, other_keys, other_places, count):
    """Sorts `places` by `keys`, in passes over the digits that differ; the outcome is in what it returns."""
    different = np.uint64(0)
    for i in range(1, count):
        different |= keys[i] ^ keys[0]
    for shift in range(0, 64, DIGIT):
        if different >> np.uint64(shift) & np.uint64((1 << DIGIT) - 1):
            _radix_pass(keys, places, other_keys, other_places, count, np.uint64(shift))
            keys, places, other_keys, other_places = other_keys, other_places, keys, places
    return keys, places, other_keys, other_places


@compiled
def _sort_blocks(source, numbers, bounds, from_block, to_block, key, stripe, splitters, target):
    """Sorts blocks of `source`, and notes where stripes begin and the lowest and highest code per column."""
    data, ids, offsets, lows, highs = target
    longest = 0
    for block in range(from_block, to_block):
        longest = max(longest, bounds[block + 1] - bounds[block])
    keys, other_keys = np.empty(longest, np.uint64), np.empty(longest, np.uint64)
    places, other_places = np.empty(longest, np.int32), np.empty(longest, np.int32)
    for block in range(from_block, to_block):
        begin, count = bounds[block], bounds[block + 1] - bounds[block]
        for i in range(count):
            places[i] = i
        offsets[block, :] = begin
        if key >= 0:
            keys[:count] = source[key, begin : begin + count]
            keys, places, other_keys, other_places = _sort(keys, places, other_keys, other_places, count)
        if len(splitters):
            for i in range(count):
                keys[i] = stripe_of(splitters, source[stripe, begin + places[i]])
                offsets[block, np.int64(keys[i]) + 1] += 1
            for q in range(len(splitters)):
                offsets[block, q + 2] += offsets[block, q + 1] - begin
            keys, places, other_keys, other_places = _sort(keys, places, other_keys, other_places, count)
        else:
            offsets[block, 1] = begin + count
        for i in range(count):
            ids[begin + i] = numbers[begin + places[i]]
        for column in range(len(source)):
            lowest, highest = HIGHEST, np.uint64(0)
            for i in range(count):
                code = source[column, begin + places[i]]
                data[column, begin + i] = code
                lowest, highest = min(lowest, code), max(highest, code)
            lows[block, column], highs[block, column] = lowest, highest


@compiled
def _index(offsets, highs, stripe_highs, heads, tops, rising, stripe_tops, stripe_rising):
    """The largest high bounds of a block's parts and stripes, see the top of this file."""
    count = len(highs)
    for part in range(len(heads)):
        tops[part] = highs[part * PART : min(part * PART + PART, count)].max()
    stripe = 0
    for part in range(len(heads)):
        while offsets[stripe + 1] <= part * PART:
            stripe += 1
        # The stripe that the part begins in may itself have begun within the part before.
        reach = part * PART - offsets[stripe]
        rising[part] = tops[part]
        if reach > 0:
            rising[part] = max(tops[part], tops[part - 1] if reach < PART else rising[part - 1])
    largest = np.uint64(0)
    for stripe in range(len(stripe_tops)):
        top = np.uint64(0)
        for at in range(offsets[stripe], offsets[stripe + 1]):
            top = max(top, stripe_highs[at])
        largest = max(largest, top)
        stripe_tops[stripe], stripe_rising[stripe] = top, largest


@compiled
def _widths(boxes, hi):
    """How far the narrowest and the widest of some boxes reach above their low bound, in each dimension."""
    narrowest, widest = np.full(len(hi), HIGHEST), np.zeros(len(hi), np.uint64)
    for d in range(len(hi)):
        if hi[d] < 0:
            widest[d] = HIGHEST
            continue
        lows, highs = boxes[d], boxes[hi[d]]
        for box in range(len(lows)):
            width = highs[box] - lows[box]
            narrowest[d], widest[d] = min(narrowest[d], width), max(widest[d], width)
    return narrowest, widest


@inlined
def _merge_rest(one, one_raised, i, i_end, other, other_raised, j, j_end, keys, later):
    """`_merge_keys` one by one, to the end."""
    while i < i_end or j < j_end:
        from_other = i == i_end or (j < j_end and other[j] + other_raised < one[i] + one_raised)
        keys[i + j] = other[j] + other_raised if from_other else one[i] + one_raised
        later[i + j] = from_other
        i, j = i + np.uint64(not from_other), j + np.uint64(from_other)


@compiled
def _merge_keys(one, one_raised, one_offsets, other, other_raised, other_offsets, keys, later):
    """Merges sorted keys, each raised by a distance, stripe by stripe; `later` says which are from `other`.

    Halves of a stripe take steps by turns, so that none waits for what the other reads; and a step is no
    branch, because none could be foretold. Of equal keys, those of `one` come first.
    """
    for stripe in range(len(one_offsets) - 1):
        i, i_end = one_offsets[stripe], one_offsets[stripe + 1]
        j, j_end = other_offsets[stripe], other_offsets[stripe + 1]
        # What is below the second half of `one` goes before it.
        p, q = (i + i_end) // 2, j_end
        low = j if i < i_end else q
        while low < q:
            middle = (low + q) // 2
            if other[middle] + other_raised < one[p] + one_raised:
                low = middle + 1
            else:
                q = middle
        i, j, i_half, j_half = np.uint64(i), np.uint64(j), np.uint64(p), np.uint64(q)
        p, q, p_end, q_end = i_half, j_half, np.uint64(i_end), np.uint64(j_end)
        while i < i_half and j < j_half and p < p_end and q < q_end:
            a, b = one[i] + one_raised, other[j] + other_raised
            c, d = one[p] + one_raised, other[q] + other_raised
            first, second = np.uint64(b < a), np.uint64(d < c)
            keys[i + j], later[i + j] = min(a, b), first
            keys[p + q], later[p + q] = min(c, d), second
            i, j = i + np.uint64(1) - first, j + first
            p, q = p + np.uint64(1) - second, q + second
        _merge_rest(one, one_raised, i, i_half, other, other_raised, j, j_half, keys, later)
        _merge_rest(one, one_raised, p, p_end, other, other_raised, q, q_end, keys, later)


@compiled
def _deal(one, one_raised, other, other_raised, later, column):
    """Brings a column of merged tuples into the order of their keys, raised like these."""
    i = j = np.uint64(0)
    # What is read of the one that has come to its end is not used.
    i_last, j_last = np.uint64(len(one) - 1), np.uint64(len(other) - 1)
    for at in range(len(later)):
        from_other = np.uint64(later[np.uint64(at)])
        a, b = one[min(i, i_last)] + one_raised, other[min(j, j_last)] + other_raised
        column[np.uint64(at)] = b if from_other else a
        i, j = i + np.uint64(1) - from_other, j + from_other


def _room(columns: int, count: int, key: int, kind: type = np.uint64) -> np.ndarray:
    """Space for columns of codes; no part of the column `key` lies in two cache lines."""
    line = LINE // np.dtype(kind).itemsize
    space = np.empty(columns * count + line, kind)
    address = space.__array_interface__["data"][0]
    begin = -(address // space.itemsize + max(key, 0) * count) % line
    return space[begin : begin + columns * count].reshape(columns, count)


def _distances(lows: np.ndarray, highs: np.ndarray, count: int) -> tuple[np.ndarray, type]:
    """What `count` codes between these of each column are kept as distances from, and their type."""
    if count >= PACKED:
        origins = np.maximum(lows, 1) - np.uint64(1)  # below all, see `above`
        if (highs - origins < 2**32).all():
            return origins, np.uint32
    return np.zeros_like(lows), np.uint64


#: Nothing noted of any key.
NOTHING = np.empty(0, np.uint64), np.empty(0, np.uint32), np.uint64(0)
#: No high bounds of parts and stripes.
NO_TOPS = (np.empty(0, np.uint64),) * 4


class Sorted:
    """Points or boxes in sorted blocks.

    A block is a stretch of rows in the order they came; `ids` are row numbers less `base`, and `data` codes
    less `origins`.
    """

    def __init__(self, data, ids, base, origins, order: Order, offsets, lows, highs):
        self.data, self.ids, self.base, self.origins, self.order = data, ids, base, origins, order
        self.offsets = offsets  #: int64[block, stripe + 1]
        self.lows, self.highs = lows, highs  #: uint64[block, column]
        key = max(order.key, 0)
        self.heads = data[key, ::PART].copy() if order.key >= 0 else np.empty(0, data.dtype)
        self.tops = self.widths = None
        self.noted = NOTHING

    @classmethod
    def build(
        cls,
        columns: np.ndarray,
        numbers: np.ndarray,
        base: int,
        bounds: np.ndarray,
        order: Order,
        threads: int = 1,
    ) -> "Sorted":
        """Sorts each of the blocks that `bounds` cuts `columns` into."""
        blocks = len(bounds) - 1
        data, ids = _room(*columns.shape, order.key), np.empty(columns.shape[1], np.uint32)
        offsets = np.empty((blocks, len(order.splitters) + 2), np.int64)
        lows, highs = np.empty((2, blocks, len(columns)), np.uint64)
        target = data, ids, offsets, lows, highs
        spread(
            _sort_blocks,
            (
                (columns, numbers, bounds, a, b, order.key, order.stripe, order.splitters, target)
                for a, b in stretches(blocks, threads)
            ),
            threads,
        )
        return cls(data, ids, base, np.zeros(len(data), np.uint64), order, offsets, lows, highs)

    def __len__(self) -> int:
        return len(self.ids)

    def points(self) -> tuple:
        """What `boxes_find_points` takes."""
        order = self.order
        searched = order.key, order.stripe, order.splitters, self.heads, self.noted
        return self.data, self.ids, self.base, self.origins, self.offsets, *searched

    def boxes(self) -> tuple:
        """What `points_find_boxes` takes."""
        *what, offsets, key, stripe, splitters, heads, noted = self.points()
        return *what, offsets[0], key, stripe, splitters, heads, noted, self.tops, *self.widths

    @property
    def bytes(self) -> int:
        """Bytes in use, index included."""
        parts = [self.data, self.ids, self.origins, self.offsets, self.heads, self.lows, self.highs]
        parts += self.noted[:2]
        return sum(part.nbytes for part in [*parts, *(self.tops or ()), *(self.widths or ())])

    def with_tops(self, layout: Layout) -> "Sorted":
        """Adds what points need to find the boxes of the only block, unless two searches decide."""
        parts, stripes = len(self.heads), self.offsets.shape[1] - 1
        narrowest, widest = (width[max(self.order.key, 0)] for width in self.widths)
        if stripes == 1 and narrowest == widest:
            self.tops = NO_TOPS
            return self
        tops, rising = np.empty((2, parts), np.uint64)
        stripe_tops, stripe_rising = np.empty((2, stripes), np.uint64)
        bounds = [layout.hi[max(d, 0)] for d in (self.order.key, self.order.stripe)]
        highs = [self.data[hi] if hi >= 0 else np.full(len(self), HIGHEST) for hi in bounds]
        _index(self.offsets[0], *highs, self.heads, tops, rising, stripe_tops, stripe_rising)
        self.tops = tops, rising, stripe_tops, stripe_rising
        for array, hi in zip(self.tops, np.repeat(bounds, 2)):
            array += self.origins[hi] if hi >= 0 else LOWEST
        return self

    def with_notes(self, layout: Layout) -> "Sorted":
        """Adds what finds equal keys in the only block, where they are tested for that."""
        key = self.order.key
        if key >= 0 and layout.hi[key] == key and self.data.dtype == np.uint32 and self.offsets.shape[1] == 2:
            most = int(self.highs[0, key] - self.origins[key])
            shift = np.uint64((most // (BITS * len(self))).bit_length())
            words = (most >> int(shift)) // 64 + 1
            bits, starts = np.zeros(words, np.uint64), np.zeros(words + 1, np.uint32)
            _note(self.data[key], shift, bits, starts)
            self.noted = bits, starts, shift
        return self

    def with_widths(self, layout: Layout) -> "Sorted":
        """Adds how wide boxes are, which is taken over when blocks are merged."""
        assert not self.origins.any(), "widths of codes, not of distances"
        self.widths = _widths(self.data, layout.hi)
        return self

    def packed(self) -> "Sorted":
        """The only block, with codes in as few bits as they take."""
        origins, kind = _distances(self.lows[0], self.highs[0], len(self))
        if self.data.dtype == kind:
            return self
        data = _room(*self.data.shape, self.order.key, kind)
        np.subtract(self.data, origins[:, None], out=data, casting="unsafe")
        made = Sorted(data, self.ids, self.base, origins, self.order, self.offsets, self.lows, self.highs)
        made.widths = self.widths
        return made

    def merged(self, other: "Sorted") -> "Sorted":
        """This and a later one, both of one block, as one block."""
        count = len(self) + len(other)
        lows, highs = np.minimum(self.lows, other.lows), np.maximum(self.highs, other.highs)
        origins, kind = _distances(lows[0], highs[0], count)
        key = self.order.key
        data, ids = _room(len(self.data), count, key, kind), np.empty(count, np.uint32)
        offsets, later = self.offsets + other.offsets, np.empty(count, np.bool_)
        raised, other_raised = self.origins - origins, other.origins - origins
        _merge_keys(
            *(self.data[key], raised[key], self.offsets[0]),
            *(other.data[key], other_raised[key], other.offsets[0]),
            *(data[key], later),
        )
        for column in range(len(data)):
            if column != key:
                _deal(
                    *(self.data[column], raised[column], other.data[column], other_raised[column]),
                    *(later, data[column]),
                )
        _deal(self.ids, np.uint32(0), other.ids, np.uint32(other.base - self.base), later, ids)
        merged = Sorted(data, ids, self.base, origins, self.order, offsets, lows, highs)
        if self.widths:
            (narrow, wide), (other_narrow, other_wide) = self.widths, other.widths
            merged.widths = np.minimum(narrow, other_narrow), np.maximum(wide, other_wide)
        return merged


@inlined
def _in_box(one, one_low, one_high, two, two_low, two_high):
    """Whether two codes of a point lie between these bounds; all are compared, without a branch."""
    return (one >= one_low) & (one <= one_high) & (two >= two_low) & (two <= two_high)


@inlined
def _holds(lows, highs, at, code, reached, evenly):
    """Whether the box at `at` holds `code`; `reached` is the same above the origin of `highs`.

    `evenly` is how wide the widest box is, and whether all are: then no high bound is read.
    """
    width, even = evenly
    return (lows[at] <= code) & (code - lows[at] <= width if even else reached <= highs[at])


@compiled
def _test_points(
    keys, ids, base, last, origin, highs, bounded, one, two, probes, sought, starts, count, dense, left,
    left_at, numbers, others, found, pairs,
):  # fmt: skip
    """Lists as `_walk_each` does for `count` boxes that were sought, testing points in two dimensions more.

    If `dense`, TESTED of them are tested together: mostly several are held. There must be room for SHORT
    pairs of each box. Returns how many searches are left, and how many tuples have been found.
    """
    probe_ids, probe_base = probes
    ones, one_lows, one_highs, one_bounded, one_origin = one
    twos, two_lows, two_highs, two_bounded, two_origin = two
    lefts = 0
    for i in range(count):
        box, at = sought[i], starts[i]
        number, near = probe_base + probe_ids[box], min(at + SHORT, last)
        high = above(highs[box], origin) if bounded else HIGHEST
        one_low, two_low = above(one_lows[box], one_origin), above(two_lows[box], two_origin)
        one_high = above(one_highs[box], one_origin) if one_bounded else HIGHEST
        two_high = above(two_highs[box], two_origin) if two_bounded else HIGHEST
        taken = TESTED
        while dense and taken == TESTED and at + TESTED <= near:
            taken = 0
            for k in range(TESTED):
                place = np.uint64(at + k)
                held = keys[place] <= high
                if pairs:
                    numbers[np.uint64(found)] = base + ids[place]
                    others[np.uint64(found)] = number
                found += held & _in_box(ones[place], one_low, one_high, twos[place], two_low, two_high)
                taken += held
            at += taken
        while at < near and keys[at] <= high:
            if pairs:
                numbers[found] = base + ids[at]
                others[found] = number
            found += _in_box(ones[at], one_low, one_high, twos[at], two_low, two_high)
            at += 1
        left[lefts], left_at[lefts] = box, at
        lefts += at == near and at < last
    return lefts, found


@compiled
def _test_boxes(
    keys, ids, base, last, origin, codes, one, two, probes, sought, starts, count, dense, left, left_at,
    numbers, others, found, pairs,
):  # fmt: skip
    """`_test_points` for points that were sought, and boxes."""
    probe_ids, probe_base = probes
    one_lows, one_highs, one_codes, one_origin, one_top, one_evenly = one
    two_lows, two_highs, two_codes, two_origin, two_top, two_evenly = two
    lefts = 0
    for i in range(count):
        point, at = sought[i], starts[i]
        number, near = probe_base + probe_ids[point], min(at + SHORT, last)
        high = above(codes[point], origin)
        one_code, one_reached = above(one_codes[point], one_origin), above(one_codes[point], one_top)
        two_code, two_reached = above(two_codes[point], two_origin), above(two_codes[point], two_top)
        taken = TESTED
        while dense and taken == TESTED and at + TESTED <= near:
            taken = 0
            for k in range(TESTED):
                place = np.uint64(at + k)
                held = keys[place] <= high
                if pairs:
                    numbers[np.uint64(found)] = base + ids[place]
                    others[np.uint64(found)] = number
                fits = held & _holds(one_lows, one_highs, place, one_code, one_reached, one_evenly)
                found += fits & _holds(two_lows, two_highs, place, two_code, two_reached, two_evenly)
                taken += held
            at += taken
        while at < near and keys[at] <= high:
            if pairs:
                numbers[found] = base + ids[at]
                others[found] = number
            fits = _holds(one_lows, one_highs, at, one_code, one_reached, one_evenly)
            found += fits & _holds(two_lows, two_highs, at, two_code, two_reached, two_evenly)
            at += 1
        left[lefts], left_at[lefts] = point, at
        lefts += at == near and at < last
    return lefts, found


@compiled
def boxes_find_points(points, boxes, hi, negated, tasks, pairs):
    """The pairs of some boxes with blocks of points.

    A task is a block of points, the first box and the one after the last, and the dimensions to test.
    """
    data, ids, base, origins, offsets, key, stripe, splitters, heads, noted = points
    box_data, box_ids, box_base = boxes
    origin = origins[max(key, 0)]
    out_r, out_s = np.empty(1024 * pairs, np.int64), np.empty(1024 * pairs, np.int64)
    found = 0
    keys, lows, highs = data[max(key, 0)], box_data[max(key, 0)], box_data[hi[max(key, 0)]]
    bounded = hi[max(key, 0)] >= 0
    stripes = offsets.shape[1] - 1
    at = np.empty(stripes, np.int64)
    searched, group = stripes == 1 and key >= 0, NOTED_GROUP if len(noted[0]) else GROUP
    room = np.empty((5, group), np.int64)
    parts, sought, starts, left, left_at = room[0], room[1], room[2], room[3], room[4]
    parts[:GROUP], starts[:GROUP] = 0, 0  # lines are asked for by these before any is sought
    lowest_stripe, highest_stripe = 0, 0
    for task in range(len(tasks)):
        block, begin, end = tasks[task, 0], tasks[task, 1], tasks[task, 2]
        checks = listed(tasks[task, 3] if key < 0 else tasks[task, 3] & ~(1 << key), len(hi))
        # Where there are fewer tests, the key's is repeated: it holds for whatever is found.
        one, two, rest = leading(checks, negated, max(key, 0))
        ones, one_lows, one_highs, one_bounded = data[one], box_data[one], box_data[hi[one]], hi[one] >= 0
        twos, two_lows, two_highs, two_bounded = data[two], box_data[two], box_data[hi[two]], hi[two] >= 0
        for q in range(stripes):
            at[q] = offsets[block, q]
        reached = at[0] // PART
        listing = searched and not len(checks)
        testing = searched and not listing and not len(rest)
        waiting, places = (left, left_at) if listing or testing else (sought, starts)
        hits = 0
        # Behind the end the last groups are sought and listed.
        for ahead in range(begin, end + 2 * group, group):
            until = min(ahead + group, end)
            count = until - ahead  # of those that are listed one by one
            if len(noted[0]):
                count = _find_each(keys, ones, ids, noted, origin, lows, ahead, until, sought, starts)
                if listing:
                    if pairs:
                        out_r, out_s = grown(out_r, found, count * SHORT), grown(out_s, found, count * SHORT)
                    count, found = _list_each(
                        keys, ids, base, offsets[block, 1], origin, lows, (box_ids, box_base), sought, starts,
                        count, left, left_at, out_r, out_s, found, pairs,
                    )  # fmt: skip
            elif searched:
                if pairs:
                    out_r, out_s = grown(out_r, found, hits * SHORT), grown(out_s, found, hits * SHORT)
                hits, reached, count, found = _walk_each(
                    keys, ones, ids, base, heads, origin, offsets[block, 0], offsets[block, 1], reached, lows,
                    LOWEST, highs, bounded, (box_ids, box_base), begin, ahead, end, parts, sought, starts,
                    hits, left, left_at, out_r, out_s, found, pairs,
                )  # fmt: skip
                if not listing:
                    count, hits = hits, 0
            if testing:
                if pairs:
                    out_r, out_s = grown(out_r, found, count * SHORT), grown(out_s, found, count * SHORT)
                count, found = _test_points(
                    keys, ids, base, offsets[block, 1], origin, highs, bounded,
                    (ones, one_lows, one_highs, one_bounded, origins[one]),
                    (twos, two_lows, two_highs, two_bounded, origins[two]),
                    (box_ids, box_base), sought, starts, count, not len(noted[0]), left, left_at, out_r,
                    out_s, found, pairs,
                )  # fmt: skip
            for i in range(count):
                box = waiting[i] if searched else ahead + i
                number = box_base + box_ids[box]
                one_low, two_low = above(one_lows[box], origins[one]), above(two_lows[box], origins[two])
                one_high = above(one_highs[box], origins[one]) if one_bounded else HIGHEST
                two_high = above(two_highs[box], origins[two]) if two_bounded else HIGHEST
                low, high = above(lows[box], origin), above(highs[box], origin) if bounded else HIGHEST
                if stripes > 1:
                    lowest_stripe = stripe_of(splitters, box_data[stripe, box])
                    highest_stripe = stripes - 1
                    if hi[stripe] >= 0:
                        highest_stripe = stripe_of(splitters, box_data[hi[stripe], box])
                for q in range(lowest_stripe, highest_stripe + 1):
                    first, last = offsets[block, q], offsets[block, q + 1]
                    if key >= 0 and first < last:
                        if searched:
                            first = places[i]
                        else:
                            at[q] = first = seek(keys, heads, first, last, at[q], low)
                        if pairs and found + SHORT > len(out_r):
                            out_r, out_s = grown(out_r, found, SHORT), grown(out_s, found, SHORT)
                        near = min(first + SHORT, last)
                        while first < near and keys[first] <= high:
                            fits = _in_box(ones[first], one_low, one_high, twos[first], two_low, two_high)
                            if fits and len(rest):
                                for c in range(len(rest)):
                                    k = rest[c]
                                    code = data[k, first]
                                    inside = code >= above(box_data[k, box], origins[k])
                                    if hi[k] >= 0:
                                        inside &= code <= above(box_data[hi[k], box], origins[k])
                                    fits &= inside != negated[k]
                            if pairs:
                                out_r[found] = base + ids[first]
                                out_s[found] = number
                            found += fits
                            first += 1
                        if first < near or first == last:
                            continue
                        last = after(keys, heads, first, last, first, high)
                    if first < last:
                        out_r, out_s, found = match_points(
                            data, ids, base, origins, first, last, box_data, box, hi, negated, checks, number,
                            (out_r, out_s), found, pairs,
                        )  # fmt: skip
    return out_r[: found * pairs], out_s[: found * pairs], found


@compiled
def points_find_boxes(boxes, points, begin, end, hi, negated, wanted, pairs):
    """The pairs of the points `begin .. end - 1` with a block of boxes, testing the dimensions `wanted`."""
    data, ids, base, origins, offsets, key, stripe, splitters, heads, noted = boxes[:10]
    index, narrowest, widest = boxes[10:]
    origin = origins[max(key, 0)]
    tops, rising, stripe_tops, stripe_rising = index
    point_data, point_ids, point_base = points
    out_r, out_s = np.empty(1024 * pairs, np.int64), np.empty(1024 * pairs, np.int64)
    found = 0
    keys, codes = data[max(key, 0)], point_data[max(key, 0)]
    stripes = len(offsets) - 1
    at = offsets[:stripes].copy()
    reached = at[0] // PART
    searched, group = stripes == 1 and key >= 0, NOTED_GROUP if len(noted[0]) else GROUP
    room = np.empty((5, group), np.int64)
    parts, sought, starts, left, left_at = room[0], room[1], room[2], room[3], room[4]
    parts[:GROUP], starts[:GROUP] = 0, 0  # lines are asked for by these before any is sought
    # Where all boxes are equally wide, two searches decide; else only that a box may reach the point.
    reach = widest[max(key, 0)]
    decided = narrowest[max(key, 0)] == reach
    checks = listed(wanted & ~(1 << key) if key >= 0 and decided else wanted, len(hi))
    one, two, rest = leading(checks, negated, max(key, 0))
    one_lows, one_highs, one_codes = data[one], data[hi[one]], point_data[one]
    two_lows, two_highs, two_codes = data[two], data[hi[two]], point_data[two]
    one_origin, one_top, two_origin, two_top = origins[one], origins[hi[one]], origins[two], origins[hi[two]]
    one_evenly = widest[one], narrowest[one] == widest[one]
    two_evenly = widest[two], narrowest[two] == widest[two]
    listing = searched and not len(checks)
    testing = searched and not listing and not len(rest)
    waiting, places = (left, left_at) if listing or testing else (sought, starts)
    hits = 0
    for ahead in range(begin, end + 2 * group, group):
        until = min(ahead + group, end)
        count = until - ahead
        if len(noted[0]):
            count = _find_each(keys, one_lows, ids, noted, origin, codes, ahead, until, sought, starts)
            if listing:
                if pairs:
                    out_r, out_s = grown(out_r, found, count * SHORT), grown(out_s, found, count * SHORT)
                count, found = _list_each(
                    keys, ids, base, offsets[1], origin, codes, (point_ids, point_base), sought, starts,
                    count, left, left_at, out_s, out_r, found, pairs,
                )  # fmt: skip
        elif searched:
            if pairs:
                out_r, out_s = grown(out_r, found, hits * SHORT), grown(out_s, found, hits * SHORT)
            hits, reached, count, found = _walk_each(
                keys, one_lows, ids, base, heads, origin, offsets[0], offsets[1], reached, codes, reach,
                codes, True, (point_ids, point_base), begin, ahead, end, parts, sought, starts, hits, left,
                left_at, out_s, out_r, found, pairs,
            )  # fmt: skip
            if not listing:
                count, hits = hits, 0
        if testing:
            if pairs:
                out_r, out_s = grown(out_r, found, count * SHORT), grown(out_s, found, count * SHORT)
            count, found = _test_boxes(
                keys, ids, base, offsets[1], origin, codes,
                (one_lows, one_highs, one_codes, one_origin, one_top, one_evenly),
                (two_lows, two_highs, two_codes, two_origin, two_top, two_evenly),
                (point_ids, point_base), sought, starts, count, not len(noted[0]), left, left_at, out_s,
                out_r, found, pairs,
            )  # fmt: skip
        for i in range(count):
            point = waiting[i] if searched else ahead + i
            number = point_base + point_ids[point]
            code, above_lows = codes[point], above(codes[point], origin)
            one_code, one_reached = above(one_codes[point], one_origin), above(one_codes[point], one_top)
            two_code, two_reached = above(two_codes[point], two_origin), above(two_codes[point], two_top)
            low = above(code - min(reach, code), origin)
            top = stripe_of(splitters, point_data[stripe, point]) if stripes > 1 else 0
            for q in range(top, -1, -1):
                if stripes > 1:
                    if stripe_rising[q] < point_data[stripe, point]:
                        break
                    if stripe_tops[q] < point_data[stripe, point]:
                        continue
                first, last = offsets[q], offsets[q + 1]
                if key >= 0 and first < last:
                    if searched:
                        first = places[i]
                    else:
                        at[q] = first = seek(keys, heads, first, last, at[q], low)
                    if pairs and found + SHORT > len(out_r):
                        out_r, out_s = grown(out_r, found, SHORT), grown(out_s, found, SHORT)
                    near = min(first + SHORT, last)
                    while first < near and keys[first] <= above_lows:
                        fits = _holds(one_lows, one_highs, first, one_code, one_reached, one_evenly)
                        fits &= _holds(two_lows, two_highs, first, two_code, two_reached, two_evenly)
                        if fits and len(rest):
                            for c in range(len(rest)):
                                k = rest[c]
                                inside = data[k, first] <= above(point_data[k, point], origins[k])
                                if hi[k] >= 0:
                                    inside &= (
                                        above(point_data[k, point], origins[hi[k]]) <= data[hi[k], first]
                                    )
                                fits &= inside != negated[k]
                        if pairs:
                            out_r[found] = number
                            out_s[found] = base + ids[first]
                        found += fits
                        first += 1
                    if first < near or first == last:
                        continue
                    last = after(keys, heads, first, last, first, above_lows)
                # Parts that reach the point are tested together as long as they stand side by side.
                while first < last:
                    begins = first
                    if key >= 0 and not decided:
                        part = (last - 1) // PART
                        if rising[part] < code:
                            break
                        if tops[part] < code:
                            last = part * PART
                            continue
                        while part * PART > first and tops[part - 1] >= code:
                            part -= 1
                        begins = max(first, part * PART)
                    out_r, out_s, found = match_boxes(
                        data, ids, base, origins, begins, last, point_data, point, hi, negated, checks,
                        number, (out_r, out_s), found, pairs,
                    )  # fmt: skip
                    last = begins
    return out_r[: found * pairs], out_s[: found * pairs], found


class BiSort:
    """A subwindow in BI-Sort: an insertion buffer and sorted blocks.

    Batches that the buffer cannot take are merged into the main array. If `levelled`, they become blocks of
    their own, and a block is merged with the one before it once it is half as long: so a tuple is moved only
    as often as its subwindow doubles. With an order that has no key nothing is sorted: nested loops.
    """

    capacity = 2**32 - 1

    def __init__(self, layout: Layout, boxes: bool, order: Order, base: int, levelled: bool = True):
        self._layout, self._boxes, self.order, self.base = layout, boxes, order, base
        self._levelled = levelled
        self._blocks: list[Sorted] = []
        self._buffer: Sorted | None = None

    @property
    def bytes(self) -> int:
        """Bytes in use."""
        return sum(block.bytes for block in self._all())

    def _all(self) -> list[Sorted]:
        return self._blocks + ([self._buffer] if self._buffer else [])

    def parts(self) -> list[Part]:
        """What a probe has to look into."""

        def part(block: Sorted) -> Part:
            return Part(block.lows[0], block.highs[0], lambda *probe: self._meet(block, *probe))

        return [part(block) for block in self._all()]

    def insert(self, run: Sorted, first: int, last: int) -> int:
        """Takes in a part of a sorted block; returns the first tuple there is no place for: none."""
        buffered = len(self._buffer) if self._buffer else 0
        if buffered + last - first < BUFFER:
            self._buffer = self._indexed(self._built(Order(-1), run, first, last))
            return last
        if buffered or not run.order.same(self.order) or last - first < len(run):
            run = self._built(self.order, run, first, last)
            self._buffer = None
        elif self._boxes:
            run.with_widths(self._layout)
        self._add(run)
        return last

    def _built(self, order: Order, run: Sorted, first: int, last: int) -> Sorted:
        """The buffer and a part of a block, in another order."""
        columns, ids = run.data[:, first:last], run.ids[first:last]
        base = run.base
        if self._buffer:
            base, shift = self._buffer.base, np.uint32(run.base - self._buffer.base)
            columns = np.concatenate([self._buffer.data, columns], axis=1)
            ids = np.concatenate([self._buffer.ids, ids + shift])
        columns, ids = np.ascontiguousarray(columns), np.ascontiguousarray(ids)
        block = Sorted.build(columns, ids, base, np.array([0, len(ids)]), order)
        return block.with_widths(self._layout) if self._boxes else block

    def _indexed(self, block: Sorted) -> Sorted:
        """A block that can be probed."""
        block.with_notes(self._layout)
        return block.with_tops(self._layout) if self._boxes else block

    def _add(self, run: Sorted) -> None:
        """Adds a block, merged with those before it that it is not much shorter than."""
        while self._blocks and (not self._levelled or len(self._blocks[-1]) <= 2 * len(run)):
            run = self._blocks.pop().merged(run)
        self._blocks.append(self._indexed(run.packed()))

    def seal(self) -> None:
        """Nothing more will be inserted: merges all blocks into one."""
        if self._buffer:
            run, self._buffer = self._buffer, None
            self._add(self._built(self.order, run, 0, len(run)))
        while len(self._blocks) > 1:
            run = self._blocks.pop()
            self._blocks.append(self._indexed(self._blocks.pop().merged(run)))

    def _meet(self, block: Sorted, batch: Sorted, first: int, last: int, wanted: int, pairs: bool):
        hi, negated = self._layout.hi, self._layout.negated
        probe = batch.data, batch.ids, batch.base
        if self._boxes:
            return points_find_boxes(block.boxes(), probe, first, last, hi, negated, wanted, pairs)
        tasks = np.array([(0, first, last, wanted)])
        return boxes_find_points(block.points(), probe, hi, negated, tasks, pairs)
