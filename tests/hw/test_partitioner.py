"""The search in the index.

index, bounds -> Partitioner -> targets
"""

import numpy as np
import pytest

from hw.partitioner import Partitioner

from .streams import simulate, sink, source

BATCH, PARTITIONS, BANKS, HIGHEST = 64, 16, 3, 255


@pytest.mark.parametrize("entries", [0, 1, 2, 7, 16])
@pytest.mark.parametrize("kind, stall", [("random", 0.0), ("random", 0.4), ("few", 0.0), ("one", 0.4)])
def test_targets_are_those_of_searchsorted_in_any_order(entries, kind, stall, seed, rng):
    dut = Partitioner(8, BATCH, PARTITIONS, BANKS)
    first, last = {"random": (0, HIGHEST), "few": (7, 9), "one": (8, 8)}[kind]
    keys = np.sort(rng.integers(first, last + 1, (BANKS, PARTITIONS)))
    bounds = rng.integers(0, HIGHEST + 1, 200)
    bounds[::3] = rng.integers(max(first - 1, 0), min(last + 2, HIGHEST + 1), len(bounds[::3]))
    bounds[:2] = 0, HIGHEST
    uppers = rng.integers(0, 2, len(bounds))
    bank = int(rng.integers(BANKS))
    index = [{"bank": b, "entry": e, "key": int(keys[b, e])} for b in range(BANKS) for e in range(PARTITIONS)]
    given = [
        {"code": {"key": int(key), "upper": int(upper)}, "slot": n % BATCH, "closing": n == len(bounds) - 1}
        for n, (key, upper) in enumerate(zip(bounds, uppers))
    ]
    taken = []

    async def testbench(ctx):
        ctx.set(dut.bank, bank)
        ctx.set(dut.entries, entries)
        await source(dut.index, index, seed=seed, stall=stall)(ctx)
        await source(dut.bounds, given, seed=seed, stall=stall)(ctx)

    simulate(dut, [testbench, sink(dut.targets, taken, len(bounds), seed=seed + 1, stall=stall)])
    own = keys[bank, :entries]
    expected = np.where(uppers, np.searchsorted(own, bounds, "right"), np.searchsorted(own, bounds, "left"))
    for n, (_, target) in enumerate(taken):
        assert target.bound.code.key == bounds[n]
        assert target.bound.slot == n % BATCH
        assert target.none == (not expected[n] or n == len(bounds) - 1)
        assert target.none or target.partition == expected[n] - 1
    if not stall:
        cycles = [cycle for cycle, _ in taken]
        assert cycles == list(range(cycles[0], cycles[0] + len(bounds)))
        assert cycles[0] == len(index) + 3 * 5 + 1
