"""Sink: Parquet files that tasks write for themselves, so that results need not go through Spark.

::

    a task writes     FOLDER/_temporary-JOB/part-00003-ATTEMPT.parquet
    the driver        takes the names that come back from the attempts that Spark counts, and renames these
                      FOLDER/part-00003-JOB-c000.snappy.parquet
                      FOLDER/_SUCCESS
                      and what is overwritten
                      FOLDER/_temporary-JOB-replaced/...

Spark does not see names that begin with `_`. So what an attempt leaves that failed, or that was repeated
elsewhere, is never read, and goes with the rest of the temporary folder. Where only Spark can write the
files, it writes them to that folder too.
"""

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import types as T
from pyspark.sql.conf import RuntimeConfig
from pyspark.sql.pandas.types import to_arrow_type

from hw.errors import DataError, ParameterError

from .task import METRICS, METRICS_TYPE, memory

#: What is done where there is something at the path already; the names are Spark's.
MODES = ("error", "errorifexists", "overwrite", "append", "ignore")
#: A row group has so many bytes, or rows, before they are encoded.
GROUP_BYTES, GROUP_ROWS = 1 << 26, 1 << 20
#: Codecs by Spark's names: Arrow's name, and what file names say.
CODECS = {
    "none": ("none", ""),
    "uncompressed": ("none", ""),
    "snappy": ("snappy", ".snappy"),
    "gzip": ("gzip", ".gz"),
    "lz4_raw": ("lz4", ".lz4raw"),
    "zstd": ("zstd", ".zstd"),
}
#: Types that Arrow writes exactly as Spark does.
_TYPES = (
    *(T.BooleanType, T.ByteType, T.ShortType, T.IntegerType, T.LongType, T.FloatType, T.DoubleType),
    *(T.DecimalType, T.StringType, T.BinaryType, T.DateType, T.TimestampType, T.TimestampNTZType),
    *(T.DayTimeIntervalType, T.StructType, T.ArrayType, T.MapType),
)
_NESTED = T.StructType, T.ArrayType, T.MapType
#: What Spark must be set to for Arrow to write as it does.
_SETTINGS = {
    "spark.sql.files.maxRecordsPerFile": "0",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "spark.sql.sources.commitProtocolClass": (
        "org.apache.spark.sql.execution.datasources.SQLHadoopMapReduceCommitProtocol"
    ),
}
#: Settings of Hadoop that begin so are about files that Arrow is not asked to write.
_ENCRYPTION = "parquet.encryption.", "parquet.crypto."
_MARKED = "mapreduce.fileoutputcommitter.marksuccessfuljobs"
#: The sign that all is there, and how folders of jobs begin.
_SUCCESS, _TEMPORARY = "_SUCCESS", "_temporary-"
_TIMESTAMPS = "spark.sql.parquet.outputTimestampType"
#: What a writing task gives back: a row for each slice, of which the first has the name of the file, if any.
WRITTEN = T.StructType(
    [T.StructField("file", T.StringType()), T.StructField("metrics", T.ArrayType(T.LongType()))]
)


class PathExistsError(ParameterError):
    """There is something at the path that must not be there."""

    def __init__(self, path: str):
        super().__init__(
            f"path {path!r} exists already; accepted are another one, or the mode overwrite, append or ignore"
        )
        self.path = path


def checked_mode(mode: str) -> str:
    """`mode` in small letters, if it is one of Spark's."""
    if not isinstance(mode, str) or mode.lower() not in MODES:
        raise ParameterError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
    return mode.lower()


def parts(kind: T.DataType) -> Iterator[T.DataType]:
    """The types that `kind` is made of, and itself."""
    yield kind
    match kind:
        case T.StructType():
            inner = [field.dataType for field in kind]
        case T.ArrayType():
            inner = [kind.elementType]
        case T.MapType():
            inner = [kind.keyType, kind.valueType]
        case _:
            inner = []
    for part in inner:
        yield from parts(part)


def hadoop(frame: DataFrame) -> Any:
    """The configuration of Hadoop by which Spark writes, if it tells."""
    if not hasattr(frame, "_jdf"):
        return None
    return frame.sparkSession._jsparkSession.sessionState().newHadoopConf()


def local_folder(frame: DataFrame, path: str) -> str | None:
    """Where the path is on this machine, if it is there and Spark tells."""
    if (configuration := hadoop(frame)) is None:
        return None
    target = frame.sparkSession._jvm.org.apache.hadoop.fs.Path(path)
    uri = target.getFileSystem(configuration).makeQualified(target).toUri()
    return uri.getPath() if uri.getScheme() == "file" else None


