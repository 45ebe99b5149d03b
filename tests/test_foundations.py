"""Tests of what everything stands on: dependencies, Makefile, set-up, and replayable failures."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DEPENDENCIES = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]]


def run(*command, cwd: Path, **environment) -> subprocess.CompletedProcess:
    # Without the MAKEFLAGS of a `make test` around this.
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        command, cwd=cwd, env=inherited | environment, capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize("dependency", DEPENDENCIES)
def test_dependency_is_bounded_explained_and_locked(dependency):
    required = Requirement(dependency)
    assert required.specifier
    assert re.search(rf' # .*\n +"{re.escape(dependency)}"', (ROOT / "pyproject.toml").read_text())
    (locked,) = re.findall(rf"^{required.name}==(.*)$", (ROOT / "requirements.lock").read_text(), re.M)
    assert required.specifier.contains(locked)


def test_make_help_lists_every_target():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.M)
    lines = run("make", "help", cwd=ROOT).stdout.splitlines()
    assert [line.split(maxsplit=1)[0] for line in lines] == phony.split()
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines)


def test_set_up_runs_once_until_the_lock_changes(tmp_path):
    for name in ("Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "setup.sh").write_text("#!/bin/sh\nmkdir -p .venv\necho ran >>log\n")
    (tmp_path / "setup.sh").chmod(0o755)
    log = tmp_path / "log"
    for _ in range(2):
        assert run("make", "setup", cwd=tmp_path).returncode == 0
        assert log.read_text() == "ran\n"
    newer = (tmp_path / ".venv" / ".ready").stat().st_mtime + 1
    os.utime(tmp_path / "requirements.lock", (newer, newer))
    assert run("make", "setup", cwd=tmp_path).returncode == 0
    assert log.read_text() == "ran\nran\n"


def test_make_sim_passes_only_what_is_set():
    command = run("make", "--dry-run", "sim", "ARCH=handshake", "CORES=16", "SEED=3", cwd=ROOT).stdout
    arguments = command[command.index("sim.regression") :].replace("\\\n", " ").split()
    assert arguments == ["sim.regression", "--architecture", "handshake", "--cores", "16", "--seed", "3"]


def test_make_bitstream_passes_only_what_is_set():
    command = run("make", "--dry-run", "bitstream", "BOARD=ml605", "MHZ=120", "SEEDS=2", cwd=ROOT).stdout
    arguments = command[command.index("hw.bitstream") :].replace("\\\n", " ").split()
    assert arguments == ["hw.bitstream", "--board", "ml605", "--mhz", "120", "--seeds", "2"]


@pytest.fixture
def bare(tmp_path) -> Path:
    """A copy of set-up on a machine that has hardly anything, where apt-get only logs what it is asked."""
    shutil.copy(ROOT / "setup.sh", tmp_path)
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname", "echo", "grep", "timeout", "xargs"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    program(tmp_path / "bin" / "apt-get", f'echo "$@" >>"{tmp_path}/apt.log"')
    program(tmp_path / "bin" / "java", """echo 'openjdk version "11.0.2"' >&2""")
    return tmp_path


def program(path: Path, script: str) -> None:
    path.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    path.chmod(0o755)


def set_up(bare: Path, user: int) -> str:
    """Runs set-up, which must fail, and returns its message."""
    program(bare / "bin" / "id", f"echo {user}")
    result = run(shutil.which("bash"), "setup.sh", cwd=bare, PATH=str(bare / "bin"))
    assert result.returncode == 1
    assert not (bare / ".venv").exists()
    return result.stderr


def test_set_up_tells_users_what_to_install(bare):
    assert set_up(bare, user=1000) == (
        "setup: missing system packages; install them with: "
        "sudo apt-get install g++ make perl openjdk-17-jre-headless python3 python3-venv libpython3.11\n"
    )
    assert not (bare / "apt.log").exists()


def test_set_up_installs_for_root(bare):
    message = "setup: Python 3.11 not found: put python3.11 on PATH (Debian 12's python3 is one)\n"
    assert set_up(bare, user=0) == message
    update, install = (bare / "apt.log").read_text().splitlines()
    assert update == "update -q"
    assert install == (
        "install -q -y --no-install-recommends g++ make perl openjdk-17-jre-headless "
        "python3 python3-venv libpython3.11"
    )


def test_ci_runs_the_tests():
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert (ROOT / ".ci" / "run").read_text().endswith("\nmake test\n")


def test_failure_prints_the_command_that_replays_it(tmp_path):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_dice.py").write_text(
        "from hypothesis import given, strategies as st\n"
        "def test_dice(rng): assert False, f'rolled {rng.integers(2**60)}'\n"
        "@given(st.integers(0, 2**60))\n"
        "def test_given(n): print('drew', n)\n"
    )

    def play(*options: str) -> str:
        return run(sys.executable, "-m", "pytest", "-s", *options, cwd=tmp_path).stdout

    first, again, other = play("--seed=7"), play("--seed=7"), play("--seed=8")
    assert "seed: 7 (--seed)" in first
    assert f"{sys.executable} -m pytest test_dice.py::test_dice --seed=7" in first
    for drawn in (r"rolled \d+", r"drew \d+"):
        assert re.findall(drawn, first) == re.findall(drawn, again) != re.findall(drawn, other)


def test_spark_session(spark):
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    doubled = spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    assert sorted(row.id for row in doubled) == list(range(10))
