"""Evaluation of typed expressions over Arrow columns, with Spark 4's (ANSI) results and errors."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hw.errors import DataError

from . import sqltypes
from .expression import Node, is_utc
from .sqltypes import DATE, STRING, TIMESTAMP, TIMESTAMP_NTZ
from .window import MICROS_PER_DAY

_LAST_KNOWN_DAY = pa.scalar(datetime.date(2037, 12, 31))


class Rows:
    """Aligned rows of one or both streams: row k of each table belongs to row k of the others.

    `where` holds, for each side, the positions of the rows in that side's table (all, if None).
    """

    def __init__(self, tables: dict[str, pa.Table], where: dict[str, np.ndarray | None], length: int):
        self.tables, self.where, self.length = tables, where, length

    @classmethod
    def of(cls, side: str, table: pa.Table) -> "Rows":
        """All rows of one stream."""
        return cls({side: table}, {side: None}, table.num_rows)

    @classmethod
    def pairs(cls, r: pa.Table, s: pa.Table, r_rows: np.ndarray, s_rows: np.ndarray) -> "Rows":
        """Pairs of rows."""
        return cls({"r": r, "s": s}, {"r": r_rows, "s": s_rows}, len(r_rows))

    def column(self, side: str, name: str) -> pa.Array:
        """A column of one side, in its canonical type."""
        chunks = self.tables[side].column(name)
        column = chunks.chunk(0) if chunks.num_chunks == 1 else chunks.combine_chunks()
        type = sqltypes.canonical(column.type)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        if self.where[side] is not None:
            column = column.take(pa.array(self.where[side]))
        return column if column.type == type else column.cast(type)

    def take(self, places: np.ndarray) -> "Rows":
        """Some of the rows, by increasing positions."""
        if len(places) == self.length:
            return self
        where = {side: places if rows is None else rows[places] for side, rows in self.where.items()}
        return Rows(self.tables, where, len(places))


#: The one row in which constants are evaluated.
_CONSTANT = Rows({}, {}, 1)


def evaluate(node: Node, rows: Rows) -> pa.Array:
    """The value of `node` in every row."""
    value = _evaluate(node, rows)
    return pa.repeat(value, rows.length) if isinstance(value, pa.Scalar) else value


def holds(node: Node, rows: Rows) -> np.ndarray:
    """Where the boolean `node` is true: not false and not NULL."""
    return evaluate(node, rows).fill_null(False).to_numpy(zero_copy_only=False)


def _evaluate(node: Node, rows: Rows):
    if node.op == "column":
        return rows.column(*node.value)
    if node.op == "literal":
        return pa.scalar(node.value, node.type)
    if node.op in ("and", "between"):
        return _connect(node, rows, False)
    if node.op == "or":
        return _connect(node, rows, True)
    if not node.columns and rows is not _CONSTANT:
        return _evaluate(node, _CONSTANT)[0]
    each = evaluate if node.op in _ARRAY_OPERATIONS else _evaluate
    value = _OPERATIONS[node.op](node, *(each(arg, rows) for arg in node.args))
    return pa.repeat(value, 1) if rows is _CONSTANT and isinstance(value, pa.Scalar) else value


def _connect(node: Node, rows: Rows, decisive: bool) -> pa.Array:
    """AND (decided by False) or OR (decided by True), skipping rows that are decided as Spark does."""
    decided, null = np.zeros(rows.length, bool), np.zeros(rows.length, bool)
    for arg in node.args:
        open_ = np.flatnonzero(~decided)
        value = evaluate(arg, rows.take(open_))
        deciding = value if decisive else pc.invert(value)
        decided[open_] = deciding.fill_null(False).to_numpy(zero_copy_only=False)
        null[open_] |= value.is_null().to_numpy(zero_copy_only=False)
    return pa.array(decided == decisive, mask=null & ~decided)


def _checked(name: str):
    """An Arrow kernel that raises when an integer overflows; floats go to infinity instead."""
    checked, plain = getattr(pc, f"{name}_checked"), getattr(pc, name)

    def calculate(node: Node, *args):
        if node.type in sqltypes.FLOATS:
            return plain(*args)
        try:
            value = checked(*args)
        except pa.ArrowInvalid:
            raise _overflow(node) from None
        return value.cast(node.type) if value.type != node.type else value

    return calculate


def _overflow(node: Node) -> DataError:
    type = sqltypes.name(node.type)
    return DataError(f"`{node.text}` overflows {type} (ARITHMETIC_OVERFLOW); cast an operand to a wider type")


def _divide(node: Node, a, b):
    _refuse_zero(node, a, b)
    return pc.divide(a, b)


def _remainder(node: Node, a, b):
    """What is left of `a`, with its sign, as in Java."""
    _refuse_zero(node, a, b)
    null = pc.or_(pc.is_null(a), pc.is_null(b)).to_numpy(zero_copy_only=False)
    a, b = (x.fill_null(1).to_numpy(zero_copy_only=False) for x in (a, b))
    with np.errstate(invalid="ignore"):
        # The lowest integer divided by -1 overflows in some processors; by 1 it leaves the same.
        left = np.fmod(a, np.where(b == -1, 1, b).astype(b.dtype) if node.type in sqltypes.INTEGERS else b)
    return pa.array(left, mask=null, from_pandas=False)


def _refuse_zero(node: Node, a, b) -> None:
    if pc.any(pc.and_(pc.equal(b, pa.scalar(0, b.type)), pc.is_valid(a))).as_py():
        raise DataError(f"`{node.text}` divides by zero (DIVIDE_BY_ZERO)")


def _equal(node: Node, a, b):
    if a.type in sqltypes.FLOATS:
        return pc.or_(pc.equal(a, b), pc.and_(pc.is_nan(a), pc.is_nan(b)))
    return pc.equal(a, b)


def _less(node: Node, a, b):
    if a.type in sqltypes.FLOATS:
        return pc.or_(pc.less(a, b), pc.and_(pc.invert(pc.is_nan(a)), pc.is_nan(b)))
    return pc.less(a, b)


def _number(node: Node, value):
    # Arrow casts dates to no other integer.
    return pc.cast(pc.cast(value, pa.int32()) if value.type == DATE else value, pa.int64())


def _stamp(node: Node, value):
    return pc.cast(value, node.type)


def _reach(node: Node, *parts):
    """How far the sum of `parts` reaches, up or down, once every rounding error is allowed for.

    Spark calculates a sum that mixes both streams in floating point, so moving R's part of it to the
    other side of a comparison must leave room for what rounding did. With N operations of relative
    error u each, the sum that Spark compares is within N u (|p| + m) (1 + N u) of the true one, where p
    is R's part and m the sum of the magnitudes of the others. So "sum <= 0" implies p <= X + 2 N u |X|
    for X = B + N u m. Each part takes part in one addition and at most three casts, so N < 4 n + 8 for n
    parts; g = 4 (N + 4) u covers the rounding errors made here as well. Where magnitudes come near
    overflow, everything is within reach.
    """
    signs, up, single = node.value
    u, limit = (2.0**-24, 1e30) if single else (2.0**-53, 1e300)
    g = 4 * (4 * len(parts) + 12) * u * (1 if up else -1)
    null, total, size = False, 0.0, 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for sign, part in zip(signs, parts):
            null = null | part.is_null().to_numpy(zero_copy_only=False)
            values = part.fill_null(0.0).to_numpy(zero_copy_only=False)
            total = total - sign * values
            size = size + np.abs(values)
        reach = total + g * size
        reach = reach + 4 * g * np.abs(reach) + (1e-300 if up else -1e-300)
    reach = np.where(size < limit, reach, np.nan if up else -np.inf)
    return pa.array(reach, mask=null, from_pandas=False)


def _cast(node: Node, value):
    source, target = value.type, node.type
    try:
        if source in sqltypes.INTEGERS and pa.types.is_decimal(target):
            return pc.cast(pc.cast(value, pa.decimal128(20, 0)), target)
        if source in sqltypes.FLOATS and target in sqltypes.INTEGERS:
            return _truncate(value, target)
        if pa.types.is_decimal(source):
            return _cast_decimal(value, source, target)
        if (source, target) == (DATE, TIMESTAMP):
            return _midnight(node, value)
        if target == DATE:
            days = np.floor_divide(_column(pc.cast(value, pa.int64())), MICROS_PER_DAY)
            return _like(value, days.astype(np.int32)).cast(DATE)
        if {source, target} == {TIMESTAMP, TIMESTAMP_NTZ}:
            return pc.cast(pc.cast(value, pa.int64()), target)
        return pc.cast(value, target, safe=target not in sqltypes.FLOATS)
    except pa.ArrowInvalid:
        raise _overflow(node) from None


def _midnight(node: Node, value: pa.Array) -> pa.Array:
    """When a date begins in the session's time zone; the later time where clocks skip midnight."""
    zone = node.value
    if not is_utc(zone) and pc.any(pc.greater(value, _LAST_KNOWN_DAY)).as_py():
        # Arrow knows no clock changes beyond this day.
        raise DataError(
            f"`{node.text}` is after {_LAST_KNOWN_DAY}, when midnight in {zone} is not known; "
            "accepted are earlier dates, or the time zone UTC"
        )
    local = pc.cast(value, TIMESTAMP_NTZ)
    zoned = pc.assume_timezone(
        local, "UTC" if is_utc(zone) else zone, ambiguous="earliest", nonexistent="latest"
    )
    return pc.cast(zoned, TIMESTAMP)


