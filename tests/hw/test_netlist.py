"""Netlists: that what they compute is checked, and that no cell goes without a model."""

import re
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from hw.area import PAPER, area_of
from hw.errors import ToolError
from hw.netlist import Netlist, synthesise
from hw.parameters import Parameters
from hw.pinned import TOP, emit_pinned
from hw.socket import RESULT_LAYOUT, Kind
from hw.verilog import emit
from hw.words import pack_boxes, pack_control, pack_points, unpack_results
from sim.library import NETLIST_FLAGS, Library, build

SMALLEST = Parameters.from_options("handshake", {"cores": "1", "segment": "1", "dims": "equal8"})


@pytest.fixture(scope="module")
def netlist() -> Netlist:
    return synthesise(emit(SMALLEST), SMALLEST.name, "ecp5")


def joined(verilog: str) -> set[tuple[int, int]]:
    """The pairs that a netlist finds among tuples of which one pair is (6, 9)."""
    p = SMALLEST
    path = build(verilog, p.name, p.dims, p.cores, NETLIST_FLAGS)
    seven = [np.array([7], np.uint64)]
    words = [pack_boxes(p.dims, [9], seven, seven), pack_points(p.dims, [6], seven)]
    tokens = [pack_control(p.dims, Kind.FLUSH), pack_control(p.dims, Kind.MARK, 1)]
    with Library(path, p.name, p.cores).open() as model:
        results = unpack_results(model.run(np.concatenate([*words, *tokens]), marks=1, patience=1000).results)
    return set(zip(results.r_id[:-1].tolist(), results.s_id[:-1].tolist()))


def test_one_wrong_lut_is_seen(netlist):
    """The LUT nearest to the lowest bit of a pair's S id computes the opposite."""
    module = netlist.module
    start = RESULT_LAYOUT["body"].offset + RESULT_LAYOUT["body"].shape["pair"].shape["s_id"].offset
    net = module["ports"]["results__payload"]["bits"][start]
    driver = {
        bit: (name, cell)
        for name, cell in module["cells"].items()
        for port, bits in cell["connections"].items()
        if cell["port_directions"][port] == "output"
        for bit in bits
    }
    name, cell = driver[net]
    while cell["type"] != "LUT4":
        [net] = cell["connections"][{"TRELLIS_FF": "DI", "PFUMX": "C0", "L6MUX21": "SD"}[cell["type"]]]
        name, cell = driver[net]
    table = rf"(LUT4 #\(\s*\.INIT\(16'h)(\w+)(\)\s*\) \\?{re.escape(name)} )"
    wrong, changed = re.subn(
        table, lambda found: f"{found[1]}{0xFFFF ^ int(found[2], 16):04x}{found[3]}", netlist.verilog
    )
    assert changed == 1
    assert joined(netlist.verilog) == {(6, 9)}
    assert joined(wrong) != {(6, 9)}


def test_behind_pins_nothing_is_lost():
    """Every row of both windows is still there, in a size that yosys' mapper fails on with aliases."""
    chain = replace(PAPER, cores=4)
    module = synthesise(emit_pinned(chain), TOP, "ecp5").module
    area = area_of(Counter(cell["type"] for cell in module["cells"].values()))
    assert set(module["ports"]) == {"clk", "rst", "word", "valid", "ready", "parity"}
    assert area.flip_flops > 2 * chain.capacity * 33
    assert area.ram > 0


def test_a_cell_without_a_model_is_refused():
    product = """module top(input clk, input [17:0] a, b, output reg [35:0] q);
        always @(posedge clk) q <= a * b;
    endmodule"""
    with pytest.raises(ToolError, match=r"^yosys \S+ has no simulation model of the cell MULT18X18D$"):
        synthesise(product, "top", "ecp5")
