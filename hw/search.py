"""The search: the ranges of a batch of sorted tuples in one sorted array in memory.

::

    keys -> [ boundary generator ] -> [ partitioner ] -> [ fetcher ] -> [ prober ] -> [ starts ] -> ranges
                                           ^                 |             ^
    index ---------------------------------+             requests        words
"""

from amaranth import Module, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .boundary import BoundaryGenerator, key_layout
from .dimension import Dimension
from .errors import ParameterError
from .fetcher import Fetcher
from .memory_port import MemoryPort
from .partitioner import Partitioner, index_layout
from .prober import Prober
from .record import flit_layout, record_layouts

#: How many bounds may wait for their words: more than the cycles that a memory takes to answer.
AHEAD = 512


def array_layout(dim: Dimension, *, capacity: int, banks: int, address_width: int) -> data.StructLayout:
    """A sorted array: the address of its first word, how many records it has, the bank of its index, and the
    largest difference of a box's bounds in it."""
    return data.StructLayout(
        {"address": address_width, "count": range(capacity + 1), "bank": range(banks), "width": dim.width}
    )


def range_layout(batch: int, capacity: int) -> data.StructLayout:
    """What the tuple in place `slot` of the batch finds: the records from `start` to before `end`."""
    positions = range(capacity + 1)
    return data.StructLayout({"slot": range(batch), "start": positions, "end": positions, "closing": 1})


def check_sizes(lanes: int, *, partition: int, partitions: int, banks: int, batch: int) -> None:
    """Refuses what cannot be built."""
    for name, value, lowest in (
        ("lanes", lanes, 1),
        ("partition", partition, lanes),
        ("partitions", partitions, 2),
        ("batch", batch, 2 * lanes),
    ):
        if value < lowest or value & (value - 1):
            raise ParameterError(f"{name} must be a power of two from {lowest} on, not {value!r}")
    if banks < 2:
        raise ParameterError(f"banks must be at least 2, not {banks!r}")


class Search(wiring.Component):
    """Finds the range of every tuple of a batch in an array of up to `partitions` times `partition` records.

    `lower` and `upper` are as the boundary generator wants them. `start` begins the search in `array`, which
    stays as it is until the closing range has come. Ranges come in the order of their upper bounds. A tuple
    whose upper bound is below its lower one gets a range as well, but its start means nothing.

    A bound's partition is read whole, once for all bounds in it; partitions without bounds are not read.

    Latency: the memory's and `3 * log2(partitions) + 14` cycles. Throughput: one bound or word per cycle, or
    both.
    """

    def __init__(
        self,
        dims: tuple[Dimension, ...],
        side: str,
        lanes: int,
        *,
        partition: int,
        partitions: int,
        banks: int,
        batch: int,
        address_width: int,
        ahead: int = AHEAD,
    ):
        check_sizes(lanes, partition=partition, partitions=partitions, banks=banks, batch=batch)
        self._dim = dims[0]
        self._side = side
        self._lanes = lanes
        self._partition = partition
        self._partitions = partitions
        self._banks = banks
        self._batch = batch
        self._address_width = address_width
        self._ahead = ahead
        self._record = record_layouts(dims)[{"r": "s", "s": "r"}[side]]
        capacity = partition * partitions
        keys = flit_layout(key_layout(self._dim, batch), lanes)
        array = array_layout(self._dim, capacity=capacity, banks=banks, address_width=address_width)
        super().__init__(
            {
                "index": In(stream.Signature(index_layout(self._dim.width, partitions, banks))),
                "lower": In(stream.Signature(keys)),
                "upper": In(stream.Signature(keys)),
                "array": In(array),
                "start": In(1),
                "memory": Out(MemoryPort(lanes * self._record.size, address_width)),
                "ranges": Out(stream.Signature(range_layout(batch, capacity))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        width = self._dim.width
        array = self.array
        words = self._partition // self._lanes
        sizes = (width, self._batch, self._partitions)
        m.submodules.boundary = boundary = BoundaryGenerator(self._dim, self._side, self._lanes, self._batch)
        m.submodules.partitioner = partitioner = Partitioner(*sizes, self._banks)
        m.submodules.fetcher = fetcher = Fetcher(
            *sizes, words, address_width=self._address_width, ahead=self._ahead
        )
        m.submodules.prober = prober = Prober(
            self._record, self._lanes, self._batch, partition=self._partition, partitions=self._partitions
        )
        entries = Signal.like(partitioner.entries, reset_less=True)
        rest = Signal.like(fetcher.rest, reset_less=True)
        m.d.sync += [
            entries.eq(-(-array.count // self._partition)),
            rest.eq((array.count - 1) % self._partition // self._lanes + 1),
        ]
        m.d.comb += [
            boundary.start.eq(self.start),
            boundary.width.eq(array.width),
            partitioner.bank.eq(array.bank),
            partitioner.entries.eq(entries),
            fetcher.address.eq(array.address),
            fetcher.entries.eq(entries),
            fetcher.rest.eq(rest),
            prober.count.eq(array.count),
            prober.words.payload.eq(self.memory.data.payload),
            prober.words.valid.eq(self.memory.data.valid),
            self.memory.data.ready.eq(prober.words.ready),
        ]
        wiring.connect(m, wiring.flipped(self.lower), boundary.lower)
        wiring.connect(m, wiring.flipped(self.upper), boundary.upper)
        wiring.connect(m, wiring.flipped(self.index), partitioner.index)
        wiring.connect(m, boundary.bounds, partitioner.bounds)
        wiring.connect(m, partitioner.targets, fetcher.targets)
        wiring.connect(m, fetcher.read, wiring.flipped(self.memory.read))
        wiring.connect(m, fetcher.sought, prober.sought)

        # Unless they are crossed, a tuple's lower bound is found before its upper one: it is kept until then.
        m.submodules.starts = starts = memory.Memory(
            shape=prober.positions.p.position.shape(),
            depth=self._batch,
            init=[],
            attrs={"no_rw_check": 1},
        )
        write, read = starts.write_port(), starts.read_port()
        positions, ranges = prober.positions, self.ranges
        pending = Signal()
        end = Signal(positions.payload.shape(), reset_less=True)
        found = Signal()
        m.d.comb += [
            positions.ready.eq(~pending | ranges.ready),
            found.eq(positions.valid & (positions.p.upper | positions.p.closing)),
            write.addr.eq(positions.p.slot),
            write.data.eq(positions.p.position),
            write.en.eq(positions.valid & positions.ready & ~positions.p.upper & ~positions.p.closing),
            read.addr.eq(positions.p.slot),
            read.en.eq(positions.ready),
            ranges.valid.eq(pending),
            ranges.p.slot.eq(end.slot),
            ranges.p.start.eq(read.data),
            ranges.p.end.eq(end.position),
            ranges.p.closing.eq(end.closing),
        ]
        with m.If(positions.ready):
            m.d.sync += [pending.eq(found), end.eq(positions.p)]
        return m