def only_spark(frame: DataFrame) -> str | None:
    """Why only Spark can write files as Hadoop is set, if there is a reason."""
    if (configuration := hadoop(frame)) is None:
        return "Spark Connect does not tell how Hadoop is set"
    for prefix in _ENCRYPTION:
        for name in configuration.getPropsWithPrefix(prefix):
            return f"{prefix}{name} is set"
    return None if configuration.getBoolean(_MARKED, True) else f"{_MARKED} is false"


@dataclass(frozen=True)
class Format:
    """How files are written."""

    schema: pa.Schema
    codec: str  #: by Spark's name
    old_timestamps: bool  #: INT96
    metadata: dict[str, str]  #: by which Spark knows its types again

    @classmethod
    def of(cls, schema: T.StructType, conf: RuntimeConfig, codec: str | None, version: str) -> "Format | str":
        """That of Spark's own files of a schema, or why only Spark can write them."""
        for name, wanted in _SETTINGS.items():
            if (found := conf.get(name)).lower() != wanted.lower():
                return f"{name} is {found}, not {wanted}"
        codec = (codec or conf.get("spark.sql.parquet.compression.codec")).lower()
        if codec not in CODECS:
            return f"the codec is {codec}, not one of {', '.join(CODECS)}"
        kinds = [kind for column in schema for kind in parts(column.dataType)]
        for kind in kinds:
            if type(kind) not in _TYPES or (isinstance(kind, T.StructType) and not kind.fields):
                return f"there is a column of {kind.simpleString()}"
            # Arrow does not tell such a field that is NULL from one whose struct is.
            for part in kind if isinstance(kind, T.StructType) else ():
                if not part.nullable and not isinstance(part.dataType, _NESTED):
                    return f"the field `{part.name}` of a struct is never NULL, but the struct may be"
        dated, undated = (
            any(isinstance(kind, wanted) for kind in kinds)
            for wanted in (T.TimestampType, T.TimestampNTZType)
        )
        stored = conf.get(_TIMESTAMPS)
        if dated and (stored == "TIMESTAMP_MILLIS" or (stored == "INT96" and undated)):
            beside = " beside timestamps without time zone" if stored == "INT96" else ""
            return f"{_TIMESTAMPS} is {stored}{beside}, not TIMESTAMP_MICROS"
        arrow = [pa.field(column.name, to_arrow_type(column.dataType, timezone="UTC")) for column in schema]
        metadata = {
            "org.apache.spark.version": version,
            "org.apache.spark.sql.parquet.row.metadata": schema.json(),
        }
        return cls(pa.schema(arrow), codec, dated and stored == "INT96", metadata)

    @property
    def suffix(self) -> str:
        """How names of files end."""
        return f"{CODECS[self.codec][1]}.parquet"

    def open(self, path: str) -> pq.ParquetWriter:
        """A new file."""
        try:
            writer = pq.ParquetWriter(
                path,
                self.schema,
                compression=CODECS[self.codec][0],
                store_decimal_as_integer=True,
                store_schema=False,
                use_deprecated_int96_timestamps=self.old_timestamps,
            )
        except FileNotFoundError:
            raise DataError(
                f"{path} cannot be made, because the folder that the driver has made is not there; accepted "
                "are paths that driver and executors see under one name"
            ) from None
        writer.add_key_value_metadata(self.metadata)
        return writer


