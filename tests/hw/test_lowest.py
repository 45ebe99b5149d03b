"""How many of some bits are high, for all values of them."""

import pytest
from amaranth import Module, Signal

from hw.lowest import at_least

from .streams import simulate


@pytest.mark.parametrize("width", [1, 2, 5, 9])
def test_at_least_so_many_bits_are_high(width):
    m, bits = Module(), Signal(width)
    found = Signal(5)
    m.d.comb += [found[number].eq(at_least(number, bits)) for number in range(5)]

    async def testbench(ctx):
        for value in range(1 << width):
            ctx.set(bits, value)
            assert ctx.get(found) == sum((value.bit_count() >= number) << number for number in range(5))

    simulate(m, [testbench])
