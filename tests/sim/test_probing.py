"""The probing engine in Verilator: arrays of thousands, with stalls on all streams and channels.

::

    batch, index, commands --> [ probing ] --> results
                                |  ^   |  ^
                                [ memory ]
"""

import numpy as np
import pytest

from hw.dimension import Dimension
from hw.probing import Probing
from hw.record import record_layouts
from hw.socket import RESULT_LAYOUT, Tag
from hw.words import pack, pack_run, unpack, unpack_results
from sim.engine import load

DIMS = (Dimension.parse("band16"), Dimension.parse("at_least8"))
LANES, PARTITION, BATCH, ADDRESS = 4, 16, 256, 100
LAYOUTS = record_layouts(DIMS)


@pytest.fixture(scope="module")
def built():
    engine = Probing(
        DIMS, "s", LANES, partition=PARTITION, partitions=256, banks=2, batch=BATCH, address_width=11
    )
    return load(lambda: engine, "probing_band16_at_least8"), engine


@pytest.mark.parametrize("stalls", [(0, 0), (100, 0), (0, 100), (80, 80)])
def test_pairs_and_ranges_are_numpys(built, stalls, seed, rng):
    library, engine = built
    with library.open() as model:
        for size, count, highest, spread in ((256, 4001, 1 << 16, 1300), (77, 1500, 40, 15)):
            keys = np.sort(rng.integers(0, highest, count))
            ages = rng.integers(0, 256, count)
            low = np.sort(rng.integers(0, highest, size))
            high = np.minimum(low + rng.integers(0, spread, size), highest - 1)
            since = rng.integers(0, 256, size)
            array = pack(LAYOUTS["r"], {"key": keys, "id": np.arange(count), "d1": ages}, count)
            words = -(-count // LANES)
            room = model.memory[ADDRESS : ADDRESS + words].reshape(-1)
            room[: array.size] = array.reshape(-1)
            first = keys[::PARTITION]
            index = {"bank": 1, "entry": np.arange(len(first)), "key": first}
            model.run({"index": pack(engine.index.p.shape(), index, len(first))}, {})
            box = {"key": low, "id": np.arange(size), "hi": high, "d1.lo": since}
            command = {"array.address": ADDRESS, "array.count": count, "array.bank": 1, "pairs": [1, 0]}
            inside = (keys >= low[:, None]) & (keys <= high[:, None])
            expected = np.argwhere(inside & (ages >= since[:, None]))
            batch = pack_run(LAYOUTS["s"], pack(LAYOUTS["s"], box, size), LANES)
            options = {"stall_seed": seed, "stall_in": stalls[0], "stall_out": stalls[1]}
            model.run({"batch": batch}, {}, **options)
            run = model.run(
                {"command": pack(engine.command.p.shape(), command, 2)},
                {"results": len(expected) + size + 2},
                **options,
            )
            rows = run.outputs["results"]
            results = unpack_results(rows)
            tags = [(Tag.PAIR, len(expected)), (Tag.MARK, 1), (Tag.RANGE, size), (Tag.MARK, 1)]
            assert results.tag.tolist() == [tag.value for tag, number in tags for _ in range(number)]
            pairs = np.stack([results.s_id, results.r_id])[:, : len(expected)].T
            assert sorted(pairs.tolist()) == expected.tolist()
            ranges = rows[len(expected) + 1 : -1]
            fields = ("id", "start", "end")
            slot, start, end = (unpack(RESULT_LAYOUT, ranges, f"body.range.{name}") for name in fields)
            assert sorted(slot.tolist()) == list(range(size))
            assert (start == np.searchsorted(keys, low)[slot]).all()
            assert (end == np.searchsorted(keys, high, "right")[slot]).all()
