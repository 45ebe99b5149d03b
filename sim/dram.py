"""What simulated memory costs, and what went through it: the fields of dram.h."""

import ctypes
from dataclasses import dataclass, fields

from hw.errors import ParameterError


@dataclass(frozen=True)
class Timing:
    """Costs of memory, in cycles and words of the port."""

    latency: int = 30  #: from a word's turn on its channel until it is there
    row: int = 128  #: words of a row
    banks: int = 8
    row_miss: int = 10  #: to open a row that is not its bank's open one
    refresh_every: int = 1560  #: 0: never
    refresh: int = 50  #: how long one takes
    outstanding: int = 32  #: bursts that a channel takes ahead

    @classmethod
    def parse(cls, text: str) -> "Timing":
        """Costs as in `latency:60,row_miss:20`; those that are not named are a DDR channel's."""
        given = {}
        for part in filter(None, text.split(",")):
            name, _, value = part.partition(":")
            known = [field.name for field in fields(cls)]
            least = int(name in ("row", "banks", "outstanding"))
            if name not in known or not value.isdecimal() or not least <= int(value) < 1 << 32:
                raise ParameterError(
                    "memory must be costs such as latency:60,row_miss:20, "
                    f"of {', '.join(known)}, not {part!r}"
                )
            given[name] = int(value)
        return cls(**given)

    def native(self) -> "NativeTiming":
        """The same for C++."""
        return NativeTiming(*(getattr(self, field.name) for field in fields(self)))


#: Near a DDR channel behind a controller at 200 MHz.
DDR = Timing()
#: The same without row misses and refreshes: it makes nobody wait, but for its latency.
STEADY = Timing(row_miss=0, refresh_every=0)


class NativeTiming(ctypes.Structure):
    """`Timing` of dram.h."""

    _fields_ = [(field.name, ctypes.c_uint32) for field in fields(Timing)]


class Traffic(ctypes.Structure):
    """`Traffic` of dram.h: words moved, rows opened and refreshes since the model was opened."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("read", "written", "row_misses", "refreshes")]
