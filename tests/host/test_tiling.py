"""Tiles: together they cover every pair the windows allow, each once, and none holds too much."""

import numpy as np
import pytest

from host.tiling import Reach, tiles


def reach_of(rng: np.random.Generator, points: int, boxes: int, width: int) -> Reach:
    first = np.sort(rng.integers(0, points + 1, boxes))
    last = np.minimum(points, np.maximum.accumulate(first + rng.integers(0, width + 1, boxes)))
    places = rng.permutation(points + boxes)
    return Reach(first, np.maximum(first, last), np.sort(places[:points]), np.sort(places[points:]))


@pytest.mark.parametrize("capacity", [1, 3, 8, 100])
@pytest.mark.parametrize("points, boxes", [(0, 0), (0, 5), (5, 0), (1, 1), (40, 7), (7, 40), (60, 60)])
@pytest.mark.parametrize("width", [0, 5, 100])
@pytest.mark.parametrize("old", [0, 0.5, 1])
def test_tiles_cover_every_pair_once(points, boxes, width, capacity, old, rng):
    reach = reach_of(rng, points, boxes, width)
    covered = np.zeros((points, boxes), int)
    new_point, new_box = round(old * points), round(old * boxes)
    for tile in tiles(reach, capacity, new_point, new_box):
        covered[tile.points, tile.boxes] += 1
        loaded = getattr(tile, tile.loaded)
        assert 0 < loaded.stop - loaded.start <= capacity
    assert covered.max(initial=0) <= 1
    assert not covered[:new_point, :new_box].any()
    for box in range(boxes):
        needed = covered[reach.first[box] : reach.last[box], box]
        assert (needed[max(0, new_point - reach.first[box]) if box < new_box else 0 :] == 1).all()


def test_the_side_that_moves_less_is_chosen():
    wide = Reach(np.zeros(1000, int), np.full(1000, 10), np.arange(10), np.arange(10, 1010))
    plan = tiles(wide, 10)
    assert [tile.loaded for tile in plan] == ["points"]
    assert plan[0].boxes == slice(0, 1000)


def test_live_is_what_an_arriving_tuple_must_find():
    # Arrival order: p0 p1 b0 p2 b1; each box reaches back two points, and forward one.
    reach = Reach(np.array([0, 1]), np.array([3, 3]), np.array([0, 1, 3]), np.array([2, 4]))
    assert reach.live() == 2
    assert reach.candidates == 5
