"""The fetcher: asks memory for the partitions that bounds fall into, each once, far ahead of the prober."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .memory_port import burst_layout
from .partitioner import target_layout
from .queue import Queue
from .skid import Skid


def sought_layout(width: int, batch: int, partitions: int, words: int) -> data.StructLayout:
    """A target whose words are on their way.

    `fresh` marks the first bound of a partition, of which `last` is the number of the last word.
    """
    return data.StructLayout(
        {"target": target_layout(width, batch, partitions), "fresh": 1, "last": range(words)}
    )


class Fetcher(wiring.Component):
    """Requests the partition of each target that is another than the one before.

    Partitions have `words` words, the last of the array's `entries` has `rest`. Up to `ahead` bounds wait for
    their words, which are requested when the first of them comes: that hides a memory's latency of about as
    many cycles.

    Latency: 3 cycles. Throughput: one bound per cycle.
    """

    def __init__(
        self, width: int, batch: int, partitions: int, words: int, *, address_width: int, ahead: int
    ):
        self._ahead = ahead
        self._words = words
        super().__init__(
            {
                "address": In(address_width),
                "entries": In(range(partitions + 1)),
                "rest": In(range(words + 1)),
                "targets": In(stream.Signature(target_layout(width, batch, partitions))),
                "read": Out(stream.Signature(burst_layout(address_width))),
                "sought": Out(stream.Signature(sought_layout(width, batch, partitions, words))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        targets = self.targets
        shape = self.sought.payload.shape()
        m.submodules.skid = skid = Skid(self.read.payload.shape())
        m.submodules.queue = queue = Queue(shape, self._ahead)
        target = targets.p
        requested = Signal()  # of this run: `partition` is the last one
        partition = Signal.like(target.partition)
        fresh = Signal()
        length = Signal(range(self._words + 1))
        entry = queue.input.p
        m.d.comb += [
            fresh.eq(~target.none & ~(requested & (partition == target.partition))),
            length.eq(Mux(target.partition + 1 == self.entries, self.rest, self._words)),
            skid.input.p.address.eq(self.address + target.partition * self._words),
            skid.input.p.length.eq(length),
            skid.input.valid.eq(targets.valid & fresh & queue.input.ready),
            entry.target.eq(target),
            entry.fresh.eq(fresh),
            entry.last.eq(length - 1),
            queue.input.valid.eq(targets.valid & (~fresh | skid.input.ready)),
            targets.ready.eq(queue.input.ready & (~fresh | skid.input.ready)),
        ]
        with m.If(targets.valid & targets.ready):
            m.d.sync += requested.eq(~target.bound.closing & (requested | fresh))
            with m.If(fresh):
                m.d.sync += partition.eq(target.partition)
        wiring.connect(m, skid.output, wiring.flipped(self.read))
        wiring.connect(m, queue.output, wiring.flipped(self.sought))
        return m
