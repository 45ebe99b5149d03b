"""The words of a join: in one go where the windows fit the device, otherwise in tiles."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from hw.dimension import Dimension
from hw.socket import Kind, tuple_layout
from hw.words import pack, pack_boxes, pack_control, pack_points

from .fit import Codes, Fit
from .spec import Encoded
from .tiling import Reach, tiles

#: Horizons cost two words each, so they are not sent more often than this many tuples apart.
HORIZON_DISTANCE = 32


@dataclass(frozen=True)
class Batch:
    """Tuples and horizons for one run, and the codes that say what is left to the recheck."""

    codes: Codes
    words: np.ndarray
    tuples: int  #: those that go past what is loaded


def batches(
    fit: Fit,
    dims: tuple[Dimension, ...],
    encoded: Encoded,
    reach: Reach,
    new_point: int = 0,
    new_box: int = 0,
) -> Iterator[Batch]:
    """What a device with the dimensions `dims` must be sent, run by run.

    `new_point` and `new_box` are the first of the owned ones; older ones need not meet each other.
    """
    if not reach.candidates:
        return
    live = reach.live()
    if live <= fit.capacity:
        codes = fit.narrow(encoded.points.codes, encoded.boxes.lo, encoded.boxes.hi, encoded.filtered)
        yield slide(dims, codes, reach, fit.capacity - live)
        return
    for tile in tiles(reach, fit.capacity, new_point, new_box):
        points = [codes[tile.points] for codes in encoded.points.codes]
        lo, hi = ([codes[tile.boxes] for codes in bound] for bound in (encoded.boxes.lo, encoded.boxes.hi))
        filtered = [
            values[tile.points if test.side == "r" else tile.boxes]
            for test, values in zip(fit.pushed, encoded.filtered)
        ]
        codes = fit.narrow(points, lo, hi, filtered)
        words = _words(dims, codes, tile.points.start, tile.boxes.start)
        order = words if tile.loaded == "points" else words[::-1]
        yield Batch(codes, np.concatenate(order), len(order[1]))


def end(dims: tuple[Dimension, ...]) -> np.ndarray:
    """The words after which everything has come out, and the device is empty."""
    return np.concatenate([pack_control(dims, Kind.FLUSH), pack_control(dims, Kind.MARK)])


def slide(dims: tuple[Dimension, ...], codes: Codes, reach: Reach, spare: int) -> Batch:
    """Both streams go through the device once, in arrival order; `spare` places are never needed."""
    points, boxes = _words(dims, codes, 0, 0)
    box_place = reach.box_place[codes.sent]
    merged = np.empty((len(points) + len(boxes), points.shape[1]), np.uint32)
    point_at = np.arange(len(points)) + np.searchsorted(box_place, reach.point_place)
    box_at = np.arange(len(boxes)) + np.searchsorted(reach.point_place, box_place)
    merged[point_at], merged[box_at] = points, boxes
    if spare >= HORIZON_DISTANCE:
        merged = _with_horizons(dims, merged, codes, reach, point_at, box_at, spare)
    return Batch(codes, merged, len(merged))


def _with_horizons(dims, merged, codes: Codes, reach: Reach, point_at, box_at, spare: int) -> np.ndarray:
    """Tells the device, every `spare` tuples, which are the oldest that later ones may meet.

    With `spare` places more than the windows need, whatever leaves until the next horizon lies
    before this one. With fewer spare places than tuples between horizons that cannot be promised.
    """
    at = np.arange(0, len(merged), spare)
    next_point = np.searchsorted(point_at, at)
    next_box = np.searchsorted(box_at, at)
    numbers = np.flatnonzero(codes.sent)
    first = np.append(reach.first[codes.sent], len(point_at))
    first_box = np.searchsorted(reach.last[codes.sent], np.arange(len(point_at)), "right")
    first_box = np.append(numbers, len(codes.sent))[np.append(first_box, len(box_at))]
    layout = tuple_layout(dims)
    tokens = [
        pack(layout, {"kind": kind.value, "id": oldest}, len(at))
        for kind, oldest in (
            (Kind.HORIZON_R, first[next_box]),
            (Kind.HORIZON_S, first_box[next_point]),
        )
    ]
    return np.insert(merged, np.repeat(at, 2), np.stack(tokens, 1).reshape(-1, merged.shape[1]), 0)


def _words(dims, codes: Codes, first_point: int, first_box: int) -> tuple[np.ndarray, np.ndarray]:
    """Points and boxes as words; their ids are their numbers."""
    points = np.arange(first_point, first_point + len(codes.points[0]))
    boxes = first_box + np.flatnonzero(codes.sent)
    lo, hi = ([bound[codes.sent] for bound in bounds] for bounds in (codes.lo, codes.hi))
    return pack_points(dims, points, codes.points), pack_boxes(dims, boxes, lo, hi)
