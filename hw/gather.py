"""A gathering tree: many streams of results become one, nothing is lost, nobody starves."""

from collections.abc import Callable

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from . import fan
from .broadcast import levels
from .stamp import Stamp

FANIN = 4


def gathered(m: Module, sources: list, fanin: int, make: Callable[[int], wiring.Component]):
    """What a tree over `sources` puts out; `make` makes a node with so many `inputs` and an `output`."""
    for level in range(levels(len(sources), fanin)):
        merged = []
        for first in range(0, len(sources), fanin):
            group = sources[first : first + fanin]
            node = m.submodules[f"node_{level}_{len(merged)}"] = make(len(group))
            for source, sink in zip(group, node.inputs):
                wiring.connect(m, source, sink)
            merged.append(node.output)
        sources = merged
    return sources[0]


class Merge(wiring.Component):
    """A node that merges up to `FANIN` streams, taking turns among those that have something.

    Whose turn it is and whether there is room is known when a cycle begins, so no path goes through a node:
    it has room for two, and the turn passes to an input that is waiting already.

    `held` is high while it holds something; with `by`, the name of a 1-bit field, `held[k]` while it
    holds something in which that field is `k`.

    Latency: 1 cycle, or 2 when the turn was another input's. Throughput: one transfer per cycle.
    """

    def __init__(self, shape, by: str | None = None, inputs: int = FANIN):
        self._by = by
        super().__init__(
            {
                "inputs": In(stream.Signature(shape)).array(inputs),
                "output": Out(stream.Signature(shape)),
                "held": Out(2 if by else 1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        count = len(self.inputs)
        shape = self.output.payload.shape()
        turn = Signal(range(count))
        coming = Signal()
        merged = Signal(shape)
        # What comes while the output waits is spared; nothing more is taken until that has left.
        payload = Signal(shape, reset_less=True)
        spare = Signal(shape, reset_less=True)
        spared = Signal()
        with m.Switch(turn):
            for k, source in enumerate(self.inputs):
                with m.Case(k):
                    m.d.comb += [coming.eq(source.valid), merged.eq(source.payload), source.ready.eq(~spared)]
                    with m.If(~spared):
                        # The later assignment wins: the next in turn. Alone, an input keeps its turn.
                        for step in reversed(range(1, count)):
                            other = (k + step) % count
                            with m.If(self.inputs[other].valid):
                                m.d.sync += turn.eq(other)
        with m.If(~spared):
            m.d.sync += spare.eq(merged)
        with m.If(~self.output.valid | self.output.ready):
            m.d.sync += [
                payload.eq(Mux(spared, spare, merged)),
                self.output.valid.eq(spared | coming),
                spared.eq(0),
            ]
        with m.Elif(coming):
            m.d.sync += spared.eq(1)
        m.d.comb += [
            self.output.payload.eq(payload),
            self.held.eq(_sorted(self._by, self.output.valid, payload) | _sorted(self._by, spared, spare)),
        ]
        return m


def _sorted(by: str | None, valid: Value, payload) -> Value:
    """What `held` says of one place."""
    if by is None:
        return valid
    return Cat(valid & ~payload[by], valid & payload[by])


class Gather(wiring.Component):
    """A tree of `Merge` nodes over any number of streams.

    Latency: `levels(inputs)` cycles when nothing competes, up to twice as many when turns must pass.
    Throughput: one transfer per cycle.
    `busy` is high while any node holds something, told `busy_lag(inputs)` cycles later; with `by` it has
    two bits, as `Merge.held` has.
    """

    def __init__(self, shape, inputs: int, by: str | None = None):
        self._shape = shape
        self._by = by
        super().__init__(
            {
                "inputs": In(stream.Signature(shape)).array(inputs),
                "output": Out(stream.Signature(shape)),
                "busy": Out(2 if by else 1),
            }
        )

    @staticmethod
    def levels(inputs: int) -> int:
        """How many nodes a transfer passes."""
        return len(Gather._nodes(inputs))

    @staticmethod
    def busy_lag(inputs: int) -> int:
        """How many cycles later `busy` follows."""
        nodes = sum(Gather._nodes(inputs))
        return fan.levels(nodes) if nodes else 0

    @staticmethod
    def _nodes(inputs: int) -> list[int]:
        """How many nodes each level has."""
        counts = []
        while inputs > 1:
            inputs = -(-inputs // FANIN)
            counts.append(inputs)
        return counts

    def elaborate(self, platform):
        m = Module()
        held = []
        sources = [wiring.flipped(source) for source in self.inputs]
        for level, count in enumerate(self._nodes(len(sources))):
            merged = []
            for k in range(count):
                # Every node has the same shape, so that one module serves them all.
                node = m.submodules[f"node_{level}_{k}"] = Stamp(Merge, self._shape, self._by)
                for source, sink in zip(sources[k * FANIN : (k + 1) * FANIN], node.inputs):
                    wiring.connect(m, source, sink)
                held.append(node.held)
                merged.append(node.output)
            sources = merged
        wiring.connect(m, sources[0], wiring.flipped(self.output))
        if held:
            m.submodules.held = any_held = fan.FanIn(len(self.busy), len(held))
            m.d.comb += [flag.eq(one) for flag, one in zip(any_held.flags, held)]
            m.d.comb += self.busy.eq(any_held.any)
        return m
