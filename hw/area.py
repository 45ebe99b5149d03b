"""What joiners cost on the papers' chip family: a table of cells, mapped by yosys for Virtex-6.

`make area` prints it. Every LUT cell counts as one, also two that would share a LUT6 once packed;
LUTs used as RAM or shift register are added. The hierarchy is kept, so that a core is mapped once.
"""

import json
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from . import tools
from .dimension import Dimension
from .parameters import OPBLOCK_DIMS, Parameters
from .verilog import emit

SYNTHESIS_SECONDS = 900
#: The chip of the handshake join paper, an XC6VLX760.
CHIP_LUTS = 474_240

#: How many LUTs each primitive takes that is made of them (Virtex-6 libraries guide, UG623).
_RAM_LUTS = {
    "RAM32M": 4,
    "RAM64M": 4,
    "RAM32X1D": 2,
    "RAM64X1D": 2,
    "RAM128X1D": 4,
    "RAM32X1S": 1,
    "RAM64X1S": 1,
    "RAM128X1S": 2,
    "RAM256X1S": 4,
    "SRL16E": 1,
    "SRLC16E": 1,
    "SRLC32E": 1,
}

KEY = (Dimension.parse("equal32"),)
WITH_WINDOW = (*KEY, Dimension.parse("at_least32"), Dimension.parse("at_most32"))
CORES = (4, 16, 64, 200)
#: The paper's configuration: 8 tuples per segment, a 32-bit key compared for equality.
PAPER = Parameters(segment=8, lanes=8, dims=KEY)
#: What programmable blocks cost against cores that are built for the same tests.
PROGRAMMABILITY = [
    replace(PAPER, architecture=architecture, cores=16, lanes=lanes, dims=dims)
    for dims in ((Dimension.parse("band32"),), OPBLOCK_DIMS)
    for lanes in (PAPER.segment, 1)
    for architecture in ("handshake", "opblock")
]


@dataclass(frozen=True)
class Area:
    """Cells of one joiner."""

    logic: int  #: LUTs that compute
    ram: int  #: LUTs that store
    flip_flops: int
    block_rams: int

    @property
    def luts(self) -> int:
        """All LUTs."""
        return self.logic + self.ram


def measure(parameters: Parameters) -> Area:
    """Maps a joiner for Virtex-6 and counts its cells."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "top.v").write_text(emit(parameters))
        # Ports would become pads, but a joiner sits inside a larger design.
        (folder / "map.ys").write_text(
            "read_verilog top.v\n"
            f"synth_xilinx -family xc6v -ise -noiopad -noclkbuf -top {parameters.name}\n"
            "tee -o cells.json stat -json\n"
        )
        tools.run(tools.yosys(), [folder / "map.ys"], cwd=folder, seconds=SYNTHESIS_SECONDS)
        cells = json.loads((folder / "cells.json").read_text())["design"]["num_cells_by_type"]
    return Area(
        logic=sum(count for cell, count in cells.items() if cell in {f"LUT{k}" for k in range(1, 7)}),
        ram=sum(luts * cells.get(cell, 0) for cell, luts in _RAM_LUTS.items()),
        flip_flops=sum(count for cell, count in cells.items() if cell.startswith("FD")),
        block_rams=sum(count for cell, count in cells.items() if cell.startswith("RAMB")),
    )


def main() -> None:
    """Prints the table."""
    rows = []
    configurations = [
        replace(PAPER, cores=cores, lanes=lanes, dims=dims)
        for dims in (KEY, WITH_WINDOW)
        for lanes in (PAPER.segment, 1)
        for cores in CORES
    ]
    configurations += PROGRAMMABILITY
    for parameters in tqdm(configurations, desc="mapping", file=sys.stderr, leave=False):
        area = measure(parameters)
        rows.append(
            (
                parameters.architecture,
                parameters.cores,
                parameters.segment // parameters.lanes,
                ",".join(map(str, parameters.dims)),
                area.logic,
                area.ram,
                area.luts,
                area.flip_flops,
                area.block_rams,
                area.luts / parameters.cores,
                f"{area.luts / CHIP_LUTS:.1%}",
            )
        )
    headers = "architecture,cores,cycles/tuple,dimensions,logic LUT,RAM LUT,LUT,FF,BRAM,LUT/core,of XC6VLX760"
    print(f"xc6v, mapped by yosys {tools.yosys().version}, {PAPER.segment} tuples per segment, 32-bit ids\n")
    print(tabulate(rows, headers.split(","), floatfmt=".1f"))


if __name__ == "__main__":
    main()
