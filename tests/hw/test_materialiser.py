"""The materialiser: ranges of an array become the pairs in them.

::

    candidates --> [ materialiser ] --> pairs
                      |    ^
                   [ memory model ]
"""

from itertools import pairwise

import pytest

from hw.dimension import Dimension
from hw.materialiser import LONGEST, Materialiser
from hw.record import record_layouts

from .memory_model import MemoryModel
from .runs import words_of
from .streams import simulate, sink, source
from .tuples import CASES, matches, tuples

ADDRESS, MEMORY_LATENCY = 37, 12
OTHER = {"r": "s", "s": "r"}


def run(dims, side, lanes, array, candidates, *, expected, seed, stall=0.0):
    """The pairs of `candidates`, (record, start, end) each, as (cycle, r, s), and the bursts they took."""
    sizes = {"capacity": 1024, "address_width": 11, "ahead": 8}
    dut = Materialiser(dims, side, lanes, **sizes)
    model = MemoryModel(dut.memory, 1 << 11, seed=seed, stall=stall, latency=MEMORY_LATENCY)
    words = words_of(record_layouts(dims)[OTHER[side]], array, lanes)
    model.contents[ADDRESS : ADDRESS + len(words)] = words
    payloads = [{"probe": probe, "start": start, "end": end} for probe, start, end in candidates]
    taken = []

    async def configured(ctx):
        ctx.set(dut.address, ADDRESS)
        ctx.set(dut.count, len(array))
        await source(dut.candidates, [*payloads, {"closing": 1}], seed=seed, stall=stall)(ctx)

    async def taking(ctx):
        await sink(dut.pairs, taken, expected + 1, seed=seed + 1, stall=stall)(ctx)
        for _ in range(20):
            assert not ctx.get(dut.pairs.valid)
            await ctx.tick()

    simulate(dut, [configured, taking], [model.testbench])
    assert model.idle
    assert [item.closing for _, item in taken] == [0] * expected + [1]
    pairs = [(cycle, item.pair.r_id, item.pair.s_id) for cycle, item in taken]
    return pairs, [((address - ADDRESS) * lanes, length) for address, length in model.reads]


@pytest.mark.parametrize("stall", [0.0, 0.3])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("side", ["r", "s"])
@pytest.mark.parametrize("text", CASES)
def test_pairs_of_ranges(text, side, lanes, stall, seed, rng):
    """In the order of the ranges, and in each in that of the array; outside of it for a negated dimension."""
    dims = tuple(Dimension.parse(part) for part in text.split(","))
    mine, probes = tuples(dims, side, 9, rng, 40)
    theirs, array = tuples(dims, OTHER[side], int(rng.integers(1, 50)), rng, 40)
    found = matches(dims, mine, theirs) if side == "r" else matches(dims, theirs, mine).T
    candidates, expected = [], []
    for k, probe in enumerate(probes):
        start, end = sorted(rng.integers(0, len(array) + 1, 2).tolist())
        candidates.append((probe, start, end))
        for n, record in enumerate(array):
            if (start <= n < end) != dims[0].negated and found[k, n]:
                expected.append((probe["id"], record["id"]) if side == "r" else (record["id"], probe["id"]))
    pairs, _ = run(dims, side, lanes, array, candidates, expected=len(expected), seed=seed, stall=stall)
    assert [ids for _, *ids in pairs[:-1]] == [list(ids) for ids in expected]


@pytest.mark.parametrize("lanes", [1, 4])
def test_only_the_words_of_a_range_are_read(lanes, seed):
    array = [{"key": 1, "id": n} for n in range(2 * LONGEST * lanes + 3)]
    begin, end = 2 * lanes + lanes // 2, len(array) - 1
    probe = {"key": 2, "id": 7}
    candidates = [(probe, begin, end), (probe, 5, 5)]
    _, bursts = run((Dimension.parse("equal8"),), "r", lanes, array, candidates, expected=0, seed=seed)
    # Bursts end at multiples of their greatest length.
    cuts = [begin // lanes]
    while cuts[-1] < -(-end // lanes):
        whole = LONGEST - (ADDRESS + cuts[-1]) % LONGEST
        cuts.append(min(cuts[-1] + whole, -(-end // lanes)))
    assert bursts == [(first * lanes, last - first) for first, last in pairwise(cuts)]


def test_latency_and_rates(seed):
    """The first pair after the memory's latency and 8 cycles; then a pair or a word in every cycle."""
    lanes, dims = 4, (Dimension.parse("equal8"),)
    array = [{"key": 1, "id": n} for n in range(64)]
    all_equal, none_equal = (({"key": key, "id": 7}, 0, len(array)) for key in (1, 2))
    pairs, _ = run(dims, "r", lanes, array, [all_equal], expected=len(array), seed=seed)
    first = pairs[0][0]
    assert first == 1 + MEMORY_LATENCY + 8  # the model answers one cycle later
    assert [cycle for cycle, *_ in pairs] == list(range(first, first + len(array) + 1))
    pairs, _ = run(dims, "r", lanes, array, [none_equal], expected=0, seed=seed)
    assert pairs[0][0] == first + len(array) // lanes
