"""Where built things are kept, and the lock that lets one process build each."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from .errors import ToolError


def cache_directory() -> Path:
    """Where built things are kept: $TOUCHLINE_CACHE, or `touchline` in the user's cache directory."""
    if chosen := os.environ.get("TOUCHLINE_CACHE"):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "touchline"


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[None]:
    """Holds a lock file. The kernel frees it when its holder dies, so a killed builder blocks nobody."""
    with path.open("w") as file:
        deadline = time.monotonic() + seconds
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ToolError(
                        f"another process has held {path} for {seconds:g} seconds: stop it and try again"
                    ) from None
                time.sleep(0.1)
        yield
