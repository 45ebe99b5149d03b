"""The indexer.

source (stalled at random) -> Indexer -> sink, index (stalled at random)
"""

import numpy as np
import pytest

from hw.errors import ParameterError
from hw.indexer import Indexer, flits_of_partition

from .runs import RECORD, flits, numbered, runs_of
from .streams import simulate, sink, source


@pytest.mark.parametrize("lanes, partition", [(1, 1), (1, 8), (4, 4), (4, 16)])
@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_every_partition_is_told_once_and_the_run_goes_on(lanes, partition, stall, seed, rng):
    dut = Indexer(RECORD, lanes, partition, entries=64)
    runs = [np.sort(rng.integers(0, 1 << 32, count)) for count in (40, 0, 1, partition, 33, 64)]
    runs = [keys[: 64 * partition] for keys in runs]
    payloads = [flit for keys in runs for flit in flits(numbered(keys), lanes)]
    expected = [(entry, key) for keys in runs for entry, key in enumerate(keys[::partition])]
    taken, index = [], []
    simulate(
        dut,
        [
            source(dut.input, payloads, seed=seed, stall=stall),
            sink(dut.output, taken, len(payloads), seed=seed + 1, stall=stall),
            sink(dut.index, index, len(expected), seed=seed + 2, stall=stall),
        ],
    )
    for got, keys in zip(runs_of([flit for _, flit in taken], lanes), runs, strict=True):
        np.testing.assert_array_equal(got[:, 0], keys)
    assert [(one.entry, one.key) for _, one in index] == expected
    if not stall:
        assert taken[-1][0] == len(payloads) - 1, "a flit passes in every cycle"


@pytest.mark.parametrize("partition", [0, 2, 12, 4.0, "8"])
def test_other_partitions_are_refused(partition):
    with pytest.raises(
        ParameterError, match=f"^partition must be a power of two from 4 on, not {partition!r}$"
    ):
        flits_of_partition(4, partition)
