"""Windows: how far back each stream is joined, read from what the user wrote."""

import re
from dataclasses import dataclass
from fractions import Fraction

import pyarrow as pa

from hw.errors import SpecError

from . import sqltypes

_MICROSECONDS = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
MICROS_PER_DAY = _MICROSECONDS["day"]
LONGEST = 2**63 - 1
#: The lowest time, and the lowest number of a row.
EARLIEST = -(2**63)
_UNITS = "microseconds, milliseconds, seconds, minutes, hours, days or weeks"
_PART = re.compile(r"\s*([+-]?\d+(?:\.\d+)?)\s*([a-z]+)\s*", re.IGNORECASE)
_ACCEPTED = (
    "a length such as '10 minutes' or '1000 rows' (a whole number where the time column is an integer), "
    "or a pair of them for R and S"
)


@dataclass(frozen=True)
class Window:
    """How long R and S tuples stay joinable: `kind` is "time" or "rows".

    Times are in the unit of the time column: microseconds for timestamps, days for dates, and the
    number itself for integers.
    """

    kind: str
    r: int
    s: int


def unit(name: str) -> int | None:
    """The microseconds in one `name` ("minute", "minutes"), or None if it is no fixed length."""
    name = name.lower()
    return _MICROSECONDS.get(name) or _MICROSECONDS.get(name.removesuffix("s"))


def duration(text: str) -> int | None:
    """The microseconds in text such as "1 hour 30 minutes", or None if it is no such text."""
    total, at = Fraction(0), 0
    text = re.sub(r"^\s*interval\s+", "", text, flags=re.IGNORECASE)
    while at < len(text):
        part = _PART.match(text, at)
        if not part or unit(part[2]) is None:
            return None
        total += Fraction(part[1]) * unit(part[2])
        at = part.end()
    return int(total) if at and total.denominator == 1 else None


def parse_window(window, time: pa.DataType) -> Window:
    """The window that `window` asks for, over a time column of type `time`."""
    pair = tuple(window) if isinstance(window, (tuple, list)) else (window, window)
    if len(pair) != 2:
        raise SpecError(f"window must be {_ACCEPTED}, not {window!r}")
    (r_kind, r), (s_kind, s) = (_length(length, time) for length in pair)
    if r_kind != s_kind:
        raise SpecError(f"window must be of one kind, rows or time, for R and S, not {window!r}")
    return Window(r_kind, r, s)


def _length(length, time: pa.DataType) -> tuple[str, int]:
    kind, value = _read(length, time)
    if value < 0:
        raise SpecError(f"window must not be negative, not {length!r}")
    return kind, min(value, LONGEST)


def _read(length, time: pa.DataType) -> tuple[str, int]:
    whole = sqltypes.is_integer(time)
    if type(length) is int:
        if not whole:
            raise SpecError(
                f"window must have a unit, such as '{length} seconds' or '{length} rows', because the time "
                f"column is {sqltypes.name(time)}, not {length!r}"
            )
        return "time", length
    if not isinstance(length, str):
        raise SpecError(f"window must be {_ACCEPTED}, not {length!r}")
    if rows := re.fullmatch(r"\s*([+-]?\d+)\s*rows?\s*", length, re.IGNORECASE):
        return "rows", int(rows[1])
    micros = duration(length)
    if micros is None:
        raise SpecError(f"window must be {_ACCEPTED}, in {_UNITS}, not {length!r}")
    if whole:
        raise SpecError(
            f"window must be a whole number or rows, because the time column is {sqltypes.name(time)}, "
            f"not {length!r}"
        )
    if time == sqltypes.DATE:
        if micros % MICROS_PER_DAY:
            raise SpecError(f"window must be whole days, because the time column is a date, not {length!r}")
        return "time", micros // MICROS_PER_DAY
    return "time", micros
