"""The search for ranges, against NumPy.

::

    keys, index --> [ search ] --> ranges
                      |    ^
                   [ memory model ]
"""

import numpy as np
import pytest

from hw.dimension import Dimension
from hw.record import record_layouts
from hw.search import Search

from .memory_model import MemoryModel
from .runs import flits_of, words_of
from .streams import simulate, sink, source

BATCH, BANKS, ADDRESS = 64, 2, 12
HIGHEST = 255


def expected(keys: np.ndarray, low: np.ndarray, high: np.ndarray) -> list[tuple[int, int, int]]:
    """(slot, start, end) of each tuple."""
    starts = np.searchsorted(keys, low, "left")
    ends = np.searchsorted(keys, high, "right")
    return list(zip(range(len(low)), starts.tolist(), ends.tolist()))


def partitions_of(keys: np.ndarray, low: np.ndarray, high: np.ndarray, partition: int) -> list[int]:
    """The partitions that must be read: those that hold the last record before a bound."""
    first = keys[::partition]
    found = {*np.searchsorted(first, low, "left").tolist(), *np.searchsorted(first, high, "right").tolist()}
    return sorted(number - 1 for number in found if number)


def run(
    keys, lower, upper, *, dim="band8", side="s", lanes=4, partition=8, width=0, seed=1, stall=0.0, bank=1
):
    """Searches `keys` for a batch; `upper` is a list of (key, slot). Returns ranges, bursts and cycles."""
    dims = (Dimension.parse(dim),)
    dut = Search(
        dims,
        side,
        lanes,
        partition=partition,
        partitions=16,
        banks=BANKS,
        batch=BATCH,
        address_width=ADDRESS,
        ahead=16,
    )
    model = MemoryModel(dut.memory, 1 << 9, seed=seed, stall=stall, latency=12)
    records = [{"key": int(key), "id": number} for number, key in enumerate(keys)]
    words = words_of(record_layouts(dims)["r" if side == "s" else "s"], records, lanes)
    address = 37
    model.contents[address : address + len(words)] = words
    index = [
        {"bank": own, "entry": k, "key": int(key) if own == bank else HIGHEST - int(key)}
        for own in range(BANKS)
        for k, key in enumerate(keys[::partition])
    ]
    nothing = {"key": 0, "id": 0}
    loads = {
        dut.index: index,
        dut.lower: flits_of([{"key": int(key), "id": 0} for key in lower], nothing, lanes),
        dut.upper: flits_of([{"key": int(key), "id": slot} for key, slot in upper], nothing, lanes),
    }
    taken = []
    cycles = []

    async def searching(ctx):
        array = {"address": address, "count": len(keys), "bank": bank, "width": width}
        for repeat in range(2):
            ctx.set(dut.array, array)
            ctx.set(dut.start, 1)
            await ctx.tick()
            ctx.set(dut.start, 0)
            got = []
            await sink(dut.ranges, got, len(lower) + 1, seed=seed + repeat, stall=stall)(ctx)
            taken.append([(item.slot, item.start, item.end) for _, item in got if not item.closing])
            assert got[-1][1].closing
            cycles.append(got[-1][0])
        for _ in range(20):
            assert not ctx.get(dut.ranges.valid)
            await ctx.tick()

    async def loading(ctx):
        for number, (stream, payloads) in enumerate(loads.items()):
            await source(stream, payloads, seed=seed + number, stall=stall)(ctx)
        await searching(ctx)

    simulate(dut, [loading], [model.testbench])
    assert model.idle
    assert taken[0] == taken[1]
    bursts = len(model.reads) // 2
    assert model.reads[:bursts] == model.reads[bursts:]
    return sorted(taken[0]), [((a - address) * lanes, n) for a, n in model.reads[:bursts]], cycles[1]


def boxes(rng, size: int, spread: int) -> tuple[np.ndarray, np.ndarray]:
    low = np.sort(rng.integers(0, HIGHEST + 1, size))
    return low, np.minimum(low + rng.integers(0, spread + 1, size), HIGHEST)


ARRAYS = {
    "random": lambda rng, size: np.sort(rng.integers(0, HIGHEST + 1, size)),
    "few keys": lambda rng, size: np.sort(rng.integers(100, 104, size)),
    "one key": lambda rng, size: np.full(size, 77),
    "ends": lambda rng, size: np.sort(rng.choice([0, HIGHEST], size)),
}


@pytest.mark.parametrize("kind", ARRAYS)
@pytest.mark.parametrize("lanes, partition", [(1, 4), (2, 2), (4, 8), (8, 8)])
@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_ranges_are_those_of_searchsorted(kind, lanes, partition, stall, seed, rng):
    size = int(rng.integers(partition, 16 * partition + 1))
    keys = ARRAYS[kind](rng, size)
    low, high = boxes(rng, BATCH, 30)
    special = rng.choice(BATCH, 12, replace=False)
    low[special[:4]], high[special[:4]] = 0, [0, HIGHEST, 76, 77]
    low[special[4:8]], high[special[4:8]] = [76, 77, 78, HIGHEST], HIGHEST
    low[special[8:]] = high[special[8:]] = keys[rng.integers(0, size, 4)]
    order = np.argsort(low, kind="stable")
    low, high = low[order], high[order]
    upper = sorted(zip(high.tolist(), range(BATCH)))
    got, bursts, _ = run(keys, low, upper, lanes=lanes, partition=partition, seed=seed, stall=stall)
    assert got == expected(keys, low, high)
    read = partitions_of(keys, low, high, partition)
    assert [start for start, _ in bursts] == [number * partition for number in read]
    assert [length for _, length in bursts] == [
        -(-min(partition, size - number * partition) // lanes) for number in read
    ]
