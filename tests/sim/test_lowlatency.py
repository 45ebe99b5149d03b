"""Chains of low-latency handshake join whose channels are held up one by one: every pair once, and where.

::

    tuples, stalls --> [ node | node | node ] --> results, places
                          channels stalled
"""

from collections import Counter
from functools import cache

import numpy as np
import pytest

from hw.lowlatency import LowLatency
from hw.parameters import Parameters
from hw.socket import Kind, Tag
from hw.words import pack_boxes, pack_control, pack_points, unpack_results
from sim.engine import Library, Model, Run, load
from sim.oracle import Windows, three_steps, window_boxes

MARK = 7
#: Windows of a few tuples, so that what is under way is often more than what is stored.
CHAINS = {
    1: "cores=1&segment=3&lanes=1&s_segment=2",
    2: "cores=2&segment=2&lanes=2&s_segment=4",
    "two": "cores=2&segment=1&lanes=1",
    3: "cores=3&segment=4&lanes=1&homes=hash&index=2",
    8: "cores=8&segment=1&lanes=1",
    40: "cores=40&segment=1&lanes=1",
    "sorted": "cores=3&segment=2&lanes=1&ordering=tuples:1",
    "hashed": "cores=3&segment=4&lanes=2&homes=hash",
    "indexed": "cores=3&segment=2&lanes=1&s_segment=3&index=2",
}
#: More than any time that is awaited.
PATIENCE = 5000


def chain(name: int | str) -> Parameters:
    """Two one-sided dimensions hold the window."""
    text = f"{CHAINS[name]}&buffer=2&dims=equal8,at_least16,at_most16"
    return Parameters.from_options("lowlatency", dict(option.split("=") for option in text.split("&")))


@cache
def library(name: int | str) -> Library:
    p = chain(name)
    return load(lambda: LowLatency(p, stallable=True), f"{p.name}_stallable")


def control(p: Parameters, kind: Kind, id: int = 0) -> np.ndarray:
    return pack_control(p.dims, kind, id)


class Streams:
    """Random tuples and the horizons that a host would send, as words, and the pairs of the oracle."""

    def __init__(self, p: Parameters, rng: np.random.Generator):
        count = int(rng.integers(1, 60))
        is_s = rng.random(count) < rng.choice([0.1, 0.5, 0.9])
        time = np.cumsum(rng.integers(0, 3, count))
        times = time[~is_s], time[is_s]
        before = np.cumsum(~is_s), np.cumsum(is_s)  # tuples of R and S up to each
        self.windows = self._windows(p, rng, time, times, before)
        self.places = np.flatnonzero(~is_s), np.flatnonzero(is_s)
        key = rng.integers(0, 2, count).astype(np.uint64)
        keys = key[~is_s], key[is_s]
        matches = three_steps(is_s, time, self.windows, lambda r, s: keys[0][r] == keys[1][s])
        self.expected = Counter(matches)
        _, points, lo, hi = window_boxes(is_s, time, self.windows)
        # A window of time is one band, here in two one-sided dimensions.
        points, lo, hi = ([*bounds, *bounds][:2] for bounds in (points, lo, hi))
        points, lo, hi = (
            [np.clip(code, -1000, 1000) + 1000 for code in bounds] for bounds in (points, lo, hi)
        )
        words = np.empty((count, control(p, Kind.MARK).shape[1]), np.uint32)
        words[~is_s] = pack_points(p.dims, np.arange(len(keys[0])), [keys[0], *_unsigned(points)])
        words[is_s] = pack_boxes(
            p.dims, np.arange(len(keys[1])), [keys[1], *_unsigned(lo)], [keys[1], *_unsigned(hi)]
        )
        parts = []
        often = rng.choice([0, 0.3, 1])
        for at, word in enumerate(words):
            parts.append(word[None])
            if rng.random() < often:
                parts += [
                    control(p, kind, int(first[at]))
                    for kind, first in zip((Kind.HORIZON_R, Kind.HORIZON_S), self.oldest)
                ]
        self.words = np.concatenate([*parts, control(p, Kind.MARK, MARK)])

    def later(self, r: int, s: int) -> int:
        """The place in the arrival order of the later tuple of a pair."""
        return max(self.places[0][r], self.places[1][s])

    def _windows(self, p, rng, time, times, before) -> Windows:
        """Windows that the chain holds, and for each tuple the oldest live ones behind it, in `oldest`."""
        sizes = [int(rng.integers(1, size + 1)) for size in p.windows]
        self.oldest = [np.maximum(0, seen - size) for seen, size in zip(before, sizes)]
        if rng.random() < 0.5:
            return Windows("rows", *sizes)
        for span in range(9, -1, -1):
            oldest = [np.searchsorted(own, time - span) for own in times]
            live = [(seen - first).max() for seen, first in zip(before, oldest)]
            if all(number <= size for number, size in zip(live, p.windows)):
                self.oldest = oldest
                return Windows("time", span, span)
        return Windows("rows", *sizes)


