"""Relative dynamic power of a chain at equal throughput, by its number of cores: `make power` prints it.

::

    joiner -> [ yosys ] -> cells -> [ Verilator ] -> how often each net toggles
                             |                            x
                             +---------------> weight of each net  =  energy per tuple

The handshake join paper, section 6.5, asks which number of cores joins windows of 100 tuples at 500 ktuples/s
with the least power. Cores that scan one tuple per cycle do it at a clock of 50 MHz divided by their number.

The energy of a toggle is taken as proportional to what its net drives: 1 for the net itself and 1 for each
LUT or flip-flop that it reaches. An address or enable of a RAM reaches every LUT that the RAM is made of. The
clock toggles twice per cycle and reaches slices: eight flip-flops, or four LUTs of RAM, share a clock pin.
Nets settle without delay, so glitches are not counted; the length of wires is not known. The sum is no power
in watts: it compares circuits of the same kind.
"""

import re
import sys
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from hw import verilog
from hw.area import PAPER, RAM_LUTS, Area, area_of
from hw.dimension import Dimension
from hw.netlist import Netlist, synthesise
from hw.parameters import Parameters
from hw.words import pack_boxes, pack_points

from .library import NETLIST_FLAGS, Library, build

FAMILY = "xc6v"
WINDOW = 100
THROUGHPUT = 500_000
#: The paper's Table 2: cores, dynamic and area-weighted static power in mW.
PUBLISHED = {1: (100, 68), 2: (64, 69), 5: (62, 88), 10: (68, 120)}
#: Keys are drawn from so many values, as in the papers' benchmark.
KEYS = 10_000
TUPLES = 1_000

#: What shares the clock pin of a slice of a Virtex-6 (UG364).
SLICE_FLIP_FLOPS = 8
SLICE_LUTS = 4

_CLOCK = "clk"
_DATA_PIN = re.compile(r"D(I\w*)?\Z")


@dataclass(frozen=True)
class Activity:
    """How often each net of a netlist changed, and what a change of it weighs."""

    cycles: int
    taken: np.ndarray  #: the cycle in which each word went in
    names: tuple[str, ...]
    toggles: np.ndarray
    weights: np.ndarray
    area: Area

    @property
    def data(self) -> int:
        """Weighted toggles of all nets but the clock."""
        return int(self.toggles @ self.weights)

    @property
    def clock(self) -> float:
        """Weighted toggles of the clock."""
        slices = self.area.flip_flops / SLICE_FLIP_FLOPS + self.area.ram / SLICE_LUTS
        return 2 * self.cycles * (1 + slices)


def watch(
    netlist: Netlist, name: str, dims: tuple[Dimension, ...], words: np.ndarray, warm: int = 0
) -> Activity:
    """What toggles in the netlist of a joiner, the module `name`, while it takes `words[warm:]`."""
    nets = _nets(netlist.module)
    weights = _weights(netlist.module)
    del nets[netlist.module["ports"][_CLOCK]["bits"][0]]
    top = f"{name}_watched"
    text = "\n".join([netlist.verilog, _watching(netlist.module, name, top, list(nets.values()))])
    library = Library(build(text, top, dims, len(nets), NETLIST_FLAGS), top, len(nets))
    with library.open() as model:
        model.run(words[:warm])
        run = model.run(words[warm:], timestamps=True, bucket=1 << 12)
    return Activity(
        run.cycles,
        run.taken,
        tuple(nets.values()),
        run.activity.sum(axis=0, dtype=np.int64),
        np.array([weights[bit] for bit in nets], np.int64),
        area_of(Counter(cell["type"] for cell in netlist.module["cells"].values())),
    )


def _nets(module: dict) -> dict[int, str]:
    """For each net its name in Verilog, by its number in the netlist."""
    names = {}
    for name, wire in module["netnames"].items():
        escaped = "\\" + name.removeprefix("\\") + " "
        offset = wire.get("offset", 0)
        for index, bit in enumerate(wire["bits"]):
            if isinstance(bit, int):  # constants are letters
                names.setdefault(bit, escaped + (f"[{offset + index}]" if len(wire["bits"]) > 1 else ""))
    return names


