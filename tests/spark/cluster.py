"""A program: joins two Parquet files on the devices that Spark schedules, and notes who opened which when.

`test_scheduled.py` runs it as `cluster.py FOLDER DISCOVERY_SCRIPT DEVICES`.
"""

import os
import signal
import sys
import time
from importlib import import_module
from pathlib import Path

from pyspark import TaskContext
from pyspark.sql import SparkSession

from host.device import open_device
from host.link import LinkDevice
from spark_offload import StreamJoin, explain, joiner, task

ON, WINDOW = "r.x BETWEEN s.a - 2 AND s.a + 2", "5 seconds"
PARTITIONS = 5
FOLDER, SCRIPT, DEVICES = Path(sys.argv[1]), sys.argv[2], sys.argv[3]


def note(folder, *words) -> None:
    """A line of this process in the diary."""
    with open(folder / "diary", "a") as diary:
        print(*words, file=diary)


class Noted(task.Task):
    """Opens devices without waiting, so that two tasks at one device would fail."""

    folder = FOLDER

    def __call__(self, batches):
        folder = self.folder

        def opened(url):
            note(folder, "open", TaskContext.get().attemptNumber(), url)
            device = open_device(url)
            time.sleep(0.3)  # so that tasks that share a device would meet there
            return device

        joiner.open_when_free = opened
        yield from super().__call__(batches)


class Dying(Noted):
    """A worker is killed in the first attempt of each task, when it has sent a part of its tuples."""

    def __call__(self, batches):
        folder, exchange = self.folder, LinkDevice.exchange

        def half(device, words, **options):
            if TaskContext.get().attemptNumber() == 0 and not options.get("bucket"):
                exchange(device, words[: len(words) // 2])
                note(folder, "die", device.url)
                os.kill(os.getpid(), signal.SIGKILL)
            return exchange(device, words, **options)

        LinkDevice.exchange = half
        try:
            yield from super().__call__(batches)
        finally:
            LinkDevice.exchange = exchange


def main() -> None:
    """Joins twice: once undisturbed, once with workers that are killed."""
    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.cores": "2",
        "spark.executor.resource.fpga.amount": DEVICES,
        "spark.log.level": "OFF",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(FOLDER / "warehouse"),
        "spark.task.maxFailures": "2",
        "spark.task.resource.fpga.amount": "1",
        "spark.ui.enabled": "false",
        # In a cluster of Spark's own, workers look for devices, and hand them to executors.
        "spark.worker.resource.fpga.amount": DEVICES,
        "spark.worker.resource.fpga.discoveryScript": SCRIPT,
    }
    spark = SparkSession.builder.master("local-cluster[1,2,1024]").config(map=options).getOrCreate()
    r, s = (spark.read.parquet(str(FOLDER / f"{name}.parquet")) for name in "rs")
    print(explain(r, s, on=ON, window=WINDOW, time="ts", offload="fpga"))
    for name, kind in (("whole", Noted), ("killed", Dying)):
        import_module("spark_offload.stream_join").Task = kind  # the package's name is the function's
        join = StreamJoin(r, s, on=ON, window=WINDOW, time="ts", offload="fpga", partitions=PARTITIONS)
        join.write_parquet(FOLDER / name)
        note(FOLDER, "done", name)
    spark.stop()


if __name__ == "__main__":
    main()
