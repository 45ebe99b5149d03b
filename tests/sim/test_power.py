"""Toggles, counted by hand on a circuit of one counter; weights, on cells of which each pin is known."""

import numpy as np
from amaranth.back import verilog
from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.area import RAM_LUTS
from hw.dimension import Dimension
from hw.netlist import synthesise
from hw.socket import Socket, tuple_layout
from hw.words import pack_points
from sim import power

DIMS = (Dimension.parse("equal8"),)


class Counting(wiring.Component):
    """Takes a tuple every cycle and counts it, nothing else."""

    def __init__(self):
        super().__init__(Socket(DIMS, 1))

    def elaborate(self, platform):
        m = Module()
        m.d.comb += self.tuples.ready.eq(1)
        with m.If(self.tuples.valid):
            m.d.sync += self.counters.tuples.eq(self.counters.tuples + 1)
        return m


def test_a_counter_toggles_as_counters_do():
    count = 256
    netlist = synthesise(verilog.convert(Counting(), name="counting"), "counting", "ecp5")
    words = pack_points(DIMS, np.arange(count + 8), [np.zeros(count + 8, np.uint64)])
    activity = power.watch(netlist, "counting", DIMS, words, warm=8)
    toggles = dict(zip(activity.names, activity.toggles.tolist()))
    weights = dict(zip(activity.names, activity.weights.tolist()))
    assert activity.cycles == count
    assert np.diff(activity.taken).tolist() == [1] * (count - 1)
    # Bit k changes every 2**k tuples.
    assert [toggles[f"\\counters [{bit}]"] for bit in range(9)] == [count >> bit for bit in range(9)]
    assert toggles["\\tuples__valid "] == 0
    # The id is one higher with each tuple, and goes nowhere.
    lowest = f"\\tuples__payload [{tuple_layout(DIMS)['id'].offset}]"
    assert (toggles[lowest], weights[lowest]) == (count, 1)
    assert weights["\\counters [0]"] > 1
    assert activity.area.flip_flops == 32
    assert activity.clock == 2 * count * (1 + 32 / power.SLICE_FLIP_FLOPS)
    assert activity.data == sum(toggles[name] * weights[name] for name in toggles)


def test_weights_are_what_a_net_reaches():
    module = {
        "netnames": {"a": {"bits": [2, 3, "0"]}, "$b": {"bits": [4], "offset": 7}},
        "cells": {
            "ram": {
                "type": "RAM32M",
                "port_directions": {"ADDRA": "input", "DIA": "input", "DOA": "output"},
                "connections": {"ADDRA": [2], "DIA": [3], "DOA": [4]},
            },
            "lut": {
                "type": "LUT2",
                "port_directions": {"I0": "input", "I1": "input", "O": "output"},
                "connections": {"I0": [2], "I1": ["1"], "O": [3]},
            },
        },
    }
    assert power._nets(module) == {2: "\\a [0]", 3: "\\a [1]", 4: "\\$b "}
    weights = power._weights(module)
    assert (weights[2], weights[3], weights[4]) == (1 + RAM_LUTS["RAM32M"] + 1, 1 + 1, 1)


def test_chains_hold_the_papers_window():
    for cores in power.PUBLISHED:
        chain = power.chain(cores)
        assert (chain.capacity, chain.lanes) == (power.WINDOW, 1)
