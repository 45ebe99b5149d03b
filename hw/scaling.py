"""The clock against the number of cores, up to a full chip: `make figures` draws it and prints the table.

It is Figure 18 of the handshake join paper, on an ECP5-85F. Every route is kept (see `hw/timing.py`): a run
that was stopped goes on where it was. It is drawn again after each seed and when it is stopped, and says of
how many seeds each point is.
"""

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib

from . import timing
from .area import KEY, PAPER, taken, writers
from .dimension import Dimension
from .errors import ToolError, TouchlineError
from .parameters import ARCHITECTURES, Parameters
from .timing import Design, Timed

matplotlib.use("Agg")  # needs no screen
import matplotlib.pyplot as plt

PICTURE = Path("docs/scaling.png")
SEEDS = 5
#: The fewest cores; then twice as many each time, until the chip is full.
FEWEST = 4
#: What a full chip is, as a share of its LUTs, or of its flip-flops if there are fewer left of these.
FULL = (0.85, 0.90)
#: The handshake join paper's clock on a Virtex-6, for up to 200 cores.
PUBLISHED_MHZ = (150, 170)
#: What is aimed at: the clock of any size, and the share of the clock of `REFERENCE` cores in a full chip.
TARGET_MHZ = 120
TARGET_SHARE = 0.9
REFERENCE = 8
#: How often the number of cores of a full chip is corrected.
_CORRECTIONS = 5


def variants() -> list[Parameters]:
    """The joiners of the figure, in any number of cores; `bisort` has its own in memory (`make engines`).

    Their cores make one comparison per cycle, as the paper's do.
    """
    # The blocks of `opblock` have no other dimensions than bands.
    dims = {"opblock": (Dimension.parse("band32"),)}
    return [
        replace(PAPER, architecture=architecture, lanes=1, dims=dims.get(architecture, KEY))
        for architecture in ARCHITECTURES
        if architecture != "bisort"
    ]


def share(design: Design) -> float:
    """The share of the chip's LUTs that a joiner takes, or of its flip-flops if that is larger.

    What writes into RAM takes the place of two LUTs, and of two flip-flops beside them.
    """
    area, room = design.packed()
    return max(taken(area) / room.logic, (area.flip_flops + writers(area)) / room.flip_flops)


def full(design: Callable[[Parameters], Design], parameters: Parameters) -> int:
    """How many cores fill the chip: estimated from two sizes, and corrected until it is true."""
    few, cores = FEWEST, 2 * FEWEST
    reached = share(design(replace(parameters, cores=cores)))
    per_core = (reached - share(design(replace(parameters, cores=few)))) / (cores - few)
    for _ in range(_CORRECTIONS):
        cores += round((sum(FULL) / 2 - reached) / per_core)
        reached = share(design(replace(parameters, cores=cores)))
        if FULL[0] <= reached <= FULL[1]:
            return cores
        per_core = reached / cores
    raise ToolError(
        f"no number of cores takes {FULL[0]:.0%} to {FULL[1]:.0%} of the cells of {timing.CHIP.name}: "
        f"{cores} take {reached:.1%}"
    )


def sizes(most: int) -> list[int]:
    """Numbers of cores from the fewest to those of a full chip."""
    found = [FEWEST]
    while 2 * found[-1] < most:
        found.append(2 * found[-1])
    return [*found, most]


def draw(rows: list[tuple[Parameters, list[Timed]]], path: Path) -> None:
    """The figure: a line per chain through the medians, and the range of the seeds. Without any, none."""
    most = max(len(found) for _, found in rows)
    if not most:
        return
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.axhspan(*PUBLISHED_MHZ, color="0.9", label="the paper's chain, Virtex-6")
    axes.axhline(TARGET_MHZ, color="0.6", linewidth=1, linestyle="dotted", label="target")
    for variant in variants():
        line = [
            (one.cores, [timed.mhz for timed in found])
            for one, found in rows
            if found and timing.median(found) and replace(one, cores=variant.cores) == variant
        ]
        if not line:
            continue
        cores, clocks = zip(*line)
        middle = [statistics.median(mhz) for mhz in clocks]
        [drawn] = axes.plot(cores, middle, marker="o", label=variant.architecture)
        axes.fill_between(cores, [min(mhz) for mhz in clocks], [max(mhz) for mhz in clocks], alpha=0.2)
        axes.annotate(f"{cores[-1]}", (cores[-1], middle[-1]), color=drawn.get_color(), va="bottom")
        for at, mhz, height in zip(cores, clocks, middle):
            if len(mhz) < most:
                axes.annotate(_seeds(len(mhz)), (at, height), fontsize="xx-small", va="top", ha="center")
    axes.set(xlabel=f"cores of {PAPER.segment} tuples per window", ylabel=f"MHz, {timing.CHIP.name}")
    title = f"median and range of {_seeds(most)}" if most > 1 else _seeds(most)
    fewer = any(0 < len(found) < most for _, found in rows)
    axes.set_title(f"{title}, or as many as a point says" if fewer else title, fontsize="medium")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:.0f}")
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _seeds(count: int) -> str:
    return f"{count} seeds" if count > 1 else "one seed"


def verdicts(rows: list[tuple[Parameters, list[Timed]]]) -> list[str]:
    """For each chain, whether the largest size is as fast as is aimed at, and if not, its slowest path."""
    lines = []
    for variant in variants():
        routes = {one.cores: found for one, found in rows if replace(one, cores=variant.cores) == variant}
        all_sizes = {cores: timing.median(found) for cores, found in routes.items()}
        clocks = {cores: mhz for cores, mhz in all_sizes.items() if mhz}
        if REFERENCE not in clocks:
            continue
        without = sorted(all_sizes.keys() - clocks.keys())
        most = max(clocks)
        left = clocks[most] / clocks[REFERENCE]
        met = min(clocks.values()) >= TARGET_MHZ and left >= TARGET_SHARE
        lines.append(
            f"{variant.architecture}: {clocks[REFERENCE]:.1f} MHz with {REFERENCE} cores, "
            f"{clocks[most]:.1f} with {most} ({left - 1:+.1%}); "
            f"{TARGET_MHZ} MHz in all sizes and {TARGET_SHARE - 1:+.0%} are {'met' if met else 'missed'}"
            + (f"; there is no room for {', '.join(map(str, without))}" if without else "")
        )
        slowest = min(routes[most], key=lambda one: one.mhz)
        if not met and slowest.path:
            lines.append(f"    with {most} cores {slowest.mhz:.1f} MHz: {' > '.join(slowest.path)}")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Routes what is not kept yet, draws the figure and prints the table."""
    try:
        seeds, cores, joiners = timing.chosen("figures", arguments, seeds=SEEDS, joiners=variants())
        with timing.designs() as design:
            wanted = [
                replace(one, cores=size) for one in joiners for size in cores or sizes(full(design, one))
            ]
            found = timing.timed(
                [design(one) for one in wanted], seeds, lambda found: draw(list(zip(wanted, found)), PICTURE)
            )
    except TouchlineError as error:
        print(f"figures: {error}", file=sys.stderr)
        return 2
    rows = list(zip(wanted, found))
    print(timing.caption(seeds))
    print(timing.table(rows))
    print("", *verdicts(rows), f"drawn: {PICTURE}", sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
