"""The instruction set of OP-Blocks: gateware, interpreter, compiler and docs take it from here.

An instruction travels the chain like a tuple. It is a word of kind INSTRUCTION on `tuples`; its `id` holds
the fields below, least significant first, and `dims.box` the constants of a SELECT. The block whose number
it carries takes it, and whatever comes after it on the stream meets the new program. A tuple
enters the chain on a channel, and blocks may put tuples on other channels; a block looks at the tuples of
its own channels and lets all others pass.

After reset every block is a JOIN of channel 0 for query 0, with a term for each dimension of the device's
parameters, and the blocks share the windows: the chain then is a joiner like any other.
"""

from amaranth.hdl import Shape
from amaranth.lib import data, enum

from .dimension import Test
from .socket import ID_WIDTH, QUERY_WIDTH

BLOCK_WIDTH = 9
CHANNEL_WIDTH = 4
DIM_WIDTH = 4
#: How many products, each an AND of terms, a predicate may OR together.
PRODUCTS = 4


class Opcode(enum.Enum, shape=4):
    """What an instruction asks for."""

    PASS = 0  #: the block lets everything pass
    SELECT = 1  #: of one side's tuples on `channel`, those that meet the constants go on on `target`
    PROJECT = 2  #: one side's tuples on `channel` go on on `target` with their dimensions routed
    JOIN = 3  #: R tuples of `r_channel` meet S tuples of `s_channel`, in windows that are empty at first
    SHARE = 4  #: of a JOIN: which tuples it stores: of each `last + 1` on a side, the one at `position`
    COMPOSE = 5  #: of a JOIN: every pair also becomes an R tuple on `target`, ahead of its later member
    TERM = 6  #: of a SELECT or JOIN: how dimension `dim` is tested, and in which products that counts
    ROUTE = 7  #: of tuples put out: dimension `dim` is taken from `source`, or dropped (0)
    TAKE = 8  #: of a COMPOSE: which member's value dimension `dim` of the composite is
    ENTER = 9  #: of the chain, not of a block: tuples and horizons that follow enter on `channel`


class Role(enum.Enum, shape=2):
    """What a block is."""

    PASS = 0
    SELECT = 1
    PROJECT = 2
    JOIN = 3


class Part(enum.Enum, shape=2):
    """Whose value a composite's dimension is."""

    R = 0  #: the point of the R member
    S_LO = 1  #: the lower bound of the S member
    S_HI = 2  #: its upper bound
    LATER = 3  #: the point, or the lower bound, of the later member


#: A TERM's `test` is the place of the test in here.
TESTS = tuple(Test)

OPERANDS = {
    Opcode.PASS: {},
    Opcode.SELECT: {
        "side": 1,  # 0: R tuples, which a SELECT compares with a box; 1: S tuples, with a point (`lo`)
        "channel": CHANNEL_WIDTH,  # where the tuples are
        "target": CHANNEL_WIDTH,  # where what is put out goes
        "keep": 1,  # the tuples go on on their own channel as well
        "products": PRODUCTS,  # which products count; one without terms is true
    },
    Opcode.PROJECT: {"side": 1, "channel": CHANNEL_WIDTH, "target": CHANNEL_WIDTH, "keep": 1},
    Opcode.JOIN: {
        "r_channel": CHANNEL_WIDTH,  # where the R tuples are
        "s_channel": CHANNEL_WIDTH,  # where the S tuples are
        "query": QUERY_WIDTH,  # the number that the results carry
        "products": PRODUCTS,
        "strict_r": 1,  # whatever leaves R's window counts as a live eviction: composites have no horizon
        "strict_s": 1,  # the same of S
    },
    Opcode.SHARE: {
        "position": BLOCK_WIDTH,  # at most `last`; the windows begin empty
        "last": BLOCK_WIDTH,  # one less than the blocks that share
    },
    Opcode.COMPOSE: {"target": CHANNEL_WIDTH},
    Opcode.TERM: {
        "dim": DIM_WIDTH,  # a dimension that the device has
        "test": Shape.cast(range(len(TESTS))).width,  # see below
        "negated": 1,  # the term holds where the test does not
        "within": PRODUCTS,  # which products have the term as a factor
    },
    Opcode.ROUTE: {
        "dim": DIM_WIDTH,
        "source": DIM_WIDTH,  # a dimension that the device has
        "drop": 1,  # 0 instead of the source
    },
    Opcode.TAKE: {
        "dim": DIM_WIDTH,
        "part": Part,  # see below
    },
    Opcode.ENTER: {"channel": CHANNEL_WIDTH},
}

INSTRUCTION_LAYOUT = data.StructLayout(
    {
        "opcode": Opcode,
        "block": BLOCK_WIDTH,
        "operands": data.UnionLayout(
            {opcode.name.lower(): data.StructLayout(fields) for opcode, fields in OPERANDS.items()}
        ),
    }
)
assert INSTRUCTION_LAYOUT.size <= ID_WIDTH

#: A composite's id: the block that made it, and how many it had made since its last instruction or flush.
COMPOSITE_ID_LAYOUT = data.StructLayout({"number": ID_WIDTH - BLOCK_WIDTH, "block": BLOCK_WIDTH})


def encode(opcode: Opcode, block: int = 0, **operands: int) -> int:
    """The 32 bits of an instruction; operands that are not given are 0."""
    fields = {name: getattr(value, "value", value) for name, value in operands.items()}
    name = opcode.name.lower()
    return INSTRUCTION_LAYOUT.const({"opcode": opcode, "block": block, "operands": {name: fields}}).as_bits()


def decode(bits: int) -> tuple[Opcode | None, int, dict[str, int]]:
    """Opcode (None if there is no such), block and operands of an instruction."""
    view = INSTRUCTION_LAYOUT.from_bits(bits & ((1 << INSTRUCTION_LAYOUT.size) - 1))
    number = view.as_bits() & ((1 << Opcode.as_shape().width) - 1)
    if number not in {opcode.value for opcode in Opcode}:
        return None, view.block, {}
    opcode = Opcode(number)
    operands = view.operands[opcode.name.lower()]
    return (
        opcode,
        view.block,
        {name: int(getattr(operands[name], "value", operands[name])) for name in OPERANDS[opcode]},
    )


def spelled(bits: int) -> str:
    """An instruction as a line of text, for example `JOIN block=3 r_channel=0 ...`."""
    opcode, block, operands = decode(bits)
    if opcode is None:
        return f"opcode {bits & ((1 << Opcode.as_shape().width) - 1)} block={block}"
    return " ".join([opcode.name, f"block={block}", *(f"{name}={value}" for name, value in operands.items())])
