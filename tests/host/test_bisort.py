"""Sorted blocks of BI-Sort: merging two gives what sorting all of their tuples gives."""

import numpy as np
import pytest

from host import bisort
from host.bisort import Order, Sorted

#: Row numbers of the first tuple of either block.
BASES = 10, 500


def build(columns: np.ndarray, base: int, order: Order, numbers: np.ndarray | None = None) -> Sorted:
    count = columns.shape[1]
    numbers = np.arange(count) if numbers is None else numbers
    return Sorted.build(columns, numbers.astype(np.uint32), base, np.array([0, count]), order)


@pytest.mark.parametrize("packed", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("stripes", [1, 4])
@pytest.mark.parametrize("lowest", [(0, 0), (0, 2**33), (2**33, 0), (1000, 0), (2**63, 0)])
def test_merged_blocks_are_those_of_all_tuples(monkeypatch, packed, stripes, lowest):
    # Also short blocks are kept as distances, where these fit.
    monkeypatch.setattr(bisort, "PACKED", 1)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        highest = int(rng.choice([3, 100, 2**31, 2**62]))  # keys that are mostly equal, and that are not
        splitters = np.sort(rng.integers(0, highest, stripes - 1)).astype(np.uint64)
        order = Order(0, 1 if stripes > 1 else -1, splitters)
        both = [
            (rng.integers(0, highest, (3, rng.integers(1, 70))).astype(np.uint64) + np.uint64(low))
            for low in lowest
        ]
        one, other = (
            block.packed() if small else block
            for block, small in zip((build(*part, order) for part in zip(both, BASES)), packed)
        )
        merged = one.merged(other)
        numbers = [np.arange(columns.shape[1]) + base - BASES[0] for columns, base in zip(both, BASES)]
        whole = build(np.concatenate(both, axis=1), BASES[0], order, np.concatenate(numbers))
        np.testing.assert_array_equal(merged.data + merged.origins[:, None], whole.data)
        np.testing.assert_array_equal(merged.ids, whole.ids)
        np.testing.assert_array_equal(merged.offsets, whole.offsets)
        np.testing.assert_array_equal((merged.lows, merged.highs), (whole.lows, whole.highs))
