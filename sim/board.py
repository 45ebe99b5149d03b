"""A simulated board: the whole top of one in Verilator, and a server that exposes what a real one would.

::

    client <--- pty, tcp or fifos ---> serve <--- bytes ---> Board ([ aligner | ] pins, shell, joiner)

The board's clock runs while there is something to do, as fast as the simulator can.
"""

import contextlib
import ctypes
import functools
import hmac
import ipaddress
import os
import select
import socket
import threading
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import numpy as np

from hw.board import emit_board
from hw.cache import cache_directory
from hw.errors import DeviceError, ParameterError
from hw.frame import HEADER_BYTES, HEADER_LAYOUT, MAGIC, Link
from hw.parameters import Parameters

from .library import compiled

HARNESS = tuple(Path(__file__).with_name(name) for name in ("board.sv", "board.cpp", "port.h"))
PINS = ("stream", "uart")
#: Cycles between two looks at the client: few, for the client waits for answers.
STEP_CYCLES = 256
#: Steps without a byte either way after which the board is looked at only now and then.
IDLE_STEPS = 1600
#: Bytes held each way; beyond that the client waits, or the board's clock stands still.
HELD_BYTES = 1 << 16
#: How long a client may take for its token, and how long that may be.
TOKEN_SECONDS, TOKEN_BYTES = 5.0, 256


class Steps(Protocol):
    """What can be served: it takes some of the bytes, and returns how many, and what comes out meanwhile."""

    def step(self, data: bytes) -> tuple[int, bytes]: ...


class _Job(ctypes.Structure):
    """`Job` of board.cpp."""

    _fields_ = [
        ("input", ctypes.c_char_p),
        ("in_count", ctypes.c_uint64),
        ("in_next", ctypes.c_uint64),
        ("output", ctypes.c_void_p),
        ("out_count", ctypes.c_uint64),
        ("cycles", ctypes.c_uint64),
        ("divisor", ctypes.c_double),
    ]


class Aligner:
    """The bridge from bytes to words wider than a byte: a frame begins a word, whatever came before it.

    DMA engines move whole words and need none.
    """

    def __init__(self, link: Link):
        self._link = link
        self._buffer = bytearray()
        self._left = 0  # bytes of the present frame

    def align(self, data: bytes) -> bytes:
        """Takes bytes; returns those of frames, as far as they have come."""
        self._buffer += data
        out = b""
        while self._left or self._find():
            part = bytes(self._buffer[: self._left])
            del self._buffer[: len(part)]
            self._left -= len(part)
            out += part
            if self._left:
                break
        return out

    def _find(self) -> bool:
        """Drops bytes until a frame begins that may be one, and notes how long it is."""
        magic = MAGIC.to_bytes(2, "little")
        while (at := self._buffer.find(magic)) >= 0 and len(self._buffer) - at >= HEADER_BYTES:
            del self._buffer[:at]
            header = HEADER_LAYOUT.from_bits(int.from_bytes(self._buffer[:HEADER_BYTES], "little"))
            if header.length <= self._link.payload:
                words = self._link.header_words + header.length + self._link.crc_words
                self._left = words * self._link.width // 8
                return True
            del self._buffer[:1]
        if at < 0:
            del self._buffer[:-1]  # the last byte may begin a magic
        return False


