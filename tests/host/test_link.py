"""The wire between host and device, undamaged and damaged in every way, against the model of a device.

::

    LinkDevice <---> transport with faults <---> LinkModel (frames, numbers, credits, joiner)

Time passes only where nothing comes, so waits of half a minute take none. Each test of random faults
prints how many it made; `--seed` repeats them.
"""

import numpy as np
import pyarrow as pa
import pytest

from host.device import LinkLost
from host.link import LIMIT, SILENCE, Header, LinkDevice, Parser, encode
from host.session import Session
from host.spec import JoinSpec
from host.transport import MemoryTransport
from hw.errors import DeviceError, ParameterError
from hw.frame import FrameKind, Link
from hw.parameters import Parameters
from hw.socket import Kind
from sim.link_model import LinkModel

from ..links import PARAMETERS, Faults, Line, batch, cut, dies, pairs_of, reset, run

LINKS = [Link(), Link(16, 64, 4), Link(64, 16, 2), Link(512, 8, 64)]


@pytest.mark.parametrize("link", LINKS, ids=str)
def test_clean_line(link, rng):
    """Each tuple is sent once, and without a line of another width nothing is understood."""
    line = Line(LinkModel(PARAMETERS, link))
    device = LinkDevice(line, width=link.width)
    assert (device.parameters, device.link) == (PARAMETERS, link)
    line.sent = 0
    words, expected = batch(rng, 60)
    assert pairs_of(device.exchange(words, marks=1)) == expected
    frames = -(-len(words) // (link.payload // link.tuple_words(PARAMETERS)))
    overhead = (link.header_words + link.crc_words) * link.width // 8
    data = (len(words) * link.tuple_words(PARAMETERS)) * link.width // 8 + frames * overhead
    others = (line.sent - data) / overhead
    assert others == int(others) and others <= 5 + 2 * len(expected) / (link.payload // link.result_words)
    assert device.health() | {"steps": 0} == {
        **dict.fromkeys(("steps", "stalls", "live_evictions", "damaged"), 0),
        "tuples": 120,
        "pairs": len(expected),
    }


def test_share_of_tuples_on_the_line(rng):
    """Of the bytes sent on a clean line of the default size, at least 88 % are tuples."""
    line = Line(LinkModel(PARAMETERS, Link()))
    device = LinkDevice(line)
    line.sent = 0
    words, _ = batch(rng, 1000)
    words = words[unpack_kind(words) != Kind.S.value]  # nothing to send back but the mark
    device.exchange(words, marks=1)
    share = len(words) * Link().tuple_words(PARAMETERS) / line.sent
    print(f"{len(words)} tuples, {line.sent} bytes sent: {share:.1%} of them tuples")
    assert share >= 0.88


def unpack_kind(words: np.ndarray) -> np.ndarray:
    return words[:, 0] & 7


@pytest.mark.parametrize("rate", [1e-4, 1e-3], ids=lambda rate: f"1 in {1 / rate:.0f}")
@pytest.mark.parametrize(
    "kinds",
    [("flip",), ("drop",), ("double",), ("insert",), ("flip", "drop", "double", "insert")],
    ids="+".join,
)
def test_damaged_bytes_both_ways(kinds, rate, seed):
    trials, count, longest = 25, 0, 0.0
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        faults = Faults(rng, rate, kinds)
        line = Line(LinkModel(PARAMETERS, Link()), faults)
        run(line, rng)
        count += faults.count
        longest = max(longest, line.now())
    print(f"{trials} trials, {count} faults ({'+'.join(kinds)}), longest wait {longest:.2f} s (seed {seed})")
    assert count


@pytest.mark.parametrize("link", LINKS[1:], ids=str)
@pytest.mark.parametrize("whole", [False, True], ids=["bytes", "words"])
def test_damage_on_wide_links(link, whole, seed):
    """A byte too many or too few shifts all words behind it; a bridge finds them again."""
    trials, count = 6, 0
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        faults = Faults(rng, 1e-3, ("flip", "drop", "double", "insert"), link.width // 8 if whole else 1)
        run(Line(LinkModel(PARAMETERS, link), faults), rng, batches=4 if whole else 1, width=link.width)
        count += faults.count
    print(f"{trials} trials, {count} faults (seed {seed})")
    assert count


def test_line_cut_and_restored(seed):
    trials, cuts = 60, 0
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        events = [(int(at), cut(int(rng.integers(4)))) for at in rng.integers(700, 8000, 3)]
        line = Line(LinkModel(PARAMETERS, Link()), Faults(rng, 1e-4, ("flip",)), events)
        run(line, rng)
        cuts += line.opened - 1
    print(f"{trials} trials, {cuts} cuts (seed {seed})")
    assert cuts


@pytest.mark.parametrize("link", [Link(), Link(8, 29, 8)], ids=["default", "one tuple per frame"])
def test_device_reset_within_a_batch(link, seed):
    """Every reset is noticed, also around the 256th frame, where the numbers look like the expected ones."""
    trials, noticed = 30, 0
    parameters = Parameters(cores=10, segment=16, lanes=16)
    words, expected = batch(np.random.default_rng(seed), 150, parameters)
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        line = Line(LinkModel(parameters, link))
        device = LinkDevice(line)
        frame = 14 + link.payload // 29 * 29
        at = (
            rng.integers(248, 264) * frame
            if trial % 2 and link.payload == 29
            else rng.integers(1, 60 * frame)
        )
        line.events = [(line.sent + int(at), reset)]
        try:
            assert pairs_of(device.exchange(words, marks=1)) == expected
        except LinkLost as lost:
            noticed += 1
            assert str(lost).startswith("line:: the device was reset: it is in session 0, not ")
            with pytest.raises(LinkLost, match="restart"):
                device.exchange(words, marks=1)
            device.restart()
            assert pairs_of(device.exchange(words, marks=1)) == expected
    print(f"{trials} trials, {noticed} noticed (seed {seed})")
    assert noticed > trials / 2


def test_a_reset_at_which_all_numbers_fit_is_noticed_at_once(rng):
    """After 256 frames in and none out, a device that was reset expects and sends what the host does."""
    link = Link(8, 29, 8)
    line = Line(LinkModel(PARAMETERS, link))
    device = LinkDevice(line)
    words, expected = batch(rng, 60)
    points = words[unpack_kind(words) == Kind.R.value]
    device.exchange(np.resize(points, (256, points.shape[1])))
    wire = device._wire
    assert (wire._base, wire._expected) == (256, 0)
    line.board.reset()
    start = line.now()
    with pytest.raises(LinkLost, match="the device was reset: it is in session 0, not "):
        device.exchange(words, marks=1)
    assert line.now() - start < 0.1
    device.restart()
    assert pairs_of(device.exchange(words, marks=1)) == expected


def test_another_client_takes_the_device_over(rng):
    """Whoever comes back to a device that somebody else has used since is told so."""
    board = LinkModel(PARAMETERS, Link())
    first = LinkDevice(Line(board))
    words, expected = batch(rng, 20)
    first.exchange(words[:10])
    run(Line(board), rng)
    with pytest.raises(LinkLost, match=r"the device was reset: it is in session [1-9]\d*, not [1-9]"):
        first.exchange(words[10:], marks=1)
    first.restart()
    assert pairs_of(first.exchange(words, marks=1)) == expected


def test_looking_at_a_device_changes_nothing(rng):
    """Its registers are read while its tuples are half joined; then the join goes on, and is exact."""
    board = LinkModel(PARAMETERS, Link())
    device = LinkDevice(Line(board))
    words, expected = batch(rng, 40)
    device.exchange(words[:50])
    other = LinkDevice(Line(board), reset=False)
    assert other.parameters == PARAMETERS and other.health()["tuples"] == 50
    with pytest.raises(LinkLost, match=r"line:: not reset, or an exchange failed: restart\(\) the device"):
        other.exchange(words, marks=1)
    found = device.exchange(words[50:], marks=1)
    assert found.counters["tuples"] == 80 and found.counters["pairs"] == len(expected)


def test_a_look_at_a_device_in_the_middle_of_a_frame(rng):
    """A client died while it sent a frame, and results for it are on the line."""
    board = LinkModel(PARAMETERS, Link())
    device = LinkDevice(Line(board))
    words, _ = batch(rng, 40)
    whole = b"".join(
        encode(Link(), Header(FrameKind.DATA, k, 0, 8, device._wire._session), payload)
        for k, payload in enumerate(device._payloads(words))
    )
    _, out = board.step(whole[: 4 * 130 + 50])
    line = Line(board)
    line._waiting = out[7:]
    assert LinkDevice(line, reset=False, limit=2).parameters == PARAMETERS


def test_garbage_on_connect(seed):
    trials = 100
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        line = Line(LinkModel(PARAMETERS, Link()))
        # Frames of a session that died, cut anywhere, and noise.
        stale = encode(Link(), Header(FrameKind.DATA, 0), bytes(13 * 5)) + encode(
            Link(), Header(FrameKind.READY, 3)
        )
        stale = stale[int(rng.integers(len(stale))) :] + stale[: int(rng.integers(len(stale)))]
        line._waiting = rng.bytes(int(rng.integers(2000))) + stale
        line.board.step(stale[: int(rng.integers(len(stale)))])
        run(line, rng, batches=1, count=10)
    print(f"{trials} trials (seed {seed})")


@pytest.mark.parametrize("pace, chunk", [(1, None), (None, 3), (1, 5)])
def test_slow_device_and_slow_line(pace, chunk, rng):
    """The joiner takes a frame now and then, the line takes a few bytes at a time: nothing piles up."""
    line = Line(LinkModel(PARAMETERS, Link(), pace), chunk=chunk)
    run(line, rng, batches=1)


def test_results_wait_for_the_reader(rng):
    """A device sends no more results than the host has granted, however long nobody reads."""
    line = Line(LinkModel(PARAMETERS, Link()))
    device = LinkDevice(line)
    words, expected = batch(rng, 60)
    assert len(expected) * 13 > 2 * Link().frames * 117
    for payload in device._payloads(words):
        device._wire._payloads.append(payload)
    most = 0
    for _ in range(50):
        device._wire._fill()
        line.send(device._wire._out)
        device._wire._out = b""
        most = max(most, len(line._waiting))
        line.pause(1)
    assert most <= Link().frames * (132 + 2 * 12)


def test_dead_device(rng):
    """A device that falls silent is given up in bounded time, with one clear error."""
    line = Line(LinkModel(PARAMETERS, Link()))
    device = LinkDevice(line)
    words, _ = batch(rng, 60)
    line.faults = lambda data: b""
    start = line.now()
    with pytest.raises(LinkLost) as error:
        device.exchange(words, marks=1)
    assert str(error.value).startswith("line:: no answer to POLL for ")
    assert str(error.value).endswith(" seconds; gave up 30 seconds after its last answer")
    assert LIMIT <= line.now() - start <= LIMIT + 2 * SILENCE


def test_nobody_there():
    with pytest.raises(DeviceError) as error:
        LinkDevice(MemoryTransport(lambda data: b""), limit=3)
    assert str(error.value).startswith("memory:: no answer to RESET for 3.")
    assert str(error.value).endswith(" seconds: not a Touchline device, or not at this rate and width")
    with pytest.raises(DeviceError, match="no answer to RESET"):
        LinkDevice(MemoryTransport(lambda data: data), limit=3)  # a line that echoes


def test_hung_joiner(rng):
    """A device that answers and does nothing is told from one that is slow, in bounded time."""
    line = Line(LinkModel(PARAMETERS, Link(), pace=0))
    device = LinkDevice(line, stall=20)
    words, _ = batch(rng, 60)
    with pytest.raises(LinkLost) as error:
        device.exchange(words, marks=1)
    assert "hang: the device answers, but has taken no tuple and given no result for 20 seconds" in str(
        error.value
    )


@pytest.mark.parametrize(
    "options, error, message",
    [
        (
            {"cores": "8"},
            DeviceError,
            "line:: cores must be 8, not 4; the device is handshake?cores=4&segment=16&",
        ),
        (
            {"core": "8"},
            ParameterError,
            "line:: unknown parameter 'core'; accepted: buffer, cores, dims, lanes,",
        ),
        (
            {"segment": "5"},
            ParameterError,
            "line:: lanes must divide segment (5), not 16; the device is handshake?",
        ),
    ],
)
def test_other_parameters_are_refused(options, error, message):
    with pytest.raises(error) as raised:
        LinkDevice(Line(LinkModel(PARAMETERS, Link())), options)
    assert str(raised.value).startswith(message)


def test_expected_parameters():
    LinkDevice(Line(LinkModel(PARAMETERS, Link())), {"cores": "4"}, None)
    LinkDevice(Line(LinkModel(PARAMETERS, Link())), None, PARAMETERS)
    with pytest.raises(DeviceError, match="buffer must be 8, not 16"):
        LinkDevice(
            Line(LinkModel(PARAMETERS, Link())), None, Parameters(cores=4, segment=16, lanes=16, buffer=8)
        )


def test_parser_finds_frames_of_every_length(rng):
    """Whatever lies between them, and however they are cut up on the way."""
    for link in (Link(), Link(32, 40, 8)):
        frames = [
            (Header(FrameKind.DATA, n % 256, 1, 2), rng.bytes(n * link.width // 8))
            for n in range(link.payload + 1)
        ]
        noise = [b"TL" * 3, b"T", b"", rng.bytes(20)]
        stream = b"".join(noise[k % 4] + encode(link, *frame) for k, frame in enumerate(frames))
        parser, found, at = Parser(link), [], 0
        while at < len(stream):
            size = int(rng.integers(1, 300))
            found += parser.feed(stream[at : at + size])
            at += size
        for _ in range(100):
            found += parser.skip()
        assert found == frames


def test_session_survives_cuts_resets_and_another_device(brute, seed):
    """Joins are exact whatever happens: tiles and sliding runs, on the same device and on a spare one."""
    trials, resets = 12, 0
    for trial in range(trials):
        rng = np.random.default_rng([seed, trial])
        r, s = (
            pa.table(
                {"ts": pa.array(np.sort(rng.integers(0, 300, 150))), name: pa.array(rng.integers(0, 12, 150))}
            )
            for name in "xa"
        )
        window = 300 if trial % 2 else 10  # larger than the device, or sliding through it
        spec = JoinSpec("r.x BETWEEN s.a - 1 AND s.a + 1", window, "ts", r.schema, s.schema)
        events = [(int(at), [reset, cut(2)][k % 2]) for k, at in enumerate(rng.integers(800, 9000, 3))]
        line = Line(LinkModel(PARAMETERS, Link()), Faults(rng, 1e-4, ("flip", "drop")), events)
        device = LinkDevice(line)
        spare = LinkDevice(Line(LinkModel(PARAMETERS, Link())))
        if trial % 3 == 0:
            line.events = [(line.sent + 2000, dies)]
        arrivals = spec.arrange(r, s)
        result = Session(device, spec, [spare]).join(arrivals)
        resets += device._wire.transport.opened - 1
        got = sorted(zip(result.r.tolist(), result.s.tolist()))
        encoded = spec.encode(arrivals)
        inside = np.ones((len(encoded.points.row), len(encoded.boxes.row)), bool)
        for k, dim in enumerate(spec.dimensions):
            inside &= dim.contains(
                encoded.points.codes[k][:, None], encoded.boxes.lo[k][None, :], encoded.boxes.hi[k][None, :]
            )
        point, box = np.nonzero(inside)
        kept = spec.refine(arrivals, encoded, point, box, set())
        assert got == sorted(
            zip(encoded.points.row[point[kept]].tolist(), encoded.boxes.row[box[kept]].tolist())
        )
    print(f"{trials} trials, {resets} times opened again (seed {seed})")


def test_spares_must_be_alike():
    r, s = (pa.schema([("ts", pa.int64()), (name, pa.int64())]) for name in "xa")
    spec = JoinSpec("r.x = s.a", 10, "ts", r, s)
    device, spare = (
        LinkDevice(Line(LinkModel(parameters, Link()))) for parameters in (PARAMETERS, Parameters(cores=2))
    )
    with pytest.raises(
        ParameterError, match=r"spare device line:: parameters must be cores=4&.*, not cores=2&"
    ):
        Session(device, spec, [spare])
