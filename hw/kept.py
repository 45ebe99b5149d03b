"""Measurements that are kept in the cache and in files of the project, by the digest of what decides them."""

import hashlib
import json
import os
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from .cache import cache_directory


def _write(path: Path, text: str) -> None:
    """Writes all of a file, or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(text)
    os.chmod(file.name, 0o644)
    os.replace(file.name, path)


class Record:
    """A file of measurements by name, each with the digest of what decided it; the last of a name counts."""

    def __init__(self, path: Path):
        self._path = path
        self._writing = threading.Lock()

    def _entries(self) -> dict[str, dict]:
        return json.loads(self._path.read_text()) if self._path.exists() else {}

    def find(self, digest: str) -> dict | list | None:
        """What was measured, if it is here."""
        return next((one["made"] for one in self._entries().values() if one["digest"] == digest), None)

    def put(self, name: str, digest: str, made: dict | list) -> None:
        """Takes a measurement up."""
        with self._writing:
            old = self._entries()
            new = old | {name: {"digest": digest, "made": made}}
            if new != old:
                lines = (f"{json.dumps(key)}: {json.dumps(new[key])}" for key in sorted(new))
                _write(self._path, "{\n" + ",\n".join(lines) + "\n}\n")


def kept(
    make: Callable[[], dict | list], *parts: str, name: str = "", record: Record | None = None
) -> dict | list:
    """What `make` made of `parts`, which decide it: now, or in an earlier run. A record gets it by `name`."""
    hashed = hashlib.sha256()
    for part in parts:
        hashed.update(f"{len(part)}:{part}".encode())
    digest = hashed.hexdigest()[:32]
    path = cache_directory() / "measured" / f"{digest}.json"
    if not path.exists():
        _write(path, json.dumps((record and record.find(digest)) or make()))
    made = json.loads(path.read_text())
    if record:
        record.put(name, digest, made)
    return made
