"""A node that merges two sorted streams into one.

::

        input -> [head] -+
              compare    +-> [ skid ] -> output
        input -> [head] -+

Which of two heads comes first takes most of a cycle, and another to act on it. So each head is compared with
what comes next at the other input before that is known to be needed, and the node knows the order of its
heads when it holds them.
"""

from abc import abstractmethod

from amaranth import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .skid import Skid

#: The inputs of a node.
PAIRWISE = 2


class MergeNode(wiring.Component):
    """Passes on what comes first of what both inputs show; a token once for both. Or it has one input only.

    What is shown has a field `what`, whose highest bit says that it is a token: that comes behind all else,
    and waits until both inputs show one. With `END` there is one that is no token, whose lowest bit says
    nothing: it is shown for as long as all inputs show it, and never stored, so that it may be taken back.
    `holds` are the inputs of which a head is held.

    Latency: 2 cycles. Throughput: one transfer per cycle.
    """

    END: enum.Enum | None = None

    def __init__(self, shape: data.StructLayout, inputs: int):
        super().__init__(
            {
                "inputs": In(stream.Signature(shape)).array(inputs),
                "output": Out(stream.Signature(shape)),
                "holds": Out(inputs),
            }
        )

    @staticmethod
    @abstractmethod
    def not_after(one, other) -> Value:
        """Whether one that is no token comes before another or is like it."""

    def _first(self, one, other) -> Value:
        """Which of two heads go first: a token waits for another, and both go at once."""
        token, other_token, ordered = is_token(one), is_token(other), self.not_after(one, other)
        return Cat(Mux(token, other_token, other_token | ordered), Mux(other_token, token, token | ~ordered))

    def elaborate(self, platform):
        m = Module()
        count = len(self.inputs)
        shape = self.output.payload.shape()
        m.submodules.skid = skid = Skid(shape)
        heads = [Signal(shape, name=f"head_{k}", reset_less=True) for k in range(count)]
        ends = Signal(count)  # where nothing is held
        goes = Signal(count)
        for k, (source, head) in enumerate(zip(self.inputs, heads)):
            end = Const(0) if self.END is None else is_like(source.payload, self.END)
            m.d.comb += [
                ends[k].eq(source.valid & end & ~self.holds[k]),
                source.ready.eq(~self.holds[k] | goes[k]),
            ]
            with m.If(source.ready):
                m.d.sync += [head.eq(source.payload), self.holds[k].eq(source.valid & ~end)]
        if count == 1:
            m.d.comb += [goes.eq(self.holds & skid.input.ready), skid.input.payload.eq(heads[0])]
        else:
            first = Signal(2, reset_less=True)  # heads that go when both are held
            # Where a head goes beside an end there are no two to be ordered: the order waits for no ends.
            one, other = (source.payload for source in self.inputs)
            comes = Cat(~self.holds[k] | (self.holds[1 - k] & first[k] & skid.input.ready) for k in range(2))
            with m.If(comes.all()):
                m.d.sync += first.eq(self._first(one, other))
            with m.Elif(comes[0]):
                m.d.sync += first.eq(self._first(one, heads[1]))
            with m.Elif(comes[1]):
                m.d.sync += first.eq(self._first(heads[0], other))
            for k, head in enumerate(heads):
                beside = (self.holds[1 - k] & first[k]) | (ends[1 - k] & ~is_token(head))
                m.d.comb += goes[k].eq(self.holds[k] & beside & skid.input.ready)
            second = self.holds[1] & (~self.holds[0] | ~first[0])
            m.d.comb += skid.input.payload.eq(Mux(second, heads[1], heads[0]))
        m.d.comb += [
            skid.input.valid.eq(goes.any()),
            skid.output.ready.eq(self.output.ready),
            self.output.payload.eq(skid.output.payload),
            self.output.valid.eq(skid.output.valid | ends.all()),
        ]
        if self.END is not None:
            with m.If(~skid.output.valid):
                m.d.comb += make_like(self.output.payload, self.END)
        return m


def is_token(shown) -> Value:
    """Whether what is shown comes behind all else of its input."""
    return shown.what.as_value()[-1]


def is_like(shown, what: enum.Enum) -> Value:
    """Whether this is shown, or what differs from it in the lowest bit."""
    return shown.what.as_value()[1:] == what.value >> 1


def make_like(shown, what: enum.Enum):
    """Shows this, but for the lowest bit: that is compared with others, which takes most of a cycle."""
    return shown.what.as_value()[1:].eq(what.value >> 1)
