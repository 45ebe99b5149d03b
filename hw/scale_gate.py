"""ScaleGate: streams that are each in order become one, as soon as nothing earlier can come.

::

        input -> [queue] -+
        input -> [queue] -+-> [node] -+
        input -> [queue] ---> [node] -+-> [node] -> ready tuples, in order

The paper is "ScaleJoin: a Deterministic, Disjoint-Parallel and Skew-Resilient Stream Join". A node waits
until every input shows something, and passes on what comes first: nothing earlier can follow from any of
them. An input without tuples shows how far it has come instead.
"""

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .gather import gathered
from .merge_node import PAIRWISE, MergeNode, is_like, make_like
from .queue import ShortQueue
from .socket import ID_WIDTH
from .stamp import Stamp


class Shown(enum.Enum, shape=3):
    """What an input of a gate shows. Those from END on come after every number."""

    TUPLE = 0
    BEAT = 1  #: nothing with this number or an earlier one comes any more
    END = 4  #: nothing comes any more until a flush; 5 is the same, see `MergeNode`
    TOKEN = 6  #: of all inputs, behind everything that any of them showed before it
    FLUSH = 7  #: a token after which numbers begin anew, and inputs that have ended are open again


def shown_layout(body) -> data.StructLayout:
    """What is shown: tuples come by `number`, modulo 2**32."""
    return data.StructLayout({"what": Shown, "number": ID_WIDTH, "body": body})


class GateNode(MergeNode):
    """Passes on what comes first of what both inputs show."""

    END = Shown.END

    @staticmethod
    def not_after(one, other) -> Value:
        """By number; a tuple is before the heartbeat of its number."""
        one, other = (Cat(shown.what.as_value()[0], shown.number) for shown in (one, other))
        return (other - one)[: len(one)].as_signed() >= 0


class GateTree(wiring.Component):
    """A tree of nodes over any number of streams.

    What comes out of it is in order, heartbeats and ends among it. It waits for the inputs in `waits`: they
    show nothing, and nothing is left of them in the nodes that they come through.

    Latency: `2 * broadcast.levels(inputs, PAIRWISE)` cycles. Throughput: one transfer per cycle.
    """

    def __init__(self, shape: data.StructLayout, inputs: int):
        self._shape = shape
        super().__init__(
            {
                "inputs": In(stream.Signature(shape)).array(inputs),
                "output": Out(stream.Signature(shape)),
                "waits": Out(inputs),
            }
        )

    def elaborate(self, platform):
        m = Module()
        nodes = []

        def make(inputs: int) -> wiring.Component:
            nodes.append(Stamp(GateNode, self._shape, inputs))
            return nodes[-1]

        sources = [wiring.flipped(source) for source in self.inputs]
        wiring.connect(m, gathered(m, sources, PAIRWISE, make), wiring.flipped(self.output))
        # Nodes are in the order of their levels; each input comes through a branch of one at every level.
        shown = [source.valid for source in self.inputs]
        first, branches = 0, range(len(shown))
        while first < len(nodes):
            passed = [(nodes[first + branch // PAIRWISE], branch % PAIRWISE) for branch in branches]
            shown = [one | node.holds[at] | node.output.valid for one, (node, at) in zip(shown, passed)]
            branches = [branch // PAIRWISE for branch in branches]
            first += branches[-1] + 1
        m.d.comb += self.waits.eq(~Cat(shown))
        return m


class ScaleGate(wiring.Component):
    """Merges the tuples of any number of physical inputs into one sequence of ready tuples and tokens.

    In each input the numbers rise, modulo 2**32. A tuple is ready once every other input has shown a later
    one, a heartbeat at or after it, or its end; the sequence is that of the numbers, whatever comes when and
    where. A token is put out when all inputs have shown it; one that has ended shows nothing else before the
    next flush. Each input has a queue of `depth` places, at least 3, and takes what comes while others wait.

    `starving` are the inputs that it waits for, a cycle late; nobody waits for those in `pass_over`. `idle`
    is high when nothing is on its last step to the output.

    Latency: `2 + 2 * broadcast.levels(inputs, PAIRWISE)` cycles from the transfer that makes a tuple ready.
    Throughput: one ready tuple per cycle, whatever the number of inputs; each heartbeat takes a cycle too.
    """

    def __init__(self, body, inputs: int, depth: int):
        self._shape = shown_layout(body)
        self._depth = depth
        super().__init__(
            {
                "inputs": In(stream.Signature(self._shape)).array(inputs),
                "output": Out(stream.Signature(self._shape)),
                "starving": Out(inputs),
                "pass_over": In(inputs),
                "idle": Out(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.tree = tree = GateTree(self._shape, len(self.inputs))
        for k, (source, sink) in enumerate(zip(self.inputs, tree.inputs)):
            queue = m.submodules[f"queue_{k}"] = ShortQueue(self._shape, max(self._depth, 3))
            wiring.connect(m, wiring.flipped(source), queue.input)
            head, shows = queue.output.payload, queue.output.valid
            ended = Signal(name=f"ended_{k}")
            m.d.comb += [
                sink.payload.eq(head),
                sink.valid.eq(shows | ended | self.pass_over[k]),
                queue.output.ready.eq(sink.ready),
            ]
            with m.If(~shows):
                m.d.comb += make_like(sink.payload, Shown.END)
            with m.If(shows & sink.ready):
                with m.Switch(head.what):
                    with m.Case(Shown.END):
                        m.d.sync += ended.eq(1)
                    with m.Case(Shown.FLUSH):
                        m.d.sync += ended.eq(0)
        passed = tree.output.payload
        dropped = (passed.what == Shown.BEAT) | is_like(passed, Shown.END)
        m.d.comb += [
            self.output.payload.eq(passed),
            self.output.valid.eq(tree.output.valid & ~dropped),
            tree.output.ready.eq(self.output.ready | dropped),
            self.idle.eq(~tree.output.valid),
        ]
        m.d.sync += self.starving.eq(tree.waits)
        return m
