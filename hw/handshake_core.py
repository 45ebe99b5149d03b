"""The join core of the lock-step handshake chain: a segment of each window, and their meetings.

::

                    results (pairs)
                          ^
                     +----|----------------------+
     r_entering ---->| [ R segment ] ----------->|----> r_leaving
                     |       x  meet             |
     s_leaving  <----|<----------- [ S segment ] |<---- s_entering
                     +---------------------------+

All cores of a chain obey one `Command` in the same cycle, so a tuple is never between two cores.
"""

from amaranth import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from .dimension import Dimension
from .id_store import IdStore
from .parameters import Parameters
from .segment import Segment
from .socket import ID_WIDTH, PAIR_LAYOUT, box_layout, point_layout


class Command(data.Struct):
    """What every core does in this cycle; all low means rest."""

    shift_r: 1  # an R tuple enters each core, the oldest leaves for the next
    shift_s: 1
    scan_r: 1  # the R segment shows its next row
    scan_s: 1
    turn: 1  # the probes have met every row: they end here, or give way to those that enter
    load: 1  # this cycle's meetings are taken down; low while a core is still busy with the last ones
    clear: 1  # with both shifts: rows become invalid


def stored_layout(dims: data.StructLayout) -> data.StructLayout:
    """A tuple as a window keeps it."""
    return data.StructLayout({"valid": 1, "id": ID_WIDTH, "dims": dims})


class CoreSignature(wiring.Signature):
    """What the chain sees of a core."""

    def __init__(self, dims: tuple[Dimension, ...]):
        r_shape = stored_layout(point_layout(dims))
        s_shape = stored_layout(box_layout(dims))
        super().__init__(
            {
                "command": In(Command),
                "r_entering": In(r_shape),
                "r_leaving": Out(r_shape),
                "s_entering": In(s_shape),
                "s_leaving": Out(s_shape),
                "results": Out(stream.Signature(PAIR_LAYOUT)),
                "busy": Out(1),  # the chain must not go on: meetings are not taken down yet
                "pending": Out(1),  # some pair has not left yet
                "found": Out(1),  # a pair is taken down in this cycle
            }
        )


def meet(dims: tuple[Dimension, ...], r, s) -> Value:
    """Whether an R tuple and an S tuple are a pair."""
    inside = [dim.contains(r.dims[f"d{k}"], s.dims[f"d{k}"]) for k, dim in enumerate(dims)]
    return r.valid & s.valid & Cat(inside).all()


