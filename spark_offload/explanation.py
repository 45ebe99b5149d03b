"""Explanation: a plan as text and as a small table, in the form that users of spark-rapids know."""

from dataclasses import dataclass

from tabulate import tabulate

from host.spec import JoinSpec
from hw.parameters import Parameters
from hw.region import Region

from .placement import Placement


@dataclass(frozen=True)
class Estimate:
    """What is known of the rows: counted, or read from the files."""

    rows: int  #: of both streams
    halo: int  #: that tasks read besides
    tasks: int
    live: float  #: rows of a stream that a window holds on average

    @property
    def overhead(self) -> float:
        """Rows read besides, as a share of all rows."""
        return self.halo / max(self.rows, 1)

    def runs(self, parameters: Parameters) -> tuple[int, int]:
        """About how many tiles a device goes through, and in the time of how many tuples."""
        each = (self.rows + self.halo) / self.tasks
        if self.live <= parameters.capacity:
            tiles, moved = 1, each
        else:
            tiles = max(1, -(-int(each / 2) // parameters.capacity))
            moved = tiles * (2 * parameters.capacity + self.live)
        return tiles * self.tasks, int((moved + tiles * parameters.capacity) * self.tasks)


def cycles_per_tuple(parameters: Parameters) -> int | None:
    """About how many a tuple takes in full windows: a core's rows; None if that is up to what it finds."""
    match parameters.architecture:
        case "bisort":
            return None
        case "lowlatency":
            longer = max(parameters.segment, parameters.s_segment)
            return None if parameters.index else max(-(-longer // parameters.lanes), 2)
        case "splitjoin" | "scalejoin":
            return Region.cycles(parameters)
    return parameters.segment // parameters.lanes


def explained(
    spec: JoinSpec,
    how: str,
    placement: Placement,
    tasks: str,
    source: str,
    estimate: Estimate | str,
    writer: str | None = None,
    streaming: bool = False,
) -> str:
    """Where each part of a join runs and why, what does not run there, and what that takes.

    `tasks` says how many there are, `source` how rows come to them, `writer` who writes Parquet for them.
    """
    lines, table = [], [("join", placement.runs_on, placement.why)]
    if placement.refused:
        device, _, reason = placement.refused.partition(" because ")
        lines.append(f"!join <{how}> cannot run on {device} because {reason}; it runs on {placement.runs_on}")
    else:
        lines.append(f"*join <{how}> will run on {placement.runs_on}")
    for k, dim in enumerate(spec.dimensions):
        what = "window" if dim.role != "value" else "condition"
        if k in placement.missing:
            reason = "no device dimension is free and as general"
            lines.append(f"  !{what} <{dim.text}> cannot run on {placement.runs_on} because {reason}")
            table.append((dim.text, "the host", reason))
        else:
            lines.append(f"  *{what} <{dim.text}> will run on {placement.runs_on}")
            again = "" if dim.exact else "; the host rechecks pairs, because codes are coarser than values"
            table.append((dim.text, placement.runs_on, f"point in box{again}"))
    for term in spec.left:
        lines.append(f"  !condition <{term.text}> cannot run on {placement.runs_on} because {term.reason}")
        table.append((term.text, "Spark", f"on each pair, because {term.reason}"))
    total = 1 + len(spec.dimensions) + len(spec.left)
    lines.append(f"accelerated {sum('*' in line[:3] for line in lines)} out of {total}")
    for part, told in (("rows", source), ("write_parquet", writer)):
        if told:
            who, _, why = told.partition(", because ")
            table.append((part, who, why))
    if how != "inner":
        decides = f"Spark, then a {'second state' if streaming else 'task'}" if spec.left else "tasks"
        table.append((f"{how} rows without a partner", decides, "as they leave their window"))
    if isinstance(estimate, Estimate):
        halo = f"{estimate.halo:,} rows, {estimate.overhead:.1%} of {estimate.rows:,}"
        told = [("tasks", f"{estimate.tasks:,}", ""), ("halo", halo, "what tasks read besides their own")]
        if parameters := placement.parameters:
            tiles, tuples = estimate.runs(parameters)
            live = f"windows hold about {estimate.live:,.0f} rows, the device {parameters.capacity:,}"
            each = cycles_per_tuple(parameters)
            cycles = (
                ("not known", "they depend on what is found")
                if each is None
                else (f"about {tuples * each:,}", "")
            )
            told += [("tiles", f"about {tiles:,}", live), ("cycles", *cycles)]
        table += told
    else:
        table.append(("halo, tiles, cycles", "not known yet", estimate))
    small = tabulate(table, ("part", "runs on", "why"), disable_numparse=True)
    return "\n".join([placement.detail, tasks, *lines, "", small])
