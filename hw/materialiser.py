"""The materialiser: ranges become pairs, each checked in all dimensions.

::

    ranges -> [ bursts ] ---> requests
                  |
              [ queue ]    words
                  |          |
                  +-> [ registers ] -> [ E comparators ] -> [ queue ] -> one pair per cycle
"""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .bursts import Bursts
from .dimension import Dimension
from .memory_port import MemoryPort
from .queue import Queue
from .record import joins, record_layouts
from .skid import Skid
from .socket import ID_WIDTH, PAIR_LAYOUT

#: The most words of one burst.
LONGEST = 64
#: Words with pairs that wait until those before them have come out.
WAITING = 16


def probe_layout(record: data.StructLayout) -> data.StructLayout:
    """A record as it is kept on the chip, without padding."""
    return data.StructLayout({name: shape for name, shape in record.members.items() if name != "padding"})


def candidates_layout(probe: data.StructLayout, capacity: int) -> data.StructLayout:
    """A tuple with the range in which its partners are, or not; or what closes the stream."""
    positions = range(capacity + 1)
    return data.StructLayout({"probe": probe, "start": positions, "end": positions, "closing": 1})


def pairs_layout() -> data.StructLayout:
    """A pair, or what closes the stream."""
    return data.StructLayout({"pair": PAIR_LAYOUT, "closing": 1})


