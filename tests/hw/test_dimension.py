"""Dimensions: their text, their limits, and what each test means, in NumPy and in gateware alike."""

import numpy as np
import pytest
from amaranth import Module, Signal
from amaranth.lib import data
from amaranth.sim import Simulator

from hw.dimension import Dimension, Test
from hw.errors import ParameterError

ALL = [Dimension(test, 8, negated) for test in Test for negated in (False, True)]


@pytest.mark.parametrize("dim", ALL, ids=str)
def test_text_round_trip(dim):
    assert Dimension.parse(str(dim)) == dim


@pytest.mark.parametrize("dim", ALL, ids=str)
def test_gateware_and_numpy_agree(dim):
    box_shape = data.StructLayout(dict.fromkeys(dim.bounds, 8))
    point, box, inside = Signal(8), Signal(box_shape), Signal()
    m = Module()
    m.d.comb += inside.eq(dim.contains(point, box))
    cases = [(p, lo, hi) for p in (0, 1, 2, 254, 255) for lo in (0, 1, 2, 255) for hi in (0, 1, 254, 255)]

    async def testbench(ctx):
        for p, lo, hi in cases:
            bounds = {"lo": lo, "hi": hi}
            ctx.set(point, p)
            ctx.set(box, {bound: bounds[bound] for bound in dim.bounds})
            arrays = {bound: np.array([value], np.uint64) for bound, value in bounds.items()}
            assert bool(ctx.get(inside)) == bool(dim.contains(np.array([p], np.uint64), arrays)[0])

    simulator = Simulator(m)
    simulator.add_testbench(testbench)
    simulator.run()


def test_meaning():
    points = np.arange(5, dtype=np.uint64)
    box = {"lo": np.uint64(1), "hi": np.uint64(3)}
    inside = {str(dim): np.flatnonzero(dim.contains(points, box)).tolist() for dim in ALL}
    assert inside == {
        "equal8": [1],
        "not_equal8": [0, 2, 3, 4],
        "band8": [1, 2, 3],
        "not_band8": [0, 4],
        "at_least8": [1, 2, 3, 4],
        "not_at_least8": [0],
        "at_most8": [0, 1, 2, 3],
        "not_at_most8": [4],
    }


@pytest.mark.parametrize("width", [7, 65, 0, -1, 8.0, "8", True])
def test_bad_width(width):
    message = f"Dimension width must be an integer from 8 to 64, not {width!r}"
    with pytest.raises(ParameterError) as error:
        Dimension(Test.BAND, width)
    assert str(error.value) == message


def test_bad_test():
    with pytest.raises(ParameterError) as error:
        Dimension("near")
    assert str(error.value) == "Dimension test must be one of equal, band, at_least, at_most, not 'near'"


@pytest.mark.parametrize("text", ["", "band", "32band", "near32", "not_not_band32", "band 32"])
def test_bad_text(text):
    with pytest.raises(ParameterError) as error:
        Dimension.parse(text)
    assert str(error.value) == (
        f"Dimension must be [not_]equal|band|at_least|at_most and a width, such as band32, not {text!r}"
    )
