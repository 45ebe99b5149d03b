"""The indexer: the first key of every partition of a sorted array, taken while the array goes by."""

from amaranth import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .errors import ParameterError
from .flit_merger import log2_lanes
from .record import flit_layout


def entry_layout(record: data.StructLayout, entries: int) -> data.StructLayout:
    """A partition's number and the key of its first record."""
    return data.StructLayout({"entry": range(entries), "key": record["key"].shape})


def flits_of_partition(lanes: int, partition: int) -> int:
    """The flits of a partition of so many records."""
    log2_lanes(lanes)
    if type(partition) is not int or partition < lanes or partition & (partition - 1):
        raise ParameterError(f"partition must be a power of two from {lanes} on, not {partition!r}")
    return partition // lanes


class Indexer(wiring.Component):
    """Passes a run on, and tells the key of the first of every `partition` records on `index`.

    There are at most `entries` partitions.

    Latency: none; 1 cycle to `index`. Throughput: one flit per cycle, as long as `index` is taken.
    """

    def __init__(self, record: data.StructLayout, lanes: int, partition: int, entries: int):
        self._flits = flits_of_partition(lanes, partition)
        flits = stream.Signature(flit_layout(record, lanes))
        super().__init__(
            {
                "input": In(flits),
                "output": Out(flits),
                "index": Out(stream.Signature(entry_layout(record, entries))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        flit = self.input.p
        row = Signal(range(self._flits))
        entry = Signal.like(self.index.p.entry)
        first, room, moves = Signal(), Signal(), Signal()
        told = Signal(self.index.p.shape(), reset_less=True)
        m.d.comb += [
            first.eq((row == 0) & (flit.count != 0)),
            room.eq(~first | ~self.index.valid | self.index.ready),
            self.output.p.eq(flit),
            self.output.valid.eq(self.input.valid & room),
            self.input.ready.eq(self.output.ready & room),
            moves.eq(self.input.valid & self.input.ready),
            self.index.p.eq(told),
        ]
        with m.If(self.index.ready):
            m.d.sync += self.index.valid.eq(0)
        with m.If(moves):
            m.d.sync += row.eq(row + 1)
            with m.If(first):
                m.d.sync += [
                    self.index.valid.eq(1),
                    told.entry.eq(entry),
                    told.key.eq(flit.records[0].key),
                    entry.eq(entry + 1),
                ]
            with m.If(flit.last):
                m.d.sync += [row.eq(0), entry.eq(0)]
        return m