@dataclass(frozen=True)
class WritingTask:
    """Joins slices and writes the results to one file. Yields the rows of `WRITTEN` when that is closed."""

    task: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]  #: a `Task` or `FileTask`
    places: tuple[int, ...]  #: of the columns of the result among those that the task yields
    format: Format
    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        name = _name(TaskContext.get().partitionId())
        slices: list[list[int]] = []
        with _File(self.format, f"{self.folder}/{name}") as file:
            for batch in self.task(batches):
                if batch.column("metrics").null_count:
                    file.write(self._rows(batch))
                else:
                    slices += batch.column("metrics").to_pylist()
            start = time.perf_counter()
            file.flush()
        if slices:
            slices[-1][METRICS.index("writing")] += int((time.perf_counter() - start) * 1_000_000)
            slices[-1][METRICS.index("memory")] = memory()
        names = [name if file.opened and not k else None for k in range(len(slices))]
        yield pa.RecordBatch.from_arrays(
            [pa.array(names, pa.string()), pa.array(slices, METRICS_TYPE)], WRITTEN.names
        )

    def _rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns of the result, in the types of the file: zones may be spelled in other ways."""
        columns = [batch.column(place) for place in self.places]
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(columns, self.format.schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self.format.schema)


class _File:
    """A file that is there when it has rows, which are kept until they fill a row group."""

    def __init__(self, format: Format, path: str):
        self._format, self._path = format, path
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0

    @property
    def opened(self) -> bool:
        """Whether there is a file."""
        return self._writer is not None

    def __enter__(self) -> "_File":
        return self

    def __exit__(self, *exception) -> None:
        if self._writer:
            self._writer.close()

    def write(self, rows: pa.RecordBatch) -> None:
        """Adds rows."""
        self._waiting.append(rows)
        self._rows += rows.num_rows
        self._bytes += rows.nbytes
        if self._rows >= GROUP_ROWS or self._bytes >= GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what there is as a row group."""
        if not self._rows:
            return
        self._writer = self._writer or self._format.open(self._path)
        self._writer.write_table(pa.Table.from_batches(self._waiting), self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0


@dataclass
class Folder:
    """A folder that a job writes to. A context manager that leaves nothing unless it commits."""

    path: str
    mode: str
    job: str = field(default_factory=lambda: str(uuid.uuid4()))
    _made: list[Path] = field(default_factory=list)

    @property
    def temporary(self) -> str:
        """Where tasks write."""
        return f"{self.path}/{_TEMPORARY}{self.job}"

    def __enter__(self) -> "Folder":
        try:
            for parent in reversed(Path(self.path).parents):
                with suppress(FileExistsError):
                    self._make(parent)
            try:
                self._make(Path(self.path))
            except FileExistsError:
                if self.mode not in ("append", "overwrite"):
                    raise PathExistsError(self.path) from None
                if not os.path.isdir(self.path):
                    raise ParameterError(
                        f"path must be a folder, or not exist, not the file {self.path!r}"
                    ) from None
            os.mkdir(self.temporary)
        except OSError as error:
            self.__exit__()
            raise ParameterError(
                f"path must be a folder that can be made or written to, not {self.path!r}: {error.strerror}"
            ) from None
        return self

    def __exit__(self, *exception) -> None:
        shutil.rmtree(self.temporary, ignore_errors=True)
        for folder in reversed(self._made):
            with suppress(OSError):  # there is something in it
                folder.rmdir()

    def commit(self, names: Sequence[str], format: Format) -> None:
        """Puts files of tasks in their place, and without any an empty one; then says that all is there."""
        if not names:
            names = [_name(0)]
            format.open(f"{self.temporary}/{names[0]}").close()
        if unseen := [name for name in names if not os.path.exists(f"{self.temporary}/{name}")]:
            raise DataError(
                f"{self.temporary}/{unseen[0]}, which a task has written, is not there; accepted are paths "
                "that driver and executors see under one name"
            )
        Path(self.temporary, _SUCCESS).touch()
        finals = {name: f"{name.rpartition('-')[0]}-{self.job}-c000{format.suffix}" for name in names}
        self._place(finals | {_SUCCESS: _SUCCESS})

    def commit_all(self) -> None:
        """Puts all that Spark has written in its place, under the names that it has."""
        self._place({name: name for name in os.listdir(self.temporary)})

    def _make(self, folder: Path) -> None:
        """Makes a folder, which goes if nothing comes into it."""
        folder.mkdir()
        self._made.append(folder)

    def _place(self, finals: Mapping[str, str]) -> None:
        """Renames what is new, and away what it replaces; or, if that fails, nothing.

        The sign that all is there goes first and comes last.
        """
        moves = [(f"{self.temporary}/{a}", f"{self.path}/{b}") for a, b in finals.items() if a != _SUCCESS]
        replaced = f"{self.temporary}-replaced"
        os.mkdir(replaced)
        if self.mode == "overwrite":
            old = [name for name in os.listdir(self.path) if not name.startswith(_TEMPORARY)]
            taken = {_SUCCESS, *finals.values()}
            early, late = (
                [(f"{self.path}/{name}", f"{replaced}/{name}") for name in old if (name in taken) is first]
                for first in (True, False)
            )
            moves = [*early, *moves, *late]
        if _SUCCESS in finals:
            moves.append((f"{self.temporary}/{_SUCCESS}", f"{self.path}/{_SUCCESS}"))
        done = []
        try:
            for source, target in moves:
                os.rename(source, target)
                done.append((target, source))
        except BaseException:
            for target, source in reversed(done):
                os.rename(target, source)
            os.rmdir(replaced)
            raise
        shutil.rmtree(replaced, ignore_errors=True)


def _name(partition: int) -> str:
    """A name that no other attempt has."""
    return f"part-{partition:05}-{uuid.uuid4().hex}.parquet"
