"""A session: a join on a device, for finite streams (`join`) and continuous ones (`push`, `poll`).

Data flows one way: arrivals -> points and boxes -> the device's codes -> words -> device -> pairs
-> recheck. A handshake chain keeps its tuples until others push them out, so each run ends with a
flush, and a continuous session sends what is still live again with the next rows. On a chain of OP-Blocks
each run begins with its program. Nothing of a run is handed on before its mark has come, so a run that a
device dies in is run again, there or elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from hw.errors import DataError, SpecError
from hw.parameters import Parameters
from hw.socket import Tag

from .arrival import Arrivals, Side, in_order
from .batches import batches, end
from .chain_fit import ChainFit, encode
from .device import Device
from .fit import Fit
from .output import joined_rows
from .runner import Runner, Stats
from .spec import JoinSpec
from .tiling import Reach
from .window import Window


@dataclass(frozen=True)
class JoinResult:
    """Pairs as row numbers in `arrivals.r.rows` and `arrivals.s.rows`, in any order unless asked."""

    r: np.ndarray
    s: np.ndarray
    stats: Stats
    activity: np.ndarray | None = None  #: [stretch of time, core] pairs found, if watched

    def in_order(self, arrivals: Arrivals) -> "JoinResult":
        """The same pairs by (later arrival, earlier arrival)."""
        order = in_order(arrivals, self.r, self.s)
        return replace(self, r=self.r[order], s=self.s[order])


class Session:
    """A join on an open device; `spares` are devices like it that take over when it is lost.

    If `ordered`, pairs and rows come by (later arrival, earlier arrival).
    """

    def __init__(
        self, device: Device, spec: JoinSpec, spares: Sequence[Device] = (), *, ordered: bool = False
    ):
        self._runner = Runner(device, spares)
        self._spec = spec
        self._ordered = ordered
        self._fit = _fit(spec, device.parameters)
        self._kept: Arrivals | None = None  # rows that later ones may still join
        self._newest: int | None = None
        self._counts = (0, 0)
        self._waiting: list[Arrivals] = []
        self._ready: list[pa.Table] = []
        self.stats = Stats()  #: of everything this session has joined

    def explain(self) -> str:
        """Where each part of the join runs, and why."""
        return f"{self._spec.explain()}\non {self._runner.device.url}:\n{self._fit.explain()}"

    @property
    def missing(self) -> frozenset[int]:
        """The join's dimensions that the device does not take, so that the host must recheck them."""
        return self._fit.missing

    def join(self, arrivals: Arrivals, *, watch: bool = False) -> JoinResult:
        """All pairs among `arrivals` whose later row is owned."""
        fit, encoded = encode(self._spec, self._fit, arrivals)
        point_place = arrivals.r.place[encoded.points.row]
        box_place = arrivals.s.place[encoded.boxes.row]
        reach = Reach.of(self._spec.dimensions, encoded, point_place, box_place)
        pairs: list[tuple[np.ndarray, np.ndarray]] = []
        stats = Stats(tuples=int(arrivals.r.own.sum()) + int(arrivals.s.own.sum()))
        activity = []
        new = (
            int(np.searchsorted(np.maximum.accumulate(own[rows]), True))
            for own, rows in (
                (arrivals.r.own, encoded.points.row),
                (arrivals.s.own, encoded.boxes.row),
            )
        )
        dims = self._runner.device.parameters.dims
        for batch in batches(fit, dims, encoded, reach, *new):
            words = np.concatenate([*fit.instructions(batch.codes), batch.words, end(dims)])
            for exchange in self._runner.run(words, watch=watch, count=batch.tuples):
                stats += self._runner.account(exchange)
                if watch:
                    activity.append(exchange.activity)
                results = self._runner.results(exchange)
                found = results.tag == Tag.PAIR.value
                point, box = results.r_id[found].astype(np.int64), results.s_id[found].astype(np.int64)
                left = batch.codes.unchecked, batch.codes.unfiltered
                kept = self._spec.refine(arrivals, encoded, point, box, *left)
                pairs.append((encoded.points.row[point[kept]], encoded.boxes.row[box[kept]]))
        r, s = (np.concatenate([part[k] for part in pairs] or [np.empty(0, np.int64)]) for k in range(2))
        stats += Stats(pairs=len(r))
        self.stats += stats
        result = JoinResult(r, s, stats, np.concatenate(activity) if activity else None)
        return result.in_order(arrivals) if self._ordered else result

    def push(self, r: pa.Table, s: pa.Table) -> None:
        """Takes the next rows of both streams; they must come after all earlier ones in arrival order.

        Rows wait for `poll`, but never more of them than the windows hold: then they are joined here. Rows
        that are refused leave the session as it was.
        """
        self._check_columns(r, s)
        self._waiting.append(self._after_all_before(self._spec.arrange(r, s)))
        waiting = sum(len(arrivals.r.time) + len(arrivals.s.time) for arrivals in self._waiting)
        live = len(self._kept.r.time) + len(self._kept.s.time) if self._kept else 0
        if waiting >= max(live, self._runner.device.parameters.capacity):
            self._advance()

    def _check_columns(self, r: pa.Table, s: pa.Table) -> None:
        """Refuses rows with other columns than the join was planned for."""
        if self._spec.by_key:
            raise SpecError("windows of rows by key take all rows at once (join), not in parts (push)")
        for side, table, schema in (("r", r, self._spec.r_schema), ("s", s, self._spec.s_schema)):
            if (table.schema.names, table.schema.types) != (schema.names, schema.types):
                raise DataError(
                    f"pushed rows of {side} must have the columns that the join was planned for "
                    f"({_columns(schema)}), not {_columns(table.schema)}"
                )

    def poll(self) -> pa.Table:
        """The joined rows of everything pushed so far that have not been returned before."""
        self._advance()
        ready, self._ready = self._ready, []
        if not ready:
            return joined_rows(self._spec.r_schema.empty_table(), self._spec.s_schema.empty_table())
        return pa.concat_tables(ready)

    def _advance(self) -> None:
        """Joins the waiting rows with each other and with what is still live, and keeps what stays live."""
        if not self._waiting:
            return
        parts = [self._kept, *self._waiting] if self._kept else self._waiting
        arrivals = chain(parts)
        result = self.join(arrivals)
        self._waiting = []
        if len(result.r):
            r_rows, s_rows = (pa.array(rows) for rows in (result.r, result.s))
            self._ready.append(joined_rows(arrivals.r.rows.take(r_rows), arrivals.s.rows.take(s_rows)))
        self._kept = _still_live(arrivals, self._spec.window)

    def _after_all_before(self, new: Arrivals) -> Arrivals:
        """The new rows with their numbers in the whole streams, if they do come after all earlier rows."""
        times = [side.time[k] for side in (new.r, new.s) if len(side.time) for k in (0, -1)]
        if not times:
            return new
        # The windows of rows depend on the order of rows of equal time, those of time do not.
        by_rows = self._spec.window.kind == "rows"
        if self._newest is not None and not min(times) >= self._newest + by_rows:
            raise DataError(
                f"pushed rows must have times {'after' if by_rows else 'at or after'} that of the newest row "
                f"before them ({self._newest}), not {min(times)}"
            )
        self._newest = int(max(times))
        return self._numbered(new)

    def _numbered(self, new: Arrivals) -> Arrivals:
        """The new rows with their numbers in the whole streams."""
        counts = self._counts
        self._counts = counts[0] + len(new.r.time), counts[1] + len(new.s.time)
        return Arrivals(
            replace(new.r, index=new.r.index + counts[0], before=new.r.before + counts[1]),
            replace(new.s, index=new.s.index + counts[1], before=new.s.before + counts[0]),
        )


