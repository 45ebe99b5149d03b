"""A BI-Sort joiner under command: what tuples do, subwindows, status, and ranges instead of pairs.

::

    commands, tuples --> [ joiner ] --> pairs, ranges, status
                           |    ^
                         [ memory ]
"""

from collections import Counter

import numpy as np
import pytest

from hw.bisort import Geometry
from hw.dimension import Dimension
from hw.parameters import Parameters
from hw.socket import RESULT_LAYOUT, Fault, Kind, Tag
from hw.subwindow_command import Command, encode
from hw.words import pack_boxes, pack_control, pack_points, unpack, unpack_results
from sim.dram import Timing
from sim.library import load

BAND = Parameters(
    "bisort", cores=2, segment=16, lanes=2, buffer=8, dims=(Dimension.parse("band16"),), levels=2
)
TESTS = tuple(map(Dimension.parse, ("band32", "at_least32", "at_most32")))
LARGER = Parameters("bisort", cores=2, segment=300, lanes=4, buffer=64, dims=TESTS)


class Bench:
    """A model, and the words of a run."""

    def __init__(self, parameters: Parameters, seed: int):
        self.parameters = parameters
        self.model = load(parameters).open()
        self.rng = np.random.default_rng(seed)
        self.words = []
        self.count = [0, 0]

    def command(self, command: Command, side: str, **flags: bool) -> None:
        self.words.append(
            pack_control(self.parameters.dims, Kind.INSTRUCTION, encode(command, side, **flags))
        )

    def r(self, keys) -> np.ndarray:
        """R tuples with these keys; their ids go on from the last."""
        ids = self.count[0] + np.arange(len(keys))
        self.count[0] += len(keys)
        self.words.append(pack_points(self.parameters.dims, ids, [np.asarray(keys, np.uint64)]))
        return ids

    def s(self, lo, hi) -> np.ndarray:
        ids = self.count[1] + np.arange(len(lo))
        self.count[1] += len(lo)
        bounds = ([np.asarray(bound, np.uint64)] for bound in (lo, hi))
        self.words.append(pack_boxes(self.parameters.dims, ids, *bounds))
        return ids

    def run(self) -> np.ndarray:
        """Sends all words and a mark; returns what came before the mark."""
        words = np.concatenate([*self.words, pack_control(self.parameters.dims, Kind.MARK)])
        self.words = []
        run = self.model.run(
            words, marks=1, stall_seed=int(self.rng.integers(1 << 63)), stall_in=60, stall_out=60
        )
        results, self.counters = run.results, run.counters
        assert unpack(RESULT_LAYOUT, results, "tag")[-1] == Tag.MARK.value
        return results[:-1]

    def pairs(self) -> Counter:
        results = unpack_results(self.run())
        assert set(results.tag.tolist()) <= {Tag.PAIR.value}
        return Counter(zip(results.r_id.tolist(), results.s_id.tolist()))


def _status(results: np.ndarray) -> list[dict[str, int]]:
    results = results[unpack(RESULT_LAYOUT, results, "tag") == Tag.STATUS.value]
    names = ("side", "subwindows", "oldest_empty", "newest_full", "newest", "waiting")
    columns = [unpack(RESULT_LAYOUT, results, f"body.status.{name}").tolist() for name in names]
    return [dict(zip(names, row)) for row in zip(*columns)]


@pytest.fixture
def bench(seed):
    bench = Bench(BAND, seed)
    yield bench
    bench.model.close()


def _expected(keys, r_ids, lo, hi, s_ids) -> Counter:
    inside = (keys[:, None] >= lo) & (keys[:, None] <= hi)
    return Counter((int(r_ids[i]), int(s_ids[j])) for i, j in zip(*np.nonzero(inside)))


def test_tuples_are_inserted_or_probe_as_they_are_told(bench, rng):
    keys = rng.integers(0, 40, 30)
    low = rng.integers(0, 40, 50)
    high = low + rng.integers(0, 6, 50)
    bench.command(Command.TUPLES, "r", insert=True, probe=True)
    r_ids = bench.r(keys)
    bench.command(Command.TUPLES, "s", probe=True)
    s_ids = bench.s(low, high)
    # Boxes that only probe are not found by the points behind them.
    bench.r(keys)
    assert bench.pairs() == _expected(keys, r_ids, low, high, s_ids)
    # Boxes that are only inserted meet nobody until points probe.
    bench.command(Command.TUPLES, "s", insert=True)
    bench.command(Command.TUPLES, "r", probe=True)
    s_ids = bench.s(low[:20], high[:20])
    assert not bench.pairs()
    r_ids = bench.r(keys)
    assert bench.pairs() == _expected(keys, r_ids, low[:20], high[:20], s_ids)
    # A flush forgets all commands.
    bench.words.append(pack_control(BAND.dims, Kind.FLUSH))
    r_ids, s_ids = bench.r(keys), bench.s(low, high)
    assert bench.pairs() == _expected(keys, r_ids, low, high, s_ids)


