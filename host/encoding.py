"""Codes: values as unsigned 64-bit integers in the same order, and bounds rounded onto those codes.

Strings have hashes for codes, which only equality survives; decimals of more than 18 digits have the
code of the nearest double, which keeps the order but may make unequal values equal.
"""

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from . import sqltypes

HIGHEST = np.uint64(2**64 - 1)
_SIGN = np.uint64(1 << 63)
_ZERO, _ONE = np.uint64(0), np.uint64(1)
_BITS = {pa.int8(): 8, pa.int16(): 16, pa.int32(): 32, pa.int64(): 64, sqltypes.DATE: 32}


def is_exact(type: pa.DataType) -> bool:
    """Whether equal codes mean equal values."""
    return type != sqltypes.STRING and not _is_wide(type)


def signed(values: np.ndarray) -> np.ndarray:
    """Codes of 64-bit integers."""
    return values.astype(np.int64, copy=False).view(np.uint64) ^ _SIGN


def encode(array: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """The codes of an array, and which of its values are not NULL."""
    nulls = array.null_count
    valid = array.is_valid().to_numpy(zero_copy_only=False) if nulls else np.ones(len(array), bool)
    type = array.type
    if type == sqltypes.STRING:
        codes = _hash(array)
    elif type == sqltypes.BOOLEAN:
        codes = _numbers(array, pa.uint8()).astype(np.uint64)
    elif type in sqltypes.FLOATS:
        codes = _float_codes(_numbers(array, type))
    elif _is_wide(type):
        codes = _float_codes(_numbers(array.cast(pa.string()), sqltypes.DOUBLE))
    elif pa.types.is_decimal(type):
        codes = signed(_unscaled(array))
    else:
        codes = _integer_codes(_numbers(array, pa.int64()), type)
    return np.where(valid, codes, _ZERO) if nulls else codes, valid


def lower(bound: pa.Array, type: pa.DataType, strict: bool) -> tuple[np.ndarray, np.ndarray]:
    """The lowest code of `type` at or above (above, if `strict`) each bound, and where there is none."""
    if not strict or not is_exact(type):
        return _onto(bound, type, up=True)
    codes, below = _onto(bound, type, up=False)
    return np.where(below, _ZERO, codes + _ONE), codes == _top(type)


def upper(bound: pa.Array, type: pa.DataType, strict: bool) -> tuple[np.ndarray, np.ndarray]:
    """The highest code of `type` at or below (below, if `strict`) each bound, and where there is none."""
    if not strict or not is_exact(type):
        return _onto(bound, type, up=False)
    codes, above = _onto(bound, type, up=True)
    return np.where(above, _top(type), codes - _ONE), ~above & (codes == _ZERO)


def _is_wide(type: pa.DataType) -> bool:
    return pa.types.is_decimal(type) and type.precision > sqltypes.LONG_PRECISION


def _numbers(array: pa.Array, type: pa.DataType) -> np.ndarray:
    if array.type == sqltypes.DATE:
        array = array.cast(pa.int32())  # dates are cast to nothing else
    # NumPy is done with a few integers before Arrow has looked up how to cast them.
    widened = type == pa.int64() and pa.types.is_signed_integer(array.type)
    if array.type != type and not widened:
        array = array.cast(type)
    numbers = (array.fill_null(0) if array.null_count else array).to_numpy(zero_copy_only=False)
    return numbers.astype(np.int64, copy=False) if widened else numbers


def _integer_codes(values: np.ndarray, type: pa.DataType) -> np.ndarray:
    bits = _BITS.get(type, 64)
    if bits == 64:
        return signed(values)
    return (values + (1 << (bits - 1))).view(np.uint64)


def _float_codes(values: np.ndarray) -> np.ndarray:
    """IEEE bits made to count upwards: negative values inverted, the sign of the others set."""
    bits = np.uint32 if values.dtype == np.float32 else np.uint64
    sign = bits(1 << (8 * bits().itemsize - 1))
    nan = np.isnan(values)
    raw = (np.where(nan, np.inf, values) + 0.0).astype(values.dtype).view(bits)
    codes = np.where(raw & sign, ~raw, raw | sign)
    return codes.astype(np.uint64) + nan


def _unscaled(array: pa.Array) -> np.ndarray:
    """The integers in a decimal array, where they fit 64 bits."""
    return _words(array)[0]


def _words(array: pa.Array) -> np.ndarray:
    """The lower and the upper halves of the integers in a decimal array."""
    if not len(array):
        return np.empty((2, 0), np.int64)
    words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 2)
    return words[array.offset : array.offset + len(array)].T


