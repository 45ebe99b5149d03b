"""A node's tuples of one stream, and the scan that shows them to a tuple of the other.

::

      stored ---> [ window ][ in flight ]
                        |
       probe --> rows -> compare -> decide -> put out -> [ queue ] --> results
                                              [ ids ]

A window is a ring in order of arrival. What may be met of it is a number of tuples from its oldest on: expiry
takes one from the old end, and what adds one is up to the node. The ring's end is the paper's pointer that
separates tuples whose expedition has ended from those that are still on their way.
"""

from dataclasses import dataclass

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .fan import FanNode
from .hashing import bucket_of, key_of
from .lowest import at_least, lowest
from .message import stamp_width
from .parameters import Parameters
from .segment import DISTRIBUTED
from .socket import ID_WIDTH, PAIR_LAYOUT, box_layout, point_layout
from .stamp import Stamp
from .window_memory import WindowMemory, ram_style

#: Messages that a channel between two nodes holds.
CHANNEL = 2
#: Tuples that may expire, or land, from when a row is shown to when its pairs have been named: one in each
#: cycle in which the row goes on, and one as its pairs begin to wait. They must not be overwritten meanwhile.
STAGES = 4
#: Places for fresh S tuples: as many as are in both channels of a node before it has the acknowledgement.
FLIGHT = 2 * CHANNEL + STAGES


def found_layout(parameters: Parameters) -> data.StructLayout:
    """A pair, the time of its later tuple where results are sorted, and the epoch in which it was found."""
    width = stamp_width(parameters) if parameters.ordering.every else 0
    return data.StructLayout({"epoch": 1, "stamp": width, "pair": PAIR_LAYOUT})


def places(parameters: Parameters, of_s: bool) -> int:
    """How many tuples a node has room for: its share of the window, and those whose expiry is on its way.

    A tuple enters only behind the expiry that makes room for it. So as many more can come as there may be
    expiries for one node in the channels of one direction: of those, every `cores`-th is for the same node,
    unless homes depend on keys.
    """
    segment = parameters.s_segment if of_s else parameters.segment
    return segment + CHANNEL * (parameters.cores if parameters.homes == "hash" else 1) + STAGES + 1


def _exceeds(number: Value, bound: int, gains: Value, goes: Value, step: int) -> Value:
    """Whether a number will be more than `bound` when it `gains` one and `step` of it `goes`."""
    stays, less = (Mux(gains, number > most - 1, number > most) for most in (bound, bound + step))
    return Mux(goes, less, stays)


def _behind(shows: Value, more: Value) -> Value:
    """Whether a scan has rows behind the one that it shows."""
    return more[0] | Mux(shows[0], shows[1:].any(), more[1:].any())


@dataclass
class _Ring:
    """Rows of a window memory in which tuples lie in order; `count` of them, from the oldest, may be met."""

    first: int  # row
    rows: int
    head: data.View
    tail: data.View
    count: Signal
    reach: Signal  # of those, and of the lanes before them in the first row
    next_head: data.View  # a cycle earlier
    next_count: Signal
    next_reach: Signal
    some: Signal  # may be met
    several: Signal  # it takes more than a row
    next_some: Signal
    next_several: Signal

    @classmethod
    def of(cls, name: str, first: int, rows: int, lanes: int, lead: int) -> "_Ring":
        """A ring in which up to `lead` tuples expire before they come."""
        place = data.StructLayout({"lane": range(lanes), "row": range(rows)})
        counted = [range(-lead, (rows + more) * lanes + 1) for more in range(2)]
        shapes = {"head": place, "tail": place, "count": counted[0], "reach": counted[1]}
        shapes |= {f"next_{part}": shapes[part] for part in ("head", "count", "reach")}
        shapes |= dict.fromkeys(("some", "several", "next_some", "next_several"), 1)
        parts = {part: Signal(shape, name=f"{name}_{part}") for part, shape in shapes.items()}
        if lanes == 1:  # they are the same
            parts |= {"reach": parts["count"], "next_reach": parts["next_count"]}
        return cls(first, rows, **parts)

    def after(self, place: data.View, lanes: int) -> dict[str, Value]:
        """The place behind another."""
        row = Mux(place.row == self.rows - 1, 0, place.row + 1)
        full = place.lane == lanes - 1
        return {"lane": Mux(full, 0, place.lane + 1), "row": Mux(full, row, place.row)}


