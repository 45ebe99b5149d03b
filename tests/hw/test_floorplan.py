"""Where the cores of a joiner lie in a chip.

netlist -> anchors -> places of a few registers
"""

import json
import re
from itertools import pairwise, product

import pytest

from hw import floorplan, route
from hw.parameters import Parameters
from hw.pinned import TOP, emit_pinned


@pytest.mark.parametrize("count", [2, 3, 8, 29, 41, 290])
@pytest.mark.parametrize("shape", [(123, 84), (60, 41), (40, 80)])
def test_a_way_through_all_fields_leads_back(count, shape):
    way = floorplan.fields(count, *shape)
    columns, rows = (1 + max(axis) for axis in zip(*way))
    assert len(way) == len(set(way)) == columns * rows >= count
    for (x, y), (next_x, next_y) in pairwise([*way, way[0]]):
        assert abs(x - next_x) + abs(y - next_y) == 1


def test_registers_of_each_core_get_places_of_their_own(tmp_path):
    """Those behind other registers, which nothing else draws anywhere; the same in each run."""
    parameters = Parameters(architecture="lowlatency", cores=3, segment=4, lanes=1)
    path = route.synthesise(emit_pinned(parameters), TOP, folder=tmp_path)
    netlist = json.loads(path.read_text())
    places = floorplan.anchors(netlist)
    assert len(set(places.values())) == len(places)
    assert {int(re.match(r"joiner\.node_(\d+)\.", name)[1]) for name in places} == {0, 1, 2}
    cells = netlist["modules"][TOP]["cells"]
    drivers = {
        bit: cell["type"]
        for cell in cells.values()
        for port, bits in cell["connections"].items()
        if cell["port_directions"][port] == "output"
        for bit in bits
    }
    for name, place in places.items():
        x, y = map(int, re.fullmatch(r"X(\d+)/Y(\d+)/SLICED\.FF1", place).groups())
        assert x in floorplan.ECP5_85F.columns and y in floorplan.ECP5_85F.rows
        assert [drivers[bit] for bit in cells[name]["connections"]["DI"]] == ["TRELLIS_FF"]
    floorplan.anchor(path)
    kept = json.loads(path.read_text())["modules"][TOP]["cells"]
    given = {name: cell["attributes"].get("BEL") for name, cell in kept.items()}
    assert {name: place for name, place in given.items() if place} == places


def test_without_cores_nothing_has_a_place():
    cells = {"joiner.core_0.a": {"type": "LUT4", "connections": {}}}
    assert not floorplan.anchors({"modules": {TOP: {"attributes": {"top": 1}, "cells": cells}}})


@pytest.mark.parametrize("cores, size, some", [(4, 4, True), (8, 5000, True), (8, 5400, False)])
def test_each_place_is_one_registers_alone(cores, size, some):
    """Also of cores that are smaller than a tile; a chip that is more than half full has no places."""
    cells = {
        f"joiner.core_{core}.{k}": {"type": "TRELLIS_FF", "connections": {"Q": [n + 2], "DI": [n + 2]}}
        for n, (core, k) in enumerate(product(range(cores), range(size)))
    }
    places = floorplan.anchors({"modules": {TOP: {"attributes": {"top": 1}, "cells": cells}}})
    assert bool(places) == some and len(set(places.values())) == len(places)
    for place in places.values():
        x, y = map(int, re.fullmatch(r"X(\d+)/Y(\d+)/SLICED\.FF1", place).groups())
        assert x in floorplan.ECP5_85F.columns and y in floorplan.ECP5_85F.rows
