"""An OP-Block: join core, selection or projection, as instructions on its stream say.

::

                               results (pairs, composites)
                                   ^
             +---------------------|---------------+
             |        [ segments x predicate ] [ queue ]
             |              |            |         |
  upstream ->| [ skid ] -> compare -> decide -> put out |-> downstream
             |      |
             |  [ decoder ] program
             +-------------------------------------+

Every message visits every block, in one order: tuples, tokens and instructions alike.
"""

from amaranth import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, fifo, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .dimension import Dimension, Test
from .instruction import BLOCK_WIDTH, CHANNEL_WIDTH, COMPOSITE_ID_LAYOUT, PRODUCTS, TESTS, Opcode, Part, Role
from .op_decoder import OpDecoder
from .parameters import Parameters
from .segment import DISTRIBUTED
from .skid import Skid
from .socket import COMPOSITE_LAYOUT, ID_WIDTH, QUERY_WIDTH, Kind

#: A pair as blocks put it out. `composite.id` means something if `is_composite`.
FOUND_LAYOUT = data.StructLayout({"is_composite": 1, "query": QUERY_WIDTH, "composite": COMPOSITE_LAYOUT})
HORIZON_LAYOUT = data.StructLayout({"valid": 1, "id": ID_WIDTH})
#: Laps around a segment after which a stored tuple's place is used again. While the pairs of a tuple are on
#: their way one more tuple can be stored, and never a second.
LAPS = 2
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

    def __init__(self, m: Module, side: str, lanes: int, depth: int):
        self._m, self._lanes, self._depth = m, lanes, depth
        self.row = Signal(range(depth), name=f"{side}_row")
        self.lane = Signal(range(lanes), name=f"{side}_lane")
        self.lap = Signal(range(LAPS), name=f"{side}_lap")  # one of two: the other is the one before
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
                m.d.sync += [self.row.eq(0), self.lap.eq(~self.lap), self.full.eq(1)]

    def written(self, row: Value, lane: int) -> Value:
        """Whether a place was written since the last time around."""
        return (row < self.row) | ((row == self.row) & (lane < self.lane))