def test_subwindows_are_created_and_expired_whole(bench, rng):
    keys = rng.integers(0, 40, 12)
    bench.command(Command.STATUS, "r")
    bench.command(Command.CREATE, "r")
    bench.command(Command.STATUS, "r")
    first = bench.r(keys)
    bench.command(Command.CREATE, "r")
    second = bench.r(keys[:3])
    bench.command(Command.STATUS, "r")
    nothing = {"side": 0, "subwindows": 0, "oldest_empty": 1, "newest_full": 0, "newest": 0, "waiting": 0}
    assert _status(bench.run()) == [
        nothing,
        nothing | {"subwindows": 1},
        nothing | {"subwindows": 2, "oldest_empty": 0, "waiting": 3},
    ]
    bench.command(Command.TUPLES, "s", probe=True)
    everything = [0], [100]
    found = bench.s(*everything)
    assert bench.pairs() == _expected(
        np.concatenate([keys, keys[:3]]), np.concatenate([first, second]), *map(np.array, everything), found
    )
    bench.command(Command.EXPIRE, "r")
    found = bench.s(*everything)
    assert bench.pairs() == _expected(keys[:3], second, *map(np.array, everything), found)
    # The three that wait are of the only subwindow, and leave with it.
    bench.command(Command.EXPIRE, "r")
    bench.s(*everything)
    assert not bench.pairs()
    bench.command(Command.CREATE, "r")
    bench.r(rng.integers(0, 40, 3 + BAND.segment))
    bench.command(Command.STATUS, "r")
    [status] = _status(bench.run())
    assert status["newest_full"] == (status["newest"] >= BAND.segment)
    assert status["newest"] + status["waiting"] == 3 + BAND.segment
    assert status["waiting"] <= Geometry.of(BAND).linear


def test_live_tuples_of_the_only_subwindow_are_counted_when_it_expires(bench, rng):
    """Those of the main array, of a small one and of the insertion buffer."""
    counts = 5, 4, 4, Geometry.of(BAND).linear  # the first two are more than a small array holds
    bench.words.append(pack_control(BAND.dims, Kind.HORIZON_R, 3))
    for count in counts:
        bench.r(rng.integers(0, 40, count))
        bench.command(Command.STATUS, "r")
    [*_, status] = _status(bench.run())
    assert (status["newest"], status["waiting"]) == (sum(counts[:2]), sum(counts[2:]))
    bench.command(Command.EXPIRE, "r")
    bench.command(Command.STATUS, "r")
    [status] = _status(bench.run())
    assert status["subwindows"] == status["waiting"] == 0
    assert bench.counters["live_evictions"] == sum(counts) - 3
    bench.command(Command.TUPLES, "s", probe=True)
    bench.s([0], [100])
    assert not bench.pairs()


def test_commands_that_cannot_be_are_refused(bench):
    bench.command(Command.EXPIRE, "s")
    for _ in range(BAND.cores + 2):
        bench.command(Command.CREATE, "s")
    results = unpack_results(bench.run())
    assert results.fault.tolist() == [Fault.ILLEGAL_INSTRUCTION.value] * 2
    assert results.value.tolist() == [encode(Command.EXPIRE, "s"), encode(Command.CREATE, "s")]


@pytest.mark.parametrize("side", ["r", "s"])
def test_ranges_hold_what_pairs_would_say(bench, side, rng):
    """Main arrays are the stable sort of what was inserted; with boxes of one width ranges are exact."""
    stored = rng.integers(0, 60, 3 * BAND.segment)
    asked = rng.integers(0, 60, 20)
    for probes in (False, True):
        for other in "rs":
            bench.command(Command.TUPLES, other, insert=not probes, probe=probes, ranges=probes)
        for start in [0] if probes else range(0, len(stored), BAND.segment):
            keys = asked if probes else stored[start : start + BAND.segment]
            own = side if probes else {"r": "s", "s": "r"}[side]
            if not probes:
                bench.command(Command.CREATE, own)
            ids = bench.r(keys) if own == "r" else bench.s(keys, keys + 5)
        if not probes:
            bench.command(Command.STATUS, own)
    results = bench.run()
    tags = unpack(RESULT_LAYOUT, results, "tag")
    ranges = results[tags == Tag.RANGE.value]
    number, id, start, end, negated = (
        unpack(RESULT_LAYOUT, ranges, path).astype(int)
        for path in ("query", *(f"body.range.{name}" for name in ("id", "start", "end", "not")))
    )
    assert not negated.any()
    [status] = _status(results)
    arrays = [np.sort(stored[k : k + BAND.segment]) for k in range(0, len(stored), BAND.segment)]
    assert status["subwindows"] == len(arrays) and status["newest"] == BAND.segment and not status["waiting"]
    assert sorted(zip(number.tolist(), id.tolist())) == [(k, int(i)) for k in range(len(arrays)) for i in ids]
    for k, i, first, behind in zip(number, id, start, end):
        key = asked[i]
        low, high = (key - 5, key) if side == "r" else (key, key + 5)
        assert (first, behind) == (
            np.searchsorted(arrays[k], low, "left"),
            np.searchsorted(arrays[k], high, "right"),
        )