def _unsigned(codes: list[np.ndarray]) -> list[np.ndarray]:
    return [code.astype(np.uint64) for code in codes]


def masks(bits: np.ndarray) -> np.ndarray:
    """Rows of the stream `stalls`, a cycle each, from bool[cycle, channel]."""
    words = np.zeros((len(bits), -(-bits.shape[1] // 32)), np.uint32)
    for channel in range(bits.shape[1]):
        words[:, channel // 32] |= bits[:, channel].astype(np.uint32) << np.uint32(channel % 32)
    return words


def pairs_of(rows: np.ndarray) -> list[tuple[int, int]]:
    results = unpack_results(rows)
    chosen = results.tag == Tag.PAIR.value
    return list(zip(results.r_id[chosen].tolist(), results.s_id[chosen].tolist()))


def places_of(run: Run) -> list[int]:
    """The nodes that found pairs, one pair at a time."""
    return [int(mask).bit_length() - 1 for mask in run.outputs["places"][:, 0]]


def ends_empty(model: Model, p: Parameters) -> None:
    """Nothing comes but the mark that is asked for, also after a flush."""
    for words in (
        control(p, Kind.MARK, 9),
        np.concatenate([control(p, Kind.FLUSH), control(p, Kind.MARK, 9)]),
    ):
        run = model.run({"tuples": words}, {"results": 1}, patience=PATIENCE)
        assert unpack_results(run.outputs["results"]).tag.tolist() == [Tag.MARK.value]


@pytest.mark.parametrize(
    "name, trials",
    {
        1: 400,
        2: 600,
        "two": 400,
        3: 800,
        8: 400,
        40: 60,
        "sorted": 500,
        "hashed": 500,
        "indexed": 500,
    }.items(),
)
def test_every_pair_once_however_channels_stall(name, trials, rng):
    """And by its later tuple, where results are sorted."""
    p = chain(name)
    with library(name).open() as model:
        for trial in range(trials):
            streams = Streams(p, rng)
            chances = rng.random(2 * p.cores) * rng.choice([0, 0.5, 0.95])
            stalls = rng.random((int(rng.integers(1, 400)), 2 * p.cores)) < chances
            run = model.run(
                {"tuples": streams.words, "stalls": masks(stalls)},
                {"results": streams.expected.total() + 1},
                stall_seed=int(rng.integers(1 << 60)),
                stall_in=int(rng.choice([0, 100])),
                stall_out=int(rng.choice([0, 120])),
                patience=PATIENCE,
            )
            pairs = pairs_of(run.outputs["results"])
            assert Counter(pairs) == streams.expected, f"trial {trial}"
            if p.ordering.every:
                later = [streams.later(*pair) for pair in pairs]
                assert later == sorted(later), f"trial {trial}"
            assert unpack_results(run.outputs["results"]).mark_id[-1] == MARK, f"trial {trial}"
            ends_empty(model, p)


#: Homes of r and s in a chain of two nodes where they pass each other between node 0 and node 1, and the node
#: that finds the pair: Table 1 of the paper, row by row.
PASSING = {
    "fresh/fresh": (1, 0, 1),  # while travelling: s is in flight from node 1
    "fresh/stored": (1, 1, 1),  # at the home of s
    "stored/fresh": (0, 0, 1),  # while travelling
    "stored/stored": (0, 1, 1),  # at the home of s
}


def _tuple(p: Parameters, of_s: bool, number: int, key: int) -> np.ndarray:
    code = [np.array([value], np.uint64) for value in (key, 1000, 1000)]
    if of_s:
        return pack_boxes(p.dims, np.array([number]), code, code)
    return pack_points(p.dims, np.array([number]), code)


def _to_homes(p: Parameters, r_home: int, s_home: int) -> np.ndarray:
    """Tuples that match nothing, after which the next of R and S have these homes."""
    return np.concatenate(
        [
            _tuple(p, of_s, 100, 2 + of_s)
            for of_s, home in ((False, r_home), (True, s_home))
            for _ in range(home)
        ]
        + [control(p, Kind.MARK, MARK)]
    )


def _hold(p: Parameters, cycles: int, *channels: tuple[int, bool]) -> np.ndarray:
    """Holds up channels, each into a node and from its right or left."""
    bits = np.zeros((cycles, 2 * p.cores), bool)
    for node, from_right in channels:
        bits[:, p.cores * from_right + node] = True
    return masks(bits)


@pytest.mark.parametrize("first", ["r", "s", "both"])
@pytest.mark.parametrize("row", PASSING)
def test_tuples_that_pass_each_other_between_nodes(row, first):
    """They are held up between two nodes, each behind the other's back, and go on one before the other."""
    p = chain(2)
    r_home, s_home, node = PASSING[row]
    r, s = (1, False), (0, True)  # into node 1 from its left, into node 0 from its right
    with library(2).open() as model:
        model.run({"tuples": _to_homes(p, r_home, s_home)}, {"results": 1}, patience=PATIENCE)
        words = np.concatenate([_tuple(p, False, 5, 1), _tuple(p, True, 6, 1)])
        pairs, places = [], []
        held = {"r": [s], "s": [r], "both": []}[first]
        for given, wanted in (
            ({"tuples": words, "stalls": _hold(p, 40, r, s)}, 0),
            ({"stalls": _hold(p, 40, *held)}, 0),
            ({"tuples": control(p, Kind.MARK, MARK)}, 2),
        ):
            run = model.run(given, {"results": wanted - len(pairs) if wanted else 0}, patience=PATIENCE)
            pairs += pairs_of(run.outputs["results"])
            places += places_of(run)
        assert (pairs, places) == ([(5, 6)], [node])
        ends_empty(model, p)


@pytest.mark.parametrize("homes", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
@pytest.mark.parametrize("delay", range(-6, 7))
def test_tuples_that_meet_at_nodes(homes, delay):
    """One comes some cycles after the other: without stalls they meet at any place, or not at all."""
    p = chain(2)
    with library(2).open() as model:
        model.run({"tuples": _to_homes(p, *homes)}, {"results": 1}, patience=PATIENCE)
        both = [_tuple(p, False, 5, 1), _tuple(p, True, 6, 1)]
        if delay < 0:
            both.reverse()
        # Horizons that say nothing new pass the time.
        idle = [control(p, Kind.HORIZON_R, 0)] * abs(delay)
        words = np.concatenate([both[0], *idle, both[1], control(p, Kind.MARK, MARK)])
        run = model.run({"tuples": words}, {"results": 2}, patience=PATIENCE)
        assert pairs_of(run.outputs["results"]) == [(5, 6)]
        places = places_of(run)
        assert len(places) == 1
        if delay == 6:  # r is at rest, and its expedition over
            assert places == [homes[0]]
        if delay == -6:
            assert places == [homes[1]]
        ends_empty(model, p)


@pytest.mark.parametrize("of_s", [False, True], ids=["r", "s"])
def test_a_tuple_that_expires_on_its_way_leaves_nothing(of_s, rng):
    """Its expiry waits at its home; the tuple is not stored there, and no slot is lost, however often."""
    p = chain(2)
    horizon = Kind.HORIZON_S if of_s else Kind.HORIZON_R
    channel = (0, True) if of_s else (1, False)
    with library(2).open() as model:
        for number in range(40):
            # Its home is where it comes last, in every other round: the expiry is there first.
            words = np.concatenate([_tuple(p, of_s, number, 1), control(p, horizon, number + 1)])
            given = {"tuples": words, "stalls": _hold(p, 30, channel)}
            run = model.run(given, {}, patience=PATIENCE)
            words = np.concatenate([_tuple(p, not of_s, number, 1), control(p, Kind.MARK, MARK)])
            other = Kind.HORIZON_R if of_s else Kind.HORIZON_S
            words = np.concatenate([words, control(p, other, number + 1)])
            run = model.run({"tuples": words}, {"results": 1}, patience=PATIENCE)
            assert not pairs_of(run.outputs["results"])
        # As many tuples as ever are kept and found.
        size = p.windows[of_s]
        stored = [_tuple(p, of_s, 40 + k, 1) for k in range(size)]
        words = np.concatenate([*stored, _tuple(p, not of_s, 50, 1), control(p, Kind.MARK, MARK)])
        run = model.run({"tuples": words}, {"results": size + 1}, patience=PATIENCE)
        assert sorted(pair[of_s] for pair in pairs_of(run.outputs["results"])) == list(range(40, 40 + size))
        ends_empty(model, p)


@pytest.mark.parametrize("of_s", [False, True], ids=["r", "s"])
def test_a_flush_right_behind_a_horizon(of_s):
    """What has not expired yet is forgotten: no expiry follows the clear and takes a later tuple."""
    p = chain(2)
    horizon = Kind.HORIZON_S if of_s else Kind.HORIZON_R
    size = p.windows[of_s]
    with library(2).open() as model:
        for delay in range(8):
            # Marks let the chain come to rest; horizons that say nothing new pass the time.
            stored = [_tuple(p, of_s, k, 1) for k in range(size)]
            run = model.run(
                {"tuples": np.concatenate([*stored, control(p, Kind.MARK, MARK)])},
                {"results": 1},
                patience=PATIENCE,
            )
            others = [control(p, Kind.HORIZON_R if of_s else Kind.HORIZON_S, 0)] * delay
            words = [control(p, horizon, size), *others, control(p, Kind.FLUSH), *stored]
            words += [_tuple(p, not of_s, 50, 1), control(p, Kind.MARK, MARK)]
            run = model.run({"tuples": np.concatenate(words)}, {"results": size + 1}, patience=PATIENCE)
            assert sorted(pair[of_s] for pair in pairs_of(run.outputs["results"])) == list(range(size))
            ends_empty(model, p)
