"""The ring of one stream's subwindows: where each lies in memory and how much is in it.

::

            oldest                          newest
              v                               v
    ring:  [ slot, count, width ] ... [ slot, count, width ]     spare: a slot that nobody has
              |                               |
    memory: [ array ]  ...                 [ array ]  ---- merge ----> [ spare array ]

A subwindow's array never changes: a merge makes a new one in the spare slot, and the old slot is the spare
one from then on.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .segment import DISTRIBUTED


def subwindow_layout(slots: int, most: int, width: int) -> data.StructLayout:
    """A subwindow: its slot, how many tuples it has, and the largest width of its boxes."""
    return data.StructLayout({"slot": range(slots), "count": range(most + 1), "width": width})


class Subwindows(wiring.Component):
    """A ring of `places` subwindows, each of up to `most` tuples; there are `places + 1` slots.

    `shown` is the subwindow of number `select`, from 0 for the oldest to `used - 1` for the newest, as it was
    in the cycle before. `create` adds an empty one, while `select` is `used`; `expire` drops the oldest.
    `update` gives the selected one its new array, in the slot `spare`, with `count` tuples and `width`.
    `clear` empties the ring; it is `busy` meanwhile, and after a reset.

    Latency: 1 cycle. `clear` takes `places` cycles.
    """

    def __init__(self, places: int, most: int, width: int):
        self._places = places
        self._shape = subwindow_layout(places + 1, most, width)
        slot, count = self._shape["slot"].shape, self._shape["count"].shape
        super().__init__(
            {
                "select": In(range(places)),
                "shown": Out(self._shape),
                "used": Out(range(places + 1)),
                "full": Out(1),
                "create": In(1),
                "expire": In(1),
                "update": In(1),
                "count": In(count),
                "width": In(width),
                "spare": Out(slot, init=places),
                "clear": In(1),
                "busy": Out(1, init=1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        places = self._places
        m.submodules.ring = ring = memory.Memory(shape=self._shape, depth=places, init=[], attrs=DISTRIBUTED)
        write, read = ring.write_port(), ring.read_port(domain="comb")
        oldest = Signal(range(places))
        place = Signal(range(2 * places))
        cleared = Signal(range(places))
        m.d.comb += [
            place.eq(oldest + self.select),
            read.addr.eq(Mux(place >= places, place - places, place)),
            self.full.eq(self.used == places),
            write.addr.eq(read.addr),
            write.data.slot.eq(Mux(self.update, self.spare, read.data.slot)),
            write.data.count.eq(Mux(self.update, self.count, 0)),
            write.data.width.eq(Mux(self.update, self.width, 0)),
            write.en.eq(self.update | self.create),
        ]
        m.d.sync += self.shown.eq(read.data)
        with m.If(self.update):
            m.d.sync += self.spare.eq(read.data.slot)
        with m.If(self.create):
            m.d.sync += self.used.eq(self.used + 1)
        with m.If(self.expire):
            m.d.sync += [self.used.eq(self.used - 1), oldest.eq(Mux(oldest == places - 1, 0, oldest + 1))]
        with m.If(self.clear):
            m.d.sync += [self.busy.eq(1), self.used.eq(0), oldest.eq(0), self.spare.eq(places)]
        with m.If(self.busy):
            m.d.comb += [write.addr.eq(cleared), write.data.slot.eq(cleared), write.en.eq(1)]
            m.d.sync += cleared.eq(cleared + 1)
            with m.If(cleared == places - 1):
                m.d.sync += [self.busy.eq(0), cleared.eq(0)]
        return m
