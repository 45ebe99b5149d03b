"""The window driver of a low-latency handshake chain: it alone knows which tuples are in the windows.

::

                +------------------------+---> to_right: R tuples, expiries of S
     tuples --->|  [ ids of R ] [ of S ] |
                +------------------------+---> to_left: S tuples, expiries of R

A tuple enters the chain at its end; when it leaves its window, word of that enters at the opposite one.
Windows are of so many tuples, and shorter where the host's horizons say so: so windows of time come.
"""

from dataclasses import dataclass

from amaranth import Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .door import Door
from .hashing import home_of, key_of
from .ledger import OPTION_LAYOUT
from .message import Note, message_layout, stamp_width
from .parameters import Parameters
from .queue import Queue, rounded
from .skid import Skid
from .socket import ID_WIDTH, Kind, tuple_layout
from .window_memory import BLOCK, ram_style


def expeditions(parameters: Parameters) -> int:
    """How many R tuples may be on their way, or word of their end: what the channels of a direction hold."""
    return 2 * parameters.cores + 8


@dataclass
class _Window:
    """One stream's window: its oldest tuple, and what happens to it."""

    home: Signal  # of the next tuple
    oldest: wiring.PureInterface  # a stream
    push: Signal
    pop: Signal
    full: Signal
    behind: Signal  # the oldest is behind the horizon
    lost: Signal  # one that had to leave was not


