"""ScaleJoin behind the socket: one sequence whatever comes when, and what is wrong is reported.

words of all inputs, in any order between them (stalled at random) -> [ joiner ] -> results, bit for bit
"""

import numpy as np
import pytest

from hw.gate_word import gate_id, pack_progress
from hw.parameters import Parameters
from hw.socket import RESULT_LAYOUT, Fault, Kind, Tag
from hw.words import pack, pack_boxes, pack_control, pack_points, unpack_results
from sim.library import load
from sim.oracle import Windows, matcher, three_steps

from ..configurations import parameters

DEVICES = ("scalejoin", "scalejoin_inputs")


class Streams:
    """Random tuples of both streams in arrival order, and the results of windows of the device's size."""

    def __init__(self, rng: np.random.Generator, p: Parameters, count: int):
        self.dims = p.dims
        self.is_s = rng.random(count) < 0.5
        r_count, s_count = int((~self.is_s).sum()), int(self.is_s.sum())
        self.points = [rng.integers(0, 4, r_count).astype(np.uint64) for _ in p.dims]
        self.lo = [rng.integers(0, 3, s_count).astype(np.uint64) for _ in p.dims]
        self.hi = [low + np.uint64(2) for low in self.lo]
        matches = matcher(p.dims, self.points, self.lo, self.hi)
        windows = Windows("rows", p.capacity, p.capacity)
        pairs = np.array(three_steps(self.is_s, np.zeros(count), windows, matches)).reshape(-1, 2)
        numbers = np.flatnonzero(~self.is_s)[pairs[:, 0]], np.flatnonzero(self.is_s)[pairs[:, 1]]
        ids = {f"body.pair.{name}": gate_id(0, number) for name, number in zip(("r_id", "s_id"), numbers)}
        self.expected = pack(RESULT_LAYOUT, {"tag": Tag.PAIR.value} | ids, len(pairs))

    def words(self, inputs: np.ndarray) -> np.ndarray:
        """The tuples as words, in arrival order, from these inputs."""
        ids = gate_id(inputs, np.arange(len(self.is_s)))
        r, s = (
            pack_points(self.dims, ids[~self.is_s], self.points),
            pack_boxes(self.dims, ids[self.is_s], self.lo, self.hi),
        )
        words = np.empty((len(ids), r.shape[1]), np.uint32)
        words[~self.is_s], words[self.is_s] = r, s
        return words

    def interleaved(self, rng: np.random.Generator, p: Parameters) -> np.ndarray:
        """The words of random inputs: each in order, ahead of others and behind them, and heartbeats."""
        inputs = rng.integers(0, p.inputs, len(self.is_s))
        words = self.words(inputs)
        left = [np.flatnonzero(inputs == k).tolist() for k in range(p.inputs)]
        shown = [-1] * p.inputs  # how far each input has come
        queued = [[] for _ in range(p.inputs)]  # what may still be in its queue
        order = []
        while any(left):
            passed = min(shown)
            queued = [[number for number in own if number > passed] for own in queued]
            next_ = min(own[0] for own in left if own)
            k = int(rng.choice([j for j, own in enumerate(left) if own]))
            if len(queued[k]) >= p.buffer - 1:
                k = shown.index(passed)  # the one that is furthest behind lets the others go on
            if not left[k] or (left[k][0] > next_ and shown[k] < next_ - 1 and rng.random() < 0.5):
                done = not left[k]
                shown[k] = len(words) if done else next_ - 1
                queued[k].append(shown[k])
                order.append(pack_progress(p.dims, k, next_ - 1, ended=done))
            elif left[k][0] == next_ or len(queued[k]) < p.buffer - 1:
                shown[k] = left[k].pop(0)
                queued[k].append(shown[k])
                order.append(words[shown[k]][None])
        return np.concatenate(order)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("stalls", [(0, 0), (150, 0), (0, 150), (90, 120)])
def test_one_sequence_whatever_comes_when(device, stalls, request):
    """The same for all numbers of inputs and of elements, interleavings and stalls: that of the oracle."""
    seed = request.config.option.seed
    p = parameters(device)
    # The same tuples for both devices, whose windows are of one size.
    streams = Streams(np.random.default_rng(seed), p, 400)
    rng = np.random.default_rng([seed, *stalls, p.inputs])
    end = [pack_control(p.dims, kind, 5) for kind in (Kind.FLUSH, Kind.MARK)]
    with load(p).open() as model:
        for _ in range(3):
            words = np.concatenate([streams.interleaved(rng, p), *end])
            run = model.run(
                words, marks=1, stall_seed=int(rng.integers(1 << 62)), stall_in=stalls[0], stall_out=stalls[1]
            )
            assert len(streams.expected) > 100
            assert np.array_equal(run.results[:-1], streams.expected)
            assert unpack_results(run.results[-1:]).mark_id.tolist() == [5]


