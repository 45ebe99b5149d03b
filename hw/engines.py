"""What mergers cost for 1 to 16 records per cycle: `make engines` prints cells and MHz.

Cells are mapped by yosys for Virtex-6, as in `hw/area.py`; the clock is that of an ECP5-85F, placed and
routed and kept as in `hw/timing.py`.
"""

import sys

from amaranth.lib import data
from tabulate import tabulate
from tqdm import tqdm

from . import timing, tools
from .area import mapped
from .flit_merger import FlitMerger
from .pinned import emit_alone
from .verilog import whole

#: A tuple of 8 bytes.
RECORD = data.StructLayout({"key": 32, "id": 32})
LANES = (1, 2, 4, 8, 16)
SEED = 1
TOP = "merger"


def row(lanes: int) -> tuple:
    """One line of the table."""

    def merger() -> FlitMerger:
        return FlitMerger(RECORD, lanes)

    area = mapped(whole(merger, TOP), TOP)
    with timing.behind_pins(emit_alone(merger)) as design:
        timed = design.timed(SEED)
    return (
        lanes,
        area.logic,
        area.ram,
        area.flip_flops,
        area.luts / lanes,
        timing.taken(timed.area),
        timed.area.flip_flops,
        timed.mhz,
        timed.mhz * lanes / 1000,
        timed.mhz * lanes * RECORD.size / 8000,
    )


def main() -> None:
    """Prints the table."""
    rows = [row(lanes) for lanes in tqdm(LANES, desc="mergers", file=sys.stderr, leave=False)]
    headers = (
        *("records/cycle", "logic LUT", "RAM LUT", "FF", "LUT/record"),
        *("ECP5 LUT", "ECP5 FF", "MHz", "G records/s", "GB/s"),
    )
    print(
        f"Mergers of {RECORD.size // 8}-byte records with {RECORD['key'].width}-bit keys: cells on xc6v, mapped "
        f"by yosys {tools.yosys().version};\nECP5-85F, routed with one seed, asked for {timing.ASKED_MHZ} MHz, "
        "between registers that are counted too\n"
    )
    print(tabulate(rows, headers, floatfmt=".1f"))


if __name__ == "__main__":
    main()
