"""Cells and MHz of mergers, probers and all of `bisort`, for 1 to 16 records per cycle: `make engines`.

Cells are mapped by yosys for Virtex-6, as in `hw/area.py`; the clock is that of an ECP5-85F, placed and
routed and kept as in `hw/timing.py`.
"""

import argparse
import sys
from collections.abc import Sequence

from amaranth.lib import data, wiring
from tabulate import tabulate
from tqdm import tqdm

from . import route, timing, tools
from .area import mapped, taken
from .dimension import Dimension
from .flit_merger import FlitMerger
from .joiner import joiner
from .parameters import Parameters
from .pinned import emit_alone
from .prober import Prober
from .search import Search
from .verilog import whole

#: Tuples of 8 bytes.
DIMS = (Dimension.parse("equal32"),)
RECORD = data.StructLayout({"key": 32, "id": 32})
LANES = (1, 2, 4, 8, 16)
SEED = 1
#: From so many records per cycle on, all of bisort takes most of the chip's block RAMs.
CROWDED_LANES = 4
#: A search in small memories, so that the logic is what counts: the index of 128K records, batches of 1K.
PARTITION, PARTITIONS, BATCH = 128, 1024, 1024
ENGINES = {
    "merger": lambda lanes: FlitMerger(RECORD, lanes),
    "prober": lambda lanes: Prober(RECORD, lanes, BATCH, partition=PARTITION, partitions=PARTITIONS),
    "search": lambda lanes: Search(
        DIMS,
        "s",
        lanes,
        partition=PARTITION,
        partitions=PARTITIONS,
        banks=2,
        batch=BATCH,
        address_width=32,
    ),
    "bisort": lambda lanes: joiner(Parameters("bisort", 4, PARTITION * PARTITIONS, lanes, BATCH, DIMS)),
}


def row(name: str, lanes: int) -> tuple:
    """One line of the table."""

    def make() -> wiring.Component:
        return ENGINES[name](lanes)

    area = mapped(whole(make, name), name)
    options = route.CROWDED if name == "bisort" and lanes >= CROWDED_LANES else ()
    with timing.behind_pins(emit_alone(make), f"{name}, {lanes} records per cycle", options) as design:
        timed = design.timed(SEED)
    factors = (1, lanes, lanes * RECORD.size / 8000)
    rates = [timed.mhz and timed.mhz * factor for factor in factors]
    return (
        name,
        lanes,
        area.logic,
        area.ram,
        area.flip_flops,
        area.block_rams,
        area.luts / lanes,
        taken(timed.area),
        timed.area.flip_flops,
        timed.area.block_rams,
        *rates,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="engines")
    parser.add_argument("--only", nargs="+", choices=ENGINES, default=list(ENGINES), help="some of them")
    parser.add_argument(
        "--lanes", nargs="+", type=int, choices=LANES, default=LANES, help="records per cycle"
    )
    options = parser.parse_args(arguments)
    wanted = [(name, lanes) for name in options.only for lanes in options.lanes]
    rows = [row(*one) for one in tqdm(wanted, desc="engines", file=sys.stderr, leave=False)]
    headers = (
        *("engine", "records/cycle", "logic LUT", "RAM LUT", "FF", "BRAM", "LUT/record"),
        *("ECP5 LUT", "ECP5 FF", "ECP5 BRAM", "MHz", "M records/s", "GB/s"),
    )
    print(
        f"{RECORD.size // 8}-byte records with {RECORD['key'].width}-bit keys: cells on xc6v, mapped by "
        f"yosys {tools.yosys().version};\nECP5-85F, routed with one seed, asked for {timing.ASKED_MHZ} MHz, "
        "between registers that are counted too.\nThe search has two indexes of "
        f"{PARTITIONS} partitions and a batch of {BATCH}; the prober is a part of it.\n"
        f"All of bisort has windows of 4 subwindows of {PARTITION * PARTITIONS} tuples; with {CROWDED_LANES} "
        "records and more it is placed by\nnextpnr's static placer, anything else by its usual one.\n"
    )
    print(tabulate(rows, headers, floatfmt=".1f", missingval="no room"))


if __name__ == "__main__":
    main()
