"""The query compiler: joins, filters and projections as blocks of a chain, and the words that program it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hw.dimension import Test
from hw.errors import SpecError
from hw.instruction import CHANNEL_WIDTH, PRODUCTS, TESTS, Opcode, Part, encode
from hw.parameters import Parameters
from hw.socket import QUERY_WIDTH, Kind, tuple_layout
from hw.words import pack

from .expression import SIDES

CHANNELS = 1 << CHANNEL_WIDTH


@dataclass(frozen=True)
class Term:
    """A test of one dimension of the device. In a selection `lo` and `hi` are what a tuple is compared with.

    R tuples are points and meet the box from `lo` to `hi`; S tuples are boxes and meet the point `lo`.
    """

    dim: int
    test: Test
    negated: bool = False
    lo: int = 0
    hi: int = 0


@dataclass(frozen=True)
class Selection:
    """A filter ahead of a join: of one side's tuples, those go on for which any product's terms all hold."""

    side: str
    products: tuple[tuple[Term, ...], ...]
    text: str = ""


@dataclass(frozen=True)
class Projection:
    """A projection ahead of a join: each dimension is taken from another, or dropped (None)."""

    side: str
    sources: tuple[int | None, ...]
    text: str = ""


@dataclass(frozen=True)
class Composition:
    """Makes R tuples of a query's pairs: whose value each dimension is, then where each goes."""

    parts: tuple[Part, ...]
    sources: tuple[int | None, ...]


@dataclass(frozen=True)
class Query:
    """A join of R tuples that enter on channel `r`, and S tuples that enter on channel `s`.

    Instead of a channel `r` may be an earlier query with a composition, whose pairs are the R tuples.
    """

    terms: tuple[Term, ...]
    filters: tuple[Selection | Projection, ...] = ()
    r: "int | Query" = 0
    s: int = 0
    composition: Composition | None = None

    @property
    def blocks(self) -> int:
        """How many blocks it needs at least."""
        return len(self.filters) + 1


@dataclass(frozen=True)
class Program:
    """What each block does, and the words that make it do so."""

    words: np.ndarray
    joins: tuple[range, ...]  #: of each query, the blocks that join
    lines: tuple[str, ...]  #: a line of text for each group of blocks
    segment: int

    def capacity(self, query: int) -> int:
        """How many tuples of each stream a query's windows hold."""
        return len(self.joins[query]) * self.segment


def compile_queries(queries: Sequence[Query], parameters: Parameters) -> Program:
    """Assigns the blocks of a chain to queries; what is left over becomes join cores, in equal shares."""
    return _Compiler(queries, parameters).program()


