"""Placement: what joins, decided before any task starts. A device that fits, or the CPU, and why.

`auto` takes the device that is given or that Spark schedules, if it takes every dimension of the join, and
the CPU otherwise. It never simulates.
"""

import warnings
from dataclasses import dataclass

from pyspark.sql.conf import RuntimeConfig

from host.cpu import open_cpu
from host.device import open_when_free
from host.session import Session
from host.spec import JoinSpec
from host.transport import TRANSPORTS
from hw.errors import DeviceError, ParameterError
from hw.parameters import ARCHITECTURES, Parameters

from .joiner import Where, check_architecture

OFFLOADS = ("cpu", "sim", "fpga", "auto")
#: What happens where a device fails: nothing more, or the CPU joins, with a warning.
FALLBACKS = ("error", "cpu")
AMOUNT = "spark.task.resource.fpga.amount"
_ACCEPTED = {"cpu": ("cpu",), "sim": ("sim",), "fpga": TRANSPORTS, "auto": ("cpu", *TRANSPORTS)}
_CPU = "the CPU"


@dataclass(frozen=True)
class Placement:
    """What joins, and why."""

    where: Where
    runs_on: str
    why: str
    detail: str  #: what becomes of each term and dimension there
    refused: str = ""  #: what was asked for and does not join, and why
    missing: frozenset[int] = frozenset()  #: dimensions that the host rechecks
    parameters: Parameters | None = None  #: of the device, if it is known


def place(
    spec: JoinSpec,
    offload: str,
    device: str | None,
    architecture: str | None,
    fallback: str,
    conf: RuntimeConfig,
) -> Placement:
    """Decides what joins, and opens it once, so that what is wrong with it fails here."""
    if offload not in OFFLOADS:
        raise ParameterError(f"offload must be one of {', '.join(OFFLOADS)}, not {offload!r}")
    if fallback not in FALLBACKS:
        raise ParameterError(f"fallback must be one of {', '.join(FALLBACKS)}, not {fallback!r}")
    if architecture not in (None, *ARCHITECTURES):
        raise ParameterError(
            f"architecture must be one of {', '.join(ARCHITECTURES)} or None, not {architecture!r}"
        )
    why = "asked for"
    if device is None:
        if offload == "auto" and conf.get(AMOUNT, None) is None:
            return _on_cpu(spec, "cpu:auto", "no device is given, and Spark schedules none")
        if offload in ("fpga", "auto"):
            check_resources(conf, offload)
            fits = ", if it takes all dimensions; else the CPU joins" if offload == "auto" else ""
            return Placement(
                Where(None, architecture, offload == "auto", fallback == "cpu"),
                "the device that Spark gives to the task",
                f"Spark schedules devices{fits}",
                f"{spec.explain()}\non the device that Spark gives to the task, as it fits",
            )
        device = "cpu:auto" if offload == "cpu" else f"sim:{architecture or ARCHITECTURES[0]}"
    scheme = device.partition(":")[0]
    if scheme not in _ACCEPTED[offload]:
        schemes = ", ".join(f"{name}:" for name in _ACCEPTED[offload])
        raise ParameterError(
            f"with offload={offload!r} device must be a URL that starts with {schemes}, not {device!r}"
        )
    if scheme == "cpu":
        return _on_cpu(spec, device, why)
    try:
        with open_when_free(device) as opened:
            check_architecture(opened, architecture)
            session, parameters = Session(opened, spec), opened.parameters
    except DeviceError as error:
        if fallback == "error":
            raise
        warnings.warn(f"{device} fails, and the CPU joins instead: {error}", RuntimeWarning, stacklevel=4)
        return _on_cpu(spec, "cpu:auto", "the device fails", f"{device} because {error}")
    if offload == "auto" and session.missing:
        texts = ", ".join(f"`{spec.dimensions[k].text}`" for k in sorted(session.missing))
        refused = f"{device} because it has no dimension for {texts}"
        return _on_cpu(spec, "cpu:auto", "the device does not fit", refused)
    where = Where(device, architecture, False, fallback == "cpu")
    if offload == "auto":
        why = "the device takes all dimensions"
    return Placement(where, device, why, session.explain(), "", session.missing, parameters)


def _on_cpu(spec: JoinSpec, url: str, why: str, refused: str = "") -> Placement:
    return Placement(Where(url), _CPU, why, open_cpu(url, spec, threads=1).explain(), refused)


def check_resources(conf: RuntimeConfig, offload: str) -> None:
    """Refuses settings with which a task would get no device of its own, or would never start."""
    amount, setting = conf.get(AMOUNT, None), f"{AMOUNT}=1"
    if amount is None:
        raise ParameterError(
            f"with offload={offload!r} device must be a URL, or Spark must schedule devices "
            f"({setting}, and spark.executor.resource.fpga.amount with its discoveryScript), not None"
        )
    if float(amount) != 1:
        raise ParameterError(f"{AMOUNT} must be 1, a device for each task, not {amount!r}")
    master = conf.get("spark.master", "")
    if master.startswith("local") and not master.startswith("local-cluster"):
        raise ParameterError(
            f"with offload={offload!r} and {setting} spark.master must be a cluster, where Spark schedules "
            f"devices, not {master!r}; give device="
        )
