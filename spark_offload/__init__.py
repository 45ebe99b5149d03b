"""The PySpark API: joins two DataFrames on a device. Imports `host` only."""

from .stream_join import explain, stream_join

__all__ = ["explain", "stream_join"]
