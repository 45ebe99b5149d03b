"""The rows of a result: all columns of R, then all columns of S."""

from collections.abc import Callable, Sequence
from functools import lru_cache

import pyarrow as pa

from hw.errors import SpecError


def result_names(
    r: Sequence[str], s: Sequence[str], fold: Callable[[str], str] = str
) -> tuple[list[str], list[str]]:
    """The result's column names: those that R and S share are prefixed with `r_` and `s_`.

    `fold` makes names equal that the caller holds for equal.
    """
    for side, names in (("r", r), ("s", s)):
        if twice := _repeated([fold(name) for name in names]):
            raise SpecError(f"{side} has more than one column named {twice!r}; rename all but one")
    both = {fold(name) for name in r} & {fold(name) for name in s}
    named = tuple(
        [f"{side}_{name}" if fold(name) in both else name for name in names]
        for side, names in (("r", r), ("s", s))
    )
    if twice := _repeated([fold(name) for name in named[0] + named[1]]):
        raise SpecError(
            f"the result would have more than one column named {twice!r}, because names that r and s share "
            "are prefixed with r_ and s_; rename a column of r or s"
        )
    return named


def joined_rows(r: pa.Table, s: pa.Table) -> pa.Table:
    """Rows of R beside rows of S, one result each."""
    return pa.Table.from_arrays(
        [*r.columns, *s.columns], names=_names(tuple(r.column_names), tuple(s.column_names))
    )


@lru_cache
def _names(r: tuple[str, ...], s: tuple[str, ...]) -> list[str]:
    r_names, s_names = result_names(r, s)
    return r_names + s_names


def _repeated(names: list[str]) -> str | None:
    return next((name for number, name in enumerate(names) if name in names[:number]), None)
