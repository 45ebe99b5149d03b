"""The largest width of a run's boxes: so far below a point may a box begin that holds it."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .record import flit_layout


class Widest(wiring.Component):
    """Watches a run whose records have `hi` beside `key`: `width` is the largest difference.

    `moves` is high when `flit` goes by. `lanes` + 2 cycles after the last one `width` is right and `settled`.

    Throughput: one flit per cycle.
    """

    def __init__(self, record: data.StructLayout, lanes: int):
        super().__init__(
            {
                "flit": In(flit_layout(record, lanes)),
                "moves": In(1),
                "width": Out(record["key"].shape),
                "settled": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes = len(self.flit.records)
        # A lane keeps its own largest; when the run has gone by, they are looked at one after another.
        widths = [Signal.like(self.width, name=f"width_{k}", reset_less=True) for k in range(lanes)]
        largest = [Signal.like(self.width, name=f"largest_{k}", reset_less=True) for k in range(lanes)]
        arrived = Signal()
        first = Signal(init=1)  # the next flit begins a run
        first_arrived = Signal(reset_less=True)
        looked = Signal(range(lanes + 1))
        m.d.sync += arrived.eq(self.moves)
        with m.If(self.moves):
            m.d.sync += [first.eq(self.flit.last), first_arrived.eq(first)]
        for k, box in enumerate(self.flit.records):
            m.d.sync += widths[k].eq(Mux(k < self.flit.count, box.hi - box.key, 0))
            with m.If(arrived & (first_arrived | (widths[k] > largest[k]))):
                m.d.sync += largest[k].eq(widths[k])
        with m.If(self.moves | arrived):
            m.d.sync += [looked.eq(0), self.width.eq(0)]
        with m.Elif(looked != lanes):
            m.d.sync += looked.eq(looked + 1)
            with m.Switch(looked):
                for k in range(lanes):
                    with m.Case(k), m.If(largest[k] > self.width):
                        m.d.sync += self.width.eq(largest[k])
        m.d.comb += self.settled.eq(~arrived & (looked == lanes))
        return m
