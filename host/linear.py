"""Sums that mix both streams, such as `r.x - s.a <= 5`: R's part becomes the point, the rest the bound."""

from dataclasses import dataclass

import pyarrow as pa

from hw.errors import SpecError

from . import sqltypes
from .expression import Node, cast, literal, negate, not_point_in_box, number
from .sqltypes import BIGINT, DOUBLE, FLOAT
from .term import FLIPPED, Residual, Term, compared

_OVERFLOW = "the sum may overflow, which is an error"
_UNEQUAL = "an unequal sum leaves no bound"
_SIGN = "the bound may be negative"
_ROUNDING = "the sum is rounded, so the bound is widened"


def separate(op: str, left: Node, right: Node, term: Node) -> list[list[Term]]:
    """The disjuncts for `left op right` where at least one side mixes R and S."""
    if len(left.sides) < 2:
        left, op, right = right, FLIPPED[op], left
    return _absolute(op, left, right, term) or [_sum(op, left, right, term, _is_closed(op, left, right))]


def is_sum(node: Node) -> bool:
    """Whether `node` mixes R and S, and is not the absolute value of something that does."""
    return len(node.sides) == 2 and _peel(node).op != "abs"


def separate_between(mixed: Node, low: Node, high: Node, mixed_high: Node, term: Node) -> list[Term]:
    """The terms for `mixed BETWEEN low AND high`."""
    closed = _is_closed("eq", mixed, low) and _is_closed("eq", mixed_high, high)
    return _sum("ge", mixed, low, term, closed) + _sum("le", mixed_high, high, term, closed)


def _absolute(op: str, left: Node, right: Node, term: Node) -> list[list[Term]] | None:
    """The disjuncts for `abs(sum) op right`, or None if `left` is no such thing."""
    inner = _peel(left)
    if inner.op != "abs":
        return None
    inner = inner.args[0]
    if len(right.sides) == 2:
        raise not_point_in_box(term.text)
    minus = _Negative(right)
    closed = _is_closed("eq", left, right)
    if op in ("lt", "le"):
        below = _sum(op, inner, right, term, closed)
        return [below + _sum(FLIPPED[op], inner, minus, term, closed)]
    if op == "ne":
        return [[Residual(term, _UNEQUAL)]]
    # `abs(x) = -1` never holds, although x = -1 does.
    reason = _SIGN if op == "eq" else ""
    return [_sum(op, inner, right, term, False, reason), _sum(FLIPPED[op], inner, minus, term, False, reason)]


@dataclass(frozen=True)
class _Negative:
    """A bound with its sign turned, which may not exist in its type."""

    node: Node


def _peel(node: Node) -> Node:
    """`node` without casts and stamps that leave its value as it is, but for rounding."""
    while node.op in ("stamp", "number") or (
        node.op == "cast" and _is_widening(node.args[0].type, node.type)
    ):
        node = node.args[0]
    return node


def _is_widening(source: pa.DataType, target: pa.DataType) -> bool:
    if not (sqltypes.is_numeric(source) and sqltypes.is_numeric(target)):
        return False
    if target == DOUBLE:
        return True
    if source in sqltypes.INTEGERS and target in sqltypes.INTEGERS:
        return source.bit_width < target.bit_width
    if pa.types.is_decimal(target) and source not in sqltypes.FLOATS:
        source = sqltypes.as_decimal(source)
        return (
            target.scale >= source.scale
            and target.precision - target.scale >= source.precision - source.scale
        )
    return False


def _is_closed(op: str, left: Node, right: Node) -> bool:
    """Whether a sum that equals, or lies within, `right` cannot have overflowed.

    True for one addition or subtraction whose type holds every value that `right` can have.
    """
    total = _peel(left)
    total = _peel(total.args[0]) if total.op == "abs" else total
    if op != "eq" or total.op not in ("add", "sub") or any(len(arg.sides) == 2 for arg in total.args):
        return False
    bound = _peel(right)
    if total.type not in sqltypes.INTEGERS:
        return False
    if bound.op == "literal" and isinstance(bound.value, int):
        return abs(bound.value) < 1 << (total.type.bit_width - 1)
    type = number(bound).type
    return sqltypes.is_integer(type) and type.bit_width <= total.type.bit_width


