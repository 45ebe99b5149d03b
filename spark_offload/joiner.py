"""What joins in a task: its device, or the CPU, where there is none or it fails and that is allowed."""

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from pyspark import TaskContext

from host.arrival import Arrivals
from host.cpu import open_cpu
from host.device import Device, open_device, open_when_free
from host.session import JoinResult, Session
from host.spec import JoinSpec
from hw.errors import DeviceError, ParameterError

#: Devices that failed in this process, where the CPU joined instead: the next slice does not wait for them.
_failed: set[str | None] = set()


@dataclass(frozen=True)
class Where:
    """What joins: a device by its URL, or by what Spark gives to the task, or the CPU."""

    device: str | None  #: its URL, or cpu:; None: the one that Spark has given to the task
    architecture: str | None = None  #: which the device must have
    must_fit: bool = False  #: a device that does not take all dimensions is left alone, and the CPU joins
    fallback: bool = False  #: the CPU joins what a device fails in


class Joiner:
    """Joins arrivals where it is told to. A context manager that closes its device.

    `name` says of what in warnings; of `metrics`, it keeps `joining`, `on_cpu` and `fallbacks`.
    """

    def __init__(self, spec: JoinSpec, where: Where, name: str, metrics: dict[str, int]):
        self._spec, self._where, self._name, self._metrics = spec, where, name, metrics
        self._stack = ExitStack()
        self._url = where.device

    def __enter__(self) -> "Joiner":
        try:
            self._join = self._open()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exception) -> None:
        self._stack.close()

    def __call__(self, arrivals: Arrivals) -> JoinResult:
        start = time.perf_counter()
        try:
            result = self._join(arrivals)
        except DeviceError as error:
            self._join = self._fall_back(error)
            result = self._join(arrivals)
        self._metrics["joining"] += int((time.perf_counter() - start) * 1_000_000)
        return result

    def _open(self) -> Callable[[Arrivals], JoinResult]:
        """The join of the task's device, or the CPU's where there is none or it may not be used."""
        where = self._where
        if where.device and where.device.startswith("cpu:"):
            return self._cpu(where.device)
        try:
            self._url = where.device or scheduled_device()
            opened = open_device if self._url in _failed else open_when_free
            device = self._stack.enter_context(opened(self._url))
            check_architecture(device, where.architecture)
            session = Session(device, self._spec)
        except DeviceError as error:
            return self._fall_back(error)
        _failed.discard(self._url)
        if where.must_fit and session.missing:
            return self._cpu()
        return session.join

    def _cpu(self, url: str = "cpu:auto") -> Callable[[Arrivals], JoinResult]:
        self._metrics["on_cpu"] = 1
        # Spark has tasks for the other cores.
        return open_cpu(url, self._spec, threads=1).join

    def _fall_back(self, error: Exception) -> Callable[[Arrivals], JoinResult]:
        if not self._where.fallback:
            raise error
        self._stack.close()  # others may find the device in order
        _failed.add(self._url)
        warnings.warn(f"{self._name} falls back to the CPU: {error}", RuntimeWarning, stacklevel=2)
        self._metrics["fallbacks"] = 1
        return self._cpu()


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
