"""A node of a low-latency handshake chain: Figures 13 and 14 of the paper.

::

                  +------------------------------------------+
    from_left --->| -> [ door ] -> R: W_S, IW_S -----------> |---> to_right
                  |                  v     ^                 |
     to_left <----| <----------- S: what ended in W_R <- [ ] |<--- from_right
                  +------------------------------------------+

A node processes one message in a cycle, from the left or from the right in turns: a tuple is forwarded,
stored if this is its home, and what it is to meet is settled, all at once. Only then is it compared, while
the node goes on with messages from the other side. What it meets is as if nodes did one thing at a time:
two messages are taken in the same cycle only if one of them merely passes by.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .door import Door
from .gather import Merge
from .message import Note, message_layout
from .parameters import Parameters
from .scanner import Scanner, found_layout
from .stamp import Stamp


def ended_layout(parameters: Parameters) -> data.StructLayout:
    """The home of an R tuple whose expedition has ended, and whether it is the last node."""
    return data.StructLayout({"home": range(parameters.cores), "here": 1})


class LowLatencyNode(wiring.Component):
    """The node at `position`. `ended` is an R tuple that has just left the last node: its home, and whether
    that is `here`. While `ending`, there may be others, and S tuples wait. While a bit of `hold` is high,
    messages from the left, or from the right, wait.

    Latency: a message goes on to the next node in the cycle after it came, unless the node is busy with the
    tuple before it. Throughput: one message per cycle, and one that only passes by from the other side; but
    the next from the same side waits until a tuple is shown the last of its rows, from the cycle after on, or
    another if it has one row and a tuple had just come or gone there. A pair with a tuple in the first row is
    on `results` `LATENCY` cycles after its later tuple was taken, if no other waits and it is its turn: there
    is one per cycle, whichever side finds it.
    """

    LATENCY = Scanner.LATENCY + 1

    def __init__(self, parameters: Parameters):
        self._p = parameters
        rightwards, leftwards = (message_layout(parameters, of_s) for of_s in (False, True))
        super().__init__(
            {
                "from_left": In(stream.Signature(rightwards)),
                "to_right": Out(stream.Signature(rightwards)),
                "from_right": In(stream.Signature(leftwards)),
                "to_left": Out(stream.Signature(leftwards)),
                "ended": In(stream.Signature(ended_layout(parameters))),
                "ending": In(1),
                "position": In(range(parameters.cores)),
                "hold": In(2),
                "epoch": In(1),
                "held": Out(2),
                "results": Out(stream.Signature(found_layout(parameters))),
                "found": Out(1),
                "scans": Out(range(3)),
                "stalled": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self._p
        keeps_s, keeps_r = (Stamp(Scanner, p, of_s) for of_s in (True, False))
        m.submodules.keeps_s, m.submodules.keeps_r = keeps_s, keeps_r
        left, right = self._door(m, False), self._door(m, True)
        rightwards, leftwards = left.output.p.message, right.output.p.message
        r, s = left.output.p.flags, right.output.p.flags

        # Ends come before S tuples that wait: see `sim/expedition.py`. They let expiries go first, for which
        # the door waits.
        ends, right_given, passes_left, s_passes_by, acknowledges = (Signal() for _ in range(5))
        m.d.comb += [
            right_given.eq(right.output.valid & ~self.hold[1]),
            ends.eq(self.ended.valid & ~(right_given & s.expiry)),
            passes_left.eq(Mux(ends, ~self.ended.p.here, s.passes)),
            s_passes_by.eq(Mux(ends, ~self.ended.p.here, s.passes_by)),
            acknowledges.eq(~ends & s.acknowledges),
        ]

        # What only passes by changes nothing here, so that it goes at the same time as a message from the
        # other side, unless both go the same way.
        apart = Signal()
        m.d.comb += apart.eq(s_passes_by | (r.passes_by & ~acknowledges))

        # Any other is processed alone in a cycle, if there is room for what it sends on. A clear waits for
        # rows that are being compared, and so for results to be taken, for nothing else. A side that would go
        # has its turn before it is known whether it can; if it cannot, the turn passes all the same.
        left_would, right_would, takes_left, takes_right, rights_turn = (Signal() for _ in range(5))
        s_goes = right_given & (self.to_left.ready | ~s.passes) & (self.to_right.ready | ~s.acknowledges)
        end_goes = self.to_left.ready | self.ended.p.here
        m.d.comb += [
            left_would.eq(
                left.output.valid & ~self.hold[0] & keeps_s.ready & (self.to_right.ready | ~r.passes)
            ),
            right_would.eq(keeps_r.ready & ((self.ended.valid & end_goes) | s_goes)),
            takes_left.eq(left_would & (keeps_s.empty | ~r.clear) & ~(right_would & rights_turn & ~apart)),
            takes_right.eq(
                keeps_r.ready
                & Mux(
                    ends,
                    end_goes,
                    s_goes & (keeps_r.empty | ~s.clear) & ~(self.ending & s.arrival),
                )
                & (~left_would | rights_turn | apart)
            ),
        ]
        with m.If(takes_left | takes_right):
            m.d.sync += rights_turn.eq(takes_left)
        with m.Else():
            m.d.sync += rights_turn.eq(Mux(rights_turn, ~right_would, left_would))

        s_taken = Signal()  # what waits at the door
        m.d.comb += [
            s_taken.eq(takes_right & ~ends),
            left.output.ready.eq(takes_left),
            right.output.ready.eq(s_taken),
            self.ended.ready.eq(takes_right & ends),
            self.to_right.valid.eq((takes_left & r.passes) | (takes_right & acknowledges)),
            self.to_right.payload.eq(rightwards),
            self.to_left.valid.eq(takes_right & passes_left),
            self.to_left.payload.eq(leftwards),
        ]
        m.d.comb += self.to_right.payload.acknowledges.eq(takes_right & acknowledges)
        with m.If(ends):
            m.d.comb += [
                self.to_left.payload.kind.eq(Note.END),
                self.to_left.payload.home.eq(self.ended.p.home),
            ]

        # Where homes depend on keys, a tuple meets stored ones at its home only. An R tuple meets fresh S
        # tuples of its home on the nodes behind it.
        keyed = p.homes == "hash"
        m.d.comb += [
            keeps_s.start.eq(takes_left & r.arrival),
            keeps_s.window.eq(r.here if keyed else 1),
            keeps_s.flight.eq((r.here | r.home_left) if keyed else 1),
            keeps_s.expire.eq(takes_left & r.expires),
            keeps_s.land.eq(takes_left & r.lands),
            keeps_s.clear.eq(takes_left & r.clear),
            keeps_s.store.eq(s_taken & s.stays),
            keeps_s.fly.eq(s_taken & s.arrival & s.home_left),
            keeps_s.gain.eq(keeps_s.store),
            keeps_r.start.eq(s_taken & s.arrival),
            keeps_r.window.eq(s.here if keyed else 1),
            keeps_r.expire.eq(s_taken & s.expires),
            keeps_r.clear.eq(s_taken & s.clear),
            keeps_r.store.eq(takes_left & r.stays),
            keeps_r.gain.eq(takes_right & Mux(ends, self.ended.p.here, s.ends)),
        ]
        # What both find leaves from registers: the gathering tree is far away, and queues show what they have
        # late.
        m.submodules.merge = merge = Stamp(Merge, found_layout(p), "epoch", 2)
        wiring.connect(m, merge.output, wiring.flipped(self.results))
        for keeper, probe, stored, sink in (
            (keeps_s, rightwards, leftwards, merge.inputs[0]),
            (keeps_r, leftwards, rightwards, merge.inputs[1]),
        ):
            for port, message in ((keeper.probe, probe), (keeper.stored, stored)):
                m.d.comb += [port[name].eq(message[name]) for name in ("id", "stamp", "dims")]
            m.d.comb += keeper.epoch.eq(self.epoch)
            wiring.connect(m, keeper.results, sink)
        m.d.sync += [
            self.held.eq(keeps_s.held | keeps_r.held | merge.held),
            self.scans.eq(keeps_s.scans + keeps_r.scans),
            self.stalled.eq(keeps_s.stalled | keeps_r.stalled),
        ]
        m.d.comb += self.found.eq(keeps_s.found | keeps_r.found)
        return m

    def _door(self, m: Module, from_right: bool) -> Door:
        """Where messages from a side wait, with what is to be known of them for a decision."""
        source = self.from_right if from_right else self.from_left
        message, here, kind = source.p, Signal(), source.p.kind
        home_left = message.home < self.position
        addressed = (kind == Note.EXPIRY) | (kind == Note.END)  # to its home
        flags = {
            "here": here,
            "home_left": home_left,
            "arrival": kind == Note.ARRIVAL,
            "stays": (kind == Note.ARRIVAL) & here,
            # Whoever sent it has kept it, unless it had passed its home there.
            "acknowledges": (kind == Note.ARRIVAL) & (here | home_left),
            "ends": (kind == Note.END) & here,
            "expiry": kind == Note.EXPIRY,
            "expires": (kind == Note.EXPIRY) & here,
            "clear": kind == Note.CLEAR,
            "passes": ~(addressed & here),
            "passes_by": addressed & ~here,
        }
        if not from_right:
            flags = {name: flag & ~message.acknowledges for name, flag in flags.items()}
            flags["lands"] = message.acknowledges
        layout = data.StructLayout(dict.fromkeys(flags, 1))
        door = m.submodules["right" if from_right else "left"] = Door(
            layout, message.shape(), ("kind", "home")
        )
        m.d.comb += [
            here.eq(message.home == self.position),
            door.input.valid.eq(source.valid),
            source.ready.eq(door.input.ready),
            door.input.p.message.eq(message),
        ]
        m.d.comb += [door.input.p.flags[name].eq(flag) for name, flag in flags.items()]
        return door
