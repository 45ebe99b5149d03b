"""Devices: anything with a joiner behind it, opened by URL."""

import time
from dataclasses import dataclass
from math import isqrt
from typing import Protocol
from urllib.parse import parse_qsl

import numpy as np

from hw.errors import DeviceError, ParameterError
from hw.netlist import SYNTHESIS
from hw.parameters import Parameters

from .transport import TRANSPORTS

#: How long a device may be in use by others before that is an error.
BUSY_SECONDS = 120


@dataclass(frozen=True)
class Exchange:
    """What came back for the words of one `Device.exchange`."""

    results: np.ndarray  #: uint32[n, words] as on the joiner's `results`
    marks: int  #: how many of them are marks
    cycles: int  #: how long the device took; 0 if it is at the end of a wire and its clock is not seen
    counters: dict[str, int]  #: how far they have gone since the exchange before
    activity: np.ndarray | None  #: [bucket, core] how often each core found a pair, if watched


class LinkLost(DeviceError):
    """A device that cannot be reached, or was reset: what was sent since the last mark must be sent again."""


class Device(Protocol):
    """What the driver needs of a device. A context manager that closes it."""

    url: str
    parameters: Parameters

    def exchange(self, words: np.ndarray, *, marks: int = 0, bucket: int | None = None) -> Exchange:
        """Sends `words`, and returns all results until `marks` marks have come back.

        Of several marks that wait together a joiner may keep only the newest: wait for one at a time. After
        an error the device must be restarted before it is used again.
        """

    def restart(self) -> None:
        """Makes the device as it was when it was opened."""

    def close(self) -> None:
        """Gives the device back."""

    def __enter__(self) -> "Device": ...

    def __exit__(self, *exception) -> None: ...


class SimulatedDevice:
    """A joiner in a cycle-accurate simulator, in this process.

    `stalls` (seed, input, output) makes both streams wait at random, with chances in 256, and so memory. With
    `netlist`, a family of chips, the cells are simulated that synthesis makes of the joiner. `memory` is what
    its memory costs, if it has any, see `sim.dram.Timing.parse`.
    """

    def __init__(
        self,
        url: str,
        parameters: Parameters,
        stalls: tuple[int, int, int],
        netlist: str | None = None,
        memory: str = "",
    ):
        # Building needs tools that a host with a board does without.
        from sim.dram import Timing
        from sim.library import load

        self.url = url
        self.parameters = parameters
        self.netlist = netlist
        seed, *chances = stalls
        self._random = np.random.default_rng(seed) if any(chances) else None
        self._chances = chances
        self._timing = Timing.parse(memory)
        self.library = load(parameters, netlist)
        self._model = self.library.open(self._timing)
        self._counted: dict[str, int] = {}

    @staticmethod
    def patience(parameters: Parameters) -> int:
        """Cycles without a transfer that are a hang: far more than going through the windows takes."""
        if parameters.architecture == "bisort":
            # Its windows are in memory, which is seen to move; only a linear search is not.
            return 1_000_000 + 4 * parameters.buffer * isqrt(2 * parameters.segment)
        return 1_000_000 + 4 * parameters.capacity * parameters.segment

    def exchange(self, words: np.ndarray, *, marks: int = 0, bucket: int | None = None) -> Exchange:
        """See `Device.exchange`."""
        seed = None if self._random is None else int(self._random.integers(1 << 63))
        stall_in, stall_out = self._chances
        run = self._model.run(
            words,
            marks=marks,
            bucket=bucket,
            stall_seed=seed,
            stall_in=stall_in,
            stall_out=stall_out,
            patience=self.patience(self.parameters),
        )
        counters = {name: count - self._counted.get(name, 0) for name, count in run.counters.items()}
        self._counted = run.counters
        return Exchange(run.results, marks, run.cycles, counters, run.activity)

    def restart(self) -> None:
        """See `Device.restart`."""
        self._model.close()
        self._model = self.library.open(self._timing)
        self._counted = {}

    def close(self) -> None:
        """See `Device.close`."""
        self._model.close()

    def __enter__(self) -> "SimulatedDevice":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


def open_device(url: str, parameters: Parameters | None = None) -> Device:
    """Opens a device, for example `sim:handshake?cores=8&segment=16` or `serial:/dev/ttyUSB0?baud=115200`.

    In a `sim:` URL every parameter of the joiner may be given; `stalls=SEED,IN,OUT` as well, which makes the
    device's streams wait at random, with chances of IN and OUT in 256; `netlist=FAMILY` (ecp5 or xc6v), which
    simulates the cells that synthesis makes for such chips; and, for `bisort`, what memory costs in cycles,
    such as `memory=latency:60,row_miss:20`. A device behind a wire (`serial:`, `tcp:`, `xdma:`) tells its
    parameters; if it has others than the URL or `parameters` say, it is refused.
    """
    scheme, colon, rest = url.partition(":")
    if colon and scheme in TRANSPORTS:
        from .link import open_link

        return open_link(url, parameters)
    if scheme != "sim" or not colon:
        accepted = ", ".join(f"{name}:" for name in TRANSPORTS)
        raise ParameterError(f"device URL must start with sim:, {accepted}, not {url!r}")
    architecture, _, query = rest.partition("?")
    try:
        given = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
        options = dict(given)
        if len(options) < len(given):
            raise ParameterError("every parameter may be given once")
        stalls = _parse_stalls(options.pop("stalls", "0,0,0"))
        netlist = options.pop("netlist", None)
        if netlist not in (None, *SYNTHESIS):
            raise ParameterError(f"netlist must be one of {', '.join(SYNTHESIS)}, not {netlist!r}")
        memory = options.pop("memory", "")
        if memory and architecture != "bisort":
            raise ParameterError(
                f"memory={memory} is for bisort, which alone has memory, not for {architecture}"
            )
        parameters = Parameters.from_options(architecture, options)
    except ValueError as error:
        raise ParameterError(f"device URL {url!r}: {error}") from None
    return SimulatedDevice(url, parameters, stalls, netlist, memory)


def open_when_free(url: str) -> Device:
    """Opens a device as soon as nobody else uses it: one that does not answer is asked again for a while."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return open_device(url)
        except DeviceError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _parse_stalls(text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts) or max(map(int, parts[1:])) > 255:
        raise ParameterError(f"stalls must be SEED,IN,OUT with chances from 0 to 255, not {text!r}")
    return tuple(map(int, parts))
