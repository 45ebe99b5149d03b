"""Transports: each kind over the real thing (pty, socket, FIFOs), and what they say when it is not there."""

import contextlib
import os
import socket
import threading
import time
import tty

import pytest

from host import transport
from host.link import open_link
from host.transport import DmaTransport, MemoryTransport, SerialTransport, TcpTransport, open_transport
from hw.errors import DeviceError, ParameterError


def receive_all(line: transport.Transport, count: int) -> bytes:
    data = b""
    deadline = time.monotonic() + 5
    while len(data) < count and time.monotonic() < deadline:
        data += line.receive(0.1)
    return data


@pytest.fixture
def terminal():
    """Both ends of a pty: a descriptor, and a path."""
    master, slave = os.openpty()
    tty.setraw(slave)
    yield master, os.ttyname(slave)
    os.close(master)
    os.close(slave)


def test_serial(terminal):
    master, path = terminal
    line, options = open_transport(f"serial:{path}?baud=3000000&cores=4")
    assert isinstance(line, SerialTransport) and options == {"cores": "4"}
    everything = bytes(range(256))
    assert line.send(everything) == 256
    assert os.read(master, 1000) == everything
    os.write(master, everything)
    assert receive_all(line, 256) == everything
    with pytest.raises(DeviceError, match=f"^serial:{path}: cannot be opened: .*lock"):
        open_transport(f"serial:{path}")
    line.reopen()
    line.close()
    line.close()


def test_a_full_line_takes_nothing_more(terminal):
    """Back-pressure: what nobody reads is soon not taken any more, and nothing waits for it."""
    line, _ = open_transport(f"serial:{terminal[1]}")
    start, taken = time.monotonic(), 0
    for _ in range(200):
        taken += line.send(bytes(4096))
    assert taken < 200 * 4096 and line.send(b"x") == 0
    assert time.monotonic() - start < 5
    line.close()


@pytest.fixture
def server():
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        yield server


def test_tcp(server):
    port = server.getsockname()[1]
    line, _ = open_transport(f"tcp:127.0.0.1:{port}?token=secret")
    assert isinstance(line, TcpTransport)
    assert line.url == f"tcp:127.0.0.1:{port}?token=..."
    client, _ = server.accept()
    assert client.recv(100) == b"secret\n"
    client.sendall(b"hello")
    assert line.receive(5) == b"hello"
    assert line.receive(0.01) == b""
    client.close()
    with pytest.raises(DeviceError, match=r"token=\.\.\.: the other end closed the connection"):
        line.receive(5)
    line.reopen()
    client, _ = server.accept()
    client.sendall(b"refused: another client is connected\n")
    with pytest.raises(DeviceError, match=r"token=\.\.\.: refused: another client is connected$"):
        line.receive(5)
    client.close()
    line.close()


def test_fifos(tmp_path):
    paths = [str(tmp_path / name) for name in ("h2c", "c2h")]
    for path in paths:
        os.mkfifo(path)
    incoming, outgoing = (os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in paths)
    line, options = open_transport(f"xdma:{paths[0]},{paths[1]}?width=64")
    assert isinstance(line, DmaTransport) and options == {"width": "64"}
    assert line.send(b"hello") == 5 and os.read(incoming, 100) == b"hello"
    os.write(outgoing, b"world")
    assert line.receive(5) == b"world"
    with pytest.raises(DeviceError, match=f"^xdma:{paths[0]},{paths[1]}: cannot be opened: another client"):
        open_transport(f"xdma:{paths[0]},{paths[1]}")
    line.close()
    os.close(incoming)
    os.close(outgoing)


def test_character_devices(terminal):
    """A character device that blocks in `read`, as DMA drivers do, does not block the transport."""
    master, path = terminal
    line, _ = open_transport(f"xdma:/dev/null,{path}")
    start = time.monotonic()
    assert line.receive(0.05) == b"" and time.monotonic() - start < 1
    os.write(master, b"results")
    assert receive_all(line, 7) == b"results"
    os.write(master, b"more")  # lets the reading thread see that nobody listens any more
    line.close()
    os.write(master, b"more")
    deadline = time.monotonic() + 5
    while any(thread.name == "xdma" for thread in threading.enumerate()) and time.monotonic() < deadline:
        os.write(master, b"more")
        time.sleep(0.01)
    assert not any(thread.name == "xdma" for thread in threading.enumerate())