def _top(type: pa.DataType) -> np.uint64:
    """The highest code of `type`."""
    if type == sqltypes.BOOLEAN:
        return _ONE
    if type in sqltypes.FLOATS:
        return _float_codes(np.array([np.nan], type.to_pandas_dtype()))[0]
    if pa.types.is_decimal(type):
        return signed(np.array([10**type.precision - 1]))[0]
    return np.uint64(2 ** _BITS.get(type, 64) - 1)


def _onto(bound: pa.Array, type: pa.DataType, up: bool) -> tuple[np.ndarray, np.ndarray]:
    """The codes of `bound` rounded up or down to a value of `type`, and where no value is left."""
    nowhere = np.zeros(len(bound), bool)
    if bound.type == type:
        return encode(bound)[0], nowhere
    if _is_wide(type):
        # Rounding to the nearest double keeps the order, so the bound needs no rounding of its own.
        return encode(bound.cast(pa.decimal128(sqltypes.MAX_PRECISION, bound.type.scale)))[0], nowhere
    if type == sqltypes.FLOAT:
        return _onto_float(_numbers(bound, sqltypes.DOUBLE), up), nowhere
    if pa.types.is_decimal(bound.type):
        values, outside = _onto_decimal(bound, type, up)
        return (signed(values) if pa.types.is_decimal(type) else _integer_codes(values, type)), outside
    low, high = -(1 << (_BITS[type] - 1)), (1 << (_BITS[type] - 1)) - 1
    values = _numbers(bound, bound.type)
    if bound.type == sqltypes.DOUBLE:
        values = np.where(np.isnan(values), np.inf, values)
        values = np.ceil(values) if up else np.floor(values)
    outside = values > high if up else values < low
    return _integer_codes(np.clip(values, low, high).astype(np.int64), type), outside


def _onto_float(values: np.ndarray, up: bool) -> np.ndarray:
    with np.errstate(over="ignore", under="ignore"):
        nearest = values.astype(np.float32)
    wrong = nearest < values if up else nearest > values
    stepped = np.nextafter(nearest, np.float32(np.inf if up else -np.inf))
    return _float_codes(np.where(wrong, stepped, nearest))


def _onto_decimal(bound: pa.Array, type: pa.DataType, up: bool) -> tuple[np.ndarray, np.ndarray]:
    """Decimal bounds rounded to the integers that `type`, an integer or a short decimal, is made of."""
    if pa.types.is_decimal(type):
        scale, low, high = type.scale, 1 - 10**type.precision, 10**type.precision - 1
    else:
        scale, low, high = 0, -(1 << (_BITS[type] - 1)), (1 << (_BITS[type] - 1)) - 1
    fine = pa.decimal256(76, max(scale, bound.type.scale))
    wide = bound.cast(pa.decimal256(76, bound.type.scale)).cast(fine)
    wide = pc.round(wide, scale, "up" if up else "down")
    low, high = (
        pa.scalar(_decimal(limit, scale), pa.decimal256(40, scale)).cast(fine) for limit in (low, high)
    )
    outside = pc.greater(wide, high) if up else pc.less(wide, low)
    clamped = pc.max_element_wise(pc.min_element_wise(wide, high), low)
    values = _unscaled(clamped.cast(pa.decimal128(38, scale)))
    return values, outside.fill_null(False).to_numpy(zero_copy_only=False)


