"""What a shard of a streaming join keeps in Spark's state store: rows in chunks, and a directory of them.

::

    directory (a value)    the join, counts, watermark; of each chunk: kind, number, name, rows
    chunks (a map)         number -> the rows, as an Arrow stream

A micro-batch writes the chunks that it adds to and removes those in which nothing lives. A worker keeps the
chunks that it has read or written, and uses them again only if the directory names them: each version of a
chunk has a random name, so what a failed or repeated attempt has left behind is never taken for the state.
"""

import json
import secrets
from collections import OrderedDict
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

from hw.errors import DataError

#: A chunk is added to until it has so many rows.
CHUNK_ROWS = 4096
#: How many shards' chunks a worker keeps.
REMEMBERED = 16

_TEXT = T.StructType([T.StructField("text", T.StringType())])
_NUMBER = T.StructType([T.StructField("number", T.LongType())])
_BYTES = T.StructType([T.StructField("bytes", T.BinaryType())])

#: The chunks of each shard that this worker has seen last, by name.
_seen: OrderedDict[str, dict[str, pa.Table]] = OrderedDict()


def to_bytes(table: pa.Table | pa.RecordBatch) -> bytes:
    """A table as an Arrow stream."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write(table)
    return sink.getvalue().to_pybytes()


def from_bytes(data: bytes) -> pa.Table:
    """The table in an Arrow stream."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()


@dataclass(frozen=True)
class Entry:
    """A chunk in the directory."""

    kind: str
    number: int  #: its key in the map
    name: str  #: of this version of it
    rows: int


@dataclass
class Directory:
    """All that a shard keeps beside the chunks."""

    join: dict  #: what the state was made for
    shard: str = field(default_factory=lambda: secrets.token_hex(8))  #: a name of its own
    counts: list[int] = field(default_factory=lambda: [0, 0])  #: rows of R and of S numbered so far
    watermark: int | None = None  #: of the last micro-batch, in milliseconds
    timer: int | None = None  #: when Spark wakes the shard, in milliseconds
    next: int = 0
    entries: list[Entry] = field(default_factory=list)


class Chunks:
    """The state of a shard: loaded, changed and saved once in a micro-batch."""

    directory: Directory

    def __init__(self, handle: StatefulProcessorHandle):
        self._text = handle.getValueState("directory", _TEXT)
        self._map = handle.getMapState("chunks", _NUMBER, _BYTES)

    def load(self, join: dict) -> None:
        """Begins with what the state store has for the current key, or with nothing, for `join`.

        State that was made for another join is refused.
        """
        text = self._text.get()
        if text is None:
            self.directory = Directory(join)
        else:
            read = json.loads(text[0])
            self.directory = Directory(**read | {"entries": [Entry(**entry) for entry in read["entries"]]})
        for name, wanted in join.items():
            if (known := self.directory.join.get(name)) != wanted:
                raise DataError(
                    f"the checkpoint is of a join with {name} {known!r}, not {wanted!r}; "
                    "go on with that one, or give a new checkpointLocation"
                )
        self._tables = dict(_seen.get(self.directory.shard, {}))
        self._changed: set[int] = set()

    def of(self, kind: str) -> list[tuple[Entry, pa.Table]]:
        """The chunks of a kind, oldest first."""
        return [(entry, self._table(entry)) for entry in self.directory.entries if entry.kind == kind]

    def rows(self, kind: str) -> int:
        """How many rows the chunks of a kind have."""
        return sum(entry.rows for entry in self.directory.entries if entry.kind == kind)

    def add(self, kind: str, rows: pa.Table) -> None:
        """Adds rows: to the newest chunk of the kind, if that is small."""
        if not rows.num_rows:
            return
        newest = next((entry for entry in reversed(self.directory.entries) if entry.kind == kind), None)
        if newest is not None and newest.rows < CHUNK_ROWS:
            self.replace(newest, pa.concat_tables([self._table(newest), rows]))
            return
        entry = Entry(kind, self.directory.next, "", 0)
        self.directory.next += 1
        self.directory.entries.append(entry)
        self.replace(entry, rows)

    def put(self, kind: str, rows: pa.Table) -> None:
        """Makes rows the only chunk of a kind."""
        known = next((entry for entry in self.directory.entries if entry.kind == kind), None)
        if known is None:
            self.add(kind, rows)
        else:
            self.replace(known, rows)

    def replace(self, old: Entry, rows: pa.Table) -> None:
        """Puts other rows into a chunk; without any it is removed."""
        place = self.directory.entries.index(old)
        if not rows.num_rows:
            del self.directory.entries[place]
            self._changed.add(old.number)
            return
        entry = replace(old, name=secrets.token_hex(8), rows=rows.num_rows)
        self.directory.entries[place] = entry
        self._tables[entry.name] = rows.combine_chunks()
        self._changed.add(entry.number)

    def save(self) -> None:
        """Writes what has changed to the state store."""
        entries = {entry.number: entry for entry in self.directory.entries}
        for number in sorted(self._changed):
            if number in entries:
                data = to_bytes(self._tables[entries[number].name])
                self._map.updateValue((number,), (data,))
            else:
                self._map.removeKey((number,))
        self._text.update((json.dumps(asdict(self.directory)),))
        names = {entry.name for entry in entries.values()} & self._tables.keys()
        _seen[self.directory.shard] = {name: self._tables[name] for name in names}
        _seen.move_to_end(self.directory.shard)
        while len(_seen) > REMEMBERED:
            _seen.popitem(last=False)

    def _table(self, entry: Entry) -> pa.Table:
        if entry.name not in self._tables:
            self._tables[entry.name] = from_bytes(self._map.getValue((entry.number,))[0])
        return self._tables[entry.name]
