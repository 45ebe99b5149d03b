"""What the pages that are written from definitions have in common."""

import inspect
import re
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from tabulate import tabulate

DOCS = Path(__file__).parent.parent / "docs"


def notes_of(module: ModuleType) -> dict[str, str]:
    """The comment beside each name that a module defines."""
    return dict(re.findall(r'^\s+"?(\w+)"?\s*[:=].*?#:? (.+)$', inspect.getsource(module), re.MULTILINE))


def table(rows: Iterable[tuple], *headers: str) -> str:
    """A table of a page."""
    return tabulate(rows, headers, tablefmt="github")


def write(page: Path, text: str) -> None:
    """Writes a page, and says so."""
    page.write_text(text)
    print(f"wrote {page}", file=sys.stderr)