def test_batches_of_many_lanes_meet_exactly_once(seed, rng):
    """Larger subwindows, words of four records: merges, several partitions and expiry, without stalls."""
    parameters = LARGER
    count, dims = 6000, parameters.dims
    is_s = rng.random(count) < 0.5
    arrivals = np.arange(count)
    keys = rng.integers(0, 3000, count).astype(np.uint64)
    width = rng.integers(0, 40, count).astype(np.uint64)
    own = np.where(is_s, np.cumsum(is_s), np.cumsum(~is_s)) - 1
    opposite = np.where(is_s, np.cumsum(~is_s), np.cumsum(is_s))
    window = parameters.capacity
    base = np.uint64(window)
    point = [
        keys[~is_s],
        own[~is_s].astype(np.uint64) + base,
        opposite[~is_s].astype(np.uint64),
    ]
    low = [keys[is_s], opposite[is_s].astype(np.uint64), np.zeros(is_s.sum(), np.uint64)]
    high = [keys[is_s] + width[is_s], low[1], own[is_s].astype(np.uint64) + base]
    words = np.empty((count, load(parameters).tuple_words), np.uint32)
    words[~is_s] = pack_points(dims, own[~is_s], point)
    words[is_s] = pack_boxes(dims, own[is_s], low, high)
    with load(parameters).open() as model:
        run = model.run(np.concatenate([words, pack_control(dims, Kind.MARK)]), marks=1)
    results = unpack_results(run.results)
    found = Counter(zip(results.r_id[:-1].tolist(), results.s_id[:-1].tolist()))
    inside = (
        (point[0][:, None] >= low[0])
        & (point[0][:, None] <= high[0])
        & (point[1][:, None] >= low[1])
        & (point[2][:, None] <= high[2])
    )
    assert found == Counter(zip(*(places.tolist() for places in np.nonzero(inside))))
    assert arrivals.size and run.counters["live_evictions"] == 0


def _open(keys: np.ndarray) -> list[np.ndarray]:
    """Codes of these keys, and such that the other dimensions do not decide."""
    return [keys.astype(np.uint64), np.ones(len(keys), np.uint64), np.ones(len(keys), np.uint64)]


def test_probes_are_answered_while_a_merge_goes_on(rng):
    """A few tuples find those that are merged in the buffer; many wait, and find them in the new array."""
    latency = 50_000
    dims, batch = LARGER.dims, LARGER.buffer
    few, many = Geometry.of(LARGER).linear // 2, batch - 1
    keys = rng.integers(0, 50, (3, batch))
    mark = pack_control(dims, Kind.MARK)
    status = pack_control(dims, Kind.INSTRUCTION, encode(Command.STATUS, "r"))
    probes = pack_control(dims, Kind.INSTRUCTION, encode(Command.TUPLES, "s", probe=True))
    with load(LARGER).open(Timing(latency=latency, row_miss=0, refresh_every=0)) as model:
        for number, (count, waits) in enumerate(((few, False), (many, True), (few, False))):
            r_ids = batch * number + np.arange(batch)
            box = rng.integers(0, 50, count)
            words = [
                pack_points(dims, r_ids, _open(keys[number])),
                *([] if number else [probes]),
                pack_boxes(dims, np.arange(count), _open(box), _open(box + 1)),
                mark,
            ]
            run = model.run(np.concatenate(words), marks=1, patience=4 * latency)
            results = unpack_results(run.results[:-1])
            found = Counter(zip(results.r_id.tolist(), results.s_id.tolist()))
            stored = keys[: number + 1].reshape(-1)
            expected = _expected(stored, np.arange(len(stored)), box, box + 1, np.arange(count))
            assert found == expected
            # A search and its pairs each wait for memory once; a merge does to read and to write.
            reads = 0 if not number else 2 * latency
            assert (run.cycles > reads + latency) == waits
            assert run.cycles < reads + latency // 2 or waits
            run = model.run(np.concatenate([status, mark]), marks=1, patience=4 * latency)
            [told] = _status(run.results)
            assert (told["newest"], told["waiting"]) == (batch * (number + 1), 0)
            if number < 2:  # the last merge may end with the mark
                assert (run.cycles > latency // 4) != waits
