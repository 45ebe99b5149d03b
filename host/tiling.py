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


def tiles(reach: Reach, capacity: int) -> Iterator[Tile]:
    """Tiles that cover every pair the windows allow, once, with at most `capacity` loaded tuples each."""
    by_boxes = list(_tiles_of_boxes(reach, capacity))
    by_points = list(_tiles_of_points(reach, capacity))
    return iter(min(by_boxes, by_points, key=lambda plan: sum(map(_moved, plan))))


def _moved(tile: Tile) -> int:
    return sum(part.stop - part.start for part in (tile.points, tile.boxes))


def _tiles_of_boxes(reach: Reach, capacity: int) -> Iterator[Tile]:
    for start in range(0, len(reach.first), capacity):
        boxes = slice(start, min(start + capacity, len(reach.first)))
        points = slice(int(reach.first[start]), int(reach.last[boxes.stop - 1]))
        if points.start < points.stop:
            yield Tile(points, boxes, "boxes")


def _tiles_of_points(reach: Reach, capacity: int) -> Iterator[Tile]:
    count = len(reach.point_place)
    for start in range(0, count, capacity):
        points = slice(start, min(start + capacity, count))
        boxes = slice(
            int(np.searchsorted(reach.last, points.start, "right")),
            int(np.searchsorted(reach.first, points.stop, "left")),
        )
        if boxes.start < boxes.stop:
            yield Tile(points, boxes, "points")
