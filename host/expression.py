"""Typed expressions: Spark SQL text, parsed by sqlglot, with the types and casts Spark 4 (ANSI) gives it."""

import datetime
import re
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pyarrow as pa
from sqlglot import exp

from hw.errors import SpecError

from . import sqltypes, window
from .sqltypes import BIGINT, BOOLEAN, DATE, DOUBLE, FLOAT, INTERVAL, NULL, STRING, TIMESTAMP, TIMESTAMP_NTZ

SIDES = ("r", "s")
COMPARISONS = {exp.EQ: "eq", exp.NEQ: "ne", exp.LT: "lt", exp.LTE: "le", exp.GT: "gt", exp.GTE: "ge"}
_ARITHMETIC = {exp.Add: "add", exp.Sub: "sub", exp.Mul: "mul", exp.Div: "div", exp.Mod: "mod"}
_UTC_NAMES = {"UTC", "GMT", "Z", "Etc/UTC", "Etc/GMT", "UCT", "Zulu", "Etc/UCT", "Universal", "+00:00", "+0"}
_UTC = datetime.UTC
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=_UTC)
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_MOMENT = re.compile(_DATE.pattern + r"([ T]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?)?")
_ACCEPTED = "comparisons, BETWEEN, IN, IS NULL, AND, OR, NOT, + - * / %, abs and CAST"


class NotCompiled(SpecError):
    """A term that Spark understands but no box can hold; `why` says what it is instead."""

    def __init__(self, text: str, why: str, accepted: str):
        super().__init__(f"`{text}` {why}; {accepted}")
        self.text, self.why = text, why


@dataclass(frozen=True)
class Node:
    """An expression of a known type over columns of R and S.

    Operations are named after what they do ("add", "le", "cast"). `number` turns a date, timestamp or
    interval into the integer it is made of and `stamp` turns it back.
    """

    op: str
    type: pa.DataType
    args: tuple["Node", ...] = ()
    value: object = None
    text: str = field(default="", compare=False)
    required: bool = field(default=False, compare=False)  #: a column that is never NULL

    @cached_property
    def sides(self) -> frozenset[str]:
        """Which streams the expression reads: any of "r" and "s"."""
        if self.op == "column":
            return frozenset(self.value[0])
        return frozenset().union(*(arg.sides for arg in self.args))

    @cached_property
    def columns(self) -> frozenset[tuple[str, str]]:
        """The columns the expression reads, as (side, name)."""
        if self.op == "column":
            return frozenset([self.value])
        return frozenset().union(*(arg.columns for arg in self.args))

    @cached_property
    def nullable(self) -> bool:
        """Whether the expression can be NULL."""
        if self.op in ("column", "literal"):
            return self.value is None if self.op == "literal" else not self.required
        return self.op != "isnull" and any(arg.nullable for arg in self.args)


def is_utc(zone: str) -> bool:
    """Whether a time zone is UTC by any of its names, so that no clock is ever put forward or back."""
    return zone in _UTC_NAMES


def cast(node: Node, type: pa.DataType, zone: str = "UTC") -> Node:
    """`node` as `type`; the same node if it has that type already."""
    if node.type == type:
        return node
    if node.type == NULL:
        return Node("literal", type, text=node.text)
    if {node.type, type} == {DATE, TIMESTAMP} or {node.type, type} == {TIMESTAMP_NTZ, TIMESTAMP}:
        return Node("cast", type, (node,), value=zone, text=node.text)
    return Node("cast", type, (node,), text=node.text)


def number(node: Node) -> Node:
    """The integer that a date, timestamp or interval is made of; other nodes unchanged."""
    if node.op == "stamp":
        return node.args[0]
    return Node("number", BIGINT, (node,), text=node.text) if _is_time(node.type) else node


def negate(node: Node) -> Node:
    """`-node`."""
    return Node("neg", node.type, (node,), text=f"-({node.text})")


def literal(value, type: pa.DataType, text: str = "") -> Node:
    """A constant."""
    return Node("literal", type, value=value, text=text or str(value))


def all_of(nodes) -> Node:
    """The AND of boolean nodes."""
    nodes = tuple(nodes)
    return Node("and", BOOLEAN, nodes, text=" AND ".join(node.text for node in nodes))


