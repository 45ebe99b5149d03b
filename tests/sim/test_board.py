"""Simulated boards: the gateware's whole top, its server, and clients that come, go and are killed.

::

    client <---> pty, tcp, fifos <---> serve <---> Board: [ UART or stream | shell | joiner ]
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pytest

from host import devices as host_devices
from host.chain import ChainSession
from host.device import LinkLost, open_device
from host.devices import devices, devices_table, selftest, selftest_table
from host.link import Header, LinkDevice, encode
from host.session import Session
from host.spec import JoinSpec
from host.three_way import COMPOSITE_TIME, composite_schema
from hw.dimension import Dimension
from hw.errors import DeviceError, ParameterError
from hw.frame import FrameKind, Link
from hw.parameters import Parameters
from sim import board as boards
from sim.board import Board, serve
from sim.link_model import LinkModel

from ..links import Faults, Line, batch, cut, dies, pairs_of, reset, run

PARAMETERS = Parameters(cores=2, segment=8, lanes=8)
DIVISOR = 3.3
#: Seconds that a step of a board lasts: long, so that waiting for a silent board takes few steps.
TICK = 0.001
TEXT = f"handshake?{PARAMETERS.options()}"
WIDE_PARAMETERS, WIDE_LINK = Parameters(cores=3, segment=4, lanes=4), Link(64, 16, 8)
WIDE = f"handshake?{WIDE_PARAMETERS.options()}&link={WIDE_LINK}"


def stream_board() -> Board:
    return Board(PARAMETERS, Link())


def uart_board() -> Board:
    return Board(PARAMETERS, Link(), "uart", DIVISOR)


def wide_board() -> Board:
    return Board(WIDE_PARAMETERS, WIDE_LINK)


@contextlib.contextmanager
def serving(board, listen: str, **options):
    """Serves a board in a thread; yields the URL."""
    stop, urls = threading.Event(), []
    ready = threading.Event()

    def announce(url: str) -> None:
        urls.append(url)
        ready.set()

    thread = threading.Thread(
        target=serve, args=(board, listen, stop), kwargs={"announce": announce, **options}, daemon=True
    )
    thread.start()
    assert ready.wait(10)
    try:
        yield urls[0]
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


@pytest.mark.parametrize("make", [stream_board, uart_board])
def test_batches_on_the_board(make, rng):
    with make() as board:
        device = run(Line(board, tick=TICK), rng, batches=2, count=16)
        assert device.parameters == PARAMETERS
        assert device.health()["damaged"] == 0


def test_share_of_the_wire_in_tuples(rng):
    """On the UART, at least 88 % of the wire's byte rate are tuples."""
    with uart_board() as board:
        line = Line(board, tick=TICK)
        device = LinkDevice(line)
        words, _ = batch(rng, 10, PARAMETERS)
        words = np.concatenate([np.repeat(words[:1], 800, 0), words[-2:]])
        before = board.cycles
        device.exchange(words, marks=1)
        wire = (board.cycles - before) / (10 * DIVISOR)
    share = len(words) * Link().tuple_words(PARAMETERS) / wire
    print(f"{len(words)} tuples in the time of {wire:.0f} bytes: {share:.1%}")
    assert share >= 0.88


KINDS = ("flip", "drop", "double", "insert")


