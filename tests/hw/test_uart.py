"""The UART.

bytes -> tx -> (wire) -> rx -> bytes
"""

import gc
import random

import pytest
from amaranth import Module
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from hw.errors import ParameterError
from hw.uart import Uart

from .streams import simulate, source


class Wire(wiring.Component):
    """Two UARTs, the first of which talks to the second."""

    def __init__(self, sender: float, receiver: float):
        self.sender, self.receiver = Uart(sender), Uart(receiver)
        super().__init__({"sent": In(stream.Signature(8)), "received": Out(stream.Signature(8))})

    def elaborate(self, platform):
        m = Module()
        m.submodules.sender, m.submodules.receiver = self.sender, self.receiver
        wiring.connect(m, wiring.flipped(self.sent), self.sender.sent)
        wiring.connect(m, self.receiver.received, wiring.flipped(self.received))
        m.d.comb += self.receiver.rx.eq(self.sender.tx)
        return m


@pytest.mark.parametrize(
    "sender, receiver", [(3, 3), (4.5, 4.5), (8.33, 8.33), (104.17, 104.17), (16, 16.4), (16, 15.6)]
)
@pytest.mark.parametrize("stall", [0, 0.9])
def test_every_byte_arrives(sender, receiver, stall, seed):
    """Also with fractional divisors, and with clocks that differ by 2.5 percent."""
    chance = random.Random(seed)
    values = [chance.randrange(256) for _ in range(12 if sender > 50 else 60)]
    dut = Wire(sender, receiver)
    taken = []

    async def testbench(ctx):
        ctx.set(dut.received.ready, 1)
        for cycle in range(40_000):
            _, _, valid, payload = await ctx.tick().sample(dut.received.valid, dut.received.payload)
            if valid:
                taken.append((cycle, payload))
            if len(taken) == len(values):
                return

    simulate(dut, [source(dut.sent, values, seed=seed, stall=stall), testbench])
    assert [value for _, value in taken] == values
    if not stall:
        # Back to back: ten bits a byte, however the divisor's fraction falls.
        between = (taken[-1][0] - taken[0][0]) / (len(taken) - 1)
        assert between == pytest.approx(10 * sender, abs=0.2)


@pytest.mark.filterwarnings("ignore::amaranth.hdl.UnusedElaboratable")  # what is refused is not used
@pytest.mark.parametrize("divisor", [0, 2.9, 65536])
def test_divisors_out_of_range_are_refused(divisor):
    with pytest.raises(ParameterError) as error:
        Uart(divisor)
    assert str(error.value) == (
        f"UART divisor must be at least 3 clocks per bit and below 65536, not {divisor!r}"
    )
    del error
    gc.collect()  # what was refused goes while its warning is ignored
