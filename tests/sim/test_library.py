"""Tests of the Verilated libraries, on joiners small enough to predict every result and cycle.

::

                     +------+  S tuple -> pair (1000, id), MARK -> mark, others vanish
    tuples --------->| Echo |---------> results
                     +------+  a tuple whose id is `hang` is never taken
"""

import dataclasses
import fcntl
import functools
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from amaranth.back import verilog
from amaranth.hdl import Module
from amaranth.lib import wiring

from hw.dimension import Dimension, Test
from hw.errors import DeviceError, ParameterError, ToolError
from hw.parameters import Parameters
from hw.socket import Kind, Socket, Tag
from hw.tools import Tool
from hw.words import pack_boxes, pack_control, pack_points, unpack_results
from sim import library
from sim.library import Library, build

DIMS = (Dimension(Test.BAND), Dimension(Test.EQUAL, 8))
CORES = 3
HANG = 0xDEAD


class Echo(wiring.Component):
    """Answers each S tuple with the pair (r_id, id) one cycle later, one tuple per cycle."""

    def __init__(self, r_id: int = 1000):
        self.r_id = r_id
        super().__init__(Socket(DIMS, CORES))

    def elaborate(self, platform):
        m = Module()
        tuples, results = self.tuples, self.results
        free = ~results.valid | results.ready
        m.d.comb += tuples.ready.eq(free & (tuples.payload.id != HANG))
        taken = tuples.valid & tuples.ready
        m.d.comb += self.activity.eq(tuples.payload.id[:CORES] & taken.replicate(CORES))
        with m.If(free):
            m.d.sync += results.valid.eq(0)
        with m.If(taken):
            # Steps of a billion wrap a 32-bit counter with every fifth tuple.
            m.d.sync += self.counters.steps.eq(self.counters.steps + 1_000_000_000)
            with m.Switch(tuples.payload.kind):
                with m.Case(Kind.S):
                    m.d.sync += [
                        results.valid.eq(1),
                        results.payload.tag.eq(Tag.PAIR),
                        results.payload.body.pair.r_id.eq(self.r_id),
                        results.payload.body.pair.s_id.eq(tuples.payload.id),
                        self.counters.pairs.eq(self.counters.pairs + 1),
                    ]
                with m.Case(Kind.MARK):
                    m.d.sync += [
                        results.valid.eq(1),
                        results.payload.tag.eq(Tag.MARK),
                        results.payload.body.mark.id.eq(tuples.payload.id),
                    ]
        return m


@pytest.fixture(scope="session")
def echo() -> Library:
    return Library(build(verilog.convert(Echo(), name="echo"), "echo", DIMS, CORES), "echo", CORES)


@pytest.fixture
def model(echo):
    with echo.open() as model:
        yield model


def boxes(ids) -> np.ndarray:
    zeros = np.zeros(len(ids), np.uint64)
    return pack_boxes(DIMS, ids, [zeros, zeros], [zeros, zeros])


def mark(number: int) -> np.ndarray:
    return pack_control(DIMS, Kind.MARK, number)


def pairs(run) -> list[int]:
    found = unpack_results(run.results)
    return found.s_id[found.tag == Tag.PAIR.value].tolist()


def test_run_until_mark(model):
    ids = np.arange(100)
    run = model.run(np.concatenate([boxes(ids), mark(7)]), marks=1)
    assert pairs(run) == ids.tolist()
    last = unpack_results(run.results[-1:])
    assert (last.tag[0], last.mark_id[0]) == (Tag.MARK.value, 7)
    assert run.cycles == 102
    assert run.counters["pairs"] == 100


def test_results_inside_come_out_later(model):
    first = model.run(boxes([1, 2, 3]))
    assert (pairs(first), first.cycles) == ([1, 2], 3)
    assert (first.taken, first.given, first.activity) == (None, None, None)
    nothing = model.run(boxes([]))
    assert (pairs(nothing), nothing.cycles) == ([], 0)
    assert pairs(model.run(mark(0), marks=1)) == [3]