class HandshakeCore(wiring.Component):
    """A segment of both windows; a tuple that enters one meets every tuple of the other.

    A tuple meets `lanes` others per cycle, so the meetings of one tuple take `depth = segment / lanes`
    cycles. With a depth of 1 it meets them at the door, in the cycle in which it enters; otherwise
    while the opposite segment goes through its rows, in the `depth` cycles after that.

    The meetings of a cycle are taken down as a mask, whose pairs are queued one per cycle. `busy` is
    high while more than one is left or the queue is full: the chain then stands still.

    Latency: from the cycle in which a tuple enters until its pair is on `results`, when nothing
    competes: 2 cycles with a depth of 1, otherwise 3 plus the number of the row.
    Throughput: a tuple every `depth` cycles as long as no core finds more than one pair in a cycle.
    """

    def __init__(self, parameters: Parameters):
        self._dims = parameters.dims
        self._lanes = parameters.lanes
        self._depth = parameters.segment // parameters.lanes
        self._buffer = parameters.buffer
        super().__init__(CoreSignature(parameters.dims))

    def elaborate(self, platform):
        m = Module()
        command = self.command
        r = self._segment(m, "r", command.shift_r, command.scan_r)
        s = self._segment(m, "s", command.shift_s, command.scan_s)

        r_enters = command.shift_r & ~command.clear
        s_enters = command.shift_s & ~command.clear
        # The tuples that are meeting a segment now, at most one of them at a time.
        if self._depth == 1:
            r_probe, r_probing = self.r_entering, r_enters
            s_probe, s_probing = self.s_entering, s_enters
        else:
            r_probe = Signal(self.r_entering.shape(), reset_less=True)
            s_probe = Signal(self.s_entering.shape(), reset_less=True)
            r_probing = Signal()
            s_probing = Signal()
            with m.If(command.turn):
                m.d.sync += [r_probing.eq(r_enters), s_probing.eq(s_enters)]
            with m.If(command.shift_r):
                m.d.sync += r_probe.eq(self.r_entering)
            with m.If(command.shift_s):
                m.d.sync += s_probe.eq(self.s_entering)

        lanes = range(self._lanes)
        mask = Signal(self._lanes)
        meetings = Cat(
            (r_probing & meet(self._dims, r_probe, s.rows[lane]))
            | (s_probing & meet(self._dims, r.rows[lane], s_probe))
            for lane in lanes
        )
        lowest = Signal(range(self._lanes))
        for lane in reversed(lanes):
            with m.If(mask[lane]):
                m.d.comb += lowest.eq(lane)

        pair = Signal(PAIR_LAYOUT)
        if self._depth == 1:
            # Nothing has moved since the mask was taken down: the probe is the newest of its segment.
            r_probed = Signal()
            with m.If(command.load):
                m.d.sync += r_probed.eq(r_probing)
            m.d.comb += [
                pair.r_id.eq(self._id(m, "r", command.shift_r, Mux(r_probed, 0, lowest))),
                pair.s_id.eq(self._id(m, "s", command.shift_s, Mux(r_probed, lowest, 0))),
            ]
        else:
            pairs = [Signal(PAIR_LAYOUT, name=f"pair_{lane}", reset_less=True) for lane in lanes]
            with m.If(command.load):
                for lane in lanes:
                    m.d.sync += [
                        pairs[lane].r_id.eq(Mux(r_probing, r_probe.id, r.rows[lane].id)),
                        pairs[lane].s_id.eq(Mux(r_probing, s.rows[lane].id, s_probe.id)),
                    ]
            m.d.comb += pair.eq(Array(pairs)[lowest])

        m.submodules.queue = queue = fifo.SyncFIFO(width=PAIR_LAYOUT.size, depth=self._buffer)
        rest = mask & (mask - 1)
        with m.If(command.load):
            m.d.sync += mask.eq(meetings)
        with m.Elif(queue.w_rdy):
            m.d.sync += mask.eq(rest)
        m.d.comb += [
            queue.w_data.eq(pair),
            queue.w_en.eq(mask.any()),
            self.results.payload.eq(queue.r_data),
            self.results.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.results.ready),
            self.found.eq(mask.any() & queue.w_rdy),
            self.busy.eq(Mux(queue.w_rdy, rest.any(), mask.any())),
            self.pending.eq(mask.any() | queue.r_rdy),
        ]
        return m

    def _segment(self, m: Module, side: str, shift: Value, advance: Value) -> Segment:
        """A stream's segment, from which and to which its tuples go."""
        entering, leaving = getattr(self, f"{side}_entering"), getattr(self, f"{side}_leaving")
        kept = dict(entering.shape().members)
        if self._depth == 1:
            del kept["id"]  # see `_id`
        segment = Segment(data.StructLayout(kept), self._lanes, self._depth)
        m.submodules[f"{side}_segment"] = segment
        m.d.comb += [segment.entering[name].eq(entering[name]) for name in kept]
        m.d.comb += [leaving[name].eq(segment.leaving[name]) for name in kept]
        m.d.comb += [
            segment.shift.eq(shift),
            segment.advance.eq(advance),
            segment.clear.eq(self.command.clear),
        ]
        return segment

    def _id(self, m: Module, side: str, shift: Value, index: Value) -> Value:
        """The id of a stream's tuple, where rows show all tuples but only one id is asked for at a time."""
        m.submodules[f"{side}_ids"] = ids = IdStore(self._lanes)
        m.d.comb += [
            ids.entering.eq(getattr(self, f"{side}_entering").id),
            ids.shift.eq(shift),
            ids.index.eq(index),
            getattr(self, f"{side}_leaving").id.eq(ids.leaving),
        ]
        return ids.id
