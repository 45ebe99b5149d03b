"""The low-latency chain behind a sink that hardly ever takes a result.

tuples, flushes (stalled at random) -> LowLatency -> sink (stalled for long)
"""

from collections import Counter
from itertools import product

import pytest

from hw.dimension import Dimension
from hw.lowlatency import LowLatency
from hw.parameters import Parameters
from hw.pinned import emit_pinned
from hw.socket import Kind, Tag

from .streams import simulate, sink, source

#: Tuples that a node stores in a round, and tuples that meet them: more pairs than there is room for.
STORED, PROBES = 3, 6


@pytest.mark.parametrize("stored_s", [False, True], ids=["stored_r", "stored_s"])
@pytest.mark.parametrize("cores, lanes", [(1, 1), (1, 2), (2, 1), (3, 1)])
def test_pairs_from_before_a_flush_keep_their_ids(cores, lanes, stored_s, seed):
    """Others are stored in the same places while the pairs wait. Ids differ from round to round."""
    p = Parameters(
        "lowlatency", cores=cores, segment=4, lanes=lanes, buffer=2, dims=(Dimension.parse("equal8"),)
    )
    dut = LowLatency(p)
    keeps, meets = (Kind.S, Kind.R) if stored_s else (Kind.R, Kind.S)
    words, expected = [], Counter()
    for first in (0, 100):
        stored = range(first, first + STORED * cores)
        probes = range(first, first + PROBES)
        words += [(keeps, id) for id in stored] + [(meets, id) for id in probes] + [(Kind.FLUSH, 0)]
        expected.update(product(*((probes, stored) if stored_s else (stored, probes))))
    # No queue has anything left after the first mark.
    words += [(Kind.MARK, 7), (Kind.FLUSH, 0), (Kind.MARK, 8)]
    taken, count = [], expected.total() + 2
    simulate(
        dut,
        [
            source(dut.tuples, [{"kind": kind, "id": id} for kind, id in words], seed=seed, stall=0.1),
            sink(dut.results, taken, count, seed=seed + 1, stall=0.97, limit=100 * count),
        ],
    )
    results = [payload for _, payload in taken]
    assert [result.tag for result in results[-2:]] == [Tag.MARK, Tag.MARK]
    assert [result.body.mark.id for result in results[-2:]] == [7, 8]
    pairs = [(result.body.pair.r_id, result.body.pair.s_id) for result in results[:-2]]
    assert Counter(pairs) == expected


@pytest.mark.parametrize("cores, apart", [(8, 0), (10, 2), (16, 2)])
def test_windows_in_block_ram_have_a_register_beside_it(cores, apart):
    """Whose memories have more places than tuples, where these are no power of two."""
    text = emit_pinned(Parameters("lowlatency", cores=cores, segment=8, lanes=1))
    assert text.count("no_rw_check") == apart
    assert text.count('ram_style = "block"') == apart + 1  # results wait in another
