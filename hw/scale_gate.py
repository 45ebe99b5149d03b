"""ScaleGate: streams that are each in order become one, as soon as nothing earlier can come.

::

        input -> [queue] -> [node] -+
        input -> [queue] -> [node]  +-> [node] -> ready tuples, in order
        input -> [queue] -> [node] -+

The paper is "ScaleJoin: a Deterministic, Disjoint-Parallel and Skew-Resilient Stream Join". A node waits
until every input shows something, and passes on what comes first: nothing earlier can follow from any of
them. An input without tuples shows how far it has come instead.
"""

from amaranth import Cat, Const, Module, Signal, Value
from amaranth.lib import data, enum, fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from .gather import gathered
from .skid import Skid
from .socket import ID_WIDTH
from .stamp import Stamp


class Shown(enum.Enum, shape=3):
    """What an input of a gate shows. Those from END on come after every number."""

    TUPLE = 0
    BEAT = 1  #: nothing with this number or an earlier one comes any more
    END = 4  #: nothing comes any more until a flush
    TOKEN = 6  #: of all inputs, behind everything that any of them showed before it
    FLUSH = 7  #: a token after which numbers begin anew, and inputs that have ended are open again


def shown_layout(body, second: int = 0) -> data.StructLayout:
    """What is shown: tuples come by `number`, modulo 2**32, and then by the `second` one."""
    return data.StructLayout({"what": Shown, "number": ID_WIDTH, "second": second, "body": body})


def _earlier(one: Value, other: Value) -> Value:
    """Whether a number is before another, modulo their width."""
    return (one - other)[: len(one)].as_signed() < 0


def _before(one, other) -> Value:
    """Whether one head comes before another; not if they are alike."""
    last, other_last = one.what.as_value()[2], other.what.as_value()[2]
    beat, other_beat = one.what.as_value()[0], other.what.as_value()[0]
    second = _earlier(one.second, other.second) if len(one.second) else Const(0)
    within = ~beat & (other_beat | second)
    numbers = _earlier(one.number, other.number) | ((one.number == other.number) & within)
    end, token = ~one.what.as_value()[1], other.what.as_value()[1]
    return ~last & (other_last | numbers) | (last & other_last & end & token)


def _alike(one, other) -> Value:
    """Whether two heads that are no tuples say the same, so that one of them speaks for both."""
    return (one.what == other.what) & (
        one.what.as_value()[2] | ((one.what == Shown.BEAT) & (one.number == other.number))
    )


class GateNode(wiring.Component):
    """Passes on what comes first of what all inputs show; what is no tuple and alike, once for all.

    Ends are shown for as long as all inputs show them, and never stored: they may be taken back.

    Latency: 1 cycle. Throughput: one transfer per cycle.
    """

    def __init__(self, shape: data.StructLayout, inputs: int):
        super().__init__(
            {"inputs": In(stream.Signature(shape)).array(inputs), "output": Out(stream.Signature(shape))}
        )

    def elaborate(self, platform):
        m = Module()
        count = len(self.inputs)
        heads = [source.payload for source in self.inputs]
        m.submodules.skid = skid = Skid(self.output.payload.shape())
        shown = Cat(source.valid for source in self.inputs).all()
        last = Cat(head.what.as_value()[2] for head in heads)
        ends = Cat(head.what == Shown.END for head in heads)
        m.d.comb += [
            self.output.payload.eq(skid.output.payload),
            self.output.valid.eq(skid.output.valid | (shown & ends.all())),
            skid.output.ready.eq(self.output.ready),
        ]
        with m.If(~skid.output.valid):
            m.d.comb += self.output.payload.what.eq(Shown.END)
        loses = [[Const(0)] * count for _ in range(count)]  # [k][j]: k is not the first, because of j
        for k in range(count):
            for j in range(k):
                behind = Signal(name=f"behind_{k}_{j}")
                m.d.comb += behind.eq(_before(heads[k], heads[j]))
                loses[j][k], loses[k][j] = behind, ~behind
        first = Signal(count)
        m.d.comb += [first[k].eq(~Cat(loses[k]).any()) for k in range(count)]
        goes = Signal()
        m.d.comb += [
            skid.input.valid.eq(shown & ~(last.all() & ends.any())),  # an end is not the first
            goes.eq(skid.input.valid & skid.input.ready),
        ]
        for k, source in enumerate(self.inputs):
            same = Cat(first[j] & _alike(heads[k], heads[j]) for j in range(count) if j != k)
            m.d.comb += source.ready.eq(goes & (first[k] | same.any()))
            with m.If(first[k]):
                m.d.comb += skid.input.payload.eq(source.payload)
        return m


