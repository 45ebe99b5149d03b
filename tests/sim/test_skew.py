"""ScaleJoin's elements share the work, whatever the inputs' rates: the paper's scenarios, windows of time."""

import pytest

from hw.errors import DataError
from sim.skew import LIMIT, SCENARIOS, measure


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name.replace(" ", "_"))
def test_elements_share_the_comparisons(scenario):
    """With full windows each tuple meets what is live and nothing else, and no element more than others."""
    for shares in measure(scenario, length=30):
        assert shares.comparisons.mean() == pytest.approx(shares.expected, rel=1e-12)
    assert shares.deviation <= LIMIT


def test_windows_must_fit():
    with pytest.raises(DataError, match=r"constant rates: a window must need at most 20 places, not 63"):
        measure(SCENARIOS[0], window=10, length=1)
