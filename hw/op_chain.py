"""A chain of OP-Blocks behind the socket: queries by instructions, with no new bitstream.

::

                         results
                            ^
                      [ gathering tree ] <------ marks, errors ---+
                       ^      ^       ^                           |
                    +--|---+--|---+---|--+                        |
      tuples -> head| block| block| block|tail -------------------+
                    |  0   |  1   |  n-1 |
                    +------+------+------+

The idea is FQP's (M. Najafi et al.). Tuples, tokens and instructions walk the chain in one direction, so
that all blocks see them in one order. A tuple meets the opposite windows of all join cores of its query and
is stored by one of them, in turn; so two tuples meet once, where the earlier one is stored. Blocks talk to
their neighbours only, through registers.
"""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, wiring

from .gather import Gather
from .instruction import CHANNEL_WIDTH, INSTRUCTION_LAYOUT, Opcode
from .op_block import FOUND_LAYOUT, OpBlock, aimed
from .parameters import Parameters
from .socket import RESULT_LAYOUT, Fault, Kind, Socket, Tag
from .stamp import Stamp


class OpChain(wiring.Component):
    """The chain behind the socket: `cores` blocks, each with windows of `segment` tuples.

    With `depth = segment / lanes`,

    - throughput is one tuple every `depth` cycles, any other word takes one; a block that finds several pairs
      at once puts them out one per cycle, and while it does, tuples wait;
    - `latency(parameters, block)` cycles pass from a tuple's transfer on `tuples` to a pair on `results`, if
      the two meet in the first row of that block, and one more for each level of the tree in which the turn
      was another block's;
    - a flush or an instruction takes one cycle, and at most `OpBlock.latency(parameters)` more if tuples are
      right around it;
    - a mark comes out `mark_latency(parameters)` cycles after its transfer when the chain is idle.

    `steps` counts the rows that tuples met, divided by `cores`: a block that selects, projects or lets pass
    makes none. `stalls` counts the cycles in which some block waited because of what it had found.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        super().__init__(Socket(parameters.dims, parameters.cores))

    @staticmethod
    def latency(parameters: Parameters, block: int = 0) -> int:
        """Cycles from a tuple's transfer to its pair with one in the first row of `block`, where all join."""
        depth = parameters.segment // parameters.lanes
        inside = OpBlock.latency(parameters)
        return inside + 2 + (inside - 1 + depth) * block + Gather.levels(parameters.cores)

    @staticmethod
    def flush_cycles(parameters: Parameters) -> int:
        """Cycles from a flush's transfer until the next word is taken."""
        return 1

    @staticmethod
    def mark_latency(parameters: Parameters) -> int:
        """Cycles from the transfer of a mark until it is on `results`, through a chain with nothing in it."""
        return OpBlock.latency(parameters) * parameters.cores + 2 + OpChain._quiet(parameters)

    @staticmethod
    def _quiet(parameters: Parameters) -> int:
        """For how many cycles the tree must have been empty, and be so once more, before a record comes out.

        So that it waits for the blocks' queues as well: what is queued is in the tree three cycles later (one
        for the turn to pass to its block), the last of it two cycles after the record began to wait; and
        while anything is queued, the tree is never empty for longer than a turn takes to pass.
        """
        return 2 + Gather.busy_lag(parameters.cores)

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        blocks = [Stamp(OpBlock, p) for _ in range(p.cores)]
        m.submodules.gather = gather = Gather(FOUND_LAYOUT, p.cores)
        for k, block in enumerate(blocks):
            m.submodules[f"block_{k}"] = block
            m.d.comb += block.address.eq(k)
            wiring.connect(m, block.results, gather.inputs[k])
            if k > 0:
                wiring.connect(m, blocks[k - 1].downstream, block.upstream)
                m.d.comb += block.tally_in.eq(blocks[k - 1].tally_out)
        m.d.comb += self.activity.eq(Cat(block.found for block in blocks))

        # The head: words become messages on the channel that was entered last.
        word = self.tuples.payload
        first = blocks[0].upstream
        channel = Signal(CHANNEL_WIDTH)
        instruction = data.View(INSTRUCTION_LAYOUT, word.id[: INSTRUCTION_LAYOUT.size])
        enters = (word.kind == Kind.INSTRUCTION) & (instruction.opcode == Opcode.ENTER)
        take = self.tuples.valid & self.tuples.ready
        m.d.comb += [
            self.tuples.ready.eq(first.ready),
            first.valid.eq(self.tuples.valid & ~enters),
            first.payload.kind.eq(word.kind),
            first.payload.aimed.eq(aimed(word.kind, word.id, 0)),
            first.payload.channel.eq(channel),
            first.payload.id.eq(word.id),
        ]
        for k in range(len(p.dims)):
            box, point = word.dims.box[f"d{k}"], word.dims.point[f"d{k}"]
            m.d.comb += [
                first.payload.lo[k].eq(Mux(word.kind == Kind.R, point, box.lo)),
                first.payload.hi[k].eq(box.hi),
            ]
        with m.If(take & enters):
            m.d.sync += channel.eq(instruction.operands.enter.channel)

        # The tail: what is left of a mark or of an instruction that nobody took becomes a record, which
        # waits until no pair is in the tree. While it does, nothing passes, so that the tree does empty.
        end = blocks[-1].downstream
        record = Signal(RESULT_LAYOUT, reset_less=True)
        free = Signal(init=1)  # none waits
        # For how many cycles the tree has said that it is empty, which it says late.
        quiet = Signal(range(self._quiet(p) + 1))
        speaks = Signal()  # the record is on `results`, and what is found meanwhile waits
        refused = data.View(INSTRUCTION_LAYOUT, end.payload.id[: INSTRUCTION_LAYOUT.size])
        clear = ~gather.busy & ~gather.output.valid
        m.d.comb += end.ready.eq(free)
        with m.If(free | ~clear):
            m.d.sync += quiet.eq(0)
        with m.Elif(quiet != self._quiet(p)):
            m.d.sync += quiet.eq(quiet + 1)
        m.d.sync += speaks.eq(~free & clear & (quiet == self._quiet(p)))
        with m.If(free):
            m.d.sync += [free.eq(~end.valid), record.tag.eq(Tag.ERROR), record.query.eq(0)]
            error = record.body.error
            with m.Switch(end.payload.kind):
                with m.Case(Kind.R, Kind.S, Kind.FLUSH, Kind.HORIZON_R, Kind.HORIZON_S):
                    m.d.sync += free.eq(1)
                with m.Case(Kind.MARK):
                    m.d.sync += [record.tag.eq(Tag.MARK), record.body.mark.id.eq(end.payload.id)]
                with m.Case(Kind.INSTRUCTION):
                    here = refused.block < p.cores
                    m.d.sync += [
                        error.fault.eq(Mux(here, Fault.ILLEGAL_INSTRUCTION, Fault.NO_SUCH_BLOCK)),
                        error.value.eq(end.payload.id),
                    ]
                with m.Default():
                    m.d.sync += [error.fault.eq(Fault.UNKNOWN_KIND), error.value.eq(end.payload.kind)]
        with m.If(speaks):
            m.d.sync += [free.eq(self.results.ready), speaks.eq(~self.results.ready)]

        found = gather.output.payload
        result = self.results.payload
        m.d.comb += [
            gather.output.ready.eq(self.results.ready & ~speaks),
            self.results.valid.eq(gather.output.valid | speaks),
        ]
        with m.If(speaks):
            m.d.comb += result.eq(record)
        with m.Else():
            m.d.comb += result.query.eq(found.query)
            with m.If(found.is_composite):
                m.d.comb += [result.tag.eq(Tag.COMPOSITE), result.body.composite.eq(found.composite)]
            with m.Else():
                m.d.comb += [
                    result.tag.eq(Tag.PAIR),
                    result.body.pair.r_id.eq(found.composite.r_id),
                    result.body.pair.s_id.eq(found.composite.s_id),
                ]

        counters, tally = self.counters, blocks[-1].tally_out
        with m.If(take & ((word.kind == Kind.R) | (word.kind == Kind.S))):
            m.d.sync += counters.tuples.eq(counters.tuples + 1)
        with m.If(gather.output.valid & gather.output.ready & ~found.is_composite):
            m.d.sync += counters.pairs.eq(counters.pairs + 1)
        scans = Signal(range(2 * p.cores))  # rows met that are not steps yet
        whole = scans >= p.cores
        m.d.sync += [
            scans.eq(scans - Mux(whole, p.cores, 0) + tally.scans),
            counters.steps.eq(counters.steps + whole),
            counters.live_evictions.eq(counters.live_evictions + tally.lost),
            counters.stalls.eq(counters.stalls + tally.stalled),
        ]
        return m