def test_more_results_than_the_buffer(model):
    ids = np.arange(3 * library._ROOM + 5)
    run = model.run(np.concatenate([boxes(ids), mark(0)]), marks=1, timestamps=True)
    assert pairs(run) == ids.tolist()
    assert np.array_equal(run.given, np.arange(1, len(ids) + 2))


@pytest.mark.parametrize("stall_in", [0, 128, 255])
@pytest.mark.parametrize("stall_out", [0, 128, 255])
def test_stalls_lose_nothing_and_repeat(echo, stall_in, stall_out):
    words = np.concatenate([boxes(np.arange(200)), mark(0)])
    runs = []
    for seed in (1, 1, 2):
        with echo.open() as model:
            runs.append(model.run(words, marks=1, stall_seed=seed, stall_in=stall_in, stall_out=stall_out))
    assert all(pairs(run) == list(range(200)) for run in runs)
    assert runs[0].cycles == runs[1].cycles
    busiest = max(stall_in, stall_out)
    assert 0.8 < runs[0].cycles / (202 * 256 / (256 - busiest)) < 2.2
    assert (runs[0].cycles == runs[2].cycles) == (busiest == 0)


def test_offered_words_stay_until_taken(model):
    """Echo computes ready from the payload, so a word that changed while it waits would be seen."""
    words = np.concatenate([boxes(np.arange(1, 500)), mark(0)])
    run = model.run(words, marks=1, stall_seed=3, stall_in=100, stall_out=200, bucket=1)
    assert pairs(run) == list(range(1, 500))
    assert run.activity.sum() == sum(bin(k & 7).count("1") for k in range(1, 500))


def test_timestamps_and_activity(model):
    ids = np.array([1, 2, 4, 5, 7])
    run = model.run(np.concatenate([boxes(ids), mark(0)]), marks=1, timestamps=True, bucket=2)
    assert run.taken.tolist() == [0, 1, 2, 3, 4, 5]
    assert run.given.tolist() == [1, 2, 3, 4, 5, 6]
    assert run.activity.tolist() == [[1, 1, 0], [1, 0, 2], [1, 1, 1], [0, 0, 0]]


def test_words_wait_for_their_time(model):
    words = np.concatenate([boxes([1, 2, 3]), mark(0)])
    run = model.run(words, marks=1, timestamps=True, at=np.array([2, 2, 9, 40]))
    assert run.taken.tolist() == [2, 3, 9, 40]
    assert run.given.tolist() == [3, 4, 10, 41]
    assert (pairs(run), run.cycles) == ([1, 2, 3], 42)
    # Without marks the run ends with the last word, and time begins anew.
    assert model.run(boxes([4]), timestamps=True, at=np.array([5])).taken.tolist() == [5]


@pytest.mark.parametrize("marks", [0, 1, 3])
def test_marks_that_come_early_keep_no_word_from_being_sent(model, marks):
    words = np.concatenate([mark(0), mark(1), boxes([2]), mark(3)])
    run = model.run(words, marks=marks, timestamps=True, at=np.array([0, 50, 70, 5000]))
    assert run.taken.tolist() == [0, 50, 70, 5000]


def test_counters_go_on_past_32_bits(model, monkeypatch):
    monkeypatch.setattr(library, "PAUSE_CYCLES", 4)
    run = model.run(boxes(np.arange(50)))
    assert run.counters == {
        "tuples": 0,
        "pairs": 50,
        "steps": 50_000_000_000,
        "stalls": 0,
        "live_evictions": 0,
    }


def test_models_are_apart(echo):
    with echo.open() as one, echo.open() as other:
        one.run(boxes([1, 2]))
        assert other.run(mark(0), marks=1).counters["pairs"] == 0
        assert pairs(one.run(mark(0), marks=1)) == [2]


def test_libraries_are_apart(echo):
    """Two libraries have symbols of the same names, and neither sees the other's."""
    other = Library(build(verilog.convert(Echo(r_id=2000), name="echo"), "echo", DIMS, CORES), "echo", CORES)
    words = np.concatenate([boxes([5]), mark(0)])
    with echo.open() as one, other.open() as two:
        assert unpack_results(one.run(words, marks=1).results).r_id[0] == 1000
        assert unpack_results(two.run(words, marks=1).results).r_id[0] == 2000