class OpBlock(wiring.Component):
    """A block of the chain; `address` is its number.

    A tuple that probes takes `depth = segment / lanes` cycles, every other message one. Instructions for
    this block and flushes wait, two cycles at most, until the tuples before them are done. What was found is
    queued before the message behind it goes on; a mark then does not wait for the queue, the tail does. Each
    pair takes one cycle on the way out, and a composite, or a tuple that is put out beside the one it was
    made from, one more message.

    Latency: 3 cycles from `upstream` to `downstream`, and `depth - 1` more for a tuple that probes; 4 cycles
    from `upstream` to `results` for a pair in the first row.
    Throughput: one message per cycle, a tuple that probes every `depth` cycles.
    """

    def __init__(self, parameters: Parameters):
        self._p = parameters
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

        # Stage 1: a message at the door, and the row that it meets.
        now = skid.output.payload
        go = Signal()  # the stages move on
        stages = Signal(2)  # which of the later two hold something
        row = Signal(range(depth))
        r, s = (Window(m, name, lanes, depth) for name in "rs")
        is_r, is_s = now.kind == Kind.R, now.kind == Kind.S
        r_here = Signal()
        s_here = Signal()
        probes = Signal()
        filtered = Signal()
        instruction = decoder.instruction
        executes = Signal()
        flushes = Signal()
        leaves = Signal()  # stage 1, with the last row
        on_first = now.channel == program.r_channel
        tokens = (is_r | (now.kind == Kind.HORIZON_R), is_s | (now.kind == Kind.HORIZON_S))
        m.d.comb += [
            r_here.eq((role == Role.JOIN) & is_r & on_first),
            s_here.eq((role == Role.JOIN) & is_s & (now.channel == program.s_channel)),
            probes.eq(r_here | s_here),
            filtered.eq(
                ((role == Role.SELECT) | (role == Role.PROJECT))
                & on_first
                & Mux(program.side, tokens[1], tokens[0])
            ),
            executes.eq((now.kind == Kind.INSTRUCTION) & (instruction.block == self.address) & decoder.legal),
            flushes.eq(now.kind == Kind.FLUSH),
            decoder.address.eq(self.address),
            Value.cast(instruction).eq(now.id),
            decoder.run.eq(leaves & executes),
        ]
        last_row = ~probes | (row == depth - 1)
        moves = skid.output.valid & go & ~((executes | flushes) & stages.any())
        m.d.comb += [leaves.eq(moves & last_row), skid.output.ready.eq(leaves)]
        if depth > 1:
            with m.If(moves & probes):
                m.d.sync += row.eq(Mux(last_row, 0, row + 1))

        # Instructions, and tokens that the block takes note of.
        with m.If(leaves & (flushes | (executes & decoder.clears))):
            r.clear()
            s.clear()
        for window, kind, channel in (
            (r, Kind.HORIZON_R, program.r_channel),
            (s, Kind.HORIZON_S, program.s_channel),
        ):
            with m.If(leaves & (now.kind == kind) & (now.channel == channel)):
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
        points = self._rows(m, "r", ("lo",), r, row, stores[0], constants & instruction.operands.select.side)
        boxes = self._rows(
            m, "s", ("lo", "hi"), s, row, stores[1], constants & ~instruction.operands.select.side
        )

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
        m.d.comb += oldest.addr.eq(place(s_here, ~here[0], here[1], here[2]))
        evicted = Signal(data.StructLayout({"valid": 1, "of_s": 1, "id": ID_WIDTH}))
        m.d.sync += [
            evicted.valid.eq(Mux(s_here, stores[1] & s.full, stores[0] & r.full)),
            evicted.of_s.eq(s_here),
            evicted.id.eq(oldest.data),
        ]
        horizon = Mux(evicted.of_s, s.horizon.as_value(), r.horizon.as_value())
        horizon = data.View(HORIZON_LAYOUT, horizon)
        live = horizon.valid & ((evicted.id - horizon.id)[:ID_WIDTH].as_signed() >= 0)
        lost = evicted.valid & (live | Mux(evicted.of_s, program.strict_s, program.strict_r))

        # Stage 2: the outcome of every comparison.
        opposite_written = [Mux(is_r, s.written(row, lane), r.written(row, lane)) for lane in range(lanes)]
        against_s = Mux(role == Role.SELECT, ~program.side, is_r)  # the tuple is a point
        outcome_shape = data.ArrayLayout(data.StructLayout(dict.fromkeys(COMPARISONS, 1)), count)
        carried = data.StructLayout(
            {
                "message": message,
                "last": 1,
                "joins": 1,
                "filters": 1,
                "certain": 1,  # passes whatever the predicate says
                "row": row.shape(),
                "lap": r.lap.shape(),
                "written": lanes,
            }
        )
        second = Signal(carried, reset_less=True)
        third = Signal(carried, reset_less=True)
        valid = Signal(lanes)
        outcomes = [Signal(outcome_shape, name=f"outcomes_{lane}", reset_less=True) for lane in range(lanes)]
        with m.If(go):
            m.d.sync += [
                stages.eq(Cat(moves & ~executes, stages[0])),
                second.message.eq(now),
                second.last.eq(last_row),
                second.joins.eq(probes),
                second.filters.eq(filtered),
                second.certain.eq(~((role == Role.SELECT) & (is_r | is_s))),
                second.row.eq(row),
                second.lap.eq(Mux(is_r, s.lap, r.lap)),
                second.written.eq(Cat(opposite_written)),
                valid.eq(Cat(opposite_written) | Mux(is_r, s.full, r.full).replicate(lanes)),
                third.eq(second),
            ]
            for lane in range(lanes):
                for k in range(count):
                    # Against S's rows, or R's against the tuple; `contains` of a band is what both mean.
                    ways = [
                        (point >= lo, point <= hi, point == lo)
                        for point, lo, hi in (
                            (now.lo[k], boxes[lane].lo[k], boxes[lane].hi[k]),
                            (points[lane].lo[k], now.lo[k], now.hi[k]),
                        )
                    ]
                    for name, one, other in zip(COMPARISONS, *ways):
                        m.d.sync += outcomes[lane][k][name].eq(Mux(against_s, one, other))

        # Stage 3: the tuples met that make a pair, one after another; then the message itself.
        mask = Signal(lanes)
        chosen = Cat(self._predicate(outcomes[lane], program) for lane in range(lanes))
        some = Signal()
        more = Signal()
        turn = Signal()  # one that was met is done with
        finishes = Signal()
        rest = mask & (mask - 1)
        with m.If(go):
            m.d.sync += mask.eq(
                Mux(second.joins, chosen & valid, second.filters & (second.certain | chosen[0]))
                & stages[0].replicate(lanes)
            )
        with m.Elif(turn):
            m.d.sync += mask.eq(rest)
        lowest = Signal(range(lanes))
        for lane in reversed(range(lanes)):
            with m.If(mask[lane]):
                m.d.comb += lowest.eq(lane)

        m.submodules.queue = queue = fifo.SyncFIFO(width=FOUND_LAYOUT.size, depth=p.buffer)
        derives = Signal()  # what was met becomes a message
        forwards = Signal()
        was_r = third.message.kind == Kind.R
        lap = third.lap ^ ~third.written.bit_select(lowest, 1)
        m.d.comb += [
            some.eq(mask.any()),
            more.eq(rest.any()),
            derives.eq(third.filters | program.composing),
            forwards.eq(third.last & ~(third.filters & ~program.keep)),
            met_id.addr.eq(place(was_r, lap, third.row, lowest)),
            met.addr.eq(met_id.addr),
        ]
        number = Signal(COMPOSITE_ID_LAYOUT["number"].shape)
        found = Signal(FOUND_LAYOUT)
        m.d.comb += [
            found.is_composite.eq(program.composing),
            found.query.eq(program.query),
            found.composite.id.eq(Cat(number, self.address)),
            found.composite.r_id.eq(Mux(was_r, third.message.id, met_id.data)),
            found.composite.s_id.eq(Mux(was_r, met_id.data, third.message.id)),
        ]
        to_queue = some & third.joins
        room = ~to_queue | queue.w_rdy
        to_chain = Mux(some, derives | (forwards & ~more), forwards)
        sent = self.downstream.ready | ~to_chain
        m.d.comb += [
            go.eq(~stages[1] | finishes),
            turn.eq(some & room & sent),
            finishes.eq(Mux(some, turn & ~more & ~(derives & forwards), sent)),
            queue.w_data.eq(found),
            queue.w_en.eq(to_queue & sent),
            self.found.eq(to_queue & turn),
            self.downstream.valid.eq(stages[1] & to_chain & room),
            self.results.payload.eq(queue.r_data),
            self.results.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.results.ready),
        ]
        with m.If(leaves & (flushes | executes)):
            m.d.sync += number.eq(0)
        with m.Elif(to_queue & turn & program.composing):
            m.d.sync += number.eq(number + 1)

        # What goes downstream: the message, or what is made of it and of what it met.
        out = self.downstream.payload
        made = some & derives
        composite = third.joins
        m.d.comb += [
            out.kind.eq(Mux(made & composite, Kind.R, third.message.kind)),
            out.channel.eq(Mux(made, program.target, third.message.channel)),
            out.id.eq(Mux(made & composite, found.composite.id, third.message.id)),
        ]
        width = p.dims[0].width
        lows, highs = [], []
        for k in range(count):
            own, other = third.message.lo[k], met.data.lo[k]
            low = Signal(width, name=f"low_{k}")
            m.d.comb += low.eq(own)
            with m.If(made & composite):
                with m.Switch(program.parts[k]):
                    with m.Case(Part.R):
                        m.d.comb += low.eq(Mux(was_r, own, other))
                    with m.Case(Part.S_LO):
                        m.d.comb += low.eq(Mux(was_r, other, own))
                    with m.Case(Part.S_HI):
                        m.d.comb += low.eq(Mux(was_r, met.data.hi[k], third.message.hi[k]))
            lows.append(low)
            highs.append(third.message.hi[k])
        for k in range(count):
            route = Mux(made, program.routes[k], Const(k, len(program.routes[k])))
            for bound, values in ((out.lo[k], lows), (out.hi[k], highs)):
                m.d.comb += bound.eq(Mux(made & program.dropped[k], 0, Array(values)[route]))

        tally = Signal(self.tally_out.shape())
        m.d.comb += self.tally_out.eq(tally)
        m.d.sync += [
            tally.scans.eq(self.tally_in.scans + (moves & probes)),
            tally.lost.eq(self.tally_in.lost + lost),
            tally.stalled.eq(self.tally_in.stalled | (stages[1] & some & ~finishes)),
        ]
        return m

    def _rows(self, m: Module, name: str, bounds, window: Window, row: Value, store: Value, constants: Value):
        """A side's tuples as they are compared: one per lane, of row `row`."""
        p = self._p
        depth = p.segment // p.lanes
        now = m.submodules.skid.output.payload
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
