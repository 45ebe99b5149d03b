"""What the tests of `spark_offload` share."""

import pytest


@pytest.fixture
def new_york(spark):
    """A session whose time zone moves its clocks."""
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "America/New_York")
    yield
    spark.conf.set("spark.sql.session.timeZone", zone)
