"""What joins: `auto`, devices that fail, and how `explain` tells it."""

import warnings
from collections import Counter
from functools import partial

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import Observation

from host import device
from host.session import Session
from host.spec import JoinSpec
from hw.errors import DeviceError, ParameterError
from spark_offload import explain, joiner, stream_join
from spark_offload.joiner import Joiner, Where
from spark_offload.stream_join import StreamJoin
from spark_offload.task import METRICS, Task

from ..configurations import DEVICES, parameters

BAND = "r.x BETWEEN s.a - 1 AND s.a + 1"
NOWHERE = "tcp:127.0.0.1:1"


@pytest.fixture(scope="module")
def streams(spark):
    rng = np.random.default_rng(2)
    return tuple(
        spark.createDataFrame(
            pa.table({"t": rng.integers(0, 60, 200), name: rng.integers(0, 20, 200), "note": ["n"] * 200})
        )
        for name in "xa"
    )


@pytest.fixture
def impatient(monkeypatch):
    """A device that does not answer is asked once."""
    monkeypatch.setattr(device, "BUSY_SECONDS", -1)


def test_auto_without_a_device_is_the_cpu(streams):
    join = StreamJoin(*streams, BAND, 3, "t", offload="auto")
    assert (join.placement.runs_on, join.device) == ("the CPU", "cpu:auto")
    assert join.placement.why == "no device is given, and Spark schedules none"


def test_auto_never_simulates(streams):
    with pytest.raises(ParameterError) as caught:
        stream_join(*streams, BAND, 3, "t", offload="auto", device="sim:handshake")
    assert str(caught.value) == (
        "with offload='auto' device must be a URL that starts with cpu:, serial:, tcp:, xdma:, "
        "not 'sim:handshake'"
    )


def test_a_device_that_fails_before_the_join(streams, impatient):
    arguments = (*streams, BAND, 3, "t", "fpga", None, NOWHERE)
    with pytest.raises(DeviceError, match="cannot be opened"):
        stream_join(*arguments)
    with pytest.warns(RuntimeWarning, match="fails, and the CPU joins instead"):
        join = StreamJoin(*arguments, fallback="cpu", partitions=2)
    told = join.explain().splitlines()
    assert any(line.startswith(f"!join <inner> cannot run on {NOWHERE} because ") for line in told)
    observation = Observation()
    assert join.frame(observation).count() == stream_join(*streams, BAND, 3, "t").count() > 0
    assert observation.get["on_cpu"] == 2


def test_unknown_fallback(streams):
    with pytest.raises(ParameterError) as caught:
        stream_join(*streams, BAND, 3, "t", fallback="gpu")
    assert str(caught.value) == "fallback must be one of error, cpu, not 'gpu'"


def rows(r, s):
    """All rows of two sorted tables as one slice, as Spark hands it to a task."""
    times = np.concatenate([r["t"].to_numpy(), s["t"].to_numpy()])
    is_s = np.repeat([False, True], [r.num_rows, s.num_rows])
    order = np.lexsort([is_s, times])
    structs = [pa.array(table.to_pylist(), pa.struct(table.schema)) for table in (r, s)]
    parts = [
        pa.concat_arrays([structs[0], pa.nulls(s.num_rows, structs[0].type)]),
        pa.concat_arrays([pa.nulls(r.num_rows, structs[1].type), structs[1]]),
    ]
    columns = [np.zeros(len(order), np.int32), np.ones(len(order), np.int32), is_s[order], times[order]]
    arrays = [*map(pa.array, columns), *(part.take(pa.array(order)) for part in parts)]
    return pa.RecordBatch.from_arrays(arrays, names=["slice", "phase", "is_s", "t", "r", "s"])


@pytest.mark.parametrize("url", [NOWHERE, DEVICES["parallel"]], ids=["absent", "dies"])
def test_a_device_that_fails_in_a_task(impatient, monkeypatch, rng, url):
    """The CPU joins the rest of the slice, and all that the device had not answered."""
    r, s = (
        pa.table({"t": np.sort(rng.integers(0, 40, 80)), name: rng.integers(0, 9, 80), "id": np.arange(80)})
        for name in "xa"
    )
    spec = JoinSpec(BAND, 3, "t", r.schema, s.schema)
    join, calls = Session.join, []

    def dies(self, arrivals):
        calls.append(arrivals)
        if len(calls) > 2:
            raise DeviceError("the device does not answer")
        return join(self, arrivals)

    monkeypatch.setattr(Session, "join", dies)
    for name in ("FIRST_PIECE", "PIECE", "LEAST_PIECE"):
        monkeypatch.setattr(f"spark_offload.task.{name}", 25)
    batch = rows(r, s)
    parts = [batch.slice(start, 10) for start in range(0, batch.num_rows, 10)]
    columns = ("id",), ("id",)
    with pytest.raises(DeviceError):
        list(Task(spec, Where(url), columns)(parts))
    calls.clear()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        task = Task(spec, Where(url, fallback=True), columns)
        found = [row for batch in task(parts) for row in batch.to_pylist()]
    [told] = [str(warning.message) for warning in heard]
    assert told.startswith("slice 0 falls back to the CPU: ")
    metrics = dict(zip(METRICS, found.pop()["metrics"]))
    assert (metrics["fallbacks"], metrics["on_cpu"], metrics["tuples"]) == (1, 1, 160)
    near = (np.abs(r["t"].to_numpy()[:, None] - s["t"].to_numpy()) <= 3) & (
        np.abs(r["x"].to_numpy()[:, None] - s["a"].to_numpy()) <= 1
    )
    expected = Counter(zip(*(rows.tolist() for rows in np.nonzero(near))))
    assert Counter((row["c0"], row["c1"]) for row in found) == expected


