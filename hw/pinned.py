"""A joiner behind a handful of pins, so that a chip can hold it alone and its clock can be measured.

::

                        +--------+
    word --> [shift] -->|        |--> [registers] --> [xor tree] --> parity
    valid --> [reg] --->| joiner |--> counters: likewise
    ready --> [reg] --->|        |
                        +--------+

A joiner has hundreds of ports; a chip has fewer pins.
"""

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from .joiner import joiner
from .parameters import Parameters
from .verilog import whole

#: The name of the top module.
TOP = "pinned"
#: How many bits a LUT of the smaller kind takes in.
_FANIN = 4


class Pinned(wiring.Component):
    """A joiner between registers: no path leads from a pin into it, or from it to a pin.

    Each of its outputs but `activity` changes `parity`, so that synthesis keeps all of it. It adds a register
    per bit of the ports, and a LUT for three of those that come out.

    Latency: one cycle on the way in; out, one and the levels of a tree of fan-in 4.
    Throughput: a word every `len(tuples.payload)` cycles, which is enough for a circuit that never runs.
    """

    word: In(1)
    valid: In(1)
    ready: In(1)
    parity: Out(1)

    def __init__(self, parameters: Parameters):
        self._joiner = joiner(parameters)
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules.joiner = inside = self._joiner
        payload = Value.cast(inside.tuples.payload)
        shifted = Signal(len(payload), reset_less=True)
        valid = Signal()
        ready = Signal()
        m.d.sync += [shifted.eq(Cat(self.word, shifted)), valid.eq(self.valid), ready.eq(self.ready)]
        m.d.comb += [payload.eq(shifted), inside.tuples.valid.eq(valid), inside.results.ready.eq(ready)]

        level = Cat(inside.tuples.ready, inside.results.valid, inside.results.payload, inside.counters)
        fanin = 1
        while True:
            parts = [level[start : start + fanin].xor() for start in range(0, len(level), fanin)]
            held = Signal(len(parts), name=f"level_{len(parts)}", reset_less=True)
            m.d.sync += held.eq(Cat(parts))
            if len(parts) == 1:
                break
            level, fanin = held, _FANIN
        m.d.comb += self.parity.eq(held)
        return m


def emit_pinned(parameters: Parameters) -> str:
    """The Verilog of a joiner behind pins; its top module is called `TOP`."""
    return whole(lambda: Pinned(parameters), TOP)
