"""Lock-step handshake join: two windows walk past each other along a chain of cores.

::

                       results
                          ^
                    [ gathering tree ] <--- marks, errors
                     ^      ^       ^
                  +--|---+--|---+---|--+
      tuples R -->| core | core | core |--> oldest R
    oldest S <----|  0   |  1   |  n-1 |<-- tuples S
                  +--^---+--^---+---^--+
                     |      |       |
                    [   controller    ] <--- tuples: flush, mark, horizon

The paper is "How Soccer Players Would do Stream Joins", section 6. A tuple that enters moves all
tuples of its stream by one place at once, and one of them enters each core, where it meets the
opposite segment. A pair of tuples is in the same core during exactly one stretch of time, so it
meets exactly once: no tuple moves while another of the opposite stream does.
"""

from amaranth import Cat, Module, Signal
from amaranth.lib import data, enum, wiring

from .gather import Gather
from .handshake_core import Command, HandshakeCore
from .parameters import Parameters
from .socket import ID_WIDTH, PAIR_LAYOUT, RESULT_LAYOUT, Fault, Kind, Socket, Tag
from .stamp import Stamp

#: The oldest id of a stream that is still live, once the host has told.
HORIZON_LAYOUT = data.StructLayout({"valid": 1, "id": ID_WIDTH})


class State(enum.Enum):
    """What the controller is doing."""

    CLEAR = 0  # invalidates the windows, row by row
    RUN = 1  # takes tuples in
    FLUSH = 2  # pushes R through the chain with empty tuples, so that every pair meets
    ANNOUNCE = 3  # lets every pair out, then a mark or an error


