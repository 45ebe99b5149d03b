"""What the commands `touchline devices`, `selftest` and `serve` do."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path

import numpy as np
from tabulate import tabulate

from hw.dealing import Dealer
from hw.dimension import Dimension, Test
from hw.errors import ParameterError, TouchlineError
from hw.frame import Link
from hw.parameters import Parameters
from hw.socket import Kind, Tag
from hw.words import pack_boxes, pack_control, pack_points, unpack_results

from .device import Device, open_device
from .link import LinkDevice, open_link
from .transport import split_url

#: How long `devices` waits for an answer, and for everything a device tells.
PROBE_SECONDS, LOOK_SECONDS = 2.0, 15.0
#: The environment variable that names the URLs to look at, between blanks.
PLACES = "TOUCHLINE_DEVICES"


@dataclass(frozen=True)
class Found:
    """A place where a device may be, and what answered there."""

    url: str
    parameters: Parameters | None = None
    build: bytes = bytes(32)  #: as of `LinkDevice.build`
    health: dict[str, int] = field(default_factory=dict)  #: as of `LinkDevice.health`
    error: str = ""  #: why there is no answer


@dataclass(frozen=True)
class Check:
    """One known join, and how the device did."""

    name: str
    passed: bool
    detail: str


def places() -> list[str]:
    """URLs where devices may be: those in `$TOUCHLINE_DEVICES`.

    Without it, boards served on this machine, serial ports and DMA engines.
    """
    if PLACES in os.environ:
        return os.environ[PLACES].split()
    from serial.tools import list_ports

    from sim.board import served

    dma = [(path, path.replace("h2c", "c2h")) for path in sorted(glob("/dev/xdma*_h2c_0"))]
    return [
        *served(),
        *(f"serial:{port.device}" for port in list_ports.comports()),
        *(f"xdma:{to_device},{from_device}" for to_device, from_device in dma if Path(from_device).exists()),
    ]


def devices(urls: Sequence[str] | None = None) -> list[Found]:
    """Asks at each URL, or at all `places`, who is there.

    Registers are read and nothing else is touched; a device that is in use is left alone.
    """
    urls = list(places() if urls is None else urls)
    found: dict[str, Found] = {}

    def look(url: str) -> None:
        try:
            with open_link(url, reset=False, limit=PROBE_SECONDS) as device:
                found[url] = Found(url, device.parameters, device.build, device.health())
        except TouchlineError as error:
            found[url] = Found(url, error=str(error).removeprefix(f"{url}: "))

    deadline = time.monotonic() + LOOK_SECONDS
    threads = [threading.Thread(target=look, args=(url,), daemon=True) for url in urls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    late = f"has not told everything within {LOOK_SECONDS:g} seconds"
    return [found.get(url) or Found(url, error=late) for url in urls]


def devices_table(found: Sequence[Found]) -> str:
    """One line for each place."""
    rows = [
        (
            one.url,
            one.parameters.architecture if one.parameters else "-",
            one.parameters.options() if one.parameters else "-",
            one.build.hex()[:16] if any(one.build) else "-",
            one.error
            or f"{one.health['damaged']} frames damaged, {one.health['live_evictions']} live evictions",
        )
        for one in found
    ]
    return tabulate(rows, ("device", "architecture", "parameters", "build", "health"))


def selftest(url: str) -> list[Check]:
    """Runs known joins on a device, through everything that other joins go through."""
    with open_device(url) as device:
        dims, count = device.parameters.dims, min(device.parameters.capacity, 256)
        random = np.random.default_rng(1)
        checks = [
            _check(device, "no tuples", *_tuples(dims, random, 0)),
            _check(device, "one tuple of each stream", *_tuples(dims, random, 1, only=-1)),
        ]
        for k, dim in enumerate(dims):
            codes = _tuples(dims, random, min(count, 64), only=k)
            checks.append(_check(device, f"dimension {k}, {dim}, alone", *codes))
        checks.append(_check(device, "all dimensions", *_tuples(dims, random, count)))
        full = _tuples(dims, random, count, only=-1)
        checks.append(_check(device, "full windows, every pair", *full))
        checks.append(_check(device, "the same again: a flush emptied them", *full))
        if isinstance(device, LinkDevice):
            health = device.health()
            lost = health["live_evictions"]
            checks.append(
                Check("health", not lost, f"{lost} live evictions, {health['damaged']} frames damaged")
            )
    return checks


def selftest_table(checks: Sequence[Check]) -> str:
    """One line for each check."""
    rows = [(check.name, "pass" if check.passed else "FAIL", check.detail) for check in checks]
    return tabulate(rows, ("join", "", "found"))


def serve(board: str, listen: str, *, token: str = "", announce: Callable[[str], None] = print) -> None:
    """Serves a simulated board until SIGTERM or SIGINT.

    `board` is a device's text, such as `handshake?cores=4&link=8,120,8&pins=uart&divisor=4`: parameters; the
    link's width in bits, payload words and frames; `stream` or `uart` pins; and the clocks per bit of a UART.
    """
    from sim.board import Board
    from sim.board import serve as serve_board

    architecture, _, query = board.partition("?")
    options = split_url(f":?{query}")[2]
    text, pins, divisor = (options.pop(name, None) for name in ("link", "pins", "divisor"))
    try:
        link = Link.parse(text) if text else Link()
        clocks = float(divisor) if divisor else None
    except (TypeError, ValueError) as error:
        raise ParameterError(f"board {board!r}: {error}") from None
    stop = threading.Event()
    with contextlib.ExitStack() as stack:
        for number in (signal.SIGTERM, signal.SIGINT):
            stack.callback(signal.signal, number, signal.signal(number, lambda *_: stop.set()))
        parameters = Parameters.from_options(architecture, options)
        with Board(parameters, link, pins or "stream", clocks) as model:
            serve_board(model, listen, stop, width=link.width, token=token, announce=announce)


def _tuples(dims: tuple[Dimension, ...], random: np.random.Generator, count: int, only: int | None = None):
    """Points and boxes around few values, and their pairs; with `only`, that dimension decides (-1: none)."""
    points, lows, highs = [], [], []
    inside = np.ones((count, count), bool)
    for k, dim in enumerate(dims):
        # Values lie at the bottom, the middle and the top of the range, where carries show.
        anchors = random.choice([0, dim.highest // 2 - 4, dim.highest - 8], (2, count)).astype(np.uint64)
        point, low = anchors + random.integers(0, 9, (2, count)).astype(np.uint64)
        high = np.minimum(low, np.uint64(dim.highest - 2)) + np.uint64(2)
        if only not in (None, k):
            point = np.full(count, dim.highest // 2, np.uint64)
            low, high = _passing(dim, count)
        inside &= dim.contains(point[:, None], {"lo": low[None, :], "hi": high[None, :]})
        for values, value in ((points, point), (lows, low), (highs, high)):
            values.append(value)
    ids = np.arange(count)
    end = [pack_control(dims, kind) for kind in (Kind.FLUSH, Kind.MARK)]
    words = np.concatenate([pack_points(dims, ids, points), pack_boxes(dims, ids, lows, highs), *end])
    return words, np.argwhere(inside)


def _passing(dim: Dimension, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Bounds that let the middle of the range pass, whatever the test."""
    middle = dim.highest // 2
    if dim.negated:
        bounds = (dim.highest, 0)
    else:
        bounds = (middle, dim.highest) if dim.test is Test.EQUAL else (0, dim.highest)
    low, high = (np.full(count, bound, np.uint64) for bound in bounds)
    return low, high


def _check(device: Device, name: str, words: np.ndarray, expected: np.ndarray) -> Check:
    dealer = Dealer(device.parameters)
    results = unpack_results(dealer.restore(device.exchange(dealer.deal(words), marks=1).results))
    found = results.tag == Tag.PAIR.value
    pairs = np.stack([results.r_id[found], results.s_id[found]], 1).astype(np.int64)
    pairs = pairs[np.lexsort(pairs.T[::-1])]
    if pairs.shape == expected.shape and (pairs == expected).all():
        return Check(name, True, f"{len(expected)} pairs of {len(words) - 2} tuples")
    return Check(name, False, f"{len(pairs)} pairs, not the {len(expected)} that are right")
