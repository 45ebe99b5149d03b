"""Terms: what one comparison of a condition says about an R row's point and an S row's box."""

from dataclasses import dataclass

import pyarrow as pa

from . import encoding, sqltypes
from .expression import Node
from .sqltypes import BIGINT, DOUBLE, FLOAT

FLIPPED = {"eq": "eq", "ne": "ne", "lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
OPPOSITE = {"eq": "ne", "ne": "eq", "lt": "ge", "le": "gt", "gt": "le", "ge": "lt"}


@dataclass(frozen=True)
class Filter:
    """A term that reads one stream only, and so decides about rows, not pairs."""

    side: str
    term: Node


@dataclass(frozen=True)
class Bound:
    """`point op bound`, with a point made from R and a bound made from S.

    `exact` is False where the bound is only as tight as rounding or overflow allow: then `term` has
    the last word on each pair, and `reason` says why.
    """

    point: Node
    op: str
    bound: Node
    term: Node
    reason: str = ""

    @property
    def exact(self) -> bool:
        """Whether the bound alone decides."""
        return not self.reason

    @property
    def bounds(self) -> tuple[str, Node]:
        """What the term says about its point."""
        return self.op, self.bound


@dataclass(frozen=True)
class Outside:
    """`point NOT BETWEEN low AND high`."""

    point: Node
    low: Node
    high: Node
    term: Node
    reason: str = ""

    @property
    def bounds(self) -> tuple[str, Node, Node]:
        """What the term says about its point."""
        return "outside", self.low, self.high


@dataclass(frozen=True)
class Residual:
    """A term that is only evaluated on the pairs that all else lets through."""

    term: Node
    reason: str


Term = Filter | Bound | Outside | Residual


def strip(node: Node) -> Node:
    """`node` without the cast that made it comparable, if that cast keeps all values apart and in order."""
    while node.op == "cast" and keeps_order(node.args[0].type, node.type):
        node = node.args[0]
    return node


def keeps_order(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a cast maps different values to different values in the same order.

    Dates become timestamps in order too, but rounding a timestamp to a date needs the calendar.
    """
    if source == target:
        return True
    if source in sqltypes.INTEGERS and target in sqltypes.INTEGERS:
        return source.bit_width < target.bit_width
    if source in sqltypes.INTEGERS:
        if pa.types.is_decimal(target):
            return target.precision - target.scale >= sqltypes.as_decimal(source).precision
        return target == DOUBLE and source != BIGINT
    if pa.types.is_decimal(source) and pa.types.is_decimal(target):
        return target.scale >= source.scale and (
            target.precision - target.scale >= source.precision - source.scale
        )
    return source == FLOAT and target == DOUBLE


def compared(point: Node, op: str, bound: Node, term: Node, reason: str = "") -> Term:
    """The term for `point op bound`, both in the type that Spark compares them in."""
    point = strip(point)
    reason = reason or inexact(point.type)
    if op == "ne" and reason:
        return Residual(term, reason)
    return Bound(point, op, bound, term, reason)


def outside(point: tuple[Node, Node], low: Node, high: Node, term: Node) -> Term | None:
    """The term for NOT BETWEEN, given the point as compared with each bound; None if those differ."""
    point = tuple(strip(each) for each in point)
    if point[0] != point[1]:
        return None
    if reason := inexact(point[0].type):
        return Residual(term, reason)
    return Outside(point[0], low, high, term)


def inexact(type: pa.DataType) -> str:
    """Why codes of `type` do not decide alone; empty if they do."""
    if encoding.is_exact(type):
        return ""
    if type == sqltypes.STRING:
        return "strings are compared by hash"
    return f"{sqltypes.name(type)} is wider than 64 bits"
