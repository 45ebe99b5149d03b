"""A band join by bins in Flink SQL, as a script for the Python of Flink's own environment.

    python bench_flink.py FOLDER WINDOW REPEATS

joins FOLDER/r.csv and FOLDER/s.csv over a window of WINDOW microseconds, and prints the seconds of each
repetition and the number of pairs as JSON. It imports nothing of Touchline, whose
dependencies Flink's exclude.
"""

import json
import sys

from pyflink.table import EnvironmentSettings, TableEnvironment

folder, window, repeats = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
seconds = window // 1_000_000
tables = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
tables.get_config().set("parallelism.default", "2")
# Counting would otherwise send an update for every pair.
tables.get_config().set("table.exec.mini-batch.enabled", "true")
tables.get_config().set("table.exec.mini-batch.allow-latency", "1 s")
tables.get_config().set("table.exec.mini-batch.size", "100000")
for name, value in (("r", "x"), ("s", "a")):
    tables.execute_sql(
        f"CREATE TABLE {name} (ts BIGINT, {value} INT, id BIGINT, moment AS TO_TIMESTAMP_LTZ(ts / 1000, 3), "
        "WATERMARK FOR moment AS moment) WITH "
        f"('connector' = 'filesystem', 'path' = 'file://{folder}/{name}.csv', 'format' = 'csv')"
    )
tables.execute_sql(
    "CREATE TABLE pairs (r_id BIGINT, x INT, s_id BIGINT, a INT) WITH ('connector' = 'blackhole')"
)
# Flink's times have milliseconds, so microseconds are tested beside them.
joined = f"""
    SELECT r.id AS r_id, r.x, s.id AS s_id, s.a
    FROM (SELECT *, x / 21 AS vbin FROM r) r
    JOIN (
        SELECT *, (a - 10) / 21 AS vbin FROM s
        UNION ALL SELECT *, (a + 10) / 21 FROM s WHERE (a + 10) / 21 <> (a - 10) / 21
    ) s
    ON r.vbin = s.vbin AND r.x >= s.a - 10 AND r.x <= s.a + 10
        AND r.ts >= s.ts - {window} AND r.ts <= s.ts + {window}
        AND r.moment >= s.moment - INTERVAL '{seconds}' SECOND
        AND r.moment <= s.moment + INTERVAL '{seconds}' SECOND
"""
times = []
for _ in range(repeats):
    inserted = tables.execute_sql(f"INSERT INTO pairs {joined}")
    inserted.wait()
    outcome = inserted.get_job_client().get_job_execution_result().result()
    times.append(outcome.get_net_runtime() / 1000)
found = 0
with tables.execute_sql(f"SELECT COUNT(*) FROM ({joined})").collect() as rows:
    for row in rows:
        found = row[0]
print(json.dumps({"seconds": times, "found": found}))