class Held:
    """Counts the devices that are open."""

    def __init__(self, monkeypatch):
        self.open, self.asked = 0, []
        for name in ("open_device", "open_when_free"):
            monkeypatch.setattr(joiner, name, partial(self._opened, name))
        monkeypatch.setattr(joiner, "_failed", set())
        monkeypatch.setattr(device.SimulatedDevice, "close", self._closed)

    def _opened(self, name, url):
        self.asked.append(name)
        opened = device.open_device(url)
        self.open += 1
        return opened

    def _closed(self, *_):
        self.open -= 1


@pytest.fixture
def held(monkeypatch):
    return Held(monkeypatch)


@pytest.fixture
def spec():
    return JoinSpec("r.x = s.a", 3, "t", *(pa.schema({"t": pa.int64(), name: pa.int64()}) for name in "xa"))


@pytest.mark.parametrize("fallback", [False, True])
def test_another_architecture_is_refused_and_closed(held, spec, fallback):
    where = Where(DEVICES["parallel"], "scalejoin", fallback=fallback)
    with pytest.raises(ParameterError, match="architecture is 'scalejoin', but the device"):
        Joiner(spec, where, "slice 0", Counter()).__enter__()
    assert (held.asked, held.open) == (["open_when_free"], 0)


@pytest.mark.parametrize("fallback", [False, True])
def test_a_session_that_fails_gives_its_device_back(held, spec, monkeypatch, fallback):
    def fails(*_):
        raise DeviceError("the device does not answer")

    monkeypatch.setattr(joiner, "Session", fails)
    metrics = Counter()
    join = Joiner(spec, Where(DEVICES["parallel"], fallback=fallback), "slice 0", metrics)
    if fallback:
        with (
            pytest.warns(RuntimeWarning, match="slice 0 falls back to the CPU: the device does not answer"),
            join,
        ):
            assert held.open == 0
        assert metrics == {"fallbacks": 1, "on_cpu": 1}
    else:
        with pytest.raises(DeviceError):
            join.__enter__()
    assert held.open == 0


def test_a_device_that_failed_is_not_waited_for_again(held, spec, monkeypatch):
    """It is asked once by each slice, and is used, and waited for, as soon as it answers."""
    answers, url = device.open_device, DEVICES["parallel"]

    def gone(url):
        raise DeviceError("gone")

    monkeypatch.setattr(device, "open_device", gone)
    for _ in range(3):
        metrics = Counter()
        with (
            pytest.warns(RuntimeWarning, match="gone"),
            Joiner(spec, Where(url, fallback=True), "shard 0", metrics),
        ):
            assert metrics == {"fallbacks": 1, "on_cpu": 1}
    with pytest.raises(DeviceError, match="gone"):
        Joiner(spec, Where(url), "shard 0", Counter()).__enter__()
    assert held.asked == ["open_when_free", "open_device", "open_device", "open_device"]
    monkeypatch.setattr(device, "open_device", answers)
    for _ in range(2):
        metrics = Counter()
        with Joiner(spec, Where(url, fallback=True), "shard 0", metrics):
            assert (held.open, metrics) == (1, {})
    assert (held.asked[4:], held.open) == (["open_device", "open_when_free"], 0)


def test_explain_is_a_list_and_a_table(streams):
    on = f"{BAND} AND r.note LIKE s.note"
    lines = explain(
        *streams, on, 3, "t", offload="sim", device=DEVICES["parallel"], partitions=3
    ).splitlines()
    assert f"*join <inner> will run on {DEVICES['parallel']}" in lines
    assert f"  *condition <{BAND}> will run on {DEVICES['parallel']}" in lines
    refused = f"  !condition <r.note LIKE s.note> cannot run on {DEVICES['parallel']}"
    assert f"{refused} because it is not point-in-box" in lines
    assert "accelerated 3 out of 4" in lines
    assert any(line.split() == ["part", "runs", "on", "why"] for line in lines)
    assert lines[-1].startswith("halo, tiles, cycles ")


def test_estimates_are_near_what_is_counted(streams):
    """Halo, tiles and cycles, for windows that a device holds and for larger ones."""
    options = {"offload": "sim", "device": DEVICES["parallel"], "partitions": 3}
    capacity = parameters("parallel").capacity
    for window in (1, 40):
        observation = Observation()
        text = explain(*streams, BAND, window, "t", measure=True, **options)
        stream_join(*streams, BAND, window, "t", observation=observation, **options).count()
        counts = observation.get
        told = {line.split()[0]: line for line in text.splitlines() if line.strip()}
        assert int(told["halo"].split()[1]) == counts["halo"]
        for name in ("tiles", "cycles"):
            estimate = int(told[name].split()[2].replace(",", ""))
            print(window, name, estimate, counts[name])
            assert 0.4 * counts[name] <= estimate <= 2.5 * counts[name], (window, capacity, text)
