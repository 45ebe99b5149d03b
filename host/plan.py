"""Plans: which terms of a condition share which dimension, and the codes of points and boxes in it."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from hw.dimension import Dimension, Test

from . import encoding
from .evaluate import Rows, evaluate, holds
from .expression import SIDES, Node
from .term import Bound, Filter, Outside, Residual, Term

_LOWER = ("eq", "ge", "gt")
_UPPER = ("eq", "le", "lt")


@dataclass(frozen=True)
class SpecDimension:
    """One dimension that a join needs: what it tests, and whether its codes alone decide."""

    text: str
    test: Test
    negated: bool = False
    exact: bool = True
    role: str = "value"  #: "value", "time" or "index"

    def contains(self, point: np.ndarray, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """Whether each point code lies in its box."""
        return Dimension(self.test, 64, self.negated).contains(point, {"lo": lo, "hi": hi})


@dataclass
class ValueDimension:
    """A dimension over one expression of R, and the bounds each disjunct sets on it."""

    point: Node
    negated: bool
    uses: dict[int, list[Bound | Outside]] = field(default_factory=dict)

    def described(self, disjuncts: int) -> SpecDimension:
        """What this dimension needs of a device."""
        terms = [term for terms in self.uses.values() for term in terms]
        text = " OR ".join(dict.fromkeys(_text(use) for use in self.uses.values()))
        return SpecDimension(
            text, self._test(disjuncts), self.negated, not any(term.reason for term in terms)
        )

    def _test(self, disjuncts: int) -> Test:
        everywhere = len(self.uses) == disjuncts
        if self.negated:
            # An unequal bound that the point's type cannot hold leaves the dimension open, as does absence.
            terms = [term for terms in self.uses.values() for term in terms]
            same = all(isinstance(term, Bound) and term.bound.type == self.point.type for term in terms)
            return Test.EQUAL if everywhere and same else Test.BAND
        ops = [{term.op for term in terms} for terms in self.uses.values()]
        if everywhere and all("eq" in each for each in ops):
            return Test.EQUAL
        used = set().union(*ops)
        if not used & {*_UPPER}:
            return Test.AT_LEAST
        return Test.BAND if used & {*_LOWER} else Test.AT_MOST

    def boxes(self, disjunct: int, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The bounds of each S row's box, and whether it holds any point at all."""
        lo, hi = np.zeros(rows.length, np.uint64), np.full(rows.length, encoding.HIGHEST)
        keep = np.ones(rows.length, bool)
        if self.negated:
            return self._outside(disjunct, rows, hi, lo, keep)
        for term in self.uses.get(disjunct, ()):
            bound = evaluate(term.bound, rows)
            if bound.null_count:
                keep &= bound.is_valid().to_numpy(zero_copy_only=False)
            strict = term.op in ("lt", "gt")
            if term.op in _LOWER:
                code, none = encoding.lower(bound, self.point.type, strict)
                np.maximum(lo, code, out=lo)
                keep &= ~none
            if term.op in _UPPER:
                code, none = encoding.upper(bound, self.point.type, strict)
                np.minimum(hi, code, out=hi)
                keep &= ~none
        return lo, hi, keep & (lo <= hi)

    def _outside(self, disjunct, rows, lo, hi, keep):
        """A negated box excludes [lo, hi]; with lo above hi it excludes nothing, which is how it starts."""
        for term in self.uses.get(disjunct, ()):
            ends = (term.low, term.high) if isinstance(term, Outside) else (term.bound, term.bound)
            low, high = (evaluate(end, rows) for end in ends)
            known_low, known_high = (end.is_valid().to_numpy(zero_copy_only=False) for end in (low, high))
            lo, above = encoding.lower(low, self.point.type, False)
            hi, below = encoding.upper(high, self.point.type, False)
            if isinstance(term, Outside):
                # With one end NULL, only the other can make NOT BETWEEN true.
                lo = np.where(known_low, lo, np.uint64(0))
                hi = np.where(known_high, hi, encoding.HIGHEST)
                above, below = above & known_low, below & known_high
            keep = keep & (known_low | known_high)
            nothing = above | below | (lo > hi)
            lo, hi = np.where(nothing, np.uint64(1), lo), np.where(nothing, np.uint64(0), hi)
        return lo, hi, keep


