"""Devices as Spark resources: found by the shipped script, given to tasks, and clean after a crash.

::

    workers <-- touchline-discover <-- registers of the boards
    tasks, more than devices --> tcp: --> touchline serve --> [ shell | joiner ]
"""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from host.devices import PLACES
from hw.errors import DeviceError, ParameterError
from hw.frame import Link
from hw.tools import java
from sim.link_model import LinkModel
from spark_offload.joiner import scheduled_device
from spark_offload.placement import AMOUNT, check_resources

from ..links import PARAMETERS
from ..sim.test_board import TEXT, WIDE, serving, start_server

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def discovery(tmp_path_factory):
    """The program `touchline-discover`, as an installer makes it from `pyproject.toml`."""
    module, function = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"][
        "touchline-discover"
    ].split(":")
    path = tmp_path_factory.mktemp("bin") / "touchline-discover"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        f"from {module} import {function}\nsys.exit({function}())\n"
    )
    path.chmod(0o755)
    return path


def test_discovery_lists_what_answers_and_disturbs_nothing(discovery, tmp_path):
    model = LinkModel(PARAMETERS, Link(64, 16, 8))
    with serving(model, "tcp:127.0.0.1:0", width=64) as url:
        places = f"{url} tcp:127.0.0.1:1 serial:{tmp_path / 'none'} xdma:x"
        process = subprocess.run(
            [discovery], env=os.environ | {PLACES: places}, capture_output=True, text=True, timeout=60
        )
    assert json.loads(process.stdout) == {"name": "fpga", "addresses": [url]}
    assert process.returncode == 0
    lines = process.stderr.splitlines()
    assert len(lines) == 3 and "tcp:127.0.0.1:1: cannot be opened" in lines[0]
    assert model._session == 0


def test_tasks_get_devices_of_their_own_and_find_them_clean(discovery, rng, tmp_path):
    """More tasks than devices, which differ; then each task's first attempt is killed while it joins."""
    java()
    count = 150
    times = np.sort(rng.integers(0, 60, (2, count)) * 1_000_000)
    values = rng.integers(0, 20, (2, count))
    for at, value, name, column in zip(times, values, "rs", "xa"):
        table = pa.table({"ts": pa.array(at, pa.timestamp("us", "UTC")), column: value})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    servers = [start_server("tcp:127.0.0.1:0", text) for text in (TEXT, WIDE)]
    urls = [url for _, url in servers]
    try:
        process = subprocess.run(
            [sys.executable, Path(__file__).with_name("cluster.py"), tmp_path, discovery, "2"],
            env=os.environ
            | {
                PLACES: " ".join(urls),
                "PYSPARK_PYTHON": sys.executable,
                "PYTHONPATH": str(ROOT),
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            text=True,
            timeout=600,
        )
    finally:
        for server, _ in servers:
            server.terminate()
            server.communicate(timeout=30)
    assert process.returncode == 0, process.stderr[-4000:]
    assert "on the device that Spark gives to the task, as it fits" in process.stdout
    near = np.abs(times[0][:, None] - times[1]) <= 5_000_000
    r, s = np.nonzero(near & (np.abs(values[0][:, None] - values[1]) <= 2))
    expected = sorted(zip(times[0][r], values[0][r], times[1][s], values[1][s]))
    assert len(expected) > 100
    for name in ("whole", "killed"):
        table = pq.read_table(tmp_path / name, coerce_int96_timestamp_unit="us")
        columns = [column.cast(pa.int64()).to_numpy() for column in table.columns]
        assert sorted(zip(*columns)) == expected
    whole, killed = (part.split() for part in (tmp_path / "diary").read_text().split("done")[:2])
    print(f"{whole.count('open')} + {killed.count('open')} opened, {killed.count('die')} killed")
    assert whole.count("open") == 5 and {word for word in whole if ":" in word} == set(urls)
    assert killed.count("die") == 5 and killed.count("open") == 10


@pytest.mark.parametrize(
    "conf, message",
    [
        ({AMOUNT: "0.5"}, f"{AMOUNT} must be 1, a device for each task, not '0.5'"),
        ({AMOUNT: "2"}, f"{AMOUNT} must be 1, a device for each task, not '2'"),
        (
            {AMOUNT: "1", "spark.master": "local[2]"},
            f"with offload='fpga' and {AMOUNT}=1 spark.master must be a cluster, where Spark schedules "
            "devices, not 'local[2]'; give device=",
        ),
    ],
)
def test_settings_without_a_device_for_each_task_are_refused(conf, message):
    with pytest.raises(ParameterError) as error:
        check_resources(conf, "fpga")
    assert str(error.value) == message


def test_a_task_without_a_device():
    with pytest.raises(DeviceError) as error:
        scheduled_device()
    assert str(error.value) == (
        'Spark has given this task no resource "fpga": set spark.task.resource.fpga.amount=1, or give device='
    )
