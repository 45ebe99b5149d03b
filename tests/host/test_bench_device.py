"""The benchmark of rows through a device, in a size that takes a moment."""

import pytest

from host import bench_device
from host.bench_device import joined, tables
from host.cpu import CpuSession
from host.device import open_device
from host.spec import JoinSpec
from hw.errors import DeviceError

from ..configurations import DEVICES


def test_the_device_finds_what_the_cpu_engine_finds():
    """`joined` compares the pairs."""
    r, s = tables(300, keys=20)
    spec = JoinSpec("r.k = s.k", "20 microseconds", "ts", r.schema, s.schema)
    with open_device(DEVICES["bisort_serial"]) as device:
        stats = joined(device, spec, r, s).stats
    assert stats.tuples == 300 and stats.pairs > 100 and stats.cycles > 300


def test_pairs_that_the_cpu_engine_does_not_find_are_an_error(monkeypatch):
    r, s = tables(300, keys=20)
    spec = JoinSpec("r.k = s.k", "20 microseconds", "ts", r.schema, s.schema)
    narrow = JoinSpec("r.k = s.k", "2 microseconds", "ts", r.schema, s.schema)
    monkeypatch.setattr(bench_device, "CpuSession", lambda spec: CpuSession(narrow))
    with (
        open_device(DEVICES["bisort_serial"]) as device,
        pytest.raises(DeviceError, match="of the CPU engine"),
    ):
        joined(device, spec, r, s)
