"""The merger of whole flits.

first, second (stalled at random) -> FlitMerger -> sink (stalled at random)
"""

import numpy as np
import pytest

from hw.errors import ParameterError
from hw.flit_merger import FlitMerger, log2_lanes

from .runs import RECORD, flits, numbered, runs_of
from .streams import simulate, sink, source

LANES = (1, 2, 4, 8, 16)


def merged(first, second) -> np.ndarray:
    """Ids number the records in order of arrival, first run before second."""
    keys = np.concatenate([first, second]).astype(np.int64)
    order = np.argsort(keys, kind="stable")
    return np.stack([keys[order], order], axis=1)


def run(lanes, pairs, *, seed=1, stalls=(0.0, 0.0, 0.0)):
    """Merges each pair of sorted keys; returns the runs and the cycles of the flits."""
    dut, taken = FlitMerger(RECORD, lanes), []
    numbers = [numbered(np.concatenate(pair)) for pair in pairs]
    first = [flit for all, (one, _) in zip(numbers, pairs) for flit in flits(all[: len(one)], lanes)]
    second = [flit for all, (one, _) in zip(numbers, pairs) for flit in flits(all[len(one) :], lanes)]
    count = sum(max(1, -(-(len(one) + len(two)) // lanes)) for one, two in pairs)
    simulate(
        dut,
        [
            source(dut.first, first, seed=seed, stall=stalls[0]),
            source(dut.second, second, seed=seed + 1, stall=stalls[1]),
            sink(dut.output, taken, count, seed=seed + 2, stall=stalls[2]),
        ],
    )
    runs = runs_of([flit for _, flit in taken], lanes)
    assert len(runs) == len(pairs)
    for got, (one, two) in zip(runs, pairs):
        np.testing.assert_array_equal(got, merged(one, two))
    return len(first) + len(second), [cycle for cycle, _ in taken]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("stalls", [(0, 0, 0), (0.6, 0, 0), (0, 0.6, 0.2), (0.3, 0.3, 0.6)])
def test_runs_are_merged_in_order_and_stable(lanes, stalls, seed, rng):
    pairs = []
    for _ in range(16):
        span = int(rng.choice([1, 3, 40, 1 << 32]))
        pairs.append([np.sort(rng.integers(0, span, rng.integers(0, 4 * lanes + 2))) for _ in range(2)])
    run(lanes, pairs, seed=seed, stalls=stalls)


@pytest.mark.parametrize("lanes", LANES)
def test_every_pair_of_short_runs(lanes):
    """All lengths to beyond two flits, with keys that are all equal, disjoint either way, or alternate."""
    pairs = []
    lengths = range(2 * lanes + 2) if lanes < 8 else (0, 1, lanes - 1, lanes, lanes + 1, 2 * lanes)
    for n in lengths:
        for k in lengths:
            one, two = np.arange(n), np.arange(k)
            pairs += [(one * 0, two * 0), (one, two + n), (one + k, two), (2 * one, 2 * two + 1)]
    run(lanes, pairs)


TOP = (1 << 32) - 1
FLITS = 12
DISTRIBUTIONS = {
    "equal": lambda n, rng: (np.zeros(n, int), np.zeros(n, int)),
    "highest": lambda n, rng: (np.full(n, TOP), np.full(n, TOP)),
    "first below": lambda n, rng: (np.arange(n), np.arange(n) + n),
    "first above": lambda n, rng: (np.arange(n) + n, np.arange(n)),
    "alternating": lambda n, rng: (2 * np.arange(n), 2 * np.arange(n) + 1),
    "second empty": lambda n, rng: (np.arange(n), np.arange(0)),
    "first empty": lambda n, rng: (np.arange(0), np.arange(n)),
    "few in many": lambda n, rng: (np.arange(n), np.sort(rng.integers(0, n, 3))),
    "duplicates": lambda n, rng: (np.sort(rng.integers(0, 3, n)), np.sort(rng.integers(0, 3, n))),
    "uniform": lambda n, rng: (np.sort(rng.integers(0, TOP, n)), np.sort(rng.integers(0, TOP, n))),
}


@pytest.mark.parametrize("lanes", LANES)
def test_a_flit_comes_out_in_every_cycle(lanes, rng):
    pairs = [make(FLITS * lanes - 1, rng) for make in DISTRIBUTIONS.values()]
    count, cycles = run(lanes, pairs)
    assert cycles[0] == FlitMerger.latency(lanes)
    assert cycles[-1] < count + FlitMerger.latency(lanes)


@pytest.mark.parametrize("lanes", [0, 3, 32, "4"])
def test_other_lanes_are_refused(lanes):
    with pytest.raises(ParameterError, match=f"^lanes must be 1, 2, 4, 8 or 16, not {lanes!r}$"):
        log2_lanes(lanes)
