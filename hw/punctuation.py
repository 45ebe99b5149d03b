"""Results with punctuation, and the gathering tree that keeps their order.

::

        region -> [merger] -+
        region -> [merger] -+-> [merger] -> flow of R -+
                                                       +-> [combiner] -> results, stars, marks
                                        -> flow of S --+

The stars are those of SplitJoin's relaxed adjustable punctuation: every region says when it has put out what
belongs together, and of the stars of all regions a merger makes one. A mark and an error are stars too.
"""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .gather import gathered
from .skid import Skid
from .socket import ID_WIDTH, PAIR_LAYOUT
from .stamp import Stamp


class What(enum.Enum, shape=3):
    """What is on a punctuated stream. All but a pair are stars."""

    PAIR = 0
    INNER = 1  #: ends some comparisons of a tuple, in one flow
    STAR = 2  #: ends a tuple, or several, in both flows
    MARK = 3
    ERROR = 4


#: `from_s` of a star: it follows an S tuple.
PUNCTUATED_LAYOUT = data.StructLayout(
    {"what": What, "from_s": 1, "body": data.UnionLayout({"pair": PAIR_LAYOUT, "id": ID_WIDTH})}
)


def _ports(inputs: int) -> dict[str, wiring.Member]:
    """So many punctuated streams in, one out."""
    punctuated = stream.Signature(PUNCTUATED_LAYOUT)
    return {"inputs": In(punctuated).array(inputs), "output": Out(punctuated)}


class Merger(wiring.Component):
    """Merges punctuated streams; of the stars that all of them have reached it makes one.

    A star waits at its input until all inputs show one. `in_turn` is Algorithm 5 of the paper: everything of
    the first input up to its star, then of the second, and so on. Otherwise those that show no star yet take
    turns.

    Latency: 1 cycle. Throughput: one transfer per cycle, the stars of all inputs at once.
    """

    def __init__(self, inputs: int, in_turn: bool):
        self._in_turn = in_turn
        super().__init__(_ports(inputs))

    def elaborate(self, platform):
        m = Module()
        count = len(self.inputs)
        m.submodules.skid = skid = Skid(PUNCTUATED_LAYOUT)
        wiring.connect(m, skid.output, wiring.flipped(self.output))
        pairs = Signal(count)
        stars = Signal(count)
        chosen = Signal(count)  # the one input whose pair goes on
        for k, source in enumerate(self.inputs):
            is_pair = source.payload.what == What.PAIR
            m.d.comb += [pairs[k].eq(source.valid & is_pair), stars[k].eq(source.valid & ~is_pair)]
            m.d.comb += source.ready.eq(skid.input.ready & (chosen[k] | stars.all()))
        if self._in_turn:
            for k in range(count):
                m.d.comb += chosen[k].eq(pairs[k] & stars[:k].all())
        else:
            last = Signal(count)  # the input that was chosen last, and those before it
            behind = pairs & ~last
            turns = Signal(count)
            m.d.comb += turns.eq(Mux(behind.any(), behind, pairs))
            for k in range(count):
                m.d.comb += chosen[k].eq(turns[k] & ~turns[:k].any())
            with m.If(skid.input.ready & chosen.any()):
                m.d.sync += last.eq(Cat(chosen[k:].any() for k in range(count)))
        m.d.comb += [
            skid.input.valid.eq(chosen.any() | stars.all()),
            skid.input.payload.eq(self.inputs[0].payload),  # one star is like another
        ]
        for k, source in enumerate(self.inputs):
            with m.If(chosen[k]):
                m.d.comb += skid.input.payload.eq(source.payload)
        return m


class Mergers(wiring.Component):
    """A tree of mergers over any number of streams, with at most `fanin` inputs each.

    Latency: `broadcast.levels(inputs, fanin)` cycles. Throughput: one transfer per cycle.
    """

    def __init__(self, inputs: int, fanin: int, in_turn: bool):
        self._fanin = fanin
        self._in_turn = in_turn
        super().__init__(_ports(inputs))

    def elaborate(self, platform):
        m = Module()
        sources = [wiring.flipped(source) for source in self.inputs]
        output = gathered(m, sources, self._fanin, lambda inputs: Stamp(Merger, inputs, self._in_turn))
        wiring.connect(m, output, wiring.flipped(self.output))
        return m


class Combiner(wiring.Component):
    """Combines the flows of R and of S: pairs, and stars with the stream of the tuple that they follow.

    Both flows star the same tuples, so that what it puts out follows the input. Stars within a tuple, which
    are those of one flow, end here.

    Latency: 1 cycle. Throughput: one transfer per cycle.
    """

    def __init__(self, in_turn: bool):
        self._in_turn = in_turn
        super().__init__(_ports(2))

    def elaborate(self, platform):
        m = Module()
        m.submodules.merger = merger = Merger(2, self._in_turn)
        wiring.connect(m, merger.output, wiring.flipped(self.output))
        for flow, sink in zip(self.inputs, merger.inputs):
            inner = flow.payload.what == What.INNER
            m.d.comb += [
                sink.payload.eq(flow.payload),
                sink.valid.eq(flow.valid & ~inner),
                flow.ready.eq(sink.ready | inner),
            ]
        return m
