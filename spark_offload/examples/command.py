"""`touchline example`: runs one example, or all."""

import argparse
import os
import sys
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from hw import tools
from hw.errors import TouchlineError
from spark_offload import job

from . import clicks, sensors, trades

EXAMPLES = {module.EXAMPLE.name: module.EXAMPLE for module in (trades, sensors, clicks)}


def main(argv: list[str], prog: str | None = None) -> int:
    """Runs the examples; the exit status is 1 if plain Spark gives other rows, and 2 after an error."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Make data, join it, check the result against plain Spark, and draw a picture."
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="; ".join(f"{name}: {example.title}" for name, example in EXAMPLES.items()) + " (default: all)",
    )
    parser.add_argument("--rows", type=int, metavar="N", help="of R (default: 60,000 to 150,000)")
    parser.add_argument("--folder", type=Path, default=Path("build/examples"), help="default: %(default)s")
    options = parser.parse_args(argv)
    for name in options.names:
        if name not in EXAMPLES:
            parser.error(f"example must be one of {', '.join(EXAMPLES)}, not {name!r}")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        tools.java()
        spark = (
            SparkSession.builder.appName("touchline example")
            .config("spark.ui.showConsoleProgress", False)
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        runs = [EXAMPLES[name].run(spark, options.folder, options.rows) for name in options.names or EXAMPLES]
        return int(not all(runs))
    except (TouchlineError, PySparkException, Py4JError) as error:
        print(f"touchline: {job.complaint(error)}", file=sys.stderr)
        return 2