class GateTree(wiring.Component):
    """A tree of nodes over any number of streams, with at most `fanin` inputs each.

    What comes out of it is in order, heartbeats and ends among it. It waits for the inputs in `waits`: they
    show nothing, and nothing is left of them in the nodes that they come through.

    Latency: `broadcast.levels(inputs, fanin)` cycles. Throughput: one transfer per cycle.
    """

    def __init__(self, shape: data.StructLayout, inputs: int, fanin: int):
        self._shape = shape
        self._fanin = fanin
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
        wiring.connect(m, gathered(m, sources, self._fanin, make), wiring.flipped(self.output))
        # Nodes are in the order of their levels: input `k` comes through the one at `k // below` of each.
        shown = [source.valid for source in self.inputs]
        first, below = 0, 1
        while first < len(nodes):
            below *= self._fanin
            shown = [one | nodes[first + k // below].output.valid for k, one in enumerate(shown)]
            first += -(-len(shown) // below)
        m.d.comb += self.waits.eq(~Cat(shown))
        return m


class ScaleGate(wiring.Component):
    """Merges the tuples of any number of physical inputs into one sequence of ready tuples and tokens.

    In each input the numbers rise, modulo 2**32. A tuple is ready once every other input has shown a later
    one, a heartbeat at or after it, or its end; the sequence is that of the numbers, whatever comes when and
    where. A token is put out when all inputs have shown it; one that has ended shows nothing else before the
    next flush. Each input has a queue of `depth` places, and takes what comes while others wait.

    `starving` are the inputs that it waits for; nobody waits for those in `pass_over`. `idle` is high when
    nothing is on its last step to the output.

    Latency: `1 + broadcast.levels(inputs, fanin)` cycles from the transfer that makes a tuple ready.
    Throughput: one ready tuple per cycle, whatever the number of inputs; a heartbeat takes a cycle too.
    """

    def __init__(self, body, inputs: int, depth: int, fanin: int):
        self._shape = shown_layout(body)
        self._depth = depth
        self._fanin = fanin
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
        m.submodules.tree = tree = GateTree(self._shape, len(self.inputs), self._fanin)
        for k, (source, sink) in enumerate(zip(self.inputs, tree.inputs)):
            queue = m.submodules[f"queue_{k}"] = fifo.SyncFIFO(width=self._shape.size, depth=self._depth)
            head = Signal(self._shape, name=f"head_{k}")
            ended = Signal(name=f"ended_{k}")
            ends = queue.r_rdy & (head.what == Shown.END)
            m.d.comb += [
                queue.w_data.eq(source.payload),
                queue.w_en.eq(source.valid),
                source.ready.eq(queue.w_rdy),
                head.eq(queue.r_data),
                queue.r_en.eq(sink.ready | ends),
            ]
            with m.If(queue.r_rdy):
                m.d.comb += [sink.payload.eq(head), sink.valid.eq(1)]
                with m.If(ends):
                    m.d.sync += ended.eq(1)
                with m.Elif(sink.ready & (head.what == Shown.FLUSH)):
                    m.d.sync += ended.eq(0)
            with m.Else():
                m.d.comb += [sink.payload.what.eq(Shown.END), sink.valid.eq(ended | self.pass_over[k])]
        passed = tree.output.payload.what
        dropped = (passed == Shown.BEAT) | (passed == Shown.END)
        m.d.comb += [
            self.output.payload.eq(tree.output.payload),
            self.output.valid.eq(tree.output.valid & ~dropped),
            tree.output.ready.eq(self.output.ready | dropped),
            self.starving.eq(tree.waits),
            self.idle.eq(~tree.output.valid),
        ]
        return m
