"""The demo's parts, on streams small enough for every test run."""

from spark_offload import demo, job


def test_a_run_is_joined_checked_and_drawn(spark, tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "FOLDER", tmp_path)
    run = demo.Run("tiny", 100, 50, "20 milliseconds", 20_000)
    run.generate()
    counts = run.join(spark)
    assert counts["tuples"] == 200
    assert counts["pairs"] > 0
    assert run.equals_plain_spark(spark)
    result = run.watch()
    assert len(result.r) == counts["pairs"]
    demo.draw(result, run, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    assert f"pairs               {counts['pairs']}" in job.summary(counts)
    pairs = spark.read.parquet(run.path("pairs")).localCheckpoint()
    pairs.limit(counts["pairs"] - 1).write.parquet(run.path("pairs"), "overwrite")
    assert not run.equals_plain_spark(spark)
