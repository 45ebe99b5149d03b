"""One core of the handshake chain.

commands -> HandshakeCore (R segment x S segment) -> meetings
"""

import gc
import random

import pytest

from hw.dimension import Dimension
from hw.errors import ParameterError
from hw.handshake_core import HandshakeCore
from hw.parameters import Parameters

from .streams import simulate

KEY = (Dimension.parse("equal8"),)
SIZES = [(4, 4), (4, 1), (4, 2), (6, 2), (1, 1)]


class Chain:
    """Commands a core as a chain would, and knows which tuples the meetings are about."""

    def __init__(self, segment: int, lanes: int, buffer: int = 16):
        parameters = Parameters(cores=1, segment=segment, lanes=lanes, buffer=buffer, dims=KEY)
        self.dut = HandshakeCore(parameters)
        self.depth = segment // lanes
        self.segment = segment
        self.windows = {"r": [], "s": []}  # newest first
        self.entered = []  # each tuple: its side and id, and the window that it meets
        self.shown = [{}, {}]  # what was shown one and two cycles ago
        self.taken = []

    async def tick(self, ctx, command=(), shown=()):
        """A cycle; rows that it shows have met two cycles later. Takes a pair if the sink is ready."""
        ctx.set(self.dut.command, dict(command) | self.shown.pop(0))
        self.shown.append(dict(shown))
        if ctx.get(self.dut.results.valid) and ctx.get(self.dut.results.ready):
            self.taken.append(self.pair(ctx.get(self.dut.results.payload)))
        await ctx.tick()
        ctx.set(self.dut.command, {})

    def pair(self, meeting) -> tuple[int, int]:
        steps = 2 << self.dut.command.shape()["stamp"].shape["step"].width
        number = meeting.step + (meeting.epoch * steps // 2)
        number += (len(self.entered) - 1 - number) // steps * steps
        side, id, window = self.entered[number]
        met = window[meeting.lane * self.depth + meeting.age]
        return (id, met) if side == "r" else (met, id)

    async def enter(self, ctx, side: str, id: int, key: int, *, rest=0.0, chance=random):
        """Lets a tuple enter, and goes through the rows it meets, resting now and then."""
        opposite = "s" if side == "r" else "r"
        ctx.set(
            getattr(self.dut, f"{side}_entering"),
            {"valid": 1, "dims": {"d0": key} if side == "r" else {"d0": {"lo": key}}},
        )
        number = len(self.entered)
        half = 1 << self.dut.command.shape()["stamp"].shape["step"].width
        self.entered.append((side, id, list(self.windows[opposite])))
        self.windows[side] = [id, *self.windows[side]][: self.segment]
        ages = [*range(self.depth - 2, -1, -1), self.depth - 1]
        shown = [
            {f"meet_{side}": 1, "stamp": {"age": age, "step": number % half, "epoch": number // half % 2}}
            for age in ages
        ]
        if self.depth == 1:
            await self.tick(ctx, {f"shift_{side}": 1}, shown[0])
            return
        await self.tick(ctx, {f"shift_{side}": 1, f"advance_{opposite}": 1})
        for step in range(self.depth):
            while chance.random() < rest:
                await self.tick(ctx)
            command = {f"show_{opposite}": 1, f"advance_{opposite}": step < self.depth - 1}
            if step == 0:
                command |= {f"show_{side}": 1, f"advance_{side}": 1}
            await self.tick(ctx, command, shown[step])

    async def empty(self, ctx) -> list[tuple[int, int]]:
        """All pairs that have not been taken yet."""
        for _ in range(HandshakeCore.QUEUED):
            await self.tick(ctx)
        ctx.set(self.dut.results.ready, 1)
        while ctx.get(self.dut.pending):
            await self.tick(ctx)
        ctx.set(self.dut.results.ready, 0)
        taken, self.taken = self.taken, []
        return taken


@pytest.mark.parametrize("rest", [0.0, 0.4])
@pytest.mark.parametrize("segment, lanes", SIZES)
def test_a_tuple_meets_the_whole_opposite_segment_once(segment, lanes, rest, seed):
    chain = Chain(segment, lanes)
    chance = random.Random(seed)

    async def testbench(ctx):
        window = {"r": [], "s": []}
        for number in range(150):
            side, opposite = ("r", "s") if chance.random() < 0.5 else ("s", "r")
            key = chance.randrange(2)
            await chain.enter(ctx, side, number, key, rest=rest, chance=chance)
            met = [id for id, other in window[opposite] if other == key]
            want = [(number, id) if side == "r" else (id, number) for id in met]
            assert sorted(await chain.empty(ctx)) == sorted(want)
            window[side] = [*window[side], (number, key)][-segment:]

    simulate(chain.dut, [testbench])


@pytest.mark.parametrize("segment, lanes", SIZES)
def test_tuples_follow_without_a_gap(segment, lanes, seed):
    """Back to back: a tuple enters in the cycle in which the one before meets its last row."""
    chain = Chain(segment, lanes, buffer=1024)
    chance = random.Random(seed)

    async def testbench(ctx):
        window = {"r": [], "s": []}
        want = []
        depth, dut = chain.depth, chain.dut
        scan = None
        for number in range(12):
            side, opposite = ("r", "s") if chance.random() < 0.5 else ("s", "r")
            want += [(number, id) if side == "r" else (id, number) for id in window[opposite]]
            window[side] = [*window[side], number][-segment:]
            if depth == 1:
                await chain.enter(ctx, side, number, 7)
                continue
            # The shift goes with the last row of the scan before.
            chain.entered.append((side, number, list(chain.windows[opposite])))
            chain.windows[side] = [number, *chain.windows[side]][:segment]
            dims = {"d0": 7} if side == "r" else {"d0": {"lo": 7}}
            ctx.set(getattr(dut, f"{side}_entering"), {"valid": 1, "dims": dims})
            command, shown = scan or ({}, {})
            await chain.tick(ctx, command | {f"shift_{side}": 1, f"advance_{opposite}": 1}, shown)
            for step in range(depth):
                age = depth - 2 - step if step < depth - 1 else depth - 1
                shown = {f"meet_{side}": 1, "stamp": {"age": age, "step": number, "epoch": 0}}
                command = {f"show_{opposite}": 1, f"advance_{opposite}": step < depth - 1}
                if step == 0:
                    command |= {f"show_{side}": 1, f"advance_{side}": 1}
                if step == depth - 1:
                    del command[f"advance_{opposite}"]
                    scan = command, shown
                else:
                    await chain.tick(ctx, command, shown)
        if scan:
            await chain.tick(ctx, *scan)
        assert sorted(await chain.empty(ctx)) == sorted(want)

    simulate(chain.dut, [testbench])


@pytest.mark.parametrize("segment, lanes", SIZES)
def test_latency(segment, lanes):
    """A pair is on `results` `LATENCY` cycles after the command that showed its row."""
    chain = Chain(segment, lanes)

    async def testbench(ctx):
        # The first row shown is the second oldest of a bank; the last tuple to enter goes through it.
        for number in range(max(1, chain.depth - 1)):
            await chain.enter(ctx, "s", number, key=number)
        for _ in range(8):
            await chain.tick(ctx)
        cycles = []

        async def counted(ctx, *given):
            cycles.append(ctx.get(chain.dut.results.valid))
            await Chain.tick(chain, ctx, *given)

        chain.tick = counted
        await chain.enter(ctx, "r", 9, key=0)
        for _ in range(8):
            await chain.tick(ctx)
        first = 0 if chain.depth == 1 else 1
        assert cycles.index(1) == first + HandshakeCore.LATENCY

    simulate(chain.dut, [testbench])


@pytest.mark.parametrize("buffer", [8, 9, 16, 20])
def test_busy_leaves_room_for_what_is_under_way(buffer):
    """From the first cycle of `busy` on, as many rows may still be queued as it takes the chain to stop."""
    chain = Chain(4, 4, buffer)

    async def testbench(ctx):
        for number in range(4):
            await chain.enter(ctx, "s", number, key=1)
        number, late = 4, 0
        # One register each way between controller and core.
        while late < 2:
            late += ctx.get(chain.dut.busy)
            await chain.enter(ctx, "r", number, key=1)
            number += 1
            assert number < 100
        want = [(r, s) for r in range(4, number) for s in range(4)]
        assert len(want) <= 4 * (buffer - 1 + 1)  # all but one place of the queue, and the one that leaves
        assert number - 4 >= min(buffer - 1, 8)
        assert ctx.get(chain.dut.busy)
        assert sorted(await chain.empty(ctx)) == sorted(want)
        await chain.tick(ctx)
        assert not ctx.get(chain.dut.busy)

    simulate(chain.dut, [testbench])


def test_one_pair_per_row_never_makes_it_busy():
    chain = Chain(4, 4, buffer=8)

    async def testbench(ctx):
        ctx.set(chain.dut.results.ready, 1)
        await chain.enter(ctx, "s", 0, key=1)
        for number in range(1, 60):
            await chain.enter(ctx, "r", number, key=1)
            assert not ctx.get(chain.dut.busy)
        assert await chain.empty(ctx) == [(number, 0) for number in range(1, 60)]

    simulate(chain.dut, [testbench])


def test_pending_tells_epochs_apart():
    chain = Chain(1, 1)

    async def testbench(ctx):
        await chain.enter(ctx, "s", 0, key=1)
        half = 1 << chain.dut.command.shape()["stamp"].shape["step"].width
        for _ in range(1, half - 1):
            await chain.enter(ctx, "s", 0, key=1)
        await chain.enter(ctx, "r", 7, key=1)  # the last of epoch 0
        await chain.enter(ctx, "r", 8, key=1)
        for _ in range(HandshakeCore.LATENCY):
            await chain.tick(ctx)
        assert ctx.get(chain.dut.pending) == 0b11
        ctx.set(chain.dut.results.ready, 1)
        await chain.tick(ctx)
        assert ctx.get(chain.dut.pending) == 0b10
        await chain.tick(ctx)
        assert ctx.get(chain.dut.pending) == 0b00
        assert chain.taken == [(7, 0), (8, 0)]

    simulate(chain.dut, [testbench])


@pytest.mark.parametrize("cores, least", [(1, 8), (8, 8), (9, 10), (64, 10), (65, 12), (1024, 14)])
def test_least_buffer(cores, least):
    assert HandshakeCore.least_buffer(cores) == least


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")  # what is refused is not used
def test_a_queue_too_small_for_what_is_under_way_is_refused():
    with pytest.raises(ParameterError, match=r"^buffer must be at least 10 with 17 cores, not 9$"):
        HandshakeCore(Parameters(cores=17, buffer=9))
    gc.collect()
