"""The bench of a board on AXI, with words of 64 bits; `make sim` runs it with narrower and wider ones."""

from hw.frame import Link
from sim import regression


def test_bench_passes(request):
    outcome = regression.run(regression.BOARD, Link(64, 40), seed=request.config.option.seed)
    assert outcome.failed == ()
    assert outcome.passed == 12
    assert outcome.cycles > 10_000


def test_a_bad_link_is_one_line(capsys):
    assert regression.main(["--link", "64"]) == 2
    assert (
        capsys.readouterr().err == "sim: link must be width, payload and frames such as 8,120,8, not '64'\n"
    )
