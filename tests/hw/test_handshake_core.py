"""One core of the handshake chain.

commands -> HandshakeCore (R segment x S segment) -> pairs
"""

import pytest

from hw.dimension import Dimension
from hw.handshake_core import HandshakeCore
from hw.parameters import Parameters

from .streams import simulate

KEY = (Dimension.parse("equal8"),)
SIZES = [(4, 4), (4, 1), (4, 2), (6, 2), (1, 1)]


def core(segment: int, lanes: int, buffer: int = 2) -> tuple[HandshakeCore, int]:
    parameters = Parameters(cores=1, segment=segment, lanes=lanes, buffer=buffer, dims=KEY)
    return HandshakeCore(parameters), segment // lanes


async def enter(ctx, dut, depth: int, side: str, id: int, key: int):
    """Lets a tuple enter as the chain would, and goes through the rows it meets."""
    opposite = "s" if side == "r" else "r"
    dims = {"d0": key} if side == "r" else {"d0": {"lo": key}}
    ctx.set(getattr(dut, f"{side}_entering"), {"valid": 1, "id": id, "dims": dims})
    ctx.set(
        dut.command,
        {f"shift_{side}": 1, "turn": 1, "load": 1} | ({"scan_r": 1, "scan_s": 1} if depth > 1 else {}),
    )
    await ctx.tick()
    for step in range(depth if depth > 1 else 0):
        last = step == depth - 1
        while ctx.get(dut.busy):
            ctx.set(dut.command, {})
            await ctx.tick()
        ctx.set(dut.command, {"turn": last, "load": 1, f"scan_{opposite}": not last})
        await ctx.tick()
    ctx.set(dut.command, {})


async def pairs(ctx, dut) -> list[tuple[int, int]]:
    """Takes all pairs out."""
    taken = []
    ctx.set(dut.results.ready, 1)
    while ctx.get(dut.pending):
        if ctx.get(dut.results.valid):
            pair = ctx.get(dut.results.payload)
            taken.append((pair.r_id, pair.s_id))
        await ctx.tick()
    ctx.set(dut.results.ready, 0)
    return taken


@pytest.mark.parametrize("segment, lanes", SIZES)
def test_a_tuple_meets_the_whole_opposite_segment_once(segment, lanes):
    dut, depth = core(segment, lanes, buffer=64)

    async def testbench(ctx):
        window = {"r": [], "s": []}
        for number in range(5 * segment):
            side, opposite = ("r", "s") if number * 7 % 5 < 3 else ("s", "r")
            key = number % 2
            await enter(ctx, dut, depth, side, number, key)
            met = [id for id, other in window[opposite] if other == key]
            want = [(number, id) if side == "r" else (id, number) for id in met]
            assert sorted(await pairs(ctx, dut)) == sorted(want)
            window[side] = [*window[side], (number, key)][-segment:]

    simulate(dut, [testbench])


@pytest.mark.parametrize("segment, lanes", SIZES)
def test_latency(segment, lanes):
    """Two cycles from the door to the results with a depth of 1, otherwise three for the first row."""
    dut, depth = core(segment, lanes)

    async def testbench(ctx):
        # The first row shown is the second oldest of a bank.
        for number in range(max(1, depth - 1)):
            await enter(ctx, dut, depth, "s", number, key=number)
        ctx.set(dut.r_entering, {"valid": 1, "id": 9, "dims": {"d0": 0}})
        scan = {"scan_r": 1, "scan_s": 1} if depth > 1 else {}
        ctx.set(dut.command, {"shift_r": 1, "turn": 1, "load": 1} | scan)
        await ctx.tick()
        cycles = 1
        while not ctx.get(dut.results.valid):
            last = cycles >= depth
            ctx.set(dut.command, {"turn": last, "load": 1, "scan_s": depth > 1 and not last})
            await ctx.tick()
            cycles += 1
            assert cycles < 50
        assert cycles == (2 if depth == 1 else 3)

    simulate(dut, [testbench])


def test_busy_until_only_one_pair_is_left_and_while_the_queue_is_full():
    dut, depth = core(4, 4, buffer=2)

    async def testbench(ctx):
        for number in range(4):
            await enter(ctx, dut, depth, "s", number, key=1)
        await enter(ctx, dut, depth, "r", 7, key=1)
        busy = []
        for _ in range(6):
            busy.append(ctx.get(dut.busy))
            await ctx.tick()
        # Four pairs, of which two fit the queue: the rest stay until someone takes them.
        assert busy == [1] * 6
        assert await pairs(ctx, dut) == [(7, 3), (7, 2), (7, 1), (7, 0)]
        assert not ctx.get(dut.busy)

    simulate(dut, [testbench])
