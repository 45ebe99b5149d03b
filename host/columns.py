"""Columns: points and boxes as the CPU engine keeps them, one array of codes per bound that is tested.

Column `d` of points is their code in dimension `d`; column `d` of boxes the low bound in it, and
`hi[d]` the column of the high bound: the same one where the test is for equality, none (-1) where
there is no high bound. A dimension that tests only the high bound is complemented, which turns it around, so
every dimension has a low bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hw.dimension import Test

#: Bytes of a row's number; a device's ids have as many.
ID_BYTES = 4


@dataclass(frozen=True)
class Layout:
    """Which columns hold the dimensions of a join."""

    hi: np.ndarray  #: int64 per dimension, the column of the high bound, or -1
    negated: np.ndarray  #: bool per dimension
    flipped: np.ndarray  #: bool per dimension, whether its codes are complemented
    window: np.ndarray  #: bool per dimension, whether it is the window's

    @classmethod
    def of(cls, dimensions: Sequence) -> "Layout":
        """The layout of a join's dimensions."""
        bands = np.cumsum([dim.test is Test.BAND for dim in dimensions]) + len(dimensions) - 1
        hi = [
            number if dim.test is Test.EQUAL else int(band) if dim.test is Test.BAND else -1
            for number, (dim, band) in enumerate(zip(dimensions, bands))
        ]
        return cls(
            np.array(hi, np.int64),
            np.array([dim.negated for dim in dimensions]),
            np.array([dim.test is Test.AT_MOST for dim in dimensions]),
            np.array([dim.role != "value" for dim in dimensions]),
        )

    def __len__(self) -> int:
        return len(self.hi)

    @property
    def box_columns(self) -> int:
        """How many columns boxes have."""
        return max(len(self), int(self.hi.max(initial=0)) + 1)

    def bytes_per(self, boxes: bool) -> int:
        """The encoded size of a point or a box: its codes and its number."""
        return 8 * (self.box_columns if boxes else len(self)) + ID_BYTES

    def points(self, codes: Sequence[np.ndarray]) -> np.ndarray:
        """The columns of points, as uint64[column, row]."""
        return self._stack([~code if flip else code for code, flip in zip(codes, self.flipped)])

    def boxes(self, lo: Sequence[np.ndarray], hi: Sequence[np.ndarray]) -> np.ndarray:
        """The columns of boxes, as uint64[column, row]."""
        lows = [~high if flip else low for low, high, flip in zip(lo, hi, self.flipped)]
        return self._stack(lows + [hi[d] for d in range(len(self)) if self.hi[d] >= len(self)])

    @staticmethod
    def _stack(columns: list[np.ndarray]) -> np.ndarray:
        return np.stack(columns) if columns else np.empty((0, 0), np.uint64)