def _sum(
    op: str, left: Node, right: Node | _Negative, term: Node, closed: bool, reason: str = ""
) -> list[Term]:
    if op == "ne":
        return [Residual(term, _UNEQUAL)]
    sum_ = _Sum(term)
    sum_.add(left, 1)
    sum_.add(right.node if isinstance(right, _Negative) else right, 1 if isinstance(right, _Negative) else -1)
    if not sum_.atoms["r"] or not all(sum_.is_sound(node) for node in sum_.all_atoms()):
        raise not_point_in_box(term.text)
    if not sum_.floating:
        try:
            return sum_.whole(op, reason or ("" if closed or sum_.decimal_only else _OVERFLOW))
        except SpecError:
            pass  # more than 38 digits: bounds in floating point are good enough to be refined
    return sum_.rounded(op)


class _Sum:
    """A sum, taken apart into what R adds and what S and constants add: `sum op 0`."""

    def __init__(self, term: Node):
        self.term = term
        self.atoms: dict[str, list[tuple[int, Node]]] = {"r": [], "s": []}
        self.floating = False  # some part is rounded
        self.single = False  # some part is rounded to 24 bits
        self.decimal_only = True  # nothing that mixes R and S can overflow

    def add(self, node: Node, sign: int) -> None:
        if len(node.sides) < 2:
            self.floating |= node.type in sqltypes.FLOATS
            self.atoms["r" if node.sides == {"r"} else "s"].append((sign, node))
            return
        node_type = node.type
        if node.op in ("add", "sub", "neg"):
            self.floating |= node_type in sqltypes.FLOATS
            self.single |= node_type == FLOAT
            self.decimal_only &= pa.types.is_decimal(node_type)
            signs = {"add": (1, 1), "sub": (1, -1), "neg": (-1,)}[node.op]
            for arg, each in zip(node.args, signs):
                self.add(arg, sign * each)
        elif node.op in ("stamp", "number"):
            self.add(node.args[0], sign)
        elif node.op == "cast" and _is_widening(node.args[0].type, node_type):
            self.floating |= node_type == DOUBLE
            self.add(node.args[0], sign)
        else:
            raise not_point_in_box(self.term.text)

    def all_atoms(self) -> list[Node]:
        return [node for atoms in self.atoms.values() for _, node in atoms]

    def is_sound(self, node: Node) -> bool:
        return sqltypes.is_numeric(node.type) or number(node) is not node

    def whole(self, op: str, reason: str) -> list[Term]:
        """The terms for integers and decimals, whose sums are taken in a type that cannot overflow."""
        sign, point = self.atoms["r"][0]
        if len(self.atoms["r"]) > 1:
            sign, point = 1, _exact_sum(self.atoms["r"])
        if sign < 0:
            op = FLIPPED[op]
        bound = _exact_sum([(-sign * each, node) for each, node in self.atoms["s"]])
        point = number(point)
        type = sqltypes.common(point.type, bound.type)
        return [compared(cast(point, type), op, cast(bound, type), self.term, reason)]

    def rounded(self, op: str) -> list[Term]:
        """The terms for floating point: bounds that no rounding error can cross."""
        if len(self.atoms["r"]) > 1:
            raise SpecError(
                f"`{self.term.text}` has R in more than one place; write it with one expression of R, "
                "such as (r.x + r.y) - s.a"
            )
        (sign, point), parts = self.atoms["r"][0], self.atoms["s"]
        point = number(point)
        if point.type not in sqltypes.FLOATS:
            point = cast(point, DOUBLE)
        if sign < 0:
            # Turning the point, not the comparison, keeps NaN above everything.
            point = negate(point)
        terms = []
        for each, up in {"eq": (("ge", False), ("le", True))}.get(op, ((op, op in ("le", "lt")),)):
            reach = Node(
                "reach",
                DOUBLE,
                tuple(cast(number(node), DOUBLE) for _, node in parts) or (literal(0.0, DOUBLE),),
                (tuple(sign for sign, _ in parts) or (1,), up, self.single),
                self.term.text,
            )
            each = {"lt": "le", "gt": "ge"}.get(each, each)
            terms.append(compared(cast(point, DOUBLE), each, reach, self.term, _ROUNDING))
        return terms


def _exact_sum(atoms: list[tuple[int, Node]]) -> Node:
    """A sum in a type that holds it: bigint for smaller integers, otherwise decimal."""
    nodes = [number(node) for _, node in atoms]
    small = all(node.type in sqltypes.INTEGERS[:3] for node in nodes)
    total = None
    for (sign, _), node in zip(atoms, nodes):
        node = cast(node, BIGINT if small else sqltypes.as_decimal(node.type))
        if total is None:
            total = node if sign > 0 else negate(node)
            continue
        type = BIGINT if small else sqltypes.sum_type(total.type, node.type)
        op, mark = ("add", "+") if sign > 0 else ("sub", "-")
        total = Node(op, type, (total, node), text=f"{total.text} {mark} {node.text}")
    return total if total is not None else literal(0, BIGINT)
