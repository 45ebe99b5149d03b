"""Windows are read as written, and refused with one clear sentence."""

import pyarrow as pa
import pytest

from host import sqltypes
from host.window import Window, duration, parse_window
from hw.errors import SpecError

MINUTE = 60_000_000
LENGTH = (
    "a length such as '10 minutes' or '1000 rows' (a whole number where the time column is an integer), "
    "or a pair of them for R and S"
)
UNITS = "in microseconds, milliseconds, seconds, minutes, hours, days or weeks"


@pytest.mark.parametrize(
    ("text", "time", "window"),
    [
        ("10 minutes", sqltypes.TIMESTAMP, Window("time", 10 * MINUTE, 10 * MINUTE)),
        (("10 minutes", "1 hour"), sqltypes.TIMESTAMP_NTZ, Window("time", 10 * MINUTE, 60 * MINUTE)),
        (["1 MINUTE", "interval 1 hour 30 minutes"], sqltypes.TIMESTAMP, Window("time", MINUTE, 90 * MINUTE)),
        ("0.5 seconds", sqltypes.TIMESTAMP, Window("time", 500_000, 500_000)),
        ("0 seconds", sqltypes.TIMESTAMP, Window("time", 0, 0)),
        ("2 weeks", sqltypes.DATE, Window("time", 14, 14)),
        ("48 hours", sqltypes.DATE, Window("time", 2, 2)),
        (7, pa.int32(), Window("time", 7, 7)),
        ((0, 7), pa.int64(), Window("time", 0, 7)),
        (2**70, pa.int64(), Window("time", 2**63 - 1, 2**63 - 1)),
        ("1000 rows", sqltypes.TIMESTAMP, Window("rows", 1000, 1000)),
        (("1 row", "0 rows"), pa.int64(), Window("rows", 1, 0)),
    ],
)
def test_window(text, time, window):
    assert parse_window(text, time) == window


@pytest.mark.parametrize(
    ("text", "time", "message"),
    [
        ("ten minutes", sqltypes.TIMESTAMP, f"window must be {LENGTH}, {UNITS}, not 'ten minutes'"),
        ("2 months", sqltypes.TIMESTAMP, f"window must be {LENGTH}, {UNITS}, not '2 months'"),
        ("", sqltypes.TIMESTAMP, f"window must be {LENGTH}, {UNITS}, not ''"),
        ("0.5 microseconds", sqltypes.TIMESTAMP, f"window must be {LENGTH}, {UNITS}, not '0.5 microseconds'"),
        (None, sqltypes.TIMESTAMP, f"window must be {LENGTH}, not None"),
        (True, pa.int64(), f"window must be {LENGTH}, not True"),
        (("1 row",), sqltypes.TIMESTAMP, f"window must be {LENGTH}, not ('1 row',)"),
        ("-1 rows", sqltypes.TIMESTAMP, "window must not be negative, not '-1 rows'"),
        (("1 hour", "-1 hour"), sqltypes.TIMESTAMP, "window must not be negative, not '-1 hour'"),
        (-1, pa.int64(), "window must not be negative, not -1"),
        (
            ("1 hour", "5 rows"),
            sqltypes.TIMESTAMP,
            "window must be of one kind, rows or time, for R and S, not ('1 hour', '5 rows')",
        ),
        (
            10,
            sqltypes.TIMESTAMP,
            "window must have a unit, such as '10 seconds' or '10 rows', because the time column is "
            "timestamp, not 10",
        ),
        (
            "10 seconds",
            pa.int32(),
            "window must be a whole number or rows, because the time column is int, not '10 seconds'",
        ),
        (
            "36 hours",
            sqltypes.DATE,
            "window must be whole days, because the time column is a date, not '36 hours'",
        ),
    ],
)
def test_refused(text, time, message):
    with pytest.raises(SpecError) as error:
        parse_window(text, time)
    assert str(error.value) == message


def test_duration():
    assert duration("1 day 2 hours") == 26 * 60 * MINUTE
    assert duration("-1 second") == -1_000_000
    assert duration("1 year") is None
