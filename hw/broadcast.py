"""A distribution tree: one stream goes to many places, each of which takes it when it can.

::

                     +-> [ fork ] -> places
        input -> [ fork ]
                     +-> [ fork ] -> places

Nothing passes a fork within a cycle, in either direction, so that the clock does not slow down with the
number of places.
"""

from amaranth import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .skid import Skid
from .stamp import Stamp


def levels(places: int, fanout: int) -> int:
    """How many nodes of so many branches a transfer passes on its way to, or from, one of `places`."""
    count = 0
    while places > 1:
        places = -(-places // fanout)
        count += 1
    return count


class Fork(wiring.Component):
    """A node of the tree: hands each transfer to every output, to each as soon as it is ready.

    Latency: 1 cycle. Throughput: one transfer per cycle.
    """

    def __init__(self, shape, branches: int):
        super().__init__(
            {
                "input": In(stream.Signature(shape)),
                "outputs": Out(stream.Signature(shape)).array(branches),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.skid = skid = Skid(self.input.payload.shape())
        wiring.connect(m, wiring.flipped(self.input), skid.input)
        source, sinks = skid.output, self.outputs
        done = Signal(len(sinks))  # those that have taken it, while others have not
        taken = Signal(len(sinks))
        m.d.comb += [
            taken.eq(done | Cat(sink.ready for sink in sinks)),
            source.ready.eq(taken.all()),
        ]
        for k, sink in enumerate(sinks):
            m.d.comb += [sink.payload.eq(source.payload), sink.valid.eq(source.valid & ~done[k])]
        with m.If(source.valid):
            for k in range(len(sinks)):
                m.d.sync += done[k].eq(taken[k] & ~taken.all())
        return m


class Broadcast(wiring.Component):
    """A tree of `Fork` nodes to any number of places, with at most `fanout` branches each.

    All places see all transfers in one order; a place that does not take one holds up the others no sooner
    than the places between them are full. A single place needs no tree.

    Latency: `levels(places, fanout)` cycles. Throughput: one transfer per cycle.
    """

    def __init__(self, shape, places: int, fanout: int):
        self._shape = shape
        self._fanout = fanout
        super().__init__(
            {"input": In(stream.Signature(shape)), "outputs": Out(stream.Signature(shape)).array(places)}
        )

    def elaborate(self, platform):
        m = Module()
        sinks = [wiring.flipped(output) for output in self.outputs]
        for level in reversed(range(levels(len(sinks), self._fanout))):
            nodes = []
            for first in range(0, len(sinks), self._fanout):
                group = sinks[first : first + self._fanout]
                node = m.submodules[f"node_{level}_{len(nodes)}"] = Stamp(Fork, self._shape, len(group))
                for output, sink in zip(node.outputs, group):
                    wiring.connect(m, output, sink)
                nodes.append(node)
            sinks = [node.input for node in nodes]
        wiring.connect(m, wiring.flipped(self.input), sinks[0])
        return m
