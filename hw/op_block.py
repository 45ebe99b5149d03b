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
from amaranth.lib import data, memory, stream, wiring
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
from .queue import ShortQueue
from .segment import DISTRIBUTED
from .skid import Skid
from .socket import COMPOSITE_LAYOUT, ID_WIDTH, QUERY_WIDTH, Kind

#: A pair as blocks put it out. `composite.id` means something if `is_composite`.
FOUND_LAYOUT = data.StructLayout({"is_composite": 1, "query": QUERY_WIDTH, "composite": COMPOSITE_LAYOUT})
HORIZON_LAYOUT = data.StructLayout({"valid": 1, "id": ID_WIDTH})
#: How many tuples can be stored at most while the pairs of one are on their way; with one lane, one less.
_MEANWHILE = 4
#: What a side's tuples and horizons are called.
SIDES = ((Kind.R, Kind.HORIZON_R), (Kind.S, Kind.HORIZON_S))
#: What is compared of a point and a box; every test is made of these.
COMPARISONS = (Test.AT_LEAST.value, Test.AT_MOST.value, Test.EQUAL.value)


def message_layout(dims: tuple[Dimension, ...]) -> data.StructLayout:
    """What goes from block to block: a word of `tuples` and its channel. A point is in `lo`.

    `aimed` is high if it is an instruction for the block that it goes to: the one before it has the time to
    compare.
    """
    bounds = data.ArrayLayout(dims[0].width, len(dims))
    return data.StructLayout(
        {"kind": Kind, "aimed": 1, "channel": CHANNEL_WIDTH, "id": ID_WIDTH, "lo": bounds, "hi": bounds}
    )


