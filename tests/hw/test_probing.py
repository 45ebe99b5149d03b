"""The probing engine, against all pairs.

::

    batch, index, commands --> [ probing ] --> results
                                |  ^   |  ^
                              [ two memory models ]
"""

import random
from collections import Counter

import numpy as np
import pytest

from hw.dimension import Dimension, Test
from hw.probing import Probing
from hw.record import record_layouts
from hw.socket import Tag

from .memory_model import MemoryModel
from .runs import flits_of, words_of
from .streams import simulate, source
from .tuples import CASES, HIGHEST, matches, tuples

SIZES = {"partition": 4, "partitions": 8, "banks": 2, "batch": 16, "address_width": 10, "ahead": 16}


def run(dims, side, lanes, batches, *, seed, stall):
    """Probes for each (batch, [(array, width, pairs), ...]); returns the results of each command."""
    dut = Probing(dims, side, lanes, **SIZES)
    layouts = record_layouts(dims)
    other = {"r": "s", "s": "r"}[side]
    models = [
        MemoryModel(port, 1 << 9, seed=seed + k, stall=stall, latency=12)
        for k, port in enumerate((dut.search, dut.gather))
    ]
    answers = []
    chance = random.Random(seed)

    async def testbench(ctx):
        number = 0
        for batch, commands in batches:
            await source(dut.batch, flits_of(batch, {}, lanes), seed=seed, stall=stall)(ctx)
            for array, width, pairs in commands:
                number += 1
                bank, address = number % 2, 5 + 64 * (number % 3)
                words = words_of(layouts[other], array, lanes)
                for model in models:
                    model.contents[address : address + len(words)] = words
                index = [
                    {"bank": bank, "entry": k, "key": record["key"]}
                    for k, record in enumerate(array[:: SIZES["partition"]])
                ]
                await source(dut.index, index, seed=seed + number, stall=stall)(ctx)
                own = {"address": address, "count": len(array), "bank": bank, "width": width}
                await source(dut.command, [{"array": own, "pairs": pairs}], seed=seed, stall=stall)(ctx)
                answers.append(await results(ctx))

    async def results(ctx):
        got = []
        for _ in range(20_000):
            ready = chance.random() >= stall
            ctx.set(dut.results.ready, ready)
            _, _, valid, result = await ctx.tick().sample(dut.results.valid, dut.results.payload)
            if valid and ready:
                got.append(result)
                if result.tag == Tag.MARK:
                    ctx.set(dut.results.ready, 0)
                    return got[:-1]
        raise AssertionError(f"no mark behind {len(got)} results")

    simulate(dut, [testbench], [model.testbench for model in models])
    assert all(model.idle for model in models)
    return answers


@pytest.mark.parametrize("side", ["r", "s"])
@pytest.mark.parametrize("text", CASES)
def test_pairs_are_all_that_match_and_ranges_hold_them(side, text, seed, rng):
    lanes, stall = int(rng.choice([1, 2, 4])), float(rng.choice([0, 0.3]))
    print(f"{lanes} lanes, stalls {stall}")
    dims = tuple(Dimension.parse(part) for part in text.split(","))
    other = {"r": "s", "s": "r"}[side]
    batches, expected = [], []
    for size, array_sizes in ((7, (27, 0)), (0, (5,)), (16, (9,))):
        mine, batch = tuples(dims, side, size, rng, 40)
        commands = []
        for array_size in array_sizes:
            theirs, array = tuples(dims, other, array_size, rng, 40)
            r, s = (mine, theirs) if side == "r" else (theirs, mine)
            width = int((s[0]["hi"] - s[0]["lo"]).max(initial=0))
            commands += [(array, width, True), (array, width, False)]
            expected += [(dims, r, s)] * 2
        batches.append((batch, commands))
    answers = run(dims, side, lanes, batches, seed=seed, stall=stall)
    assert len(answers) == len(expected)
    for number, (got, (dims, r, s)) in enumerate(zip(answers, expected)):
        if number % 2 == 0:
            assert all(result.tag == Tag.PAIR for result in got)
            pairs = Counter((result.body.pair.r_id, result.body.pair.s_id) for result in got)
            assert pairs == Counter((int(i), 1000 + int(j)) for i, j in np.argwhere(matches(dims, r, s)))
            continue
        assert all(result.tag == Tag.RANGE for result in got)
        found = matches(dims[:1], r, s)
        found = found if side == "r" else found.T
        covered = np.zeros_like(found)
        for result in got:
            own = result.body.range
            slot = own.id % 1000
            assert own["not"] == dims[0].negated
            covered[slot, own.start : own.end] = True
            covered[slot] ^= dims[0].negated
        assert sorted(result.body.range.id % 1000 for result in got) == list(range(len(found)))
        exact = side == "s" or dims[0].test is not Test.BAND
        assert (covered == found).all() if exact else not (found & ~covered).any()


def test_ranges_of_bands_of_equal_width_are_exact_both_ways(seed, rng):
    dims = (Dimension.parse("band8"),)
    points, r = tuples(dims, "r", 16, rng, 0)
    low = np.sort(rng.integers(0, HIGHEST - 9, 30))
    s = [{"key": int(key), "id": 1000 + n, "hi": int(key) + 10} for n, key in enumerate(low)]
    [got] = run(dims, "r", 4, [(r, [(s, 10, False)])], seed=seed, stall=0.2)
    found = matches(dims, points, [{"lo": low, "hi": low + 10}])
    for result in got:
        own = result.body.range
        assert np.flatnonzero(found[own.id]).tolist() == list(range(own.start, own.end))


def test_boxes_of_one_width_and_of_many_take_turns(seed, rng):
    """Upper bounds that come sorted do not wait for the sorter; what it makes of them is no later batch's."""
    dims = (Dimension.parse("band8"),)
    points, r = tuples(dims, "r", 30, rng, 0)
    batches, expected = [], []
    for size, one_width in (
        (16, True),
        (3, True),
        (13, False),
        (16, True),
        (2, False),
        (5, False),
        (16, True),
    ):
        boxes, s = tuples(dims, "s", size, rng, 40)
        if one_width:
            boxes[0]["hi"] = np.minimum(boxes[0]["lo"] + 20, HIGHEST)
            s = [{**record, "hi": int(high)} for record, high in zip(s, boxes[0]["hi"])]
        batches.append((s, [(r, 0, True)]))
        expected.append(
            Counter((int(i), 1000 + int(j)) for i, j in np.argwhere(matches(dims, points, boxes)))
        )
    answers = run(dims, "s", 2, batches, seed=seed, stall=0.0)
    assert [Counter((own.body.pair.r_id, own.body.pair.s_id) for own in got) for got in answers] == expected
