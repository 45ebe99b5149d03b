"""Libraries that come with the code, for machines without a compiler: `make dist` puts them beside it."""

import hashlib
import os
import tempfile
from importlib import resources
from pathlib import Path

from hw.cache import cache_directory
from hw.errors import ToolError
from hw.parameters import Parameters

#: The folder in this package; a checkout has none.
FOLDER = "libraries"


def file_name(parameters: Parameters, family: str | None) -> str:
    """What a configuration's library is called there."""
    return f"{parameters.name}{f'-{family}' if family else ''}.so"


def shipped(parameters: Parameters, family: str | None) -> Path | None:
    """The library of one configuration, if it came with the code. From a zip file it goes to the cache."""
    found = resources.files(__package__) / FOLDER / file_name(parameters, family)
    if isinstance(found, Path) or not found.is_file():
        return found if found.is_file() else None
    content = found.read_bytes()
    kept = cache_directory() / f"{parameters.name}-{hashlib.sha256(content).hexdigest()[:16]}.so"
    if not kept.exists():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=kept.parent, suffix=".tmp", delete=False) as file:
            file.write(content)
        os.replace(file.name, kept)
    return kept


def check_can_build() -> None:
    """Refuses to build where Touchline itself is in a zip file: compilers read its sources as files."""
    if not isinstance(resources.files(__package__), Path):
        raise ToolError("Touchline runs from a zip file, which cannot be compiled")
