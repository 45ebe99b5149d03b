"""Conditions: the `on` text as an OR of disjuncts, each an AND of terms."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import sqlglot
from sqlglot import exp

from hw.errors import SpecError

from .evaluate import Rows, holds
from .expression import COMPARISONS, Node, NotCompiled, Scope, as_truth, build, not_point_in_box
from .linear import is_sum, separate, separate_between
from .sqltypes import STRING
from .term import FLIPPED, OPPOSITE, Filter, Term, compared, outside

MOST_DISJUNCTS = 16
Disjuncts = list[list[Term]]
_ACCEPTED = "on must be a condition in Spark SQL, such as 'r.x = s.a'"


@dataclass(frozen=True)
class Left:
    """A part of a condition that is evaluated on pairs, because no box can hold it."""

    text: str
    reason: str


def named_columns(text: str, r: pa.Schema, s: pa.Schema) -> dict[str, set[str]]:
    """The columns of each side that a condition names, which must say whose they are."""
    scope, found = Scope(r, s, "UTC"), {"r": set(), "s": set()}
    for column in _parse(text).find_all(exp.Column):
        side, *names = (part.name for part in column.parts)
        if side.lower() not in found or not names:
            raise SpecError(
                f"`{column.sql('spark')}` must say which stream it is of, r.{side} or s.{side}, because "
                f"Spark evaluates {text!r}"
            )
        found[side.lower()].add(scope.find(side.lower(), names[0]))
    return found


def parse_condition(
    text: str, scope: Scope, by: Sequence[tuple[str, str]] = (), left: list[Left] | None = None
) -> Disjuncts:
    """The disjuncts of `text`; none if it can never hold, one without terms if it always does.

    Columns `by`, as names in R and S, must be equal besides. What no box can hold goes to `left`, if given,
    and is left out of the disjuncts, which then let more pairs through.
    """
    keys = [exp.EQ(this=_column("r", r), expression=_column("s", s)) for r, s in by]
    normaliser, factors = _Normaliser(text), []
    for tree in [*keys, *_conjuncts(_parse(text))]:
        try:
            factors.append(normaliser.normal(as_truth(build(tree, scope)), True))
        except NotCompiled as error:
            if left is None or tree in keys:
                raise
            text = tree.sql("spark")
            left.append(Left(text, f"it {error.why}" if error.text == text else str(error).partition(";")[0]))
    disjuncts = [list(dict.fromkeys(terms)) for terms in normaliser.product(factors)]
    return [terms for terms in disjuncts if not _contradicts_itself(terms)]


def _contradicts_itself(terms: list[Term]) -> bool:
    """Whether some filter is the NOT of another, as in alternatives that come from `NOT (a <=> b)`."""
    filters = {term.term for term in terms if isinstance(term, Filter)}
    return any(node.op == "not" and node.args[0] in filters for node in filters)


def _parse(text: str) -> exp.Expression:
    if not isinstance(text, str):
        raise SpecError(f"{_ACCEPTED}, not {text!r}")
    try:
        tree = sqlglot.parse_one(text, dialect="spark")
    except sqlglot.errors.SqlglotError as error:
        reason = error.errors[0]["description"] if getattr(error, "errors", None) else str(error)
        raise SpecError(f"{_ACCEPTED}, not {text!r}: {reason}") from None
    if not isinstance(tree, exp.Condition) or isinstance(tree, (exp.Query, exp.Alias)):
        raise SpecError(f"{_ACCEPTED}, not {text!r}")
    return tree


def _column(side: str, name: str) -> exp.Column:
    return exp.column(name, table=side, quoted=not name.isidentifier())


def _conjuncts(tree: exp.Expression) -> Iterator[exp.Expression]:
    """The parts of an AND, in the order they are written in."""
    tree = tree.unnest()
    if isinstance(tree, exp.And):
        yield from _conjuncts(tree.this)
        yield from _conjuncts(tree.expression)
    else:
        yield tree


class _Normaliser:
    def __init__(self, text: str):
        self.text = text

    def normal(self, node: Node, wanted: bool) -> Disjuncts:
        """The disjuncts in which `node` is true, or false if not `wanted`: never NULL."""
        if node.op == "not":
            return self.normal(node.args[0], not wanted)
        if node.op in ("and", "or"):
            # Under NOT the two change places; this also holds where NULL is involved.
            if (node.op == "and") == wanted:
                return self.product([self.normal(arg, wanted) for arg in node.args])
            if len(node.sides) < 2:
                return self.filter(node, wanted)
            return self.limited([terms for arg in node.args for terms in self.normal(arg, wanted)])
        if len(node.sides) < 2:
            return self.filter(node, wanted)
        if node.op == "between":
            return self.between(node, wanted)
        if node.op in COMPARISONS.values():
            return self.compare(node, wanted)
        raise not_point_in_box(node.text)

    def product(self, factors: list[Disjuncts]) -> Disjuncts:
        """AND over OR, checked as it grows."""
        result: Disjuncts = [[]]
        for factor in factors:
            result = self.limited([a + b for a, b in itertools.product(result, factor)])
        return result

    def limited(self, disjuncts: Disjuncts) -> Disjuncts:
        if len(disjuncts) > MOST_DISJUNCTS:
            raise SpecError(
                f"on must have at most {MOST_DISJUNCTS} alternatives once OR is moved outward, "
                f"not {len(disjuncts)}, in {self.text!r}"
            )
        return disjuncts

    def filter(self, node: Node, wanted: bool) -> Disjuncts:
        if not wanted:
            node = Node("not", node.type, (node,), text=f"NOT ({node.text})")
        if node.sides:
            return [[Filter(*node.sides, node)]]
        return [[]] if holds(node, Rows({}, {}, 1))[0] else []

    def compare(self, node: Node, wanted: bool) -> Disjuncts:
        left, right = node.args
        op = node.op
        if not wanted:
            op = OPPOSITE[op]
            node = Node(op, node.type, node.args, text=f"NOT ({node.text})")
        if left.type == STRING and op not in ("eq", "ne"):
            raise NotCompiled(node.text, "compares strings of R and S", "accepted are = and <>")
        if left.sides == {"s"} and right.sides == {"r"}:
            left, op, right = right, FLIPPED[op], left
        if left.sides == {"r"} and right.sides == {"s"}:
            return [[compared(left, op, right, node)]]
        return separate(op, left, right, node)

    def between(self, node: Node, wanted: bool) -> Disjuncts:
        low, high = node.args
        if not wanted:
            node = Node("not", node.type, (node,), text=f"NOT ({node.text})")
            bounds = (low.args[1], high.args[1])
            pure = low.args[0].sides == {"r"} and all(bound.sides <= {"s"} for bound in bounds)
            if pure and (found := outside((low.args[0], high.args[0]), *bounds, node)):
                return [[found]]
            return self.limited(self.normal(low, False) + self.normal(high, False))
        if all(is_sum(side.args[0]) and len(side.args[1].sides) < 2 for side in (low, high)):
            return [separate_between(low.args[0], low.args[1], high.args[1], high.args[0], node)]
        return self.product([self.normal(low, True), self.normal(high, True)])
