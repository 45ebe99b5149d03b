"""Tests of routing: a small design in a real chip, in time and not."""

import re

import pytest
from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from hw.errors import ToolError
from hw.route import CROWDED, ECP5_85F, place, synthesise
from hw.uart import Uart
from hw.verilog import whole


class Echo(wiring.Component):
    """A UART that sends back what it receives."""

    rx: In(1)
    tx: Out(1)

    def elaborate(self, platform):
        m = Module()
        m.submodules.uart = uart = Uart(100)
        wiring.connect(m, uart.received, uart.sent)
        m.d.comb += [uart.rx.eq(self.rx), self.tx.eq(uart.tx)]
        return m


@pytest.fixture(scope="module")
def netlist(tmp_path_factory):
    return synthesise(whole(Echo, "top", sources=True), "top", folder=tmp_path_factory.mktemp("route"))


def test_same_result_again_and_room(netlist):
    lines = []
    first, again, other = (
        place(netlist, mhz=50, seed=seed, folder=netlist.parent, watch=lines.append) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert first.met and first.slowest.name == "clk" and first.slowest.asked == 50 < first.slowest.reached
    assert 0 < first.area.luts < 200 and 0 < first.area.flip_flops < 100
    assert (first.area.ram, first.area.block_rams) == (0, 0)
    assert (first.room.logic, first.room.flip_flops, first.room.block_rams) == (83_640, 83_640, 208)
    assert first.output.read_text().startswith(".device LFE5U-85F\n")
    assert any("Program finished normally" in line for line in lines)


def test_a_crowded_chip_has_another_placer(netlist):
    lines = {}
    for options in ((), CROWDED):
        watch = lines.setdefault(options, []).append
        place(netlist, mhz=50, folder=netlist.parent, options=options, watch=watch)
    heaps = [any("analytic placement" in line for line in printed) for printed in lines.values()]
    assert heaps == [True, False]


def test_missed_timing_shows_the_path_by_our_names(netlist):
    missed = place(netlist, mhz=1000, folder=netlist.parent)
    assert not missed.met and missed.slowest.asked == 1000 > missed.slowest.reached
    assert [step.ns for step in missed.critical_path] == sorted(step.ns for step in missed.critical_path)
    assert missed.critical_path[-1].ns == pytest.approx(1000 / missed.slowest.reached, rel=0.01)
    for step in missed.critical_path:
        assert re.match(r"(uart\.)?[a-zA-Z_$0-9.]+(\[\d+\])?$", step.name)
    assert re.search(r"uart\.\w+.* hw/uart\.py:\d+", missed.path_table())


def test_a_failure_is_not_missed_timing(netlist, tmp_path):
    with pytest.raises(ToolError, match=r"nextpnr-ecp5 .*failed with exit code"):
        place(netlist, mhz=50, folder=netlist.parent, constraints='LOCATE COMP "rx" SITE "Z99";\n')
    with pytest.raises(ToolError, match=r"yosys .*failed with exit code"):
        synthesise("module top(", "top", folder=tmp_path, chip=ECP5_85F)
