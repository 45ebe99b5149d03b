"""One dimension of "point in box": its width, its test, and what the test means.

`Dimension.contains` is the reference and the gateware at once: it is written with operators that
NumPy arrays and Amaranth values share.
"""

import re
from dataclasses import dataclass

from amaranth.lib import enum

from .errors import ParameterError

WIDTHS = range(8, 65)


class Test(enum.Enum):
    """How a point is compared with a box. Each may be negated."""

    EQUAL = "equal"
    BAND = "band"
    AT_LEAST = "at_least"
    AT_MOST = "at_most"


# The bounds of a box that each test looks at; the others do not exist in the gateware.
_BOUNDS = {
    Test.EQUAL: ("lo",),
    Test.BAND: ("lo", "hi"),
    Test.AT_LEAST: ("lo",),
    Test.AT_MOST: ("hi",),
}
_TEXT = re.compile(r"(not_)?(equal|band|at_least|at_most)(\d+)")


@dataclass(frozen=True)
class Dimension:
    """A test on unsigned codes of `width` bits, for example `band32` or `not_equal64`."""

    test: Test
    width: int = 32
    negated: bool = False

    def __post_init__(self):
        if not isinstance(self.test, Test):
            accepted = ", ".join(test.value for test in Test)
            raise ParameterError(f"Dimension test must be one of {accepted}, not {self.test!r}")
        if type(self.width) is not int or self.width not in WIDTHS:
            raise ParameterError(
                f"Dimension width must be an integer from {WIDTHS[0]} to {WIDTHS[-1]}, not {self.width!r}"
            )

    @classmethod
    def parse(cls, text: str) -> "Dimension":
        """The dimension whose `str()` is `text`."""
        found = _TEXT.fullmatch(text)
        if not found:
            raise ParameterError(
                "Dimension must be [not_]equal|band|at_least|at_most and a width, "
                f"such as band32, not {text!r}"
            )
        return cls(Test(found[2]), int(found[3]), bool(found[1]))

    def __str__(self):
        return f"{'not_' if self.negated else ''}{self.test.value}{self.width}"

    @property
    def bounds(self) -> tuple[str, ...]:
        """Which bounds of a box this test uses: ("lo",), ("hi",) or both."""
        return _BOUNDS[self.test]

    @property
    def highest(self) -> int:
        """The largest code."""
        return (1 << self.width) - 1

    def contains(self, point, box):
        """Whether `point` lies in `box` (a mapping or view with the keys in `bounds`)."""
        match self.test:
            case Test.EQUAL:
                inside = point == box["lo"]
            case Test.BAND:
                inside = (point >= box["lo"]) & (point <= box["hi"])
            case Test.AT_LEAST:
                inside = point >= box["lo"]
            case Test.AT_MOST:
                inside = point <= box["hi"]
        return ~inside if self.negated else inside
