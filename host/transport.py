"""Bytes to and from a device: a serial line, a TCP connection, or a pair of DMA character devices.

Every transport has the same few methods. None of them waits longer than it is told to, and what goes
wrong is a DeviceError that names the URL.
"""

import fcntl
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable
from urllib.parse import parse_qsl

from hw.errors import DeviceError, ParameterError

#: How long opening may take, and how many bytes are read or written at once: whole words of any width.
OPEN_SECONDS = 5.0
PIECE_BYTES = 1 << 16
#: What a server says, in one line, to a client that it does not serve.
REFUSED = b"refused: "


class Transport:
    """Bytes both ways over file descriptors that do not block; `_open` and `close` are the kinds' own."""

    def __init__(self, url: str):
        self.url = url
        self._input = self._output = -1
        self.reopen()

    def reopen(self) -> None:
        """Opens it, again if need be; what was on its way may be lost."""
        self.close()
        try:
            self._open()
        except (OSError, ValueError) as error:
            self.close()
            raise DeviceError(f"{self.url}: cannot be opened: {error}") from None

    def send(self, data: bytes) -> int:
        """Takes as many bytes as there is room for now, which may be none, and says how many."""
        try:
            return os.write(self._output, data[:PIECE_BYTES])
        except BlockingIOError:
            return 0
        except OSError as error:
            raise DeviceError(f"{self.url}: sending failed: {error}") from None

    def receive(self, timeout: float, room: bool = False) -> bytes:
        """What has come; waits for it, or with `room` until something can be sent, for at most `timeout`."""
        try:
            ready, _, _ = select.select([self._input], [self._output] if room else [], [], timeout)
            if not ready:
                return b""
            data = os.read(self._input, PIECE_BYTES)
        except BlockingIOError:
            return b""
        except (OSError, ValueError) as error:
            raise DeviceError(f"{self.url}: receiving failed: {error}") from None
        if not data:
            raise DeviceError(f"{self.url}: the other end closed the connection")
        return data

    def close(self) -> None:
        """Gives the line back; closing twice is harmless."""
        for descriptor in {self._input, self._output} - {-1}:
            os.close(descriptor)
        self._input = self._output = -1

    def now(self) -> float:
        """The time in seconds, from anywhere."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Lets time pass."""
        time.sleep(seconds)

    def _open(self) -> None:
        raise NotImplementedError


class SerialTransport(Transport):
    """`serial:PATH?baud=115200`: a UART, or a pty. Nobody else can open it meanwhile."""

    def __init__(self, url: str, path: str, baud: str = "115200"):
        if not baud.isdecimal() or not int(baud):
            raise ParameterError(f"{url}: baud must be a positive integer, not {baud!r}")
        self._path, self._baud = path, int(baud)
        self._port = None
        super().__init__(url)

    def _open(self) -> None:
        import serial  # only hosts with a serial line need it

        self._port = serial.Serial(self._path, self._baud, timeout=0, write_timeout=0, exclusive=True)
        self._input = self._output = self._port.fileno()

    def close(self) -> None:
        """See `Transport.close`."""
        self._input = self._output = -1
        if self._port:
            self._port.close()
            self._port = None


