"""An OP-Block alone against its reference: random messages and programs, and stalls on every stream.

messages -> [ block ] -> messages    = those of the interpreter's block, in its order
                |
                v
             results                 = its records, in its order, each queued before the next message goes on
"""

import random
from itertools import accumulate

import pytest

from hw.dimension import Dimension
from hw.instruction import Opcode, decode, encode
from hw.op_block import OpBlock, message_layout
from hw.parameters import Parameters
from hw.socket import Kind, Tag
from sim.interpreter import Block, Message, Record

from .streams import simulate, sink, source

ADDRESS = 2
SHAPES = [(1, 1), (2, 1), (2, 2), (8, 1), (8, 2), (8, 8)]
DIMS = (Dimension.parse("band8"),) * 2
#: How often the block is given nothing, how often what goes on waits, and how often results do.
STALLS = [(0, 0, 0), (0.5, 0, 0), (0, 0.6, 0), (0, 0, 0.8), (0.3, 0.4, 0.5), (0, 0.9, 0.9)]


def traffic(chance: random.Random, dims: int, count: int) -> list[Message]:
    """Mostly tuples of two channels; instructions for the block and others, flushes and tokens among them."""
    some = chance.randrange
    ids = {Kind.R: 0, Kind.S: 0}

    def message(kind: Kind, id: int, channel: int) -> Message:
        lo = tuple(some(4) for _ in range(dims))
        return Message(kind.value, channel, id, lo, tuple(low + some(3) for low in lo))

    def instruction(opcode: Opcode, **operands) -> Message:
        block = ADDRESS if chance.random() < 0.9 else ADDRESS + some(3) - 1
        return message(Kind.INSTRUCTION, encode(opcode, block, **operands), 0)

    def program() -> list[Message]:
        channels = {"channel": some(2), "target": some(3), "side": some(2), "keep": some(2)}
        term = {"dim": some(dims + 1), "test": some(4), "negated": some(2), "within": some(4)}
        join = {"r_channel": some(2), "s_channel": some(2), "query": some(16), "products": 1 + some(15)}
        last = some(3)
        match some(10):
            case 0:
                return [instruction(Opcode.SELECT, products=some(16), **channels)]
            case 1:
                return [instruction(Opcode.PROJECT, **channels)]
            case 2:
                return [instruction(Opcode.PASS)]
            case 3 | 4 | 5:
                whole = [
                    instruction(Opcode.JOIN, strict_r=some(2), strict_s=some(2), **join),
                    instruction(Opcode.SHARE, position=some(last + 1), last=last),
                ]
                return whole + [instruction(Opcode.COMPOSE, target=some(3))] * some(2)
            case 6:
                return [instruction(Opcode.TERM, **term)]
            case 7:
                return [instruction(Opcode.ROUTE, dim=some(dims), source=some(dims), drop=some(2))]
            case 8:
                return [instruction(Opcode.TAKE, dim=some(dims), part=some(4))]
            case _:
                return [message(Kind.INSTRUCTION, some(1 << 32), 0)]

    made = []
    while len(made) < count:
        kind = some(40)
        if kind < 3:
            made += program()
        elif kind < 6:
            token = (Kind.FLUSH, Kind.MARK, Kind.HORIZON_R, Kind.HORIZON_S)[some(4)]
            made.append(message(token, some(60), some(2)))
        elif kind == 6:
            made.append(Message(7, some(2), some(60), (0,) * dims, (0,) * dims))
        else:
            side, channel = (Kind.R, Kind.S)[some(2)], int(chance.random() < 0.2)
            for _ in range(1 + some(4)):
                made.append(message(side, ids[side], channel))
                ids[side] += 1
    return made


def told(message: Message, address: int):
    """A message as the block `address` is given it."""
    layout = message_layout(DIMS)
    fields = {name: getattr(message, name) for name in ("channel", "id", "lo", "hi")}
    aimed = message.kind == Kind.INSTRUCTION.value and decode(message.id)[1] == address
    rest = layout.const({**fields, "aimed": aimed})
    return layout.from_bits(rest.as_bits() | message.kind)  # which may be none of `Kind`


@pytest.mark.parametrize("stalls", STALLS, ids=str)
@pytest.mark.parametrize(("segment", "lanes"), SHAPES)
def test_a_block_does_what_its_reference_does(segment, lanes, stalls, request):
    chance = random.Random(f"{segment} {lanes} {stalls} {request.config.option.seed}")
    buffer = chance.choice((2, 3, 16))
    p = Parameters("opblock", cores=4, segment=segment, lanes=lanes, buffer=buffer, dims=DIMS)
    records: list[Record] = []
    reference = Block(p, ADDRESS, records)
    given = traffic(chance, len(DIMS), 400)
    goes_on = []  # and how many pairs are found before
    for message in given:
        before = len(records)
        made = reference.take(message)
        goes_on += [(each, len(records) if each is message else before) for each in made]

    dut = OpBlock(p)
    passed, results, found, lost = [], [], [], []

    async def set_up(ctx):
        ctx.set(dut.address, ADDRESS)

    async def watch(ctx):
        async for _, _, one, tally in ctx.tick().sample(dut.found, dut.tally_out):
            found.append(one)
            lost.append(tally.lost)

    seed = chance.randrange(1 << 30)
    limit = 400 * max(len(given), len(records), len(goes_on))
    simulate(
        dut,
        [
            set_up,
            source(dut.upstream, [told(message, ADDRESS) for message in given], seed=seed, stall=stalls[0]),
            sink(dut.downstream, passed, len(goes_on), seed=seed + 1, stall=stalls[1], limit=limit),
            sink(dut.results, results, len(records), seed=seed + 2, stall=stalls[2], limit=limit),
        ],
        [watch],
    )
    assert [payload for _, payload in passed] == [told(message, ADDRESS + 1) for message, _ in goes_on]
    assert [_record(payload) for _, payload in results] == records
    queued = list(accumulate(found))
    assert all(queued[cycle] >= before for (cycle, _), (_, before) in zip(passed, goes_on))
    assert sum(lost) == reference.lost


def _record(payload) -> Record:
    """A result as the reference writes it."""
    pair = payload.composite.r_id, payload.composite.s_id
    if payload.is_composite:
        return Record(Tag.COMPOSITE, payload.query, (payload.composite.id, *pair))
    return Record(Tag.PAIR, payload.query, pair)
