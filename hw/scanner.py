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
from itertools import pairwise

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .hashing import bucket_of, key_of
from .lowest import lowest, more_than_one
from .message import stamp_width
from .parameters import Parameters
from .segment import DISTRIBUTED
from .socket import ID_WIDTH, PAIR_LAYOUT, box_layout, point_layout
from .window_memory import WindowMemory, ram_style

#: Messages that a channel between two nodes holds.
CHANNEL = 2
#: Rows between the first and the last stage: what they show must not be overwritten when it has expired.
STAGES = 3
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


@dataclass
class _Ring:
    """Rows of a window memory in which tuples lie in order; `count` of them, from the oldest, may be met."""

    first: int  # row
    rows: int
    head: data.View
    tail: data.View
    count: Signal

    @classmethod
    def of(cls, name: str, first: int, rows: int, lanes: int, lead: int) -> "_Ring":
        """A ring in which up to `lead` tuples expire before they come."""
        place = data.StructLayout({"lane": range(lanes), "row": range(rows)})
        count = Signal(range(-lead, rows * lanes + 1), name=f"{name}_count")
        head, tail = Signal(place, name=f"{name}_head"), Signal(place, name=f"{name}_tail")
        return cls(first, rows, head, tail, count)

    def after(self, place: data.View, lanes: int) -> list:
        """Assignments that move a place on by one."""
        row = Mux(place.row == self.rows - 1, 0, place.row + 1)
        if lanes == 1:
            return [place.row.eq(row)]
        full = place.lane == lanes - 1
        return [place.lane.eq(Mux(full, 0, place.lane + 1)), place.row.eq(Mux(full, row, place.row))]


