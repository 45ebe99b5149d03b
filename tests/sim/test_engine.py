"""Components as libraries with simulated memory behind them.

::

    commands --> [ copier ] --> answers
                   |    ^
                 [ memory ] <-- arrays
"""

from dataclasses import replace

import numpy as np
import pytest

from hw.errors import DeviceError, ParameterError
from hw.memory_port import MemoryPort
from hw.words import pack
from sim.copier import Copier, command_layout
from sim.dram import STEADY, Timing
from sim.engine import load

PORT = MemoryPort(128, 16)
#: Answers almost at once.
IDEAL = replace(STEADY, latency=4)


@pytest.fixture(scope="module")
def library():
    return load(lambda: Copier(PORT), "copier_128_16")


def _commands(source, target, count) -> np.ndarray:
    fields = {"source": np.array(source), "target": np.array(target), "count": np.array(count)}
    return pack(command_layout(PORT.address_width), fields, len(fields["count"]))


@pytest.mark.parametrize("stalls", [(0, 0), (120, 0), (0, 120), (90, 90)])
def test_copies_are_exact(library, stalls, seed, rng):
    count = rng.integers(1, 3000, 8)
    source, target = rng.integers(0, 29000, 8), rng.integers(32768, 60000, 8)
    with library.open() as model:
        model.memory[:32768] = rng.integers(0, 1 << 32, (32768, 4), dtype=np.uint32)
        expected = model.memory.copy()
        for start, to, length in zip(source, target, count):
            expected[to : to + length] = expected[start : start + length]
        run = model.run(
            {"commands": _commands(source, target, count)},
            {"answers": 8},
            stall_seed=seed,
            stall_in=stalls[0],
            stall_out=stalls[1],
        )
        assert run.outputs["answers"][:, 0].tolist() == count.tolist()
        assert (model.memory == expected).all()
        traffic = model.traffic()
        assert traffic.read == traffic.written == count.sum()


def _cycles(library, timing: Timing, count: int) -> int:
    with library.open(timing) as model:
        return model.run({"commands": _commands([0], [1 << 15], [count])}, {"answers": 1}).cycles


def test_memory_costs_what_its_timing_says(library):
    """A copy of whole rows waits for each row once, and for each refresh."""
    count = 64 * 128
    base = _cycles(library, IDEAL, count)
    assert count + 2 * IDEAL.latency <= base <= count + 2 * IDEAL.latency + 10
    slow = _cycles(library, replace(IDEAL, latency=100), count)
    assert slow == base + 2 * 96
    missing = _cycles(library, replace(IDEAL, row=128, row_miss=7), count)
    assert base + 64 * 7 <= missing <= base + 65 * 7 + 7
    refreshing = _cycles(library, replace(IDEAL, refresh_every=1000, refresh=40), count)
    assert base + 8 * 40 <= refreshing <= base + 9 * 40


def test_costs_are_read_from_text():
    assert Timing.parse("") == Timing()
    assert Timing.parse("latency:60,row_miss:0") == replace(Timing(), latency=60, row_miss=0)
    accepted = "latency, row, banks, row_miss, refresh_every, refresh, outstanding"
    for wrong in ("late:5", "latency", "latency:-1", "row:0"):
        with pytest.raises(ParameterError) as error:
            Timing.parse(wrong)
        assert str(error.value) == (
            f"memory must be costs such as latency:60,row_miss:20, of {accepted}, not {wrong!r}"
        )


def test_nothing_waits_for_ever(library):
    with (
        library.open() as model,
        pytest.raises(DeviceError, match=r"nothing moved for 500 cycles .* 1 rows of answers"),
    ):
        model.run({}, {"answers": 1}, patience=500)


def test_refusals(library):
    with library.open() as model:
        with pytest.raises(ParameterError, match="no input 'words'; accepted: commands"):
            model.run({"words": np.zeros((1, 3), np.uint32)}, {})
        with pytest.raises(ParameterError, match=r"rows of commands must be uint32 of shape \(n, 2\), not"):
            model.run({"commands": np.zeros((1, 9), np.uint32)}, {})
