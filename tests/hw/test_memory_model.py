"""The memory that engines are tested with, and a copy through it.

::

    commands --> [ copier ] --> answers
                   |    ^
                [ memory model ]
"""

import pytest

from hw.memory_port import MemoryPort
from sim.copier import Copier

from .memory_model import MemoryModel
from .streams import simulate, sink, source

PORT = MemoryPort(40, 10)


@pytest.mark.parametrize("stall", [0.0, 0.5])
def test_copies_are_exact_in_bursts_that_end_on_boundaries(stall, seed, rng):
    copier = Copier(PORT, longest=8)
    model = MemoryModel(copier.memory, 1 << 10, seed=seed, stall=stall)
    expected = list(model.contents)
    commands = []
    for _ in range(12):
        count = int(rng.integers(1, 60))
        start, target = int(rng.integers(0, 512 - count)), int(rng.integers(512, 1024 - count))
        commands.append({"source": start, "target": target, "count": count})
        expected[target : target + count] = expected[start : start + count]
    answers = []
    simulate(
        copier,
        [
            source(copier.commands, commands, seed=seed, stall=stall),
            sink(copier.answers, answers, len(commands), seed=seed + 1, stall=stall),
        ],
        [model.testbench],
    )
    assert [count for _, count in answers] == [command["count"] for command in commands]
    assert model.contents == expected
    assert model.idle
    for bursts, start in ((model.reads, "source"), (model.writes, "target")):
        assert [a for a, n in bursts for a in range(a, a + n)] == [
            a for command in commands for a in range(command[start], command[start] + command["count"])
        ]
        assert all(a // 8 == (a + n - 1) // 8 for a, n in bursts)


def test_a_copy_takes_a_cycle_per_word(seed):
    copier = Copier(PORT, longest=64)
    model = MemoryModel(copier.memory, 1 << 10, seed=seed, stall=0)
    answers = []
    simulate(
        copier,
        [
            source(copier.commands, [{"source": 0, "target": 500, "count": 448}], seed=seed, stall=0),
            sink(copier.answers, answers, 1, seed=seed, stall=0),
        ],
        [model.testbench],
    )
    assert 448 <= answers[0][0] <= 448 + 20
