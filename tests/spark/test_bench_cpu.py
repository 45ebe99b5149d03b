"""The benchmark of the CPU engine: small measurements give figures, and a run keeps what it has measured."""

import json

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


def test_a_measurement_that_fails_says_why():
    got = bench_cpu._measured("steady", ("fast", 1, 1, 1, 1))
    assert got["why"].startswith("not run: ") and "Error" in got["why"]
