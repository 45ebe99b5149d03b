"""Fitting a join's dimensions to a device's."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.fit import Fit
from host.plan import SpecDimension
from hw.dimension import Dimension, Test

BOTH = [(test, negated) for test in Test for negated in (False, True)]


def wanted(*texts: str) -> list[SpecDimension]:
    dims = [Dimension.parse(f"{text}64") for text in texts]
    return [SpecDimension(str(dim), dim.test, negated=dim.negated) for dim in dims]


def device(*texts: str) -> list[Dimension]:
    return [Dimension.parse(text) for text in texts]


@pytest.mark.parametrize(
    "join, dims, sources",
    [
        (["band"], ["band32"], [0]),
        (["equal"], ["band32"], [0]),
        (["equal"], ["band32", "equal8"], [None, 0]),
        (["band"], ["equal32"], [None]),
        (["band"], ["at_least32", "at_most32"], [0, 0]),
        (["band"], ["at_least32"], [None]),
        (["at_least"], ["at_most32", "band32"], [None, 0]),
        (["band", "band", "band"], ["band32", "band32", "at_least32", "at_most32"], [0, 1, 2, 2]),
        (["at_least", "at_most"], ["band32", "at_most32", "at_least32"], [None, 1, 0]),
        (["not_equal"], ["equal32", "not_band32"], [None, 0]),
        (["not_band"], ["not_equal32", "band32"], [None, None]),
        (["equal"], ["not_equal32"], [None]),
        (["band"], ["band8", "band64"], [None, 0]),
        (["band", "band"], ["band32"], [0]),
    ],
)
def test_sources(join, dims, sources):
    fit = Fit(wanted(*join), device(*dims))
    assert fit.sources == sources
    assert fit.missing == set(range(len(join))) - set(sources)


def test_explain_names_the_place_of_each_dimension():
    fit = Fit(wanted("band", "equal"), device("at_least32", "at_most32"))
    assert fit.explain() == (
        "band64: device d0 (at_least32) and d1 (at_most32)\nequal64: host, no device dimension is free for it"
    )


def test_a_negated_test_leaves_room_for_values_elsewhere():
    """With points on every code, none is left for a box that lies outside: the host decides."""
    fit = Fit(wanted("not_equal"), device("not_equal8"))
    for highest, unchecked in ((254, set()), (255, {0})):
        points = [np.arange(highest + 1, dtype=np.uint64)]
        outside = [np.array([300], np.uint64)]
        narrowed = fit.narrow(points, outside, outside)
        assert narrowed.unchecked == unchecked
        assert Dimension.parse("not_equal8").contains(narrowed.points[0], {"lo": narrowed.lo[0]}).all()


codes = st.one_of(
    st.integers(0, 2**64 - 1), st.integers(0, 20), st.integers(2**64 - 20, 2**64 - 1), st.integers(1000, 1400)
)


@given(
    st.lists(
        st.sampled_from([*BOTH[:4], (Test.AT_LEAST, False), (Test.AT_MOST, False)]), min_size=1, max_size=3
    ),
    st.lists(st.tuples(st.sampled_from(BOTH), st.sampled_from([8, 9, 32, 64])), min_size=1, max_size=4),
    st.data(),
)
def test_a_narrowed_join_loses_no_pair_and_adds_only_unchecked_ones(join, dims, data):
    """Against the join's own codes: never fewer pairs, and none more where all dimensions are checked."""
    spec = [SpecDimension("d", test, negated=negated) for test, negated in join]
    hardware = [Dimension(test, width, negated) for (test, negated), width in dims]
    point_count, box_count = data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5))

    def draw(count):
        return np.array(data.draw(st.lists(codes, min_size=count, max_size=count)), np.uint64)

    points = [draw(point_count) for _ in spec]
    lo, hi = [], []
    for dim in spec:
        one, other = draw(box_count), draw(box_count)
        low, high = np.minimum(one, other), np.maximum(one, other)
        if dim.test is Test.EQUAL:
            high = low
        lo.append(np.zeros_like(low) if dim.test is Test.AT_MOST else low)
        hi.append(np.full_like(high, 2**64 - 1) if dim.test is Test.AT_LEAST else high)

    fit = Fit(spec, hardware)
    narrowed = fit.narrow(points, lo, hi)
    want = _inside([Dimension(d.test, 64, d.negated) for d in spec], points, lo, hi)
    got = _inside(hardware, narrowed.points, narrowed.lo, narrowed.hi) & narrowed.sent[None, :]
    for dim, codes_of in zip(hardware, narrowed.points):
        assert (codes_of <= dim.highest).all()
    assert not (want & ~got).any()
    checked = [k for k in range(len(spec)) if k not in narrowed.unchecked]
    exact = _inside(
        [Dimension(spec[k].test, 64, spec[k].negated) for k in checked],
        [points[k] for k in checked],
        [lo[k] for k in checked],
        [hi[k] for k in checked],
        (point_count, box_count),
    )
    assert not (got & ~exact).any()


def _inside(dims, points, lo, hi, shape=None):
    inside = np.ones(shape or (len(points[0]), len(lo[0])), bool)
    for dim, code, low, high in zip(dims, points, lo, hi):
        inside &= dim.contains(code[:, None], {"lo": low[None, :], "hi": high[None, :]})
    return inside
