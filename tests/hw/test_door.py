"""A door: flags in a skid, and messages that stay where they were put.

source -> Door -> sink
"""

import pytest
from amaranth import Module
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.door import Door

from .streams import passed_through


class Numbers(wiring.Component):
    """A door for numbers: their lowest bits are flags, others an address."""

    def __init__(self):
        super().__init__({"input": In(stream.Signature(16)), "output": Out(stream.Signature(16))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.door = door = Door(
            data.StructLayout({"low": 4}), data.StructLayout({"middle": 4, "high": 8}), ("middle",)
        )
        m.d.comb += [
            door.input.payload.eq(self.input.payload),
            door.input.valid.eq(self.input.valid),
            self.input.ready.eq(door.input.ready),
            self.output.payload.eq(door.output.payload),
            self.output.valid.eq(door.output.valid),
            door.output.ready.eq(self.output.ready),
        ]
        return m


@pytest.mark.parametrize("stalls", [(0, 0), (0.5, 0), (0, 0.5), (0.4, 0.6)])
def test_everything_comes_out_in_order_with_its_flags(stalls, seed):
    cycles = passed_through(Numbers(), stalls, seed)
    if stalls == (0, 0):
        assert cycles == list(range(cycles[0], cycles[0] + len(cycles)))
