"""The sorter of batches.

source (stalled at random) -> Sorter -> sink (stalled at random)
"""

from itertools import pairwise

import numpy as np
import pytest

from hw.errors import ParameterError
from hw.sorter import Sorter, flits_of, network

from .runs import RECORD, flits, numbered, runs_of
from .streams import simulate, sink, source

LANES = (1, 2, 4, 8, 16)


def run(lanes, size, batches, *, seed=1, stalls=(0.0, 0.0)):
    """Sorts each batch of keys; returns the cycles of the flits that come out."""
    dut, taken = Sorter(RECORD, lanes, size), []
    payloads = [flit for keys in batches for flit in flits(numbered(keys), lanes)]
    simulate(
        dut,
        [
            source(dut.input, payloads, seed=seed, stall=stalls[0]),
            sink(dut.output, taken, len(payloads), seed=seed + 1, stall=stalls[1], limit=50_000),
        ],
    )
    runs = runs_of([flit for _, flit in taken], lanes)
    assert len(runs) == len(batches)
    for got, keys in zip(runs, batches):
        order = np.argsort(keys, kind="stable")
        np.testing.assert_array_equal(got, np.stack([np.asarray(keys)[order], order], axis=1))
    return [cycle for cycle, _ in taken]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("stalls", [(0, 0), (0.4, 0.4)])
def test_batches_are_sorted_and_stable(lanes, stalls, seed, rng):
    size = 8 * lanes
    counts = [size, 0, 1, size, size - 1, *rng.integers(0, size + 1, 2)]
    batches = [rng.integers(0, rng.choice([1, 7, 1 << 32]), count) for count in counts]
    run(lanes, size, batches, seed=seed, stalls=stalls)


@pytest.mark.parametrize("count", range(18))
def test_any_number_of_flits(count, rng):
    run(2, 32, [rng.integers(0, 9, min(32, 2 * count + 1))] * 2)


@pytest.mark.parametrize("lanes, rows", [(1, 1), (1, 2), (1, 13), (2, 16), (4, 1), (4, 3), (4, 16), (16, 8)])
def test_it_takes_the_cycles_that_it_says(lanes, rows, rng):
    cycles = run(lanes, 16 * lanes, [rng.integers(0, 1 << 32, rows * lanes)])
    said = Sorter.cycles(lanes, rows)
    assert said - 2 * (rows - 1).bit_length() - 3 <= cycles[-1] + 1 <= said


@pytest.mark.parametrize("lanes", LANES)
def test_a_network_sorts_all_zeros_and_ones(lanes):
    """Then it sorts everything (Knuth's 0-1 principle)."""
    words = np.arange(1 << lanes)
    bits = [words >> k & 1 for k in range(lanes)]
    for stage in network(lanes):
        assert len({lane for pair in stage for lane in pair}) == 2 * len(stage)
        for low, high in stage:
            bits[low], bits[high] = bits[low] & bits[high], bits[low] | bits[high]
    assert all((low <= high).all() for low, high in pairwise(bits))


@pytest.mark.parametrize("size", [0, 4, 24, 16.0, "16"])
def test_other_sizes_are_refused(size):
    with pytest.raises(ParameterError, match=f"^size must be a power of two from 8 on, not {size!r}$"):
        flits_of(4, size)
