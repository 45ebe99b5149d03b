"""The join core of the lock-step handshake chain: a segment of each window, and their meetings.

::

                       results (meetings)
                          ^
                     +----|----------------------+
     r_entering ---->| [ R segment ] ----------->|----> r_leaving
                     |       x  meet             |
     s_leaving  <----|<----------- [ S segment ] |<---- s_entering
                     +---------------------------+

All cores of a chain obey one command in the same cycle, so a tuple is never between two cores.
"""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from . import fan
from .dimension import Dimension
from .errors import ParameterError
from .lowest import lowest
from .parameters import Parameters
from .segment import DISTRIBUTED, Segment
from .socket import box_layout, point_layout
from .stamp import Stamp

#: How many cycles of meetings are told apart, at least. Twice what passes, even in the longest chain, until
#: a pair that nothing competes with has left.
_SPAN = 128


def stored_layout(dims: data.StructLayout) -> data.StructLayout:
    """A tuple as a segment keeps it: without its id, which `Ledger` has."""
    return data.StructLayout({"valid": 1, "dims": dims})


def stamp_layout(parameters: Parameters) -> data.StructLayout:
    """When tuples meet.

    `age` says which row of the segment, counted from its newest; `step` and `epoch` are a count of the
    tuples that have entered the chain. The numbers of an epoch are used again when all its pairs have left.
    """
    depth = parameters.segment // parameters.lanes
    steps = max(2, -(-_SPAN // depth) // 2)
    return data.StructLayout({"age": range(depth), "step": range(steps), "epoch": 1})


def meeting_layout(parameters: Parameters) -> data.StructLayout:
    """A pair as the place and time at which it met: the probe of `core` and a tuple in `lane`."""
    place = {"lane": range(parameters.lanes), "core": range(parameters.cores)}
    return data.StructLayout(stamp_layout(parameters).members | place)


def command_layout(parameters: Parameters) -> data.StructLayout:
    """What every core does in this cycle; all low means rest."""
    scan = {
        "advance_r": 1,  # the R segment goes to its next row
        "advance_s": 1,
        "show_r": 1,  # the row of the R segment is compared in the next cycle
        "show_s": 1,
    }
    return data.StructLayout(
        {
            "shift_r": 1,  # an R tuple enters each core, the oldest leaves for the next
            "shift_s": 1,
            "clear": 1,  # with both shifts: rows become invalid
            **(scan if parameters.lanes < parameters.segment else {}),
            # Two cycles after rows were shown, or an R tuple entered a segment of one row: it has met them.
            "meet_r": 1,
            "meet_s": 1,
            "stamp": stamp_layout(parameters),
        }
    )


class CoreSignature(wiring.Signature):
    """What the chain sees of a core."""

    def __init__(self, parameters: Parameters):
        r_shape = stored_layout(point_layout(parameters.dims))
        s_shape = stored_layout(box_layout(parameters.dims))
        super().__init__(
            {
                "command": In(command_layout(parameters)),
                "number": In(range(parameters.cores)),  # which core this is
                "r_entering": In(r_shape),
                "r_leaving": Out(r_shape),
                "s_entering": In(s_shape),
                "s_leaving": Out(s_shape),
                "results": Out(stream.Signature(meeting_layout(parameters))),
                "busy": Out(1),  # the chain must stop before what is under way fills the queue
                "pending": Out(2),  # some pair of epoch 0, of epoch 1, has not left yet
                "found": Out(1),  # a pair leaves in this cycle
            }
        )


class Comparators(wiring.Component):
    """Compares the newest R tuple with a row of S tuples, and the newest S tuple with a row of R tuples.

    Latency: 1 cycle. Throughput: both rows every cycle.
    """

    #: Mapped together with slower logic, comparators would cost a third more.
    KEPT = True

    def __init__(self, dims: tuple[Dimension, ...], lanes: int):
        self._dims = dims
        super().__init__(
            {
                "r": In(stored_layout(point_layout(dims))).array(lanes),
                "s": In(stored_layout(box_layout(dims))).array(lanes),
                "r_meets": Out(lanes),  # the first of `r` is a pair with this one of `s`
                "s_meets": Out(lanes),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for lane in range(len(self.r)):
            as_probe = self._meet(m, f"r_0_s_{lane}", self.r[0], self.s[lane])
            as_stored = self._meet(m, f"r_{lane}_s_0", self.r[lane], self.s[0]) if lane else as_probe
            m.d.comb += [self.r_meets[lane].eq(as_probe), self.s_meets[lane].eq(as_stored)]
        return m

    def _meet(self, m: Module, name: str, r, s) -> Value:
        """Whether two tuples are a pair, one cycle later.

        A register for each test: taken together they would cost up to twice the logic, and more time.
        """
        tests = [r.valid & s.valid]
        tests += [dim.contains(r.dims[f"d{k}"], s.dims[f"d{k}"]) for k, dim in enumerate(self._dims)]
        passed = Signal(len(tests), name=name, reset_less=True)
        m.d.sync += passed.eq(Cat(tests))
        return passed.all()


class HandshakeCore(wiring.Component):
    """A segment of both windows; a tuple that enters one meets every tuple of the other.

    A tuple meets `lanes` others per cycle, so the meetings of one tuple take `depth = segment / lanes`
    cycles. With a depth of 1 all rows are in registers and the probe, the tuple that has entered, is the
    newest of its segment in the cycle after. Otherwise rows are shown in registers, the probe's once, and
    those of the opposite segment one after another.

    The pairs of a cycle are queued together as a mask and leave one per cycle. No core can stop the chain
    at once: `busy` rises when the queue has room for no more than what the chain may still command.

    Latency: `LATENCY` cycles from the command that shows a row (with a depth of 1: that shifts) until its
    pair is on `results`, when nothing competes.
    Throughput: a row every cycle, as long as it brings at most one pair.
    """

    LATENCY = 4
    #: From the command that shows a row until its pairs count in `pending` and, a cycle later, in `busy`.
    QUEUED = 3

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        self._lanes = parameters.lanes
        self._depth = parameters.segment // parameters.lanes
        least = self.least_buffer(parameters.cores)
        if parameters.buffer < least:
            raise ParameterError(
                f"buffer must be at least {least} with {parameters.cores} cores, not {parameters.buffer!r}"
            )
        super().__init__(CoreSignature(parameters))

    @classmethod
    def least_buffer(cls, cores: int) -> int:
        """How large the queue must be in a chain of so many cores.

        One place stays empty, and two are in use by a core that finds a pair in every cycle.
        """
        return 3 + cls._under_way(cores)

    @classmethod
    def _under_way(cls, cores: int) -> int:
        """How many rows may still be queued when the chain hears that a core is busy."""
        return cls.QUEUED + 2 * fan.levels(cores)

    def elaborate(self, platform):
        m = Module()
        command = self.command
        r = self._rows(m, "r")
        s = self._rows(m, "s")
        m.submodules.comparators = comparators = Stamp(Comparators, self._parameters.dims, self._lanes)
        m.d.comb += [
            port.eq(row)
            for ports, rows in ((comparators.r, r), (comparators.s, s))
            for port, row in zip(ports, rows)
        ]
        mask = Signal(self._lanes)
        m.d.comb += mask.eq(
            Mux(command.meet_r, comparators.r_meets, 0) | Mux(command.meet_s, comparators.s_meets, 0)
        )

        # Equal pointers mean an empty queue, so one place stays empty.
        entry_layout = data.StructLayout(
            ({"mask": self._lanes} if self._lanes > 1 else {}) | {"stamp": command.stamp.shape()}
        )
        written = Signal(range(self._parameters.buffer))
        read = Signal(range(self._parameters.buffer))
        filled = Signal.like(written)
        m.submodules.queued = queue = memory.Memory(
            shape=entry_layout, depth=1 << len(written), init=[], attrs=DISTRIBUTED
        )
        write = queue.write_port()
        head = queue.read_port(domain="comb")
        m.d.comb += [
            write.addr.eq(written),
            write.data.stamp.eq(command.stamp),
            write.en.eq(mask.any()),
            head.addr.eq(read),
            filled.eq(written - read),
        ]
        with m.If(mask.any()):
            m.d.sync += written.eq(written + 1)
        room = self._parameters.buffer - 1 - self._under_way(self._parameters.cores)
        m.d.sync += self.busy.eq(filled >= room)

        # The oldest mask, whose pairs leave one by one.
        waiting = written != read
        leaving = Signal(self._lanes)
        valid = Signal()
        stamp = Signal(command.stamp.shape(), reset_less=True)
        results = self.results
        lane, rest = lowest(m, leaving, "leaving")
        with m.If(~valid | (results.ready & ~rest.any())):
            m.d.sync += [valid.eq(waiting), read.eq(read + waiting), stamp.eq(head.data.stamp)]
            if self._lanes > 1:
                m.d.sync += leaving.eq(head.data.mask)
        with m.Elif(results.ready):
            m.d.sync += leaving.eq(rest)
        if self._lanes > 1:
            m.d.comb += write.data.mask.eq(mask)
        m.d.comb += [
            *(results.payload[name].eq(stamp[name]) for name in stamp.shape().members),
            results.payload.lane.eq(lane),
            results.payload.core.eq(self.number),
            results.valid.eq(valid),
            self.found.eq(valid & results.ready),
        ]
        for epoch in range(2):
            m.d.comb += self.pending[epoch].eq(
                (valid & (stamp.epoch == epoch)) | (waiting & (head.data.stamp.epoch == epoch))
            )
        return m

    def _rows(self, m: Module, side: str) -> list:
        """A stream's segment, from which and to which its tuples go; the rows that can meet."""
        command = self.command
        entering, leaving = getattr(self, f"{side}_entering"), getattr(self, f"{side}_leaving")
        segment = Segment(entering.shape(), self._lanes, self._depth)
        m.submodules[f"{side}_segment"] = segment
        m.d.comb += [
            segment.entering.eq(entering),
            leaving.eq(segment.leaving),
            segment.shift.eq(command[f"shift_{side}"]),
            segment.clear.eq(command.clear),
        ]
        if self._depth == 1:
            return list(segment.rows)
        m.d.comb += segment.advance.eq(command[f"advance_{side}"])
        shown = [
            Signal.like(row, name=f"{side}_shown_{k}", reset_less=True) for k, row in enumerate(segment.rows)
        ]
        with m.If(command[f"show_{side}"]):
            m.d.sync += [copy.eq(row) for copy, row in zip(shown, segment.rows)]
        return shown
