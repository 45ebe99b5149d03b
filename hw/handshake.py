"""Lock-step handshake join: two windows walk past each other along a chain of cores.

::

                       results
                          ^
                      [ ledger ] <--- ids, marks, errors
                          ^
                   [ gathering tree ]
                     ^      ^       ^
                  +--|---+--|---+---|--+
      tuples R -->| core | core | core |--> oldest R
    oldest S <----|  0   |  1   |  n-1 |<-- tuples S
                  +--^---+--^---+---^--+
                     |      |       |
                   [ register trees ]
                          ^
                    [ controller ] <--- tuples: flush, mark, horizon

The paper is "How Soccer Players Would do Stream Joins", section 6. A tuple that enters moves all
tuples of its stream by one place at once, and one of them enters each core, where it meets the
opposite segment. A pair of tuples is in the same core during exactly one stretch of time, so it
meets exactly once: no tuple moves while another of the opposite stream does.

Nothing goes from the controller to all cores or back within a cycle, so that the clock does not slow down
with their number: commands reach all cores in the same cycle, but `fan.levels` cycles later, and tuples
enter the two ends as late; cores have room for what is commanded until the controller hears that they are
busy; and meetings leave with a place and a time of a few bits, for which the ledger has the ids.
"""

from itertools import pairwise

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, wiring

