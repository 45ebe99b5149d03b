"""Kang's three steps and the point-in-box form give the same pairs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.dimension import Dimension, Test
from sim.oracle import Windows, matcher, point_in_box, three_steps, three_streams, window_boxes

DIMS = [Dimension(test, 8, negated) for test in Test for negated in (False, True)]
ANY = (lambda r, s: True,)


@st.composite
def joins(draw):
    """Two streams with ties in time, dimensions of every kind, and windows that may be empty."""
    steps = draw(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), max_size=24))
    is_s = np.array([side for side, _ in steps], bool)
    start = draw(st.sampled_from([0, -7, -(2**63), 2**63 - 60]))
    time = np.cumsum([step for _, step in steps]).astype(np.int64) + start
    size = st.one_of(st.integers(0, 6), st.just(2**63 - 1))
    windows = Windows(draw(st.sampled_from(["time", "rows"])), draw(size), draw(size))
    dims = tuple(draw(st.lists(st.sampled_from(DIMS), max_size=3)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    r, s = int((~is_s).sum()), int(is_s.sum())
    codes, lo, hi = (tuple(rng.integers(0, 4, n).astype(np.uint64) for _ in dims) for n in (r, s, s))
    return is_s, time, windows, dims, codes, lo, hi


@settings(max_examples=300, deadline=None)
@given(joins())
def test_forms_agree(join):
    is_s, time, windows, dims, codes, lo, hi = join
    steps = three_steps(is_s, time, windows, matcher(dims, codes, lo, hi))
    w_dims, w_codes, w_lo, w_hi = window_boxes(is_s, time, windows)
    shape = (int((~is_s).sum()), int(is_s.sum()))
    boxes = point_in_box(w_dims + dims, w_codes + codes, w_lo + lo, w_hi + hi, shape)
    assert sorted(steps) == boxes
    assert len(set(steps)) == len(steps)


def run(order: str, time, windows):
    return three_steps(np.array([c == "s" for c in order]), np.array(time), windows, *ANY)


def test_expiry_precedes_the_scan():
    assert run("rs", [0, 6], Windows("time", 5, 5)) == []
    assert run("rrs", [0, 0, 0], Windows("rows", 1, 1)) == [(1, 0)]


def test_time_bounds_are_inclusive():
    assert run("rs", [0, 5], Windows("time", 5, 0)) == [(0, 0)]
    assert run("sr", [0, 5], Windows("time", 5, 0)) == []


def test_equal_times_join_even_in_empty_time_windows():
    assert run("rs", [3, 3], Windows("time", 0, 0)) == [(0, 0)]


@pytest.mark.parametrize("order", ["rs", "sr", "rrss", "srsr"])
def test_no_rows_no_pairs(order):
    assert run(order, [0] * len(order), Windows("rows", 0, 0)) == []


def test_windows_are_per_stream():
    assert run("rsrs", [0, 0, 0, 0], Windows("rows", 2, 0)) == [(0, 0), (0, 1), (1, 1)]
    assert run("rsrs", [0, 0, 0, 0], Windows("rows", 0, 2)) == [(1, 0)]


def test_pairs_come_in_the_order_they_are_found():
    assert run("rrs", [0, 1, 2], Windows("time", 9, 9)) == [(0, 0), (1, 0)]


@pytest.mark.parametrize(
    "windows, expected",
    [
        # At equal times R comes before S, and pairs before T; T's rows see the newest pair only.
        (Windows("rows", 1, 2), [(1, 0, 0), (1, 0, 1)]),
        (Windows("rows", 2, 2), [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]),
        (Windows("time", 0, 0), [(0, 0, 0), (1, 0, 0)]),
        (Windows("time", 5, 0), [(0, 0, 0), (1, 0, 0), (0, 0, 1), (1, 0, 1)]),
    ],
)
def test_three_streams_by_hand(windows, expected):
    """R at 1 and 2, S at 2, T at 2 and 3: both pairs have the time of S."""
    found = three_streams(
        [0, 0, 1], [1, 2, 2], Windows("time", 9, 9), lambda r, s: True, [2, 3], windows, lambda r, s, t: True
    )
    assert found == expected
