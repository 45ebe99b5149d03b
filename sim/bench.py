"""Cycles of the larger configurations, by simulation: `make bench` prints them.

For each joiner: cycles per tuple in steady state, with full windows, for different shares of pairs
that match. For joiners with trees: the latency of a pair, from 2 to 128 cores. For the gate of ScaleJoin: the
ready tuples that it puts out, from 2 to 16 inputs. Cycles do not depend on the machine that simulates.
`--architecture` measures one alone.
"""

import argparse
import sys

import numpy as np
from amaranth.sim import Simulator
from tabulate import tabulate
from tqdm import tqdm

from hw.dealing import Dealer
from hw.dimension import Dimension
from hw.joiner import JOINERS, joiner
from hw.ordering import Ordering
from hw.parameters import OPBLOCK_DIMS, Parameters
from hw.scale_gate import ScaleGate
from hw.socket import Kind, Tag
from hw.words import pack_boxes, pack_control, pack_points

from .library import load

KEY = (Dimension.parse("equal32"),)
BAND = (Dimension.parse("band32"),)
CHAINS = (
    Parameters(),
    Parameters(cores=16, segment=8, lanes=8, dims=KEY),
    Parameters(cores=64, segment=8, lanes=8, dims=KEY),
    Parameters(cores=64, segment=8, lanes=2, dims=KEY),
    Parameters(cores=64, segment=8, lanes=1, dims=KEY),
    Parameters("opblock", dims=OPBLOCK_DIMS),
    Parameters("opblock", cores=64, segment=8, lanes=8, dims=BAND),
    Parameters("opblock", cores=64, segment=8, lanes=1, dims=BAND),
    Parameters("lowlatency"),
    Parameters("lowlatency", cores=64, segment=8, lanes=8, dims=KEY),
    Parameters("splitjoin"),
    Parameters("splitjoin", cores=64, segment=8, lanes=8, dims=KEY),
    *(
        Parameters("splitjoin", cores=16, segment=8, lanes=1, dims=KEY, ordering=Ordering.parse(ordering))
        for ordering in ("none", "tuples:64", "tuples:8", "tuples:1", "comparisons:4", "comparisons:1")
    ),
    Parameters("scalejoin"),
    *(Parameters("scalejoin", cores=16, segment=8, lanes=lanes, dims=KEY, inputs=4) for lanes in (8, 1)),
)
#: Joiners whose latency grows with the levels of their trees, a window of two rows in each core.
TREES = tuple(
    Parameters(architecture, cores=2**k, segment=2, lanes=1, dims=(Dimension.parse("equal8"),))
    for architecture in ("splitjoin", "scalejoin")
    for k in range(1, 8)
)
#: Physical inputs of ScaleJoin's gate.
GATES = (2, 3, 4, 8, 16)
#: One pair in so many matches; 0 means none does.
SELECTIVITIES = (0, 250_000, 10_000, 1_000)
TUPLES = 20_000


def cycles_per_tuple(parameters: Parameters, selectivity: int, seed: int = 1) -> float:
    """Measured over tuples that find full windows."""
    rng = np.random.default_rng(seed)
    dims = parameters.dims
    is_s = rng.random(TUPLES) < 0.5
    r_count, s_count = int((~is_s).sum()), int(is_s.sum())
    # The first dimension decides: keys of R are even; without matches those of S are odd.
    span = selectivity or 1
    key = 2 * rng.integers(0, span, r_count).astype(np.uint64)
    probe = 2 * rng.integers(0, span, s_count).astype(np.uint64) + np.uint64(not selectivity)
    zero, high = np.zeros(TUPLES, np.uint64), np.full(TUPLES, 255, np.uint64)
    points = [key, *[zero[:r_count]] * (len(dims) - 1)]
    lo = [probe, *[zero[:s_count]] * (len(dims) - 1)]
    hi = [probe, *[high[:s_count]] * (len(dims) - 1)]
    library = load(parameters)
    words = np.empty((TUPLES, library.tuple_words), np.uint32)
    words[~is_s] = pack_points(dims, np.arange(r_count), points)
    words[is_s] = pack_boxes(dims, np.arange(s_count), lo, hi)
    with library.open() as model:
        taken = model.run(Dealer(parameters).deal(words), timestamps=True).taken
    full = 4 * parameters.capacity
    return float(taken[-1] - taken[full]) / (len(taken) - 1 - full)


