"""The commands of PanJoin's manager, by which a host spreads subwindows over devices.

A command is a word of kind INSTRUCTION on `tuples` of a BI-Sort joiner; its `id` holds the fields below,
least significant first. It takes effect where it stands in the stream: tuples before it have probed and are
in their window, those behind it find what it did. After reset and after a flush, tuples are inserted and
probe, and the device creates and expires subwindows by itself.
"""

from amaranth.lib import data, enum

from .socket import ID_WIDTH


class Command(enum.Enum, shape=2):
    """What a command asks for."""

    TUPLES = 0  #: whether the tuples of `side` that follow are inserted, whether they probe, and for what
    CREATE = 1  #: `side` gets an empty subwindow, its newest; those before it take no more tuples
    EXPIRE = 2  #: the oldest subwindow of `side` is dropped whole, and what waits with the last one
    STATUS = 3  #: a STATUS result about `side`


COMMAND_LAYOUT = data.StructLayout(
    {
        "command": Command,
        "side": 1,  # 0: R, 1: S
        "insert": 1,  # of TUPLES
        "probe": 1,  # of TUPLES: they meet all that was inserted before them
        "ranges": 1,  # of TUPLES: main arrays are answered with ranges instead of pairs
    }
)
assert COMMAND_LAYOUT.size <= ID_WIDTH


def encode(command: Command, side: str, **flags: bool) -> int:
    """The 32 bits of a command; flags that are not given are 0."""
    fields = {"command": command, "side": "rs".index(side)} | {
        name: int(flag) for name, flag in flags.items()
    }
    return COMMAND_LAYOUT.const(fields).as_bits()
