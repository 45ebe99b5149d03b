"""What a core costs on the papers' chip family, in LUTs, its share of result collection included."""

from collections import Counter
from dataclasses import replace

import pytest

from hw.area import PAPER, area_of, mapped, measure
from hw.dimension import Dimension
from hw.engines import RECORD
from hw.flit_merger import FlitMerger
from hw.joiner import JOINERS
from hw.netlist import synthesise
from hw.parameters import ARCHITECTURES
from hw.verilog import emit, whole


@pytest.mark.parametrize("lanes, most", [(PAPER.segment, 800), (1, 350)])
def test_cores_cost_no_more_than_planned_and_no_more_in_longer_chains(lanes, most):
    few, many = (measure(replace(PAPER, lanes=lanes, cores=cores)) for cores in (4, 16))
    assert few.luts / 4 <= most
    assert many.luts / 16 <= few.luts / 4
    # A serial core's segments are in distributed RAM, not in registers.
    assert lanes > 1 or few.ram / 4 > 2 * PAPER.segment
    assert lanes > 1 or few.flip_flops / 4 < 2 * PAPER.segment * 65


def test_programmable_blocks_cost_no_more_than_planned():
    block = replace(PAPER, architecture="opblock", cores=4, lanes=1, dims=(Dimension.parse("band32"),))
    assert measure(block).luts / 4 <= 1300


def test_a_merger_costs_no_more_than_planned():
    area = mapped(whole(lambda: FlitMerger(RECORD, 2), "merger"), "merger")
    assert area.luts <= 800
    # Its queues are in distributed RAM.
    assert area.ram > 0 and area.flip_flops < 700


def test_large_windows_are_in_block_ram():
    """A bank of 128 keys and the ids beside it, of each stream; the netlists in simulation do without."""
    p = replace(PAPER, architecture="splitjoin", cores=1, segment=128, lanes=1)
    assert measure(p).block_rams == 4
    cells = synthesise(emit(p), p.name, "xc6v").module["cells"].values()
    assert area_of(Counter(cell["type"] for cell in cells)).block_rams == 0


def test_every_architecture_has_a_joiner():
    assert tuple(JOINERS) == ARCHITECTURES
