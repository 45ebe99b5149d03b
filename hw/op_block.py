"""An OP-Block: join core, selection or projection, as instructions on its stream say.

::

                      results (pairs, composites)
                                   ^
             +---------------------|------------------------+
             |      [ segments x predicate ]   [ queue ]    |
             |                |        |           |        |
  upstream ->| [skid] door compare  decide [spare] put out  |-> downstream
             |         |                                    |
             |     [ decoder ] program                      |
             +----------------------------------------------+

Every message visits every block, in one order: tuples, tokens and instructions alike.
"""

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .dimension import Dimension, Test
from .instruction import (
    BLOCK_WIDTH,
    CHANNEL_WIDTH,
    COMPOSITE_ID_LAYOUT,
    INSTRUCTION_LAYOUT,
    PRODUCTS,
    TESTS,
    Opcode,
    Part,
    Role,
)
from .lowest import lowest
from .op_decoder import OpDecoder
from .parameters import Parameters
from .segment import DISTRIBUTED
from .skid import Skid
from .socket import COMPOSITE_LAYOUT, ID_WIDTH, QUERY_WIDTH, Kind

#: A pair as blocks put it out. `composite.id` means something if `is_composite`.
FOUND_LAYOUT = data.StructLayout({"is_composite": 1, "query": QUERY_WIDTH, "composite": COMPOSITE_LAYOUT})
HORIZON_LAYOUT = data.StructLayout({"valid": 1, "id": ID_WIDTH})
#: How many tuples can be stored at most while the pairs of one are on their way.
_MEANWHILE = 3
#: What a side's tuples and horizons are called.
SIDES = ((Kind.R, Kind.HORIZON_R), (Kind.S, Kind.HORIZON_S))
#: What is compared of a point and a box; every test is made of these.
COMPARISONS = (Test.AT_LEAST.value, Test.AT_MOST.value, Test.EQUAL.value)


def message_layout(dims: tuple[Dimension, ...]) -> data.StructLayout:
    """What goes from block to block: a word of `tuples` and its channel. A point is in `lo`."""
    bounds = data.ArrayLayout(dims[0].width, len(dims))
    return data.StructLayout(
        {"kind": Kind, "channel": CHANNEL_WIDTH, "id": ID_WIDTH, "lo": bounds, "hi": bounds}
    )


def tally_layout(cores: int) -> data.StructLayout:
    """What the blocks count together, each adding its share to that of the blocks before it."""
    return data.StructLayout({"scans": range(cores + 1), "lost": range(cores + 1), "stalled": 1})


class Window:
    """Where one side's next tuple goes, and which places hold one."""

    def __init__(self, m: Module, side: str, lanes: int, depth: int, laps: int):
        self._m, self._lanes, self._depth = m, lanes, depth
        self.row = Signal(range(depth), name=f"{side}_row")
        self.lane = Signal(range(lanes), name=f"{side}_lane")
        self.lap = Signal(range(laps), name=f"{side}_lap")  # as many rounds ago a place is used again
        self.full = Signal(name=f"{side}_full")
        self.seen = Signal(BLOCK_WIDTH, name=f"{side}_seen")  # tuples since the last that was at position 0
        self.horizon = Signal(HORIZON_LAYOUT, name=f"{side}_horizon")

    def clear(self) -> None:
        """Empties it."""
        self._m.d.sync += [
            *(signal.eq(0) for signal in (self.row, self.lane, self.full, self.seen)),
            self.horizon.valid.eq(0),
        ]

    def advance(self) -> None:
        """Goes on to the next place."""
        m = self._m
        with m.If(self.lane != self._lanes - 1):
            m.d.sync += self.lane.eq(self.lane + 1)
        with m.Else():
            m.d.sync += self.lane.eq(0)
            with m.If(self.row != self._depth - 1):
                m.d.sync += self.row.eq(self.row + 1)
            with m.Else():
                m.d.sync += [self.row.eq(0), self.lap.eq(self.lap + 1), self.full.eq(1)]

    def written(self, row: Value, lane: int) -> Value:
        """Whether a place was written since the last time around."""
        return (row < self.row) | ((row == self.row) & (lane < self.lane))