class TcpTransport(Transport):
    """`tcp:HOST:PORT?token=...`: a connection; the token goes first, as a line."""

    def __init__(self, url: str, address: str, token: str = ""):
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ParameterError(f"{url}: a tcp: URL must be tcp:HOST:PORT, not {address!r}")
        self._address = host.strip("[]"), int(port)
        self._token = token
        super().__init__(url)

    def _open(self) -> None:
        self._new = True
        connection = socket.create_connection(self._address, timeout=OPEN_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if self._token:
            connection.sendall(self._token.encode() + b"\n")
        connection.setblocking(False)
        self._input = self._output = connection.detach()

    def receive(self, timeout: float, room: bool = False) -> bytes:
        """See `Transport.receive`. A server that refuses says so before anything else."""
        data = super().receive(timeout, room)
        if data and self._new:
            self._new = False
            if data.startswith(REFUSED):
                raise DeviceError(f"{self.url}: {data.decode(errors='replace').strip()}")
        return data


class DmaTransport(Transport):
    """`xdma:H2C,C2H`: two character devices of a DMA engine, or two FIFOs. Nobody else can open them.

    FIFOs do not block. DMA drivers do, in `read` until a packet ends and in `write` until the engine has
    taken everything, which may be never. So there threads read and write, and pass on through sockets, which
    bound how much is under way and keep the pieces: an engine must be given whole words.
    """

    def __init__(self, url: str, address: str):
        self._paths = address.split(",")
        if len(self._paths) != 2 or not all(self._paths):
            raise ParameterError(f"{url}: an xdma: URL must be xdma:H2C_PATH,C2H_PATH, not {address!r}")
        self._locked = -1
        super().__init__(url)

    def _open(self) -> None:
        to_device, from_device = self._paths
        self._output = self._within(lambda: os.open(to_device, os.O_WRONLY | os.O_NONBLOCK))
        try:
            fcntl.flock(self._output, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError("another client has it open") from None
        self._locked = os.dup(self._output)
        self._input = os.open(from_device, os.O_RDONLY | os.O_NONBLOCK)
        if stat.S_ISCHR(os.fstat(self._input).st_mode):
            source, (self._input, sink) = self._input, _pair()
            _start_passing_on(source, sink, device=source)
        if stat.S_ISCHR(os.fstat(self._output).st_mode):
            sink, (self._output, source) = self._output, _pair()
            _start_passing_on(source, sink, device=sink)

    def close(self) -> None:
        """See `Transport.close`. A thread that hangs in a driver keeps the device open, but not to itself."""
        super().close()
        if self._locked >= 0:
            fcntl.flock(self._locked, fcntl.LOCK_UN)
            os.close(self._locked)
            self._locked = -1

    def _within(self, attempt: Callable):
        """Tries until it works, for a while: a FIFO's reader may need a moment."""
        deadline = time.monotonic() + OPEN_SECONDS
        while True:
            try:
                return attempt()
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)


class MemoryTransport(Transport):
    """A device that is a function in this process: it takes bytes and returns bytes.

    Time passes only when nothing comes, so that tests of silence need no time.
    """

    def __init__(self, peer: Callable[[bytes], bytes], url: str = "memory:"):
        self._peer = peer
        self._time = 0.0
        super().__init__(url)

    def _open(self) -> None:
        self._waiting = b""

    def send(self, data: bytes) -> int:
        """See `Transport.send`."""
        self._waiting += self._peer(bytes(data))
        return len(data)

    def receive(self, timeout: float, room: bool = False) -> bytes:
        """See `Transport.receive`."""
        data, self._waiting = self._waiting or self._peer(b""), b""
        self._time += 1e-6 if data or room else timeout
        return data

    def now(self) -> float:
        """See `Transport.now`."""
        return self._time

    def pause(self, seconds: float) -> None:
        """See `Transport.pause`."""
        self._time += seconds


#: By scheme: the class, and which options of a URL are its own.
TRANSPORTS = {
    "serial": (SerialTransport, ("baud",)),
    "tcp": (TcpTransport, ("token",)),
    "xdma": (DmaTransport, ()),
}


def split_url(url: str) -> tuple[str, str, dict[str, str]]:
    """A device URL's scheme, what comes after it, and its options."""
    scheme, _, rest = url.partition(":")
    address, _, query = rest.partition("?")
    try:
        return scheme, address, dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError as error:
        raise ParameterError(f"device URL {url!r}: {error}") from None


def open_transport(url: str) -> tuple[Transport, dict[str, str]]:
    """The transport of a URL, and the URL's options that are not the transport's."""
    scheme, address, options = split_url(url)
    if scheme not in TRANSPORTS or not address:
        accepted = ", ".join(f"{name}:" for name in TRANSPORTS)
        raise ParameterError(f"device URL must start with one of {accepted} and an address, not {url!r}")
    kind, names = TRANSPORTS[scheme]
    own = {name: options.pop(name) for name in names if name in options}
    # Messages show the URL, and a token is nobody's business.
    shown = url.replace(own["token"], "...") if own.get("token") else url
    return kind(shown, address, **own), options


def _pair() -> tuple[int, int]:
    """Two ends of a line that keeps pieces as they are; the first does not block."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    return near.detach(), far.detach()


def _start_passing_on(source: int, sink: int, device: int) -> None:
    os.set_blocking(device, True)
    threading.Thread(target=_pass_on, args=(source, sink), name="xdma", daemon=True).start()


def _pass_on(source: int, sink: int) -> None:
    try:
        while data := os.read(source, PIECE_BYTES):
            while data:
                data = data[os.write(sink, data) :]
    except OSError:
        pass  # the other end sees that this one is closed
    finally:
        os.close(source)
        os.close(sink)
