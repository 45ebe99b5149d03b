"""A node of a low-latency handshake chain: Figures 13 and 14 of the paper.

::

                  +------------------------------------------+
    from_left --->| -> [ skid ] -> R: W_S, IW_S -----------> |---> to_right
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

from .message import Note, message_layout
from .parameters import Parameters
from .scanner import Scanner, found_layout
from .skid import Skid
from .stamp import Stamp


class LowLatencyNode(wiring.Component):
    """The node at `position`. `ended` is the home of an R tuple that has just left the last node. While a bit
    of `hold` is high, messages from the left, or from the right, wait.

    Latency: a message goes on to the next node in the cycle after it came, unless the node is busy with the
    tuple before it. Throughput: one message per cycle, and one that only passes by from the other side; but
    the next from the same side waits until a tuple has been shown all its rows.
    """

    def __init__(self, parameters: Parameters):
        self._p = parameters
        rightwards, leftwards = (message_layout(parameters, of_s) for of_s in (False, True))
        super().__init__(
            {
                "from_left": In(stream.Signature(rightwards)),
                "to_right": Out(stream.Signature(rightwards)),
                "from_right": In(stream.Signature(leftwards)),
                "to_left": Out(stream.Signature(leftwards)),
                "ended": In(stream.Signature(range(parameters.cores))),
                "position": In(range(parameters.cores)),
                "hold": In(2),
                "epoch": In(1),
                "held": Out(2),
                "results": Out(stream.Signature(found_layout(parameters))).array(2),
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
        left, right = (self._door(m, name) for name in ("left", "right"))
        rightwards, leftwards = left.output.p.message, right.output.p.message

        # What each message is about. Ends come before S tuples that wait: see `sim/expedition.py`. They
        # let expiries go first, for which the door waits.
        ends, expires = Signal(), Signal()
        m.d.comb += [
            expires.eq(right.output.valid & ~self.hold[1] & (leftwards.kind == Note.EXPIRY)),
            ends.eq(self.ended.valid & ~keeps_r.scanning & ~expires),
        ]
        r_arrives, s_arrives, r_home, s_home, acknowledges = (Signal() for _ in range(5))
        target = Signal.like(leftwards.home)
        kind = Signal(Note)  # of the message from the right
        m.d.comb += [
            target.eq(Mux(ends, self.ended.payload, leftwards.home)),
            kind.eq(Mux(ends, Note.END, leftwards.kind)),
            r_arrives.eq(rightwards.kind == Note.ARRIVAL),
            s_arrives.eq(~ends & (leftwards.kind == Note.ARRIVAL)),
            r_home.eq(left.output.p.at_home),
            s_home.eq(Mux(ends, self.ended.payload == self.position, right.output.p.at_home)),
            # Whoever sent it has kept it, unless it had passed its home there.
            acknowledges.eq(s_arrives & (right.output.p.at_home | right.output.p.home_left)),
        ]
        passes_right, passes_left, apart = Signal(), Signal(), Signal()
        with m.Switch(rightwards.kind):
            with m.Case(Note.EXPIRY):
                m.d.comb += passes_right.eq(~r_home)
            with m.Case(Note.ACKNOWLEDGEMENT):
                m.d.comb += passes_right.eq(0)
            with m.Default():
                m.d.comb += passes_right.eq(1)
        with m.Switch(kind):
            with m.Case(Note.EXPIRY, Note.END):
                m.d.comb += passes_left.eq(~s_home)
            with m.Default():
                m.d.comb += passes_left.eq(1)

        # What only passes by changes nothing here, so that it goes at the same time as a message from the
        # other side, unless both go the same way.
        m.d.comb += apart.eq(
            (passes_left & ((kind == Note.EXPIRY) | (kind == Note.END)))
            | (passes_right & (rightwards.kind == Note.EXPIRY) & ~acknowledges)
        )

        # Any other is processed alone in a cycle, if there is room for what it sends on. A clear waits for
        # rows that are being compared, and so for results to be taken, for nothing else.
        left_can, right_can, takes_left, takes_right, left_last = (Signal() for _ in range(5))
        m.d.comb += [
            left_can.eq(
                left.output.valid
                & ~self.hold[0]
                & ~keeps_s.scanning
                & keeps_s.go
                & (keeps_s.empty | (rightwards.kind != Note.CLEAR))
                & (self.to_right.ready | ~passes_right)
            ),
            right_can.eq(
                ((right.output.valid & ~self.hold[1]) | ends)
                & ~keeps_r.scanning
                & keeps_r.go
                & (keeps_r.empty | (kind != Note.CLEAR))
                & (self.to_left.ready | ~passes_left)
                & (self.to_right.ready | ~acknowledges)
            ),
            takes_left.eq(left_can & ~(right_can & left_last & ~apart)),
            takes_right.eq(right_can & ~(takes_left & ~apart)),
        ]
        with m.If(takes_left | takes_right):
            m.d.sync += left_last.eq(takes_left)

        # A tuple stays at the door until it has been shown all rows.
        m.d.comb += [
            left.output.ready.eq(Mux(r_arrives, keeps_s.done, takes_left)),
            right.output.ready.eq(~ends & Mux(s_arrives, keeps_r.done, takes_right)),
            self.ended.ready.eq(ends & takes_right),
            self.to_right.valid.eq((takes_left & passes_right) | (takes_right & acknowledges)),
            self.to_right.payload.eq(rightwards),
            self.to_left.valid.eq(takes_right & passes_left),
            self.to_left.payload.eq(leftwards),
            self.to_left.payload.kind.eq(kind),
            self.to_left.payload.home.eq(target),
        ]
        with m.If(takes_right & acknowledges):
            m.d.comb += self.to_right.payload.kind.eq(Note.ACKNOWLEDGEMENT)

        # Where homes depend on keys, a tuple meets stored ones at its home only. An R tuple meets fresh S
        # tuples of its home on the nodes behind it.
        keyed = p.homes == "hash"
        m.d.comb += [
            keeps_s.start.eq(takes_left & r_arrives),
            keeps_s.window.eq(r_home if keyed else 1),
            keeps_s.flight.eq((r_home | left.output.p.home_left) if keyed else 1),
            keeps_s.expire.eq(takes_left & (rightwards.kind == Note.EXPIRY) & r_home),
            keeps_s.land.eq(takes_left & (rightwards.kind == Note.ACKNOWLEDGEMENT)),
            keeps_s.clear.eq(takes_left & (rightwards.kind == Note.CLEAR)),
            keeps_s.store.eq(takes_right & s_arrives & s_home),
            keeps_s.fly.eq(takes_right & s_arrives & right.output.p.home_left),
            keeps_s.gain.eq(keeps_s.store),
            keeps_r.start.eq(takes_right & s_arrives),
            keeps_r.window.eq(s_home if keyed else 1),
            keeps_r.expire.eq(takes_right & (kind == Note.EXPIRY) & s_home),
            keeps_r.clear.eq(takes_right & (kind == Note.CLEAR)),
            keeps_r.store.eq(takes_left & r_arrives & r_home),
            keeps_r.gain.eq(takes_right & (kind == Note.END) & s_home),
        ]
        for keeper, probe, stored, results in (
            (keeps_s, rightwards, leftwards, self.results[0]),
            (keeps_r, leftwards, rightwards, self.results[1]),
        ):
            for port, message in ((keeper.probe, probe), (keeper.stored, stored)):
                m.d.comb += [port[name].eq(message[name]) for name in ("id", "stamp", "dims")]
            m.d.comb += keeper.epoch.eq(self.epoch)
            wiring.connect(m, keeper.results, wiring.flipped(results))
        m.d.comb += [
            self.held.eq(keeps_s.held | keeps_r.held),
            self.found.eq(keeps_s.found | keeps_r.found),
            self.scans.eq(keeps_s.scans + keeps_r.scans),
            self.stalled.eq(keeps_s.stalled | keeps_r.stalled),
        ]
        return m

    def _door(self, m: Module, side: str) -> Skid:
        """What comes from a side, and of what has a home, whether that is here or further left."""
        source = getattr(self, f"from_{side}")
        arrived = data.StructLayout({"message": source.p.shape(), "at_home": 1, "home_left": 1})
        door = m.submodules[side] = Skid(arrived)
        m.d.comb += [
            door.input.valid.eq(source.valid),
            source.ready.eq(door.input.ready),
            door.input.p.message.eq(source.p),
            door.input.p.at_home.eq(source.p.home == self.position),
            door.input.p.home_left.eq(source.p.home < self.position),
        ]
        return door
