"""Results with punctuation, and the gathering tree that keeps their order.

::

        region -> [merger] -+
        region -> [merger] -+-> [merger] -> flow of R -+
                                                       +-> [combiner] -> results, stars, marks
                                        -> flow of S --+

The stars are those of SplitJoin's relaxed adjustable punctuation: every region says when it has put out what
belongs together, and of the stars of all regions a merger makes one. A mark and an error are stars too.
"""

from collections.abc import Callable, Sequence

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import data, enum, stream, wiring
from amaranth.lib.wiring import In, Out

from .choice import Choice
from .gather import gathered
from .lowest import number_of
from .merge_node import PAIRWISE, MergeNode, is_token
from .skid import Skid
from .socket import ID_WIDTH, PAIR_LAYOUT
from .stamp import Stamp


class What(enum.Enum, shape=3):
    """What is on a punctuated stream. All but a pair are stars, as the highest bit says."""

    PAIR = 0
    INNER = 4  #: ends some comparisons of a tuple, in one flow
    STAR = 5  #: ends a tuple, or several, in both flows
    MARK = 6
    ERROR = 7


def punctuated_layout(slot: int = 0) -> data.StructLayout:
    """Pairs and stars; `from_s` of a star: it follows an S tuple. Pairs may have a `slot` to be merged by."""
    body = data.UnionLayout({"pair": PAIR_LAYOUT, "id": ID_WIDTH})
    return data.StructLayout({"what": What, "from_s": 1, "slot": slot, "body": body})


def _ports(inputs: int, slot: int = 0) -> dict[str, wiring.Member]:
    """So many punctuated streams in, one out."""
    punctuated = stream.Signature(punctuated_layout(slot))
    return {"inputs": In(punctuated).array(inputs), "output": Out(punctuated)}


class Merger(wiring.Component):
    """Merges punctuated streams; of the stars that all of them have reached it makes one.

    A star waits at its input until all inputs show one. `in_turn` is Algorithm 5 of the paper: everything of
    the first input up to its star, then of the second, and so on. Otherwise those that show no star yet take
    turns.

    Latency: 2 cycles. Throughput: one transfer per cycle, the stars of all inputs at once.
    """

    def __init__(self, inputs: int, in_turn: bool, slot: int = 0):
        self._in_turn = in_turn
        super().__init__(_ports(inputs, slot))

    def elaborate(self, platform):
        m = Module()
        count = len(self.inputs)
        shape = self.output.payload.shape()
        m.submodules.skid = skid = Skid(shape)
        wiring.connect(m, skid.output, wiring.flipped(self.output))
        pairs = Signal(count)
        stars = Signal(count)
        for k, source in enumerate(self.inputs):
            star = is_token(source.payload)
            m.d.comb += [pairs[k].eq(source.valid & ~star), stars[k].eq(source.valid & star)]
        # The one input that is looked at. If it has no pair, none goes; one star is like another.
        first = Signal(count)
        number = Signal(range(count))
        m.d.comb += number.eq(number_of(first))
        m.submodules.choice = choice = Stamp(Choice, shape.size, count)
        moves = Signal()
        chosen = Signal()  # what was looked at goes on
        if self._in_turn or count == 1:
            m.d.comb += [first[k].eq(_first(~stars, range(count), k)) for k in range(count)]
        else:
            last = Signal(range(count))  # the input whose pair was chosen last
            with m.Switch(last):
                for before in range(count):
                    turns = [(before + 1 + step) % count for step in range(count)]
                    with m.Case(before):
                        m.d.comb += [first[k].eq(_first(pairs, turns, k)) for k in range(count)]
            with m.If(moves & pairs.any()):
                m.d.sync += last.eq(number)
        # It takes a cycle to know whose turn it is, and another to choose.
        chosen_number = Signal.like(number, reset_less=True)
        m.d.comb += [
            moves.eq(~chosen | skid.input.ready),
            choice.number.eq(chosen_number),
            skid.input.valid.eq(chosen),
            skid.input.payload.eq(choice.value),
        ]
        with m.If(moves):
            m.d.sync += [chosen.eq((first & pairs).any() | stars.all()), chosen_number.eq(number)]
        for k, source in enumerate(self.inputs):
            shown = Signal(shape, name=f"shown_{k}", reset_less=True)
            m.d.comb += [
                choice.values[k].eq(shown),
                source.ready.eq(moves & ((first[k] & ~stars[k]) | stars.all())),
            ]
            with m.If(moves):
                m.d.sync += shown.eq(source.payload)
        return m


def _first(wanted: Value, turns: Sequence[int], k: int) -> Value:
    """Whether `k` is the first of `wanted` in this order, or the last of all if there is none before it."""
    before = turns[: turns.index(k)]
    none = ~Cat(wanted[j] for j in before).any()
    return none if len(before) == len(turns) - 1 else none & wanted[k]


class SlotMerger(MergeNode):
    """Merges pairs, which rise by slot between stars; in one slot that of the lower input is first."""

    @staticmethod
    def not_after(one, other) -> Value:
        """By slot."""
        return one.slot <= other.slot


class Mergers(wiring.Component):
    """A tree over any number of streams, of nodes with at most `fanin` inputs each, which `make` makes.

    Latency: `2 * broadcast.levels(inputs, fanin)` cycles. Throughput: one transfer per cycle.
    """

    def __init__(self, inputs: int, fanin: int, make: Callable[[int], wiring.Component], slot: int = 0):
        self._fanin = fanin
        self._make = make
        super().__init__(_ports(inputs, slot))

    @classmethod
    def by_stars(cls, inputs: int, fanin: int, in_turn: bool) -> "Mergers":
        """Of mergers that take turns between stars, or one input after another."""
        return cls(inputs, fanin, lambda inputs: Stamp(Merger, inputs, in_turn))

    @classmethod
    def by_slots(cls, inputs: int, slot: int) -> "Mergers":
        """Of slot mergers."""
        shape = punctuated_layout(slot)
        return cls(inputs, PAIRWISE, lambda inputs: Stamp(SlotMerger, shape, inputs), slot)

    def elaborate(self, platform):
        m = Module()
        sources = [wiring.flipped(source) for source in self.inputs]
        wiring.connect(m, gathered(m, sources, self._fanin, self._make), wiring.flipped(self.output))
        return m


class Combiner(wiring.Component):
    """Combines the flows of R and of S: pairs, and stars with the stream of the tuple that they follow.

    Both flows star the same tuples, so that what it puts out follows the input. Stars within a tuple, which
    are those of one flow, end here.

    Latency: 2 cycles. Throughput: one transfer per cycle.
    """

    def __init__(self, in_turn: bool, slot: int = 0):
        self._in_turn = in_turn
        self._slot = slot
        super().__init__(_ports(2, slot))

    def elaborate(self, platform):
        m = Module()
        m.submodules.merger = merger = Merger(2, self._in_turn, self._slot)
        wiring.connect(m, merger.output, wiring.flipped(self.output))
        for flow, sink in zip(self.inputs, merger.inputs):
            inner = flow.payload.what == What.INNER
            m.d.comb += [
                sink.payload.eq(flow.payload),
                sink.valid.eq(flow.valid & ~inner),
                flow.ready.eq(sink.ready | inner),
            ]
        return m
