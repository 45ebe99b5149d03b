"""What neighbouring nodes of a low-latency handshake chain tell each other.

R tuples walk to the right, S tuples to the left. One channel in each direction carries all kinds of messages
in order, which is what the protocol stands on.
"""

from amaranth.lib import data, enum

from .parameters import Parameters
from .socket import ID_WIDTH, box_layout, point_layout


class Note(enum.Enum, shape=3):
    """What a message is."""

    ARRIVAL = 0  #: a tuple, on its way past all nodes
    END = 1  #: to the left: the next R tuple of node `home` has seen all nodes
    EXPIRY = 2  #: the oldest tuple that node `home` keeps of the opposite stream has left its window
    MARK = 3  #: nothing but a time
    CLEAR = 4  #: all that is kept of the opposite stream has left its window


def stamp_width(parameters: Parameters) -> int:
    """Bits of a time: the number of an arrival, modulo, where results are sorted; otherwise of a mark."""
    return ID_WIDTH if parameters.ordering.every else 2


def message_layout(parameters: Parameters, of_s: bool) -> data.StructLayout:
    """A message in the direction of R, or of S (`of_s`). Only arrivals have an id and dimensions.

    If one of R `acknowledges`, it is nothing else, whatever its kind: the node on the right need not keep its
    oldest tuple in flight any longer. That is decided last, and so has a bit of its own.
    """
    return data.StructLayout(
        {
            "kind": Note,
            **({} if of_s else {"acknowledges": 1}),
            "home": range(parameters.cores),
            "id": ID_WIDTH,
            "stamp": stamp_width(parameters),
            "dims": (box_layout if of_s else point_layout)(parameters.dims),
        }
    )