class Scanner(wiring.Component):
    """What a node keeps of R, or of S (`of_s`), for tuples of the other stream.

    What comes has its effect a cycle later, all in the same order. `start`, `expire`, `land`, `clear`, and
    `gain` without `store` may come while `ready` is high. `start` begins a scan for `probe`: from the next
    cycle on it shows a row of `lanes` tuples in each cycle in which the stages behind it go on, and in the
    last such cycle `ready` is high again; a cycle later if that is the first and another tuple had just come
    or gone. Which of the tuples stored and released meanwhile a probe meets was settled when it started.
    `clear` waits for `empty`: what is stored after it would overwrite the ids of pairs that are yet to be
    named.

    With an index it goes from tuple to tuple of the probe's bucket instead, from the newest to the oldest.

    Latency: `LATENCY` cycles from `start` to a pair in the first row on `results`, if no other waits.
    Throughput: a row per cycle, and a cycle more for each pair after the first of a row, if `buffer` is at
    least 3: a queue of two takes two pairs in three cycles.
    """

    LATENCY = 6

    def __init__(self, parameters: Parameters, of_s: bool):
        self._p = parameters
        self._of_s = of_s
        own, other = (box_layout, point_layout) if of_s else (point_layout, box_layout)
        stamp = stamp_width(parameters)
        super().__init__(
            {
                "start": In(1),
                "probe": In(
                    data.StructLayout({"id": ID_WIDTH, "stamp": stamp, "dims": other(parameters.dims)})
                ),
                "window": In(1),  # the scan begins with the window
                "flight": In(1),  # it ends with the tuples in flight
                "ready": Out(1),
                "empty": Out(1),  # there is no scan, and no row between the first stage and the last
                "store": In(1),  # `stored` goes into the window
                "fly": In(1),  # it is in flight
                "stored": In(
                    data.StructLayout({"id": ID_WIDTH, "stamp": stamp, "dims": own(parameters.dims)})
                ),
                "gain": In(1),  # one tuple more of the window may be met
                "expire": In(1),  # one less: the oldest
                "land": In(1),  # the oldest in flight has arrived elsewhere
                "clear": In(1),  # nothing is kept
                "epoch": In(1),
                "held": Out(2),  # pairs of each epoch that were begun and not taken
                "results": Out(stream.Signature(found_layout(parameters))),
                "found": Out(1),
                "scans": Out(1),  # a row is met
                "stalled": Out(1),  # what was found holds the scan up
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self._p
        lanes = p.lanes
        rows = -(-places(p, self._of_s) // lanes)
        if p.index:
            rows = 1 << (rows - 1).bit_length()
        # Tuples may expire before they come, or before word that their expedition has ended.
        window = _Ring.of("window", 0, rows, lanes, 8 * p.cores + 16)
        rings = [window]
        if self._of_s:
            flights = -(-FLIGHT // lanes)
            aligned = 1 << (flights - 1).bit_length()  # so that places need no sums
            rings.append(_Ring.of("flight", -(-rows // aligned) * aligned, flights, lanes, 0))
        depth = rings[-1].first + rings[-1].rows

        # What comes, a cycle later.
        commands = data.StructLayout(dict.fromkeys(("store", "fly", "gain", "expire", "land", "clear"), 1))
        does = Signal(commands)
        stored = Signal(self.stored.shape(), reset_less=True)
        m.d.sync += [does[name].eq(getattr(self, name)) for name in commands.members]
        m.d.sync += stored.eq(self.stored)

        # Tuples come and go.
        m.submodules.memory = bank = WindowMemory(stored.dims.shape(), lanes, depth)
        m.d.comb += [bank.write.eq(does.store | does.fly), bank.tuple.eq(stored.dims)]
        m.d.comb += [bank.row.eq(window.tail.row), bank.lane.eq(window.tail.lane)]
        changes = [(window, does.store, does.gain, does.expire)]
        if self._of_s:
            flight = rings[1]
            changes.append((flight, does.fly, does.fly, does.land))
            with m.If(does.fly):
                m.d.comb += [bank.row.eq(flight.first | flight.tail.row), bank.lane.eq(flight.tail.lane)]
        for ring, comes, gains, goes in changes:
            turns = goes & (ring.head.lane == lanes - 1)  # to the next row
            m.d.comb += [
                ring.next_head.eq(ring.head),
                ring.next_count.eq(ring.count + (gains - goes)),
                ring.next_reach.eq(ring.reach + (gains - Mux(turns, lanes, 0))),
                # Not from the sums, which take as long again.
                ring.next_some.eq(_exceeds(ring.count, 0, gains, goes, 1)),
                ring.next_several.eq(_exceeds(ring.reach, lanes, gains, turns, lanes)),
            ]
            with m.If(goes):
                m.d.comb += [ring.next_head[part].eq(to) for part, to in ring.after(ring.head, lanes).items()]
            with m.If(comes):
                m.d.sync += [ring.tail[part].eq(to) for part, to in ring.after(ring.tail, lanes).items()]
            with m.If(does.clear):
                m.d.comb += [ring.next_head.eq(0), ring.next_count.eq(0), ring.next_reach.eq(0)]
                m.d.comb += [ring.next_some.eq(0), ring.next_several.eq(0)]
                m.d.sync += ring.tail.eq(0)
            m.d.sync += [
                ring.head.eq(ring.next_head),
                ring.count.eq(ring.next_count),
                ring.reach.eq(ring.next_reach),
                ring.some.eq(ring.next_some),
                ring.several.eq(ring.next_several),
            ]

        # Stage 1: the rows of a scan, ring after ring. Each ring tells its row and the rest behind it.
        go, free = Signal(init=1), Signal()  # stages 1 to 3 go on; they will in the next cycle
        scanning, first = Signal(), Signal()  # first: its first cycle
        probe = Signal(self.probe.shape(), reset_less=True)
        shows = Signal(len(rings))  # it has a row to show
        more = Signal(len(rings))  # and others behind that
        next_shows, next_more = Signal.like(shows), Signal.like(more)  # if no scan starts
        may_show, may_more = Signal.like(shows), Signal.like(more)  # if one does, at most
        row = Signal(range(depth))
        meets = Signal(lanes)
        issues = Signal()
        m.d.comb += [
            issues.eq(scanning & go & shows.any()),
            self.scans.eq(issues),
        ]
        m.d.sync += first.eq(self.start)
        loads = Signal()  # `ready` again, for the registers of a scan: the node decides by one of its own
        if p.index:  # of a list it is known as late as that
            m.d.comb += [self.ready.eq(go & ~(scanning & _behind(shows, more))), loads.eq(self.ready)]
        else:
            starts = self.start & _behind(may_show, may_more)
            stays = scanning & _behind(next_shows, next_more)
            next_ready = Signal()
            m.submodules.loads = kept = Stamp(FanNode, 1)
            m.d.comb += [
                next_ready.eq(free & ~Mux(self.ready, starts, stays)),
                kept.value.eq(next_ready),
                loads.eq(kept.copy),
            ]
            m.d.sync += self.ready.eq(next_ready)
        with m.If(loads):
            m.d.sync += [scanning.eq(self.start), probe.eq(self.probe)]
        for k, (ring, wanted) in reversed(list(enumerate(zip(rings, (self.window, self.flight))))):
            turn = issues & shows[k] & ~shows[:k].any()
            if p.index and k == 0:
                shown, mask = self._walk_bucket(m, ring, does, stored, probe, first, turn, shows[k], more[k])
            else:
                shown, mask = self._walk_ring(
                    m, ring, wanted, loads, turn, (shows[k], next_shows[k]), (more[k], next_more[k])
                )
                gains = changes[k][2]
                m.d.comb += [
                    may_show[k].eq(wanted & (ring.some | gains)),
                    may_more[k].eq(wanted & (ring.several | (ring.some & gains))),
                ]
            with m.If(shows[k]):
                m.d.comb += [row.eq(ring.first | shown), meets.eq(mask)]

        # Stage 2: comparisons, a register for each test. Stage 3: those that make a pair.
        operation = data.StructLayout(
            {"id": ID_WIDTH, "stamp": len(probe.stamp), "row": range(depth), "epoch": 1}
        )
        stages = [Signal(operation, name=f"stage_{k}", reset_less=True) for k in (2, 3)]
        busy = Signal(len(stages))
        met = Signal(lanes, reset_less=True)
        compared = Signal(probe.dims.shape(), reset_less=True)
        matches = Signal(lanes)
        m.d.comb += [bank.go.eq(go), bank.show.eq(row)]
        with m.If(go):
            m.d.sync += [
                busy.eq(Cat(issues, busy[:-1])),
                met.eq(meets),
                compared.eq(probe.dims),
                stages[0].id.eq(probe.id),
                stages[0].stamp.eq(probe.stamp),
                stages[0].row.eq(row),
                stages[0].epoch.eq(self.epoch),
                stages[1].eq(stages[0]),
            ]
        for k, shown in enumerate(bank.rows):
            point, box = (compared, shown) if self._of_s else (shown, compared)
            tests = [dim.contains(point[f"d{d}"], box[f"d{d}"]) for d, dim in enumerate(p.dims)]
            passed = Signal(1 + len(tests), name=f"passed_{k}", reset_less=True)
            with m.If(go):
                m.d.sync += passed.eq(Cat(met[k], tests))
            m.d.comb += matches[k].eq(busy[1] & passed.all())

        # Stage 4: pairs, lane by lane, with the ids that were stored. If a row has to wait, the stages before
        # it do so a cycle later: there is a place for what comes meanwhile.
        front = data.StructLayout({"several": 1, "mask": lanes, "operation": operation})
        coming, source, spare = Signal(front), Signal(front), Signal(front, reset_less=True)
        last, some, several = Signal(operation, reset_less=True), Signal(), Signal()
        mask = Signal(lanes, reset_less=True)
        spared, found_some = Signal(), Signal()
        room = Signal()  # stage 5 takes a pair
        at, rest = lowest(m, mask, "matching")
        m.d.comb += [
            found_some.eq(matches.any()),
            coming.several.eq(at_least(2, matches)),
            coming.mask.eq(matches),
            coming.operation.eq(stages[1]),
            source.eq(Mux(go, coming.as_value(), spare.as_value())),
            free.eq(~some | (room & ~several)),  # for another row
            self.found.eq(room & some),
            self.stalled.eq(~go),
        ]
        m.d.sync += [go.eq(free), spared.eq(~free & Mux(go, found_some, spared))]
        with m.If(go):
            m.d.sync += spare.eq(coming)
        with m.If(free):
            m.d.sync += [
                some.eq(Mux(go, found_some, spared)),
                several.eq(source.several),
                mask.eq(source.mask),
                last.eq(source.operation),
            ]
        with m.Elif(room):
            m.d.sync += [mask.eq(rest), several.eq(at_least(3, mask))]
        m.d.sync += self.empty.eq(~(self.start | scanning | busy.any() | some | spared))
        named = data.StructLayout({"id": ID_WIDTH, "stamp": len(self.results.payload.stamp)})
        lane_bits = (lanes - 1).bit_length()
        m.submodules.ids = ids = memory.Memory(
            shape=named,
            depth=depth << lane_bits,
            init=[],
            attrs=ram_style(named, depth << lane_bits),
        )
        write, read = ids.write_port(), ids.read_port()
        m.d.comb += [
            write.addr.eq(Cat(bank.lane[:lane_bits], bank.row)),
            write.data.id.eq(stored.id),
            write.data.stamp.eq(stored.stamp),
            write.en.eq(bank.write),
            read.addr.eq(Cat(at[:lane_bits], last.row)),
            read.en.eq(room),
        ]

        # Stage 5: a pair, on its way into the queue.
        waiting = Signal()
        probe_id = Signal(ID_WIDTH, reset_less=True)
        probe_stamp = Signal(named["stamp"].width, reset_less=True)
        epoch = Signal(reset_less=True)
        found = Signal(self.results.payload.shape())
        m.submodules.queue = queue = fifo.SyncFIFO(width=found.shape().size, depth=p.buffer)
        fits = Signal(init=1)  # one more in the queue, even if nothing has left it meanwhile
        m.d.sync += fits.eq(Mux(queue.w_en, queue.level < p.buffer - 1, queue.level < p.buffer))
        m.d.comb += room.eq(~waiting | fits)
        with m.If(room):
            m.d.sync += [
                waiting.eq(some),
                probe_id.eq(last.id),
                probe_stamp.eq(last.stamp),
                epoch.eq(last.epoch),
            ]
        pair_ids = (probe_id, read.data.id) if self._of_s else (read.data.id, probe_id)
        if p.ordering.every:
            later = (probe_stamp - read.data.stamp)[: len(probe_stamp)].as_signed() >= 0
            m.d.comb += found.stamp.eq(Mux(later, probe_stamp, read.data.stamp))
        m.d.comb += [
            found.pair.r_id.eq(pair_ids[0]),
            found.pair.s_id.eq(pair_ids[1]),
            found.epoch.eq(epoch),
            queue.w_data.eq(found),
            queue.w_en.eq(waiting & fits),
            self.results.payload.eq(queue.r_data),
            self.results.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.results.ready),
        ]

        # Epochs: what is in the stages, and in the queue, which is counted a cycle later.
        for number in range(2):
            queued = Signal(range(p.buffer + 1), name=f"queued_{number}")
            came, went = (Signal(name=f"{change}_{number}") for change in ("came", "went"))
            m.d.sync += [
                came.eq(queue.w_en & (epoch == number)),
                went.eq(queue.r_rdy & queue.r_en & (self.results.payload.epoch == number)),
                queued.eq(queued + came - went),
            ]
            rows = [*zip(busy, stages), (some, last), (spared, spare.operation)]
            staged = [valid & (operation.epoch == number) for valid, operation in rows]
            m.d.comb += self.held[number].eq(
                Cat(staged).any() | (waiting & (epoch == number)) | came | (queued != 0)
            )
        return m

    def _walk_ring(
        self, m: Module, ring: _Ring, wanted: Value, loads: Value, turn: Value, shows: tuple, more: tuple
    ):
        """All tuples of a ring that may be met, from the oldest: a row, and which of its lanes.

        `shows` and `more` are pairs: the register, and what it will hold if no scan starts.
        """
        lanes = self._p.lanes
        reach = Signal(range((ring.rows + 1) * lanes + 1), name=f"ring_{ring.first}_left", reset_less=True)
        at = Signal(ring.head.shape(), name=f"ring_{ring.first}_at", reset_less=True)
        (shows, next_shows), (more, next_more) = shows, more
        m.d.comb += [next_shows.eq(Mux(turn, more, shows)), next_more.eq(Mux(turn, reach > 2 * lanes, more))]
        m.d.sync += [shows.eq(next_shows), more.eq(next_more)]
        with m.If(loads):
            m.d.sync += [
                at.eq(ring.next_head),
                reach.eq(ring.next_reach),
                shows.eq(wanted & ring.next_some),
                more.eq(wanted & ring.next_several),
            ]
        with m.Elif(turn):
            m.d.sync += [
                at.lane.eq(0),
                at.row.eq(Mux(at.row == ring.rows - 1, 0, at.row + 1)),
                reach.eq(reach - lanes),
            ]
        return at.row, Cat((k >= at.lane) & (k < reach) for k in range(lanes))

    def _walk_bucket(
        self,
        m: Module,
        ring: _Ring,
        does: data.View,
        stored: data.View,
        probe: data.View,
        first: Value,
        turn: Value,
        shows: Value,
        more: Value,
    ):
        """The tuples of the probe's bucket, from the newest, as a list through the ring.

        A bucket's newest and a tuple's next may long have been overwritten. What counts is how far from the
        oldest in the window they lie: it must be within the window, and less from tuple to tuple. What lies
        there instead is of another bucket, and its key differs.
        """
        p = self._p
        size = (ring.rows - 1).bit_length()
        kept = Signal(range(-ring.rows, ring.rows + 1))  # those in expedition too
        m.d.sync += kept.eq(kept + does.store - does.expire)
        with m.If(does.clear):
            m.d.sync += kept.eq(0)
        m.submodules.buckets = buckets = memory.Memory(shape=size, depth=p.index, init=[], attrs=DISTRIBUTED)
        m.submodules.nexts = nexts = memory.Memory(shape=size, depth=ring.rows, init=[], attrs=DISTRIBUTED)
        own, probed = buckets.read_port(domain="comb"), buckets.read_port(domain="comb")
        newest, link = buckets.write_port(), nexts.write_port()
        follow = nexts.read_port(domain="comb")
        bucket = bucket_of(key_of(stored.dims, self._of_s), p.index)
        wanted = Signal()
        with m.If(self.start):
            m.d.sync += wanted.eq(self.window)
        at = Signal(size, reset_less=True)
        bound = Signal(range(ring.rows + 1), reset_less=True)
        place = Signal(size)
        within = Signal(range(ring.rows + 1))
        distance = Signal(size)
        following = Signal(size)
        m.d.comb += [
            own.addr.eq(bucket),
            newest.addr.eq(bucket),
            newest.data.eq(ring.tail.row),
            newest.en.eq(does.store),
            link.addr.eq(ring.tail.row),
            link.data.eq(own.data),
            link.en.eq(does.store),
            probed.addr.eq(bucket_of(key_of(probe.dims, not self._of_s), p.index)),
            place.eq(Mux(first, probed.data, at)),
            within.eq(Mux(first, Mux(wanted & (kept > 0), kept, 0), bound)),
            distance.eq(place - ring.head.row),
            shows.eq(distance < within),
            follow.addr.eq(place),
            following.eq(follow.data - ring.head.row),
            more.eq(shows & (following < distance)),
        ]
        with m.If(first | turn):
            m.d.sync += [at.eq(Mux(turn, follow.data, place)), bound.eq(Mux(turn, distance, within))]
        # Those in expedition are passed by.
        return place, Const(1, 1) & (distance < Mux(ring.count > 0, ring.count, 0))
