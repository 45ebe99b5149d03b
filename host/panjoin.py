"""A join by PanJoin's manager: rows in, joined rows out, over any number of BI-Sort devices.

::

    rows --> [ arrange, encode ] --> codes --> [ manager ] --> devices
                                                   |
    joined rows <-- [ recheck, gather ] <--- pairs +

The five steps of the paper: rows are collected here and in the manager, by count or by time; preprocessed
(arranged, encoded, cut into subwindows); sent; processed by the devices; and what they feed back, pairs or
ranges of their sorted arrays, becomes rows.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from .arrival import Arrivals
from .continuous import ContinuousSession
from .device import Device
from .encoding import HIGHEST
from .fit import Fit
from .manager import Manager, Tuples
from .runner import Stats
from .session import JoinResult
from .spec import Encoded, JoinSpec


class PanJoinSession(ContinuousSession):
    """A join over open BI-Sort `devices`, which are alike and are this session's alone.

    The devices decide the dimensions that they have, the manager decides the window; `lateness` is as in
    `ContinuousSession`, the other options are the `Manager`'s: `batch` tuples, or those of a `span` of time,
    are sent together, `late_buffer` late ones are kept aside for each subwindow, and with `ranges` devices
    answer with ranges. Codes are cut to a device's width by the span of the first rows: more pairs of rows
    far beyond it are left to the host. So are negated terms.
    """

    def __init__(
        self,
        spec: JoinSpec,
        devices: Sequence[Device],
        *,
        lateness: str | int | None = None,
        batch: int | None = None,
        span: int | None = None,
        late_buffer: int = 64,
        ranges: bool = True,
    ):
        values = [dim for dim in spec.dimensions if dim.role == "value"]
        super().__init__(spec, lateness, unchecked=range(len(values)))
        self._devices = devices
        self._options = {"batch": batch, "span": span, "late_buffer": late_buffer, "ranges": ranges}
        self._manager = self._new_manager()
        self._fit = Fit(values, devices[0].parameters.dims)
        self._spans: list[tuple[int, int]] | None = None

    def _new_manager(self) -> Manager:
        # Windows of rows get their rows in order.
        by_time = self._spec.window.kind == "time"
        lateness = (self._lateness or 0) if by_time else 0
        return Manager(self._devices, self._spec.window, lateness=lateness, **self._options)

    def _restart(self) -> None:
        self._manager.__exit__()
        self._manager = self._new_manager()

    def __enter__(self) -> "PanJoinSession":
        return self

    def __exit__(self, *exception) -> None:
        self._manager.__exit__()

    def explain(self) -> str:
        """Where each part of the join runs, and why."""
        urls = ", ".join(device.url for device in self._devices)
        window = "\n".join(f"{dim.text}: manager" for dim in self._spec.dimensions if dim.role != "value")
        fit = f"{self._fit.explain()}\n" if self._unchecked else ""
        return f"{self._spec.explain()}\non {urls}, by PanJoin's manager:\n{fit}{window}"

    def join(self, arrivals: Arrivals, *, watch: bool = False) -> JoinResult:
        """All pairs among `arrivals` whose later row is owned. There is nothing to `watch`."""
        encoded = self._spec.encode(arrivals)
        points, boxes = (np.arange(len(side.row)) for side in (encoded.points, encoded.boxes))
        # What was pushed before is on the devices no longer, and neither shall this be.
        self._restart()
        self._manager.push(*self._tuples(arrivals, encoded, points, boxes))
        point, box = self._manager.poll(last=True)
        self._restart()
        kept = self._spec.refine(arrivals, encoded, point, box, self._unchecked)
        r, s = encoded.points.row[point[kept]], encoded.boxes.row[box[kept]]
        stats = Stats(tuples=int(arrivals.r.own.sum()) + int(arrivals.s.own.sum()), pairs=len(r))
        self.stats += stats
        return JoinResult(r, s, stats)

    def finish(self) -> None:
        """Joins the rows that are still held back: no more will come."""
        super().finish()
        self._gather(*self._manager.poll(last=True))

    def poll(self) -> pa.Table:
        """The joined rows of everything pushed so far that have not been returned before."""
        self._gather(*self._manager.poll())
        return super().poll()

    def _met(self, new: Arrivals, encoded: Encoded) -> tuple[np.ndarray, np.ndarray]:
        points = new.r.index[encoded.points.row]
        boxes = new.s.index[encoded.boxes.row] * self._spec.disjuncts + encoded.boxes.disjunct
        self._manager.push(*self._tuples(new, encoded, points, boxes))
        return self._manager.found()

    def _kept_from(self) -> tuple[int, int]:
        r, s = (
            self._manager.first_row(side, count * boxes)
            for side, count, boxes in zip("rs", self._counts, (1, self._spec.disjuncts))
        )
        return r, s // self._spec.disjuncts

    def _tuples(
        self, arrivals: Arrivals, encoded: Encoded, points: np.ndarray, boxes: np.ndarray
    ) -> tuple[Tuples, Tuples]:
        """Points and boxes as the manager takes them; pairs name them by these numbers."""
        given, bounds = encoded.points, (encoded.boxes.lo, encoded.boxes.hi)
        if self._spans is None and (len(given.row) or len(encoded.boxes.row)):
            self._spans = [
                (0, int(HIGHEST)) if dim.negated else _span(codes, low, high)
                for dim, codes, low, high in zip(self._spec.dimensions, given.codes, *bounds)
            ]
        codes = self._fit.narrow(given.codes, *bounds, spans=self._spans)
        sides = []
        for side, row, name, lo, hi in (
            (arrivals.r, given.row, points, codes.points, ()),
            (arrivals.s, encoded.boxes.row, boxes, codes.lo, codes.hi),
        ):
            # Places are the order of arrival, whatever orders rows of equal time.
            time = side.time if self._spec.window.kind == "time" else side.place
            sides.append(Tuples(time[row], lo, hi, name, side.index[row], side.before[row]))
        return sides[0], sides[1]


def _span(*codes: np.ndarray) -> tuple[int, int]:
    """The smallest and largest code, and as much again on both sides.

    Ends of boxes that are open are no values.
    """
    values = np.concatenate(codes)
    inside = values[(values > 0) & (values < HIGHEST)]
    if not len(inside):
        return 0, 1
    low, high = int(inside.min()), int(inside.max())
    return max(0, low - (high - low) - 1), min(int(HIGHEST), high + (high - low) + 1)
