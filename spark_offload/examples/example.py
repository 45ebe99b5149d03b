"""What every example is made of, and how one is run."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from spark_offload import job

matplotlib.use("Agg")  # needs no screen

#: Microseconds since 1970 at which all data begins, 2026-01-05 09:30 UTC.
START = 1_767_605_400_000_000
#: What is seen first, what is beside it, what stands out, and what is behind all.
BLUE, GREEN, RED, GREY = "#31688e", "#35b779", "#d1495b", "#b8bec4"


@dataclass(frozen=True)
class Example:
    """Two streams, a join of them, and a picture of what it finds."""

    name: str
    title: str  #: what is joined with what
    rows: int  #: of R, unless told otherwise
    options: dict[str, str | list[str]]  #: of `touchline join`
    sample: str  #: a condition on rows of either stream; the rows for which it holds join among themselves
    sampled: str  #: the same condition on rows of the result
    plain: str  #: the join of the samples `r` and `s` as plain Spark writes it
    #: Both streams, R with so many rows.
    generate: Callable[[int, np.random.Generator], tuple[pa.Table, pa.Table]]
    #: What the join tells, in a few lines.
    describe: Callable[[pa.Table, pa.Table, pa.Table], dict[str, str]]
    draw: Callable[[pa.Table, pa.Table, pa.Table], plt.Figure]

    def command(self, folder: Path) -> list[str]:
        """The arguments of the `touchline join` that this is: R, S, options, and the output last."""
        r, s, joined = (str(folder / f"{self.name}-{part}.parquet") for part in ("r", "s", "joined"))
        flags = []
        for option, value in self.options.items():
            flags += [f"--{option}", *([value] if isinstance(value, str) else value)]
        return [r, s, *flags, "--overwrite", "--output", joined]

    def run(self, spark: SparkSession, folder: Path, rows: int | None = None) -> bool:
        """Runs it, prints a summary, and returns whether plain Spark agrees."""
        folder.mkdir(parents=True, exist_ok=True)
        line = self.command(folder)
        paths = line[0], line[1], line[-1]
        r, s = self.generate(rows or self.rows, np.random.default_rng(2026))
        for table, path in zip((r, s), paths):
            pq.write_table(table, path)
        print(f"\n{self.name}: {self.title}\n\n$ touchline join {shlex.join(line)}\n")
        print(job.summary(job.run(spark, job.parser().parse_args(line))))
        same = self.agrees(*map(spark.read.parquet, paths))
        joined = pq.read_table(paths[2], coerce_int96_timestamp_unit="us")
        picture = folder / f"{self.name}.png"
        figure = self.draw(r, s, joined)
        figure.savefig(picture, dpi=110)
        plt.close(figure)
        lines = {
            "plain Spark": f"gives {'exactly the same' if same else 'OTHER'} rows, where {self.sample}",
            **self.describe(r, s, joined),
            "picture": str(picture),
        }
        print("\n".join(f"{name:<18}  {text}" for name, text in lines.items()), flush=True)
        return same

    def agrees(self, r: DataFrame, s: DataFrame, joined: DataFrame) -> bool:
        """Whether the result's rows from the sample are those of Spark's own join of it, each as often."""
        for name, frame in (("r", r), ("s", s)):
            frame.where(self.sample).createOrReplaceTempView(name)
        plain = r.sparkSession.sql(self.plain).toDF(*joined.columns).cache()
        got = joined.where(self.sampled).cache()
        return not plain.isEmpty() and plain.exceptAll(got).isEmpty() and got.exceptAll(plain).isEmpty()


def timestamps(micros: np.ndarray) -> pa.Array:
    """Event times, from microseconds since the data begins."""
    return pa.array(START + micros.astype(np.int64)).cast(pa.timestamp("us", "UTC"))


def micros(column: pa.ChunkedArray) -> np.ndarray:
    """Event times as microseconds since the data begins; where there is none, far before that."""
    return column.cast(pa.int64()).fill_null(0).to_numpy() - START