def test_both_devices_have_windows_of_one_size():
    assert len({(parameters(device).capacity, parameters(device).dims) for device in DEVICES}) == 1
    assert (
        len({parameters(device).inputs for device in DEVICES})
        == len({parameters(device).cores for device in DEVICES})
        == 2
    )


def run(p: Parameters, words: list[np.ndarray]):
    """The results of words and a mark, and the errors among them, as (fault, value)."""
    with load(p).open() as model:
        end = [pack_control(p.dims, kind) for kind in (Kind.MARK, Kind.FLUSH, Kind.MARK)]
        rows = model.run(np.concatenate([*words, *end]), marks=2, patience=1000).results
    results = unpack_results(rows)
    errors = results.tag == Tag.ERROR.value
    assert results.tag.tolist()[-2:] == [Tag.MARK.value] * 2, "an error comes before later marks"
    return rows[results.tag == Tag.PAIR.value], [
        (Fault(fault), value)
        for fault, value in zip(results.fault[errors].tolist(), results.value[errors].tolist())
    ]


@pytest.mark.parametrize("device", DEVICES)
def test_an_input_that_fills_up_while_another_starves_is_reported(device, rng):
    """Nothing hangs: all that starve are reported and passed over, and what the others sent comes out."""
    p = parameters(device)
    streams = Streams(rng, p, 3 * p.buffer + 60)
    at = p.inputs - 1
    words = streams.words(np.full(len(streams.is_s), at))
    pairs, errors = run(p, [words])
    assert set(errors) == {(Fault.STARVED, k) for k in range(at)}
    assert np.array_equal(pairs, streams.expected)
    # With heartbeats, or when the others have ended, nobody waits.
    ends = [pack_progress(p.dims, k, 0, ended=True) for k in range(at)]
    pairs, errors = run(p, [*ends, words])
    assert errors == [] and np.array_equal(pairs, streams.expected)
    beats = [pack_progress(p.dims, k, number) for number in range(len(words)) for k in range(at)]
    mixed = [
        part
        for number in range(len(words))
        for part in (words[number][None], *beats[number * at : (number + 1) * at])
    ]
    pairs, errors = run(p, mixed)
    assert errors == [] and np.array_equal(pairs, streams.expected)


def test_what_an_input_sends_after_its_end_is_reported_and_left_out(rng):
    """Nobody waits for it, before the next flush; then it is open again."""
    p = parameters("scalejoin_inputs")
    streams = Streams(rng, p, 3 * p.buffer + 20)
    words = streams.words(np.full(len(streams.is_s), p.inputs - 1))
    ends = [pack_progress(p.dims, k, 0, ended=True) for k in range(p.inputs - 1)]
    again = [pack_progress(p.dims, 1, 7), streams.words(np.zeros(len(words), int))[2:3], ends[2]]
    flush = pack_control(p.dims, Kind.FLUSH)
    pairs, errors = run(p, [*ends, *again, words, flush, words[:1], pack_progress(p.dims, 1, 7)])
    assert errors == [(Fault.OUT_OF_ORDER, int(gate_id(*at))) for at in ((1, 7), (0, 2), (2, 0))]
    assert np.array_equal(pairs, streams.expected)


def test_what_is_out_of_order_or_from_nowhere_is_reported_and_left_out(rng):
    p = parameters("scalejoin")
    streams = Streams(rng, p, 40)
    inputs = np.arange(40) % p.inputs
    words = streams.words(inputs)
    late = words[4:5]  # again: a number may come once
    nowhere = streams.words(np.full(40, 9))[20:21]
    pairs, errors = run(p, [words[:20], late, words[20:], nowhere])
    assert sorted(errors, key=str) == [
        (Fault.NO_SUCH_INPUT, int(gate_id(9, 20))),
        (Fault.OUT_OF_ORDER, int(gate_id(0, 4))),
    ]
    assert np.array_equal(pairs, streams.expected)
