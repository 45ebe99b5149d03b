"""Spark's SQL types, written as Arrow types, and the type Spark 4 (ANSI) coerces two operands to."""

import pyarrow as pa

from hw.errors import SpecError

TIMESTAMP = pa.timestamp("us", tz="UTC")
TIMESTAMP_NTZ = pa.timestamp("us")
DATE = pa.date32()
INTERVAL = pa.duration("us")
STRING = pa.string()
BOOLEAN = pa.bool_()
FLOAT = pa.float32()
DOUBLE = pa.float64()
BIGINT = pa.int64()
NULL = pa.null()

INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
FLOATS = (FLOAT, DOUBLE)
TIMES = (DATE, TIMESTAMP, TIMESTAMP_NTZ)

MAX_PRECISION = 38
# A decimal of this many digits, sign included, fits 64 bits.
LONG_PRECISION = 18

_NAMES = {
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    FLOAT: "float",
    DOUBLE: "double",
    BOOLEAN: "boolean",
    STRING: "string",
    DATE: "date",
    TIMESTAMP: "timestamp",
    TIMESTAMP_NTZ: "timestamp_ntz",
    INTERVAL: "interval day to second",
    NULL: "void",
}
_DIGITS = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 20}


def name(type: pa.DataType) -> str:
    """What Spark calls `type`."""
    if pa.types.is_decimal(type):
        return f"decimal({type.precision},{type.scale})"
    return _NAMES.get(type, str(type))


def canonical(type: pa.DataType) -> pa.DataType | None:
    """The one Arrow type that stands for the Spark type of a column, or None if there is none."""
    if pa.types.is_dictionary(type):
        return canonical(type.value_type)
    if pa.types.is_large_string(type) or pa.types.is_string_view(type):
        return STRING
    if pa.types.is_timestamp(type) and type.unit != "ns":
        return TIMESTAMP_NTZ if type.tz is None else TIMESTAMP
    if pa.types.is_duration(type) and type.unit != "ns":
        return INTERVAL
    if pa.types.is_decimal128(type) and 0 <= type.scale <= type.precision:
        return type
    return type if type in _NAMES else None


def is_integer(type: pa.DataType) -> bool:
    """Whether `type` is one of Spark's integers."""
    return type in INTEGERS


def is_numeric(type: pa.DataType) -> bool:
    """Whether Spark calculates with `type`."""
    return type in INTEGERS or type in FLOATS or pa.types.is_decimal(type)


def decimal(precision: int, scale: int) -> pa.DataType:
    """A decimal type; more than 38 digits would make Spark round, which is refused."""
    if precision > MAX_PRECISION:
        raise SpecError(
            f"a result of {precision} digits, {scale} of them after the point, is more than the "
            f"{MAX_PRECISION} that decimals hold; cast an operand to fewer digits or to double"
        )
    return pa.decimal128(precision, scale)


def as_decimal(type: pa.DataType, literal: int | None = None) -> pa.DataType:
    """The decimal that holds every value of an integer type, or just the integer `literal`."""
    if pa.types.is_decimal(type):
        return type
    return pa.decimal128(len(str(abs(literal))) if literal is not None else _DIGITS[type], 0)


def wider_decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The decimal that holds every value of both."""
    scale = max(a.scale, b.scale)
    return decimal(max(a.precision - a.scale, b.precision - b.scale) + scale, scale)


def sum_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type of a sum or difference of two decimals."""
    wider = wider_decimal(a, b)
    return decimal(wider.precision + 1, wider.scale)


def product_type(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """The type of a product of two decimals."""
    return decimal(a.precision + b.precision + 1, a.scale + b.scale)


def common(a: pa.DataType, b: pa.DataType, literals: tuple = (None, None)) -> pa.DataType | None:
    """The type in which Spark compares `a` with `b`, or None if it does not.

    `literals` holds the values of the operands that are integer literals: Spark gives those only as
    many decimal digits as they have.
    """
    if a == b:
        return a
    if a == NULL or b == NULL:
        return b if a == NULL else a
    if is_integer(a) and is_integer(b):
        return max(a, b, key=INTEGERS.index)
    if is_numeric(a) and is_numeric(b):
        if a in FLOATS or b in FLOATS:
            return DOUBLE
        return wider_decimal(as_decimal(a, literals[0]), as_decimal(b, literals[1]))
    if a in TIMES and b in TIMES:
        return TIMESTAMP if TIMESTAMP in (a, b) else TIMESTAMP_NTZ
    return None
