"""`make dist`: what a cluster needs to run joins, for machines without a checkout or a compiler.

    touchline-VERSION-py3-none-PLATFORM.whl   to be installed; has the commands, and Spark's discovery script
    touchline.zip                             the same, for `spark-submit --py-files`
    join.py                                   the program that spark-submit runs: `touchline join`

Both carry the libraries of the simulated devices named by `--devices`.
"""

import argparse
import shutil
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from host.device import open_device
from hw import tools
from hw.errors import ParameterError, TouchlineError
from hw.parameters import ARCHITECTURES
from sim import shipped

ROOT = Path(__file__).parents[1]
FOLDER = Path("build/dist")
#: Seconds in which the wheel must be built.
BUILD_SECONDS = 300


def build(folder: Path, devices: Sequence[str]) -> list[Path]:
    """Writes the files into `folder`, and returns them."""
    for url in devices:
        if not url.startswith("sim:"):
            raise ParameterError(f"devices must be URLs that start with sim:, not {url!r}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        stage = Path(scratch)
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, stage)
        data = project["tool"]["setuptools"]["package-data"]
        for package in project["tool"]["setuptools"]["packages"]:
            source = ROOT / package.replace(".", "/")
            target = stage / source.relative_to(ROOT)
            target.mkdir(parents=True)
            for pattern in ("*.py", *data.get(package, ())):
                for path in source.glob(pattern):
                    shutil.copy(path, target)
        _add_libraries(stage / "sim" / shipped.FOLDER, devices)
        made = stage / "made"
        options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
        options += ["--disable-pip-version-check", "--wheel-dir", made]
        options += [f"--config-settings=--build-option=--plat-name={sysconfig.get_platform()}"]
        tools.run(tools.pip(), ["wheel", *options, stage], cwd=stage, seconds=BUILD_SECONDS)
        [wheel] = made.iterdir()
        # Spark takes no other suffix for what it puts on Python's path.
        files = [folder / wheel.name, folder / "touchline.zip", folder / "join.py"]
        for source, target in zip((wheel, wheel, ROOT / "spark_offload" / "job.py"), files):
            shutil.copy(source, target)
    return files


def _add_libraries(folder: Path, devices: Sequence[str]) -> None:
    folder.mkdir()
    for url in devices:
        with open_device(url) as device:
            shutil.copy(device.library.path, folder / shipped.file_name(device.parameters, device.netlist))


def main() -> int:
    """Builds, and prints what was built; the exit status is 2 after a line that says what was wrong."""
    parser = argparse.ArgumentParser(description="Build what a cluster needs.")
    parser.add_argument(
        "--devices",
        nargs="*",
        default=[f"sim:{architecture}" for architecture in ARCHITECTURES],
        metavar="URL",
        help="simulated devices whose libraries are packed (default: %(default)s)",
    )
    options = parser.parse_args()
    try:
        for path in build(FOLDER, options.devices):
            print(f"{path}  {path.stat().st_size:,} bytes")
    except TouchlineError as error:
        print(f"touchline: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
