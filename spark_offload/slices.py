"""Slices: consecutive pieces of the arrival order, and the older rows each needs beside its own.

::

    arrival order   ----------------------------------------------------->
    slices            |     0     |     1     |     2     |     3     |
    slice 2 reads               halo > > > > >|    own    |< < < < if outer

A pair belongs to the slice of its later row. The earlier row is in that slice too, or in its halo: the
rows of earlier slices that are still in their window when the slice begins. In an outer join a slice also
reads the later rows that may join its own, to know which of these have no partner.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from host.window import Window

#: Below this many rows a slice costs more to start than to join, so slices that nobody asked for are merged.
SMALLEST = 10_000
_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


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
        return F.get(F.array(*map(F.lit, self._last_of(stream, size))), number)

    def first(self, stream: str, window: Window, time: Column, number: Column) -> Column:
        """The first slice that owns a row of the other stream that may be joined by a row of `stream`."""
        other = "r" if stream == "s" else "s"
        size = getattr(window, other)
        if window.kind == "time":
            # Slices end at the next cut's time, inclusive, so a row is beyond one only if it is later.
            ends = [F.lit(min(cut[0] + size, _HIGHEST)) for cut in self.cuts[1:]]
            return F.least(_count_below(time, ends), number)
        last = self._last_of(other, size)
        return F.get(F.array(*(F.lit(bisect_left(last, k)) for k in range(len(self)))), number)

    def _last_of(self, stream: str, size: int) -> list[int]:
        """For each slice, the last one that needs its rows of `stream`, of which windows hold `size`.

        A whole slice is passed on, because the ranks inside it are known only after it is sorted.
        """
        ends = list(accumulate(getattr(self, stream)))
        begin = [0, *ends[:-1]]
        return [max(k, bisect_left(begin, end + size) - 1) for k, end in enumerate(ends)]


def _count_at_most(value: Column, bounds: list[Column]) -> Column:
    """How many of the rising `bounds` are at most `value`."""
    return _bisected(lambda bound: value >= bound, bounds)


def _count_below(value: Column, bounds: list[Column]) -> Column:
    """How many of the rising `bounds` are below `value`."""
    return _bisected(lambda bound: value > bound, bounds)


def _bisected(passes: Callable[[Column], Column], bounds: list[Column]) -> Column:
    """How many of the bounds, of which the first ones pass, do so: found by bisection in generated code."""

    def between(lowest: int, highest: int) -> Column:
        if lowest == highest:
            return F.lit(lowest)
        middle = (lowest + highest) // 2
        upper = between(middle + 1, highest)
        return F.when(passes(bounds[middle]), upper).otherwise(between(lowest, middle))

    return between(0, len(bounds))
