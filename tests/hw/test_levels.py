"""Insertion by levels.

::

    commands, batches --> [ leveled insertion ] --> answers, index
                               |        ^
                            [ memory model ]      (stalled at random, all of them)
"""

from operator import itemgetter

import pytest

from hw.errors import ParameterError
from hw.levels import LeveledInsertion, capacities, level_for, small_words

from .memory_model import MemoryModel
from .runs import BOX, flits, from_words, sorted_records
from .streams import simulate, sink, source

LANES = 2
RECORDS = 256
BATCH = 8
PARTITION = 8
ADDRESS_WIDTH = 12
#: Of two streams: where main arrays lie, by turns, and from where on small ones.
MAIN = ((0, 200), (400, 600))
BASES = (1000, 2000)


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_batches_are_merged_by_levels(levels, stall, seed, rng):
    dut = LeveledInsertion(
        BOX,
        LANES,
        records=RECORDS,
        batch=BATCH,
        partition=PARTITION,
        address_width=ADDRESS_WIDTH,
        levels=levels,
        bases=BASES,
        burst=8,
        ahead=32,
    )
    model = MemoryModel(dut.memory, 1 << ADDRESS_WIDTH, seed=seed, stall=stall)
    room = capacities(RECORDS, BATCH, levels)
    words = small_words(RECORDS, BATCH, levels, LANES)
    sizes = [BATCH] * 30 + [0, 3, BATCH, 0, 1]
    made = [[[] for _ in range(levels)] for _ in BASES]  # what is in each level, the main array last
    halves = [[0] * levels for _ in BASES]
    commands, batches, answers, index = [], [], [], []
    for number, size in enumerate(sizes):
        stream = int(rng.integers(len(BASES)))
        own, half = made[stream], halves[stream]
        batch = sorted_records(rng, BOX, size, int(rng.choice([3, 1 << 16])), 100 * number)
        whole = number == len(sizes) - 2
        commands.append(
            {
                "stream": stream,
                "main": {"address": MAIN[stream][half[-1]], "count": len(own[-1])},
                "target": MAIN[stream][1 - half[-1]],
                "batch": size,
                "whole": whole,
            }
        )
        batches += flits(batch, LANES)
        level = level_for([len(one) for one in own], size, room, whole=whole)
        older = [record for one in reversed(own[: level + 1]) for record in one]
        array = sorted(older + batch, key=itemgetter("key"))
        own[: level + 1] = [[] for _ in range(level)] + [array]
        half[level] ^= 1
        into = None if level == levels - 1 else 2 * level + half[level]
        width = max((record["hi"] - record["key"] for record in array), default=0)
        answers.append((into is None, len(array), width))
        index += [(into, k, record["key"]) for k, record in enumerate(array[::PARTITION])]
    assert len({answer[0] for answer in answers}) == min(2, levels)

    got_answers, got_index, intos, smalls = [], [], [], []

    async def watch(ctx):
        async for _, _, told, into in ctx.tick().sample(dut.index.valid & dut.index.ready, dut.into):
            if told:
                intos.append(None if into.main else into.number)

    async def look(ctx):
        while len(got_answers) < len(answers):
            await ctx.tick()
        await ctx.tick()
        smalls.extend([(small.address, small.count) for small in map(ctx.get, own)] for own in dut.smalls)

    simulate(
        dut,
        [
            source(dut.commands, commands, seed=seed, stall=stall),
            source(dut.batch, batches, seed=seed + 1, stall=stall),
            sink(dut.answers, got_answers, len(answers), seed=seed + 2, stall=stall),
            sink(dut.index, got_index, len(index), seed=seed + 3, stall=stall),
            look,
        ],
        [model.testbench, watch],
    )
    assert [(bool(answer.main), answer.count, answer.width) for _, answer in got_answers] == answers
    assert [(into, entry.entry, entry.key) for into, (_, entry) in zip(intos, got_index)] == index
    for base, main, own, half, shown in zip(BASES, MAIN, made, halves, smalls):
        starts = [base + 2 * sum(words[:k]) + half[k] * words[k] for k in range(levels - 1)]
        assert shown == [(start, len(array)) for start, array in zip(starts, own)]
        for start, array in zip([*starts, main[half[-1]]], own):
            assert from_words(model.contents[start : start + RECORDS], len(array), BOX, LANES) == array
    assert model.idle


def test_capacities_grow_by_a_constant_factor():
    assert capacities(1 << 20, 1 << 6, 1) == [1 << 20]
    assert capacities(1 << 20, 1 << 6, 2) == [1 << 13, 1 << 20]
    assert capacities(1000, 100, 3) == [200, 400, 1000]
    for levels in (0, 9, 1.0):
        with pytest.raises(ParameterError, match=f"^levels must be an integer from 1 to 8, not {levels}$"):
            capacities(1000, 100, levels)