class Scope:
    """The columns an expression may name, and the session's time zone."""

    def __init__(self, r: pa.Schema, s: pa.Schema, zone: str):
        self.schemas = {"r": r, "s": s}
        self.zone = zone

    def column(self, side: str, name: str) -> Node:
        """The column called `name` (in any case, as in Spark) of one side."""
        return self._column(side, self.find(side, name), f"{side}.{name}")

    def find(self, side: str, name: str) -> str:
        """The exact name of a column, or an error that lists those there are."""
        names = self._matches(side, name)
        if len(names) != 1:
            have = ", ".join(self.schemas[side].names)
            many = "is not a column" if not names else "names several columns"
            raise SpecError(f"`{side}.{name}` {many} of {side.upper()}, which has: {have}")
        return names[0]

    def _matches(self, side: str, name: str) -> list[str]:
        names = [column for column in self.schemas[side].names if column == name]
        return names or [column for column in self.schemas[side].names if column.lower() == name.lower()]

    def _column(self, side: str, name: str, text: str) -> Node:
        column = self.schemas[side].field(name)
        type = sqltypes.canonical(column.type)
        if type is None:
            raise NotCompiled(
                text,
                f"is {column.type}, which a condition cannot use",
                "accepted are integers, float, double, decimal, boolean, string, date, and timestamps and "
                "intervals in microseconds",
            )
        return Node("column", type, value=(side, name), text=text, required=not column.nullable)

    def resolve(self, tree: exp.Column) -> Node:
        """The column that `tree` names, with or without `r.` or `s.`."""
        text, name, side = tree.sql("spark"), tree.name, tree.table.lower()
        if tree.args.get("db"):
            raise NotCompiled(text, "is a nested field", f"accepted are columns such as r.{name} or s.{name}")
        if side:
            if side not in SIDES:
                raise SpecError(f"`{text}` names no stream; accepted are r.{name} and s.{name}")
            return self._column(side, self.find(side, name), text)
        where = [side for side in SIDES if self._matches(side, name)]
        if len(where) == 2:
            raise SpecError(f"`{text}` is a column of both streams; accepted are r.{name} and s.{name}")
        if not where:
            raise SpecError(
                f"`{text}` is not a column; R has: {', '.join(self.schemas['r'].names)}; "
                f"S has: {', '.join(self.schemas['s'].names)}"
            )
        return self._column(where[0], self.find(where[0], name), text)


def build(tree: exp.Expression, scope: Scope) -> Node:
    """The typed expression that a sqlglot tree stands for."""
    return _Builder(scope).build(tree)


def _is_time(type: pa.DataType) -> bool:
    return type in sqltypes.TIMES or type == INTERVAL


