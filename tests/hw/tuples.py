"""Random tuples as records, and which of them join."""

import numpy as np

from hw.dimension import Test
from hw.record import key_bound

HIGHEST = 255
#: Dimensions of 8 bits, of every kind, and several.
CASES = [
    "equal8",
    "band8",
    "at_least8",
    "at_most8",
    "not_equal8",
    "not_band8",
    "not_at_least8",
    "not_at_most8",
    "band8,at_least8,not_equal8",
    "equal8,band8,at_most8",
]


def tuples(dims, side: str, size: int, rng, spread: int) -> tuple[list, list[dict]]:
    """Random tuples of one side, sorted by key: their codes in each dimension, and their records."""
    codes = []
    for dim in dims:
        low = rng.integers(0, HIGHEST + 1, size)
        high = np.minimum(low + rng.integers(0, spread + 1, size), HIGHEST)
        edges = rng.random(size)
        low[edges < 0.1], high[edges > 0.9] = 0, HIGHEST
        if dim.test is Test.BAND and dim.negated:
            crossed = rng.random(size) < 0.3  # such a box excludes nothing
            low, high = np.where(crossed, high, low), np.where(crossed, low, high)
        if dim.test is Test.EQUAL:
            low = high = low % 16  # else hardly any are equal
        codes.append({"point": low} if side == "r" else {"lo": low, "hi": high})
    key = codes[0]["point" if side == "r" else key_bound(dims[0])]
    order = np.argsort(key, kind="stable")
    codes = [{name: own[order] for name, own in own.items()} for own in codes]
    records = []
    for n in range(size):
        record = {"key": int(key[order[n]]), "id": n if side == "r" else 1000 + n}
        if side == "s" and dims[0].test is Test.BAND:
            record["hi"] = int(codes[0]["hi"][n])
        for k, dim in enumerate(dims[1:], 1):
            if side == "r":
                record[f"d{k}"] = int(codes[k]["point"][n])
            else:
                record[f"d{k}"] = {bound: int(codes[k][bound][n]) for bound in dim.bounds}
        records.append(record)
    return codes, records


def matches(dims, r, s) -> np.ndarray:
    """Which pairs match, as bool[r, s]."""
    found = np.ones((len(r[0]["point"]), len(s[0]["lo"])), bool)
    for dim, points, boxes in zip(dims, r, s):
        found &= dim.contains(points["point"][:, None], {name: bound[None] for name, bound in boxes.items()})
    return found
