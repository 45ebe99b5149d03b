"""What joiners cost on the papers' chip family: a table of cells, mapped by yosys for Virtex-6.

`make area` prints it. Every LUT cell counts as one, also two that would share a LUT6 once packed;
LUTs used as RAM or shift register are added. The hierarchy is kept, so that a core is mapped once. What has
been mapped is kept in the cache: a run that was stopped goes on where it was.
"""

import json
import os
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from tabulate import tabulate
from tqdm import tqdm

from . import tools
from .dimension import Dimension
from .kept import kept
from .netlist import SYNTHESIS
from .parameters import OPBLOCK_DIMS, Parameters
from .verilog import emit

#: The chip of the handshake join paper, an XC6VLX760.
CHIP_LUTS = 474_240

#: How many LUTs each primitive takes that is made of them (Virtex-6 libraries guide, UG623; ECP5 family data
#: sheet, FPGA-DS-02012).
RAM_LUTS = {
    "TRELLIS_DPR16X4": 4,
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
#: The paper's configuration: 8 tuples per segment, a 32-bit key compared for equality.
PAPER = Parameters(segment=8, lanes=8, dims=KEY)
#: What is mapped, and as far as it is small placed and routed: the paper's chain ...
CONFIGURATIONS = tuple(
    replace(PAPER, cores=cores, lanes=lanes, dims=dims)
    for dims in (KEY, WITH_WINDOW)
    for lanes in (PAPER.segment, 1)
    for cores in (4, 16, 64, 200)
) + tuple(
    # ... and what programmable blocks cost against cores that are built for the same tests.
    replace(PAPER, architecture=architecture, cores=16, lanes=lanes, dims=dims)
    for dims in ((Dimension.parse("band32"),), OPBLOCK_DIMS)
    for lanes in (PAPER.segment, 1)
    for architecture in ("handshake", "opblock")
)
CONFIGURATIONS += tuple(
    # ... and trees and expedited tuples against the paper's chain, whose cores of as many tuples are above.
    replace(PAPER, architecture=architecture, cores=cores, lanes=lanes, dims=dims)
    for architecture in ("splitjoin", "lowlatency", "scalejoin")
    for dims in (KEY, WITH_WINDOW)
    for lanes in (PAPER.segment, 1)
    for cores in (4, 16, 64)
)


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


def writers(area: Area) -> int:
    """LUTs of an ECP5 that write into those that store: two for every four."""
    return area.ram // 2


def taken(area: Area) -> int:
    """LUTs of an ECP5 that nothing else can use."""
    return area.luts + writers(area)


def measure(parameters: Parameters) -> Area:
    """Maps a joiner for Virtex-6 and counts its cells."""
    return mapped(emit(parameters), parameters.name)


def mapped(text: str, top: str) -> Area:
    """Maps the module `top` of Verilog for Virtex-6 and counts its cells, unless they are known."""
    commands = SYNTHESIS["xc6v"].format(top=top)

    def make() -> dict:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            (folder / "top.v").write_text(text)
            tools.run_yosys(f"read_verilog top.v\n{commands}tee -o cells.json stat -json\n", cwd=folder)
            return asdict(area_of(cells_of(folder / "cells.json")))

    return Area(**kept(make, text, commands, tools.yosys().version))


def cells_of(stat: Path) -> dict[str, int]:
    """How many cells of each type a design has, from what yosys' `stat -json` wrote."""
    return json.loads(stat.read_text())["design"]["num_cells_by_type"]


def area_of(cells: dict[str, int]) -> Area:
    """The area of so many cells of each type, of any family."""

    def total(pattern: str) -> int:
        return sum(number for cell, number in cells.items() if re.fullmatch(pattern, cell))

    return Area(
        # A carry cell of an ECP5 is two LUTs.
        logic=total("LUT[1-6]") + 2 * total("CCU2C"),
        ram=sum(luts * cells.get(cell, 0) for cell, luts in RAM_LUTS.items()),
        flip_flops=total("FD.*|TRELLIS_FF"),
        block_rams=total("RAMB.*|DP16KD"),
    )


#: The columns of `columns`.
HEADERS = (
    *("architecture", "cores", "cycles/tuple", "dimensions"),
    *("logic LUT", "RAM LUT", "LUT", "FF", "BRAM", "LUT/core", "FF/core", "LUT/tuple", "of chip"),
)


def columns(parameters: Parameters, area: Area, share: float) -> tuple:
    """What a table says about a joiner and its cells, which take a share of a chip.

    In total, for each core, and for each tuple that the window of a stream holds.
    """
    return (
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
        area.flip_flops / parameters.cores,
        area.luts / parameters.capacity,
        f"{share:.1%}",
    )


def main() -> None:
    """Prints the table."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        verilog = ((emit(parameters), parameters.name) for parameters in CONFIGURATIONS)
        mapping = pool.map(lambda design: mapped(*design), verilog)
        bar = tqdm(mapping, desc="mapping", total=len(CONFIGURATIONS), file=sys.stderr, leave=False)
        rows = [columns(p, area, area.luts / CHIP_LUTS) for p, area in zip(CONFIGURATIONS, bar)]
    print(
        f"xc6v, mapped by yosys {tools.yosys().version}, {PAPER.segment} tuples per segment, 32-bit ids; "
        "the chip is an XC6VLX760\n"
    )
    print(tabulate(rows, HEADERS, floatfmt=".1f"))


if __name__ == "__main__":
    main()
