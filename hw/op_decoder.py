"""The decoder of an OP-Block: instructions in, the program that the block runs out."""

from amaranth import Cat, Module, Signal
from amaranth.hdl import Shape
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from .instruction import BLOCK_WIDTH, CHANNEL_WIDTH, INSTRUCTION_LAYOUT, PRODUCTS, TESTS, Opcode, Part, Role
from .parameters import Parameters
from .socket import QUERY_WIDTH

TERM_LAYOUT = data.StructLayout({"test": range(len(TESTS)), "negated": 1, "within": PRODUCTS})
#: The first instruction of each role, what it makes of the block, and the operands it sets.
ROLES = {
    Opcode.PASS: (Role.PASS, ()),
    Opcode.SELECT: (Role.SELECT, ("side", "target", "keep", "products")),
    Opcode.PROJECT: (Role.PROJECT, ("side", "target", "keep")),
    Opcode.JOIN: (Role.JOIN, ("r_channel", "s_channel", "query", "products", "strict_r", "strict_s")),
}


def program_layout(count: int) -> data.StructLayout:
    """All that instructions set in a block with `count` dimensions."""
    return data.StructLayout(
        {
            "role": Role,
            "side": 1,
            "r_channel": CHANNEL_WIDTH,  # of a SELECT or PROJECT: its channel
            "s_channel": CHANNEL_WIDTH,
            "target": CHANNEL_WIDTH,
            "query": QUERY_WIDTH,
            "keep": 1,
            "composing": 1,
            "strict_r": 1,
            "strict_s": 1,
            "products": PRODUCTS,
            "position": BLOCK_WIDTH,
            "last": BLOCK_WIDTH,
            "terms": data.ArrayLayout(TERM_LAYOUT, count),
            "routes": data.ArrayLayout(Shape.cast(range(count)), count),
            "dropped": count,
            "parts": data.ArrayLayout(Part, count),
        }
    )


class OpDecoder(wiring.Component):
    """Holds a block's program; at first what `hw/instruction.py` says about reset.

    `load` takes note of the instruction that is `coming`. Then it is given as `instruction`, and `run` does
    what it says, if it is `legal` here; `clears` says that this empties the windows.

    Latency: `legal` and `clears` follow `load` in the next cycle, the program follows `run` in the next.
    Throughput: one instruction per cycle.
    """

    def __init__(self, parameters: Parameters):
        self._p = parameters
        super().__init__(
            {
                "address": In(BLOCK_WIDTH),
                "coming": In(INSTRUCTION_LAYOUT),
                "load": In(1),
                "instruction": In(INSTRUCTION_LAYOUT),
                "run": In(1),
                "legal": Out(1),
                "clears": Out(1),
                "program": Out(program_layout(len(parameters.dims))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        count = len(self._p.dims)
        given = Signal()  # a role was given; until then the block's position is its address
        at_first = {"test": TESTS.index(self._p.dims[0].test), "negated": 0, "within": 1}
        program = Signal(
            self.program.shape(),
            init={
                "role": Role.JOIN,
                "products": 1,
                "last": self._p.cores - 1,
                "terms": [at_first] * count,
                "routes": list(range(count)),
            },
        )
        m.d.comb += self.program.eq(program)
        with m.If(~given):
            m.d.comb += self.program.position.eq(self.address)

        # What the block must be to do it. What it is may be the matter of the instruction before.
        able = Signal(len(Role), reset_less=True)
        clears = Signal(reset_less=True)
        m.d.comb += [self.legal.eq(able.bit_select(program.role, 1)), self.clears.eq(clears)]
        coming = self.coming.operands
        needs = {
            **dict.fromkeys(ROLES, (tuple(Role), 1)),
            Opcode.SHARE: ((Role.JOIN,), coming.share.position <= coming.share.last),
            Opcode.COMPOSE: ((Role.JOIN,), 1),
            Opcode.TERM: ((Role.JOIN, Role.SELECT), coming.term.dim < count),
            Opcode.ROUTE: (
                (Role.SELECT, Role.PROJECT, Role.JOIN),
                (coming.route.dim < count) & (coming.route.source < count),
            ),
            Opcode.TAKE: ((Role.JOIN,), coming.take.dim < count),
        }
        with m.If(self.load):
            asked = {opcode: self.coming.opcode == opcode for opcode in needs}
            m.d.sync += [
                able[role.value].eq(
                    Cat(
                        asked[opcode] & sound for opcode, (roles, sound) in needs.items() if role in roles
                    ).any()
                )
                for role in Role
            ]
            m.d.sync += clears.eq(Cat(asked[opcode] for opcode in (*ROLES, Opcode.SHARE)).any())

        operands = self.instruction.operands
        # What the program would be, before it is known whether that is to be.
        new = Signal.like(program)
        m.d.comb += new.eq(program)
        with m.If(self.run):
            m.d.sync += program.eq(new)
        with m.If(self.run & clears):
            m.d.sync += given.eq(1)
        with m.Switch(self.instruction.opcode):
            for opcode, (becomes, names) in ROLES.items():
                with m.Case(opcode):
                    mine = operands[opcode.name.lower()]
                    # Nothing of the old program stays.
                    m.d.comb += [new.eq(0), new.role.eq(becomes)]
                    m.d.comb += [new.routes[k].eq(k) for k in range(count)]
                    m.d.comb += [new[name].eq(mine[name]) for name in names]
                    if becomes in (Role.SELECT, Role.PROJECT):
                        m.d.comb += new.r_channel.eq(mine.channel)
            with m.Case(Opcode.SHARE):
                share = operands.share
                m.d.comb += [new.position.eq(share.position), new.last.eq(share.last)]
            with m.Case(Opcode.COMPOSE):
                m.d.comb += [new.composing.eq(1), new.target.eq(operands.compose.target)]
            with m.Case(Opcode.TERM):
                for k in self._dimension(m, operands.term.dim):
                    m.d.comb += [new.terms[k][name].eq(operands.term[name]) for name in TERM_LAYOUT.members]
            with m.Case(Opcode.ROUTE):
                route = operands.route
                for k in self._dimension(m, route.dim):
                    m.d.comb += [new.routes[k].eq(route.source), new.dropped[k].eq(route.drop)]
            with m.Case(Opcode.TAKE):
                for k in self._dimension(m, operands.take.dim):
                    m.d.comb += new.parts[k].eq(operands.take.part)
        return m

    def _dimension(self, m: Module, dim):
        """For the dimension that an instruction is about."""
        for k in range(len(self._p.dims)):
            with m.If(dim == k):
                yield k
