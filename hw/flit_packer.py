"""Records that come one by one become flits."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .batch_buffer import item_layout
from .record import flit_layout


class FlitPacker(wiring.Component):
    """Packs runs of single records into flits.

    Latency: 1 cycle from a flit's last record. Throughput: one record per cycle.
    """

    def __init__(self, record: data.StructLayout, lanes: int):
        super().__init__(
            {
                "items": In(stream.Signature(item_layout(record))),
                "output": Out(stream.Signature(flit_layout(record, lanes))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        items, output = self.items, self.output
        flit = Signal(output.p.shape(), reset_less=True)
        held = Signal(range(len(flit.records)))  # records of the next flit that are here
        m.d.comb += [output.p.eq(flit), items.ready.eq(~output.valid | output.ready)]
        with m.If(items.ready):
            full = items.p.last | (held == len(flit.records) - 1)
            m.d.sync += output.valid.eq(items.valid & full)
            with m.If(items.valid):
                m.d.sync += [
                    flit.records[held].eq(items.p.record),
                    flit.count.eq(held + 1),
                    flit.last.eq(items.p.last),
                    held.eq(Mux(full, 0, held + 1)),
                ]
        return m