def _weights(module: dict) -> Counter:
    """What a toggle of each net weighs: itself, and the LUTs and flip-flops that it reaches."""
    weights = Counter(bit for bit in _nets(module))
    for cell in module["cells"].values():
        for port, bits in cell["connections"].items():
            if cell["port_directions"][port] == "input":
                reached = 1 if _DATA_PIN.match(port) else RAM_LUTS.get(cell["type"], 1)
                for bit in bits:
                    weights[bit] += reached
    return weights


def _watching(module: dict, name: str, top: str, nets: list[str]) -> str:
    """Verilog of the module `name`, but that its `activity` says which nets differ from the last cycle."""
    ports = {port: details for port, details in module["ports"].items() if port != "activity"}
    lines = [f"module {top}("]
    for port, details in ports.items():
        lines.append(f"{details['direction']} [{len(details['bits']) - 1}:0] {port},")
    lines += [
        f"output [{len(nets) - 1}:0] activity);",
        f"{name} netlist({', '.join(f'.{port}({port})' for port in ports)});",
        f"wire [{len(nets) - 1}:0] now;",
        f"reg [{len(nets) - 1}:0] last;",
        f"always @(posedge {_CLOCK}) last <= now;",
        "assign activity = now ^ last;",
        *(f"assign now[{index}] = netlist.{net};" for index, net in enumerate(nets)),
        "endmodule",
    ]
    return "\n".join(lines)


def chain(cores: int) -> Parameters:
    """The paper's chain for a window of 100 tuples: one comparison per core and cycle."""
    return replace(PAPER, cores=cores, segment=WINDOW // cores, lanes=1)


def measure(parameters: Parameters, tuples: int = TUPLES, seed: int = 1) -> Activity:
    """What toggles in a chain while tuples pass its full windows as fast as it takes them."""
    netlist = synthesise(verilog.emit(parameters), parameters.name, FAMILY)
    warm = 2 * parameters.capacity
    rng = np.random.default_rng(seed)
    keys = rng.integers(0, KEYS, warm + tuples).astype(np.uint64)
    points, boxes = keys[::2], keys[1::2]
    r = pack_points(parameters.dims, np.arange(len(points)), [points])
    s = pack_boxes(parameters.dims, np.arange(len(boxes)), [boxes], [boxes])
    words = np.empty((len(keys), r.shape[1]), np.uint32)
    words[::2], words[1::2] = r, s
    return watch(netlist, parameters.name, parameters.dims, words, warm)


def main() -> None:
    """Prints the table, and which number of cores takes the least."""
    measured = {
        cores: measure(chain(cores)) for cores in tqdm(PUBLISHED, desc="chains", file=sys.stderr, leave=False)
    }
    one = measured[1]
    dynamic_part, static_part = PUBLISHED[1]
    whole = dynamic_part + static_part
    rows, weighted = [], {}
    for cores, (dynamic, static) in PUBLISHED.items():
        activity = measured[cores]
        cycles = (activity.taken[-1] - activity.taken[0]) / (len(activity.taken) - 1)
        data, clock = (part / (one.data + one.clock) for part in (activity.data, activity.clock))
        area = activity.area.luts / one.area.luts
        weighted[cores] = (dynamic_part * (data + clock) + static_part * area) / whole
        rows.append(
            (
                cores,
                THROUGHPUT * cycles / 1e6,
                activity.area.luts,
                activity.area.flip_flops,
                data,
                clock,
                data + clock,
                area,
                weighted[cores],
                dynamic / dynamic_part,
                static / static_part,
                (dynamic + static) / whole,
            )
        )
    headers = "cores,MHz,LUT,FF,data,clock,dynamic,area,weighted,paper: dynamic,area,weighted"
    print(
        f"Relative power of two windows of {WINDOW} at {THROUGHPUT:,} tuples/s on {FAMILY}; one core is 1\n"
        "dynamic: weighted toggles per tuple, of data and clock; area: LUTs, which static power follows;\n"
        f"weighted: both, in the paper's proportion for one core, {dynamic_part} to {static_part}\n"
    )
    print(tabulate(rows, headers.split(","), floatfmt=".2f"))
    least = min(weighted, key=weighted.get)
    published = min(PUBLISHED, key=lambda cores: sum(PUBLISHED[cores]))
    print(f"\nThe least by area and activity: {least} cores here, {published} in the paper.")


if __name__ == "__main__":
    main()
