"""Tuples and results as rows of 32-bit words, least significant first, with fields as in their layouts."""

import functools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from amaranth.hdl import Shape
from amaranth.lib import data

from .dimension import Dimension
from .errors import DataError
from .record import flit_layout
from .socket import RESULT_LAYOUT, Kind, tuple_layout

WORD = 32
#: Rows packed at a time: few enough that they stay in the processor's cache.
_ROWS = 16384

_tuple_layout = functools.cache(tuple_layout)


class Results(NamedTuple):
    """The fields of result words, one array each; which of them mean anything depends on `tag`."""

    tag: np.ndarray
    query: np.ndarray
    r_id: np.ndarray
    s_id: np.ndarray
    mark_id: np.ndarray
    fault: np.ndarray
    value: np.ndarray
    composite: np.ndarray
    composite_r: np.ndarray
    composite_s: np.ndarray


def word_count(layout: data.Layout) -> int:
    """How many words a value of this layout takes."""
    return -(-layout.size // WORD)


def locate(layout: data.Layout, path: str) -> tuple[int, int]:
    """Offset and width in bits of a field, such as `dims.box.d0.lo`."""
    offset = 0
    shape = layout
    for name in path.split("."):
        field = shape[name]
        offset += field.offset
        shape = field.shape
    return offset, Shape.cast(shape).width


def pack(layout: data.Layout, fields: Mapping[str, np.ndarray | int], count: int) -> np.ndarray:
    """`count` rows as `uint32[count, words]`: fields are arrays or constants, what is not given is 0."""
    words = np.zeros((count, word_count(layout)), np.uint32)
    for path, given in fields.items():
        offset, width = locate(layout, path)
        values = np.broadcast_to(_checked(path, given, width), count)
        for start in range(0, count, _ROWS):
            rows = slice(start, start + _ROWS)
            _place(words[rows], values[rows], offset, width)
    return words


def unpack(layout: data.Layout, words: np.ndarray, path: str) -> np.ndarray:
    """One field of each row, as uint32 or, if it is wider than 32 bits, as uint64."""
    offset, width = locate(layout, path)
    values = np.zeros(len(words), _unsigned(width))
    for column, at, done, bits in _parts(offset, width):
        part = words[:, column] >> np.uint32(at) & np.uint32((1 << bits) - 1)
        values |= part.astype(values.dtype) << values.dtype.type(done)
    return values


def put(layout: data.Layout, words: np.ndarray, path: str, values: np.ndarray) -> None:
    """Writes one field of each row anew."""
    offset, width = locate(layout, path)
    for column, at, _, bits in _parts(offset, width):
        words[:, column] &= np.uint32(~(((1 << bits) - 1) << at) & (1 << WORD) - 1)
    _place(words, _checked(path, values, width), offset, width)


def pack_points(dims: tuple[Dimension, ...], ids: np.ndarray, codes: Sequence[np.ndarray]) -> np.ndarray:
    """R tuples: row `n` has `ids[n]` and, in dimension `k`, the point `codes[k][n]`."""
    fields = {f"dims.point.d{k}": codes[k] for k in range(len(dims))}
    return pack(_tuple_layout(dims), {"kind": Kind.R.value, "id": ids} | fields, len(ids))


def pack_boxes(
    dims: tuple[Dimension, ...], ids: np.ndarray, lo: Sequence[np.ndarray], hi: Sequence[np.ndarray]
) -> np.ndarray:
    """S tuples: row `n` has `ids[n]` and, in dimension `k`, the bounds it uses of `lo[k][n]`, `hi[k][n]`."""
    given = {"lo": lo, "hi": hi}
    fields = {f"dims.box.d{k}.{bound}": given[bound][k] for k, dim in enumerate(dims) for bound in dim.bounds}
    return pack(_tuple_layout(dims), {"kind": Kind.S.value, "id": ids} | fields, len(ids))


def pack_instruction(
    dims: tuple[Dimension, ...], instruction: int, lo: Sequence[int] = (), hi: Sequence[int] = ()
) -> np.ndarray:
    """One instruction for a chain of OP-Blocks, as one row; `lo` and `hi` are the constants of a SELECT."""
    given = {"lo": lo, "hi": hi}
    constants = {f"dims.box.d{k}.{bound}": value for bound in given for k, value in enumerate(given[bound])}
    return pack(_tuple_layout(dims), {"kind": Kind.INSTRUCTION.value, "id": instruction} | constants, 1)


def pack_control(dims: tuple[Dimension, ...], kind: Kind, id: int = 0) -> np.ndarray:
    """One control token, as one row."""
    return pack(_tuple_layout(dims), {"kind": kind.value, "id": id}, 1)


def pack_run(record: data.StructLayout, records: np.ndarray, lanes: int) -> np.ndarray:
    """A run of records, rows that `pack` made, as rows of flits with `lanes` records each."""
    layout = flit_layout(record, lanes)
    flits = max(1, -(-len(records) // lanes))
    left = len(records) - lanes * np.arange(flits)
    rows = pack(layout, {"count": np.minimum(left, lanes), "last": left <= lanes}, flits)
    whole = np.zeros((flits * lanes, records.shape[1]), np.uint32)
    whole[: len(records)] = records
    rows[:, : lanes * records.shape[1]] |= whole.reshape(flits, -1)
    return rows


def unpack_results(words: np.ndarray) -> Results:
    """The fields of rows that came out of `results`."""
    paths = (
        "tag",
        "query",
        "body.pair.r_id",
        "body.pair.s_id",
        "body.mark.id",
        "body.error.fault",
        "body.error.value",
        "body.composite.id",
        "body.composite.r_id",
        "body.composite.s_id",
    )
    return Results(*(unpack(RESULT_LAYOUT, words, path) for path in paths))


def _unsigned(width: int) -> type:
    return np.uint64 if width > WORD else np.uint32


def _checked(path: str, given: np.ndarray | int, width: int) -> np.ndarray:
    """The values as unsigned integers; one that does not fit would spill into the fields beside it."""
    values = np.asarray(given)
    if values.size and not (values.dtype.kind == "u" and values.dtype.itemsize * 8 <= width):
        for value in (values.min(), values.max()):
            if not 0 <= value < 1 << width:
                raise DataError(f"{path} must be an integer of {width} bits, not {value}")
    return values.astype(_unsigned(width), copy=False)


def _parts(offset: int, width: int):
    """Cuts a field at word boundaries: (column, lowest bit there, lowest bit of the field, bits)."""
    done = 0
    while done < width:
        column, at = divmod(offset + done, WORD)
        bits = min(WORD - at, width - done)
        yield column, at, done, bits
        done += bits


def _place(words: np.ndarray, values: np.ndarray, offset: int, width: int) -> None:
    for column, at, done, _ in _parts(offset, width):
        # Bits that belong in later columns fall off the top of the word.
        words[:, column] |= (values >> values.dtype.type(done)).astype(np.uint32) << np.uint32(at)
