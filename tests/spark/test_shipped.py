"""What `make dist` builds, where there is no checkout and no compiler: alone, and on a standalone cluster."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from host.devices import PLACES
from hw.errors import ParameterError
from hw.tools import java
from spark_offload import dist

from ..configurations import DEVICES
from ..sim.test_board import TEXT, WIDE, start_server
from .standalone import bare_python, cluster

ROOT = Path(__file__).parents[2]
CARRIED = DEVICES["parallel"]
OTHER = "sim:handshake?cores=1&segment=2"


@pytest.fixture(scope="module")
def shipped(tmp_path_factory) -> Path:
    """The folder that `make dist` makes, with the library of one device."""
    folder = tmp_path_factory.mktemp("dist")
    wheel, *others = dist.build(folder, [CARRIED])
    assert wheel.name.startswith("touchline-") and wheel.suffix == ".whl"
    assert [path.name for path in others] == ["touchline.zip", "join.py"]
    return folder


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """An interpreter that finds what Touchline needs, and not Touchline."""
    return bare_python(tmp_path_factory.mktemp("python"))


def run(python: Path, folder: Path, code: str, **environment: str) -> subprocess.CompletedProcess:
    """Runs `code` in a folder of its own, without any program on PATH."""
    return subprocess.run(
        [python, "-c", code],
        env={"PATH": "", "HOME": str(folder), **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_the_zip_runs_where_nothing_can_be_built(shipped, python, tmp_path):
    assert "No module named 'hw'" in run(python, tmp_path, "import hw").stderr
    code = (
        "from host.device import open_device\n"
        "from hw.errors import ToolError\n"
        f"with open_device({CARRIED!r}) as device: print(device.library.path)\n"
        "try:\n"
        f"    open_device({OTHER!r})\n"
        "except ToolError as error:\n"
        "    print(error)\n"
    )
    found = run(
        python,
        tmp_path,
        code,
        PYTHONPATH=str(shipped / "touchline.zip"),
        TOUCHLINE_CACHE=str(tmp_path / "cache"),
    )
    assert not found.stderr
    path, message = found.stdout.splitlines()
    assert Path(path).parent == tmp_path / "cache" and Path(path).exists()
    assert message == (
        f"{OTHER}&lanes=2&buffer=16&dims=band32,band32,at_least32,at_most32 has no library in this copy of "
        "Touchline, and none can be built here (Touchline runs from a zip file, which cannot be compiled); "
        "`make dist DEVICES=...` packs the libraries of the devices that it names"
    )


def test_kernels_of_the_checkout_serve_the_zip(shipped, tmp_path):
    """They are kept by what they were compiled from, not by where that was."""
    code = (
        "import numpy as np, host; from host.rap_table import adjusted; one = np.ones(4, np.int64); "
        "adjusted(one, one.astype(np.uint64), one.astype(np.uint64), 4); "
        "print(host.__file__, sum(adjusted.stats.cache_hits.values()))"
    )
    for place, hits in ((ROOT, 0), (shipped / "touchline.zip", 1)):
        environment = os.environ | {"PYTHONPATH": str(place), "TOUCHLINE_CACHE": str(tmp_path)}
        environment.pop("NUMBA_CACHE_DIR", None)
        found = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
        )
        assert found.stdout.split() == [f"{place}/host/__init__.py", str(hits)]


def test_only_simulated_devices_have_libraries(tmp_path):
    with pytest.raises(ParameterError) as error:
        dist.build(tmp_path, ["tcp:127.0.0.1:7000"])
    assert str(error.value) == "devices must be URLs that start with sim:, not 'tcp:127.0.0.1:7000'"


def test_a_cluster_without_a_checkout(shipped, python, rng, tmp_path):
    """Two executors: on simulated gateware that came with the zip, then on a device each that Spark gives."""
    java()
    install = [sys.executable, "-m", "pip", "--python", bare_python(tmp_path / "installed")]
    [wheel] = shipped.glob("*.whl")
    subprocess.run(
        [*install, "install", "--quiet", "--no-deps", "--no-index", "--disable-pip-version-check", wheel],
        check=True,
        timeout=120,
    )
    times = np.sort(rng.integers(0, 60, (2, 150)) * 1_000_000)
    values = rng.integers(0, 20, (2, 150))
    values[0, :3] = 100  # these have no partner
    for name, column, *rows in zip("rs", "xa", times, values):
        table = pa.table({"ts": pa.array(rows[0], pa.timestamp("us", "UTC")), column: rows[1]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    near = np.abs(times[0][:, None] - times[1]) <= 5_000_000
    r, s = np.nonzero(near & (np.abs(values[0][:, None] - values[1]) <= 2))
    at, value = times.tolist(), values.tolist()
    pairs = Counter((at[0][i], value[0][i], at[1][j], value[1][j]) for i, j in zip(r, s))
    alone = Counter((at[0][i], value[0][i], None, None) for i in {*range(150)} - {*r.tolist()})
    assert pairs.total() > 100 and alone
    servers = [start_server("tcp:127.0.0.1:0", text) for text in (TEXT, WIDE)]
    urls = [url for _, url in servers]
    settings = {
        "spark.worker.resource.fpga.amount": "1",
        "spark.worker.resource.fpga.discoveryScript": tmp_path / "installed" / "bin" / "touchline-discover",
    }
    events = tmp_path / "events"
    events.mkdir()
    scheduled = {
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.rolling.enabled": "false",
        "spark.executor.resource.fpga.amount": "1",
        "spark.scheduler.minRegisteredResourcesRatio": "1",
        "spark.task.resource.fpga.amount": "1",
    }
    join = [shipped / "join.py", tmp_path / "r.parquet", tmp_path / "s.parquet"]
    join += ["--on", "r.x BETWEEN s.a - 2 AND s.a + 2", "--window", "5 seconds", "--time", "ts"]
    join += ["--partitions", "4", "--output"]
    try:
        with cluster(tmp_path, python, [{PLACES: url} for url in urls], settings) as spark:
            for name, conf, more, told, expected in (
                ("sim", {}, ["--device", CARRIED, "--how", "left"], CARRIED, pairs + alone),
                ("fpga", scheduled, [], "scheduled by Spark", pairs),
            ):
                options = [word for pair in conf.items() for word in ("--conf", "=".join(pair))]
                options += ["--py-files", shipped / "touchline.zip"]
                done = spark.submit(*options, *join, tmp_path / name, "--offload", name, *more)
                assert done.returncode == 0, done.stderr[-4000:]
                assert f"{told}, 4 slices" in done.stdout
                table = pq.read_table(tmp_path / name, coerce_int96_timestamp_unit="us")
                columns = [column.cast(pa.int64()).to_pylist() for column in table.columns]
                assert Counter(zip(*columns)) == expected
    finally:
        for server, _ in servers:
            server.terminate()
            server.communicate(timeout=30)
    lines = [json.loads(line) for path in events.iterdir() for line in path.read_text().splitlines()]
    given = {
        line["Executor ID"]: line["Executor Info"]["Resources"]["fpga"]["addresses"]
        for line in lines
        if line["Event"] == "SparkListenerExecutorAdded"
    }
    worked = {line["Task Info"]["Executor ID"] for line in lines if line["Event"] == "SparkListenerTaskEnd"}
    assert sorted(given.values()) == sorted([url] for url in urls)
    assert worked == set(given)


def test_spark_connect(shipped, python, tmp_path):
    """The client hands Touchline to the server, whose workers know no other."""
    java()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, Path(__file__).with_name("connect.py"), shipped / "touchline.zip"],
        env=environment | {"PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.splitlines()[-1].startswith("3 slices, ")
