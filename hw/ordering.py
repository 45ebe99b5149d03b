"""The order that a joiner promises for its results: a parameter, and what it means.

Punctuation is what keeps an order (see `hw/punctuation.py`), and `Ordering` says how much of it there is.
`Ordering.keys` is the promise as NumPy computes it, for hosts and benches that hold a joiner to it.
"""

import re
from dataclasses import dataclass

import numpy as np

from .errors import ParameterError

UNITS = ("none", "tuples", "comparisons")
_MOST = 1 << 16
_TEXT = re.compile(r"none|(tuples|comparisons):([1-9]\d{0,5})")


@dataclass(frozen=True)
class Ordering:
    """`none`, or a star after every so many tuples, such as `tuples:1`, or comparisons, `comparisons:8`.

    The later tuple of a pair is the one that arrives last, counted over both streams since the last flush.

    - `none`: pairs come in any order.
    - `tuples:k`: pairs come in groups, one for each k later tuples. With `tuples:1`, the strict outer order,
      they come in the order of their later tuples.
    - `comparisons:k`: so they do, and those of one later tuple in groups, one for each k tuples that every
      core stores. With `comparisons:1`, the strict inner order, they come by (later, earlier tuple).
    """

    unit: str = "none"
    every: int = 0

    def __post_init__(self):
        if self.unit not in UNITS or not (self.unit == "none") == (self.every == 0) or self.every > _MOST:
            raise ParameterError(_refusal(f"{self.unit}:{self.every}"))

    @classmethod
    def parse(cls, text: str) -> "Ordering":
        """The ordering that `str` would print as `text`."""
        found = _TEXT.fullmatch(text)
        if not found or int(found[2] or 1) > _MOST:
            raise ParameterError(_refusal(text))
        return cls(found[1], int(found[2])) if found[1] else cls()

    def __str__(self):
        return f"{self.unit}:{self.every}" if self.every else self.unit

    @property
    def in_turn(self) -> bool:
        """Whether mergers take all of one input before the next, as in Algorithm 5 of the SplitJoin paper.

        Where a star waits for later tuples they must not: those could not come in while others wait.
        """
        return self.unit == "comparisons" or self.every == 1

    @property
    def inner(self) -> bool:
        """Whether the pairs of one later tuple are in order too."""
        return self.unit == "comparisons"

    def keys(
        self, is_s: np.ndarray, r: np.ndarray, s: np.ndarray, cores: int, segment: int
    ) -> list[np.ndarray]:
        """What the pairs are promised to be sorted by, the most significant first.

        `is_s` are the tuples of both streams since a flush, `r` and `s` the pairs, as numbers of R and of S
        tuples since then; `cores` store tuples in turn, each the last `segment` of those it stored.
        """
        if self.unit == "none":
            return []
        r_place, s_place = np.flatnonzero(~is_s)[r], np.flatnonzero(is_s)[s]
        later = np.maximum(r_place, s_place)
        if not self.inner:
            return [later // self.every]
        earlier = np.where(r_place < s_place, r, s)
        level = earlier // cores
        groups = -(-segment // self.every)
        return [later, level // segment * groups + level % segment // self.every, earlier % cores]

    def first_broken(
        self, is_s: np.ndarray, r: np.ndarray, s: np.ndarray, cores: int, segment: int
    ) -> int | None:
        """The number of the first pair that comes earlier than was promised, if there is one."""
        broken = np.zeros(max(0, len(r) - 1), bool)
        equal = ~broken
        for key in self.keys(is_s, r, s, cores, segment):
            broken |= equal & (key[1:] < key[:-1])
            equal &= key[1:] == key[:-1]
        return int(np.argmax(broken)) + 1 if broken.any() else None


def _refusal(given: str) -> str:
    return f"ordering must be none, tuples:k or comparisons:k with k from 1 to {_MOST}, not {given!r}"