class Materialiser(wiring.Component):
    """Reads the records of each range, or outside it if the first dimension is negated, and compares them.

    Of the array at `address` there are `count` records. The closing pair comes behind all others.

    Latency: the memory's and 8 cycles. Throughput: one range in two cycles, in four if the first dimension is
    negated; one word per cycle, one pair per cycle.
    """

    def __init__(
        self,
        dims: tuple[Dimension, ...],
        side: str,
        lanes: int,
        *,
        capacity: int,
        address_width: int,
        ahead: int,
    ):
        self._dims = dims
        self._side = side
        self._lanes = lanes
        self._address_width = address_width
        self._ahead = ahead
        records = record_layouts(dims)
        self._probe = probe_layout(records[side])
        self._record = records[{"r": "s", "s": "r"}[side]]
        super().__init__(
            {
                "address": In(address_width),
                "count": In(range(capacity + 1)),
                "candidates": In(stream.Signature(candidates_layout(self._probe, capacity))),
                "memory": Out(MemoryPort(lanes * self._record.size, address_width)),
                "pairs": Out(stream.Signature(pairs_layout())),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes, candidates, negated = self._lanes, self.candidates, self._dims[0].negated
        number = range(lanes)
        part = data.StructLayout(
            {
                "probe": self._probe,
                "first": number,  # lane of the first word
                "last": number,  # lane of the last word
                "words": self.count.shape(),
                "closing": 1,
            }
        )

        # Cuts a range into parts: itself, or what lies before and after it.
        waiting = Signal()  # `cut` holds a part
        rest = Signal()  # the part before the range is cut, that after it is not
        cut = Signal(part, reset_less=True)
        word = Signal(self._address_width, reset_less=True)
        start = Signal.like(self.count)
        end = Signal.like(self.count)
        words = Signal.like(self.count)
        m.d.comb += [
            start.eq(candidates.p.start),
            end.eq(candidates.p.end),
            words.eq((end - 1) // lanes - start // lanes + 1),
        ]
        if negated:
            with m.If(rest):
                m.d.comb += [start.eq(candidates.p.end), end.eq(self.count)]
            with m.Else():
                m.d.comb += [start.eq(0), end.eq(candidates.p.start)]
        m.submodules.bursts = bursts = Bursts(self._address_width, len(self.count), LONGEST)
        m.submodules.requests = requests = Skid(self.memory.read.payload.shape())
        m.submodules.parts = parts = Queue(part, self._ahead)
        wiring.connect(m, bursts.bursts, requests.input)
        wiring.connect(m, requests.output, wiring.flipped(self.memory.read))
        sent = Signal()
        m.d.comb += [
            bursts.request.valid.eq(waiting & parts.input.ready),
            bursts.request.p.address.eq(word),
            bursts.request.p.count.eq(cut.words),
            sent.eq(bursts.request.valid & bursts.request.ready),
            parts.input.p.eq(cut),
            parts.input.valid.eq(sent & (cut.words.any() | cut.closing)),
            candidates.ready.eq(~waiting & (rest | candidates.p.closing | (not negated))),
        ]
        with m.If(sent):
            m.d.sync += waiting.eq(0)
        with m.If(~waiting):
            m.d.sync += [
                waiting.eq(candidates.valid),
                rest.eq(candidates.valid & ~candidates.ready),
                word.eq(self.address + start // lanes),
                cut.probe.eq(candidates.p.probe),
                cut.first.eq(start % lanes),
                cut.last.eq((end - 1) % lanes),
                cut.words.eq(Mux(candidates.p.closing | (start >= end), 0, words)),
                cut.closing.eq(candidates.p.closing),
            ]

        # A word with the tuple of its part: a memory shows it late, so it is compared in the next cycle.
        shown = data.StructLayout(
            {
                "records": data.ArrayLayout(self._record, lanes),
                "inside": lanes,
                "probe": self._probe,
                "closing": 1,
            }
        )
        of = parts.output.p
        gone = Signal.like(self.count)
        is_last = Signal()
        shows, now = Signal(), Signal(shown, reset_less=True)
        moves = Signal()
        m.d.comb += [
            is_last.eq(gone + 1 == of.words),
            self.memory.data.ready.eq(parts.output.valid & ~of.closing & moves),
            parts.output.ready.eq(moves & (of.closing | self.memory.data.valid & is_last)),
        ]
        with m.If(self.memory.data.valid & self.memory.data.ready):
            m.d.sync += gone.eq(Mux(is_last, 0, gone + 1))
        inside = ((gone.any() | (k >= of.first)) & (~is_last | (k <= of.last)) for k in range(lanes))
        with m.If(moves):
            m.d.sync += [
                shows.eq(parts.output.valid & (of.closing | self.memory.data.valid)),
                now.records.eq(self.memory.data.payload),
                now.inside.eq(Cat(inside)),
                now.probe.eq(of.probe),
                now.closing.eq(of.closing),
            ]

        # Compares the records of the word in the registers.
        found = data.StructLayout(
            {
                "matches": lanes,
                "ids": data.ArrayLayout(ID_WIDTH, lanes),
                "id": ID_WIDTH,
                "closing": 1,
            }
        )
        m.submodules.found = queue = Queue(found, WAITING)
        room = Signal()
        compared = Signal(found, reset_less=True)
        filled = Signal()
        m.d.comb += [
            room.eq(~filled | queue.input.ready),
            moves.eq(~shows | room),
            queue.input.p.eq(compared),
            queue.input.valid.eq(filled),
        ]
        matches = []
        for lane, record in enumerate(now.records):
            r, s = (now.probe, record) if self._side == "r" else (record, now.probe)
            matches.append(now.inside[lane] & joins(self._dims, r, s))
        with m.If(room):
            m.d.sync += [
                filled.eq(shows & (now.closing | Cat(matches).any())),
                compared.matches.eq(Cat(matches)),
                compared.id.eq(now.probe.id),
                compared.closing.eq(now.closing),
                *(own.eq(record.id) for own, record in zip(compared.ids, now.records)),
            ]

        # Puts out the pairs of a word one by one.
        m.submodules.skid = skid = Skid(self.pairs.payload.shape())
        head = queue.output.p
        out = Signal(lanes)  # pairs of `head` that are out
        left = Signal(lanes)
        partner = Signal(ID_WIDTH)
        chosen = Signal(lanes)
        m.d.comb += [
            left.eq(head.matches & ~out),
            chosen.eq(left & (~left + 1)),
            skid.input.valid.eq(queue.output.valid),
            skid.input.p.closing.eq(head.closing),
            queue.output.ready.eq(skid.input.ready & (head.closing | (left == chosen))),
        ]
        for lane in reversed(range(lanes)):
            with m.If(left[lane]):
                m.d.comb += partner.eq(head.ids[lane])
        mine, other = ("r_id", "s_id") if self._side == "r" else ("s_id", "r_id")
        m.d.comb += [skid.input.p.pair[mine].eq(head.id), skid.input.p.pair[other].eq(partner)]
        with m.If(skid.input.valid & skid.input.ready):
            m.d.sync += out.eq(Mux(queue.output.ready, 0, out | chosen))
        wiring.connect(m, skid.output, wiring.flipped(self.pairs))
        return m