@pytest.mark.parametrize(
    "make, kinds, unit, trials",
    [
        *((stream_board, (kind,), 1, 8) for kind in KINDS),
        (stream_board, KINDS, 1, 8),
        (uart_board, KINDS, 1, 3),
        (wide_board, KINDS, 1, 5),
        (wide_board, KINDS, WIDE_LINK.width // 8, 5),
    ],
)
def test_damage_both_ways(make, kinds, unit, trials, seed):
    """One byte in a thousand; on the wide link also a whole word in a hundred."""
    count = 0
    with make() as board:
        for trial in range(trials):
            rng = np.random.default_rng([seed, trial])
            faults = Faults(rng, 1e-3 if unit == 1 else 1e-2, kinds, unit)
            width = WIDE_LINK.width if make is wide_board else 8
            run(Line(board, faults, tick=TICK), rng, batches=1, count=12, width=width)
            count += faults.count
    print(f"{trials} trials, {count} faults ({'+'.join(kinds)} of {unit} bytes, seed {seed})")
    assert count


@pytest.mark.parametrize("make", [stream_board, wide_board])
def test_garbage_on_connect(make, seed):
    """Noise, frames of a session that died, and a frame that ends anywhere."""
    trials = 20
    link, width = (WIDE_LINK, WIDE_LINK.width) if make is wide_board else (Link(), 8)
    with make() as board:
        for trial in range(trials):
            rng = np.random.default_rng([seed, trial])
            stale = encode(link, Header(FrameKind.DATA, 0, 0, 8, 5), rng.bytes(9 * width // 8))
            stale += encode(link, Header(FrameKind.READY, session=5))
            line = Line(board, tick=TICK)
            line.unread = rng.bytes(int(rng.integers(300))) + stale[int(rng.integers(len(stale))) :]
            for noise in (rng.bytes(int(rng.integers(300))), stale[: int(rng.integers(len(stale)))]):
                while noise:
                    taken, out = board.step(noise)
                    noise = noise[taken:]
                    line.unread += out
            run(line, rng, batches=1, count=8, width=width)
    print(f"{trials} trials (seed {seed})")


@pytest.mark.parametrize("make", [stream_board, wide_board])
def test_slow_reader(make, rng):
    """Nothing piles up for a host that reads a few bytes now and then: results wait for its credit."""
    link = WIDE_LINK if make is wide_board else Link()
    with make() as board:
        line = Line(board, tick=TICK, sip=5)
        run(line, rng, batches=2, count=12, width=link.width)
    frame = (link.header_words + link.payload + link.crc_words) * link.width // 8
    print(f"at most {line.most_unread} bytes unread")
    assert line.most_unread <= link.frames * frame


def test_a_session_moves_to_a_spare_board(seed):
    """Whenever the board dies, the join ends on the other one, and no pair is lost or doubled."""
    trials, moved = 6, 0
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        times, values = np.sort(rng.integers(0, 100, (2, 40))), rng.integers(0, 8, (2, 40))
        r, s = (pa.table({"ts": at, name: value}) for at, value, name in zip(times, values, "xa"))
        spec = JoinSpec("r.x BETWEEN s.a - 1 AND s.a + 1", 12, "ts", r.schema, s.schema)
        with stream_board() as board, stream_board() as other:
            line, spare_line = (Line(one, tick=0.05, chunk=100) for one in (board, other))
            device, spare = LinkDevice(line, limit=5), LinkDevice(spare_line)
            used = spare_line.sent
            line.events = [(line.sent + int(rng.integers(2500)), dies)]
            arrivals = spec.arrange(r, s)
            result = Session(device, spec, [spare]).join(arrivals)
            moved += spare_line.sent > used
        near, alike = (
            np.abs(arrivals.r.rows[x].to_numpy()[:, None] - arrivals.s.rows[a].to_numpy()) <= most
            for x, a, most in (("ts", "ts", 12), ("x", "a", 1))
        )
        expected = np.argwhere(near & alike)
        assert sorted(zip(result.r.tolist(), result.s.tolist())) == list(map(tuple, expected.tolist()))
    print(f"{trials} trials, {moved} sessions moved (seed {seed})")
    assert moved


def test_cuts_and_resets(seed):
    trials, resets, cuts = 20, 0, 0
    with stream_board() as board:
        for trial in range(trials):
            rng = np.random.default_rng([seed, trial])
            line = Line(board, tick=TICK, chunk=50)
            device = LinkDevice(line)
            words, expected = batch(rng, 16, PARAMETERS)
            line.events = [
                (line.sent + int(rng.integers(1, 1100)), reset if trial % 2 else cut(int(rng.integers(3))))
            ]
            try:
                assert pairs_of(device.exchange(words, marks=1)) == expected
            except LinkLost as lost:
                assert "the device was reset: it is in session 0, not " in str(lost)
                resets += 1
                device.restart()
                assert pairs_of(device.exchange(words, marks=1)) == expected
            cuts += line.opened > 1 and not trial % 2
    print(f"{trials} trials, {cuts} cuts, {resets} resets that mattered (seed {seed})")
    assert cuts and resets


@pytest.mark.parametrize("listen", ["pty", "tcp:127.0.0.1:0", "fifo:{tmp}"])
@pytest.mark.parametrize(
    "make", [stream_board, lambda: LinkModel(PARAMETERS, Link())], ids=["board", "model"]
)
def test_served(listen, make, rng, tmp_path):
    board = make()
    with serving(board, listen.format(tmp=tmp_path / "dma")) as url:
        for _ in range(2):  # clients come and go
            with open_device(f"{url}?cores=2") as device:
                words, expected = batch(rng, 16, PARAMETERS)
                assert pairs_of(device.exchange(words, marks=1)) == expected
        checks = selftest(url)
        assert len(checks) == 10 and all(check.passed for check in checks), selftest_table(checks)
        (found,) = devices([url])
        assert found.parameters == PARAMETERS and found.health["live_evictions"] == 0
        assert "handshake" in devices_table([found]) and url in boards.served()
    assert url not in boards.served()


def test_half_a_word_from_a_client_that_died(rng, tmp_path):
    """On a FIFO nobody sees clients come and go, and what the last one left shifts the words of the next."""
    with wide_board() as board, serving(board, f"fifo:{tmp_path}", width=WIDE_LINK.width) as url:
        for left in (b"TL\3", b"x" * 13, bytes(1)):
            (tmp_path / "h2c").write_bytes(left)
            with open_device(url) as device:
                words, expected = batch(rng, 12, WIDE_PARAMETERS)
                assert pairs_of(device.exchange(words, marks=1)) == expected


def test_looking_at_boards_leaves_them_as_they_are(rng):
    words, expected = batch(rng, 12, PARAMETERS)
    with stream_board() as board, serving(board, "tcp:127.0.0.1:0") as url:
        device = open_device(url)
        device.exchange(words[:10])
        [busy] = devices([url])
        assert busy.error == "refused: another client is connected"
        device._transport.close()  # as a client that will come back
        [found] = devices([url])
        assert found.parameters == PARAMETERS and found.health["tuples"] == 10
        device._transport.reopen()
        assert pairs_of(device.exchange(words[10:], marks=1)) == expected
        device.close()


def test_looking_ends_in_time(monkeypatch):
    """Nobody answers, and meanwhile others are asked."""
    monkeypatch.setattr(host_devices, "LOOK_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        silent = f"tcp:127.0.0.1:{mute.getsockname()[1]}"
        with serving(LinkModel(PARAMETERS, Link()), "tcp:127.0.0.1:0") as url:
            first, second = devices([silent, url])
    assert first.error == "has not told everything within 1 seconds"
    assert second.parameters == PARAMETERS


def test_wide_words(rng):
    link = Link(128, 16, 8)
    with serving(LinkModel(PARAMETERS, link), "tcp:127.0.0.1:0", width=128) as url:
        assert url.endswith("?width=128")
        with open_device(url) as device:
            words, expected = batch(rng, 16, PARAMETERS)
            assert device.link == link and pairs_of(device.exchange(words, marks=1)) == expected


def test_one_client_at_a_time():
    with serving(LinkModel(PARAMETERS, Link()), "tcp:127.0.0.1:0") as url:
        with open_device(url):
            with pytest.raises(DeviceError) as error:
                open_device(url)
            assert str(error.value) == f"{url}: refused: another client is connected"
        open_device(url).close()


def test_token():
    with serving(LinkModel(PARAMETERS, Link()), "tcp:127.0.0.1:0", token="open sesame") as url:
        with open_device(f"{url}?token=open%20sesame") as device:
            assert device.parameters == PARAMETERS
        for token in ("?token=wrong", ""):
            with pytest.raises(DeviceError, match=r"refused: (wrong|no) token"):
                open_device(f"{url}{token}")
        open_device(f"{url}?token=open%20sesame").close()


@pytest.mark.parametrize(
    "listen, message",
    [
        (
            "tcp:0.0.0.0:0",
            "listen tcp:0.0.0.0:0: an address that is not loopback needs a token, which was not given",
        ),
        ("tcp:5000", "listen must be tcp:HOST:PORT, not 'tcp:5000'"),
        ("udp:1", "listen must be pty, tcp:HOST:PORT or fifo:DIR, not 'udp:1'"),
        ("fifo:", "listen must be fifo:DIR with a folder, not 'fifo:'"),
    ],
)
def test_refused(listen, message):
    with pytest.raises(ParameterError) as error:
        serve(LinkModel(PARAMETERS, Link()), listen, threading.Event())
    assert str(error.value) == message


def test_bad_boards():
    for arguments, message in (
        (("pci",), "pins must be one of stream, uart, not 'pci'"),
        (("uart",), "pins 'uart': a divisor is for uart, and needed there, not None"),
        (("stream", 4.0), "pins 'stream': a divisor is for uart, and needed there, not 4.0"),
    ):
        with pytest.raises(ParameterError) as error:
            Board(PARAMETERS, Link(), *arguments)
        assert str(error.value) == message


def start_server(listen: str, text: str = TEXT) -> tuple[subprocess.Popen, str]:
    """A server in a process of its own, and its URL."""
    say = "lambda url: print(url, flush=True)"
    command = f"from host.devices import serve; serve({text!r}, {listen!r}, announce={say})"
    process = subprocess.Popen([sys.executable, "-c", command], stdout=subprocess.PIPE, text=True)
    url = process.stdout.readline().strip()
    assert url
    return process, url


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def test_server_ends_cleanly():
    process, url = start_server("tcp:127.0.0.1:0")
    with process:
        with open_device(url) as device:
            assert device.parameters == PARAMETERS
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
    assert url not in boards.served()


def test_server_killed_and_started_again(rng):
    """Whatever the time, the batch is told as lost or is exact; the next one is exact."""
    listen = f"tcp:127.0.0.1:{free_port()}"
    trials, lost = 3, 0
    words, expected = batch(rng, 16, PARAMETERS)
    for _ in range(trials):
        process, url = start_server(listen)
        device = open_device(url)
        timer = threading.Timer(float(rng.uniform(0, 0.1)), process.kill)
        timer.start()
        restarted = threading.Event()

        servers: list[subprocess.Popen] = []

        def again(process=process, restarted=restarted, servers=servers):
            process.wait()
            servers.append(start_server(listen)[0])
            restarted.set()

        threading.Thread(target=again, daemon=True).start()
        start = time.monotonic()
        for _ in range(40):
            try:
                assert pairs_of(device.exchange(words, marks=1)) == expected
            except LinkLost:
                lost += 1
                assert restarted.wait(20)
                device.restart()
            if restarted.is_set():
                break
        assert restarted.wait(20) and time.monotonic() - start < 60
        device.close()
        for server in (*servers, process):
            server.kill()
            server.communicate()
    print(f"{trials} trials, {lost} batches lost and told")


def test_client_killed_and_started_again(rng):
    """A client that is killed within a batch leaves nothing behind that the next one would see."""
    words, expected = batch(rng, 16, PARAMETERS)
    trials = 5
    program = (
        "import sys, numpy as np; from host.device import open_device; d = open_device(sys.argv[1])\n"
        "words = np.load(sys.argv[2]); print('open', flush=True)\n"
        "while True: d.exchange(words[:-2]); d.exchange(words, marks=1)"
    )
    with stream_board() as board, serving(board, "tcp:127.0.0.1:0") as url:
        path = f"/tmp/touchline-test-{os.getpid()}.npy"
        np.save(path, words)
        try:
            for _ in range(trials):
                arguments = [sys.executable, "-c", program, url, path]
                with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as client:
                    assert client.stdout.readline() == "open\n"
                    time.sleep(float(rng.uniform(0, 0.2)))
                    client.kill()
                with open_device(url) as device:
                    assert pairs_of(device.exchange(words, marks=1)) == expected
        finally:
            os.unlink(path)
    print(f"{trials} trials")


def test_op_blocks_behind_a_wire(rng):
    """Instructions, composites and results of three streams pass the link like all else."""
    parameters = Parameters("opblock", cores=2, segment=2, lanes=2, dims=(Dimension.parse("band16"),) * 4)
    r, s, t = (
        pa.table({"ts": np.arange(5), name: rng.integers(0, 2, 5), "id": np.arange(5)}) for name in "xac"
    )
    inner = JoinSpec("r.x = s.a", 3, "ts", r.schema, s.schema)
    outer = JoinSpec("r.x = s.c", 3, (COMPOSITE_TIME, "ts"), composite_schema(inner), t.schema)
    with Board(parameters, Link()) as board:
        device = LinkDevice(Line(board, tick=TICK))
        joined, stats = ChainSession(device).join_three(inner, outer, r, s, t)
    rows = zip(*(joined[name].to_pylist() for name in ("r_id", "s_id", "id")))
    x, a, c = (table.column(1).to_pylist() for table in (r, s, t))
    expected = [
        (i, j, k)
        for i in range(5)
        for j in range(5)
        for k in range(5)
        if x[i] == a[j] == c[k] and abs(i - j) <= 3 and abs(max(i, j) - k) <= 3
    ]
    assert sorted(rows) == expected and stats.tiles > 1