def filled(descriptor: int) -> int:
    """Writes until there is no room, and returns how much it was."""
    os.set_blocking(descriptor, False)
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            count += os.write(descriptor, bytes(4096))
    return count


def test_a_driver_that_blocks_in_write_ends_in_one_error(terminal):
    """Threads hang in the driver; the host gives up in time, and may try again."""
    master, path = terminal
    with open(path, "wb", buffering=0) as full:
        filled(full.fileno())
    results, slave = os.openpty()
    tty.setraw(slave)
    url = f"xdma:{path},{os.ttyname(slave)}"
    for _ in range(2):
        with pytest.raises(DeviceError) as error:
            open_link(url, limit=0.5)
        assert str(error.value).startswith(f"{url}: no answer to RESET for ")
    line, _ = open_transport(url)
    while line.send(bytes(1 << 20)):
        pass
    assert line.receive(0.01, room=True) == b""
    line.close()
    deadline = time.monotonic() + 30
    os.set_blocking(master, False)
    while any(thread.name == "xdma" for thread in threading.enumerate()) and time.monotonic() < deadline:
        with contextlib.suppress(BlockingIOError):
            os.read(master, 1 << 16)
        os.write(results, b"x")
        time.sleep(0.001)
    assert not any(thread.name == "xdma" for thread in threading.enumerate())
    os.close(results)
    os.close(slave)


def test_fifos_that_nobody_reads_end_in_one_error(tmp_path):
    paths = [str(tmp_path / name) for name in ("h2c", "c2h")]
    for path in paths:
        os.mkfifo(path)
    ends = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in paths]
    assert filled(ends[0])
    url = f"xdma:{paths[0]},{paths[1]}"
    with pytest.raises(DeviceError) as error:
        open_link(url, limit=0.5)
    assert str(error.value).startswith(f"{url}: no answer to RESET for ")
    for end in ends:
        os.close(end)


def test_memory():
    line = MemoryTransport(lambda data: data[::-1])
    assert line.send(b"abc") == 3
    assert (line.receive(1), line.receive(1)) == (b"cba", b"")
    line.pause(2)
    assert 3 <= line.now() < 3.1


@pytest.mark.parametrize(
    "url, error, message",
    [
        (
            "usb:1",
            ParameterError,
            "device URL must start with one of serial:, tcp:, xdma: and an address, not 'usb:1'",
        ),
        (
            "serial:",
            ParameterError,
            "device URL must start with one of serial:, tcp:, xdma: and an address, not 'serial:'",
        ),
        (
            "serial:/x?baud=fast",
            ParameterError,
            "serial:/x?baud=fast: baud must be a positive integer, not 'fast'",
        ),
        ("tcp:5000", ParameterError, "tcp:5000: a tcp: URL must be tcp:HOST:PORT, not '5000'"),
        ("xdma:/a", ParameterError, "xdma:/a: an xdma: URL must be xdma:H2C_PATH,C2H_PATH, not '/a'"),
        ("tcp:h:1?token", ParameterError, "device URL 'tcp:h:1?token': bad query field: 'token'"),
        ("serial:/no/such", DeviceError, "serial:/no/such: cannot be opened: "),
        ("tcp:127.0.0.1:1", DeviceError, "tcp:127.0.0.1:1: cannot be opened: [Errno 111] Connection refused"),
        ("xdma:/no/h2c,/no/c2h", DeviceError, "xdma:/no/h2c,/no/c2h: cannot be opened: [Errno 2] "),
    ],
)
def test_refused(url, error, message, monkeypatch):
    monkeypatch.setattr(transport, "OPEN_SECONDS", 0.1)
    with pytest.raises(error) as raised:
        open_transport(url)
    assert str(raised.value).startswith(message)