class OpBlock(wiring.Component):
    """A block of the chain; `address` is its number.

    A tuple that probes takes `depth = segment / lanes` cycles, every other message one. Instructions for
    this block and flushes wait, four cycles at most, until the tuples before them are done; a tuple right
    behind an instruction waits one. What was found is queued before the message behind it goes on; a mark
    then does not wait for the queue, the tail does. No path goes through a block: the stages before the last
    move unless its spare place is taken.

    Each pair takes one cycle on the way out, and a composite, or a tuple that is put out beside the one it
    was made from, one more message.

    Latency: `latency(parameters)` cycles from `upstream` to `downstream`, and `depth - 1` more for a tuple
    that probes; one more than `latency` from `upstream` to `results` for a pair in the first row.
    Throughput: one message per cycle, a tuple that probes every `depth` cycles.
    """

    #: All blocks are alike, and are mapped once.
    KEPT = True

    def __init__(self, parameters: Parameters):
        self._p = parameters
        # Two laps, or four if two are over too soon: a power of two, so that they count by themselves.
        self._laps = 2 if parameters.segment >= _MEANWHILE else 4
        message = message_layout(parameters.dims)
        tally = tally_layout(parameters.cores)
        super().__init__(
            {
                "address": In(BLOCK_WIDTH),
                "upstream": In(stream.Signature(message)),
                "downstream": Out(stream.Signature(message)),
                "results": Out(stream.Signature(FOUND_LAYOUT)),
                "found": Out(1),
                "tally_in": In(tally),
                "tally_out": Out(tally),
            }
        )

    @staticmethod
    def latency(parameters: Parameters) -> int:
        """Cycles that a message spends in a block that does nothing else."""
        return 5 if parameters.segment == parameters.lanes else 6

    def elaborate(self, platform):
        m = Module()
        p = self._p
        lanes, depth, count = p.lanes, p.segment // p.lanes, len(p.dims)
        message = self.upstream.payload.shape()
        m.submodules.skid = skid = Skid(message)
        wiring.connect(m, wiring.flipped(self.upstream), skid.input)

        m.submodules.decoder = decoder = OpDecoder(p)
        program = decoder.program
        role = program.role

        # Stage 1: a message at the door, and what it is to this block's program. Behind an instruction for
        # this block only another one may follow at once: what that is does not depend on the program.
        come = skid.output.payload
        on_first = come.channel == program.r_channel
        on_second = come.channel == program.s_channel
        tokens = [Cat(come.kind == kind, come.kind == horizon) for kind, horizon in SIDES]
        door_layout = data.StructLayout(
            {
                "message": message,
                "here": 2,  # an R tuple, an S tuple, of the join
                "horizon": 2,
                "filtered": 1,
                "certain": 1,
                "against_s": 1,  # the tuple is a point
                "aimed": 1,  # an instruction for this block
                "flushes": 1,
                "waits": 1,  # until the tuples before it are done: either of the two
            }
        )
        door = Signal(door_layout, reset_less=True)
        at_door = Signal()
        leaves = Signal()  # stage 1, with the last row
        m.d.comb += skid.output.ready.eq(
            ~at_door | (leaves & ~(door.aimed & (come.kind != Kind.INSTRUCTION)))
        )
        with m.If(skid.output.ready):
            m.d.sync += at_door.eq(skid.output.valid)
        with m.Elif(leaves):
            m.d.sync += at_door.eq(0)
        with m.If(skid.output.ready):
            instruction = data.View(INSTRUCTION_LAYOUT, come.id[: INSTRUCTION_LAYOUT.size])
            joins = role == Role.JOIN
            aimed = (come.kind == Kind.INSTRUCTION) & (instruction.block == self.address)
            m.d.sync += [
                door.message.eq(come),
                door.here.eq(Cat(joins & on_first & tokens[0][0], joins & on_second & tokens[1][0])),
                door.horizon.eq(Cat(on_first & tokens[0][1], on_second & tokens[1][1])),
                door.filtered.eq(
                    ((role == Role.SELECT) | (role == Role.PROJECT))
                    & on_first
                    & Mux(program.side, tokens[1].any(), tokens[0].any())
                ),
                door.certain.eq(~((role == Role.SELECT) & (tokens[0][0] | tokens[1][0]))),
                door.against_s.eq(Mux(role == Role.SELECT, ~program.side, tokens[0][0])),
                door.aimed.eq(aimed),
                door.flushes.eq(come.kind == Kind.FLUSH),
                door.waits.eq(aimed | (come.kind == Kind.FLUSH)),
            ]

        # Stage 1, one row after another. Every later stage moves when this one may.
        now = door.message
        go = Signal()
        # Which of the later ones hold something: rows read from RAM, comparisons, decisions; and the last.
        stages = Signal(2 if depth == 1 else 3)
        putting_out = Signal()
        spared = Signal()
        row = Signal(range(depth))
        r, s = (Window(m, name, lanes, depth, self._laps) for name in "rs")
        is_r = now.kind == Kind.R
        r_here, s_here = door.here
        probes = door.here.any()
        instruction = decoder.instruction
        executes = Signal()
        last_row = ~probes | (row == depth - 1)
        # Nothing is in the later stages but instructions that go on, which no program changes.
        settled = Signal()
        moves = at_door & go & (~door.waits | settled)
        m.d.sync += settled.eq(~(stages.any() | putting_out | spared | (moves & ~door.aimed)))
        m.d.comb += [
            go.eq(~spared),
            executes.eq(door.aimed & decoder.legal),
            decoder.address.eq(self.address),
            Value.cast(instruction).eq(now.id),
            decoder.run.eq(leaves & executes),
            leaves.eq(moves & last_row),
        ]
        if depth > 1:
            with m.If(moves & probes):
                m.d.sync += row.eq(Mux(last_row, 0, row + 1))

        # Instructions, and tokens that the block takes note of.
        with m.If(leaves & (door.flushes | (executes & decoder.clears))):
            r.clear()
            s.clear()
        for window, known in zip((r, s), door.horizon):
            with m.If(leaves & known):
                m.d.sync += [window.horizon.valid.eq(1), window.horizon.id.eq(now.id)]

        # Of each side's tuples, this block stores its share. A SELECT's constants are stored like a tuple
        # of the other side, at the first place, so that the tuples it is given meet them.
        constants = leaves & executes & (instruction.opcode == Opcode.SELECT)
        stores = []
        for window, here in ((r, r_here), (s, s_here)):
            store = Signal(name=f"stores_{len(stores)}")
            m.d.comb += store.eq(leaves & here & (window.seen == program.position))
            with m.If(leaves & here):
                m.d.sync += window.seen.eq(Mux(window.seen == program.last, 0, window.seen + 1))
            with m.If(store):
                window.advance()
            stores.append(store)
        side = instruction.operands.select.side
        points = self._rows(m, "r", ("lo",), now, r, row, stores[0], constants & side)
        boxes = self._rows(m, "s", ("lo", "hi"), now, s, row, stores[1], constants & ~side)

        # What a pair is made of is kept apart from what is compared, longer, and read one at a time.
        def place(of_s, lap, at_row, at_lane):
            return Cat(at_lane, at_row, lap, of_s)

        here = Mux(s_here, s.lap, r.lap), Mux(s_here, s.row, r.row), Mux(s_here, s.lane, r.lane)
        address = place(s_here, *here)
        kept_shape = data.StructLayout({"lo": now.lo.shape(), "hi": now.hi.shape()})
        m.submodules.ids = ids = memory.Memory(
            shape=ID_WIDTH, depth=1 << len(address), init=[], attrs=DISTRIBUTED
        )
        m.submodules.kept = kept = memory.Memory(
            shape=kept_shape, depth=1 << len(address), init=[], attrs=DISTRIBUTED
        )
        for store_of, value in ((ids, now.id), (kept, Cat(now.lo.as_value(), now.hi.as_value()))):
            write = store_of.write_port()
            m.d.comb += [
                write.addr.eq(address),
                Value.cast(write.data).eq(value),
                write.en.eq(Cat(stores).any()),
            ]
        oldest = ids.read_port(domain="comb")
        met_id = ids.read_port(domain="comb")
        met = kept.read_port(domain="comb")

        # What is overwritten leaves its window.
        m.d.comb += oldest.addr.eq(place(s_here, (here[0] - 1)[: len(r.lap)], here[1], here[2]))
        evicted = Signal(data.StructLayout({"valid": 1, "of_s": 1, "id": ID_WIDTH}))
        m.d.sync += [
            evicted.valid.eq(Mux(s_here, stores[1] & s.full, stores[0] & r.full)),
            evicted.of_s.eq(s_here),
            evicted.id.eq(oldest.data),
        ]
        horizon = Mux(evicted.of_s, s.horizon.as_value(), r.horizon.as_value())
        horizon = data.View(HORIZON_LAYOUT, horizon)
        live = horizon.valid & ((evicted.id - horizon.id)[:ID_WIDTH].as_signed() >= 0)
        lost = Signal()
        m.d.sync += lost.eq(evicted.valid & (live | Mux(evicted.of_s, program.strict_s, program.strict_r)))

        # Stage 2: the outcome of every comparison. Rows that are read from RAM wait for it in a stage before.
        opposite_written = [Mux(is_r, s.written(row, lane), r.written(row, lane)) for lane in range(lanes)]
        carried = {
            "message": message,
            "joins": 1,
            "filters": 1,
            "row": row.shape(),
            "lap": r.lap.shape(),
            "written": lanes,
        }
        compared = data.StructLayout(carried | {"last": 1, "certain": 1, "valid": lanes, "against_s": 1})
        first = Signal(compared, reset_less=depth > 1)
        second = Signal(compared, reset_less=True)
        asks = [
            first.message.eq(now),
            first.last.eq(last_row),
            first.joins.eq(probes),
            first.filters.eq(door.filtered),
            first.certain.eq(door.certain),
            first.against_s.eq(door.against_s),
            first.row.eq(row),
            first.lap.eq(Mux(is_r, s.lap, r.lap)),
            first.written.eq(Cat(opposite_written)),
            first.valid.eq(Cat(opposite_written) | Mux(is_r, s.full, r.full).replicate(lanes)),
        ]
        if depth == 1:
            m.d.comb += asks
        else:
            shown = [
                [
                    Signal.like(rows[lane], name=f"{side}_shown_{lane}", reset_less=True)
                    for lane in range(lanes)
                ]
                for side, rows in (("r", points), ("s", boxes))
            ]
            with m.If(go):
                m.d.sync += asks
                m.d.sync += [
                    copy.eq(row)
                    for copies, rows in zip(shown, (points, boxes))
                    for copy, row in zip(copies, rows)
                ]
            points, boxes = shown
        outcome_shape = data.ArrayLayout(data.StructLayout(dict.fromkeys(COMPARISONS, 1)), count)
        outcomes = [Signal(outcome_shape, name=f"outcomes_{lane}", reset_less=True) for lane in range(lanes)]
        with m.If(go):
            m.d.sync += [stages.eq(Cat(moves & ~executes, stages)), second.eq(first)]
            for lane in range(lanes):
                for k in range(count):
                    # Against S's rows, or R's against the tuple; `contains` of a band is what both mean.
                    ways = [
                        (point >= lo, point <= hi, point == lo)
                        for point, lo, hi in (
                            (first.message.lo[k], boxes[lane].lo[k], boxes[lane].hi[k]),
                            (points[lane].lo[k], first.message.lo[k], first.message.hi[k]),
                        )
                    ]
                    for name, one, other in zip(COMPARISONS, *ways):
                        m.d.sync += outcomes[lane][k][name].eq(Mux(first.against_s, one, other))

        # Stage 3: the tuples met that make a pair.
        met_layout = data.StructLayout(carried | {"derives": 1, "forwards": 1, "mask": lanes})
        third = Signal(met_layout, reset_less=True)
        chosen = Cat(self._predicate(outcomes[lane], program) for lane in range(lanes))
        with m.If(go):
            m.d.sync += [
                *(third[name].eq(second[name]) for name in carried),
                third.derives.eq(second.filters | program.composing),  # what was met becomes a message
                third.forwards.eq(second.last & ~(second.filters & ~program.keep)),
                third.mask.eq(
                    Mux(second.joins, chosen & second.valid, second.filters & (second.certain | chosen[0]))
                ),
            ]

        # Stage 4: these one after another; then the message itself. What comes while it waits is spared.
        def met_place(entry, lane: Value) -> Value:
            lap = (entry.lap - ~entry.written.bit_select(lane, 1))[: len(entry.lap)]
            return place(entry.message.kind == Kind.R, lap, entry.row, lane)

        fourth = Signal(met_layout, reset_less=True)
        spare = Signal(met_layout, reset_less=True)
        coming = Signal(met_layout)
        coming_first, coming_rest = lowest(m, coming.mask, "coming")
        _, rest = lowest(m, fourth.mask, "fourth")
        next_first, next_rest = lowest(m, rest, "next")
        met_at = Signal(len(address), reset_less=True)
        some = Signal()
        more = Signal()
        turn = Signal()  # one that was met is done with
        finishes = Signal()
        m.d.comb += coming.eq(Mux(spared, spare, third))
        with m.If(~spared):
            m.d.sync += spare.eq(third)
        with m.If(~putting_out | finishes):
            m.d.sync += [
                *(putting_out.eq(spared | stages[-1]), spared.eq(0), fourth.eq(coming)),
                *(some.eq((spared | stages[-1]) & coming.mask.any()), more.eq(coming_rest.any())),
                met_at.eq(met_place(coming, coming_first)),
            ]
        with m.Else():
            with m.If(stages[-1]):
                m.d.sync += spared.eq(1)
            with m.If(turn):
                m.d.sync += [
                    *(fourth.mask.eq(rest), some.eq(more), more.eq(next_rest.any())),
                    met_at.eq(met_place(fourth, next_first)),
                ]

        m.submodules.queue = queue = fifo.SyncFIFO(width=FOUND_LAYOUT.size, depth=p.buffer)
        was_r = fourth.message.kind == Kind.R
        derives, forwards = fourth.derives, fourth.forwards
        m.d.comb += [met_id.addr.eq(met_at), met.addr.eq(met_at)]
        number = Signal(COMPOSITE_ID_LAYOUT["number"].shape)
        found = Signal(FOUND_LAYOUT)
        m.d.comb += [
            found.is_composite.eq(program.composing),
            found.query.eq(program.query),
            found.composite.id.eq(Cat(number, self.address)),
            found.composite.r_id.eq(Mux(was_r, fourth.message.id, met_id.data)),
            found.composite.s_id.eq(Mux(was_r, met_id.data, fourth.message.id)),
        ]
        to_queue = some & fourth.joins
        room = ~to_queue | queue.w_rdy
        to_chain = Mux(some, derives | (forwards & ~more), forwards)
        sent = self.downstream.ready | ~to_chain
        m.d.comb += [
            turn.eq(some & room & sent),
            finishes.eq(Mux(some, turn & ~more & ~(derives & forwards), sent)),
            queue.w_data.eq(found),
            queue.w_en.eq(to_queue & sent),
            self.found.eq(to_queue & turn),
            self.downstream.valid.eq(putting_out & to_chain & room),
            self.results.payload.eq(queue.r_data),
            self.results.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.results.ready),
        ]
        with m.If(leaves & (door.flushes | executes)):
            m.d.sync += number.eq(0)
        with m.Elif(to_queue & turn & program.composing):
            m.d.sync += number.eq(number + 1)

        # What goes downstream: the message, or what is made of it and of what it met.
        out = self.downstream.payload
        made = some & derives
        composite = fourth.joins
        m.d.comb += [
            out.kind.eq(Mux(made & composite, Kind.R, fourth.message.kind)),
            out.channel.eq(Mux(made, program.target, fourth.message.channel)),
            out.id.eq(Mux(made & composite, found.composite.id, fourth.message.id)),
        ]
        width = p.dims[0].width
        lows, highs = [], []
        for k in range(count):
            own, other = fourth.message.lo[k], met.data.lo[k]
            low = Signal(width, name=f"low_{k}")
            m.d.comb += low.eq(own)
            with m.If(made & composite):
                with m.Switch(program.parts[k]):
                    with m.Case(Part.R):
                        m.d.comb += low.eq(Mux(was_r, own, other))
                    with m.Case(Part.S_LO):
                        m.d.comb += low.eq(Mux(was_r, other, own))
                    with m.Case(Part.S_HI):
                        m.d.comb += low.eq(Mux(was_r, met.data.hi[k], fourth.message.hi[k]))
            lows.append(low)
            highs.append(fourth.message.hi[k])
        for k in range(count):
            route = Mux(made, program.routes[k], Const(k, len(program.routes[k])))
            for bound, values in ((out.lo[k], lows), (out.hi[k], highs)):
                m.d.comb += bound.eq(Mux(made & program.dropped[k], 0, Array(values)[route]))

        tally = Signal(self.tally_out.shape())
        m.d.comb += self.tally_out.eq(tally)
        m.d.sync += [
            tally.scans.eq(self.tally_in.scans + (moves & probes)),
            tally.lost.eq(self.tally_in.lost + lost),
            tally.stalled.eq(self.tally_in.stalled | (putting_out & some & ~finishes)),
        ]
        return m

    def _rows(self, m: Module, name: str, bounds, now, window: Window, row: Value, store: Value, constants):
        """A side's tuples as they are compared: one per lane, of row `row`."""
        p = self._p
        depth = p.segment // p.lanes
        shape = data.StructLayout({bound: now[bound].shape() for bound in bounds})
        shown = []
        for lane in range(p.lanes):
            writes = store & (window.lane == lane)
            if lane == 0:
                writes |= constants
            if depth == 1:
                bank = Signal(shape, name=f"{name}_bank_{lane}", reset_less=True)
                with m.If(writes):
                    m.d.sync += [bank[bound].eq(now[bound]) for bound in bounds]
                shown.append(bank)
            else:
                bank = m.submodules[f"{name}_bank_{lane}"] = memory.Memory(
                    shape=shape, depth=depth, init=[], attrs=DISTRIBUTED
                )
                write, read = bank.write_port(), bank.read_port(domain="comb")
                m.d.comb += [
                    write.addr.eq(Mux(constants, 0, window.row)),
                    *(write.data[bound].eq(now[bound]) for bound in bounds),
                    write.en.eq(writes),
                    read.addr.eq(row),
                ]
                shown.append(read.data)
        return shown

    @staticmethod
    def _predicate(outcome, program) -> Value:
        """An OR of ANDs of terms."""
        held = []
        terms = [program.terms[k] for k in range(outcome.shape().length)]
        for k, term in enumerate(terms):
            passed = {test: outcome[k][test.value] for test in TESTS if test is not Test.BAND}
            passed[Test.BAND] = passed[Test.AT_LEAST] & passed[Test.AT_MOST]
            held.append(Array(passed[test] for test in TESTS)[term.test] ^ term.negated)
        return Cat(
            program.products[j] & Cat(~term.within[j] | holds for term, holds in zip(terms, held)).all()
            for j in range(PRODUCTS)
        ).any()
