"""Orderings: what they accept, and what they promise."""

import numpy as np
import pytest

from hw.errors import ParameterError
from hw.ordering import Ordering


@pytest.mark.parametrize("text", ["none", "tuples:1", "tuples:20", "comparisons:1", "comparisons:65536"])
def test_text_round_trip(text):
    assert str(Ordering.parse(text)) == text


@pytest.mark.parametrize("text", ["", "None", "tuples", "tuples:0", "rows:2", "comparisons:65537"])
def test_refused(text):
    with pytest.raises(ParameterError) as error:
        Ordering.parse(text)
    assert str(error.value) == (
        f"ordering must be none, tuples:k or comparisons:k with k from 1 to 65536, not {text!r}"
    )


@pytest.mark.parametrize("unit, every", [("none", 1), ("tuples", 0), ("soccer", 2), ("tuples", 1 << 17)])
def test_refused_parts(unit, every):
    with pytest.raises(ParameterError):
        Ordering(unit, every)


#: R, S, S, R, R, S: pairs of R tuples with S tuples, each stream numbered for itself.
IS_S = np.array([0, 1, 1, 0, 0, 1], bool)


@pytest.mark.parametrize(
    "text, pairs, broken",
    [
        ("none", [(2, 2), (0, 0)], None),
        ("tuples:1", [(0, 0), (0, 1), (1, 0), (2, 1), (2, 0), (1, 2)], None),
        ("tuples:1", [(0, 1), (0, 0)], 1),
        ("tuples:3", [(0, 1), (0, 0), (2, 2), (1, 0)], None),
        ("tuples:3", [(0, 0), (1, 0), (0, 1)], 2),
        ("comparisons:1", [(0, 0), (2, 0), (2, 1), (0, 2), (1, 2), (2, 2)], None),
        ("comparisons:1", [(0, 0), (2, 1), (2, 0)], 2),
        ("comparisons:1", [(2, 2), (1, 2)], 1),
        ("comparisons:1", [], None),
        # Two cores: those of the first core come first within a group.
        ("comparisons:2", [(0, 2), (2, 2), (1, 2)], None),
        ("comparisons:2", [(0, 2), (1, 2), (2, 2)], 2),
    ],
)
def test_promise(text, pairs, broken):
    r, s = np.array(pairs, int).reshape(-1, 2).T
    assert Ordering.parse(text).first_broken(IS_S, r, s, cores=2, segment=4) == broken


@pytest.mark.parametrize("cores, segment", [(1, 4), (3, 2), (4, 5)])
def test_strict_inner_order_is_that_of_both_arrivals(cores, segment, rng):
    is_s = rng.random(200) < 0.5
    r, s = rng.integers(0, (~is_s).sum(), 300), rng.integers(0, is_s.sum(), 300)
    places = np.flatnonzero(~is_s)[r], np.flatnonzero(is_s)[s]
    order = np.lexsort([np.minimum(*places), np.maximum(*places)])
    strict = Ordering.parse("comparisons:1")
    assert strict.first_broken(is_s, r[order], s[order], cores, segment) is None
    keys = strict.keys(is_s, r, s, cores, segment)
    assert np.lexsort(keys[::-1]).tolist() == order.tolist()
