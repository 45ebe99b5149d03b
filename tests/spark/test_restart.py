"""A streaming join that is killed at random points gives what it gives without a crash.

::

    files of R and S -> [ killed.py: driver, executor, Python workers ] -> files
                            ^ SIGKILL, whenever a drawn number of files has been written

Spark writes files for every step of a micro-batch: offsets, state, results, commits. So a number of files,
drawn for each kill, is a point anywhere in the work.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sim.oracle import Windows

from . import killed
from .shards import SECOND
from .test_shard import ODD, ON, expected, stream
from .test_streaming import OVERLOADED

#: Rows in a file, and micro-batches for each kill of the driver, so that others are killed after that.
ROWS, FILES = 15, 2
#: Files that Spark writes in a micro-batch or two.
STEPS = 60
#: Seconds for all but the kills, and for what follows each.
LIMIT, EACH = 600, 150
#: What can be killed beside the driver, by its command line.
VICTIMS = {"executor": "CoarseGrainedExecutorBackend", "worker": "pyspark.daemon"}


@pytest.mark.parametrize("residual", [False, True])
def test_killed_at_random_points(tmp_path, rng, request, residual):
    """Nothing is lost and nothing doubled, whoever is killed: the driver, executors or Python's workers.

    With a term that only Spark can evaluate there are two kinds of state.
    """
    times = request.config.option.kills
    deadline = time.monotonic() + LIMIT + 2 * times * EACH
    if not times:
        pytest.skip("it takes minutes: `make restarts` kills, or --kills says how often")
    tables = write_streams(tmp_path, rng, times * FILES)
    on = f"{ON} AND {ODD}" if residual else ON
    kills, orphans = Counter(), set()
    try:
        while kills["driver"] < times:
            ended = run(tmp_path, "local[2]", on, deadline, rng, kills, orphans, driver=True)
            assert not ended, "the program was done before it was killed often enough"
        # Executors are processes of their own here.
        while not run(tmp_path, "local-cluster[1,2,1024]", on, deadline, rng, kills, orphans, others=times):
            pass
    finally:
        for pid in orphans:
            kill(pid)
    print(f"killed: {dict(kills)}")
    windows = Windows("time", 3 * SECOND, 2 * SECOND)
    assert results(tmp_path / "output") == expected(*tables, windows, killed.HOW, by=False, residual=residual)


def results(folder: Path) -> Counter:
    """The rows in the files that the sink has committed: those that its log names.

    Every tenth entry of the log, such as `9.compact`, has all those before it.
    """
    found = Counter()
    logs = {int(log.name.partition(".")[0]): log for log in (folder / "_spark_metadata").glob("[0-9]*")}
    whole = max((number for number, log in logs.items() if log.suffix == ".compact"), default=0)
    for log in (log for number, log in logs.items() if number >= whole):
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            assert entry["action"] == "add"
            table = pq.read_table(unquote(urlparse(entry["path"]).path))
            found.update(zip(*(table[name].to_pylist() for name in ("r_id", "s_id"))))
    return found


def write_streams(folder: Path, rng: np.random.Generator, count: int) -> list[pa.Table]:
    """Files of both streams, each a micro-batch, and at the end rows that let all windows pass."""
    tables = []
    for side, value in zip("rs", "xa"):
        table = stream(rng, value, count * ROWS).sort_by("ts")
        (folder / side).mkdir()
        for k in range(count):
            # Rows are at most a second late, within each file.
            part = table.slice(k * ROWS, ROWS)
            part = part.take(pa.array(rng.permutation(part.num_rows)))
            pq.write_table(part, folder / side / f"{k}.parquet")
            os.utime(folder / side / f"{k}.parquet", (k, k))  # Spark takes files by their times
        end = {"ts": pa.array([10**9 * SECOND]), value: [None], "k": [None], "id": [-1]}
        pq.write_table(pa.table(end).cast(table.schema), folder / side / f"{count}.parquet")
        tables.append(table)
    return tables


def run(folder, master, on, deadline, rng, kills, orphans, driver=False, others=0) -> bool:
    """Runs the program until its driver is killed, or to its end while others are; whether it came there."""
    log = folder / "log"
    log.write_bytes(b"")
    with open(log, "ab") as out:
        command = [sys.executable, "-m", killed.__name__, str(folder), master, on]
        process = subprocess.Popen(command, stdout=out, stderr=out)
    goal = files(folder) + int(rng.integers(1, STEPS))
    try:
        while process.poll() is None:
            assert time.monotonic() < deadline, f"not done in time: {complaints(log)}"
            time.sleep(0.05)
            if files(folder) < goal:
                continue
            family = descendants(process.pid)
            if driver:
                orphans.update(family)
                # The JVM is the driver's other half.
                for pid in [process.pid, *(pid for pid, line in family.items() if "SparkSubmit" in line)]:
                    kill(pid)
                process.wait(timeout=60)
                kills["driver"] += 1
                return False
            if kills["executor"] + kills["worker"] < others:
                name = str(rng.choice(list(VICTIMS)))
                found = [pid for pid, line in family.items() if VICTIMS[name] in line]
                if found:
                    kill(int(rng.choice(found)))
                    kills[name] += 1
            goal = files(folder) + int(rng.integers(1, STEPS))
        if process.returncode and OVERLOADED in log.read_text(errors="replace"):
            return False
        assert process.returncode == 0, complaints(log)
        return True
    finally:
        if process.poll() is None:
            for pid in [process.pid, *descendants(process.pid)]:
                kill(pid)
            process.wait(timeout=60)


def complaints(log: Path) -> str:
    """The lines of a log that name an error."""
    lines = [
        line
        for line in log.read_text(errors="replace").splitlines()
        if "Error: " in line or "Exception: " in line
    ]
    return "\n".join(line[:300] for line in lines[-20:])


def files(folder: Path) -> int:
    """How many files Spark has written."""
    return sum(len(names) for part in ("checkpoint", "output") for _, _, names in os.walk(folder / part))


def descendants(pid: int) -> dict[int, str]:
    """The processes that a process has started, and those that they have, with their command lines."""
    parents, lines = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                lines[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except (OSError, IndexError):
                continue  # it has ended meanwhile
    found, new = {}, {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new and child not in found}
        found.update((child, lines.get(child, "")) for child in new)
    return found


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