from . import fan
from .gather import Gather
from .handshake_core import HandshakeCore, command_layout, meeting_layout
from .ledger import OPTION_LAYOUT, Ledger
from .parameters import Parameters
from .socket import ID_WIDTH, RESULT_LAYOUT, Fault, Kind, Socket, Tag
from .stamp import Stamp


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
        self._cores = [Stamp(HandshakeCore, parameters) for _ in range(parameters.cores)]
        super().__init__(Socket(parameters.dims, parameters.cores))

    @staticmethod
    def latency(parameters: Parameters) -> int:
        """Cycles from a tuple's transfer to its pair with a tuple in the first row it meets.

        With a depth of 1 there is one row; otherwise the first is the second oldest of each bank, shown in
        the cycle after the tuple has entered.
        """
        first = 0 if parameters.segment == parameters.lanes else 1
        trees = fan.levels(parameters.cores) + Gather.levels(parameters.cores)
        return first + trees + HandshakeCore.LATENCY + Ledger.LATENCY

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
        lag = fan.levels(p.cores)
        cores = self._cores
        m.submodules.commands = commands = fan.FanOut(command_layout(p), p.cores)
        m.submodules.flags = flags = fan.FanIn(3, p.cores)
        m.submodules.gather = gather = Gather(meeting_layout(p), p.cores, "epoch")
        m.submodules.ledger = ledger = Ledger(p)
        for k, core in enumerate(cores):
            m.submodules[f"core_{k}"] = core
            wiring.connect(m, core.results, gather.inputs[k])
            m.d.comb += [
                core.number.eq(k),
                core.command.eq(commands.copies[k]),
                flags.flags[k].eq(Cat(core.pending, core.busy)),
            ]
            if k > 0:
                m.d.comb += core.r_entering.eq(cores[k - 1].r_leaving)
            if k < p.cores - 1:
                m.d.comb += core.s_entering.eq(cores[k + 1].s_leaving)
        wiring.connect(m, gather.output, ledger.meetings)
        m.d.comb += self.activity.eq(Cat(core.found for core in cores))

        # The newest tuples. While flushing they are empty.
        word = self.tuples.payload
        state = Signal(State, init=State.CLEAR)
        for side, entering, dims in (
            ("r", cores[0].r_entering, word.dims.point),
            ("s", cores[-1].s_entering, word.dims.box),
        ):
            shape = entering.shape()
            delayed = [Signal(shape, name=f"{side}_{k}", reset_less=True) for k in range(lag)]
            m.d.sync += [delayed[0].valid.eq(state == State.RUN), delayed[0].dims.eq(dims)]
            m.d.sync += [after.eq(before) for before, after in pairwise(delayed)]
            m.d.comb += entering.eq(delayed[-1])

        # One command for all. Rows that are shown are compared one cycle later, and have met another later.
        shift_r = Signal()
        shift_s = Signal()
        shift = Signal()
        clear = Signal()
        go = Signal()  # no core is busy
        free = Signal()  # a tuple may enter
        probing = Signal()  # rows are shown in this cycle
        resting = Signal(init=1)  # the newest tuples have met all rows
        r_probes = Signal()
        compared = Signal(2)
        met = Signal(2)
        command = commands.value
        stamp = Signal(command.stamp.shape(), reset_less=True)
        stamped = Signal.like(stamp)
        m.d.comb += [
            go.eq(~flags.any[2]),
            shift.eq((shift_r | shift_s) & ~clear),
            command.shift_r.eq(shift_r),
            command.shift_s.eq(shift_s),
            command.clear.eq(clear),
            command.meet_r.eq(met[0]),
            command.meet_s.eq(met[1]),
            command.stamp.eq(stamped),
        ]
        m.d.sync += [compared.eq(Cat(probing & r_probes, probing & ~r_probes)), met.eq(compared)]

        # Tuples are numbered; the first number of an epoch waits for all pairs of its last time.
        number = Signal(len(stamp.step) + 1)
        opens = Signal(init=1)
        fenced = Signal()
        pending = Signal(2)
        m.d.comb += fenced.eq(opens & pending.bit_select(number[-1], 1))
        m.d.sync += pending.eq(flags.any[:2] | gather.busy | ledger.held)
        with m.If(shift):
            m.d.sync += [
                Cat(stamp.step, stamp.epoch).eq(number),
                number.eq(number + 1),
                opens.eq(number[:-1].all()),
            ]
        if depth == 1:
            m.d.comb += [free.eq(go & ~fenced), probing.eq(shift), r_probes.eq(shift_r)]
            m.d.sync += stamped.eq(stamp)
        else:
            step = Signal(range(depth))  # how many rows the probe has yet to meet after this one
            first = Signal()
            last = Signal()
            shown = Signal.like(stamp)
            m.d.comb += [free.eq(go & (resting | last) & ~fenced), probing.eq(go & ~resting)]
            m.d.sync += [shown.eq(stamp), stamped.eq(shown)]
            with m.If(probing):
                m.d.sync += [
                    step.eq(step - 1),
                    first.eq(0),
                    last.eq(step == 1),
                    resting.eq(last),
                    stamp.age.eq(Mux(stamp.age == 0, depth - 1, stamp.age - 1)),
                ]
            with m.If(shift):
                m.d.sync += [
                    *(step.eq(depth - 1), first.eq(1), last.eq(0), resting.eq(0)),
                    *(r_probes.eq(shift_r), stamp.age.eq(depth - 2)),
                ]
            # The probe is shown with the first row, and then its segment moves on. The segment to be scanned
            # has moved to its first row with the shift, and stays at the last, the oldest.
            for side, scanned, opposite in (("r", ~r_probes, shift_s), ("s", r_probes, shift_r)):
                m.d.comb += [
                    command[f"show_{side}"].eq(probing & (first | scanned)),
                    command[f"advance_{side}"].eq(opposite | (probing & (first | (scanned & ~last)))),
                ]

        # Tokens and tuples, one word per turn. A mark that is due and an error go first.
        remaining = Signal(range(max(p.capacity, depth) + 1), init=depth)
        record = Signal(RESULT_LAYOUT, reset_less=True)
        due = Signal()
        take = Signal()
        quiet = Signal()
        announced = Signal()
        m.d.comb += [
            self.tuples.ready.eq((state == State.RUN) & free & ~due),
            take.eq(self.tuples.ready & self.tuples.valid),
            announced.eq((state == State.ANNOUNCE) & quiet & ~ledger.pairs.valid & self.results.ready),
        ]
        with m.Switch(state):
            with m.Case(State.CLEAR):
                m.d.comb += clear.eq(1)
                with m.If(free):
                    m.d.comb += [shift_r.eq(1), shift_s.eq(1)]
                    m.d.sync += remaining.eq(remaining - 1)
                    with m.If(remaining == 1):
                        m.d.sync += state.eq(State.RUN)
            with m.Case(State.RUN):
                with m.If(take):
                    with m.Switch(word.kind):
                        with m.Case(Kind.R):
                            m.d.comb += shift_r.eq(1)
                        with m.Case(Kind.S):
                            m.d.comb += shift_s.eq(1)
                        with m.Case(Kind.FLUSH):
                            m.d.sync += state.eq(State.FLUSH if p.cores > 1 else State.CLEAR)
                        with m.Case(Kind.MARK, Kind.HORIZON_R, Kind.HORIZON_S):
                            pass
                        with m.Default():
                            m.d.sync += state.eq(State.ANNOUNCE)
                with m.If(due & free):
                    m.d.sync += state.eq(State.ANNOUNCE)
                # From the first core to the last: then each R tuple has met every S tuple.
                m.d.sync += remaining.eq((p.cores - 1) * p.segment if p.cores > 1 else depth)
            with m.Case(State.FLUSH):
                with m.If(free):
                    m.d.comb += shift_r.eq(1)
                    m.d.sync += remaining.eq(remaining - 1)
                    with m.If(remaining == 1):
                        m.d.sync += [state.eq(State.CLEAR), remaining.eq(depth)]
            with m.Case(State.ANNOUNCE):
                with m.If(announced):
                    m.d.sync += state.eq(State.RUN)

        # What was taken and what entered in the last cycles, so that nothing more hangs on `take`.
        token_layout = data.StructLayout({"kind": Kind, "id": ID_WIDTH})
        tokens = [Signal(token_layout, name=f"token_{k}") for k in range(Ledger.EVICTION - 1)]
        entered = Signal(2)
        cleared = Signal()
        m.d.sync += [
            tokens[0].kind.eq(Mux(take, word.kind, Kind.R)),
            tokens[0].id.eq(word.id),
            *(after.eq(before) for before, after in pairwise(tokens)),
            entered.eq(Mux(state == State.RUN, Cat(shift_r, shift_s), 0)),
            cleared.eq(clear),
        ]

        # Marks, one that waits and the newest behind it, with how many tuples must still enter.
        distance = self.mark_distance(p)
        mark_layout = data.StructLayout({"valid": 1, "id": ID_WIDTH, "left": range(distance + 1)})
        mark = Signal(mark_layout)
        next_mark = Signal(mark_layout)
        settled = Signal()  # nothing has entered since the windows were empty
        m.d.sync += due.eq(mark.valid & (mark.left == 0))
        with m.If(entered.any()):
            m.d.sync += settled.eq(0)
            m.d.sync += [slot.left.eq(slot.left - (slot.left != 0)) for slot in (mark, next_mark)]
        with m.If(cleared):
            m.d.sync += [settled.eq(1), mark.left.eq(0), next_mark.left.eq(0)]
        with m.If(tokens[0].kind == Kind.MARK):
            newest = {"valid": 1, "id": tokens[0].id, "left": Mux(settled, 0, distance)}
            for slot, unused in ((mark, ~mark.valid), (next_mark, mark.valid)):
                with m.If(unused):
                    m.d.sync += [slot[name].eq(value) for name, value in newest.items()]
        with m.If(announced & (record.tag == Tag.MARK)):
            m.d.sync += [mark.eq(next_mark), next_mark.valid.eq(0), due.eq(0)]
        with m.If(state == State.RUN):
            with m.If(due):
                m.d.sync += [record.tag.eq(Tag.MARK), record.body.mark.id.eq(mark.id)]
            with m.Else():
                m.d.sync += [
                    record.tag.eq(Tag.ERROR),
                    record.body.error.fault.eq(Fault.UNKNOWN_KIND),
                    record.body.error.value.eq(word.kind),
                ]

        # Pairs, or the record once none is left inside: neither seen in `pending` nor on the way there.
        unseen = HandshakeCore.QUEUED + 2 * lag
        settling = Signal(range(unseen + 1))
        m.d.sync += settling.eq(Mux(settling == 0, 0, settling - 1))
        with m.If(shift | ~resting):
            m.d.sync += settling.eq(unseen)
        m.d.comb += [
            quiet.eq(resting & (settling == 0) & ~pending.any()),
            ledger.pairs.ready.eq(self.results.ready),
            self.results.valid.eq(ledger.pairs.valid | ((state == State.ANNOUNCE) & quiet)),
        ]
        with m.If(ledger.pairs.valid):
            m.d.comb += [
                self.results.payload.tag.eq(Tag.PAIR),
                self.results.payload.body.pair.eq(ledger.pairs.payload),
            ]
        with m.Else():
            m.d.comb += self.results.payload.eq(record)

        # Ids, and those that leave full windows, against the horizon of the moment in which they left.
        m.d.comb += [
            ledger.enter_r.eq(shift_r & ~clear),
            ledger.enter_s.eq(shift_s & ~clear),
            ledger.id.eq(word.id),
            ledger.step.eq(number[:-1]),
            ledger.epoch.eq(number[-1]),
        ]
        lost = []
        for k, (side, kind) in enumerate((("r", Kind.HORIZON_R), ("s", Kind.HORIZON_S))):
            room = Signal(range(p.capacity + 1), name=f"room_{side}")
            with m.If(cleared):
                m.d.sync += room.eq(p.capacity)
            with m.Elif(entered[k] & (room != 0)):
                m.d.sync += room.eq(room - 1)
            with m.If(entered[k] & (room == 0)):
                m.d.comb += ledger.evict.eq(1)
            horizon = Signal(OPTION_LAYOUT, name=f"horizon_{side}")
            with m.If(tokens[-1].kind == kind):
                m.d.sync += [horizon.valid.eq(1), horizon.id.eq(tokens[-1].id)]
            with m.If(tokens[-1].kind == Kind.FLUSH):
                m.d.sync += horizon.valid.eq(0)
            evicted = getattr(ledger, f"evicted_{side}")
            age = (evicted.id - horizon.id)[:ID_WIDTH].as_signed()
            lost.append(evicted.valid & horizon.valid & (age >= 0))

        counters = self.counters
        with m.If(ledger.pairs.valid & self.results.ready):
            m.d.sync += counters.pairs.eq(counters.pairs + 1)
        for name, happens in (
            ("tuples", entered.any()),
            ("steps", probing),
            ("stalls", ~go | fenced),
            ("live_evictions", Cat(lost).any()),  # at most one stream shifts in a cycle
        ):
            happened = Signal(name=f"counts_{name}")
            m.d.sync += happened.eq(happens)
            with m.If(happened):
                m.d.sync += counters[name].eq(counters[name] + 1)
        return m
