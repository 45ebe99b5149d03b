"""ScaleJoin's elements share the work, whatever the inputs' rates: the paper's scenarios."""

import pytest

from hw.errors import DataError
from sim.skew import LIMIT, SCENARIOS, measure, measure_rows


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "_"))
def test_elements_share_the_comparisons(scenario):
    """With full windows each tuple meets what is live and nothing else, and no element more than others."""
    short, long = measure(scenario, length=20)
    for shares in (short, long):
        assert shares.comparisons.mean() == pytest.approx(shares.expected, rel=1e-12)
    assert long.deviation <= LIMIT


def test_elements_share_the_comparisons_in_windows_of_rows():
    """What is overwritten is met no more."""
    short, long = measure_rows(SCENARIOS[0], length=5)
    for shares in (short, long):
        assert shares.comparisons.mean() == pytest.approx(shares.expected, rel=1e-12)
    assert long.deviation <= LIMIT


def test_windows_must_fit():
    with pytest.raises(DataError, match=r"constant rates: a window must need at most 320 places, not 603"):
        measure(SCENARIOS[0], window=100, length=1)