def test_run_releases_the_interpreter(echo):
    """Models run side by side in threads while Python goes on."""
    with echo.open() as model:
        hang = functools.partial(model.run, boxes([HANG]), patience=3_000_000)
        thread = threading.Thread(target=pytest.raises, args=(DeviceError, hang))
        thread.start()
        laps = 0
        while thread.is_alive():
            laps += 1
            time.sleep(0.001)
        assert laps > 5


def test_hang_on_tuples(model):
    message = (
        r"sim echo: hang: no transfer on tuples for 1000 cycles "
        r"\(2 of 4 words taken, valid high, ready low; 0 of 1 marks seen\)$"
    )
    with pytest.raises(DeviceError, match=message):
        model.run(np.concatenate([boxes([1, 2, HANG]), mark(0)]), marks=1, patience=1000)
    with pytest.raises(DeviceError, match=r"^sim echo: the model is closed$"):
        model.run(boxes([]))


def test_hang_on_results(model):
    message = (
        r"sim echo: hang: no transfer on results for 1000 cycles "
        r"\(2 of 2 words taken, valid low, ready high; 1 of 2 marks seen\)$"
    )
    with pytest.raises(DeviceError, match=message):
        model.run(np.concatenate([boxes([1]), mark(0)]), marks=2, patience=1000)


def test_refused_arguments(model):
    message = r"^sim echo: words must be uint32 of shape \(n, 4\), not int64 of \(2,\)$"
    with pytest.raises(ParameterError, match=message):
        model.run(np.zeros(2, np.int64))
    with pytest.raises(ParameterError, match=r"^sim echo: stall_out must be from 0 to 255, not 256$"):
        model.run(boxes([]), stall_seed=1, stall_out=256)
    with pytest.raises(ParameterError, match=r"^sim echo: stall_in=3 needs a stall_seed$"):
        model.run(boxes([]), stall_in=3)
    with pytest.raises(ParameterError, match=r"^sim echo: at must be 2 cycles that rise, not \[3 1\]$"):
        model.run(boxes([1, 2]), at=np.array([3, 1]))
    with pytest.raises(ParameterError, match=r"^sim echo: bucket must not be given with at, not 4$"):
        model.run(boxes([1]), at=np.array([3]), bucket=4)


def test_points_are_taken(model):
    points = pack_points(DIMS, [9], [np.array([5]), np.array([6])])
    assert len(model.run(np.concatenate([points, mark(3)]), marks=1).results) == 1


@pytest.fixture
def slow_verilator(tmp_path, monkeypatch):
    """Sets a stand-in for Verilator that takes a given time and logs each of its runs."""
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("TOUCHLINE_CACHE", str(tmp_path / "cache"))

    def install(seconds: float) -> Path:
        script = f"echo $$ >> '{log}' && mkdir build && touch build/top.so && exec sleep {seconds}"
        tool = Tool("verilator", ("/bin/sh", "-c", script), "5.048", dict(os.environ))
        monkeypatch.setattr(library.tools, "verilator", lambda: tool)
        return log

    return install


def test_processes_build_once(slow_verilator):
    log = slow_verilator(0.5)
    with multiprocessing.get_context("fork").Pool(4) as pool:
        paths = pool.starmap_async(build, [("text", "echo", DIMS, CORES)] * 4, chunksize=1).get(timeout=60)
    assert len(set(paths)) == 1 and paths[0].is_file()
    assert len(log.read_text().split()) == 1
    assert {path.suffix for path in paths[0].parent.iterdir()} == {".so", ".lock"}


def test_killed_builder_blocks_nobody(slow_verilator):
    log = slow_verilator(60)
    builder = multiprocessing.get_context("fork").Process(target=build, args=("text", "echo", DIMS, CORES))
    builder.start()
    deadline = time.monotonic() + 30
    while not log.read_text().endswith("\n"):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    builder.kill()
    builder.join(30)
    os.kill(int(log.read_text()), signal.SIGKILL)  # its Verilator, which it can no longer stop
    slow_verilator(0)
    path = build("text", "echo", DIMS, CORES)
    assert {path.suffix for path in path.parent.iterdir()} == {".so", ".lock"}