class WindowDriver(wiring.Component):
    """Turns words into messages. Marks and errors are left in `record` until they are `announced`.

    A flush waits until all tuples have seen all nodes, and then clears these.

    Latency: 1 cycle. Throughput: a word per cycle; an expiry behind the horizon holds up words for one. Full
    windows of two tuples take two in 3 cycles.
    """

    def __init__(self, parameters: Parameters):
        self._p = parameters
        record = {"valid": 1, "error": 1, "id": ID_WIDTH, "stamp": stamp_width(parameters)}
        super().__init__(
            {
                "tuples": In(stream.Signature(tuple_layout(parameters.dims))),
                "to_right": Out(stream.Signature(message_layout(parameters, False))),
                "to_left": Out(stream.Signature(message_layout(parameters, True))),
                "r_passed": In(1),  # an R tuple has left the last node
                "r_ended": In(1),  # and that node has taken note
                "s_passed": In(1),
                "r_cleared": In(1),  # a clear has left the chain with the S tuples
                "s_cleared": In(1),
                "held_back": In(1),  # no tuple may enter
                "record": Out(data.StructLayout(record)),
                "announced": In(1),
                "stamp": Out(stamp_width(parameters)),  # the next arrival's
                "took": Out(1),  # a tuple
                "lost": Out(1),  # a live tuple had to leave its window, two cycles ago
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self._p
        m.submodules.door = door = Door(Kind, self.tuples.p.shape())
        word, kind = door.output.p.message, door.output.p.flags
        given = door.output.valid
        takes = Signal()  # the word is done
        marks, clears = Signal(), Signal()  # messages for both ends
        clearing = Signal()  # clears are under way
        m.d.comb += [
            door.input.valid.eq(self.tuples.valid),
            door.input.p.message.eq(self.tuples.p),
            door.input.p.flags.eq(self.tuples.p.kind),
            self.tuples.ready.eq(door.input.ready),
            door.output.ready.eq(takes),
        ]

        # Windows. What is behind the horizon expires, one tuple every other cycle, and words wait for it.
        windows = [self._window(m, word, kind, of_s, given, clears, clearing) for of_s in (False, True)]
        r, s = windows
        calm = ~r.behind & ~s.behind
        both = self.to_right.ready & self.to_left.ready
        m.d.sync += self.lost.eq(r.lost | s.lost)

        # What is under way, and a flush, which waits for it, sends clears and waits for those.
        travelling = Signal(range(expeditions(p) + 1))  # R tuples that the last node has not taken note of
        passing = [Signal(range(4 * p.cores + 8), name=f"{side}_passing") for side in "rs"]
        r_cleared, s_cleared = Signal(), Signal()
        m.d.sync += travelling.eq(travelling + r.push - self.r_ended)
        for number, window, passed in zip(passing, windows, (self.r_passed, self.s_passed)):
            m.d.sync += number.eq(number + window.push - passed)
        # What is known a cycle late; `pushed` makes up for it.
        crowded, rested, pushed = Signal(), Signal(), Signal()
        m.d.sync += [
            crowded.eq(travelling >= expeditions(p) - 1),
            rested.eq((travelling == 0) & (passing[0] == 0) & (passing[1] == 0)),
            pushed.eq(self.took),
        ]
        idle = rested & ~pushed
        flushing = given & (kind == Kind.FLUSH)
        m.d.comb += clears.eq(flushing & ~clearing & idle & calm & both)
        with m.If(clears):
            m.d.sync += [clearing.eq(1), r_cleared.eq(0), s_cleared.eq(0)]
        with m.If(self.r_cleared):
            m.d.sync += r_cleared.eq(1)
        with m.If(self.s_cleared):
            m.d.sync += s_cleared.eq(1)

        # Words.
        room = [
            ~window.full | (window.oldest.valid & channel.ready)
            for window, channel in zip(windows, (self.to_left, self.to_right))
        ]
        waits = given & ~self.held_back
        enters = waits & calm
        m.d.comb += [
            r.push.eq(enters & (kind == Kind.R) & self.to_right.ready & room[0] & ~crowded),
            s.push.eq(enters & (kind == Kind.S) & self.to_left.ready & room[1]),
            self.took.eq(r.push | s.push),
        ]
        with m.Switch(kind):
            with m.Case(Kind.R, Kind.S):
                m.d.comb += takes.eq(self.took)
            with m.Case(Kind.HORIZON_R, Kind.HORIZON_S):
                m.d.comb += takes.eq(given)
            with m.Case(Kind.FLUSH):
                m.d.comb += takes.eq(given & clearing & r_cleared & s_cleared)
                with m.If(takes):
                    m.d.sync += clearing.eq(0)
            with m.Default():
                m.d.comb += [marks.eq(given & calm & both & ~self.record.valid), takes.eq(marks)]

        # Times: of arrivals where results are sorted, otherwise of marks. A mark is done when what comes
        # before its time is.
        ordered = bool(p.ordering.every)
        time = Signal.like(self.stamp)
        m.d.comb += self.stamp.eq(time if ordered else time + marks)
        with m.If(self.took if ordered else marks):
            m.d.sync += time.eq(time + 1)
        with m.If(self.announced):
            m.d.sync += self.record.valid.eq(0)
        with m.If(marks):
            m.d.sync += [
                self.record.valid.eq(1),
                self.record.error.eq(kind != Kind.MARK),
                self.record.id.eq(Mux(kind == Kind.MARK, word.id, kind.as_value())),
                self.record.stamp.eq(self.stamp),
            ]

        # Messages: tuples, and for those that leave their windows expiries at the other end. Which it would
        # be is known before it is known whether there is one. Where times are those of arrivals, an end that
        # had no tuple is told the time when nothing else is to be said.
        for of_s, channel in ((False, self.to_right), (True, self.to_left)):
            own, opposite = (s, r) if of_s else (r, s)
            own_kind, opposite_kind = (Kind.S, Kind.R) if of_s else (Kind.R, Kind.S)
            message = channel.payload
            tells = Signal(name=f"{'s' if of_s else 'r'}_tells")  # a time
            expires = opposite.behind | (waits & (kind == opposite_kind) & opposite.full)
            m.d.comb += [
                message.id.eq(word.id),
                message.stamp.eq(self.stamp),
                message.dims.eq(word.dims.box if of_s else word.dims.point),
                message.home.eq(Mux(expires, opposite.oldest.p.home, own.home)),
                channel.valid.eq(opposite.pop | own.push | marks | clears),
                opposite.pop.eq((opposite.push & opposite.full) | (opposite.behind & channel.ready)),
            ]
            with m.If(expires):
                m.d.comb += message.kind.eq(Note.EXPIRY)
            with m.Elif(flushing):
                m.d.comb += message.kind.eq(Note.CLEAR)
            with m.Elif(waits & (kind == own_kind)):
                m.d.comb += message.kind.eq(Note.ARRIVAL)
            with m.Else():
                m.d.comb += [message.kind.eq(Note.MARK), tells.eq(channel.ready)]
            if ordered:
                owes = Signal(name=f"{'s' if of_s else 'r'}_owes")
                with m.If(owes & tells):
                    m.d.comb += channel.valid.eq(1)
                with m.If(own.push | (tells & channel.valid)):
                    m.d.sync += owes.eq(0)
                with m.If(opposite.push):
                    m.d.sync += owes.eq(1)
        return m

    def _window(
        self,
        m: Module,
        word: data.View,
        kind: enum.EnumView,
        of_s: bool,
        given: Value,
        clears: Signal,
        clearing: Signal,
    ) -> "_Window":
        """One stream's window, as ids in order, and its horizon. All is forgotten while `clearing`."""
        p = self._p
        side, size = "rs"[of_s], p.windows[of_s]
        entry = data.StructLayout({"id": ID_WIDTH, "home": range(p.cores)})
        # A tuple alone must be shown at once: it leaves as the next one comes. Others come one per cycle,
        # and nobody asks whether they fit: a queue of two would not take them. A window in a block RAM is so
        # large that its oldest tuple has long been shown when it is full.
        depth = max(3, size)
        apart = ram_style(entry, rounded(depth)) == BLOCK
        queue = Queue(entry, depth, apart) if size > 1 else Skid(entry)
        m.submodules[f"{side}_ids"] = ResetInserter(clearing)(queue)
        count = Signal(range(size + 1), name=f"{side}_count")
        horizon = Signal(OPTION_LAYOUT, name=f"{side}_horizon")
        evicted = Signal(OPTION_LAYOUT, name=f"{side}_evicted")
        oldest = queue.output
        window = _Window(
            Signal(range(p.cores), name=f"{side}_home"),
            oldest,
            *(Signal(name=f"{side}_{name}") for name in ("push", "pop", "full", "behind", "lost")),
        )
        push, pop = window.push, window.pop
        m.d.comb += [
            queue.input.p.id.eq(word.id),
            queue.input.p.home.eq(window.home),
            queue.input.valid.eq(push),
            oldest.ready.eq(pop),
            window.lost.eq(
                evicted.valid & horizon.valid & ((evicted.id - horizon.id)[:ID_WIDTH].as_signed() >= 0)
            ),
        ]
        old = (oldest.p.id - horizon.id)[:ID_WIDTH].as_signed() < 0
        m.d.sync += [
            count.eq(count + (push - pop)),
            window.full.eq(Mux(push == pop, window.full, push & (count == size - 1))),
            window.behind.eq(horizon.valid & old & oldest.valid & ~pop & ~clears),
            evicted.valid.eq(push & window.full),
            evicted.id.eq(oldest.p.id),
        ]
        if p.homes == "hash":
            dims = word.dims.box if of_s else word.dims.point
            m.d.comb += window.home.eq(home_of(key_of(dims, of_s), p.cores))
        else:
            with m.If(push):
                m.d.sync += window.home.eq(Mux(window.home == p.cores - 1, 0, window.home + 1))
        with m.If(given & (kind == (Kind.HORIZON_S if of_s else Kind.HORIZON_R))):
            m.d.sync += [horizon.valid.eq(1), horizon.id.eq(word.id)]
        with m.If(clearing):
            m.d.sync += [signal.eq(0) for signal in (count, window.full, horizon.valid, window.behind)]
            if p.homes != "hash":
                m.d.sync += window.home.eq(0)
        return window
