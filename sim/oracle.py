"""The oracle: Kang's three steps over the total arrival order, and the point-in-box form that must agree.

For each arriving tuple: expire the opposite window, scan it, insert the tuple into its own window.
Expiry comes before the scan, bounds are inclusive, and tuples of equal time join.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hw.dimension import Dimension, Test

LOWEST, HIGHEST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Windows:
    """How long tuples of each stream stay joinable: `kind` is "time" or "rows"."""

    kind: str
    r: int
    s: int


def matcher(
    dims: tuple[Dimension, ...],
    codes: tuple[np.ndarray, ...],
    lo: tuple[np.ndarray, ...],
    hi: tuple[np.ndarray, ...],
) -> Callable[[int, int], bool]:
    """A predicate over (row of R, row of S): whether R's point lies in S's box in every dimension."""

    def matches(r: int, s: int) -> bool:
        return all(
            bool(dim.contains(codes[k][r], {"lo": lo[k][s], "hi": hi[k][s]})) for k, dim in enumerate(dims)
        )

    return matches


def three_steps(
    is_s: np.ndarray, time: np.ndarray, windows: Windows, matches: Callable[[int, int], bool]
) -> list[tuple[int, int]]:
    """The pairs (row of R, row of S), in the order in which they are found.

    `is_s` and `time` describe both streams' tuples in arrival order; rows are numbered per stream.
    """
    window = {False: deque(), True: deque()}
    sizes = {False: windows.r, True: windows.s}
    counts = {False: 0, True: 0}
    pairs = []
    for from_s, now in zip(np.asarray(is_s, bool).tolist(), np.asarray(time).tolist()):
        row, opposite = counts[from_s], window[not from_s]
        counts[from_s] += 1
        if windows.kind == "time":
            while opposite and opposite[0][1] < now - sizes[not from_s]:
                opposite.popleft()
        else:
            while len(opposite) > sizes[not from_s]:
                opposite.popleft()
        for other, _ in opposite:
            pair = (other, row) if from_s else (row, other)
            if matches(*pair):
                pairs.append(pair)
        window[from_s].append((row, now))
    return pairs


def three_streams(
    is_s: np.ndarray,
    time: np.ndarray,
    windows: Windows,
    matches: Callable[[int, int], bool],
    t_time: np.ndarray,
    t_windows: Windows,
    t_matches: Callable[[int, int, int], bool],
) -> list[tuple[int, int, int]]:
    """The triples (row of R, of S, of T) of (R join S) join T: the three steps, twice.

    The pairs of the first join are the R of the second, in the order in which they are found. A pair arrives
    with its later member, whose time it has; at equal times pairs come before the rows of T. `t_time` has
    the times of T's rows in arrival order; `t_windows.r` is the window of the pairs.
    """
    is_s, time = np.asarray(is_s, bool), np.asarray(time, np.int64)
    pairs = three_steps(is_s, time, windows, matches)
    r_time, s_time = time[~is_s], time[is_s]
    later = [max(r_time[r], s_time[s]) for r, s in pairs]
    times = np.concatenate([np.array(later, np.int64), np.asarray(t_time, np.int64)])
    order = np.argsort(times, kind="stable")
    found = three_steps(
        order >= len(pairs), times[order], t_windows, lambda pair, t: t_matches(*pairs[pair], t)
    )
    return [(*pairs[pair], t) for pair, t in found]


def window_boxes(is_s: np.ndarray, time: np.ndarray, windows: Windows):
    """The window as dimensions: their tests, R's points, and the lows and highs of S's boxes."""
    is_s, time = np.asarray(is_s, bool), np.asarray(time, np.int64)
    if windows.kind == "time":
        low, high = (_held(time[is_s].astype(object) + by) for by in (-windows.r, windows.s))
        return (Dimension(Test.BAND, 64),), (time[~is_s],), (low,), (high,)
    seen_s = np.cumsum(is_s)
    seen_r = np.arange(1, len(is_s) + 1) - seen_s
    i, j = np.arange((~is_s).sum()), np.arange(is_s.sum())
    points = (i, _held(seen_s[~is_s].astype(object) - windows.s))
    low = (_held(seen_r[is_s].astype(object) - windows.r), np.full(len(j), LOWEST))
    high = (np.full(len(j), HIGHEST), j)
    return (Dimension(Test.AT_LEAST, 64), Dimension(Test.AT_MOST, 64)), points, low, high


def point_in_box(
    dims: tuple[Dimension, ...],
    codes: tuple[np.ndarray, ...],
    lo: tuple[np.ndarray, ...],
    hi: tuple[np.ndarray, ...],
    shape: tuple[int, int],
) -> list[tuple[int, int]]:
    """The pairs (row of R, row of S) whose point lies in the box, in every dimension, sorted."""
    inside = np.ones(shape, bool)
    for dim, code, low, high in zip(dims, codes, lo, hi):
        inside &= dim.contains(code[:, None], {"lo": low[None, :], "hi": high[None, :]})
    return list(zip(*(rows.tolist() for rows in np.nonzero(inside))))


def _held(values: np.ndarray) -> np.ndarray:
    """Whole numbers held at the ends of the 64-bit range."""
    return np.clip(values, LOWEST, HIGHEST).astype(np.int64)
