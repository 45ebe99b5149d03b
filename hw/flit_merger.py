"""Merges two sorted runs, a whole flit per cycle.

::

    first --> [ lanes 0 .. E-1 ] --+                +---------+     +---------+
                                   +--> [ select ]->| stage 1 |-...-| stage n |--> output
    second -> [ lanes E-1 .. 0 ] --+        |       +---------+     +---------+
                   ^                        |
                   +-------- taken ---------+

The next E records of either run lie in E lanes, rotated by as many as were taken so far; E are taken in each
cycle, so the second run is rotated by as much as the first, the other way. Hence lane k of the first and lane
E-1-k of the second are always a record and its mirror image, as at the entrance of a bitonic merger: the
smaller of each two are the E smallest of all, and log2(E) stages put them in order. This is how FLiMS works.
"""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .errors import ParameterError
from .record import flit_layout
from .segment import DISTRIBUTED

#: Enough to go on at full rate while a lane is one row ahead of another.
_ROWS = 4


def log2_lanes(lanes: int) -> int:
    """The stages of a bitonic merger of so many lanes."""
    if lanes not in (1, 2, 4, 8, 16):
        raise ParameterError(f"lanes must be 1, 2, 4, 8 or 16, not {lanes!r}")
    return lanes.bit_length() - 1


def ranked_layout(record: data.StructLayout, order) -> data.StructLayout:
    """A record, or none, and its place among equals: no two of a flit are alike."""
    return data.StructLayout({"order": order, "record": record, "real": 1})


def compare_and_swap(m: Module, before, after, low: int, high: int) -> None:
    """Registers two lanes of `before` in `after`, the smaller in `low`; what is not real is largest."""

    def rank(lane):
        return Cat(lane.order, lane.record.key, ~lane.real)

    swap = Signal(name=f"swap_{low}_{high}")
    m.d.comb += swap.eq(rank(before[high]) < rank(before[low]))
    m.d.sync += [
        after[low].eq(Mux(swap, before[high], before[low])),
        after[high].eq(Mux(swap, before[low], before[high])),
    ]