@dataclass
class Plan:
    """All dimensions that come from a condition, and what is left for filters and for the host."""

    filters: list[dict[str, list[Node]]]  #: per disjunct and side
    common: list[Node]  #: R's filters that all disjuncts share
    dimensions: list[ValueDimension]
    flags: list[int]  #: disjuncts that not every R row left over can take part in
    refined: list[list[Node]]  #: per disjunct, the terms to evaluate on each pair

    @property
    def disjuncts(self) -> int:
        """How many boxes an S row can have."""
        return len(self.filters)

    def described(self) -> list[SpecDimension]:
        """The dimensions as a device sees them: values first, then flags."""
        return [dim.described(self.disjuncts) for dim in self.dimensions] + [
            SpecDimension(f"r may match {self._named(k)}", Test.AT_LEAST) for k in self.flags
        ]

    def _named(self, disjunct: int) -> str:
        parts = [term.text for term in self.filters[disjunct]["r"] if term not in self.common]
        parts += [f"{dim.point.text} IS NOT NULL" for dim in self.dimensions if disjunct in dim.uses]
        return " AND ".join(parts)

    def points(self, rows: Rows, pushed: Collection[Node] = ()) -> tuple[np.ndarray, list[np.ndarray]]:
        """The R rows that can take part, and their codes; filters in `pushed` are left out."""
        if not self.disjuncts:
            return np.empty(0, np.int64), []
        common = [term for term in self.common if term not in pushed]
        shared = _passing(common, rows, np.arange(rows.length))
        live = np.zeros((self.disjuncts, rows.length), bool)
        for k, filters in enumerate(self.filters):
            live[k, _passing([term for term in filters["r"] if term not in self.common], rows, shared)] = True
        codes = []
        for dim in self.dimensions:
            used = list(dim.uses)
            places = _where(live[used].any(axis=0))
            code, valid = encoding.encode(evaluate(dim.point, rows.take(places)))
            if len(places) < rows.length:
                whole = np.zeros(rows.length, np.uint64)
                whole[places] = code
                code = whole
            if not valid.all():
                live[np.ix_(used, places[~valid])] = False
            codes.append(code)
        codes += [live[k].astype(np.uint64) for k in self.flags]
        kept = _where(live.any(axis=0))
        return kept, taken(codes, kept)

    def boxes(
        self, rows: Rows, disjunct: int, pushed: Collection[Node] = ()
    ) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
        """The S rows that have a box for `disjunct`, and its bounds; filters in `pushed` are left out."""
        filters = [term for term in self.filters[disjunct]["s"] if term not in pushed]
        passing = _passing(filters, rows, np.arange(rows.length))
        keep = np.ones(len(passing), bool)
        los, his = [], []
        for dim in self.dimensions:
            lo, hi, some = dim.boxes(disjunct, rows.take(passing))
            keep &= some
            los.append(lo)
            his.append(hi)
        for k in self.flags:
            los.append(np.full(len(passing), k == disjunct, np.uint64))
            his.append(np.full(len(passing), encoding.HIGHEST))
        kept = _where(keep)
        return taken([passing], kept)[0], taken(los, kept), taken(his, kept)


def taken(codes: Sequence[np.ndarray], rows: np.ndarray) -> list[np.ndarray]:
    """These rows of some columns of codes, each once and in order; a copy only if some are left out."""
    return [code if len(rows) == len(code) else code[rows] for code in codes]


def _where(mask: np.ndarray) -> np.ndarray:
    """The places at which `mask` holds; mostly that is everywhere."""
    return np.arange(len(mask)) if mask.all() else np.flatnonzero(mask)


def _text(terms: list[Bound | Outside]) -> str:
    return " AND ".join(dict.fromkeys(term.term.text for term in terms))


def make_plan(disjuncts: list[list[Term]]) -> Plan:
    """The plan for a condition's disjuncts."""
    filters: list[dict[str, list[Node]]] = []
    refined: list[list[Node]] = []
    dimensions: dict[tuple, ValueDimension] = {}
    for k, terms in enumerate(disjuncts):
        one_sided = [term for term in terms if isinstance(term, Filter)]
        filters.append({side: [term.term for term in one_sided if term.side == side] for side in SIDES})
        refined.append(list(dict.fromkeys(t.term for t in terms if not isinstance(t, Filter) and t.reason)))
        negated = 0
        for term in terms:
            if isinstance(term, (Filter, Residual)):
                continue
            # Boxes intersect to a box, but what lies outside two boxes does not lie outside one.
            key = (term.point, None)
            if isinstance(term, Outside) or term.op == "ne":
                key, negated = (term.point, negated), negated + 1
            dim = dimensions.setdefault(key, ValueDimension(term.point, key[1] is not None))
            dim.uses.setdefault(k, []).append(term)
    shared = reduce(lambda a, b: [t for t in a if t in b], (each["r"] for each in filters)) if filters else []
    dims = list(dimensions.values())
    return Plan(filters, shared, dims, _flags(filters, shared, dims), refined)


def _flags(filters, common, dimensions) -> list[int]:
    """The disjuncts that an R row may have to be kept out of, while others still take it."""
    count = len(filters)
    if count < 2:
        return []
    return [
        k
        for k in range(count)
        if any(term not in common for term in filters[k]["r"])
        or any(dim.point.nullable for dim in dimensions if k in dim.uses and len(dim.uses) < count)
    ]


def _passing(terms: list[Node], rows: Rows, places: np.ndarray) -> np.ndarray:
    """Those of `places` where every term holds; a term is not evaluated where an earlier one fails."""
    for term in terms:
        places = places[holds(term, rows.take(places))]
    return places