class _Compiler:
    def __init__(self, queries: Sequence[Query], parameters: Parameters):
        self._queries, self._p = list(queries), parameters
        self._instructions: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = []
        self._lines: list[str] = []
        self._next = 0  # block
        if not 1 <= len(self._queries) <= 1 << QUERY_WIDTH:
            raise SpecError(f"a chain takes 1 to {1 << QUERY_WIDTH} queries, not {len(self._queries)}")
        needed = sum(query.blocks for query in self._queries)
        if needed > parameters.cores:
            each = "; ".join(f"query {k} {self._needs(query)}" for k, query in enumerate(self._queries))
            raise SpecError(f"needs {needed} blocks, the device has {parameters.cores}: {each}")
        taken = {channel for query in self._queries for channel in (query.r, query.s)}
        self._free = [channel for channel in reversed(range(CHANNELS)) if channel not in taken]
        self._composites: dict[int, int] = {}  # the channel of each query that has composites

    @staticmethod
    def _needs(query: Query) -> str:
        names = [f"a {type(each).__name__.lower()} of {each.side.upper()}" for each in query.filters]
        return ", ".join([*names, "a join core"])

    def program(self) -> Program:
        """The program."""
        share, more = divmod(self._p.cores - sum(query.blocks for query in self._queries), len(self._queries))
        joins = []
        for number, query in enumerate(self._queries):
            channels = {"r": query.r, "s": query.s}
            if isinstance(query.r, Query):
                channels["r"] = self._made_by(query.r, number)
            for each in query.filters:
                channels[each.side] = self._filter(each, channels[each.side], number)
            joins.append(self._join(number, query, channels, 1 + share + (number < more)))
        return Program(self._words(), tuple(joins), tuple(self._lines), self._p.segment)

    def _made_by(self, source: Query, number: int) -> int:
        for earlier, query in enumerate(self._queries[:number]):
            if query is source and query.composition:
                return self._composites[earlier]
        raise SpecError(f"query {number} must read channels or an earlier query that has a composition")

    def _channel(self) -> int:
        if not self._free:
            raise SpecError(f"needs more than {CHANNELS} channels: use fewer filters")
        return self._free.pop()

    def _tell(self, opcode: Opcode, block: int, lo=(), hi=(), **operands: int) -> None:
        self._instructions.append((encode(opcode, block, **operands), tuple(lo), tuple(hi)))

    def _filter(self, each: Selection | Projection, channel: int, number: int) -> int:
        """A block for a filter; returns the channel on which its tuples go on."""
        block, self._next = self._next, self._next + 1
        others = (query for k, query in enumerate(self._queries) if k != number)
        place = {
            "side": SIDES.index(each.side),
            "channel": channel,
            "target": self._channel(),
            # Tuples that other queries read too stay where they are.
            "keep": any(getattr(query, each.side) == channel for query in others),
        }
        if isinstance(each, Selection):
            self._lines.append(
                f"block {block}: select {each.side.upper()} where {each.text or each.products}"
            )
            if len(each.products) > PRODUCTS:
                raise SpecError(f"a selection takes {PRODUCTS} products at most, not {len(each.products)}")
            constants = {term.dim: (term.lo, term.hi) for product in each.products for term in product}
            lo, hi = (
                [constants.get(dim, (0, 0))[bound] for dim in range(len(self._p.dims))] for bound in (0, 1)
            )
            self._tell(Opcode.SELECT, block, lo, hi, **place, products=(1 << len(each.products)) - 1)
            self._terms(block, each.products, constants)
        else:
            self._lines.append(f"block {block}: project {each.side.upper()} to {each.text or each.sources}")
            self._tell(Opcode.PROJECT, block, **place)
            self._routes(block, each.sources)
        return place["target"]

    def _terms(self, block: int, products, constants=None) -> None:
        merged: dict[int, tuple[Term, int]] = {}
        for number, product in enumerate(products):
            for term in product:
                before, counts = merged.get(term.dim, (term, 0))
                constant = constants is None or constants[term.dim] == (term.lo, term.hi)
                if (before.test, before.negated) != (term.test, term.negated) or not constant:
                    raise SpecError(
                        f"dimension {term.dim} must be tested in one way per block, not {before} and {term}"
                    )
                merged[term.dim] = (term, counts | 1 << number)
        for term, counts in merged.values():
            test = TESTS.index(term.test)
            self._tell(Opcode.TERM, block, dim=term.dim, test=test, negated=term.negated, within=counts)

    def _routes(self, block: int, sources: Sequence[int | None]) -> None:
        for dim, source in enumerate(sources):
            if source != dim:
                self._tell(Opcode.ROUTE, block, dim=dim, source=source or 0, drop=source is None)

    def _join(self, number: int, query: Query, channels: dict[str, int], count: int) -> range:
        blocks = range(self._next, self._next + count)
        self._next += count
        windows = f"windows of {count * self._p.segment} tuples"
        named = f"block {blocks[0]}" if count == 1 else f"blocks {blocks[0]} to {blocks[-1]}"
        self._lines.append(f"{named}: join core{'s' * (count > 1)} of query {number}, {windows}")
        if query.composition:
            self._composites[number] = self._channel()
        for position, block in enumerate(blocks):
            self._tell(
                Opcode.JOIN,
                block,
                r_channel=channels["r"],
                s_channel=channels["s"],
                query=number,
                products=1,
            )
            self._tell(Opcode.SHARE, block, position=position, last=count - 1)
            self._terms(block, [query.terms])
            if query.composition:
                self._tell(Opcode.COMPOSE, block, target=self._composites[number])
                for dim, part in enumerate(query.composition.parts):
                    self._tell(Opcode.TAKE, block, dim=dim, part=part)
                self._routes(block, query.composition.sources)
        return blocks

    def _words(self) -> np.ndarray:
        """All instructions; tuples then enter on channel 0."""
        self._tell(Opcode.ENTER, 0)
        dims = self._p.dims
        fields = {"kind": Kind.INSTRUCTION.value, "id": np.array([each[0] for each in self._instructions])}
        for dim in range(len(dims)):
            for which, bound in ((1, "lo"), (2, "hi")):
                values = [each[which][dim] if each[which] else 0 for each in self._instructions]
                fields[f"dims.box.d{dim}.{bound}"] = np.array(values, np.uint64)
        return pack(tuple_layout(dims), fields, len(self._instructions))


def enter(channel: int, parameters: Parameters) -> np.ndarray:
    """The word after which tuples enter on `channel`."""
    fields = {"kind": Kind.INSTRUCTION.value, "id": encode(Opcode.ENTER, channel=channel)}
    return pack(tuple_layout(parameters.dims), fields, 1)
