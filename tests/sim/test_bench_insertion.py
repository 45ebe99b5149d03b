"""The benchmark of insertion, in a size that takes a moment."""

import numpy as np

from sim.bench_insertion import Bench, filled


def test_the_gateware_moves_as_many_records_as_are_counted(rng):
    """What `insert` puts into memory it compares with NumPy's."""
    batches = [np.sort(rng.integers(0, 1 << 32, 32)) for _ in range(64)]
    bench = Bench(lanes=2, levels=3, records=2048, batch=32)
    cost = bench.insert(np.arange(0), batches)
    counted = filled(2048, 32, 3)
    assert (cost.read + cost.written) * 2 == counted.moved
    assert counted.moved < filled(2048, 32, 2).moved < filled(2048, 32, 1).moved == 2048 * 64
    assert 2 < counted.arrays < 3
