"""A gathering tree: many streams of results become one, nothing is lost, nobody starves."""

from amaranth import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .stamp import Stamp

FANIN = 4


class Merge(wiring.Component):
    """A node that merges up to `FANIN` streams, taking turns among those that have something.

    Latency: 1 cycle. Throughput: one transfer per cycle.
    """

    def __init__(self, shape, inputs: int = FANIN):
        super().__init__(
            {
                "inputs": In(stream.Signature(shape)).array(inputs),
                "output": Out(stream.Signature(shape)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        count = len(self.inputs)
        valid = Cat(source.valid for source in self.inputs)
        chosen = Signal(range(count))
        last = Signal(range(count))
        with m.Switch(last):
            for turn in range(count):
                with m.Case(turn):
                    # The later assignment wins, so the input right after the last one comes last.
                    for step in reversed(range(count)):
                        source = (turn + 1 + step) % count
                        with m.If(valid[source]):
                            m.d.comb += chosen.eq(source)

        accept = ~self.output.valid | self.output.ready
        payload = Signal(self.output.payload.shape(), reset_less=True)
        m.d.comb += self.output.payload.eq(payload)
        with m.If(accept):
            m.d.sync += [self.output.valid.eq(valid.any()), last.eq(chosen)]
            with m.Switch(chosen):
                for k, source in enumerate(self.inputs):
                    with m.Case(k):
                        m.d.sync += payload.eq(source.payload)
        for k, source in enumerate(self.inputs):
            m.d.comb += source.ready.eq(accept & (chosen == k))
        return m


class Gather(wiring.Component):
    """A tree of `Merge` nodes over any number of streams.

    Latency: `levels(inputs)` cycles when nothing competes. Throughput: one transfer per cycle.
    `busy` is high while any node holds something.
    """

    def __init__(self, shape, inputs: int):
        self._shape = shape
        super().__init__(
            {
                "inputs": In(stream.Signature(shape)).array(inputs),
                "output": Out(stream.Signature(shape)),
                "busy": Out(1),
            }
        )

    @staticmethod
    def levels(inputs: int) -> int:
        """How many nodes a transfer passes."""
        count = 0
        while inputs > 1:
            inputs = -(-inputs // FANIN)
            count += 1
        return count

    def elaborate(self, platform):
        m = Module()
        held = []
        sources = [wiring.flipped(source) for source in self.inputs]
        level = 0
        while len(sources) > 1:
            merged = []
            for first in range(0, len(sources), FANIN):
                group = sources[first : first + FANIN]
                # Every node has the same shape, so that one module serves them all.
                node = m.submodules[f"node_{level}_{first // FANIN}"] = Stamp(Merge, self._shape)
                for source, sink in zip(group, node.inputs):
                    wiring.connect(m, source, sink)
                held.append(node.output.valid)
                merged.append(node.output)
            sources = merged
            level += 1
        wiring.connect(m, sources[0], wiring.flipped(self.output))
        m.d.comb += self.busy.eq(Cat(held).any())
        return m