def latencies(parameters: Parameters) -> list[int]:
    """Cycles until the pair of a point with the newest box is out, in the first row and in a full window.

    A mark comes behind the point: where tuples wait for others to be ready, it lets the point go on.
    Amaranth's simulator is slow, but has nothing to compile, which takes longer for many cores.
    """
    dims, dealer, dut = parameters.dims, Dealer(parameters), joiner(parameters)
    found = []

    async def testbench(ctx):
        mark, flush = (pack_control(dims, kind) for kind in (Kind.MARK, Kind.FLUSH))
        point = pack_points(dims, np.zeros(1, int), [np.ones(1, np.uint64)])
        ctx.set(dut.results.ready, 1)
        # One row that the point meets, or the last of a full window.
        for boxes in (parameters.cores - 1, parameters.capacity + 1):
            lo = (np.arange(boxes) == boxes - 1).astype(np.uint64)
            words = [pack_boxes(dims, np.arange(boxes), [lo], [lo]), mark, point, mark, flush]
            left, sent, begun, marks = list(dealer.deal(np.concatenate(words))), 0, 0, 0
            for cycle in range(100 * (boxes + 10)):
                # The point waits until all before it is out.
                offers = sent < len(left) and (sent <= boxes or marks)
                ctx.set(dut.tuples.valid, offers)
                if offers:
                    ctx.set(dut.tuples.payload.as_value(), int.from_bytes(left[sent].tobytes(), "little"))
                    if ctx.get(dut.tuples.ready):
                        if sent == boxes + (1 if parameters.inputs is None else 2):
                            begun = cycle
                        sent += 1
                if ctx.get(dut.results.valid):
                    tag = ctx.get(dut.results.payload.tag)
                    marks += tag == Tag.MARK
                    if tag == Tag.PAIR:
                        found.append(cycle - begun)
                if marks == 2 and sent == len(left):
                    break
                await ctx.tick()
            ctx.set(dut.tuples.valid, 0)
            await ctx.tick()

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    return found


def gate_rate(inputs: int, burst: int, count: int = 400) -> float:
    """Ready tuples per cycle of a gate whose inputs, in turn, have `burst` tuples that follow each other."""
    dut = ScaleGate(8, inputs, 2 * burst)
    numbers = np.arange(2 * count * inputs)
    left = [iter(numbers[numbers // burst % inputs == k].tolist()) for k in range(inputs)]
    given = []  # cycles

    async def testbench(ctx):
        ctx.set(dut.output.ready, 1)
        moved, cycle = [True] * inputs, 0
        while len(given) < count:
            for port, own, move in zip(dut.inputs, left, moved):
                ctx.set(port.valid, 1)
                if move:
                    ctx.set(port.payload.number, next(own))
            moved = [ctx.get(port.ready) for port in dut.inputs]
            if ctx.get(dut.output.valid):
                given.append(cycle)
            await ctx.tick()
            cycle += 1

    simulator = Simulator(dut)
    simulator.add_clock(1e-6)
    simulator.add_testbench(testbench)
    simulator.run()
    return (count - 1) / (given[-1] - given[0])


def agrees(parameters: Parameters, first: int, full: int) -> bool:
    """Whether latencies are what the docstrings say: pairs of ScaleJoin may wait for other elements."""
    kind = JOINERS[parameters.architecture]
    least, most = kind.latency(parameters), kind.processing_latency(parameters)
    return full == most and (first == least or (parameters.inputs is not None and least < first <= most))


def main() -> int:
    """Prints the tables; 1 if a latency is not what its formula says."""
    parser = argparse.ArgumentParser(description="Cycles per tuple, and latency, in simulation.")
    known = sorted({parameters.architecture for parameters in CHAINS})
    parser.add_argument("--architecture", choices=known, help="one alone (default: all)")
    wanted = parser.parse_args().architecture
    chains, trees = (
        [parameters for parameters in each if wanted in (None, parameters.architecture)]
        for each in (CHAINS, TREES)
    )
    rows = []
    for parameters in tqdm(chains, desc="chains", file=sys.stderr, leave=False):
        rows.append(
            (
                parameters.architecture,
                parameters.cores,
                parameters.segment,
                parameters.lanes,
                ",".join(map(str, parameters.dims)),
                parameters.ordering or "",
                JOINERS[parameters.architecture].latency(parameters),
                JOINERS[parameters.architecture].flush_cycles(parameters),
                *(cycles_per_tuple(parameters, selectivity) for selectivity in SELECTIVITIES),
            )
        )
    matching = [f"1:{selectivity:,}" if selectivity else "no match" for selectivity in SELECTIVITIES]
    sizes = ("architecture", "cores", "segment", "lanes", "dimensions", "ordering")
    headers = (*sizes, "latency", "flush", *matching)
    print("Cycles: latency of a pair, a flush, and per tuple by the share of pairs that match\n")
    print(tabulate(rows, headers, floatfmt=".3f"))
    rows, wrong = [], []
    for parameters in tqdm(trees, desc="trees", file=sys.stderr, leave=False):
        kind, measured = JOINERS[parameters.architecture], latencies(parameters)
        formulas = kind.latency(parameters), kind.processing_latency(parameters)
        rows.append((parameters.architecture, parameters.cores, *formulas, *measured))
        if not agrees(parameters, *measured):
            wrong.append(f"{parameters.architecture} with {parameters.cores} cores")
    if rows:
        print("\nCycles until the pair with the newest tuple is out: by the formulas, and as measured\n")
        headers = ("architecture", "cores", "first row", "full window", "measured", "measured")
        print(tabulate(rows, headers))
    if wanted in (None, "scalejoin"):
        print("\nReady tuples per cycle out of ScaleJoin's gate: inputs send in turn, so many at a time\n")
        rows = [(inputs, gate_rate(inputs, 1), gate_rate(inputs, 8)) for inputs in GATES]
        print(tabulate(rows, ("inputs", "1", "8"), floatfmt=".3f"))
    for which in wrong:
        print(f"{which} does not take what the formula says")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