class _Builder:
    def __init__(self, scope: Scope):
        self.scope = scope

    def build(self, tree: exp.Expression) -> Node:
        tree = tree.unnest()
        text = tree.sql("spark")
        if isinstance(tree, exp.Column):
            return self.scope.resolve(tree)
        if type(tree) in COMPARISONS:
            left, right = self.build(tree.this), self.build(tree.expression)
            return self.compare(COMPARISONS[type(tree)], left, right, text)
        if type(tree) in _ARITHMETIC:
            return self.arithmetic(_ARITHMETIC[type(tree)], tree, text)
        for kind, method in self._METHODS.items():
            if isinstance(tree, kind):
                return method(self, tree, text)
        raise self.refuse(tree, text)

    def refuse(self, tree: exp.Expression, text: str) -> SpecError:
        sides = {self.scope.resolve(column).value[0] for column in tree.find_all(exp.Column)}
        if len(sides) == 2:
            return not_point_in_box(text)
        return NotCompiled(text, "is not understood", f"accepted are {_ACCEPTED}")

    # Literals

    def literal(self, tree: exp.Literal, text: str) -> Node:
        return literal(tree.this, STRING, text) if tree.is_string else self.numeral(tree.this)

    def numeral(self, digits: str, type: pa.DataType | None = None) -> Node:
        """A number as Spark's parser types it: `5` int, `0.5` decimal, `1e0` double."""
        if type in sqltypes.FLOATS or (type is None and re.search("[eE]", digits)):
            type = type or DOUBLE
            return literal(pa.scalar(digits).cast(type).as_py(), type, digits)
        if re.fullmatch(r"-?\d+", digits):
            value = int(digits)
            fitting = [t for t in sqltypes.INTEGERS[2:] if _fits(value, t)]
            if type is None and fitting:
                return literal(value, fitting[0], digits)
            if type is not None:
                if not _fits(value, type):
                    raise SpecError(f"`{digits}` does not fit {sqltypes.name(type)}")
                return literal(value, type, digits)
        value = Decimal(digits)
        scale = max(-value.as_tuple().exponent, 0)
        return literal(value, sqltypes.decimal(max(len(value.as_tuple().digits), scale), scale), digits)

    def boolean(self, tree: exp.Boolean, text: str) -> Node:
        return literal(bool(tree.this), BOOLEAN, text)

    def null(self, tree: exp.Null, text: str) -> Node:
        return Node("literal", NULL, text=text)

    def interval(self, tree: exp.Interval, text: str) -> Node:
        micros = None
        if isinstance(tree.this, exp.Literal) and isinstance(tree.unit, exp.Var):
            unit = tree.unit.name.lower().removesuffix("s")
            if re.fullmatch(r"[+-]?\d+" + (r"(\.\d{1,6})?" if unit == "second" else ""), tree.this.this):
                micros = window.duration(f"{tree.this.this} {unit}")
        if micros is None:
            raise NotCompiled(
                text,
                "is not understood",
                "accepted are intervals of one unit from weeks to microseconds, such as INTERVAL 10 MINUTES, "
                "and sums of them",
            )
        return literal(micros, INTERVAL, text)

    def moment(self, digits: str, type: pa.DataType, text: str) -> Node:
        """A date or timestamp from text; the session's zone applies where the text has none."""
        try:
            if not (_DATE if type == DATE else _MOMENT).fullmatch(digits.strip()):
                raise ValueError
            moment = datetime.datetime.fromisoformat(digits.strip())
        except ValueError:
            raise SpecError(
                f"{digits!r} in `{text}` is not a {sqltypes.name(type)}; accepted is '2024-12-31'"
                + ("" if type == DATE else " or '2024-12-31 23:59:59.999999'")
            ) from None
        if type == TIMESTAMP_NTZ and moment.tzinfo is not None:
            raise SpecError(f"{digits!r} in `{text}` is not a timestamp_ntz, because it has a time zone")
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=self.zone() if type == TIMESTAMP else _UTC)
        micros = (zoned - _EPOCH) // datetime.timedelta(microseconds=1)
        return literal(micros // window.MICROS_PER_DAY if type == DATE else micros, type, text)

    def zone(self) -> datetime.tzinfo:
        if is_utc(self.scope.zone):
            return _UTC
        try:
            return ZoneInfo(self.scope.zone)
        except (ValueError, ZoneInfoNotFoundError):
            raise SpecError(
                f"timezone must be UTC or a name such as 'Europe/Paris', not {self.scope.zone!r}"
            ) from None

    # Arithmetic

    def arithmetic(self, op: str, tree: exp.Binary, text: str) -> Node:
        a, b = self.build(tree.this), self.build(tree.expression)
        if a.type == NULL:
            a = cast(a, b.type)
        if b.type == NULL:
            b = cast(b, a.type)
        if sqltypes.is_numeric(a.type) and sqltypes.is_numeric(b.type):
            return self.numeric(op, a, b, text)
        if op in ("add", "sub"):
            if DATE in (a.type, b.type):
                found = self.date_sum(op, a, b, tree, text)
            else:
                found = self.time_sum(op, a, b, text)
            if found:
                return found
        raise SpecError(f"cannot calculate `{text}` with {sqltypes.name(a.type)} and {sqltypes.name(b.type)}")

    def numeric(self, op: str, a: Node, b: Node, text: str) -> Node:
        types = {a.type, b.type}
        if not types & {*sqltypes.FLOATS} and any(pa.types.is_decimal(type) for type in types):
            return self.decimal(op, a, b, text)
        if op == "div" or types & {*sqltypes.FLOATS}:
            type = FLOAT if op != "div" and types == {FLOAT} else DOUBLE
        else:
            type = sqltypes.common(a.type, b.type)
        return Node(op, type, (cast(a, type), cast(b, type)), text=text)

    def decimal(self, op: str, a: Node, b: Node, text: str) -> Node:
        if op in ("div", "mod"):
            raise NotCompiled(text, "divides decimals, which is not understood", "cast an operand to double")
        types = [sqltypes.as_decimal(node.type, _integer_literal(node)) for node in (a, b)]
        try:
            type = (sqltypes.product_type if op == "mul" else sqltypes.sum_type)(*types)
        except SpecError as error:
            raise SpecError(f"`{text}`: {error}") from None
        return Node(op, type, (cast(a, types[0]), cast(b, types[1])), text=text)

    def date_sum(self, op: str, a: Node, b: Node, tree: exp.Binary, text: str) -> Node | None:
        if a.type == b.type == DATE and op == "sub":
            day = literal(window.MICROS_PER_DAY, BIGINT)
            parts = [Node("mul", BIGINT, (number(node), day), text=node.text) for node in (a, b)]
            return Node("stamp", INTERVAL, (Node("sub", BIGINT, tuple(parts), text=text),), text=text)
        date, other, other_tree = (a, b, tree.expression) if a.type == DATE else (b, a, tree.this)
        if other is a and op == "sub":
            return None
        other_tree = other_tree.unnest()
        if isinstance(other_tree, exp.Interval) and other_tree.unit.name.upper() in ("DAY", "DAYS"):
            other = literal(other.value // window.MICROS_PER_DAY, pa.int32(), other.text)
        if other.type == INTERVAL:
            raise SpecError(f"`{text}` adds an interval to a date; accepted are days, or a timestamp")
        if other.type not in sqltypes.INTEGERS[:3]:
            return None
        days = Node(op, pa.int32(), (cast(number(date), pa.int32()), cast(other, pa.int32())), text=text)
        return Node("stamp", DATE, (days,), text=text)

    def time_sum(self, op: str, a: Node, b: Node, text: str) -> Node | None:
        stamps = [node for node in (a, b) if node.type in (TIMESTAMP, TIMESTAMP_NTZ)]
        intervals = [node for node in (a, b) if node.type == INTERVAL]
        if len(stamps) + len(intervals) != 2 or (op == "add" and len(stamps) == 2):
            return None
        if (len(stamps) == 2 and a.type != b.type) or (op == "sub" and len(stamps) == 1 and stamps[0] is b):
            return None
        if stamps and stamps[0].type == TIMESTAMP and not is_utc(self.scope.zone):
            self.refuse_clock_change(intervals, text)
        type = stamps[0].type if len(stamps) == 1 else INTERVAL
        return Node("stamp", type, (Node(op, BIGINT, (number(a), number(b)), text=text),), text=text)

    def refuse_clock_change(self, intervals: list[Node], text: str) -> None:
        """Spark counts days, and differences, by the local clock, which may jump within them."""
        short = intervals and intervals[0].op == "literal" and abs(intervals[0].value) < window.MICROS_PER_DAY
        if not short:
            raise NotCompiled(
                text,
                f"depends on clock changes in {self.scope.zone}",
                "accepted are the time zone UTC, timestamp_ntz columns, or adding intervals of less than "
                "a day",
            )

    def negative(self, tree: exp.Neg, text: str) -> Node:
        inner = tree.this.unnest()
        if isinstance(inner, exp.Literal) and not inner.is_string:
            return self.numeral(f"-{inner.this}")
        if suffixed := self.suffixed(inner, "-"):
            return suffixed
        node = self.build(inner)
        return self.unary("neg", node, text)

    def absolute(self, tree: exp.Abs, text: str) -> Node:
        return self.unary("abs", self.build(tree.this), text)

    def unary(self, op: str, node: Node, text: str) -> Node:
        if node.type == INTERVAL:
            return Node("stamp", INTERVAL, (Node(op, BIGINT, (number(node),), text=text),), text=text)
        if not sqltypes.is_numeric(node.type):
            raise SpecError(f"cannot calculate `{text}` with {sqltypes.name(node.type)}")
        return Node(op, node.type, (node,), text=text)

    # Casts

    def suffixed(self, tree: exp.Expression, sign: str = "") -> Node | None:
        """A literal with a suffix, such as `5L`, which sqlglot reads as a cast."""
        if isinstance(tree, exp.Cast) and isinstance(tree.this, exp.Literal) and not tree.this.is_string:
            type = self.target(tree, tree.sql("spark"))
            if type in sqltypes.FLOATS or (type in sqltypes.INTEGERS and tree.this.this.isdigit()):
                return self.numeral(sign + tree.this.this, type)
        return None

    def target(self, tree: exp.Cast, text: str) -> pa.DataType:
        kind = tree.to
        if kind.this in (exp.DataType.Type.DECIMAL,):
            sizes = [int(size.name) for size in kind.expressions] or [10, 0]
            return pa.decimal128(sizes[0], sizes[1] if len(sizes) > 1 else 0)
        if kind.this not in _TARGETS or tree.args.get("safe"):
            raise self.refuse(tree, text)
        return _TARGETS[kind.this]

    def cast(self, tree: exp.Cast, text: str) -> Node:
        if suffixed := self.suffixed(tree):
            return suffixed
        type = self.target(tree, text)
        inner = tree.this.unnest()
        if isinstance(inner, exp.Literal) and inner.is_string:
            return self.cast_text(inner.this, type, text)
        node = self.build(inner)
        if not _castable(node.type, type, self.scope.zone):
            raise SpecError(f"cannot cast {sqltypes.name(node.type)} to {sqltypes.name(type)} in `{text}`")
        if TIMESTAMP in (node.type, type):
            self.zone()
        result = cast(node, type, self.scope.zone)
        return result if result is node else Node(result.op, type, result.args, result.value, text)

    def cast_text(self, digits: str, type: pa.DataType, text: str) -> Node:
        if type in sqltypes.TIMES:
            return self.moment(digits, type, text)
        try:
            if type in sqltypes.FLOATS:
                return literal(pa.scalar(digits.strip()).cast(type).as_py(), type, text)
            if pa.types.is_decimal(type):
                return literal(pa.scalar(Decimal(digits)).cast(type).as_py(), type, text)
        except (ValueError, ArithmeticError, pa.ArrowInvalid):
            raise SpecError(f"{digits!r} in `{text}` is not a {sqltypes.name(type)}") from None
        raise SpecError(
            f"cannot cast string to {sqltypes.name(type)} in `{text}`; write the value without quotes"
        )

    # Conditions

    def compare(self, op: str, a: Node, b: Node, text: str) -> Node:
        a, b = self.unify(a, b, text)
        return Node(op, BOOLEAN, (a, b), text=text)

    def unify(self, a: Node, b: Node, text: str) -> tuple[Node, Node]:
        """Both operands in the type Spark compares them in."""
        if a.type == STRING and a.op == "literal" and b.type in sqltypes.TIMES:
            a = self.moment(a.value, b.type, text)
        if b.type == STRING and b.op == "literal" and a.type in sqltypes.TIMES:
            b = self.moment(b.value, a.type, text)
        try:
            type = sqltypes.common(a.type, b.type, (_integer_literal(a), _integer_literal(b)))
        except SpecError as error:
            raise SpecError(f"`{text}`: {error}") from None
        if type == TIMESTAMP:
            self.zone()
        if type is None or not all(_castable(node.type, type, self.scope.zone) for node in (a, b)):
            raise SpecError(
                f"cannot compare {sqltypes.name(a.type)} with {sqltypes.name(b.type)} in `{text}`"
                + ("; cast one of them" if type is None else f" in the time zone {self.scope.zone}")
            )
        return cast(a, type, self.scope.zone), cast(b, type, self.scope.zone)

    def between(self, tree: exp.Between, text: str) -> Node:
        if tree.args.get("symmetric"):
            raise self.refuse(tree, text)
        node, low, high = (self.build(tree.args[key]) for key in ("this", "low", "high"))
        parts = (self.compare("ge", node, low, text), self.compare("le", node, high, text))
        return Node("between", BOOLEAN, parts, text=text)

    def one_of(self, tree: exp.In, text: str) -> Node:
        if not tree.expressions:
            raise self.refuse(tree, text)
        nodes = [self.build(tree.this), *(self.build(item) for item in tree.expressions)]
        for _ in range(2):  # the second time, the first node has the type common to all of them
            for k in range(1, len(nodes)):
                nodes[0], nodes[k] = self.unify(nodes[0], nodes[k], text)
        parts = [
            self.compare("eq", nodes[0], item, f"{tree.this.sql('spark')} = {item.text}")
            for item in nodes[1:]
        ]
        return parts[0] if len(parts) == 1 else Node("or", BOOLEAN, tuple(parts), text=text)

    def is_null(self, tree: exp.Is, text: str) -> Node:
        what = tree.expression
        node = self.build(tree.this)
        if isinstance(what, exp.Null):
            return Node("isnull", BOOLEAN, (node,), text=text)
        if isinstance(what, exp.Boolean) and node.type == BOOLEAN:
            known = _not(_is_null(node))
            return all_of([known, node if what.this else _not(node)])
        raise self.refuse(tree, text)

    def null_safe(self, tree: exp.NullSafeEQ, text: str) -> Node:
        a, b = self.build(tree.this), self.build(tree.expression)
        null = [_is_null(node) for node in (a, b)]
        known = [_not(node) for node in null]
        equal = self.compare("eq", a, b, f"{a.text} = {b.text}")
        return Node("or", BOOLEAN, (all_of([*known, equal]), all_of(null)), text=text)

    def null_safe_unequal(self, tree: exp.NullSafeNEQ, text: str) -> Node:
        return Node("not", BOOLEAN, (self.null_safe(tree, text),), text=text)

    def connective(self, tree: exp.Connector, text: str) -> Node:
        nodes = [self.truth(item) for item in (tree.this, tree.expression)]
        op = "and" if isinstance(tree, exp.And) else "or"
        parts = [part for node in nodes for part in (node.args if node.op == op else (node,))]
        return Node(op, BOOLEAN, tuple(parts), text=text)

    def negation(self, tree: exp.Not, text: str) -> Node:
        return Node("not", BOOLEAN, (self.truth(tree.this),), text=text)

    def truth(self, tree: exp.Expression) -> Node:
        return as_truth(self.build(tree))

    _METHODS = {
        exp.Literal: literal,
        exp.Boolean: boolean,
        exp.Null: null,
        exp.Interval: interval,
        exp.Neg: negative,
        exp.Abs: absolute,
        exp.Cast: cast,
        exp.Between: between,
        exp.In: one_of,
        exp.Is: is_null,
        exp.NullSafeEQ: null_safe,
        exp.NullSafeNEQ: null_safe_unequal,
        exp.And: connective,
        exp.Or: connective,
        exp.Not: negation,
    }


def as_truth(node: Node) -> Node:
    """`node` as a boolean, or an error if it is not one."""
    if node.type not in (BOOLEAN, NULL):
        raise SpecError(f"`{node.text}` is {sqltypes.name(node.type)}, where a condition (boolean) is needed")
    return cast(node, BOOLEAN)


def not_point_in_box(text: str) -> NotCompiled:
    """The error for a term that no box can hold."""
    return NotCompiled(
        text,
        "is not point-in-box",
        "a term must compare an expression of R with an expression of S, or a sum of both with a bound",
    )


_TARGETS = {
    exp.DataType.Type.TINYINT: pa.int8(),
    exp.DataType.Type.SMALLINT: pa.int16(),
    exp.DataType.Type.INT: pa.int32(),
    exp.DataType.Type.BIGINT: pa.int64(),
    exp.DataType.Type.FLOAT: FLOAT,
    exp.DataType.Type.DOUBLE: DOUBLE,
    exp.DataType.Type.BOOLEAN: BOOLEAN,
    exp.DataType.Type.DATE: DATE,
    exp.DataType.Type.TIMESTAMPTZ: TIMESTAMP,
    exp.DataType.Type.TIMESTAMPNTZ: TIMESTAMP_NTZ,
}


def _is_null(node: Node) -> Node:
    return Node("isnull", BOOLEAN, (node,), text=f"{node.text} IS NULL")


def _not(node: Node) -> Node:
    return Node("not", BOOLEAN, (node,), text=f"NOT {node.text}")


def _fits(value: int, type: pa.DataType) -> bool:
    limit = 1 << (type.bit_width - 1)
    return -limit <= value < limit


def _integer_literal(node: Node) -> int | None:
    return node.value if node.op == "literal" and node.type in sqltypes.INTEGERS else None


def _castable(source: pa.DataType, target: pa.DataType, zone: str) -> bool:
    if source in (target, NULL):
        return True
    if sqltypes.is_numeric(source) and sqltypes.is_numeric(target):
        # Spark rounds doubles to decimals through their shortest text, which is not reproduced here.
        return not (source in sqltypes.FLOATS and pa.types.is_decimal(target))
    if source in sqltypes.TIMES and target in sqltypes.TIMES:
        # Only midnights are found exactly where clocks change.
        return is_utc(zone) or TIMESTAMP not in (source, target) or (source, target) == (DATE, TIMESTAMP)
    return BOOLEAN in (source, target) and (source in sqltypes.INTEGERS or target in sqltypes.INTEGERS)
