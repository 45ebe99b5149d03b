"""The insertion engine.

::

    commands, batches --> [ insertion ] --> answers, index
                             |     ^
                          [ memory model ]      (stalled at random, all of them)
"""

from itertools import chain
from operator import itemgetter

import pytest

from hw.insertion import Insertion

from .memory_model import MemoryModel
from .runs import BOX, RECORD, flits, from_words, numbered, sorted_records, words_of
from .streams import simulate, sink, source

ADDRESS_WIDTH = 14
BURST = 8
PARTITION = 16
RECORDS = 200
COMMANDS = 5
#: Words between which an array and its target lie.
SLOT = 256


@pytest.mark.parametrize(
    "lanes, levels, layout", [(1, 1, BOX), (2, 2, RECORD), (4, 1, BOX), (4, 3, RECORD), (8, 1, RECORD)]
)
@pytest.mark.parametrize("stall", [0.0, 0.3])
def test_batches_are_merged_with_arrays_in_memory(lanes, levels, layout, stall, seed, rng):
    dut = Insertion(
        layout,
        lanes,
        records=RECORDS,
        partition=PARTITION,
        address_width=ADDRESS_WIDTH,
        levels=levels,
        burst=BURST,
        ahead=4 * BURST,
    )
    model = MemoryModel(dut.memory, 1 << ADDRESS_WIDTH, seed=seed, stall=stall)
    slots = iter(rng.permutation((1 << ADDRESS_WIDTH) // SLOT))
    commands, batches, answers, index, targets = [], [], [], [], []
    for _ in range(COMMANDS):
        span = int(rng.choice([1, 5, 1 << 16]))
        counts = [int(rng.integers(0, RECORDS // (levels + 1))) * (rng.random() < 0.8) for _ in range(levels)]
        places = [int(next(slots)) * SLOT + int(rng.integers(0, 20)) for _ in range(levels + 1)]
        arrays = [sorted_records(rng, layout, count, span, 1000 * k) for k, count in enumerate(counts)]
        for array, place in zip(arrays, places):
            words = words_of(layout, array, lanes)
            model.contents[place : place + len(words)] = words
        batch = sorted_records(rng, layout, int(rng.choice([0, 1, 30, RECORDS - sum(counts)])), span, 10_000)
        batches += flits(batch, lanes)
        given = [{"address": place, "count": count} for place, count in zip(places, counts)]
        commands.append({"arrays": given, "target": places[-1]})
        # The oldest array comes last in the command, and first among equals.
        records = sorted(chain(*reversed(arrays), batch), key=itemgetter("key"))
        width = max((record["hi"] - record["key"] for record in records if "hi" in record), default=0)
        answers.append((len(records), width))
        index += [(k, record["key"]) for k, record in enumerate(records[::PARTITION])]
        targets.append((places[-1], records))

    before = list(model.contents)
    got_answers, got_index = [], []
    simulate(
        dut,
        [
            source(dut.commands, commands, seed=seed, stall=stall),
            source(dut.batch, batches, seed=seed + 1, stall=stall),
            sink(dut.answers, got_answers, COMMANDS, seed=seed + 2, stall=stall),
            sink(dut.index, got_index, len(index), seed=seed + 3, stall=stall),
        ],
        [model.testbench],
    )
    assert [(answer.count, answer.width) for _, answer in got_answers] == answers
    assert [(entry.entry, entry.key) for _, entry in got_index] == index
    for place, records in targets:
        count = -(-len(records) // lanes)
        words = model.contents[place : place + count]
        assert from_words(words, len(records), layout, lanes) == records
        before[place : place + count] = words
    assert model.contents == before, "written elsewhere"
    assert model.idle
    for bursts in (model.reads, model.writes):
        assert all(address // BURST == (address + length - 1) // BURST for address, length in bursts)


#: Keys of run `i` of `n`, of which the last is the batch, in place `k` of `each`.
DISTRIBUTIONS = {
    "equal": lambda i, n, k, each: 0,
    "batch below": lambda i, n, k, each: (i + 1) % n * each + k,
    "batch above": lambda i, n, k, each: i * each + k,
    "alternating": lambda i, n, k, each: n * k + i,
}


@pytest.mark.parametrize("lanes, levels, words", [(1, 1, 60), (4, 1, 60), (2, 2, 150)])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_word_is_written_in_every_cycle(lanes, levels, words, name, seed):
    latency, burst, ahead = 20, 16, 64
    each, runs = words * lanes, levels + 1
    sizes = {"partition": PARTITION, "address_width": ADDRESS_WIDTH, "levels": levels, "burst": burst}
    dut = Insertion(RECORD, lanes, records=runs * each, ahead=ahead, **sizes)
    model = MemoryModel(dut.memory, 1 << ADDRESS_WIDTH, seed=seed, stall=0, latency=latency)
    keys = [[DISTRIBUTIONS[name](i, runs, k, each) for k in range(each)] for i in range(runs)]
    for i in range(levels):
        model.contents[i * SLOT : i * SLOT + words] = words_of(RECORD, numbered(keys[i]), lanes)
    arrays = [{"address": i * SLOT, "count": each} for i in range(levels)]
    answers, index = [], []
    simulate(
        dut,
        [
            source(dut.commands, [{"arrays": arrays, "target": levels * SLOT}], seed=seed, stall=0),
            source(dut.batch, flits(numbered(keys[-1]), lanes), seed=seed, stall=0),
            sink(dut.answers, answers, 1, seed=seed, stall=0),
            sink(dut.index, index, -(-runs * each // PARTITION), seed=seed, stall=0),
        ],
        [model.testbench],
    )
    got = from_words(model.contents[levels * SLOT :], runs * each, RECORD, lanes)
    assert [record["key"] for record in got] == sorted(chain(*keys))
    # Beside a cycle per word: the way of the first words and of the last, a burst that is gathered, and words
    # of other arrays which come before they are needed, while those that are needed wait.
    assert answers[0][0] <= runs * words + 2 * latency + burst + (levels - 1) * ahead + 25
