"""The examples, on streams small enough for every test run."""

import numpy as np
import pytest

from spark_offload.cli import main
from spark_offload.examples.command import EXAMPLES


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_joined_checked_and_drawn(spark, tmp_path, capsys, name):
    assert main(["example", name, "--rows", "2000", "--folder", str(tmp_path)]) == 0
    told = capsys.readouterr().out
    assert f"plain Spark         gives exactly the same rows, where {EXAMPLES[name].sample}" in told
    assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_a_row_too_few_is_noticed(spark, tmp_path):
    example = EXAMPLES["sensors"]
    r, s = (spark.createDataFrame(table) for table in example.generate(500, np.random.default_rng(1)))
    r.createOrReplaceTempView("r")
    s.createOrReplaceTempView("s")
    names = ["detection", "r_ts", "x", "y", "speed", "frame", "s_ts", "u", "v", "score"]
    joined = spark.sql(example.plain).toDF(*names).orderBy("detection", "frame").cache()
    assert example.agrees(r, s, joined)
    assert not example.agrees(r, s, joined.offset(1))


def test_another_name_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["example", "weather"])
    assert ended.value.code == 2
    message = "touchline example: error: example must be one of trades, sensors, clicks, not 'weather'"
    assert capsys.readouterr().err.splitlines()[-1] == message
