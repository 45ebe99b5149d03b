"""The ids of both windows, kept once for all cores of a handshake chain.

::

    tuples that enter ---------> [ steps ]                   [ ids ]
                                     |                          |
    meetings --> which step was it? -+--> who was there then? -+--> pairs

All tuples of a stream move at once, so where and when two of them met tells which they were: cores need
neither keep ids nor pass them on.
"""

from itertools import pairwise

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .handshake_core import meeting_layout, stamp_layout
from .parameters import Parameters
from .socket import ID_WIDTH, PAIR_LAYOUT

#: Nothing is read in the cycle in which it is written: synthesis need not care which of the two comes first.
_ONE_AT_A_TIME = {"no_rw_check": 1}

#: An id, or none.
OPTION_LAYOUT = data.StructLayout({"valid": 1, "id": ID_WIDTH})


class Ledger(wiring.Component):
    """Turns meetings into pairs of ids, and tells the ids that leave full windows.

    `enter_r` or `enter_s` is high while a tuple with this `id` enters the chain, as number `step` of `epoch`.
    If `evict` is high in the next cycle its window is full; the id of the tuple that leaves is on `evicted_r`
    or `evicted_s` `EVICTION` cycles after it entered. `held[k]` is high while a meeting of epoch `k` is
    more than two cycles away from `pairs`.

    Latency: `LATENCY` cycles. Throughput: one pair per cycle.
    """

    LATENCY = 6
    EVICTION = 4

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        stamp = stamp_layout(parameters)
        super().__init__(
            {
                "enter_r": In(1),
                "enter_s": In(1),
                "evict": In(1),
                "id": In(ID_WIDTH),
                "step": In(stamp["step"].shape),
                "epoch": In(1),
                "meetings": In(stream.Signature(meeting_layout(parameters))),
                "pairs": Out(stream.Signature(PAIR_LAYOUT)),
                "held": Out(2),
                "evicted_r": Out(OPTION_LAYOUT),
                "evicted_s": Out(OPTION_LAYOUT),
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        depth = p.segment // p.lanes
        steps = 2 << len(self.step)
        # A meeting is at most all steps old, and its tuples were at most as old as a window then.
        places = range(1 << (p.capacity + steps - 1).bit_length())

        # Tuples that enter.
        entered = {side: Signal(name=f"{side}_entered") for side in "rs"}
        id = Signal(ID_WIDTH, reset_less=True)
        number = Signal(range(steps), reset_less=True)
        m.d.sync += [
            entered["r"].eq(self.enter_r),
            entered["s"].eq(self.enter_s),
            id.eq(self.id),
            number.eq((self.epoch << len(self.step)) | self.step),
        ]
        step_layout = data.StructLayout({"r_probes": 1, "newest_r": places, "first_s": places})
        m.submodules.steps = step_memory = memory.Memory(
            shape=step_layout, depth=steps, init=[], attrs=_ONE_AT_A_TIME
        )
        step_write = step_memory.write_port()
        newest = {}
        lookups = {}
        for side in "rs":
            newest[side] = Signal(places, name=f"newest_{side}")
            ids = m.submodules[f"{side}_ids"] = memory.Memory(
                shape=ID_WIDTH, depth=len(places), init=[], attrs=_ONE_AT_A_TIME
            )
            write = ids.write_port()
            oldest = ids.read_port()
            lookups[side] = ids.read_port()
            with m.If(getattr(self, f"enter_{side}")):
                m.d.sync += newest[side].eq(newest[side] + 1)
            leaving = Signal(2, name=f"{side}_leaving")
            oldest_id = Signal(ID_WIDTH, name=f"{side}_oldest", reset_less=True)
            evicted = getattr(self, f"evicted_{side}")
            m.d.comb += [
                write.addr.eq(newest[side]),
                write.data.eq(id),
                write.en.eq(entered[side]),
                oldest.addr.eq(newest[side] - p.capacity),
            ]
            m.d.sync += [
                leaving.eq(Cat(entered[side] & self.evict, leaving)),
                oldest_id.eq(oldest.data),
                evicted.valid.eq(leaving[-1]),
                evicted.id.eq(oldest_id),
            ]
        m.d.comb += [
            step_write.en.eq(entered["r"] | entered["s"]),
            step_write.addr.eq(number),
            step_write.data.r_probes.eq(entered["r"]),
            step_write.data.newest_r.eq(newest["r"]),
            # The newest S tuple is in the last core; this is the one at the same place in the first.
            step_write.data.first_s.eq(newest["s"] - (p.cores - 1) * p.segment),
        ]

        # Meetings, a register after each memory and each sum: the step, the tuples that the first core had
        # then, those of the meeting's core, and the two that met. A block RAM takes most of a cycle to
        # answer: with another register behind it, the first one can lie beside it.
        step_read = step_memory.read_port()
        move = Signal()
        meeting = self.meetings.payload
        valid = Signal(self.LATENCY)
        epochs = Signal(self.LATENCY - 2, reset_less=True)
        offset = [Signal(range(p.capacity), name=f"offset_{k}", reset_less=True) for k in range(2)]
        behind = [Signal(range(p.segment), name=f"behind_{k}", reset_less=True) for k in range(3)]
        step = Signal(step_layout, reset_less=True)
        first = {side: Signal(places, name=f"{side}_first", reset_less=True) for side in "rs"}
        r_probes = Signal(reset_less=True)
        answer = Signal(PAIR_LAYOUT, reset_less=True)
        pair = Signal(PAIR_LAYOUT, reset_less=True)
        m.d.comb += [
            move.eq(~valid[-1] | self.pairs.ready),
            self.meetings.ready.eq(move),
            step_read.en.eq(move),
            step_read.addr.eq((meeting.epoch << len(self.step)) | meeting.step),
            lookups["r"].en.eq(move),
            lookups["s"].en.eq(move),
            lookups["r"].addr.eq(first["r"] - Mux(r_probes, 0, behind[2])),
            lookups["s"].addr.eq(first["s"] - Mux(r_probes, behind[2], 0)),
            self.pairs.valid.eq(valid[-1]),
            self.pairs.payload.eq(pair),
        ]
        with m.If(move):
            m.d.sync += [
                valid.eq((valid << 1) | self.meetings.valid),
                epochs.eq((epochs << 1) | meeting.epoch),
                offset[0].eq(meeting.core * p.segment),
                behind[0].eq(meeting.lane * depth + meeting.age),
                step.eq(step_read.data),
                *(after.eq(before) for delayed in (offset, behind) for before, after in pairwise(delayed)),
                first["r"].eq(step.newest_r - offset[1]),
                first["s"].eq(step.first_s + offset[1]),
                r_probes.eq(step.r_probes),
                answer.r_id.eq(lookups["r"].data),
                answer.s_id.eq(lookups["s"].data),
                pair.eq(answer),
            ]
        for epoch in range(2):
            held = [valid[stage] & (epochs[stage] == epoch) for stage in range(len(epochs))]
            m.d.comb += self.held[epoch].eq(Cat(held).any())
        return m
