"""What runs in a Spark worker: the rows of a slice go in, its pairs come out, both as Arrow batches."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from host.arrival import Arrivals
from host.cpu import open_cpu
from host.device import Device, open_when_free
from host.session import JoinResult, Session, Stats
from host.spec import JoinSpec
from hw.errors import DataError, DeviceError, ParameterError

BATCH_ROWS = 10_000

#: What a slice reports beside its pairs; `undated` rows have no event time.
METRICS = ("slices", "undated", *(field.name for field in fields(Stats)))
_METRICS_TYPE = pa.struct([(name, pa.int64()) for name in METRICS])


@dataclass(frozen=True)
class Task:
    """Joins slices, on a device or on the CPU.

    Takes batches with the columns slice, own, is_s, t, r, s, in arrival order, and yields batches with the
    columns r, s, metrics. `metrics` is null beside a pair; one row per slice has metrics and no pair.
    """

    spec: JoinSpec
    device: str | None  #: its URL, or cpu:; None: the one that Spark has given to the task
    begin: tuple[list[int], list[int]]  #: rows of R and of S before each slice
    owned: tuple[tuple[int, ...], tuple[int, ...]]  #: rows of R and of S in each slice
    architecture: str | None = None  #: which the device must have
    ordered: bool = False  #: pairs of a slice come by (later arrival, earlier arrival)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        batches = list(batches)
        if batches:
            rows = pa.Table.from_batches(batches)
            for number in np.unique(rows["slice"].to_numpy()).tolist():
                yield from self._join(number, rows.filter(pc.equal(rows["slice"], number)))

    def _join(self, number: int, rows: pa.Table) -> Iterator[pa.RecordBatch]:
        dated = pc.is_valid(rows["t"])
        undated = pc.sum(pc.and_not(rows["own"], dated)).as_py()
        rows = rows.filter(dated)
        if self.spec.window.kind == "rows":
            self._check(number, rows)
            rows = self._trim(rows)
        r, s = (rows[name].drop_null().combine_chunks() for name in "rs")
        arrivals = self._arrivals(number, rows, r, s)
        result = self._joined(arrivals)
        if self.ordered:
            result = result.in_order(arrivals)
        for start in range(0, len(result.r), BATCH_ROWS):
            chosen = slice(start, start + BATCH_ROWS)
            yield _batch(r.take(pa.array(result.r[chosen])), s.take(pa.array(result.s[chosen])), None)
        metrics = {"slices": 1, "undated": undated} | asdict(result.stats)
        yield _batch(pa.nulls(1, r.type), pa.nulls(1, s.type), metrics)

    def _joined(self, arrivals: Arrivals) -> JoinResult:
        device = self.device or scheduled_device()
        if device.startswith("cpu:"):
            # Spark has tasks for the other cores.
            return open_cpu(device, self.spec, threads=1).join(arrivals)
        with open_when_free(device) as opened:
            check_architecture(opened, self.architecture)
            return Session(opened, self.spec).join(arrivals)

    def _check(self, number: int, rows: pa.Table):
        """Refuses other rows than those that were counted: the ranks of later rows rest on the counts."""
        is_s, own = rows["is_s"].to_numpy(), rows["own"].to_numpy()
        for name, mine, owned in zip("rs", (~is_s, is_s), self.owned):
            now = np.count_nonzero(own & mine)
            if now != owned[number]:
                raise DataError(
                    f"{name} must give the same rows each time it is read, not {owned[number]} and then "
                    f"{now} in slice {number}; persist() it, or use a time window"
                )

    def _trim(self, rows: pa.Table) -> pa.Table:
        """Without the halo rows that are too many for their window: halos come as whole slices."""
        is_s, keep = rows["is_s"].to_numpy(), rows["own"].to_numpy().copy()
        for side, size in ((False, self.spec.window.r), (True, self.spec.window.s)):
            halo = np.flatnonzero(~keep & (is_s == side))
            keep[halo[max(0, len(halo) - size) :]] = True
        return rows.filter(pa.array(keep))

    def _arrivals(self, number: int, rows: pa.Table, r: pa.StructArray, s: pa.StructArray) -> Arrivals:
        """The rows as they arrive. A halo ends where the slice begins, and so do its indexes."""
        is_s, own = rows["is_s"].to_numpy(), rows["own"].to_numpy()
        return self.spec.ordered(
            pa.Table.from_struct_array(r),
            pa.Table.from_struct_array(s),
            is_s,
            r_base=self.begin[0][number] - np.count_nonzero(~own & ~is_s),
            s_base=self.begin[1][number] - np.count_nonzero(~own & is_s),
            own=own,
        )


def check_architecture(device: Device, wanted: str | None) -> None:
    """Refuses a device of another architecture than the one that was asked for."""
    if wanted not in (None, device.parameters.architecture):
        raise ParameterError(
            f"architecture is {wanted!r}, but the device {device.url!r} is "
            f"{device.parameters.architecture!r}; leave one of the two out"
        )


def scheduled_device() -> str:
    """The URL of the device that Spark has given to this task."""
    context = TaskContext.get()
    given = context.resources().get("fpga") if context else None
    if not given:
        raise DeviceError(
            'Spark has given this task no resource "fpga": set spark.task.resource.fpga.amount=1, or give '
            "device="
        )
    return given.addresses[0]


def _batch(r: pa.StructArray, s: pa.StructArray, metrics: dict[str, int] | None) -> pa.RecordBatch:
    beside = pa.nulls(len(r), _METRICS_TYPE) if metrics is None else pa.array([metrics], _METRICS_TYPE)
    return pa.RecordBatch.from_arrays([r, s, beside], names=["r", "s", "metrics"])