def _decimal(unscaled: int, scale: int) -> Decimal:
    return Decimal((unscaled < 0, tuple(map(int, str(abs(unscaled)))), -scale))


_MULTIPLIER = 0x9E3779B97F4A7C15 | 1


def _hash(array: pa.Array) -> np.ndarray:
    """A 64-bit hash of each string: the same in every process, from its bytes alone."""
    encoded = array.dictionary_encode()
    distinct = encoded.dictionary.cast(pa.large_binary())
    place = encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)
    if not len(distinct):
        return np.zeros(len(array), np.uint64)
    offsets = np.frombuffer(distinct.buffers()[1], np.int64)[distinct.offset :][: len(distinct) + 1]
    data = distinct.buffers()[2]
    raw = np.frombuffer(data if data is not None else b"", np.uint8)[offsets[0] : offsets[-1]]
    starts, lengths = offsets[:-1] - offsets[0], np.diff(offsets)
    powers = np.multiply.accumulate(np.full(int(lengths.max(initial=0)) + 1, _MULTIPLIER, np.uint64))
    weighed = (raw.astype(np.uint64) + _ONE) * powers[np.arange(len(raw)) - np.repeat(starts, lengths)]
    sums = np.concatenate([[_ZERO], np.cumsum(weighed, dtype=np.uint64)])
    return mix(sums[starts + lengths] - sums[starts] + lengths.astype(np.uint64))[place]


def mix(x: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64, so that every bit of the hash depends on every byte."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def is_sortable(type: pa.DataType) -> bool:
    """Whether `sort_keys` can order values of `type`."""
    if pa.types.is_struct(type):
        return all(is_sortable(field.type) for field in type)
    if pa.types.is_dictionary(type):
        return is_sortable(type.value_type)
    if pa.types.is_interval(type):
        return False
    return (
        pa.types.is_primitive(type)
        or pa.types.is_decimal128(type)
        or pa.types.is_null(type)
        or _is_bytes(type)
    )


def _is_bytes(type: pa.DataType) -> bool:
    return (
        sqltypes.canonical(type) == sqltypes.STRING
        or pa.types.is_binary(type)
        or pa.types.is_large_binary(type)
    )


def _ranks(array: pa.Array) -> np.ndarray:
    """The place of each string among the distinct ones, by bytes."""
    encoded = array.cast(pa.large_binary()).dictionary_encode()
    rank = np.zeros(max(len(encoded.dictionary), 1), np.int64)
    rank[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(encoded.dictionary))
    return rank[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)]


def sort_keys(array: pa.Array) -> list[np.ndarray]:
    """Keys, most significant first, that order values as Spark does: NULL first, NaN last."""
    type = array.type
    if pa.types.is_dictionary(type):
        return sort_keys(array.dictionary_decode())
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    if pa.types.is_null(type):
        return [valid]
    if pa.types.is_struct(type):
        fields = (pc.struct_field(array, [k]) for k in range(type.num_fields))
        return [valid, *(key for column in fields for key in sort_keys(column))]
    if _is_bytes(type):
        return [valid, _ranks(array)]
    if pa.types.is_decimal(type):
        low, high = _words(array)
        return [valid, np.where(valid, high, 0), np.where(valid, low.view(np.uint64), _ZERO)]
    if pa.types.is_floating(type):
        return [valid, _float_codes(_numbers(array, sqltypes.DOUBLE))]
    if pa.types.is_boolean(type):
        return [valid, _numbers(array, pa.uint8())]
    if pa.types.is_unsigned_integer(type):
        return [valid, _numbers(array, pa.uint64())]
    if pa.types.is_date32(type) or pa.types.is_time32(type):
        array = array.cast(pa.int32())
    return [valid, _numbers(array, pa.int64())]