def test_failed_build_leaves_nothing(slow_verilator, monkeypatch):
    slow_verilator(0)
    tool = Tool("verilator", ("/bin/sh", "-c", "echo no good; exit 3"), "5.048", dict(os.environ))
    monkeypatch.setattr(library.tools, "verilator", lambda: tool)
    with pytest.raises(ToolError, match=r"^verilator 5\.048 failed with exit code 3:\nno good$"):
        build("text", "echo", DIMS, CORES)
    assert {path.suffix for path in library.cache_directory().iterdir()} == {".lock"}


def test_waiting_for_another_builder_ends(slow_verilator, monkeypatch):
    slow_verilator(0)
    path = build("text", "echo", DIMS, CORES)
    path.unlink()
    monkeypatch.setattr(library, "BUILD_SECONDS", 0.3)
    with path.with_suffix(".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        message = f"another process has held {lock.name} for 0.3 seconds: stop it and try again"
        with pytest.raises(ToolError, match=f"^{message}$"):
            build("text", "echo", DIMS, CORES)


@pytest.mark.parametrize("part", ["text", "name", "dims", "cores", "verilator", "harness"])
def test_the_digest_covers(slow_verilator, monkeypatch, tmp_path, part):
    slow_verilator(0)
    arguments = {"verilog_text": "text", "name": "echo", "dims": DIMS, "cores": CORES}
    first = build(**arguments)
    match part:
        case "text":
            arguments["verilog_text"] = "other"
        case "name":
            arguments["name"] = "other"
        case "dims":
            arguments["dims"] = DIMS[:1]
        case "cores":
            arguments["cores"] += 1
        case "verilator":
            newer = dataclasses.replace(library.tools.verilator(), version="5.050")
            monkeypatch.setattr(library.tools, "verilator", lambda: newer)
        case "harness":
            other = tmp_path / "other.cpp"
            other.write_text("another")
            monkeypatch.setattr(library, "HARNESS", (library.HARNESS[0], other))
    assert build(**arguments) != first


def test_verilog_is_written_once(tmp_path, monkeypatch):
    monkeypatch.setenv("TOUCHLINE_CACHE", str(tmp_path))
    written = []
    monkeypatch.setattr(library.verilog, "emit", lambda parameters: written.append(parameters) or "text")
    one, other = Parameters(cores=1), Parameters(cores=2)
    assert [library._emitted(parameters) for parameters in (one, one, other)] == ["text"] * 3
    assert written == [one, other]
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".v", ".v"]


def test_verilog_is_kept_by_the_sources_that_were_imported(tmp_path, monkeypatch):
    """Not by files that changed since: they did not write it."""
    monkeypatch.setenv("TOUCHLINE_CACHE", str(tmp_path))
    monkeypatch.setattr(library.verilog, "emit", lambda parameters: "text")
    library._emitted(Parameters(cores=1))
    changed = tmp_path / "hw"
    changed.mkdir()
    (changed / "verilog.py").write_text("another")
    monkeypatch.setattr(library.verilog, "__file__", str(changed / "verilog.py"))
    library._emitted(Parameters(cores=1))
    assert len(list(tmp_path.glob("*.v"))) == 1


def test_only_memories_of_zeros_lose_their_contents():
    """Verilator's memories begin with zeros; whatever else begins or becomes zero stays."""
    kept = [
        "  initial begin\n    some[0] = 8'h00;\n    some[1] = 8'h07;\n  end\n",
        "  always_comb begin\n    bits[0] = 1'h0;\n  end\n",
    ]
    zeros = "  initial begin\n    \\none.of [0] = 8'h00;\n    \\none.of [1] = 8'd0;\n  end\n"
    assert library._without_zeros(kept[0] + zeros + kept[1]) == "".join(kept)
