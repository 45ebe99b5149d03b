"""The probing engine: a batch of one stream's tuples meets sorted arrays of the other's in memory.

::

              +-> lower keys -----------------> [        ]
    batch ----+-> upper keys --> [ sorter ] --> [ search ] --> ranges --+
              |                                 [        ]              v
              +-> records --------------------------------------> [ probes ] --+--> results
                                                   ^   |                       v      ^
    index, commands -------------------------------+ memory           [ materialiser ]
                                                                            |
                                                                          memory

Upper bounds of a band's boxes may need to be sorted; others come as they are.
"""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .boundary import needs_sorting
from .dimension import Dimension, Test
from .materialiser import Materialiser, candidates_layout, probe_layout
from .memory_port import MemoryPort
from .partitioner import index_layout
from .record import flit_layout, record_layouts
from .search import AHEAD, Search, array_layout
from .socket import RESULT_LAYOUT, Tag
from .sorter import Sorter


class Probing(wiring.Component):
    """Probes with a batch of `side`, up to `batch` records sorted by their keys, one array after another.

    The batch stays until the next comes, which is taken between commands, and before one that waits. Each
    command names an array of the other stream: the address of its first word, how many records it has, the
    bank of its index, and the largest difference of a box's bounds (which only R probing bands looks at).
    The engine answers with the batch's pairs in it, or with ranges if `pairs` is low, and then with a mark.

    Pairs are checked in all dimensions. Ranges are exact in the first one, but for R that probes bands:
    there a box of less than the largest width may end before the point, and a range holds all that might
    match. If the first dimension is negated, what matches lies outside the range. R that probes negated
    bands has to look at all records, so its ranges are empty; so are those of negated boxes whose bounds are
    crossed, which exclude nothing. A box of a plain band has its bounds in order.

    `index` takes an entry in every cycle; those of an array are not changed while it is probed. Words of
    `gather` are needed before those of `search` are taken, so these ports must not wait for each other.

    Latency: see `Search` and `Materialiser`; a batch of bands of different widths first passes a `Sorter`.
    Throughput: `lanes` records per cycle of the batch, and as these.
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
        self._dims = dims
        self._side = side
        self._lanes = lanes
        self._batch = batch
        self._capacity = partition * partitions
        self._record = record_layouts(dims)[side]
        self._address_width = address_width
        self._ahead = ahead
        self._sizes = {"partition": partition, "partitions": partitions, "banks": banks}
        array = array_layout(dims[0], capacity=self._capacity, banks=banks, address_width=address_width)
        port = MemoryPort(lanes * self._record.size, address_width)
        super().__init__(
            {
                "index": In(stream.Signature(index_layout(dims[0].width, partitions, banks))),
                "batch": In(stream.Signature(flit_layout(self._record, lanes))),
                "command": In(stream.Signature(data.StructLayout({"array": array, "pairs": 1}))),
                "results": Out(stream.Signature(RESULT_LAYOUT)),
                "search": Out(port),
                "gather": Out(port),
            }
        )

    def elaborate(self, platform):
        m = Module()
        place = {"address_width": self._address_width, "ahead": self._ahead}
        m.submodules.searching = search = Search(
            self._dims, self._side, self._lanes, batch=self._batch, **self._sizes, **place
        )
        m.submodules.materialiser = materialiser = Materialiser(
            self._dims, self._side, self._lanes, capacity=self._capacity, **place
        )
        wiring.connect(m, wiring.flipped(self.index), search.index)
        wiring.connect(m, search.memory, wiring.flipped(self.search))
        wiring.connect(m, materialiser.memory, wiring.flipped(self.gather))
        sorts = needs_sorting(self._dims[0], self._side)

        # The batch comes in: keys to the search, whole records to where their slots find them.
        batch, lanes = self.batch, self._lanes
        probe = probe_layout(self._record)
        rows = self._batch // lanes
        negated = self._dims[0].negated and self._dims[0].test is Test.BAND
        # The search gives no start to a negated box with crossed bounds; it leaves out no record.
        crosses = negated and self._side == "s"
        kept = data.StructLayout({"probe": probe} | ({"crossed": 1} if crosses else {}))
        m.submodules.probes = probes = memory.Memory(
            shape=data.ArrayLayout(kept, lanes), depth=rows, init=[], attrs={"no_rw_check": 1}
        )
        write, read = probes.write_port(), probes.read_port()
        row = Signal(range(rows))
        taken = Signal()
        m.d.comb += [taken.eq(batch.valid & batch.ready), write.addr.eq(row), write.en.eq(taken)]
        runs = [search.lower, search.upper]
        if sorts:
            m.submodules.sorter = sorter = Sorter(
                search.upper.p.records.shape().elem_shape, lanes, self._batch
            )
            runs.append(sorter.input)
            # Boxes of one width have upper bounds in the batch's order, and do not wait for the sorter.
            in_order = self._upper_order(m, taken)
            stale = Signal()  # the sorter works on what came sorted
            m.d.comb += sorter.output.ready.eq(1)
            with m.If(sorter.output.valid & sorter.output.p.last):
                m.d.sync += stale.eq(0)
        for run in runs:
            m.d.comb += [run.valid.eq(taken), run.p.count.eq(batch.p.count), run.p.last.eq(batch.p.last)]
            for lane, (own, record) in enumerate(zip(run.p.records, batch.p.records)):
                key = record.hi if sorts and run is not search.lower else record.key
                m.d.comb += [own.key.eq(key), own.id.eq(row * lanes + lane)]
        for own, record in zip(write.data, batch.p.records):
            m.d.comb += [own.probe[name].eq(record[name]) for name in probe.members]
            if crosses:
                m.d.comb += own.crossed.eq(record.hi < record.key)
        with m.If(taken):
            m.d.sync += row.eq(Mux(batch.p.last, 0, row + 1))

        command, results = self.command, self.results
        array = Signal.like(command.p.array, reset_less=True)
        pairs = Signal(reset_less=True)
        m.d.comb += [
            search.array.eq(array),
            materialiser.address.eq(array.address),
            materialiser.count.eq(array.count),
        ]
        with m.FSM():
            with m.State("FILLING"):
                if sorts:
                    m.d.comb += batch.ready.eq(sorter.input.ready & ~stale)
                    with m.If(taken & batch.p.last):
                        m.d.sync += stale.eq(in_order)
                        m.next = "SORTING"
                        with m.If(in_order):
                            m.next = "READY"
                else:
                    m.d.comb += batch.ready.eq(1)
                    with m.If(taken & batch.p.last):
                        m.next = "READY"
            if sorts:
                with m.State("SORTING"):
                    m.d.comb += [
                        search.upper.p.eq(sorter.output.p),
                        search.upper.valid.eq(sorter.output.valid),
                    ]
                    with m.If(sorter.output.valid & sorter.output.p.last):
                        m.next = "READY"
            with m.State("READY"):
                m.d.comb += command.ready.eq(~batch.valid)
                m.d.sync += [array.eq(command.p.array), pairs.eq(command.p.pairs)]
                with m.If(batch.valid):
                    m.next = "FILLING"
                with m.Elif(command.valid):
                    m.next = "STARTING"
            with m.State("STARTING"):
                m.d.comb += search.start.eq(1)
                m.next = "PROBING"
            with m.State("PROBING"):
                with m.If(results.valid & results.ready & (results.p.tag == Tag.MARK)):
                    m.next = "READY"

        # Each range meets its tuple.
        ranges = search.ranges
        candidates = stream.Signature(candidates_layout(probe, self._capacity)).create()
        found = Signal(ranges.payload.shape(), reset_less=True)
        m.d.comb += [
            ranges.ready.eq(~candidates.valid | candidates.ready),
            read.addr.eq(ranges.p.slot // lanes),
            read.en.eq(ranges.ready),
            candidates.p.probe.eq(read.data[found.slot % lanes].probe),
            candidates.p.start.eq(found.start),
            candidates.p.end.eq(found.end),
            candidates.p.closing.eq(found.closing),
        ]
        with m.If(ranges.ready):
            m.d.sync += [candidates.valid.eq(ranges.valid), found.eq(ranges.p)]
        if negated:
            with m.If(read.data[found.slot % lanes].crossed if crosses else 1):
                m.d.comb += [candidates.p.start.eq(0), candidates.p.end.eq(0)]

        m.d.comb += materialiser.candidates.payload.eq(candidates.payload)
        with m.If(pairs):
            m.d.comb += [
                materialiser.candidates.valid.eq(candidates.valid),
                candidates.ready.eq(materialiser.candidates.ready),
                results.valid.eq(materialiser.pairs.valid),
                materialiser.pairs.ready.eq(results.ready),
                results.p.tag.eq(Mux(materialiser.pairs.p.closing, Tag.MARK, Tag.PAIR)),
            ]
            with m.If(~materialiser.pairs.p.closing):
                m.d.comb += results.p.body.pair.eq(materialiser.pairs.p.pair)
        with m.Else():
            m.d.comb += [
                results.valid.eq(candidates.valid),
                candidates.ready.eq(results.ready),
                results.p.tag.eq(Mux(candidates.p.closing, Tag.MARK, Tag.RANGE)),
            ]
            with m.If(~candidates.p.closing):
                m.d.comb += [
                    results.p.body.range.id.eq(candidates.p.probe.id),
                    results.p.body.range.start.eq(candidates.p.start),
                    results.p.body.range.end.eq(candidates.p.end),
                    results.p.body.range["not"].eq(self._dims[0].negated),
                ]
        return m

    def _upper_order(self, m: Module, taken: Signal) -> Signal:
        """Whether upper bounds come sorted, up to the flit on offer."""
        batch = self.batch.p
        begun = Signal()
        so_far = Signal()
        highest = Signal(self._dims[0].width, reset_less=True)
        in_order = Signal()
        before = [highest, *(record.hi for record in batch.records)]
        falls = [
            (lane < batch.count) & (record.hi < before[lane]) & (begun if lane == 0 else 1)
            for lane, record in enumerate(batch.records)
        ]
        m.d.comb += in_order.eq((so_far | ~begun) & ~Cat(falls).any())
        with m.If(taken):
            m.d.sync += [begun.eq(~batch.last), so_far.eq(in_order), highest.eq(before[-1])]
        return in_order