class Scanner(wiring.Component):
    """What a node keeps of R, or of S (`of_s`), for tuples of the other stream.

    `start` begins a scan for `probe`, if `go` is high; it shows a row of `lanes` tuples in each cycle in
    which `go` is high, the first one at once, and `done` is high with the last. `probe` must stay until then,
    and neither `expire`, `land` nor `clear` come before. Which of the tuples stored and released
    meanwhile a probe meets was settled when it started. `clear` waits for `empty`: what is stored after it
    would overwrite the ids of pairs that are yet to be named.

    With an index it goes from tuple to tuple of the probe's bucket instead, from the newest to the oldest.

    Latency: `LATENCY` cycles from `start` to a pair in the first row on `results`, if no other waits.
    Throughput: a row per cycle, and a cycle more for each pair after the first of a row, if `buffer` is at
    least 3: a queue of two takes two pairs in three cycles.
    """

    LATENCY = 5

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
                "go": Out(1),
                "scanning": Out(1),  # a scan has shown some rows and is not done
                "done": Out(1),
                "empty": Out(1),  # no row is between the first stage and the last
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
            rings.append(_Ring.of("flight", rows, -(-FLIGHT // lanes), lanes, 0))
        depth = sum(ring.rows for ring in rings)

        # Tuples come and go.
        stored_shape = self.stored.dims.shape()
        m.submodules.memory = bank = WindowMemory(stored_shape, lanes, depth)
        m.d.comb += [bank.write.eq(self.store | self.fly), bank.tuple.eq(self.stored.dims)]
        m.d.comb += [bank.row.eq(window.tail.row), bank.lane.eq(window.tail.lane)]
        changes = [(window, self.store, self.gain, self.expire)]
        if self._of_s:
            flight = rings[1]
            changes.append((flight, self.fly, self.fly, self.land))
            with m.If(self.fly):
                m.d.comb += [bank.row.eq(flight.first + flight.tail.row), bank.lane.eq(flight.tail.lane)]
        for ring, comes, gains, goes in changes:
            with m.If(comes):
                m.d.sync += ring.after(ring.tail, lanes)
            with m.If(goes):
                m.d.sync += ring.after(ring.head, lanes)
            m.d.sync += ring.count.eq(ring.count + gains - goes)
            with m.If(self.clear):
                m.d.sync += [ring.head.eq(0), ring.tail.eq(0), ring.count.eq(0)]

        # Stage 1: the rows of a scan, ring after ring. Each ring tells its row and the rest behind it.
        go, active = self.go, Signal()
        m.d.comb += active.eq(self.start | self.scanning)
        shows = Signal(len(rings))  # it has a row to show
        more = Signal(len(rings))  # and others behind that
        row = Signal(range(depth))
        meets = Signal(lanes)
        issues = Signal()
        m.d.comb += [
            issues.eq(active & go & shows.any()),
            self.scans.eq(issues),
            self.done.eq(active & go & ~(more[0] | Mux(shows[0], shows[1:].any(), more[1:].any()))),
        ]
        with m.If(active & go):
            m.d.sync += self.scanning.eq(~self.done)
        for k, (ring, wanted) in reversed(list(enumerate(zip(rings, (self.window, self.flight))))):
            turn = issues & shows[k] & ~shows[:k].any()
            walk = self._walk_bucket if p.index and k == 0 else self._walk_ring
            shown, mask = walk(m, ring, wanted, turn, shows[k], more[k])
            with m.If(shows[k]):
                m.d.comb += [row.eq(ring.first + shown), meets.eq(mask)]

        # Stage 2: comparisons, a register for each test. Stage 3: those that make a pair.
        operation = data.StructLayout(
            {"id": ID_WIDTH, "stamp": len(self.probe.stamp), "row": range(depth), "epoch": 1}
        )
        stages = [Signal(operation, name=f"stage_{k}", reset_less=True) for k in (2, 3, 4)]
        busy = Signal(STAGES)
        met = Signal(lanes, reset_less=True)
        probe = Signal(self.probe.dims.shape(), reset_less=True)
        matches = Signal(lanes)
        m.d.comb += [bank.go.eq(go), bank.show.eq(row), self.empty.eq(~busy.any())]
        with m.If(go):
            m.d.sync += [
                busy.eq(Cat(issues, busy[:-1])),
                met.eq(meets),
                probe.eq(self.probe.dims),
                stages[0].id.eq(self.probe.id),
                stages[0].stamp.eq(self.probe.stamp),
                stages[0].row.eq(row),
                stages[0].epoch.eq(self.epoch),
                *(after.eq(before) for before, after in pairwise(stages)),
            ]
        for k, shown in enumerate(bank.rows):
            point, box = (probe, shown) if self._of_s else (shown, probe)
            tests = [dim.contains(point[f"d{d}"], box[f"d{d}"]) for d, dim in enumerate(p.dims)]
            passed = Signal(1 + len(tests), name=f"passed_{k}", reset_less=True)
            with m.If(go):
                m.d.sync += passed.eq(Cat(met[k], tests))
            m.d.comb += matches[k].eq(passed.all())

        # Stage 4: pairs, lane by lane, with the ids that were stored.
        last = stages[-1]
        mask = Signal(lanes)
        room = Signal()  # stage 5 takes a pair
        at, rest = lowest(m, mask, "matching")
        some, several = Signal(), Signal()  # lanes of `mask` are high, more than one
        m.d.comb += [
            go.eq(~some | (room & ~several)),
            self.found.eq(room & some),
            self.stalled.eq(busy[-1] & ~go),
        ]
        with m.If(go):
            m.d.sync += [
                mask.eq(Mux(busy[1], matches, 0)),
                some.eq(busy[1] & matches.any()),
                several.eq(busy[1] & more_than_one(matches)),
            ]
        with m.Elif(room):
            m.d.sync += [mask.eq(rest), some.eq(rest.any()), several.eq(more_than_one(rest))]
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
            write.data.id.eq(self.stored.id),
            write.data.stamp.eq(self.stored.stamp),
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
        m.d.sync += fits.eq(queue.level + queue.w_en < p.buffer)
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

        # Epochs: what is in the stages, and in the queue.
        for number in range(2):
            queued = Signal(range(p.buffer + 1), name=f"queued_{number}")
            comes = queue.w_en & (epoch == number)
            goes = queue.r_rdy & queue.r_en & (self.results.payload.epoch == number)
            m.d.sync += queued.eq(queued + comes - goes)
            staged = [busy[k] & (stage.epoch == number) for k, stage in enumerate(stages)]
            m.d.comb += self.held[number].eq(
                Cat(staged).any() | (waiting & (epoch == number)) | (queued != 0)
            )
        return m

    def _walk_ring(self, m: Module, ring: _Ring, wanted: Value, turn: Value, shows: Value, more: Value):
        """All tuples of a ring that may be met, from the oldest: a row, and which of its lanes."""
        lanes = self._p.lanes
        most = ring.rows * lanes
        left = Signal(range(most + 1), name=f"ring_{ring.first}_left", reset_less=True)
        at = Signal(ring.head.shape(), name=f"ring_{ring.first}_at", reset_less=True)
        number = Signal(range(most + 1), name=f"ring_{ring.first}_number")
        place = Signal(ring.head.shape(), name=f"ring_{ring.first}_place")
        m.d.comb += [
            number.eq(Mux(self.scanning, left, Mux(wanted & (ring.count > 0), ring.count, 0))),
            place.eq(Mux(self.scanning, at.as_value(), ring.head.as_value())),
            shows.eq(number != 0),
            more.eq(place.lane + number > lanes),
        ]
        with m.If(self.start | turn):
            m.d.sync += [left.eq(number), at.eq(place)]
        with m.If(turn):
            m.d.sync += [
                left.eq(Mux(more, place.lane + number - lanes, 0)),
                at.lane.eq(0),
                at.row.eq(Mux(place.row == ring.rows - 1, 0, place.row + 1)),
            ]
        return place.row, Cat((k >= place.lane) & (k < place.lane + number) for k in range(lanes))

    def _walk_bucket(self, m: Module, ring: _Ring, wanted: Value, turn: Value, shows: Value, more: Value):
        """The tuples of the probe's bucket, from the newest, as a list through the ring.

        A bucket's newest and a tuple's next may long have been overwritten. What counts is how far from the
        oldest in the window they lie: it must be within the window, and less from tuple to tuple. What lies
        there instead is of another bucket, and its key differs.
        """
        p = self._p
        size = (ring.rows - 1).bit_length()
        kept = Signal(range(-ring.rows, ring.rows + 1))  # those in expedition too
        m.d.sync += kept.eq(kept + self.store - self.expire)
        with m.If(self.clear):
            m.d.sync += kept.eq(0)
        m.submodules.buckets = buckets = memory.Memory(shape=size, depth=p.index, init=[], attrs=DISTRIBUTED)
        m.submodules.nexts = nexts = memory.Memory(shape=size, depth=ring.rows, init=[], attrs=DISTRIBUTED)
        own, probed = buckets.read_port(domain="comb"), buckets.read_port(domain="comb")
        newest, link = buckets.write_port(), nexts.write_port()
        follow = nexts.read_port(domain="comb")
        bucket = bucket_of(key_of(self.stored.dims, self._of_s), p.index)
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
            newest.en.eq(self.store),
            link.addr.eq(ring.tail.row),
            link.data.eq(own.data),
            link.en.eq(self.store),
            probed.addr.eq(bucket_of(key_of(self.probe.dims, not self._of_s), p.index)),
            place.eq(Mux(self.scanning, at, probed.data)),
            within.eq(Mux(self.scanning, bound, Mux(wanted & (kept > 0), kept, 0))),
            distance.eq(place - ring.head.row),
            shows.eq(distance < within),
            follow.addr.eq(place),
            following.eq(follow.data - ring.head.row),
            more.eq(shows & (following < distance)),
        ]
        with m.If(self.start | turn):
            m.d.sync += [at.eq(Mux(turn, follow.data, place)), bound.eq(Mux(turn, distance, within))]
        # Those in expedition are passed by.
        return place, Const(1, 1) & (distance < Mux(ring.count > 0, ring.count, 0))
