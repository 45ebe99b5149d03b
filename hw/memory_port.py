"""The memory port: bursts of whole words to and from external memory, reads and writes side by side.

::

                  read: address, length --->+          +
                  data: words <-------------|          |
        user                                |  memory  |
                  write: address, length -->|          |
                  written: words ---------->|          |
                  done: a pulse per burst <-+          +

A board answers with its controller (`hw/axi_memory.py`), a simulation with a model.
"""

from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

LENGTH_WIDTH = 16


def burst_layout(address_width: int, length_width: int = LENGTH_WIDTH) -> data.StructLayout:
    """A request: `length` words, at least one, from the word `address` on."""
    return data.StructLayout({"address": address_width, "length": length_width})


class MemoryPort(wiring.Signature):
    """The ports of a user of memory, with words of `width` bits.

    `data` brings the words of all reads in the order of their requests. `written` takes the words of all
    writes in the order of theirs, and may take none of a burst before its request: a user never keeps a
    request back until words are taken. `done` is high for one cycle for each write burst, in their order, as
    soon as reads requested from the next cycle on see all of its words; reads requested before may see them
    or not. Reads and writes do not wait for each other.
    """

    def __init__(self, width: int, address_width: int):
        self.width = width
        self.address_width = address_width
        super().__init__(
            {
                "read": Out(stream.Signature(burst_layout(address_width))),
                "data": In(stream.Signature(width)),
                "write": Out(stream.Signature(burst_layout(address_width))),
                "written": Out(stream.Signature(width)),
                "done": In(1),
            }
        )

    def __eq__(self, other):
        return type(other) is MemoryPort and (self.width, self.address_width) == (
            other.width,
            other.address_width,
        )
