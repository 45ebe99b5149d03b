"""Register trees that keep the clock of a large design as fast as that of a small one.

::

                    +-> [ ] -> places            flags -> [or] -+
        value -> [ ]+-> [ ] -> places            flags -> [or] -+-> [or] -> any
                    +-> [ ] -> places            flags -> [or] -+

No register drives more than `FAN` others or groups of places, and none is driven by more.
"""

from amaranth import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .stamp import Stamp

FAN = 8


def levels(places: int) -> int:
    """How many registers a value passes on its way to, or a flag on its way from, `places` places."""
    count = 1
    while places > FAN:
        places = -(-places // FAN)
        count += 1
    return count


class FanNode(wiring.Component):
    """A register. Latency: 1 cycle. Throughput: one value per cycle."""

    #: Registers with the same input are one to a synthesis that looks into them.
    KEPT = True

    def __init__(self, shape):
        super().__init__({"value": In(shape), "copy": Out(shape)})

    def elaborate(self, platform):
        m = Module()
        m.d.sync += self.copy.eq(self.value)
        return m


class FanOut(wiring.Component):
    """Brings a value to many places in the same cycle.

    Latency: `levels(places)` cycles. Throughput: one value per cycle.
    """

    def __init__(self, shape, places: int):
        self._shape = shape
        super().__init__({"value": In(shape), "copies": Out(shape).array(places)})

    def elaborate(self, platform):
        m = Module()
        sinks = list(self.copies)
        for level in reversed(range(levels(len(self.copies)))):
            nodes = []
            for first in range(0, len(sinks), FAN):
                node = m.submodules[f"node_{level}_{first // FAN}"] = Stamp(FanNode, self._shape)
                m.d.comb += [sink.eq(node.copy) for sink in sinks[first : first + FAN]]
                nodes.append(node)
            sinks = [node.value for node in nodes]
        m.d.comb += sinks[0].eq(self.value)
        return m


class FanIn(wiring.Component):
    """Tells whether a flag is high in any of many places; each of `width` flags for itself.

    Latency: `levels(places)` cycles. Throughput: one answer per cycle.
    """

    def __init__(self, width: int, places: int):
        super().__init__({"flags": In(width).array(places), "any": Out(width)})

    def elaborate(self, platform):
        m = Module()
        width = len(self.any)
        flags = list(self.flags)
        for level in range(levels(len(flags))):
            seen = []
            for first in range(0, len(flags), FAN):
                group = flags[first : first + FAN]
                found = Signal(width, name=f"any_{level}_{first // FAN}")
                m.d.sync += found.eq(Cat(Cat(flag[k] for flag in group).any() for k in range(width)))
                seen.append(found)
            flags = seen
        m.d.comb += self.any.eq(flags[0])
        return m


class FanSum(wiring.Component):
    """Adds up small numbers, each at most `highest`, of many places.

    Latency: `levels(places)` cycles. Throughput: one sum per cycle.
    """

    def __init__(self, highest: int, places: int):
        self._highest = highest
        super().__init__(
            {"numbers": In(range(highest + 1)).array(places), "total": Out(range(highest * places + 1))}
        )

    def elaborate(self, platform):
        m = Module()
        sums, highest = list(self.numbers), self._highest
        for level in range(levels(len(sums))):
            highest *= FAN
            added = []
            for first in range(0, len(sums), FAN):
                total = Signal(range(highest + 1), name=f"sum_{level}_{first // FAN}")
                m.d.sync += total.eq(sum(sums[first : first + FAN]))
                added.append(total)
            sums = added
        m.d.comb += self.total.eq(sums[0])
        return m
