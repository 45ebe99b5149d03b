"""A region of a SplitJoin core: one stream's share of the window, which it stores and the other is shown.

::

              +-------------------------------------------------------------+
     input -->| [ skid ] -> address -> compare -> decide [spare] -> put out |--> output: pairs and stars
              |                |   [ window ]                  [ ids ] [ queue ]
              +-------------------------------------------------------------+

For each tuple a region either stores, or processes: a tuple of its own stream is stored if it is its turn,
and one of the other stream meets what is stored. Regions share nothing but their input.
"""

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .lowest import at_least, number_of
from .parameters import Parameters
from .punctuation import What, punctuated_layout
from .queue import ShortQueue
from .skid import Skid
from .socket import ID_WIDTH, Kind, box_layout, point_layout, tuple_layout
from .window_memory import WindowMemory, ram_style


def slot_width(parameters: Parameters) -> int:
    """Bits that tell where the earlier tuple of a pair is stored, where pairs are gathered by that."""
    if parameters.architecture != "scalejoin":
        return 0
    lanes, rows = parameters.lanes, parameters.segment // parameters.lanes
    return (lanes - 1).bit_length() + (rows - 1).bit_length() + 1


class Region(wiring.Component):
    """The part of the window of R, or of S (`of_s`), that the core at `position` keeps.

    All regions of a stream see the same tuples, and each stores one in `cores` of them, by count. So all of
    them are at the same place of their windows; only whether this core's turn has been differs.

    A tuple of the other stream meets a row of `lanes` tuples per cycle, from the oldest row to the newest.
    The row in which the next tuple is stored holds both. It comes last; where the order within a tuple
    matters it comes first with the oldest, and again with the newest. Rows that are behind the horizon are
    left out, unless there are stars within a tuple, because all regions must star alike: a tuple that comes
    behind a horizon waits until they are. Overwriting is the only expiry that changes a window.
    An error carries the id of its word.

    In ScaleJoin pairs carry the `slot` of the stored tuple. Those of a tuple rise from the oldest slot to the
    newest, which are the same in all regions of a stream; of tuples in one slot the lower core's is older.

    `found`, `scans`, `lost` and `stalled` come a cycle late, and so does `compared`, the stored tuples met in
    a cycle, which is there with `counted`.

    Latency: `LATENCY` cycles from `input` to a pair in the first row, or a mark, on `output`.
    Throughput: a word per cycle; but a tuple of the other stream takes `cycles(parameters)` in a full window,
    and each pair or star after the first of a row one more, if `buffer` is at least 3: a queue of two takes
    two results in three cycles. Behind a horizon it waits for up to 6, and for 3 more for each row that
    expires.
    """

    LATENCY = 7

    def __init__(self, parameters: Parameters, of_s: bool, counted: bool = False):
        self._p = parameters
        self._of_s = of_s
        compared = {"compared": Out(range(parameters.lanes + 1))} if counted else {}
        super().__init__(
            compared
            | {
                "input": In(stream.Signature(tuple_layout(parameters.dims))),
                "output": Out(stream.Signature(punctuated_layout(slot_width(parameters)))),
                "frees": Out(1),  # `input` is ready in the next cycle
                "position": In(range(parameters.cores)),
                "dead": In(1),  # what is stored here is found no more
                "found": Out(1),  # a pair is put out
                "scans": Out(1),  # a row is met
                "lost": Out(1),  # a live tuple was overwritten
                "stalled": Out(1),  # what was found holds the region up
            }
        )

    @staticmethod
    def cycles(parameters: Parameters) -> int:
        """How many rows a tuple meets in a full window of which nothing has expired."""
        return parameters.segment // parameters.lanes + parameters.order.inner

    def elaborate(self, platform):
        m = Module()
        p = self._p
        lanes, depth, ordering = p.lanes, p.segment // p.lanes, p.order
        starred = p.ordering is not None and ordering.inner  # also within a tuple
        # What a word is for is known when it comes in.
        uses = {
            "own": Kind.S if self._of_s else Kind.R,
            "other": Kind.R if self._of_s else Kind.S,
            "horizon": Kind.HORIZON_S if self._of_s else Kind.HORIZON_R,
            "flush": Kind.FLUSH,
        }
        decoded = data.StructLayout({"word": self.input.payload.shape()} | dict.fromkeys(uses, 1))
        m.submodules.skid = skid = Skid(decoded)
        coming = skid.input.payload
        m.d.comb += [
            skid.input.valid.eq(self.input.valid),
            self.input.ready.eq(skid.input.ready),
            self.frees.eq(skid.frees),
            coming.word.eq(self.input.payload),
            *(coming[name].eq(self.input.payload.kind == kind) for name, kind in uses.items()),
        ]
        stored_shape = (box_layout if self._of_s else point_layout)(p.dims)

        # Stage 1: a word at the door, and the row that it meets.
        now = skid.output.payload.word
        own, other, at_horizon, flush = (skid.output.payload[name] for name in uses)
        go = Signal(init=1)  # stages 1 to 3 move on
        moves = Signal()
        last_row = Signal()
        scanning = Signal()  # not the first row of a tuple
        settled = Signal(init=1)  # no row is behind the last horizon
        waits = other & ~scanning & ~settled
        comes_in = skid.output.valid & go  # and moves, unless it waits for rows to expire
        m.d.comb += [
            moves.eq(comes_in & ~waits),
            skid.output.ready.eq(go & ~waits & (last_row | ~other)),
        ]
        m.d.sync += self.scans.eq(moves & other)
        valid = Signal(lanes)  # stored tuples in the row that is met
        if "compared" in self.signature.members:
            m.d.sync += self.compared.eq(Mux(moves & other, sum(valid), 0))

        # The place of the next tuple, and whose turn it is. Lanes of its row before it have newer tuples.
        row, lane, turn = Signal(range(depth)), Signal(range(lanes)), Signal(range(p.cores))
        row_after = Signal(range(depth), init=1 % depth)
        full = Signal()  # every other place has a tuple
        stored = Signal()  # this core's turn at this place has been
        stores = own & (turn == self.position)
        moves_on = Signal()  # to the next row
        with m.If(comes_in & own):
            m.d.sync += turn.eq(turn + 1)
            with m.If(stores):
                m.d.sync += stored.eq(1)
            with m.If(turn == p.cores - 1):
                m.d.sync += [turn.eq(0), stored.eq(0), lane.eq(lane + 1)]
                with m.If(lane == lanes - 1):
                    m.d.comb += moves_on.eq(1)
                    m.d.sync += [lane.eq(0), row.eq(row_after), row_after.eq(_after(row_after, depth))]
                    with m.If(row == depth - 1):
                        m.d.sync += full.eq(1)
        with m.If(comes_in & flush):
            m.d.sync += [signal.eq(signal.init) for signal in (row, row_after, lane, turn, full, stored)]

        # Rows, in order. Whether one is the last is known before it is met.
        newer = Cat((lane > k) | ((lane == k) & stored) for k in range(lanes))
        met = Signal(range(depth))
        next_row = Signal.like(met)
        next_last = Signal()
        with m.If(moves & other):
            m.d.sync += [
                scanning.eq(~last_row),
                next_row.eq(_after(met, depth)),
                next_last.eq(_after(met, depth) == row),
            ]
        first = Signal(range(depth))
        m.d.comb += met.eq(Mux(scanning, next_row, first))
        oldest_row = Signal(range(depth))
        single = Signal(init=1)  # it is the row in which the next tuple is stored
        older = Signal()  # lanes of the row in which the next tuple is stored have tuples that are met first
        if ordering.inner:
            oldest = older & ~scanning
            m.d.comb += [
                first.eq(Mux(older, row, oldest_row)),
                last_row.eq(Mux(scanning, next_last, single & ~older)),
                valid.eq(Mux(last_row, newer, Mux(oldest, ~newer, (1 << lanes) - 1))),
            ]
        else:
            m.d.comb += [
                first.eq(oldest_row),
                last_row.eq(Mux(scanning, next_last, single)),
                valid.eq(newer | (full | ~last_row).replicate(lanes)),
            ]

        # Stars: after so many tuples of both streams, or comparisons.
        is_tuple = own | other
        star = Const(ordering.unit != "none")
        if ordering.unit == "tuples" and ordering.every > 1:
            number = Signal(range(ordering.every))
            star = number == ordering.every - 1
            with m.If(moves & (own | last_row) & is_tuple):
                m.d.sync += number.eq(Mux(star, 0, number + 1))
            with m.If(comes_in & flush):
                m.d.sync += number.eq(0)
        token = Signal(What)  # what comes out after the pairs; a PAIR stands for nothing
        with m.Switch(now.kind):
            with m.Case(Kind.R, Kind.S):
                m.d.comb += token.eq(Mux(star & (own | last_row), What.STAR, What.PAIR))
            with m.Case(Kind.MARK):
                m.d.comb += token.eq(What.MARK)
            with m.Case(Kind.FLUSH, Kind.HORIZON_R, Kind.HORIZON_S):
                m.d.comb += token.eq(What.PAIR)
            with m.Default():
                m.d.comb += token.eq(What.ERROR)

        # What goes from stage to stage. `ends` are the lanes after which there is a star within the tuple.
        operation = data.StructLayout(
            {"id": ID_WIDTH, "stores": 1, "evicts": 1, "token": What, "newer": 1}
            | {"row": range(depth), "lane": range(lanes), "ends": lanes if starred else 0}
            | {"from_s": 1, "horizon": 1, "flush": 1}
        )
        stages = [Signal(operation, name=f"stage_{k}", reset_less=True) for k in (2, 3)]
        busy = Signal(len(stages))
        meets = Signal(lanes, reset_less=True)
        with m.If(go):
            m.d.sync += [
                busy.eq(Cat(moves, busy[:-1])),
                meets.eq(valid & other.replicate(lanes)),
                stages[0].from_s.eq(own if self._of_s else other),
                stages[0].horizon.eq(at_horizon),
                stages[0].flush.eq(flush),
                stages[0].id.eq(now.id),
                stages[0].stores.eq(stores),
                stages[0].evicts.eq(full),
                stages[0].token.eq(token),
                stages[0].row.eq(Mux(own, row, met)),
                stages[0].lane.eq(lane),
                # Rows from the next one's on are older than those from the first on.
                stages[0].newer.eq((met < row) | last_row),
                stages[1].eq(stages[0]),
            ]
            if starred:
                # The newest tuples end with the star of the tuple that meets them.
                passed_by = Cat(Mux(last_row, lane > k, ~oldest | (lane <= k)) for k in range(lanes))
                m.d.sync += stages[0].ends.eq(Mux(other, self._boundaries(met) & passed_by, 0))

        # Stage 2: comparisons, a register for each test. Stage 3: those that make a pair.
        m.submodules.window = window = WindowMemory(stored_shape, lanes, depth)
        stored_dims, probe_dims = now.dims.point, now.dims.box
        if self._of_s:
            stored_dims, probe_dims = probe_dims, stored_dims
        probe = Signal(probe_dims.shape(), reset_less=True)
        m.d.comb += [
            window.go.eq(go),
            window.write.eq(comes_in & stores),
            window.row.eq(row),
            window.lane.eq(lane),
            window.tuple.eq(stored_dims),
            window.show.eq(met),
        ]
        matches = Signal(lanes)
        with m.If(go):
            m.d.sync += probe.eq(probe_dims)
        for k, shown in enumerate(window.rows):
            point, box = (probe, shown) if self._of_s else (shown, probe)
            tests = [dim.contains(point[f"d{d}"], box[f"d{d}"]) for d, dim in enumerate(p.dims)]
            passed = Signal(1 + len(tests), name=f"passed_{k}", reset_less=True)
            with m.If(go):
                m.d.sync += passed.eq(Cat(meets[k], tests))
            m.d.comb += matches[k].eq(passed.all() & ~self.dead)

        # Stage 4: pairs and stars, lane by lane, and the token. If a word has to wait, the stages before it
        # do so a cycle later: there is a place for what comes meanwhile.
        front = data.StructLayout({"operation": operation, "mask": lanes, "several": 1})
        arriving, source, spare = Signal(front), Signal(front), Signal(front, reset_less=True)
        last, puts_out = Signal(operation, reset_less=True), Signal()
        mask = Signal(lanes)
        ends = Signal(lanes)
        left = Signal(lanes)
        lowest = Signal(lanes)
        rest = mask & ~lowest
        rest_of_ends = ends & ~(lowest & ~mask)
        some = Signal()
        several = Signal()  # more comes out of stage 4 than fits a cycle
        is_pair = Signal()
        room = Signal()  # stage 5 takes something
        free = Signal()  # for another word
        m.d.comb += [
            left.eq(mask | ends),
            *(lowest[k].eq(left[k] & ~left[:k].any()) for k in range(lanes)),
            some.eq(left.any()),
            is_pair.eq((mask & lowest).any() if starred else some),
            arriving.operation.eq(stages[1]),
            arriving.mask.eq(matches),
            arriving.several.eq(at_least(2, Cat(matches, stages[1].ends, stages[1].token != What.PAIR))),
            source.eq(Mux(go, arriving.as_value(), spare.as_value())),
            free.eq(~puts_out | (room & ~several)),
        ]
        comes = busy[1] | ~go
        m.d.sync += [
            self.found.eq(room & is_pair),
            self.stalled.eq(some & ~free),
            go.eq(free | ~comes),
        ]
        with m.If(go):
            m.d.sync += spare.eq(arriving)
        with m.If(free):
            m.d.sync += [
                puts_out.eq(comes),
                last.eq(source.operation),
                mask.eq(Mux(comes, source.mask, 0)),
                several.eq(comes & source.several),
            ]
            if starred:
                m.d.sync += ends.eq(Mux(comes, source.operation.ends, 0))
        with m.Elif(room):
            # One of what is there goes, whichever it is.
            there = Cat(mask, ends if starred else (), last.token != What.PAIR)
            m.d.sync += [mask.eq(rest), several.eq(at_least(3, there))]
            if starred:
                m.d.sync += ends.eq(rest_of_ends)

        # Ids are written and read here, in the order of the words.
        at = Signal(range(lanes))
        m.d.comb += at.eq(number_of(lowest))
        finishes = puts_out & free
        evicts = finishes & last.stores & last.evicts
        address = Cat(Mux(last.stores, last.lane, at), last.row)
        m.submodules.ids = ids = memory.Memory(
            shape=ID_WIDTH, depth=1 << len(address), init=[], attrs=ram_style(ID_WIDTH, 1 << len(address))
        )
        write, read = ids.write_port(), ids.read_port()
        m.d.comb += [
            write.addr.eq(address),
            write.data.eq(last.id),
            write.en.eq(finishes & last.stores),
            read.addr.eq(address),
            read.en.eq(room),
        ]
        horizon = Signal(ID_WIDTH, reset_less=True)
        has_horizon = Signal()
        behind = (read.data - horizon)[:ID_WIDTH].as_signed() < 0
        evicted = Signal()
        m.d.sync += evicted.eq(evicts)
        m.d.sync += self.lost.eq(evicted & has_horizon & ~behind)
        with m.If(finishes & (last.horizon | last.flush)):
            m.d.sync += [has_horizon.eq(last.horizon), horizon.eq(last.id)]

        # Rows whose newest tuple is behind the horizon expire, while nothing else needs the ids. Those of
        # tuples that are yet to be stored are not known.
        if starred or depth == 1:
            m.d.comb += older.eq(full)
        else:
            looking = Signal()
            held = [*zip(busy, stages), (puts_out, last), (~go, spare.operation)]
            unknown = Cat(there & operation.stores for there, operation in held).any()
            expires = Signal()  # a comparison of ids takes a cycle of its own
            stays = Signal()
            # Whether there is room is known late, and the address does not wait for it.
            needed = is_pair | (puts_out & last.stores)
            looks = room & ~needed & ~unknown & ~looking & ~expires & ~single
            with m.If(~needed):
                m.d.comb += read.addr.eq(Cat(Const(lanes - 1, len(lane)), oldest_row))
            # Settled: the oldest row was looked at, or there is none, and no other horizon is coming.
            horizon_coming = Cat(there & operation.horizon for there, operation in held).any()
            m.d.sync += [
                looking.eq(looks & ~moves_on),
                expires.eq(looking & ~moves_on & has_horizon & behind),
                stays.eq(looking & ~horizon_coming & ~(has_horizon & behind)),
            ]
            with m.If((stays | single) & ~horizon_coming):
                m.d.sync += settled.eq(1)
            with m.If(comes_in & at_horizon):
                m.d.sync += settled.eq(0)
            reaches_oldest = moves_on & (oldest_row == row_after)
            with m.If(expires | reaches_oldest):
                m.d.sync += [
                    oldest_row.eq(_after(oldest_row, depth)),
                    single.eq(_after(oldest_row, depth) == row),
                ]
            if ordering.inner:
                with m.If(expires | moves_on):
                    m.d.sync += older.eq(reaches_oldest & ~expires)
            with m.If(comes_in & flush):
                m.d.sync += [oldest_row.eq(0), looking.eq(0), expires.eq(0), settled.eq(1)]
                if ordering.inner:
                    m.d.sync += older.eq(0)
        if depth > 1:
            with m.If(moves_on):
                m.d.sync += single.eq(0)
            with m.If(comes_in & flush):
                m.d.sync += single.eq(1)

        # Stage 5: what is found, with its ids.
        found_shape = self.output.payload.shape()
        m.submodules.queue = queue = ShortQueue(found_shape, p.buffer)
        wiring.connect(m, queue.output, wiring.flipped(self.output))
        found = queue.input.payload
        what = Signal(What, reset_less=True)
        from_s = Signal(reset_less=True)
        probe_id = Signal(ID_WIDTH, reset_less=True)
        slot = Signal(found_shape["slot"].width, reset_less=True)
        waiting = Signal()
        m.d.comb += room.eq(~waiting | queue.input.ready)
        with m.If(room):
            m.d.sync += [
                waiting.eq(puts_out & (some | (last.token != What.PAIR))),
                what.eq(Mux(some, Mux(is_pair, What.PAIR, What.INNER), last.token)),
                from_s.eq(last.from_s),
                probe_id.eq(last.id),
                slot.eq(Cat(at, last.row, last.newer)),
            ]
        pair_ids = (probe_id, read.data) if self._of_s else (read.data, probe_id)
        m.d.comb += [
            queue.input.valid.eq(waiting),
            found.what.eq(what),
            found.from_s.eq(from_s),
            found.slot.eq(slot),
        ]
        with m.If(what == What.PAIR):
            m.d.comb += [found.body.pair.r_id.eq(pair_ids[0]), found.body.pair.s_id.eq(pair_ids[1])]
        with m.Else():
            m.d.comb += found.body.id.eq(probe_id)
        return m

    def _boundaries(self, row: Value) -> Value:
        """The lanes of a row after which as many comparisons as make a star are done."""
        p = self._p
        every = p.ordering.every
        ends = [(slot + 1) % every == 0 or slot + 1 == p.segment for slot in range(p.segment)]
        table = Const(sum(end << slot for slot, end in enumerate(ends)), p.segment)
        return table.word_select(row, p.lanes)


def _after(row: Value, depth: int) -> Value:
    """The row after another, the first after the last."""
    return Mux(row == depth - 1, 0, row + 1)[: len(row)]
