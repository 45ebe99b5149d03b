"""Tests of packing, against the constants that Amaranth makes of the same fields."""

import numpy as np
import pytest
from amaranth.lib import data
from hypothesis import given
from hypothesis import strategies as st

from hw.dimension import WIDTHS, Dimension, Test
from hw.errors import DataError
from hw.socket import RESULT_LAYOUT, Fault, Kind, Tag, tuple_layout
from hw.words import locate, pack, pack_boxes, pack_control, pack_points, unpack, unpack_results, word_count

DIMENSIONS = st.builds(Dimension, st.sampled_from(Test), st.integers(WIDTHS[0], WIDTHS[-1]))
ID = st.integers(0, 2**32 - 1)


def value(row: np.ndarray) -> int:
    """A row of words as one integer."""
    return int.from_bytes(row.astype("<u4").tobytes(), "little")


def constant(layout: data.Layout, fields: dict) -> int:
    return layout.const(fields).as_value().value


def result(fields: dict) -> np.ndarray:
    number = constant(RESULT_LAYOUT, fields)
    return np.frombuffer(number.to_bytes(4 * word_count(RESULT_LAYOUT), "little"), "<u4")


def codes(draw, dims, count):
    return [
        np.array(draw(st.lists(st.integers(0, dim.highest), min_size=count, max_size=count)), np.uint64)
        for dim in dims
    ]


@given(st.data())
def test_tuples_are_what_amaranth_packs(data):
    dims = tuple(data.draw(st.lists(DIMENSIONS, min_size=1, max_size=5)))
    ids = data.draw(st.lists(ID, max_size=3))
    lo, hi = codes(data.draw, dims, len(ids)), codes(data.draw, dims, len(ids))
    layout = tuple_layout(dims)
    points, boxes = pack_points(dims, ids, lo), pack_boxes(dims, ids, lo, hi)
    assert points.shape == boxes.shape == (len(ids), word_count(layout))
    assert points.dtype == boxes.dtype == np.uint32
    for n, id in enumerate(ids):
        point = {f"d{k}": int(lo[k][n]) for k in range(len(dims))}
        bounds = {"lo": lo, "hi": hi}
        box = {f"d{k}": {b: int(bounds[b][k][n]) for b in dim.bounds} for k, dim in enumerate(dims)}
        assert value(points[n]) == constant(layout, {"kind": Kind.R, "id": id, "dims": {"point": point}})
        assert value(boxes[n]) == constant(layout, {"kind": Kind.S, "id": id, "dims": {"box": box}})
    for k in range(len(dims)):
        assert np.array_equal(unpack(layout, points, f"dims.point.d{k}"), lo[k])


def test_more_rows_than_are_packed_at_a_time():
    dims = (Dimension(Test.EQUAL, 40),)
    ids = np.arange(100_000, dtype=np.uint32)
    words = pack_points(dims, ids, [ids * np.uint64(3)])
    assert np.array_equal(unpack(tuple_layout(dims), words, "id"), ids)
    assert np.array_equal(unpack(tuple_layout(dims), words, "dims.point.d0"), ids * np.uint64(3))


@pytest.mark.parametrize("kind", [Kind.FLUSH, Kind.MARK, Kind.HORIZON_R, Kind.HORIZON_S])
def test_control(kind):
    dims = (Dimension(Test.BAND),)
    (row,) = pack_control(dims, kind, 77)
    assert value(row) == constant(tuple_layout(dims), {"kind": kind, "id": 77})


def test_results():
    rows = [
        result({"tag": Tag.PAIR, "query": 9, "body": {"pair": {"r_id": 2**32 - 1, "s_id": 5}}}),
        result({"tag": Tag.MARK, "body": {"mark": {"id": 0x89ABCDEF}}}),
        result({"tag": Tag.ERROR, "body": {"error": {"fault": Fault.UNKNOWN_KIND, "value": 7}}}),
    ]
    found = unpack_results(np.array(rows, np.uint32))
    assert found.tag.tolist() == [Tag.PAIR.value, Tag.MARK.value, Tag.ERROR.value]
    assert (found.query[0], found.r_id[0], found.s_id[0]) == (9, 2**32 - 1, 5)
    assert found.mark_id[1] == 0x89ABCDEF
    assert (found.fault[2], found.value[2]) == (Fault.UNKNOWN_KIND.value, 7)
    assert all(len(field) == 0 for field in unpack_results(np.zeros((0, 4), np.uint32)))


def test_locate_follows_nested_fields():
    layout = tuple_layout((Dimension(Test.BAND, 9), Dimension(Test.AT_MOST, 11)))
    assert locate(layout, "dims.box.d0.hi") == (3 + 32 + 9, 9)
    assert locate(layout, "dims.box.d1.hi") == (3 + 32 + 18, 11)


@pytest.mark.parametrize("bad", [256, -1])
def test_values_that_do_not_fit(bad):
    dims = (Dimension(Test.EQUAL, 8),)
    with pytest.raises(DataError, match=f"^dims.point.d0 must be an integer of 8 bits, not {bad}$"):
        pack_points(dims, [1, 2], [np.array([255, bad])])
    with pytest.raises(DataError, match=f"^id must be an integer of 32 bits, not {2**32}$"):
        pack(tuple_layout(dims), {"id": 2**32}, 1)
