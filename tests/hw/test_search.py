"""The search for ranges, against NumPy.

::

    keys, index --> [ search ] --> ranges
                      |    ^
                   [ memory model ]
"""

import numpy as np
import pytest

from hw.dimension import Dimension
from hw.errors import ParameterError
from hw.record import record_layouts
from hw.search import Search, check_sizes

from .memory_model import MemoryModel
from .runs import flits_of, words_of
from .streams import simulate, sink, source

BATCH, BANKS, ADDRESS = 64, 2, 12
HIGHEST = 255
#: From `start` to the first position: the memory's 12 cycles, the partitioner's steps and what lies around.
LATENCY = 12 + 3 * 5 + 17


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
@pytest.mark.parametrize("lanes, partition, stall", [(1, 4, 0.4), (2, 2, 0.0), (4, 8, 0.4), (8, 8, 0.2)])
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


@pytest.mark.parametrize("size", [0, 1, 2, 7, 128])
def test_arrays_and_batches_may_be_empty_or_full(size, seed, rng):
    keys = np.sort(rng.integers(0, HIGHEST + 1, size))
    for tuples in (0, 1, BATCH):
        low, high = boxes(rng, tuples, 200)
        upper = sorted(zip(high.tolist(), range(tuples)))
        got, bursts, _ = run(keys, low, upper, seed=seed, stall=0.2)
        assert got == expected(keys, low, high)
        assert len(bursts) == len(partitions_of(keys, low, high, 8))


@pytest.mark.parametrize(
    "dim, side", [("band8", "r"), ("equal8", "r"), ("at_least8", "r"), ("at_most8", "r")]
)
def test_points_look_for_boxes_that_may_hold_them(dim, side, seed, rng):
    keys = np.sort(rng.integers(0, HIGHEST + 1, 100))
    points = np.sort(np.append(rng.integers(0, HIGHEST + 1, BATCH - 2), [0, HIGHEST]))
    low, high = {
        "band8": (np.maximum(points - 20, 0), points),
        "equal8": (points, points),
        "at_least8": (0 * points, points),
        "at_most8": (points, 0 * points + HIGHEST),
    }[dim]
    batch = [(int(point), 0) for point in points]
    got, _, _ = run(keys, points, batch, dim=dim, side="r", width=20, seed=seed, stall=0.3)
    assert got == expected(keys, low, high)


@pytest.mark.parametrize("spread", [0, 30])
def test_a_cycle_is_a_word_or_a_bound_or_both(spread, seed, rng):
    """There are 64 words and 128 bounds, in an array of which all is read."""
    keys = np.sort(rng.integers(0, HIGHEST + 1, 128))
    low, high = boxes(rng, BATCH, spread)
    lanes, partition = 2, 8
    got, bursts, cycles = run(
        keys, low, sorted(zip(high.tolist(), range(BATCH))), lanes=lanes, partition=partition, seed=seed
    )
    assert got == expected(keys, low, high)
    words = sum(length for _, length in bursts)
    positions = np.sort([place for _, start, end in got for place in (start, end)])
    in_word = np.bincount(np.minimum(positions // lanes, 63), minlength=64)
    # Where a bound falls behind the last record of a partition, the next one's first word may wait for it.
    least = np.maximum(in_word, 1).sum()
    assert words == 64
    assert least <= cycles + 1 <= min(words + 2 * BATCH, least + len(bursts)) + LATENCY


@pytest.mark.parametrize("keys", [[], [3]])
def test_latency(keys, seed):
    """The closing range follows the only one in the next cycle; what is not read takes two cycles."""
    got, _, cycles = run(np.array(keys, int), [5], [(5, 0)], seed=seed)
    assert got == [(0, len(keys), len(keys))]
    assert cycles == 3 * 4 + 14 + (12 if keys else 2)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"lanes": 3}, "lanes must be a power of two from 1 on, not 3"),
        ({"partition": 2}, "partition must be a power of two from 4 on, not 2"),
        ({"partitions": 1}, "partitions must be a power of two from 2 on, not 1"),
        ({"batch": 4}, "batch must be a power of two from 8 on, not 4"),
        ({"banks": 1}, "banks must be at least 2, not 1"),
    ],
)
def test_refusals(change, message):
    sizes = {"lanes": 4, "partition": 8, "partitions": 16, "banks": 2, "batch": 64} | change
    with pytest.raises(ParameterError, match=f"^{message}$"):
        check_sizes(**sizes)
