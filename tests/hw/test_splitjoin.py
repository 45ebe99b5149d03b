"""SplitJoin with cores that die, in Amaranth's simulator.

tuples -> SplitJoin <- kill
             |
          results
"""

import random

import numpy as np
import pytest

from hw.dimension import Dimension
from hw.ordering import Ordering
from hw.parameters import Parameters
from hw.socket import Kind, Tag
from hw.splitjoin import SplitJoin

from .streams import simulate

MARK = 7


@pytest.mark.parametrize("ordering", ["none", "tuples:1", "tuples:3", "comparisons:1"])
@pytest.mark.parametrize("when", ["from_the_start", "in_the_middle"])
def test_a_core_that_dies_loses_its_share_and_no_more(ordering, when, seed):
    """Every pair whose earlier tuple is stored elsewhere comes out once, in order, and so does the mark."""
    chance = random.Random(seed)
    p = Parameters(
        "splitjoin",
        cores=3,
        segment=4,
        lanes=2,
        buffer=2,
        dims=(Dimension.parse("equal8"),),
        fanout=2,
        ordering=Ordering.parse(ordering),
    )
    dead = chance.randrange(p.cores)
    killed = 0 if when == "from_the_start" else chance.randrange(20, 80)
    is_s = np.array([chance.random() < 0.5 for _ in range(90)])
    value = [chance.randrange(3) for _ in is_s]
    dut = SplitJoin(p, killable=True)
    pairs = []

    async def source(ctx):
        numbers = [0, 0]
        for of_s, code in zip(is_s.tolist(), value):
            while chance.random() < 0.2:
                await ctx.tick()
            dims = {"box": {"d0": {"lo": code}}} if of_s else {"point": {"d0": code}}
            await send(ctx, {"kind": Kind.S if of_s else Kind.R, "id": numbers[of_s], "dims": dims})
            numbers[of_s] += 1
        await send(ctx, {"kind": Kind.MARK, "id": MARK, "dims": {"point": {"d0": 0}}})

    async def send(ctx, word):
        ctx.set(dut.tuples.payload, word)
        ctx.set(dut.tuples.valid, 1)
        await ctx.tick().until(dut.tuples.ready)
        ctx.set(dut.tuples.valid, 0)

    async def sink(ctx):
        results = dut.results
        for cycle in range(20_000):
            if cycle == killed:
                ctx.set(dut.kill, 1 << dead)
            ready = chance.random() < 0.8
            ctx.set(results.ready, ready)
            _, _, valid, result = await ctx.tick().sample(results.valid, results.payload)
            if valid and ready:
                if result.tag == Tag.MARK:
                    assert result.body.mark.id == MARK
                    return
                assert result.tag == Tag.PAIR
                pairs.append((result.body.pair.r_id, result.body.pair.s_id))
        raise AssertionError(f"no mark after {cycle} cycles, {len(pairs)} pairs")

    simulate(dut, [source, sink])

    places = np.flatnonzero(~is_s), np.flatnonzero(is_s)
    expected, elsewhere = set(), set()
    for r, r_place in enumerate(places[0]):
        for s, s_place in enumerate(places[1]):
            # Of the earlier one's stream, so many tuples are stored by the time the other comes.
            own, earlier = (places[0], r) if r_place < s_place else (places[1], s)
            stored = np.searchsorted(own, max(r_place, s_place))
            if value[r_place] == value[s_place] and earlier >= stored - p.capacity:
                expected.add((r, s))
                if earlier % p.cores != dead:
                    elsewhere.add((r, s))
    assert len(pairs) == len(set(pairs))
    assert elsewhere <= set(pairs) <= expected
    assert elsewhere < expected
    if when == "from_the_start":
        assert set(pairs) == elsewhere
    r, s = np.array(pairs).T
    assert p.ordering.first_broken(is_s, r, s, p.cores, p.segment) is None
