"""`offload="fpga"`: Spark tasks take turns at a board, here a simulated one behind TCP.

Spark tasks -> tcp: -> touchline serve -> [ shell | joiner ]
"""

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql import functions as F

from spark_offload import stream_join
from spark_offload.cli import main
from spark_offload.stream_join import StreamJoin

from ..sim.test_board import TEXT


@pytest.fixture
def board():
    """The URL of a board that `touchline serve` runs."""
    command = [
        sys.executable,
        "-m",
        "spark_offload.cli",
        "serve",
        "--board",
        TEXT,
        "--listen",
        "tcp:127.0.0.1:0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        url = server.stdout.readline().strip()
        try:
            yield url
        finally:
            server.terminate()
            assert server.wait(30) == 0


def test_tasks_take_turns_at_one_board(spark, board, rng):
    count = 60
    times = np.sort(rng.integers(0, 40, (2, count)) * 1_000_000)
    r, s = (
        pa.table({"ts": pa.array(at, pa.timestamp("us", "UTC")), name: rng.integers(0, 20, count)})
        for at, name in zip(times, "xa")
    )
    frames = [spark.createDataFrame(table) for table in (r, s)]
    joined = stream_join(
        *frames,
        on="r.x BETWEEN s.a - 2 AND s.a + 2",
        window="5 seconds",
        time="ts",
        offload="fpga",
        device=board,
        partitions=3,
    )
    frames[0].createOrReplaceTempView("r")
    frames[1].createOrReplaceTempView("s")
    plain = spark.sql(
        "SELECT r.ts, x, s.ts, a FROM r JOIN s ON x BETWEEN a - 2 AND a + 2 "
        "AND unix_micros(r.ts) - unix_micros(s.ts) BETWEEN -5000000 AND 5000000"
    )
    rows = sorted(joined.collect())
    assert rows == sorted(plain.collect())
    assert len(rows) > 20


def test_devices_and_selftest_from_the_command_line(board, capsys):
    assert main(["devices", board]) == 0
    listed = capsys.readouterr().out
    assert board in listed and "handshake" in listed and "0 frames damaged" in listed
    assert main(["selftest", board]) == 0
    assert "FAIL" not in capsys.readouterr().out
    assert main(["selftest", "tcp:nowhere"]) == 2
    assert (
        capsys.readouterr().err == "touchline: tcp:nowhere: a tcp: URL must be tcp:HOST:PORT, not 'nowhere'\n"
    )


def test_auto_takes_a_board_that_fits(spark, board):
    r = spark.sql("SELECT id AS t, id AS x, id AS y FROM range(5)")
    s = spark.sql("SELECT id AS t, id AS a, id AS b FROM range(5)")
    given = {"window": 2, "time": "t", "offload": "auto", "device": board}
    fits = StreamJoin(r, s, "r.x BETWEEN s.a - 2 AND s.a + 2", **given)
    assert (fits.placement.runs_on, fits.placement.why) == (board, "the device takes all dimensions")
    bands = [f"r.{p} * {k} BETWEEN s.{q} - 2 AND s.{q} + 2" for k in (1, 2, 3) for p, q in ("xa", "yb")]
    on = " AND ".join(bands)
    many = StreamJoin(r, s, on, **given)
    assert (many.placement.runs_on, many.placement.why) == ("the CPU", "the device does not fit")
    assert many.placement.refused.startswith(f"{board} because it has no dimension for `")
    plain = r.alias("r").join(s.alias("s"), F.expr(f"{on} AND abs(r.t - s.t) <= 2"))
    assert many.frame().count() == plain.count() == 7
