"""Register trees.

value -> FanOut -> places;  flags -> FanIn -> any
"""

import random

import pytest

from hw.fan import FAN, FanIn, FanOut, FanSum, levels

from .streams import simulate


@pytest.mark.parametrize("places, count", [(1, 1), (FAN, 1), (FAN + 1, 2), (FAN**2, 2), (FAN**2 + 1, 3)])
def test_levels(places, count):
    assert levels(places) == count


@pytest.mark.parametrize("places", [1, 2, 8, 9, 65])
def test_all_places_see_a_value_in_the_same_cycle(places, seed):
    dut = FanOut(5, places)
    chance = random.Random(seed)

    async def testbench(ctx):
        sent = [0] * levels(places)
        for _ in range(30):
            sent.append(chance.randrange(32))
            ctx.set(dut.value, sent[-1])
            assert {ctx.get(copy) for copy in dut.copies} == {sent[-1 - levels(places)]}
            await ctx.tick()

    simulate(dut, [testbench])


@pytest.mark.parametrize("places", [1, 2, 8, 9, 65])
def test_a_flag_is_seen_from_every_place(places, seed):
    dut = FanIn(2, places)
    chance = random.Random(seed)

    async def testbench(ctx):
        seen = [0] * levels(places)
        for turn in range(2 * places + 8):
            flags = [0] * places
            if turn < 2 * places:
                flags[turn // 2] = 1 << turn % 2
            if chance.random() < 0.3:
                flags[chance.randrange(places)] = 3
            for place, flag in zip(dut.flags, flags):
                ctx.set(place, flag)
            seen.append(max(flags) if len({*flags} - {0}) < 2 else 3)
            assert ctx.get(dut.any) == seen[-1 - levels(places)]
            await ctx.tick()

    simulate(dut, [testbench])


@pytest.mark.parametrize("places", [1, 2, 8, 9, 65])
def test_numbers_of_all_places_add_up(places, seed):
    dut = FanSum(3, places)
    chance = random.Random(seed)

    async def testbench(ctx):
        sums = [0] * levels(places)
        for turn in range(30):
            numbers = [3 if turn == 5 else chance.randrange(4) for _ in range(places)]
            for place, number in zip(dut.numbers, numbers):
                ctx.set(place, number)
            sums.append(sum(numbers))
            assert ctx.get(dut.total) == sums[-1 - levels(places)]
            await ctx.tick()

    simulate(dut, [testbench])
