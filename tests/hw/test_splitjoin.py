"""SplitJoin of many shapes, and with cores that die, in Amaranth's simulator.

tuples (stalled at random) -> SplitJoin <- kill
                                 |
                              results (stalled at random)
"""

import random
from dataclasses import replace

import numpy as np
import pytest

from hw.broadcast import levels
from hw.dimension import Dimension
from hw.ordering import Ordering
from hw.parameters import Parameters
from hw.socket import Kind, Tag
from hw.splitjoin import SplitJoin

from .streams import simulate

MARK = 7


def splitjoin(cores: int, segment: int, lanes: int, fanout: int, ordering: str) -> Parameters:
    dims = (Dimension.parse("equal8"),)
    order = Ordering.parse(ordering)
    return Parameters("splitjoin", cores, segment, lanes, 2, dims, fanout=fanout, ordering=order)


class Streams:
    """Random tuples of both streams, and the pairs that windows of the device's size hold."""

    def __init__(self, p: Parameters, count: int, seed: int):
        self.p = p
        self.chance = random.Random(seed)
        self.is_s = np.array([self.chance.random() < 0.5 for _ in range(count)])
        self.value = [self.chance.randrange(3) for _ in range(count)]

    def expected(self, *, dead: int | None = None) -> set[tuple[int, int]]:
        """The pairs, but for those whose earlier tuple is stored in the dead core."""
        places = np.flatnonzero(~self.is_s), np.flatnonzero(self.is_s)
        found = set()
        for r, r_place in enumerate(places[0]):
            for s, s_place in enumerate(places[1]):
                own, earlier = (places[0], r) if r_place < s_place else (places[1], s)
                # So many tuples of the earlier one's stream are stored by the time the other comes.
                stored = np.searchsorted(own, max(r_place, s_place))
                within = earlier >= stored - self.p.capacity
                if self.value[r_place] == self.value[s_place] and within and earlier % self.p.cores != dead:
                    found.add((r, s))
        return found

    def run(self, *, kill: int = 0, at: int = 0) -> list[tuple[int, int]]:
        """The pairs that come out before the mark; cores in the mask `kill` die in cycle `at`."""
        dut, chance, pairs = SplitJoin(self.p, killable=True), self.chance, []

        async def send(ctx, word):
            ctx.set(dut.tuples.payload, word)
            ctx.set(dut.tuples.valid, 1)
            await ctx.tick().until(dut.tuples.ready)
            ctx.set(dut.tuples.valid, 0)

        async def source(ctx):
            numbers = [0, 0]
            for of_s, code in zip(self.is_s.tolist(), self.value):
                while chance.random() < 0.2:
                    await ctx.tick()
                dims = {"box": {"d0": {"lo": code}}} if of_s else {"point": {"d0": code}}
                await send(ctx, {"kind": Kind.S if of_s else Kind.R, "id": numbers[of_s], "dims": dims})
                numbers[of_s] += 1
            await send(ctx, {"kind": Kind.MARK, "id": MARK, "dims": {"point": {"d0": 0}}})

        async def sink(ctx):
            for cycle in range(20_000):
                if cycle == at:
                    ctx.set(dut.kill, kill)
                ready = chance.random() < 0.8
                ctx.set(dut.results.ready, ready)
                _, _, valid, result = await ctx.tick().sample(dut.results.valid, dut.results.payload)
                if valid and ready:
                    if result.tag == Tag.MARK:
                        assert result.body.mark.id == MARK
                        return
                    assert result.tag == Tag.PAIR
                    pairs.append((result.body.pair.r_id, result.body.pair.s_id))
            raise AssertionError(f"no mark after {cycle} cycles, {len(pairs)} pairs")

        simulate(dut, [source, sink])
        r, s = np.array(pairs).T
        assert self.p.ordering.first_broken(self.is_s, r, s, self.p.cores, self.p.segment) is None
        assert len(pairs) == len(set(pairs))
        return pairs


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 2, "comparisons:1"),
        (1, 4, 2, 2, "comparisons:3"),
        (4, 3, 3, 3, "comparisons:2"),
        (3, 4, 1, 2, "comparisons:2"),
        (2, 4, 1, 2, "tuples:3"),
        (3, 3, 1, 4, "none"),
    ],
    ids=lambda shape: "-".join(map(str, shape)),
)
def test_every_pair_once_and_in_order(shape, seed):
    streams = Streams(splitjoin(*shape), 80, seed)
    assert set(streams.run()) == streams.expected()


@pytest.mark.parametrize("ordering", ["none", "tuples:1", "tuples:3", "comparisons:1"])
@pytest.mark.parametrize("when", ["from_the_start", "in_the_middle"])
def test_a_core_that_dies_loses_its_share_and_no_more(ordering, when, seed):
    """Every pair whose earlier tuple is stored elsewhere comes out once, in order, and so does the mark."""
    streams = Streams(splitjoin(3, 4, 2, 2, ordering), 90, seed)
    dead = streams.chance.randrange(streams.p.cores)
    at = 0 if when == "from_the_start" else streams.chance.randrange(20, 80)
    pairs = set(streams.run(kill=1 << dead, at=at))
    elsewhere = streams.expected(dead=dead)
    assert elsewhere <= pairs < streams.expected()
    assert pairs == elsewhere or at


@pytest.mark.parametrize("cores, fanout", [(2, 2), (5, 2), (5, 4), (16, 4), (17, 4)])
def test_latency_grows_with_the_levels_of_the_trees(cores, fanout):
    """Of the pair with a tuple in the last core; `make sim` goes on to 128 cores."""
    # A queue of two is full when one comes out in each cycle.
    p = replace(splitjoin(cores, 1, 1, fanout, "tuples:1"), buffer=3)
    dut, cycles = SplitJoin(p), []

    async def testbench(ctx):
        ctx.set(dut.results.ready, 1)
        words = [{"kind": Kind.S, "id": k, "dims": {"box": {"d0": {"lo": k}}}} for k in range(cores)]
        words.append({"kind": Kind.R, "id": 0, "dims": {"point": {"d0": cores - 1}}})
        for word in words:
            ctx.set(dut.tuples.payload, word)
            ctx.set(dut.tuples.valid, 1)
            await ctx.tick().until(dut.tuples.ready)
        ctx.set(dut.tuples.valid, 0)
        cycles.append(1)  # the transfer itself
        while not ctx.get(dut.results.valid):
            await ctx.tick()
            cycles[0] += 1
            assert cycles[0] < 100

    simulate(dut, [testbench])
    assert cycles == [SplitJoin.latency(p)] == [9 + 3 * levels(cores, fanout)]
