"""Cycles of the larger configurations, by simulation: `make bench` prints them.

For each chain: cycles per tuple in steady state, with full windows, for different shares of pairs
that match. Cycles do not depend on the machine that simulates.
"""

import sys

import numpy as np
from tabulate import tabulate
from tqdm import tqdm

from hw.dimension import Dimension
from hw.joiner import JOINERS
from hw.ordering import Ordering
from hw.parameters import OPBLOCK_DIMS, Parameters
from hw.words import pack_boxes, pack_points

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
    Parameters("splitjoin"),
    Parameters("splitjoin", cores=64, segment=8, lanes=8, dims=KEY),
    *(
        Parameters("splitjoin", cores=16, segment=8, lanes=1, dims=KEY, ordering=Ordering.parse(ordering))
        for ordering in ("none", "tuples:64", "tuples:8", "tuples:1", "comparisons:4", "comparisons:1")
    ),
)
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
        taken = model.run(words, timestamps=True).taken
    full = 4 * parameters.capacity
    return float(taken[-1] - taken[full]) / (len(taken) - 1 - full)


def main() -> None:
    """Prints the table."""
    rows = []
    for parameters in tqdm(CHAINS, desc="chains", file=sys.stderr, leave=False):
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


if __name__ == "__main__":
    main()
