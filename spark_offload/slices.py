"""Slices: consecutive pieces of the arrival order, and the older rows each needs beside its own.

::

    arrival order   ----------------------------------------------------->
    slices            |     0     |     1     |     2     |     3     |
    slice 2 reads               halo > > > > >|    own    |

A pair belongs to the slice of its later row. The earlier row is in that slice too, or in its halo: the
rows of earlier slices that are still in their window when the slice begins.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from host.window import Window

#: Below this many rows a slice costs more to start than to join, so slices that nobody asked for are merged.
SMALLEST = 10_000
_LOWEST = -(2**63)


def sort_keys(column: Column, kind: T.DataType) -> list[Column]:
    """Columns in the order of `column`, most significant first, of types that Python holds exactly.

    A timestamp becomes microseconds and a date days, since 1970. Python's own timestamps are no good for
    cuts, because an hour that occurs twice when clocks go back has two instants and one reading.
    """
    match kind:
        case T.TimestampType():
            return [F.unix_micros(column)]
        case T.TimestampNTZType():
            since = column - F.expr("timestamp_ntz'1970-01-01 00:00:00'")
            return [(since.cast("interval second").cast("decimal(20, 6)") * 1_000_000).cast("long")]
        case T.DateType():
            return [F.unix_date(column)]
        case T.StructType():
            parts = [sort_keys(column.getField(field.name), field.dataType) for field in kind]
            return [column.isNotNull(), *(key for part in parts for key in part)]
    return [column]


@dataclass(frozen=True)
class Slices:
    """Where the slices begin, and how many rows of each stream each one owns."""

    cuts: tuple[tuple, ...]  #: the first key of each slice, as values; slice 0 also takes what sorts before
    r: tuple[int, ...]
    s: tuple[int, ...]

    @classmethod
    def measure(cls, keys: DataFrame, partitions: int | None) -> "Slices":
        """The slices of `keys`, whose columns are the arrival order's: time, tie-breakers, is_s.

        Slices never split rows of equal key. There are at most `partitions`; None leaves it to Spark's
        setting for shuffles, and merges what is small.
        """
        at_most = partitions or int(keys.sparkSession.conf.get("spark.sql.shuffle.partitions"))
        pieces = (
            keys.repartitionByRange(at_most, *keys.columns)
            .groupBy(F.spark_partition_id().alias("piece"))
            .agg(
                F.min(F.struct(*keys.columns)).alias("first"),
                F.count_if(~F.col("is_s")).alias("r"),
                F.count_if(F.col("is_s")).alias("s"),
            )
            .collect()
        )
        merged = []
        for piece in sorted(pieces, key=lambda piece: piece.piece):
            if not partitions and merged and merged[-1][1] + merged[-1][2] < SMALLEST:
                merged[-1][1] += piece.r
                merged[-1][2] += piece.s
            else:
                merged.append([tuple(piece.first), piece.r, piece.s])
        return cls(*(tuple(column) for column in zip(*merged))) if merged else cls(((),), (0,), (0,))

    def __len__(self):
        return len(self.cuts)

    def begin(self, stream: str) -> list[int]:
        """How many rows of `stream` ("r" or "s") come before each slice."""
        return list(accumulate(getattr(self, stream)[:-1], initial=0))

    def number(self, keys: list[Column], kinds: list[T.DataType]) -> Column:
        """The slice that owns a row, from its key."""
        bounds = [
            F.struct(*(F.lit(value).cast(kind) for value, kind in zip(cut, kinds))) for cut in self.cuts[1:]
        ]
        return _count_at_most(F.struct(*keys), bounds)

    def last(self, stream: str, window: Window, time: Column, number: Column) -> Column:
        """The last slice that needs a row of `stream`, given its time and the slice that owns it."""
        size = getattr(window, stream)
        if window.kind == "time":
            # A row lives until `time + size`; moving the size to the other side keeps Spark from overflow.
            return _count_at_most(time, [F.lit(max(cut[0] - size, _LOWEST)) for cut in self.cuts[1:]])
        # A whole slice is passed on, because the ranks inside it are known only after it is sorted.
        begin = self.begin(stream)
        ends = [begin[k] + getattr(self, stream)[k] for k in range(len(self))]
        last = [max(k, bisect_left(begin, end + size) - 1) for k, end in enumerate(ends)]
        return F.get(F.array(*map(F.lit, last)), number)


def _count_at_most(value: Column, bounds: list[Column]) -> Column:
    """How many of the rising `bounds` are at most `value`, found by bisection in generated code."""

    def between(lowest: int, highest: int) -> Column:
        if lowest == highest:
            return F.lit(lowest)
        middle = (lowest + highest) // 2
        upper = between(middle + 1, highest)
        return F.when(value >= bounds[middle], upper).otherwise(between(lowest, middle))

    return between(0, len(bounds))