class Handshake(wiring.Component):
    """The chain behind the socket: both windows hold the last `cores * segment` tuples.

    With `depth = segment / lanes` and nothing found,

    - throughput is one tuple every `depth` cycles, not a cycle more;
    - `latency(parameters)` cycles pass from a tuple's transfer on `tuples` to a pair on `results`, if
      the two meet in the first row of the tuple's first core;
    - a flush takes `flush_cycles(parameters)` cycles;
    - a mark comes out after at most `mark_distance(parameters)` further tuples, or a flush. While one
      waits, of those behind it only the newest is kept: a mark stands for all marks before it.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        super().__init__(Socket(parameters.dims, parameters.cores))

    @staticmethod
    def latency(parameters: Parameters) -> int:
        """Cycles from a tuple's transfer to its pair with a tuple in the first row it meets.

        With a depth of 1 there is one row; otherwise the first is the second oldest of each bank.
        """
        depth = parameters.segment // parameters.lanes
        return (2 if depth == 1 else 3) + Gather.levels(parameters.cores)

    @staticmethod
    def flush_cycles(parameters: Parameters) -> int:
        """Cycles from a flush's transfer until the next word is taken."""
        depth = parameters.segment // parameters.lanes
        return 1 + (parameters.cores - 1) * parameters.segment * depth + depth

    @staticmethod
    def mark_distance(parameters: Parameters) -> int:
        """How many tuples after a mark make sure that all before it have met.

        After `a` R tuples and `b` S tuples the newest before the mark are `a // segment` and
        `b // segment` cores along; they have met once these add up to `cores - 1`. They do when
        `a + b` is `capacity - 1`, because the two remainders cannot make up for another core.
        """
        return parameters.capacity - 1

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        depth = p.segment // p.lanes
        cores = [Stamp(HandshakeCore, p) for _ in range(p.cores)]
        m.submodules.gather = gather = Gather(PAIR_LAYOUT, p.cores)
        for k, core in enumerate(cores):
            m.submodules[f"core_{k}"] = core
            wiring.connect(m, core.results, gather.inputs[k])
            if k > 0:
                m.d.comb += core.r_entering.eq(cores[k - 1].r_leaving)
            if k < p.cores - 1:
                m.d.comb += core.s_entering.eq(cores[k + 1].s_leaving)
        m.d.comb += self.activity.eq(Cat(core.found for core in cores))

        # The newest tuples. While flushing they are empty.
        word = self.tuples.payload
        state = Signal(State, init=State.CLEAR)
        for entering, dims in (
            (cores[0].r_entering, word.dims.point),
            (cores[-1].s_entering, word.dims.box),
        ):
            m.d.comb += [
                entering.valid.eq(state == State.RUN),
                entering.id.eq(word.id),
                entering.dims.eq(dims),
            ]

        # One command for all. `step` counts the rows that the probes have yet to meet.
        command = Signal(Command)
        for core in cores:
            m.d.comb += core.command.eq(command)
        shift_r = Signal()
        shift_s = Signal()
        clear = Signal()
        go = Signal()
        quiet = Signal()
        step = Signal(range(depth + 1))
        scanning_r = Signal()
        turn = Signal()
        shift = Signal()
        m.d.comb += [
            go.eq(~Cat(core.busy for core in cores).any()),
            turn.eq(step <= 1),
            shift.eq(shift_r | shift_s),
            command.shift_r.eq(shift_r),
            command.shift_s.eq(shift_s),
            command.clear.eq(clear),
            command.load.eq(go),
            command.turn.eq(go & turn),
        ]
        if depth > 1:
            with m.If(go & (step != 0)):
                m.d.sync += step.eq(step - 1)
            with m.If(shift & ~clear):
                m.d.sync += [step.eq(depth), scanning_r.eq(shift_s)]
            # A shift moves on in its own segment, and to the first row in the one it will scan.
            scan = go & ~turn
            m.d.comb += [
                command.scan_r.eq(shift | (scan & scanning_r)),
                command.scan_s.eq(shift | (scan & ~scanning_r)),
            ]

        # Tokens and tuples, one word per turn. A mark that is due and an error go first.
        shifted = Signal(range(self.mark_distance(p) + 2))
        mark_layout = data.StructLayout({"valid": 1, "id": ID_WIDTH, "since": shifted.shape()})
        mark = Signal(mark_layout)
        next_mark = Signal(mark_layout)
        settled = Signal()  # nothing has entered since the windows were empty
        horizon_r = Signal(HORIZON_LAYOUT)
        horizon_s = Signal(HORIZON_LAYOUT)
        record = Signal(RESULT_LAYOUT, reset_less=True)
        remaining = Signal(range(max(p.capacity, depth) + 1), init=depth)
        take = Signal()
        due = Signal()
        m.d.comb += [
            due.eq(
                mark.valid & (settled | ((shifted - mark.since)[: len(shifted)] >= self.mark_distance(p)))
            ),
            self.tuples.ready.eq((state == State.RUN) & go & turn & ~due),
            take.eq(self.tuples.ready & self.tuples.valid),
        ]
        with m.Switch(state):
            with m.Case(State.CLEAR):
                m.d.comb += clear.eq(1)
                with m.If(go & turn):
                    m.d.comb += [shift_r.eq(1), shift_s.eq(1)]
                    m.d.sync += remaining.eq(remaining - 1)
                    with m.If(remaining == 1):
                        m.d.sync += [state.eq(State.RUN), settled.eq(1)]
            with m.Case(State.RUN):
                with m.If(take):
                    with m.Switch(word.kind):
                        with m.Case(Kind.R):
                            m.d.comb += shift_r.eq(1)
                        with m.Case(Kind.S):
                            m.d.comb += shift_s.eq(1)
                        with m.Case(Kind.FLUSH):
                            m.d.sync += [horizon_r.valid.eq(0), horizon_s.valid.eq(0)]
                            # From the first core to the last: then each R tuple has met every S tuple.
                            if p.cores > 1:
                                m.d.sync += [state.eq(State.FLUSH), remaining.eq((p.cores - 1) * p.segment)]
                            else:
                                m.d.sync += [state.eq(State.CLEAR), remaining.eq(depth)]
                        with m.Case(Kind.MARK):
                            newest = {"valid": 1, "id": word.id, "since": shifted}
                            for slot, free in ((mark, ~mark.valid), (next_mark, mark.valid)):
                                with m.If(free):
                                    m.d.sync += [slot[name].eq(value) for name, value in newest.items()]
                        with m.Case(Kind.HORIZON_R):
                            m.d.sync += [horizon_r.valid.eq(1), horizon_r.id.eq(word.id)]
                        with m.Case(Kind.HORIZON_S):
                            m.d.sync += [horizon_s.valid.eq(1), horizon_s.id.eq(word.id)]
                        with m.Default():
                            m.d.sync += [
                                state.eq(State.ANNOUNCE),
                                record.tag.eq(Tag.ERROR),
                                record.body.error.fault.eq(Fault.UNKNOWN_KIND),
                                record.body.error.value.eq(word.kind),
                            ]
                with m.If(shift):
                    m.d.sync += [shifted.eq(shifted + 1), settled.eq(0)]
                with m.If(due & go & turn):
                    m.d.sync += [
                        state.eq(State.ANNOUNCE),
                        record.tag.eq(Tag.MARK),
                        record.body.mark.id.eq(mark.id),
                        mark.eq(next_mark),
                        next_mark.valid.eq(0),
                    ]
            with m.Case(State.FLUSH):
                with m.If(go & turn):
                    m.d.comb += shift_r.eq(1)
                    m.d.sync += remaining.eq(remaining - 1)
                    with m.If(remaining == 1):
                        m.d.sync += [state.eq(State.CLEAR), remaining.eq(depth)]
            with m.Case(State.ANNOUNCE):
                with m.If(quiet & self.results.ready):
                    m.d.sync += state.eq(State.RUN)

        # Pairs, or the record once no pair is left inside.
        m.d.comb += [
            quiet.eq((step == 0) & ~Cat(core.pending for core in cores).any() & ~gather.busy),
            gather.output.ready.eq(self.results.ready),
            self.results.valid.eq(gather.output.valid | ((state == State.ANNOUNCE) & quiet)),
        ]
        with m.If(gather.output.valid):
            m.d.comb += [
                self.results.payload.tag.eq(Tag.PAIR),
                self.results.payload.body.pair.eq(gather.output.payload),
            ]
        with m.Else():
            m.d.comb += self.results.payload.eq(record)

        counters = self.counters
        with m.If(shift & (state == State.RUN)):
            m.d.sync += counters.tuples.eq(counters.tuples + 1)
        with m.If(gather.output.valid & self.results.ready):
            m.d.sync += counters.pairs.eq(counters.pairs + 1)
        with m.If((go & (step != 0)) if depth > 1 else shift & ~clear):
            m.d.sync += counters.steps.eq(counters.steps + 1)
        with m.If(~go):
            m.d.sync += counters.stalls.eq(counters.stalls + 1)
        lost = []
        for shifts, horizon, leaving in (
            (shift_r, horizon_r, cores[-1].r_leaving),
            (shift_s, horizon_s, cores[0].s_leaving),
        ):
            evicted = Signal(HORIZON_LAYOUT)
            evicts = shifts & (state == State.RUN)
            m.d.sync += [evicted.valid.eq(evicts & leaving.valid), evicted.id.eq(leaving.id)]
            age = (evicted.id - horizon.id)[:ID_WIDTH].as_signed()
            lost.append(evicted.valid & horizon.valid & (age >= 0))
        with m.If(Cat(lost).any()):
            # At most one stream shifts in a cycle.
            m.d.sync += counters.live_evictions.eq(counters.live_evictions + 1)
        return m
