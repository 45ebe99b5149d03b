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
MAIN = (0, 200)
BASE = 1000


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
        base=BASE,
        burst=8,
        ahead=32,
    )
    model = MemoryModel(dut.memory, 1 << ADDRESS_WIDTH, seed=seed, stall=stall)
    room = capacities(RECORDS, BATCH, levels)
    words = small_words(RECORDS, BATCH, levels, LANES)
    sizes = [BATCH] * 20 + [0, 3, BATCH, 0, 1]
    levels_made = [[] for _ in range(levels)]  # what is in each, the main array last
    halves = [0] * levels
    commands, batches, answers, index = [], [], [], []
    for number, size in enumerate(sizes):
        batch = sorted_records(rng, BOX, size, int(rng.choice([3, 1 << 16])), 100 * number)
        whole = number == len(sizes) - 2
        commands.append(
            {
                "main": {"address": MAIN[halves[-1]], "count": len(levels_made[-1])},
                "target": MAIN[1 - halves[-1]],
                "batch": size,
                "whole": whole,
            }
        )
        batches += flits(batch, LANES)
        level = level_for([len(one) for one in levels_made], size, room, whole=whole)
        older = [record for one in reversed(levels_made[: level + 1]) for record in one]
        made = sorted(older + batch, key=itemgetter("key"))
        levels_made[: level + 1] = [[] for _ in range(level)] + [made]
        halves[level] ^= 1
        into = None if level == levels - 1 else 2 * level + halves[level]
        width = max((record["hi"] - record["key"] for record in made), default=0)
        answers.append((into is None, len(made), width))
        index += [(into, k, record["key"]) for k, record in enumerate(made[::PARTITION])]
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
        smalls.extend((small.address, small.count) for small in map(ctx.get, dut.smalls))

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
    starts = [BASE + 2 * sum(words[:k]) + halves[k] * words[k] for k in range(levels - 1)]
    assert smalls == [(start, len(made)) for start, made in zip(starts, levels_made)]
    for start, made in zip([*starts, MAIN[halves[-1]]], levels_made):
        assert from_words(model.contents[start : start + RECORDS], len(made), BOX, LANES) == made
    assert model.idle


def test_capacities_grow_by_a_constant_factor():
    assert capacities(1 << 20, 1 << 6, 1) == [1 << 20]
    assert capacities(1 << 20, 1 << 6, 2) == [1 << 13, 1 << 20]
    assert capacities(1000, 100, 3) == [200, 400, 1000]
    for levels in (0, 9, 1.0):
        with pytest.raises(ParameterError, match=f"^levels must be an integer from 1 to 8, not {levels}$"):
            capacities(1000, 100, levels)
