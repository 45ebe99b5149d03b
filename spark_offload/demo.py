"""`make demo`: the papers' benchmark streams, joined by Spark on simulated gateware, checked and drawn."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from matplotlib.ticker import MaxNLocator
from pyspark.sql import SparkSession

from host.device import open_device
from host.session import JoinResult, Session
from host.spec import JoinSpec
from hw import tools
from spark_offload import job

matplotlib.use("Agg")  # needs no screen

FOLDER = Path("build/demo")
PICTURE = FOLDER / "handshake.png"
ON = "r.x BETWEEN s.a - 10 AND s.a + 10 AND r.y BETWEEN s.b - 10. AND s.b + 10."
DEVICE = "sim:handshake"
START = 1_307_836_800_000_000  #: microseconds since 1970 of the first tuple, 2011-06-12


@dataclass(frozen=True)
class Run:
    """One pair of streams: `rows` each, one a millisecond, with values uniform in 1..`highest`."""

    name: str
    rows: int
    highest: int
    window: str
    micros: int  #: the window's length

    def path(self, part: str) -> str:
        """Where the Parquet files of a part ("r", "s" or "pairs") are."""
        return str(FOLDER / f"{self.name}-{part}.parquet")

    def generate(self):
        """Writes both streams."""
        rng = np.random.default_rng(2011)
        every = np.arange(self.rows) * 1_000
        for part, names in (("r", "xyz"), ("s", "abcd")):
            micros = pa.array(START + every + rng.integers(0, 1_000, self.rows))
            columns = {
                "ts": micros.cast(pa.timestamp("us", "UTC")),
                names[0]: rng.integers(1, self.highest, self.rows, dtype=np.int32, endpoint=True),
                names[1]: rng.uniform(1, self.highest, self.rows).astype(np.float32),
            }
            if part == "r":
                letters = rng.integers(ord("a"), ord("z"), (self.rows, 20), dtype=np.uint8, endpoint=True)
                columns["z"] = letters.view("S20").ravel().astype(str)
            else:
                columns["c"] = rng.uniform(1, self.highest, self.rows)
                columns["d"] = rng.random(self.rows) < 0.5
            pq.write_table(pa.table(columns), self.path(part))

    def join(self, spark: SparkSession) -> dict[str, int | str]:
        """Runs the job, as `touchline join` would, and returns its counts."""
        line = [self.path("r"), self.path("s"), "--on", ON, "--window", self.window, "--time", "ts"]
        line += ["--offload", "sim", "--device", DEVICE, "--partitions", "4"]
        line += ["--output", self.path("pairs"), "--overwrite"]
        return job.run(spark, job.parser().parse_args(line))

    def equals_plain_spark(self, spark: SparkSession) -> bool:
        """Whether the job's rows are those of Spark's own join, each as many times."""
        r, s = (spark.read.parquet(self.path(part)) for part in "rs")
        within = f"unix_micros(r.ts) - unix_micros(s.ts) BETWEEN -{self.micros} AND {self.micros}"
        r.createOrReplaceTempView("r")
        s.createOrReplaceTempView("s")
        plain = spark.sql(f"SELECT /*+ BROADCAST(s) */ * FROM r JOIN s ON {ON} AND {within}")
        plain = plain.toDF("r_ts", "x", "y", "z", "s_ts", "a", "b", "c", "d").cache()
        pairs = spark.read.parquet(self.path("pairs"))
        return plain.exceptAll(pairs).isEmpty() and pairs.exceptAll(plain).isEmpty()

    def watch(self) -> JoinResult:
        """The same join on one device without Spark, with a record of which cores found pairs when."""
        r, s = (pq.read_table(self.path(part)) for part in "rs")
        spec = JoinSpec(ON, self.window, "ts", r.schema, s.schema)
        with open_device(DEVICE) as device:
            return Session(device, spec).join(spec.arrange(r, s), watch=True)


SPARSE = Run("sparse", 20_000, 10_000, "2 seconds", 2_000_000)
DENSE = Run("dense", 1_000, 300, "110 milliseconds", 110_000)


def draw(result: JoinResult, run: Run, path: Path):
    """A heat map of cores over time, and above it how many pairs were found in all."""
    cycles, count = result.stats.cycles, len(result.activity) // 2
    activity = result.activity[: 2 * count].reshape(count, 2, -1).sum(axis=1)
    edges = np.linspace(0, cycles, count + 1)
    stretch = f"per {edges[1]:.0f} cycles"
    figure, (total, cores) = plt.subplots(
        2, 1, sharex=True, figsize=(11, 5.5), height_ratios=(1, 2.4), layout="constrained"
    )
    figure.suptitle(
        f"Handshake join of {run.rows:,} + {run.rows:,} tuples: {len(result.r):,} pairs in {cycles:,} cycles",
        fontweight="bold",
    )
    total.set_title(
        "Tuples close in time meet in the middle, those a whole window apart at the ends; "
        "the flush lets the last ones meet.",
        fontsize="medium",
    )
    total.stairs(activity.sum(axis=1), edges, fill=True, color="#2a788e")
    total.set_ylabel("all cores")
    image = cores.pcolormesh(edges, np.arange(activity.shape[1] + 1) - 0.5, activity.T, cmap="viridis")
    cores.set_yticks(range(activity.shape[1]))
    cores.set_ylabel("core\n(R walks up, S walks down)")
    cores.set_xlabel("clock cycle")
    cores.set_xlim(0, cycles)
    figure.colorbar(image, ax=cores, label=f"cycles with a match {stretch}", ticks=MaxNLocator(integer=True))
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> int:
    """Runs the demo; the exit status is 1 if a result differs from plain Spark's."""
    tools.java()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    FOLDER.mkdir(parents=True, exist_ok=True)
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("touchline demo")
        .config("spark.ui.enabled", False)
        .config("spark.ui.showConsoleProgress", False)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    wrong = False
    for run in (SPARSE, DENSE):
        print(
            f"\n{run.name}: {run.rows:,} tuples per stream, values in 1..{run.highest:,}, window {run.window}"
        )
        run.generate()
        print(job.summary(run.join(spark)))
        same = run.equals_plain_spark(spark)
        print(f"{'plain Spark':<18}  {'gives exactly the same rows' if same else 'GIVES OTHER ROWS'}")
        wrong |= not same
    draw(DENSE.watch(), DENSE, PICTURE)
    print(f"\npicture of the dense run: {PICTURE}")
    spark.stop()
    return int(wrong)


if __name__ == "__main__":
    sys.exit(main())
