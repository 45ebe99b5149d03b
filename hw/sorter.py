"""Sorts a batch in block RAM, a flit per cycle and pass.

::

    input --> [ network ] --+--> [ even runs ] --> first  [        ]
                            |                             [ merger ] --+--> output
                            +--> [ odd runs  ] --> second [        ]   |
                            |                                          |
                            +------------- the other two <-------------+

The network sorts each flit by itself: a run of one flit. Each pass merges runs two by two, from one pair of
memories into the other; the one that leaves a single run goes to the output.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .errors import ParameterError
from .flit_merger import FlitMerger, compare_and_swap, log2_lanes, ranked_layout
from .record import flit_layout


def network(lanes: int) -> list[list[tuple[int, int]]]:
    """Batcher's odd-even merge sort: the lanes that are compared, low and high, stage by stage."""
    stages = []
    for size in (1 << k for k in range(log2_lanes(lanes))):
        for distance in (size >> k for k in range(size.bit_length())):
            stages.append(
                [
                    (low, low + distance)
                    for start in range(distance % size, lanes - distance, 2 * distance)
                    for low in range(start, min(start + distance, lanes - distance))
                    if low // (2 * size) == (low + distance) // (2 * size)
                ]
            )
    return stages


class FlitSorter(wiring.Component):
    """Sorts the records within each flit, stable.

    Latency: a cycle for each of the `network`'s stages. Throughput: one flit per cycle.
    """

    def __init__(self, record: data.StructLayout, lanes: int):
        self._record = record
        flits = stream.Signature(flit_layout(record, lanes))
        super().__init__({"input": In(flits), "output": Out(flits)})

    def elaborate(self, platform):
        m = Module()
        lanes = len(self.input.p.records)
        ranked = data.ArrayLayout(ranked_layout(self._record, range(lanes)), lanes)
        rest = data.StructLayout({"count": range(lanes + 1), "last": 1})
        before = Signal(ranked)
        extra = Signal(rest)
        valid = self.input.valid
        move = Signal()
        m.d.comb += [extra.count.eq(self.input.p.count), extra.last.eq(self.input.p.last)]
        for k in range(lanes):
            m.d.comb += [
                before[k].record.eq(self.input.p.records[k]),
                before[k].order.eq(k),
                before[k].real.eq(k < self.input.p.count),
            ]
        for number, pairs in enumerate(network(lanes)):
            after = Signal(ranked, name=f"stage_{number}", reset_less=True)
            extra_after = Signal(rest, name=f"extra_{number}", reset_less=True)
            valid_after = Signal(name=f"valid_{number}")
            compared = {lane for pair in pairs for lane in pair}
            with m.If(move):
                m.d.sync += [extra_after.eq(extra), valid_after.eq(valid)]
                m.d.sync += [after[k].eq(before[k]) for k in range(lanes) if k not in compared]
                for low, high in pairs:
                    compare_and_swap(m, before, after, low, high)
            before, extra, valid = after, extra_after, valid_after
        m.d.comb += [
            move.eq(~valid | self.output.ready),
            self.input.ready.eq(move if network(lanes) else self.output.ready),
            self.output.valid.eq(valid),
            self.output.p.count.eq(extra.count),
            self.output.p.last.eq(extra.last),
            *(to.eq(lane.record) for to, lane in zip(self.output.p.records, before)),
        ]
        return m


def flits_of(lanes: int, size: int) -> int:
    """The flits of a sorter's largest run."""
    log2_lanes(lanes)
    if type(size) is not int or size < 2 * lanes or size & (size - 1):
        raise ParameterError(f"size must be a power of two from {2 * lanes} on, not {size!r}")
    return size // lanes


