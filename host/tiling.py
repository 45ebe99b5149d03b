"""How a finite join is laid over a device: in one go, or in tiles where the windows are larger.

The window dimensions decide which points a box can meet: as both streams are in arrival order, box
`b` meets only the points `first[b] .. last[b] - 1`, and both bounds only grow with `b`.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Reach:
    """The points that each box can meet by the windows alone, and the places in arrival order."""

    first: np.ndarray
    last: np.ndarray
    point_place: np.ndarray
    box_place: np.ndarray

    @classmethod
    def of(cls, dimensions, encoded, point_place: np.ndarray, box_place: np.ndarray) -> "Reach":
        """The reach that the window dimensions of a join allow."""
        first = np.zeros(len(box_place), np.int64)
        last = np.full(len(box_place), len(point_place), np.int64)
        for number, dimension in enumerate(dimensions):
            if dimension.role == "value":
                continue
            codes = encoded.points.codes[number]
            first = np.maximum(first, np.searchsorted(codes, encoded.boxes.lo[number], "left"))
            last = np.minimum(last, np.searchsorted(codes, encoded.boxes.hi[number], "right"))
        return cls(first, np.maximum(first, last), point_place, box_place)

    @property
    def candidates(self) -> int:
        """How many pairs the windows allow."""
        return int((self.last - self.first).sum())

    def live(self) -> int:
        """The most tuples of a stream that an arriving tuple must still find in the device."""
        points_before = np.searchsorted(self.point_place, self.box_place)
        boxes_before = np.searchsorted(self.box_place, self.point_place)
        first_box = np.searchsorted(self.last, np.arange(len(self.point_place)), "right")
        return int(
            max((points_before - self.first).max(initial=0), (boxes_before - first_box).max(initial=0))
        )


@dataclass(frozen=True)
class Tile:
    """Some boxes and the points that they can meet. What is `loaded` first stays, the rest goes past it."""

    points: slice
    boxes: slice
    loaded: str  #: "points" or "boxes"


def tiles(reach: Reach, capacity: int, new_point: int = 0, new_box: int = 0) -> list[Tile]:
    """Tiles that cover every pair the windows allow, once, with at most `capacity` loaded tuples each.

    Pairs of a point before `new_point` with a box before `new_box` are left out.
    """
    points, boxes = len(reach.point_place), len(reach.box_place)
    chosen = []
    for part in (
        (slice(0, points), slice(new_box, boxes)),
        (slice(new_point, points), slice(0, new_box)),
    ):
        plans = (list(cut(reach, capacity, *part)) for cut in (_tiles_of_boxes, _tiles_of_points))
        chosen += min(plans, key=lambda plan: sum(_moved(tile) + capacity for tile in plan))
    return chosen


def _moved(tile: Tile) -> int:
    return sum(part.stop - part.start for part in (tile.points, tile.boxes))


def _tiles_of_boxes(reach: Reach, capacity: int, points: slice, boxes: slice) -> Iterator[Tile]:
    for start in range(boxes.start, boxes.stop, capacity):
        loaded = slice(start, min(start + capacity, boxes.stop))
        past = slice(
            max(int(reach.first[start]), points.start), min(int(reach.last[loaded.stop - 1]), points.stop)
        )
        if past.start < past.stop:
            yield Tile(past, loaded, "boxes")


def _tiles_of_points(reach: Reach, capacity: int, points: slice, boxes: slice) -> Iterator[Tile]:
    for start in range(points.start, points.stop, capacity):
        loaded = slice(start, min(start + capacity, points.stop))
        past = slice(
            max(int(np.searchsorted(reach.last, loaded.start, "right")), boxes.start),
            min(int(np.searchsorted(reach.first, loaded.stop, "left")), boxes.stop),
        )
        if past.start < past.stop:
            yield Tile(loaded, past, "points")