def _column(value: pa.Array) -> np.ndarray:
    return value.fill_null(0).to_numpy(zero_copy_only=False)


def _like(value: pa.Array, numbers: np.ndarray) -> pa.Array:
    """`numbers` with the NULLs of `value`."""
    return pa.array(numbers, mask=value.is_null().to_numpy(zero_copy_only=False), from_pandas=False)


def _truncate(value, target: pa.DataType):
    """Floats cut to integers; out of range or NaN is an overflow."""
    numbers = np.trunc(_column(value).astype(np.float64))
    limit = 2.0 ** (target.bit_width - 1)
    if not ((numbers >= -limit) & (numbers < limit)).all():
        raise pa.ArrowInvalid("overflow")
    return _like(value, numbers.astype(target.to_pandas_dtype()))


def _cast_decimal(value, source: pa.DataType, target: pa.DataType):
    if target in sqltypes.FLOATS:
        # Through text, because Arrow's own conversion is not correctly rounded.
        return pc.cast(pc.cast(value, STRING), target)
    if pa.types.is_decimal(target) and target.scale >= source.scale:
        return pc.cast(value, target)
    wide = pc.cast(value, pa.decimal256(76, source.scale))
    if pa.types.is_decimal(target):
        return pc.cast(pc.round(wide, target.scale, "half_towards_infinity"), target)
    return pc.cast(pc.trunc(wide), target)


_OPERATIONS = {
    "add": _checked("add"),
    "sub": _checked("subtract"),
    "mul": _checked("multiply"),
    "neg": _checked("negate"),
    "abs": _checked("abs"),
    "div": _divide,
    "mod": _remainder,
    "eq": _equal,
    "ne": lambda node, a, b: pc.invert(_equal(node, a, b)),
    "lt": _less,
    "ge": lambda node, a, b: pc.invert(_less(node, a, b)),
    "gt": lambda node, a, b: _less(node, b, a),
    "le": lambda node, a, b: pc.invert(_less(node, b, a)),
    "not": lambda node, a: pc.invert(a),
    "isnull": lambda node, a: pc.is_null(a),
    "number": _number,
    "stamp": _stamp,
    "reach": _reach,
    "cast": _cast,
}
# Those that calculate with NumPy, and so need arrays where others take constants as they are.
_ARRAY_OPERATIONS = {"div", "mod", "reach", "cast"}