class Sorter(wiring.Component):
    """Sorts runs of up to `size` records, stable, one after another.

    `size` is a power of two of at least two flits; it takes block RAM for twice as many records.

    A run of n flits takes at most `cycles(lanes, n)` cycles from its first flit in to its last flit out when
    nothing stalls.
    """

    def __init__(self, record: data.StructLayout, lanes: int, size: int):
        self._record = record
        self._lanes = lanes
        self._rows = flits_of(lanes, size)
        flits = stream.Signature(flit_layout(record, lanes))
        super().__init__({"input": In(flits), "output": Out(flits)})

    @staticmethod
    def cycles(lanes: int, flits: int) -> int:
        """What a run of so many flits takes: into memory, and once through the merger per pass."""
        passes = max(1, (flits - 1).bit_length())
        return flits + len(network(lanes)) + passes * (flits + 1 + FlitMerger.latency(lanes) + 2)

    def elaborate(self, platform):
        m = Module()
        m.submodules.network = flit_sorter = FlitSorter(self._record, self._lanes)
        m.submodules.merger = merger = FlitMerger(self._record, self._lanes)
        flit = self.output.p.shape()
        wiring.connect(m, wiring.flipped(self.input), flit_sorter.input)

        # One half of each memory is read, the other written; one memory has the even runs, the other the odd.
        half = Signal()
        rows = [Signal(range(self._rows // 2 + 1), name=f"rows_{parity}") for parity in range(2)]
        runs = Signal(range(self._rows + 1))
        filled = [Signal.like(count, name=f"filled_{parity}") for parity, count in enumerate(rows)]
        made = Signal.like(runs)
        parity_made = made[0]

        merging = Signal()
        storing = Signal()
        stored = Signal(flit)
        place = data.StructLayout({"row": range(self._rows // 2), "half": 1})
        for parity, to_merge in enumerate((merger.first, merger.second)):
            store = m.submodules[f"store_{parity}"] = memory.Memory(shape=flit, depth=self._rows, init=[])
            write, read = store.write_port(), store.read_port()
            to, at = data.View(place, write.addr), data.View(place, read.addr)
            m.d.comb += [
                to.row.eq(filled[parity]),
                to.half.eq(~half),
                write.data.eq(stored),
                write.en.eq(storing & (parity_made == parity)),
            ]
            with m.If(write.en):
                m.d.sync += filled[parity].eq(filled[parity] + 1)

            # Without a partner, a run is merged with an empty one.
            row = Signal(range(self._rows // 2 + 2), name=f"row_{parity}")
            blank = Signal(name=f"blank_{parity}")
            total = rows[parity] + (runs[0] if parity else 0)
            m.d.comb += [
                at.row.eq(row),
                at.half.eq(half),
                read.en.eq(~to_merge.valid | to_merge.ready),
                to_merge.p.eq(read.data),
            ]
            with m.If(blank):
                m.d.comb += [to_merge.p.count.eq(0), to_merge.p.last.eq(1)]
            with m.If(read.en):
                m.d.sync += [
                    to_merge.valid.eq(merging & (row != total)),
                    blank.eq(row == rows[parity]),
                    row.eq(Mux(merging, row + (row != total), 0)),
                ]

        with m.FSM():
            with m.State("LOAD"):
                loaded = flit_sorter.output
                m.d.comb += [
                    loaded.ready.eq(1),
                    storing.eq(loaded.valid),
                    stored.eq(loaded.p),
                    stored.last.eq(1),
                ]
                with m.If(loaded.valid):
                    m.d.sync += made.eq(made + 1)
                    with m.If(loaded.p.last):
                        m.next = "SWAP"
            with m.State("SWAP"):
                m.d.sync += [half.eq(~half), runs.eq(made), made.eq(0)]
                for parity in range(2):
                    m.d.sync += [rows[parity].eq(filled[parity]), filled[parity].eq(0)]
                m.next = "MERGE"
            with m.State("MERGE"):
                merged = merger.output
                m.d.comb += [merging.eq(1), stored.eq(merged.p)]
                ended = merged.valid & merged.ready & merged.p.last
                with m.If(runs <= 2):
                    m.d.comb += [self.output.valid.eq(merged.valid), merged.ready.eq(self.output.ready)]
                    with m.If(ended):
                        m.next = "LOAD"
                with m.Else():
                    m.d.comb += [merged.ready.eq(1), storing.eq(merged.valid)]
                    with m.If(ended):
                        m.d.sync += made.eq(made + 1)
                        with m.If(made == (runs - 1) >> 1):
                            m.next = "SWAP"
        m.d.comb += self.output.p.eq(merger.output.p)
        return m
