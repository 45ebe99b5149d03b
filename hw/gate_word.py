"""How a tuple for ScaleJoin tells its place in the arrival order, and the physical input that it comes from.

Both travel in the `id`: the number of the tuple in the arrival order of both streams above, the input's
below. So numbers compare as ids do, modulo 2**32, and what comes out is the number alone, whatever the
input.

An input that has nothing to send tells by a word of kind INSTRUCTION how far it has come: a heartbeat, whose
`id` says that no tuple with that number or an earlier one comes from that input any more. If the lowest bit
of its first dimension is high, the input has ended, and sends nothing before the next flush.
"""

import numpy as np
from amaranth.lib import data

from .dimension import Dimension
from .socket import ID_WIDTH, Kind, tuple_layout
from .words import pack

INPUT_WIDTH = 6
NUMBER_WIDTH = ID_WIDTH - INPUT_WIDTH
MOST_INPUTS = 1 << INPUT_WIDTH

#: The `id` of a tuple or a heartbeat.
GATE_ID_LAYOUT = data.StructLayout({"input": INPUT_WIDTH, "number": NUMBER_WIDTH})


def gate_id(input: np.ndarray | int, number: np.ndarray | int) -> np.ndarray | int:
    """The `id` of the tuple with this number, modulo 2**26, from this input."""
    return number % (1 << NUMBER_WIDTH) << INPUT_WIDTH | input


def pack_progress(dims: tuple[Dimension, ...], input: int, number: int, *, ended: bool = False) -> np.ndarray:
    """A heartbeat of an input, or its end, as one row."""
    fields = {"kind": Kind.INSTRUCTION.value, "id": gate_id(input, number), "dims.point.d0": int(ended)}
    return pack(tuple_layout(dims), fields, 1)
