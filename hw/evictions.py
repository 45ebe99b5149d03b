"""Counts the tuples of a subwindow that leaves with it although later tuples may still meet them."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .bursts import Bursts
from .memory_port import MemoryPort, burst_layout
from .run_reader import array_layout
from .skid import Skid
from .socket import ID_WIDTH


class Evictions(wiring.Component):
    """Reads an array and counts the ids that are not before `horizon`, modulo 2**32.

    `lost` counts for one word in each cycle; `command` is taken when all words have come. Words are never
    refused.

    Throughput: one word per cycle.
    """

    def __init__(
        self, record: data.StructLayout, lanes: int, records: int, *, address_width: int, burst: int
    ):
        self._record = record
        self._lanes = lanes
        self._burst = burst
        port = MemoryPort(lanes * record.size, address_width)
        super().__init__(
            {
                "command": In(stream.Signature(array_layout(address_width, records))),
                "horizon": In(ID_WIDTH),
                "lost": Out(range(lanes + 1)),
                "read": Out(stream.Signature(burst_layout(port.address_width))),
                "words": In(stream.Signature(port.width)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        command, lanes = self.command.p, self._lanes
        m.submodules.bursts = bursts = Bursts(len(command.address), len(command.count), self._burst)
        asked = Signal()
        come = Signal.like(command.count)  # records
        left = Signal.like(command.count)
        m.d.comb += [
            left.eq(command.count - come),
            bursts.request.valid.eq(self.command.valid & ~asked),
            bursts.request.p.address.eq(command.address),
            bursts.request.p.count.eq((command.count + (lanes - 1)) // lanes),
            self.words.ready.eq(1),
            self.command.ready.eq(asked & (left == 0)),
        ]
        m.submodules.skid = skid = Skid(self.read.payload.shape())
        wiring.connect(m, bursts.bursts, skid.input)
        wiring.connect(m, skid.output, wiring.flipped(self.read))
        with m.If(bursts.request.valid & bursts.request.ready):
            m.d.sync += asked.eq(1)
        with m.If(self.words.valid):
            m.d.sync += come.eq(Mux(left <= lanes, command.count, come + lanes))
        with m.If(self.command.ready & self.command.valid):
            m.d.sync += [asked.eq(0), come.eq(0)]

        records = data.View(data.ArrayLayout(self._record, lanes), self.words.p)
        live = [
            self.words.valid & (lane < left) & ((records[lane].id - self.horizon)[:ID_WIDTH].as_signed() >= 0)
            for lane in range(lanes)
        ]
        m.d.comb += self.lost.eq(sum(live))
        return m
