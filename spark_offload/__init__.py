"""The PySpark API: joins two DataFrames on a device. Imports `host` only."""

from .stream_join import StreamJoin, explain, stream_join

__all__ = ["StreamJoin", "explain", "stream_join"]
