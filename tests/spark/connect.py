"""A program: joins through Spark Connect, with a server whose workers get Touchline from the client.

`test_shipped.py` runs it as `connect.py TOUCHLINE_ZIP`.
"""

import sys

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F
from pyspark.testing import assertDataFrameEqual

from spark_offload import explain, stream_join

ON = "r.x BETWEEN s.a - 3 AND s.a + 3"


def main() -> None:
    """Compares joins over windows of time and of rows with plain Spark's."""
    options = {"spark.driver.host": "127.0.0.1", "spark.log.level": "OFF", "spark.ui.enabled": "false"}
    spark = SparkSession.builder.remote("local[2]").config(map=options).getOrCreate()
    assert type(spark).__module__.startswith("pyspark.sql.connect")
    spark.addArtifacts(sys.argv[1], pyfile=True)
    r = spark.sql("SELECT timestamp_seconds(id) AS ts, int(id * 7 % 30) AS x FROM range(90)")
    s = spark.sql("SELECT timestamp_seconds(id) AS ts, int(id * 11 % 30) AS a FROM range(90)")
    print(explain(r, s, ON, "5 seconds", "ts", partitions=3))
    observation = Observation()
    joined = stream_join(r, s, ON, "5 seconds", "ts", partitions=3, observation=observation)
    assertDataFrameEqual(joined, _plain(r, s, "abs(unix_seconds(r.ts) - unix_seconds(s.ts)) <= 5"))
    print(observation.get["slices"], "slices,", observation.get["pairs"], "pairs")
    # There is a row of each stream every second, R's first.
    joined = stream_join(r, s, ON, ("4 rows", "3 rows"), "ts", partitions=3)
    within = "unix_seconds(r.ts) - unix_seconds(s.ts)"
    assertDataFrameEqual(joined, _plain(r, s, f"{within} BETWEEN -3 AND 3"))
    spark.stop()


def _plain(r: DataFrame, s: DataFrame, within: str) -> DataFrame:
    joined = r.alias("r").join(s.alias("s"), F.expr(f"{ON} AND {within}"))
    return joined.toDF("r_ts", "x", "s_ts", "a")


if __name__ == "__main__":
    main()
