"""What every test may use: one Spark session, and random numbers that one command repeats."""

import os
import shlex
import sys
import zlib

import numpy as np
import pytest
from hypothesis import settings

# Time limits in tests count cycles, and a failure must not depend on what an earlier run left behind.
# In CI hypothesis would draw by the test's name alone; here `--seed` decides everywhere.
settings.register_profile("touchline", deadline=None, database=None, derandomize=False)
settings.load_profile("touchline")


def pytest_addoption(parser):
    parser.addoption("--seed", type=int, default=1, help="seed of all random tests (default: %(default)s)")
    parser.addoption(
        "--kills", type=int, default=0, help="how often streams are killed (default: %(default)s)"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = config.option.seed


def pytest_report_header(config):
    return f"seed: {config.option.seed} (--seed)"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        command = [sys.executable, "-m", "pytest", item.nodeid, f"--seed={item.config.option.seed}"]
        report.sections.append(("Replay", shlex.join(command)))
    return report


@pytest.fixture
def seed(request) -> int:
    """A seed of this test's own, made from `--seed` and the test's name."""
    return zlib.crc32(f"{request.config.option.seed} {request.node.nodeid}".encode())


@pytest.fixture
def rng(seed) -> np.random.Generator:
    """Random numbers of this test's own."""
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def spark(tmp_path_factory):
    """The one Spark session of the test run: two threads, UTC, no UI."""
    from pyspark.sql import SparkSession

    from hw.tools import java

    java()
    os.environ.update(
        PYSPARK_PYTHON=sys.executable, PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1"
    )
    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    session = (
        SparkSession.builder.master("local[2]").appName("touchline-tests").config(map=options).getOrCreate()
    )
    yield session
    session.stop()