class LaneQueues(wiring.Component):
    """One input of a merger: a queue per lane, of which any set can be taken that is next in the run.

    A lane is `done` when its last record of the run was taken, until `restart`, which comes with the last
    `take` of a run. `ahead` is high for lanes whose head is in a later flit than that of others. `valid` is
    high when each lane has a head or is done.

    Latency: 2 cycles. Throughput: one flit per cycle.
    """

    def __init__(self, record: data.StructLayout, lanes: int):
        log2_lanes(lanes)
        self._item = data.StructLayout({"record": record, "real": 1, "last": 1})
        head = data.StructLayout({**self._item.members, "ahead": 1, "done": 1})
        super().__init__(
            {
                "input": In(stream.Signature(flit_layout(record, lanes))),
                "heads": Out(data.ArrayLayout(head, lanes)),
                "valid": Out(1),
                "take": In(lanes),
                "restart": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes = len(self.take)
        flit = self.input.payload
        written = Signal(range(2 * _ROWS))
        # Lane 0 is never behind another, and the last lane never ahead.
        slowest = Signal(range(2 * _ROWS))
        m.d.comb += self.input.ready.eq((written ^ slowest) != _ROWS)
        with m.If(self.input.valid & self.input.ready):
            m.d.sync += written.eq(written + 1)
        odd = Signal(lanes)
        for k in range(lanes):
            queue = m.submodules[f"queue_{k}"] = memory.Memory(
                shape=self._item, depth=_ROWS, init=[], attrs=DISTRIBUTED
            )
            write, read = queue.write_port(), queue.read_port(domain="comb")
            loaded = Signal(range(2 * _ROWS), name=f"loaded_{k}")
            item = Signal(self._item, name=f"item_{k}", reset_less=True)
            valid = Signal(name=f"valid_{k}")
            done = Signal(name=f"done_{k}")
            m.d.comb += [
                write.addr.eq(written),
                write.data.record.eq(flit.records[k]),
                write.data.real.eq(k < flit.count),
                write.data.last.eq(flit.last),
                write.en.eq(self.input.valid & self.input.ready),
                read.addr.eq(loaded),
                *(self.heads[k][name].eq(item[name]) for name in self._item.members),
                self.heads[k].ahead.eq(odd[k] ^ odd[-1]),
                self.heads[k].done.eq(done),
            ]
            with m.If(self.take[k] | ~valid):
                m.d.sync += [
                    item.eq(read.data),
                    valid.eq(loaded != written),
                    loaded.eq(loaded + (loaded != written)),
                ]
            with m.If(self.take[k]):
                m.d.sync += [odd[k].eq(~odd[k]), done.eq(item.last)]
            with m.If(self.restart):
                m.d.sync += done.eq(0)
            if k == 0:
                m.d.comb += self.valid.eq(valid | done)
            if k == lanes - 1:
                m.d.comb += slowest.eq(loaded)
        return m


class FlitMerger(wiring.Component):
    """Merges a run of `first` and a run of `second` into one run of `output`, again and again.

    Stable: among equal keys the records of `first` come first, and each run's keep their order. Runs may
    have no records.

    Latency: `latency(lanes)` cycles. Throughput: one flit per cycle, whatever the keys are; a run takes as
    many cycles as the flits of both inputs, and the next one follows without a gap.
    """

    def __init__(self, record: data.StructLayout, lanes: int):
        self._record = record
        self._lanes = lanes
        log2_lanes(lanes)
        flits = stream.Signature(flit_layout(record, lanes))
        super().__init__({"first": In(flits), "second": In(flits), "output": Out(flits)})

    @staticmethod
    def latency(lanes: int) -> int:
        """From a run's first flits to its first on `output`, which waits until a second one follows."""
        return 3 + max(1, log2_lanes(lanes))

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        m.submodules.first = first = LaneQueues(self._record, lanes)
        m.submodules.second = second = LaneQueues(self._record, lanes)
        wiring.connect(m, wiring.flipped(self.first), first.input)
        wiring.connect(m, wiring.flipped(self.second), second.input)

        # One stage more than a single lane needs: the last one looks at what comes after it.
        order = data.StructLayout({"lane": range(lanes), "ahead": 1, "second": 1})
        ranked = data.ArrayLayout(ranked_layout(self._record, order), lanes)
        depth = 1 + max(1, log2_lanes(lanes))
        stages = [Signal(ranked, name=f"stage_{k}", reset_less=True) for k in range(depth)]
        count = [Signal(range(lanes + 1), name=f"count_{k}", reset_less=True) for k in range(1, depth)]
        valid = Signal(depth)
        final = Signal(depth)  # the run's last flit
        move = [Signal(name=f"move_{k}") for k in range(depth)]

        step = Signal()
        ends = Signal(lanes)
        m.d.comb += [
            step.eq(first.valid & second.valid & move[0]),
            first.restart.eq(step & ends.all()),
            second.restart.eq(step & ends.all()),
        ]
        with m.If(move[0]):
            m.d.sync += [valid[0].eq(step), final[0].eq(ends.all())]
        for k in range(lanes):
            mirror = lanes - 1 - k
            one, other = first.heads[k], second.heads[mirror]
            not_after = Signal(name=f"not_after_{k}")
            take_one = Signal(name=f"take_one_{k}")
            m.d.comb += [
                not_after.eq(one.record.key <= other.record.key),
                take_one.eq(other.done | (~one.done & (~other.real | (one.real & not_after)))),
                first.take[k].eq(step & take_one),
                second.take[mirror].eq(step & ~take_one),
                ends[k].eq((one.done & other.last) | (other.done & one.last)),
            ]
            selected = stages[0][k]
            with m.If(move[0]):
                m.d.sync += selected.order.second.eq(~take_one)
                with m.If(take_one):
                    m.d.sync += [
                        selected.record.eq(one.record),
                        selected.real.eq(one.real),
                        selected.order.lane.eq(k),
                        selected.order.ahead.eq(one.ahead),
                    ]
                with m.Else():
                    m.d.sync += [
                        selected.record.eq(other.record),
                        selected.real.eq(other.real),
                        selected.order.lane.eq(mirror),
                        selected.order.ahead.eq(other.ahead),
                    ]

        for k in range(1, depth):
            with m.If(move[k]):
                m.d.sync += [
                    valid[k].eq(valid[k - 1]),
                    final[k].eq(final[k - 1]),
                    count[k - 1].eq(count[k - 2] if k > 1 else sum(lane.real for lane in stages[0])),
                ]
                distance = lanes >> k
                for low in range(lanes):
                    if not distance:
                        m.d.sync += stages[k].eq(stages[k - 1])
                    elif not low & distance:
                        compare_and_swap(m, stages[k - 1], stages[k], low, low + distance)

        # A run of n records takes the flits of both inputs, of which the last is empty if fewer would do.
        superfluous = Signal()
        m.d.comb += [
            superfluous.eq(final[-2] & ~Cat(lane.real for lane in stages[-2]).any()),
            self.output.valid.eq(valid[-1] & (final[-1] | valid[-2])),
            self.output.p.last.eq(final[-1] | superfluous),
            self.output.p.count.eq(count[-1]),
            *(to.eq(lane.record) for to, lane in zip(self.output.p.records, stages[-1])),
            move[-1].eq(~valid[-1] | (self.output.valid & self.output.ready)),
            *(move[k].eq(~valid[k] | move[k + 1]) for k in range(depth - 1)),
        ]
        with m.If(move[-1] & superfluous):
            m.d.sync += valid[-1].eq(0)
        return m
