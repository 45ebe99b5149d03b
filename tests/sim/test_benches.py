"""The cocotb benches on six configurations; `make sim` runs them on many more."""

import pytest

from hw.parameters import ARCHITECTURES
from sim import regression

from ..configurations import parameters


@pytest.mark.parametrize(
    "device, count",
    [
        ("parallel", 51),
        ("serial", 51),
        ("opblock_serial", 54),
        ("splitjoin_ordered", 53),
        ("lowlatency", 45),
        ("scalejoin", 53),
    ],
)
def test_benches_pass(device, count, request):
    outcome = regression.run(parameters(device), seed=request.config.option.seed)
    assert outcome.failed == ()
    assert outcome.passed == count
    assert outcome.cycles > 1000


def test_bad_parameters_are_one_line(capsys):
    assert regression.main(["--cores", "none"]) == 2
    assert capsys.readouterr().err == "sim: cores must be an integer, not 'none'\n"
    assert regression.main(["--architecture", "soccer"]) == 2
    assert (
        capsys.readouterr().err
        == f"sim: architecture must be one of {', '.join(ARCHITECTURES)}, not 'soccer'\n"
    )