def aimed(kind: Value, id: Value, address: Value | int) -> Value:
    """Whether a word is an instruction for the block `address`."""
    return (kind == Kind.INSTRUCTION) & (
        data.View(INSTRUCTION_LAYOUT, id[: INSTRUCTION_LAYOUT.size]).block == address
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
        self.ahead = Signal(BLOCK_WIDTH, name=f"{side}_ahead")  # tuples that others store before it is this
        self.turn = Signal(name=f"{side}_turn")  # block's turn, which it is
        self.horizon = Signal(HORIZON_LAYOUT, name=f"{side}_horizon")

    def clear(self, position: Value) -> None:
        """Empties it; the tuple at `position` is the first that it stores."""
        self._m.d.sync += [
            *(signal.eq(0) for signal in (self.row, self.lane, self.full)),
            *(self.horizon.valid.eq(0), self.ahead.eq(position), self.turn.eq(position == 0)),
        ]

    def count(self, last: Value) -> None:
        """A tuple has come; of `last + 1` this block stores one."""
        m = self._m
        with m.If(self.turn):
            m.d.sync += [self.ahead.eq(last), self.turn.eq(last == 0)]
        with m.Else():
            m.d.sync += [self.ahead.eq(self.ahead - 1), self.turn.eq(self.ahead == 1)]

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
    this block and flushes wait until the tuples before them are done, and a tuple right behind them waits one
    cycle: at most `latency(parameters)` together where none makes more than one pair in a row. What was
    found is queued before the message behind it goes on; a mark then does not wait for the queue, the tail
    does. No path goes through a block: the stages before the last move unless its spare place is taken.

    Each pair takes one cycle on the way out, and a composite, or a tuple that is put out beside the one it
    was made from, one more message.

    Latency: `latency(parameters)` cycles from `upstream` to `downstream`, and `depth - 1` more for a tuple
    that probes; two more than `latency` from `upstream` to `results` for a pair in the first row.
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
        return 5 + (parameters.segment > parameters.lanes) + (parameters.lanes > 1)

    def elaborate(self, platform):
        m = Module()
        p = self._p
        lanes, depth, count = p.lanes, p.segment // p.lanes, len(p.dims)
        message = self.upstream.payload.shape()
        # Whether it may follow an instruction at once is known of a message when it comes.
        m.submodules.skid = skid = Skid(data.StructLayout({"message": message, "follows": 1}))
        come, comes, follows = skid.output.payload.message, skid.output.valid, skid.output.payload.follows
        m.d.comb += [
            self.upstream.ready.eq(skid.input.ready),
            skid.input.valid.eq(self.upstream.valid),
            skid.input.payload.message.eq(self.upstream.payload),
            skid.input.payload.follows.eq(Cat(self.upstream.payload.kind)[1:].all()),
        ]

        m.submodules.decoder = decoder = OpDecoder(p)
        program = decoder.program
        role = program.role

        # Stage 1: a message at the door, and what it is to this block's program. It walks on as the later
        # stages do, one row after another, or waits until they are empty: an instruction for this block, or a
        # flush. Behind that only an instruction may follow at once: what it is does not depend on the
        # program, nor on the windows.
        on_first = come.channel == program.r_channel
        on_second = come.channel == program.s_channel
        tokens = [Cat(come.kind == kind, come.kind == horizon) for kind, horizon in SIDES]
        flushes = come.kind == Kind.FLUSH
        joins = comes & (role == Role.JOIN)
        comes_here = Cat(joins & on_first & tokens[0][0], joins & on_second & tokens[1][0])
        must_wait = comes & (come.aimed | flushes)
        door_layout = data.StructLayout(
            {
                "message": message,
                "horizon": 2,
                "filtered": 1,
                "certain": 1,
                "against_s": 1,  # the tuple is a point
                "selects": 1,  # an instruction for this block that is a SELECT
                "flushes": 1,
            }
        )
        door = Signal(door_layout, reset_less=True)
        now = door.message
        here = Signal(2)  # an R tuple, an S tuple, of the join
        walks = Signal()
        waits = Signal()
        turns = Signal()  # what waits is done: nothing is in the later stages but one that waited too
        opens = Signal(init=1)  # nothing is at the door, or the last row of what walks
        # Which of the later stages hold something: rows read from RAM, comparisons, decisions, the first of
        # several lanes; and the last.
        stages = Signal(2 + (depth > 1) + (lanes > 1))
        putting_out = Signal()
        spared = Signal()
        flows = Signal(init=1)  # the opposite: each has many to tell
        go = ~spared
        enters = flows & (opens | (turns & follows))
        stays = Mux(enters, must_wait, waits & ~turns)
        settled = ~(stages.any() | putting_out | spared | (flows & walks))
        coming = data.View(INSTRUCTION_LAYOUT, come.id[: INSTRUCTION_LAYOUT.size])
        m.d.comb += [
            skid.output.ready.eq(go & (opens | (turns & follows))),  # `enters`, by another register
            decoder.address.eq(self.address),
            decoder.coming.eq(coming),
            decoder.load.eq(enters),
        ]
        m.d.sync += [waits.eq(stays), turns.eq(stays & settled)]
        with m.If(enters):
            m.d.sync += [
                walks.eq(comes & ~must_wait),
                here.eq(comes_here),
                door.message.eq(come),
                door.horizon.eq(Cat(on_first & tokens[0][1], on_second & tokens[1][1])),
                door.filtered.eq(
                    ((role == Role.SELECT) | (role == Role.PROJECT))
                    & on_first
                    & Mux(program.side, tokens[1].any(), tokens[0].any())
                ),
                door.certain.eq(~((role == Role.SELECT) & (tokens[0][0] | tokens[1][0]))),
                door.against_s.eq(Mux(role == Role.SELECT, ~program.side, tokens[0][0])),
                door.selects.eq(come.aimed & (coming.opcode == Opcode.SELECT)),
                door.flushes.eq(flushes),
            ]
        row = Signal(range(depth))
        r, s = (Window(m, name, lanes, depth, self._laps) for name in "rs")
        s_here = here[1]
        probes = here.any()
        executes = Signal()
        m.d.comb += [
            executes.eq(now.aimed & decoder.legal),
            Value.cast(decoder.instruction).eq(now.id),
            decoder.run.eq(turns & executes),
        ]
        if depth == 1:
            m.d.comb += opens.eq(~waits)
            last_row = Const(1)
        else:
            last_row = opens
            with m.If(enters):
                m.d.sync += opens.eq(~(must_wait | comes_here.any()))
            with m.Elif(turns):
                m.d.sync += opens.eq(1)
            with m.Elif(flows & walks):
                m.d.sync += opens.eq(row == depth - 2)
            with m.If(flows & walks):
                m.d.sync += row.eq(Mux(opens, 0, row + 1))

        # Of each side's tuples, this block stores its share. A SELECT's constants are stored like a tuple
        # of the other side, at the first place, so that the tuples it is given meet them.
        stores = Signal(2)
        for window, its, store in zip((r, s), here, stores):
            m.d.comb += store.eq(flows & last_row & its & window.turn)
            with m.If(flows & last_row & its):
                window.count(program.last)
            with m.If(store):
                window.advance()
        side = decoder.instruction.operands.select.side
        points = self._rows(m, "r", ("lo",), door, r, row, stores[0], turns & side)
        boxes = self._rows(m, "s", ("lo", "hi"), door, s, row, stores[1], turns & ~side)

        # What is not compared at once waits a cycle, until the message is in the stage behind the door:
        # flushes and instructions that empty the windows, horizons, and what pairs are made of. That is kept
        # apart from what is compared, longer, and read one at a time.
        behind = Signal(message)
        cleared = Signal(init=1)  # at first a block's turn comes at its address
        restarts = Signal()
        noted = Signal(2)
        m.d.sync += [
            cleared.eq(turns & (door.flushes | (executes & decoder.clears))),
            restarts.eq(turns & (door.flushes | executes)),
            noted.eq(door.horizon & (flows & walks).replicate(2)),
        ]
        for window, known in zip((r, s), noted):
            with m.If(known):
                m.d.sync += [window.horizon.valid.eq(1), window.horizon.id.eq(behind.id)]
            with m.If(cleared):
                window.clear(program.position)

        def place(of_s, lap, at_row, at_lane):
            return Cat(at_lane, at_row, lap, of_s)

        lap, *position = (Mux(s_here, getattr(s, name), getattr(r, name)) for name in ("lap", "row", "lane"))
        stored = Signal(2)
        address = Signal(len(place(s_here, lap, *position)), reset_less=True)
        before = Signal.like(address)  # what was there a lap ago
        overwrites = Signal(reset_less=True)
        m.d.sync += [
            stored.eq(stores),
            address.eq(place(s_here, lap, *position)),
            before.eq(place(s_here, (lap - 1)[: len(lap)], *position)),
            overwrites.eq(Mux(s_here, s.full, r.full)),
        ]
        kept = {}
        for name, stored_here in (("id", stored.any()), ("lo", stored.any()), ("hi", stored[1])):
            places = address[:-1] if name == "hi" else address  # S tuples alone have it
            kept[name] = m.submodules[name] = memory.Memory(
                shape=message[name].shape, depth=1 << len(places), init=[], attrs=DISTRIBUTED
            )
            write = kept[name].write_port()
            m.d.comb += [write.addr.eq(places), write.data.eq(behind[name]), write.en.eq(stored_here)]
        oldest = kept["id"].read_port(domain="comb")
        met = {name: memory_of.read_port(domain="comb") for name, memory_of in kept.items()}

        # What is overwritten leaves its window.
        m.d.comb += oldest.addr.eq(before)
        evicted = Signal(data.StructLayout({"valid": 1, "of_s": 1, "id": ID_WIDTH}))
        m.d.sync += [
            evicted.valid.eq(stored.any() & overwrites),
            evicted.of_s.eq(stored[1]),
            evicted.id.eq(oldest.data),
        ]
        horizon = Mux(evicted.of_s, s.horizon.as_value(), r.horizon.as_value())
        horizon = data.View(HORIZON_LAYOUT, horizon)
        live = horizon.valid & ((evicted.id - horizon.id)[:ID_WIDTH].as_signed() >= 0)
        lost = Signal()
        m.d.sync += lost.eq(evicted.valid & (live | Mux(evicted.of_s, program.strict_s, program.strict_r)))

        # Stage 2: the outcome of every comparison. Rows that are read from RAM wait for it in a stage before.
        is_r = now.kind == Kind.R
        full, lap = Mux(is_r, s.full, r.full), Mux(is_r, s.lap, r.lap)
        written = [Mux(is_r, s.written(row, lane), r.written(row, lane)) for lane in range(lanes)]
        carried = {
            "message": message,
            "joins": 1,
            "row": row.shape(),
            "laps": data.ArrayLayout(r.lap.shape(), lanes),  # in which the tuples met were stored
        }
        compared = data.StructLayout(
            carried | {"filters": 1, "last": 1, "certain": 1, "valid": lanes, "against_s": 1}
        )
        first = Signal(compared, reset_less=depth > 1)
        second = Signal(compared, reset_less=True)
        m.d.comb += behind.eq((second if depth == 1 else first).message)
        asks = [
            first.message.eq(now),
            first.last.eq(last_row | waits),
            first.joins.eq(probes),
            first.filters.eq(door.filtered),
            first.certain.eq(door.filtered & door.certain),
            first.against_s.eq(door.against_s),
            first.row.eq(row),
            *(first.laps[lane].eq(lap - ~written[lane]) for lane in range(lanes)),
            first.valid.eq(Mux(probes, Cat(written) | full.replicate(lanes), door.filtered)),
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
            m.d.sync += [stages.eq(Cat(walks | (turns & ~executes), stages)), second.eq(first)]
            for lane in range(lanes):
                for k in range(count):
                    # The tuple is a point and meets boxes, or the other way round. One chain tells whether
                    # the one met lies above the tuple, or if it is the point, not below it.
                    own, box, point = first.message, boxes[lane], points[lane].lo[k]
                    other = Mux(first.against_s, box.lo[k], point)
                    above = Cat(~first.against_s, other) >= Cat(Const(1), own.lo[k])
                    for name, holds in zip(
                        COMPARISONS,
                        (
                            above ^ first.against_s,
                            Mux(first.against_s, own.lo[k] <= box.hi[k], point <= own.hi[k]),
                            other == own.lo[k],
                        ),
                    ):
                        m.d.sync += outcomes[lane][k][name].eq(holds)

        # Stage 3: the tuples met that make a pair.
        decided = carried | {"derives": 1, "forwards": 1}
        third = Signal(data.StructLayout(decided | {"mask": lanes}), reset_less=True)
        chosen = Cat(self._predicate(outcomes[lane], program) for lane in range(lanes))
        with m.If(go):
            m.d.sync += [
                *(third[name].eq(second[name]) for name in carried),
                third.message.aimed.eq(aimed(second.message.kind, second.message.id, self.address + 1)),
                third.derives.eq(second.filters | program.composing),  # what was met becomes a message
                third.forwards.eq(second.last & ~(second.filters & ~program.keep)),
                third.mask.eq(second.valid & (chosen | second.certain.replicate(lanes))),
            ]

        # Stage 4: these one after another; then the message itself. What comes while it waits is spared. What
        # is to be done is known when its cycle begins; to find the first of several lanes is a stage's work.
        step_layout = data.StructLayout(
            decided
            | {
                "rest": lanes,
                "met_at": len(address),
                "was_r": 1,
                # Of what goes downstream: whether it is made of the one met, and a tuple of two; and of each
                # dimension whether it is a value of the one met, an upper bound, or dropped.
                "made": 1,
                "composite": 1,
                **dict.fromkeys(("of_met", "upper", "dropped"), count),
            }
        )
        plan_layout = data.StructLayout(
            {
                "some": 1,  # one that was met is put out, not the message alone
                "to_queue": 1,
                "to_chain": 1,
                "ends": 1,  # nothing is left to do after it
            }
        )

        def steps(entry, mask, into, plan, name: str) -> list:
            """Plans to put out the first of `mask`; without any, the message."""
            lane, rest = lowest(m, mask, name)
            some, more = mask.any(), rest.any()
            made, is_r = some & entry.derives, entry.message.kind == Kind.R
            composite = made & entry.joins
            its_lap = Const(0)
            for k in range(lanes):
                its_lap |= Mux(mask[k] & ~rest[k], entry.laps[k], 0)
            return [
                into.rest.eq(rest),
                into.met_at.eq(place(is_r, its_lap, entry.row, lane)),
                *(into.was_r.eq(is_r), into.made.eq(made), into.composite.eq(composite)),
                into.of_met.eq(
                    Cat(composite & (part != Part.LATER) & ((part == Part.R) ^ is_r) for part in parts)
                ),
                into.upper.eq(Cat(composite & (part == Part.S_HI) for part in parts)),
                into.dropped.eq(program.dropped & made.replicate(count)),
                plan.some.eq(some),
                plan.to_queue.eq(some & entry.joins),
                plan.to_chain.eq(Mux(some & (more | entry.derives), entry.derives, entry.forwards)),
                plan.ends.eq(~some | ~(more | (entry.derives & entry.forwards))),
            ]

        parts = [program.parts[k] for k in range(count)]
        ordered = Signal(step_layout, reset_less=lanes > 1)
        ordered_plan = Signal(plan_layout, reset_less=lanes > 1)
        spare = Signal(step_layout, reset_less=True)
        spare_plan = Signal(plan_layout, reset_less=True)
        fourth = Signal(step_layout, reset_less=True)
        plan = Signal(plan_layout, init={"ends": 1})  # while there is nothing to put out, that is all
        orders = [
            *(ordered[name].eq(third[name]) for name in decided),
            *steps(third, third.mask, ordered, ordered_plan, "first"),
        ]
        if lanes == 1:
            m.d.comb += orders
        else:
            with m.If(go):
                m.d.sync += orders
        with m.If(~spared):
            m.d.sync += [spare.eq(ordered), spare_plan.eq(ordered_plan)]
        done = Signal()  # the step of this cycle, which is known late
        following = Signal(step_layout)
        following_plan = Signal(plan_layout)
        m.d.comb += following.eq(Mux(spared, spare, ordered))
        with m.If(~plan.ends):
            m.d.comb += [
                following.eq(fourth),
                *steps(fourth, fourth.rest, following, following_plan, "next"),
            ]
        with m.Elif(~flows):
            m.d.comb += following_plan.eq(spare_plan)
        with m.Elif(stages[-1]):
            m.d.comb += following_plan.eq(ordered_plan)
        with m.Else():
            m.d.comb += following_plan.ends.eq(1)
        with m.If(done):
            m.d.sync += [fourth.eq(following), plan.eq(following_plan)]
        ends = done & plan.ends
        more = spared | stages[-1]
        m.d.sync += [
            putting_out.eq(Mux(ends, more, putting_out)),
            spared.eq(~ends & more),
            flows.eq(ends | ~more),
        ]

        queued_layout = data.StructLayout(
            {
                "is_composite": 1,
                "query": QUERY_WIDTH,
                "number": COMPOSITE_ID_LAYOUT["number"].shape,
                "r_id": ID_WIDTH,
                "s_id": ID_WIDTH,
            }
        )
        # One of two places would not take a pair in every cycle.
        m.submodules.queue = queue = ShortQueue(queued_layout, max(p.buffer, 3))
        found, room = queue.input.payload, queue.input.ready
        front, result = queue.output.payload, self.results.payload
        m.d.comb += [
            self.results.valid.eq(queue.output.valid),
            queue.output.ready.eq(self.results.ready),
            result.is_composite.eq(front.is_composite),
            result.query.eq(front.query),
            result.composite.id.eq(Cat(front.number, self.address)),
            result.composite.r_id.eq(front.r_id),
            result.composite.s_id.eq(front.s_id),
        ]

        number = Signal(COMPOSITE_ID_LAYOUT["number"].shape)
        m.d.comb += [
            *(port.addr.eq(fourth.met_at) for port in met.values()),
            found.is_composite.eq(program.composing),
            found.query.eq(program.query),
            found.number.eq(number),
            found.r_id.eq(Mux(fourth.was_r, fourth.message.id, met["id"].data)),
            found.s_id.eq(Mux(fourth.was_r, met["id"].data, fourth.message.id)),
            done.eq((room | ~plan.to_queue) & (self.downstream.ready | ~plan.to_chain)),
            queue.input.valid.eq(plan.to_queue & (self.downstream.ready | ~plan.to_chain)),
            self.found.eq(plan.to_queue & done),
            self.downstream.valid.eq(plan.to_chain & (room | ~plan.to_queue)),
        ]
        with m.If(restarts):
            m.d.sync += number.eq(0)
        with m.Elif(fourth.composite & room & self.downstream.ready):
            m.d.sync += number.eq(number + 1)

        # What goes downstream: the message, or what is made of it and of what it met.
        out, own = self.downstream.payload, fourth.message
        m.d.comb += [
            out.kind.eq(Mux(fourth.composite, Kind.R, own.kind)),
            out.aimed.eq(own.aimed),
            out.channel.eq(Mux(fourth.made, program.target, own.channel)),
            out.id.eq(Mux(fourth.composite, Cat(number, self.address), own.id)),
        ]
        lows = [
            Mux(
                fourth.of_met[k],
                Mux(fourth.upper[k], met["hi"].data[k], met["lo"].data[k]),
                Mux(fourth.upper[k], own.hi[k], own.lo[k]),
            )
            for k in range(count)
        ]
        for k in range(count):
            route = Mux(fourth.made, program.routes[k], Const(k, len(program.routes[k])))
            for bound, values in ((out.lo[k], lows), (out.hi[k], own.hi)):
                m.d.comb += bound.eq(Mux(fourth.dropped[k], 0, Array(values)[route]))

        tally = Signal(self.tally_out.shape())
        m.d.comb += self.tally_out.eq(tally)
        m.d.sync += [
            tally.scans.eq(self.tally_in.scans + (flows & probes)),
            tally.lost.eq(self.tally_in.lost + lost),
            tally.stalled.eq(self.tally_in.stalled | (plan.some & ~(done & plan.ends))),
        ]
        return m

    def _rows(self, m: Module, name: str, bounds, door, window: Window, row: Value, store: Value, constants):
        """A side's tuples as they are compared: one per lane, of row `row`."""
        p, now = self._p, door.message
        depth = p.segment // p.lanes
        shape = data.StructLayout({bound: now[bound].shape() for bound in bounds})
        shown = []
        for lane in range(p.lanes):
            writes = store & (window.lane == lane)
            if lane == 0:
                writes |= constants & door.selects
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
                    write.addr.eq(Mux(door.selects, 0, window.row)),
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
