"""A program: an outer join of two streams, to be killed at any moment and started again.

`test_restart.py` runs it as `killed.py FOLDER MASTER ON`; the folder has the files of both streams, the
checkpoint and the output.
"""

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession

from spark_offload import stream_join
from spark_offload.streaming import PROVIDER, ROCKSDB

WINDOW, HOW, SHARDS = ("3 seconds", "2 seconds"), "full", 3
LIMIT = 600


def main(folder: Path, master: str, on: str) -> None:
    os.environ.update(PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    options = {
        PROVIDER: ROCKSDB,
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.task.maxFailures": "8",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    spark = SparkSession.builder.master(master).config(map=options).getOrCreate()
    frames = [
        spark.readStream.schema(f"ts timestamp, {value} int, k string, id long")
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder / side))
        .withWatermark("ts", "1 second")
        for side, value in zip("rs", "xa")
    ]
    joined = stream_join(*frames, on, WINDOW, "ts", partitions=SHARDS, how=HOW)
    query = (
        joined.select("r_id", "s_id")
        .writeStream.format("parquet")
        .option("path", str(folder / "output"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    if not query.awaitTermination(LIMIT):
        raise TimeoutError(f"the query has not ended within {LIMIT} s")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