def _fit(spec: JoinSpec, parameters: Parameters) -> Fit:
    """How the join lies on a device."""
    if parameters.architecture == "opblock":
        return ChainFit(spec, parameters)
    return Fit(spec.dimensions, parameters.dims, parameters.capacity)


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def chain(parts: list[Arrivals]) -> Arrivals:
    """Arrivals that came one after another, as one."""
    return Arrivals(
        *(
            Side(
                pa.concat_tables([side.rows for side in sides]),
                *(
                    np.concatenate([getattr(side, name) for side in sides])
                    for name in ("time", "index", "before", "own")
                ),
            )
            for sides in ([part.r for part in parts], [part.s for part in parts])
        )
    )


def _still_live(arrivals: Arrivals, window: Window) -> Arrivals:
    """The rows that rows yet to come may join, which are owned no more."""
    newest = max((int(side.time[-1]) for side in (arrivals.r, arrivals.s) if len(side.time)), default=0)
    sides = []
    for side, size in ((arrivals.r, window.r), (arrivals.s, window.s)):
        if window.kind == "rows":
            first = max(0, len(side.time) - size)
        else:
            first = int(np.searchsorted(side.time, max(newest - size, np.iinfo(np.int64).min)))
        live = slice(first, None)
        time, index, before = (getattr(side, name)[live] for name in ("time", "index", "before"))
        sides.append(Side(side.rows.slice(first), time, index, before, np.zeros(len(time), bool)))
    return Arrivals(*sides)
