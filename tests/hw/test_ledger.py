"""The ids of a handshake chain.

tuples that enter, meetings (stalled at random) -> Ledger -> pairs, ids that leave
"""

import random

import pytest

from hw.dimension import Dimension
from hw.ledger import Ledger
from hw.parameters import Parameters

from .streams import simulate, sink, source

KEY = (Dimension.parse("equal8"),)
SIZES = [(3, 4, 2), (1, 1, 1), (5, 3, 3), (2, 6, 2), (4, 8, 1)]


def chain(cores: int, segment: int, lanes: int) -> tuple[Ledger, Parameters]:
    parameters = Parameters(cores=cores, segment=segment, lanes=lanes, dims=KEY)
    return Ledger(parameters), parameters


async def enter(ctx, dut, side: str, id: int, number: int, *, evict: bool = False):
    """Lets a tuple enter; a window that is full says so one cycle later."""
    half = 1 << len(dut.step)
    ctx.set(dut.id, id)
    ctx.set(dut.step, number % half)
    ctx.set(dut.epoch, number // half % 2)
    ctx.set(getattr(dut, f"enter_{side}"), 1)
    await ctx.tick()
    ctx.set(getattr(dut, f"enter_{side}"), 0)
    ctx.set(dut.evict, evict)
    await ctx.tick()
    ctx.set(dut.evict, 0)


@pytest.mark.parametrize("stall", [0.0, 0.5])
@pytest.mark.parametrize("cores, segment, lanes", SIZES)
def test_where_and_when_tell_who(cores, segment, lanes, stall, seed):
    dut, _ = chain(cores, segment, lanes)
    chance = random.Random(seed)
    depth = segment // lanes
    steps = 2 << len(dut.step)
    # Twice round the numbers: those of one round are asked for before the next.
    windows = {"r": [], "s": []}
    rounds = []
    for number in range(2 * steps + 5):
        side, opposite = ("r", "s") if chance.random() < 0.5 else ("s", "r")
        windows[side].insert(0, chance.randrange(1 << 32))
        rounds.append((side, windows[side][0], []))
        for _ in range(2):
            core, behind = chance.randrange(cores), chance.randrange(segment)
            places = {"r": core * segment, "s": (cores - 1 - core) * segment}
            places[opposite] += behind
            if all(places[k] < len(windows[k]) for k in "rs"):
                meeting = {"core": core, "lane": behind // depth, "age": behind % depth}
                meeting |= {"step": number % (steps // 2), "epoch": number // (steps // 2) % 2}
                rounds[-1][2].append((meeting, *(windows[k][places[k]] for k in "rs")))

    async def testbench(ctx):
        for first in range(0, len(rounds), steps):
            for number, (side, id, _) in enumerate(rounds[first : first + steps], first):
                await enter(ctx, dut, side, id, number)
            asked = [asking for *_, askings in rounds[first : first + steps] for asking in askings]
            chance.shuffle(asked)
            want = [(r_id, s_id) for _, r_id, s_id in asked]
            pairs = await ask(ctx, [meeting for meeting, *_ in asked])
            assert pairs == want
            assert ctx.get(dut.held) == 0

    async def ask(ctx, meetings):
        waiting = list(meetings)
        taken = []
        held = None
        while len(taken) < len(meetings):
            if held is None and waiting and chance.random() >= stall:
                held = waiting.pop(0)
                ctx.set(dut.meetings.payload, held)
            ctx.set(dut.meetings.valid, held is not None)
            ready = chance.random() >= stall
            ctx.set(dut.pairs.ready, ready)
            _, _, valid, pair, accepted = await ctx.tick().sample(
                dut.pairs.valid, dut.pairs.payload, dut.meetings.ready
            )
            if held is not None and accepted:
                held = None
            if valid and ready:
                taken.append((pair.r_id, pair.s_id))
        ctx.set(dut.meetings.valid, 0)
        ctx.set(dut.pairs.ready, 0)
        return taken

    simulate(dut, [testbench])


def test_latency_and_throughput():
    dut, _ = chain(2, 4, 4)
    taken = []
    meetings = [{"core": 0, "lane": 0, "step": 0, "epoch": 0}] * 20
    simulate(
        dut,
        [
            source(dut.meetings, meetings, seed=1, stall=0.0),
            sink(dut.pairs, taken, len(meetings), seed=1, stall=0.0),
        ],
    )
    assert [cycle for cycle, _ in taken] == list(range(Ledger.LATENCY, Ledger.LATENCY + len(meetings)))


@pytest.mark.parametrize("cores, segment, lanes", SIZES)
def test_the_id_that_leaves_a_full_window(cores, segment, lanes, seed):
    dut, p = chain(cores, segment, lanes)
    chance = random.Random(seed)

    async def testbench(ctx):
        windows = {"r": [], "s": []}
        for number in range(6 * p.capacity + 4):
            side = chance.choice("rs")
            full = len(windows[side]) == p.capacity
            windows[side].append(number)
            await enter(ctx, dut, side, number, number, evict=full)
            for _ in range(Ledger.EVICTION - 2):
                await ctx.tick()
            for other in "rs":
                evicted = ctx.get(getattr(dut, f"evicted_{other}"))
                assert evicted.valid == (full and other == side)
                if evicted.valid:
                    assert evicted.id == windows[side].pop(0)

    simulate(dut, [testbench])
