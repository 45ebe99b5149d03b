"""Where the cores of a joiner lie in a chip: a few registers of each are put there, and draw the rest of it.

::

    +---+---+---+---+
    | 1 | 2 | 3 | 4 |     one way through all fields, back to where it begins: neighbours in a chain lie
    +---+---+---+---+     side by side, and so do its two ends
    | 0 | 7 | 6 | 5 |
    +---+---+---+---+

Left alone, a placer draws out the wide words that go from core to core, one bit beside the other, and each
core with them, as far as the chip is high. What is decided in a core, for all bits of a word, then takes the
longer the more cores there are.
"""

import json
import math
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from .area import area_of, taken
from .route import top_of

#: The cells of a core, by name: its number is the first group.
_CORE = re.compile(r"\w+\.(?:cores\.)?(?:core|node|block)_(\d+)\.")
#: A core has one anchor for so many of its cells.
CELLS_PER_ANCHOR = 100
#: How full the fields are, at least.
DENSITY = 0.7
#: In a chip that is fuller nothing has a place: the placer must move what it likes to find room for all.
FULLEST = 0.5
#: The place of an anchor in its tile, which leaves all others to what nextpnr puts there.
_PLACE = "SLICED.FF1"


@dataclass(frozen=True)
class Tiles:
    """The tiles of a chip that hold logic."""

    columns: range
    rows: tuple[int, ...]

    @property
    def cells(self) -> int:
        """How many LUTs, or flip-flops, they have."""
        return 8 * len(self.columns) * len(self.rows)


#: Of an ECP5-85F: every twelfth row has block RAMs or multipliers.
ECP5_85F = Tiles(range(2, 125), tuple(y for y in range(2, 94) if y % 12 != 10))
#: What anchors depend on, besides the netlist; the number is of the way through the fields, and within them.
FLOW = (
    *("floor plan 1", repr(ECP5_85F), _CORE.pattern),
    *(f"an anchor for {CELLS_PER_ANCHOR} cells", f"{DENSITY} full, up to {FULLEST}", _PLACE),
)


def fields(count: int, width: int, height: int) -> list[tuple[int, int]]:
    """Columns and rows of the fields for so many cores in a rectangle, in the order of the chain.

    Fields are about as wide as high, and of an even number of rows, so that a way leads back: it takes the
    first column at the end.
    """
    rows = max(2, 2 * round(math.sqrt(count * height / width) / 2))
    columns = max(2, -(-count // rows))
    way = [(0, 0)]
    for row in range(rows):
        line = [(column, row) for column in range(1, columns)]
        way += line if row % 2 == 0 else line[::-1]
    return way + [(0, row) for row in reversed(range(1, rows))]


def anchors(netlist: dict, tiles: Tiles = ECP5_85F) -> dict[str, str]:
    """The registers of a netlist, as yosys wrote it, that have a place, and which.

    There are none if there are no cores, or no room.
    """
    cells = top_of(netlist)["cells"]
    registers = {name: cell for name, cell in cells.items() if cell["type"] == "TRELLIS_FF"}
    held = {bit for cell in registers.values() for bit in cell["connections"]["Q"]}
    sizes, candidates = Counter(), defaultdict(list)
    for name, cell in cells.items():
        if core := _CORE.match(name):
            number = int(core[1])
            sizes[number] += 1
            # What a LUT drives goes where the LUT goes.
            if name in registers and held.issuperset(cell["connections"]["DI"]):
                candidates[number].append(name)
    if len(sizes) < 2:
        return {}

    # As few tiles as hold all, around the middle.
    area = area_of(Counter(cell["type"] for cell in cells.values()))
    share = max(taken(area), area.flip_flops) / tiles.cells
    if share > FULLEST:
        return {}
    wide, high = (round(len(side) * math.sqrt(share / DENSITY)) for side in (tiles.columns, tiles.rows))
    left, low = (len(tiles.columns) - wide) // 2, (len(tiles.rows) - high) // 2
    way = fields(len(sizes), wide, high)
    columns, rows = (1 + max(axis) for axis in zip(*way))
    placed: dict[str, str] = {}  # by place: a register has one of its own
    for k, number in enumerate(sorted(sizes)):
        column, row = way[k * len(way) // len(sizes)]
        names = sorted(candidates[number])
        wanted = min(len(names), -(-sizes[number] // CELLS_PER_ANCHOR))
        side = math.isqrt(max(0, wanted - 1)) + 1
        x = left + int((column + 0.5) * wide / columns) - side // 2
        y = low + int((row + 0.5) * high / rows) - side // 2
        for j in range(wanted):
            place = f"X{tiles.columns[x + j % side]}/Y{tiles.rows[y + j // side]}/{_PLACE}"
            placed.setdefault(place, names[j * len(names) // wanted])
    return {name: place for place, name in placed.items()}


def anchor(path: Path) -> None:
    """Gives the registers of a netlist in a file their places."""
    netlist = json.loads(path.read_text())
    cells = top_of(netlist)["cells"]
    for name, place in anchors(netlist).items():
        cells[name]["attributes"]["BEL"] = place
    path.write_text(json.dumps(netlist))
