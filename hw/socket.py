"""The socket: what goes into a joiner, what comes out, and nothing about which joiner it is.

::

               +-----------+
    tuples --->|  joiner   |---> results
               |           |---> counters, activity
               +-----------+

Gateware and host both take their shapes and opcodes from here.
"""

from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import Out

from .dimension import Dimension

ID_WIDTH = 32
QUERY_WIDTH = 4
COUNTER_WIDTH = 32


class Kind(enum.Enum, shape=3):
    """What a word on `tuples` is."""

    R = 0  #: an R tuple: `id`, `dims.point`
    S = 1  #: an S tuple: `id`, `dims.box`
    FLUSH = 2  #: meet whatever has not met yet, then empty the windows
    MARK = 3  #: comes out after every result of the tuples before it, and stands for all marks before it
    HORIZON_R = 4  #: R ids before `id` (modulo 2**32) are dead: evicting them loses nothing
    HORIZON_S = 5  #: the same for S ids
    #: Of OP-Blocks, `hw/instruction.py`; BI-Sort, `hw/subwindow_command.py`; ScaleJoin, `hw/gate_word.py`.
    INSTRUCTION = 6


class Tag(enum.Enum, shape=3):
    """What a word on `results` is."""

    PAIR = 0
    RANGE = 1
    MARK = 2
    ERROR = 3
    COMPOSITE = 4  #: a pair that has become a tuple of another join, with the id it has there
    STATUS = 5  #: how full one stream's subwindows are


class Fault(enum.Enum, shape=8):
    """What an error record complains about; its `value` holds the offending value."""

    UNKNOWN_KIND = 1
    ILLEGAL_INSTRUCTION = 2  #: the block that it names cannot do that, and went on as it was
    NO_SUCH_BLOCK = 3  #: an instruction for a block that the chain does not have
    NO_SUCH_INPUT = 4  #: the id of a tuple from an input that the gate does not have; the tuple was left out
    #: The id of a tuple that does not come after those before it, or of what an input sent after its end; it
    #: was left out.
    OUT_OF_ORDER = 5
    STARVED = 6  #: the number of an input that showed nothing while another was full; it was passed over


def point_layout(dims: tuple[Dimension, ...]) -> data.StructLayout:
    """An R tuple's dimensions: one code each, named `d0`, `d1`, ..."""
    return data.StructLayout({f"d{k}": dim.width for k, dim in enumerate(dims)})


def box_layout(dims: tuple[Dimension, ...]) -> data.StructLayout:
    """An S tuple's dimensions: for each, the bounds its test uses."""
    return data.StructLayout(
        {f"d{k}": data.StructLayout(dict.fromkeys(dim.bounds, dim.width)) for k, dim in enumerate(dims)}
    )


def tuple_layout(dims: tuple[Dimension, ...]) -> data.StructLayout:
    """A word on `tuples`."""
    return data.StructLayout(
        {
            "kind": Kind,
            "id": ID_WIDTH,
            "dims": data.UnionLayout({"point": point_layout(dims), "box": box_layout(dims)}),
        }
    )


PAIR_LAYOUT = data.StructLayout({"r_id": ID_WIDTH, "s_id": ID_WIDTH})
RANGE_LAYOUT = data.StructLayout({"id": ID_WIDTH, "start": ID_WIDTH, "end": ID_WIDTH, "not": 1})
COMPOSITE_LAYOUT = data.StructLayout({"id": ID_WIDTH, "r_id": ID_WIDTH, "s_id": ID_WIDTH})
MARK_LAYOUT = data.StructLayout({"id": ID_WIDTH})
ERROR_LAYOUT = data.StructLayout({"fault": Fault, "value": ID_WIDTH})

STATUS_LAYOUT = data.StructLayout(
    {
        "side": 1,  # 0: R, 1: S
        "subwindows": 8,  # how many there are
        "oldest_empty": 1,  # also when there is none
        "newest_full": 1,
        "newest": ID_WIDTH,  # tuples in the main array of the newest
        "waiting": ID_WIDTH,  # tuples in the insertion buffer
    }
)

#: A word on `results`. `query` numbers the query that a pair or composite answers; of a
#: range it is the number of the subwindow, 0 for the oldest.
RESULT_LAYOUT = data.StructLayout(
    {
        "tag": Tag,
        "query": QUERY_WIDTH,
        "body": data.UnionLayout(
            {
                "pair": PAIR_LAYOUT,
                "range": RANGE_LAYOUT,
                "mark": MARK_LAYOUT,
                "error": ERROR_LAYOUT,
                "composite": COMPOSITE_LAYOUT,
                "status": STATUS_LAYOUT,
            }
        ),
    }
)

#: Counters since reset, each modulo 2**32.
COUNTERS_LAYOUT = data.StructLayout(
    {
        "tuples": COUNTER_WIDTH,  # R and S tuples taken in
        "pairs": COUNTER_WIDTH,  # pairs put out
        "steps": COUNTER_WIDTH,  # cycles in which every comparator made one comparison
        "stalls": COUNTER_WIDTH,  # cycles in which results held the joiner up
        "live_evictions": COUNTER_WIDTH,  # tuples lost from a window before the horizon passed them
    }
)


class Socket(wiring.Signature):
    """The signature of every joiner with the dimensions `dims` and `cores` places that find pairs.

    `activity[k]` is high in each cycle in which core `k` finds a pair; it is for watching and costs
    nothing where it is left open. `query` bits of results are 0 where a joiner has one query.
    """

    def __init__(self, dims: tuple[Dimension, ...], cores: int):
        super().__init__(
            {
                "tuples": wiring.In(stream.Signature(tuple_layout(dims))),
                "results": Out(stream.Signature(RESULT_LAYOUT)),
                "counters": Out(COUNTERS_LAYOUT),
                "activity": Out(cores),
            }
        )