class Board:
    """One simulated board. A context manager.

    `pins` is "stream" or "uart"; a UART has `divisor` clocks per bit.
    """

    def __init__(
        self, parameters: Parameters, link: Link, pins: str = "stream", divisor: float | None = None
    ):
        if pins not in PINS:
            raise ParameterError(f"pins must be one of {', '.join(PINS)}, not {pins!r}")
        if (pins == "uart") != bool(divisor):
            raise ParameterError(f"pins {pins!r}: a divisor is for uart, and needed there, not {divisor!r}")
        if pins == "uart" and link.width != 8:
            raise ParameterError(f"pins 'uart': link width must be 8, not {link.width}")
        self._code = _load(parameters, link, pins, divisor)
        self._divisor = divisor or 0.0
        self._aligner = Aligner(link) if link.width > 8 else None
        self._aligned = b""
        self._room = np.empty(STEP_CYCLES * link.width // 8, np.uint8)
        self._model = self._code.touchline_open()
        self.cycles = 0  #: since the board was opened

    def step(self, data: bytes, cycles: int = STEP_CYCLES) -> tuple[int, bytes]:
        """Runs for `cycles`, at most STEP_CYCLES; bytes go in as fast as the pins take them."""
        if not self._model:
            raise DeviceError("simulated board: it is closed")
        taken = None
        if self._aligner:
            taken = len(data) if len(self._aligned) < HELD_BYTES else 0
            data = self._aligned + self._aligner.align(data[:taken])
        job = _Job(
            input=data,
            in_count=len(data),
            output=self._room.ctypes.data,
            cycles=min(cycles, STEP_CYCLES),
            divisor=self._divisor,
        )
        self._code.touchline_step(self._model, ctypes.byref(job))
        self.cycles += job.cycles
        out = self._room[: job.out_count].tobytes()
        if not self._aligner:
            return job.in_next, out
        self._aligned = data[job.in_next :]
        return taken, out

    def reset(self) -> None:
        """Presses the board's reset button."""
        self._code.touchline_reset(self._model)

    def close(self) -> None:
        """Frees the board; closing twice is harmless."""
        model, self._model = self._model, None
        if model:
            self._code.touchline_close(model)

    def __enter__(self) -> "Board":
        return self

    def __exit__(self, *exception) -> None:
        self.close()


@functools.cache
def _load(parameters: Parameters, link: Link, pins: str, divisor: float | None) -> ctypes.CDLL:
    """The library of a board, built now unless an earlier build is in the cache."""
    flags = [f"-GWIDTH={link.width}", *(["-DUART"] if pins == "uart" else [])]
    text = emit_board(parameters, link, pins, divisor)
    return bind(compiled(text, f"{pins}_board_{parameters.name}", flags, HARNESS))


def bind(path: Path) -> ctypes.CDLL:
    """A board's library with its functions declared."""
    code = ctypes.CDLL(str(path))
    code.touchline_open.restype = ctypes.c_void_p
    for name in ("close", "reset"):
        getattr(code, f"touchline_{name}").argtypes = [ctypes.c_void_p]
    code.touchline_step.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    return code


def serve(
    board: Steps,
    listen: str,
    stop: threading.Event,
    *,
    width: int = 8,
    token: str = "",
    announce: Callable[[str], None] = print,
) -> None:
    """Serves a board until `stop` is set; announces the URL under which it can be opened.

    `listen` is `pty`, `tcp:HOST:PORT` or `fifo:DIR`. An address that is not loopback needs a token. There is
    one client at a time; the board goes on as it is when one leaves, so that it may come back.
    """
    with _end(listen, token) as end:
        url = end.url if width == 8 else f"{end.url}?width={width}"
        with _listed(url):
            announce(url)
            _pump(board, end, stop)


def _pump(board: Steps, end: "_End", stop: threading.Event) -> None:
    to_board = from_board = b""
    idle = 0
    while not stop.is_set():
        end.wait(0.02 if idle > IDLE_STEPS else 0.0, bool(from_board))
        if end.changed():
            to_board = from_board = b""
        if len(to_board) < HELD_BYTES:
            to_board += end.receive()
        if len(from_board) < HELD_BYTES:
            taken, out = board.step(to_board)
            to_board = to_board[taken:]
            from_board += out
            idle = 0 if taken or out else idle + 1
        else:
            idle += 1
        if from_board:
            from_board = from_board[end.send(from_board) :]


class _End:
    """The server's end of a line: two descriptors that do not block, or none while nobody is there."""

    url: str
    input = output = -1

    def changed(self) -> bool:
        """Whether another client is there than before, or none."""
        return False

    def wait(self, timeout: float, room: bool) -> None:
        """Until something comes, with `room` until something can be sent, for at most `timeout`."""
        sources = [fd for fd in (self.input, *self.others()) if fd >= 0]
        select.select(sources, [self.output] if room and self.output >= 0 else [], [], timeout)

    def others(self) -> list[int]:
        """More descriptors to wait for."""
        return []

    def receive(self) -> bytes:
        """What has come."""
        try:
            return os.read(self.input, HELD_BYTES) if self.input >= 0 else b""
        except BlockingIOError:
            return b""

    def send(self, data: bytes) -> int:
        """How many bytes went out; what nobody is there to take is gone."""
        if self.output < 0:
            return len(data)
        try:
            return os.write(self.output, data)
        except BlockingIOError:
            return 0

    def close(self) -> None:
        for descriptor in {self.input, self.output} - {-1}:
            os.close(descriptor)
        self.input = self.output = -1


class _Pty(_End):
    """A pseudo-terminal. It stays open here, so clients come and go unseen, as on a real line."""

    def __init__(self):
        self.input, self._slave = os.openpty()
        self.output = self.input
        tty.setraw(self._slave)
        os.set_blocking(self.input, False)
        self.url = f"serial:{os.ttyname(self._slave)}"

    def close(self) -> None:
        super().close()
        os.close(self._slave)


class _Fifos(_End):
    """Two FIFOs in a folder, in place of a DMA engine's character devices."""

    def __init__(self, folder: str):
        if not folder:
            raise ParameterError("listen must be fifo:DIR with a folder, not 'fifo:'")
        self._paths = [Path(folder).absolute() / name for name in ("h2c", "c2h")]
        try:
            Path(folder).mkdir(parents=True, exist_ok=True)
            for path in self._paths:
                path.unlink(missing_ok=True)
                os.mkfifo(path, 0o600)
            # Open for both ways, a FIFO neither waits for the other side nor ends with it.
            self.input, self.output = (os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in self._paths)
        except OSError as error:
            raise DeviceError(f"fifo:{folder}: {error}") from None
        self.url = f"xdma:{self._paths[0]},{self._paths[1]}"

    def close(self) -> None:
        super().close()
        for path in self._paths:
            path.unlink(missing_ok=True)


class _Tcp(_End):
    """A TCP port with one client at a time, which says the token first if there is one."""

    def __init__(self, address: str, token: str):
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        if not host or not port.isdecimal():
            raise ParameterError(f"listen must be tcp:HOST:PORT, not {f'tcp:{address}'!r}")
        if not token and not _is_loopback(host):
            raise ParameterError(
                f"listen tcp:{address}: an address that is not loopback needs a token, which was not given"
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._server = socket.create_server((host, int(port)), family=family)
        except (OSError, OverflowError) as error:
            raise DeviceError(f"tcp:{address}: {error}") from None
        self._server.setblocking(False)
        self._token = token.encode()
        self._client: socket.socket | None = None
        self._greeting: bytearray | None = None  # what came instead of a whole token so far
        self._changed = False
        shown = f"[{host}]" if ":" in host else host
        self.url = f"tcp:{shown}:{self._server.getsockname()[1]}"

    def others(self) -> list[int]:
        return [self._server.fileno(), self._client.fileno() if self._client else -1]

    def changed(self) -> bool:
        self._accept()
        changed, self._changed = self._changed, False
        return changed

    def receive(self) -> bytes:
        if not self._client:
            return b""
        try:
            data = self._client.recv(HELD_BYTES)
        except BlockingIOError:
            data = None
        except OSError:
            data = b""
        if data == b"":
            self._leave()
        elif self._greeting is not None:
            return self._check(data or b"")
        return data or b""

    def send(self, data: bytes) -> int:
        try:
            return super().send(data)
        except OSError:
            self._leave()
            return len(data)

    def close(self) -> None:
        self._leave()
        self._server.close()

    def _accept(self) -> None:
        try:
            client, _ = self._server.accept()
        except OSError:
            return
        if self._client and _has_left(self._client):
            self._leave()
        if self._client:
            _refuse(client, "another client is connected")
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._client, self._changed = client, True
        self._greeting = bytearray() if self._token else None
        self._deadline = time.monotonic() + TOKEN_SECONDS
        if not self._token:
            self.input = self.output = client.fileno()

    def _check(self, data: bytes) -> bytes:
        """Lets a client in that says the token; returns what came after it."""
        self._greeting += data
        said, newline, rest = self._greeting.partition(b"\n")
        if newline and hmac.compare_digest(bytes(said), self._token):
            self._greeting = None
            self.input = self.output = self._client.fileno()
            return bytes(rest)
        if newline or len(said) > TOKEN_BYTES or time.monotonic() > self._deadline:
            _refuse(self._client, "wrong token" if newline else "no token")
            self._leave()
        return b""

    def _leave(self) -> None:
        if self._client:
            self._client.close()
            self._client, self._changed = None, True
        self.input = self.output = -1


def _refuse(client: socket.socket, reason: str) -> None:
    with contextlib.suppress(OSError), client:
        client.setblocking(False)
        client.send(f"refused: {reason}\n".encode())
        # Closing with bytes unread would throw away what was just sent.
        client.shutdown(socket.SHUT_WR)
        client.recv(HELD_BYTES)


def _has_left(client: socket.socket) -> bool:
    """Whether the other side is gone, even if some of what it said has not been read."""
    poll = select.poll()
    poll.register(client, select.POLLRDHUP)
    return bool(poll.poll(0))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def _end(listen: str, token: str) -> Iterator[_End]:
    kind, _, rest = listen.partition(":")
    match kind:
        case "pty" if not rest:
            end = _Pty()
        case "tcp":
            end = _Tcp(rest, token)
        case "fifo":
            end = _Fifos(rest)
        case _:
            raise ParameterError(f"listen must be pty, tcp:HOST:PORT or fifo:DIR, not {listen!r}")
    try:
        yield end
    finally:
        end.close()


def served() -> list[str]:
    """The URLs of the boards that processes of this machine serve now, as far as this user may know."""
    urls = []
    for path in sorted((cache_directory() / "boards").glob("*")):
        pid = path.name.partition("-")[0]
        if pid.isdecimal() and Path(f"/proc/{pid}").exists():
            urls.append(path.read_text())
        else:
            path.unlink(missing_ok=True)
    return urls


@contextlib.contextmanager
def _listed(url: str) -> Iterator[None]:
    """Lists a board in the cache directory for as long as it is served."""
    folder = cache_directory() / "boards"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{os.getpid()}-{threading.get_ident()}"
    path.write_text(url)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
