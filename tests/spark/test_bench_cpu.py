"""The benchmark of the CPU engine: small measurements give figures, and a run keeps what it has measured."""

import json
import subprocess
import sys
import time

import pytest

from spark_offload import bench_cpu
from spark_offload.bench_peers import SECOND, Query


@pytest.mark.parametrize("name", bench_cpu.MEASURED)
def test_structures(name, monkeypatch):
    monkeypatch.setattr(bench_cpu, "POINT", 0.01)
    assert min(bench_cpu._throughput(name, batch=64, rows=2048, matches=4)) > 0
    assert bench_cpu._join_rate(name, rows=1024, matches=4, batch=64) > 0


def test_steady_windows():
    """Each tuple meets one of the other stream on average when it comes."""
    got = bench_cpu.steady(rate=500, values=1, highest=8000, margin=0, window=16)
    assert got["found"] == pytest.approx(2 * 500, rel=0.15)
    assert 1 <= got["bytes"] < 1.25


def test_rising_values_go_to_the_wib_tree():
    """Batches of four rows, in which values lie close: what decides are the windows, not the newest batch."""
    got = bench_cpu.rising()
    assert got["names"] == ["wib_tree", "wib_tree"]
    assert "lie beyond those of the subwindow before" in got["explained"]


@pytest.mark.parametrize("values", bench_cpu.DISTRIBUTIONS)
def test_tables_are_balanced_by_three_adjustments(values, monkeypatch):
    monkeypatch.setattr(bench_cpu, "SKEWED", 2**16)
    errors = bench_cpu.balance(values)["errors"]
    assert errors[0] > 1.5
    assert max(errors[3:]) <= bench_cpu.BALANCED


def test_all_ways_to_ask_find_the_same():
    query = {"rows": 3000, "window": SECOND}
    counts = {
        bench_cpu.band("touchline", {**query, "listed": listed, "time_first": first})["found"]
        for listed in (False, True)
        for first in (None, False, True)
    }
    counts |= {bench_cpu.pushed(3000, batch, 1)["found"] for batch in (100, 3000)}
    assert len(counts) == 1


def test_conditions_in_either_order():
    assert Query(1, 5, False).condition.startswith("r.x >= s.a - 10")
    assert Query(1, 5, False, True).condition.startswith("r.ts >= s.ts - 5")


def test_a_run_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(bench_cpu, "KEPT", tmp_path / "build/kept.jsonl")
    taken = []

    def measure(name, arguments):
        taken.append(arguments)
        return {"rate": len(taken)}

    monkeypatch.setattr(bench_cpu, "_measured", measure)
    run = bench_cpu.Run(resume=False)
    assert [run.measured("pushed", rows)["rate"] for rows in (1, 2, 1)] == [1, 2, 1]
    assert bench_cpu.Run(resume=True).measured("pushed", 2) == {"rate": 2}
    assert len(taken) == len([json.loads(line) for line in bench_cpu.KEPT.read_text().splitlines()]) == 2
    assert bench_cpu.Run(resume=False).measured("pushed", 2) == {"rate": 3}


FIGURES = {
    "band": {"seconds": 1.0, "cpu": 2.0, "found": 5},
    "pushed": {"rate": 500.0, "found": 5},
    "spark_streamed": {"rate": 10.0, "found": 5},
    "flink_streamed": {"rate": 100.0, "found": 5},
    "memory": {"bytes": 1.5},
    "balance": {"errors": [2.0, 1.0, 0.5, 0.4, 0.3, 0.3]},
    "rising": {"names": ["wib_tree", "levels"], "explained": ""},
}


def test_verdicts(tmp_path, monkeypatch, capsys):
    """Every target is listed with what was reached, and whether that is enough."""
    monkeypatch.setattr(bench_cpu, "KEPT", tmp_path / "kept.jsonl")

    def measure(name, arguments):
        if name == "band" and arguments[0] == "touchline":
            return {"seconds": 0.05, "cpu": 0.08, "found": 5}
        if name == "band" and arguments[0] == "spark, naive":
            return {"why": "more than 90 s", "beyond": 90}
        return FIGURES[name]

    monkeypatch.setattr(bench_cpu, "_measured", measure)
    run = bench_cpu.Run(resume=False)
    for section in ("bands", "order", "streams", "skew"):
        bench_cpu.SECTIONS[section](run)
    asked = "200,000 x 200,000 rows, window 1 s"
    assert run.verdicts[:2] == [
        (
            f"{asked}: counted, for the fastest peer's time",
            "at least 20 times",
            "20.0, by CPU time 25.0",
            "yes",
        ),
        (
            f"{asked}: listed, for the fastest peer's time",
            "at least 10 times",
            "20.0, by CPU time 25.0",
            "yes",
        ),
    ]
    reached = {what: (reached, enough) for what, _, reached, enough in run.verdicts}
    assert reached["the order of conditions"] == ("1.00", "yes")
    assert reached["micro-batches of 1,000, for Spark's and Flink's rate"] == ("50 and 5", "NO")
    assert reached["RaP-Table with normal values: balanced to 0.35 shares"] == ("4", "NO")
    assert reached["structure of values that rise"] == ("levels, wib_tree", "NO")
    assert f"not run: counting {asked} takes more than 90 s" in capsys.readouterr().out


def test_growth_is_the_median_of_turns(tmp_path, monkeypatch, capsys):
    """A turn on a machine that is half as fast changes nothing; a window that is always slow does."""
    monkeypatch.setattr(bench_cpu, "KEPT", tmp_path / "kept.jsonl")
    measured, largest = 0, bench_cpu.WINDOWS[-1]

    def measure(name, arguments):
        nonlocal measured
        turn, measured = measured // len(bench_cpu.WINDOWS), measured + 1
        *_, margin, window, subwindows, _ = arguments
        assert window * subwindows == largest  # as many tuples are timed of each
        if margin and window == 64 and turn % bench_cpu.TURNS == 7:
            return {"why": "more than 600 s"}
        # One measurement, in a slow turn, comes out at a tenth.
        lucky = 0.1 if measured == 6 else 1
        return {"cpu": 0.01 * lucky * (1 + turn % 2) * (1.3 if window >= 128 else 1.0), "bytes": 0.5}

    monkeypatch.setattr(bench_cpu, "_measured", measure)
    run = bench_cpu.Run(resume=False)
    bench_cpu.growth(run)
    what = "CPU per tuple as the window doubles"
    assert run.verdicts == [
        (f"equality: {what}", "at most 1.2 times", "1.30", "NO"),
        (f"band: {what}", "at most 1.2 times", "not measured", "NO"),
    ]
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[-2] for line in shown if line[:1] == ["equality"]] == ["ns", "1.00", "1.30", "1.00"]
    assert [line[-1] for line in shown if line[:1] == ["band"]] == ["0.50", "s", "0.50", "0.50"]
    monkeypatch.setattr(bench_cpu, "_measured", lambda name, arguments: {"cpu": 0.01, "bytes": 0.5})
    run = bench_cpu.Run(resume=False)
    bench_cpu.growth(run)
    assert [enough for *_, enough in run.verdicts] == ["yes", "yes"]


def test_cpu_time_has_that_of_children():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        before, deadline = bench_cpu.cpu_time(), time.monotonic() + 30
        while bench_cpu.cpu_time() < before + 0.2:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        child.kill()
        child.wait()


def test_a_measurement_that_fails_says_why():
    got = bench_cpu._measured("steady", ("fast", 1, 1, 1, 1))
    assert got["why"].startswith("not run: ") and "Error" in got["why"]
