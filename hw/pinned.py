"""A component behind a handful of pins, so that a chip can hold it alone and its clock can be measured.

::

                        +-----------+
    word --> [shift] -->|           |
    valid --> [reg] --->| component |--> [registers] --> [xor tree] --> parity
    ready --> [reg] --->|           |
                        +-----------+

A joiner has hundreds of ports; a chip has fewer pins.
"""

from collections.abc import Callable

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
    """A component between registers: no path leads from a pin into it, or from it to a pin.

    All its input streams get the same `valid`, all output streams the same `ready`, and other inputs a part
    of a shift register each. Each of its outputs but those that are `ignored` changes `parity`, so that
    synthesis keeps all of it. It adds a register per bit of the ports, and a LUT for three of those that come
    out.

    Latency: one cycle on the way in; out, one and the levels of a tree of fan-in 4.
    Throughput: as many cycles for new inputs as these have bits: enough for a circuit that never runs.
    """

    word: In(1)
    valid: In(1)
    ready: In(1)
    parity: Out(1)

    def __init__(self, name: str, component: wiring.Component, ignored: tuple[str, ...] = ()):
        self._name = name
        self._component = component
        self._ignored = ignored
        super().__init__()

    def elaborate(self, platform):
        m = Module()
        m.submodules[self._name] = inside = self._component
        ports = {wiring.In: {}, wiring.Out: {}}
        for path, member, port in inside.signature.flatten(inside):
            if path[0] not in self._ignored:
                ports[member.flow][path] = Value.cast(port)
        handshakes = {"valid": Signal(name="valid"), "ready": Signal(name="ready")}
        payload = Cat(port for path, port in ports[wiring.In].items() if path[-1] not in handshakes)
        shifted = Signal(len(payload), reset_less=True)
        m.d.sync += shifted.eq(Cat(self.word, shifted))
        m.d.sync += [register.eq(getattr(self, name)) for name, register in handshakes.items()]
        m.d.comb += payload.eq(shifted)
        for path, port in ports[wiring.In].items():
            if path[-1] in handshakes:
                m.d.comb += port.eq(handshakes[path[-1]])

        # In an order of their own, so that what was routed before is still known by its digest.
        names = list(inside.signature.members)
        outputs = sorted(ports[wiring.Out], key=lambda path: (names.index(path[0]), path[-1] == "payload"))
        level = Cat(ports[wiring.Out][path] for path in outputs)
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
    return whole(lambda: Pinned("joiner", joiner(parameters), ignored=("activity",)), TOP)


def emit_alone(make: Callable[[], wiring.Component]) -> str:
    """The same of any component."""
    return whole(lambda: Pinned("component", make()), TOP)
