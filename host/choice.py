"""Choices: which dimensions to sort by, from a sample of the data, and which structure holds a subwindow.

The order in which a condition names its terms plays no part: the share of candidate pairs that each
dimension lets through is measured.
"""

from dataclasses import dataclass

import numpy as np

from hw.errors import ParameterError

from .bisort import Order
from .columns import Layout

#: Structures that can be asked for; "auto" chooses among the others.
STRUCTURES = ("auto", "bisort", "levels", "rap_table", "wib_tree", "nested")
#: Pairs in a sample, as (boxes, points for each).
SAMPLE = (128, 64)
#: A second dimension is worth stripes if a search in the first leaves this many candidates ...
STRIPED_FROM = 48
#: ... of which it keeps at most this share.
STRIPED_SHARE = 0.25
#: Splitters are at most so many, and leave at least so many tuples in a stripe.
MOST_STRIPES, LEAST_IN_STRIPE = 2048, 8


def checked_structure(structure: str) -> str:
    """`structure`, if it can be asked for."""
    if structure not in STRUCTURES:
        raise ParameterError(f"structure must be one of {', '.join(STRUCTURES)}, not {structure!r}")
    return structure


@dataclass(frozen=True)
class Shares:
    """The share of pairs within the windows that each dimension lets through, in a sample."""

    kept: np.ndarray  #: float per dimension
    pairs: int  #: how many pairs the shares come from

    @classmethod
    def measure(cls, layout: Layout, points: np.ndarray, boxes: np.ndarray) -> "Shares":
        """Shares among pairs: column `k` of `points` with column `k` of `boxes`."""
        inside = np.empty((len(layout), points.shape[1]), bool)
        for d, high in enumerate(layout.hi):
            inside[d] = points[d] >= boxes[d]
            if high >= 0:
                inside[d] &= points[d] <= boxes[high]
            inside[d] ^= layout.negated[d]
        near = inside[layout.window].all(axis=0)
        pairs = int(near.sum())
        # Something no sampled pair passes is taken for as rare as the sample can tell.
        passed = np.maximum(inside[:, near].sum(axis=1), 0.5)
        return cls(np.minimum(passed / max(pairs, 1), 1.0), pairs)

    def best(self, layout: Layout) -> list[int]:
        """The dimensions that a sort can use, most selective first, equality before others."""
        usable = [d for d in range(len(layout)) if not layout.negated[d] and not layout.window[d]]
        return sorted(usable, key=lambda d: (self.kept[d], layout.hi[d] != d, d))


def choose_order(layout: Layout, shares: Shares, codes: np.ndarray, block: int) -> Order:
    """How to sort blocks of about `block` tuples; `codes` are columns of some points."""
    best = shares.best(layout)
    if not best or (shares.kept[best[0]] > 0.9 and layout.hi[best[0]] >= 0):
        return Order(-1)
    key = best[0]
    if len(best) > 1 and block * shares.kept[key] >= STRIPED_FROM and shares.kept[best[1]] <= STRIPED_SHARE:
        stripe = best[1]
        count = int(min(1 / shares.kept[stripe], block / LEAST_IN_STRIPE, MOST_STRIPES, codes.shape[1]))
        # By quantiles, so that stripes hold about as many tuples each, however values are spread.
        ranks = np.linspace(0, codes.shape[1], count + 1)[1:-1].astype(np.int64)
        splitters = np.unique(np.sort(codes[stripe])[ranks])
        return Order(key, stripe, splitters)
    return Order(key)


# Thresholds come from `make bench`. Its section `auto` shows whole joins: sorting wins, by much with batches
# of more than a few rows. With smaller ones a table loses less, and it never makes a tuple wait until blocks
# are merged. Its section `structures` shows up to how many matches tables keep up when probed.

#: Batches below this many rows are small, and so are windows.
SMALL_BATCH, SMALL_WINDOW = 8, 64
#: Matches per probe and subwindow up to which copying them out of unsorted partitions is cheap.
FEW_MATCHES = 64
#: The share of a subwindow's keys beyond those of the one before from which on its splitters are of no use.
DRIFTING = 0.1


@dataclass(frozen=True)
class Statistics:
    """What is known of a stream when a subwindow begins."""

    batch: float  #: rows in a batch, on average
    window: int  #: rows in the window
    matches: float  #: rows of a subwindow that a probe finds by the key
    drift: float  #: the share of keys that lay beyond those of the subwindow before


def choose_structure(order: Order, known: Statistics) -> tuple[str, str]:
    """The structure of a new subwindow, and why: the paper's strategy."""
    if order.key < 0:
        return "nested", "no dimension narrows the window down"
    if known.window < SMALL_WINDOW:
        return "nested", f"a window of {known.window} rows is scanned faster than indexed"
    if order.stripe >= 0:
        return "levels", "two dimensions are selective, which only BI-Sort sorts by"
    if known.batch >= SMALL_BATCH:
        return "levels", f"batches of {known.batch:.0f} rows pay for sorting"
    if known.matches > FEW_MATCHES:
        return "levels", f"{known.matches:.0f} matches per subwindow are found as one range"
    if known.drift > DRIFTING:
        return "wib_tree", f"{known.drift:.0%} of the keys lie beyond those of the subwindow before"
    return (
        "rap_table",
        f"batches of {known.batch:.0f} rows with {known.matches:.1f} matches, and keys do not drift",
    )
