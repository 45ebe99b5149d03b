"""Writes docs/link.md, the wire format byte by byte, from its definition in `hw/frame.py`."""

import inspect

from amaranth.hdl import Shape

from . import frame
from .frame import CRC_BYTES, HEADER_LAYOUT, FrameKind, Link, Register
from .page import DOCS, notes_of, table, write

PAGE = DOCS / "link.md"
_EXAMPLES = (Link(8, 120, 8), Link(64, 64, 8), Link(512, 64, 8))


def page() -> str:
    """The page's text."""
    notes = notes_of(frame)
    header = []
    for name, field in HEADER_LAYOUT:
        width = Shape.cast(field.shape).width
        first, last = field.offset // 8, (field.offset + width) // 8 - 1
        header.append((f"{first}" if first == last else f"{first} to {last}", name, notes[name]))
    kinds = [(kind.value, kind.name, notes[kind.name]) for kind in FrameKind]
    registers = [(register.value, register.name, notes[register.name]) for register in Register]
    links = [(link.width, link.header_words, link.payload, link.crc_words, link.frames) for link in _EXAMPLES]

    return "\n".join(
        [
            "# The wire, byte by byte",
            "",
            "<!-- Written by `make docs` from hw/frame.py; edit that. -->",
            "",
            *inspect.getdoc(frame).partition("\n\n")[2].replace("::\n", ":\n").splitlines(),
            "",
            "## Header",
            "",
            table(header, "byte", "field", "meaning"),
            "",
            f"After the payload come the {CRC_BYTES} bytes of the CRC-32 (that of Ethernet and zlib).",
            "",
            "## Frames",
            "",
            table(kinds, "kind", "name", "meaning"),
            "",
            "## Registers",
            "",
            table(registers, "number", "name", "meaning"),
            "",
            "## Words",
            "",
            "A tuple and a result each begin a new word; the rest of their last word is padding. The fields",
            "of both are in `hw/socket.py`. Sizes of some links, in words:",
            "",
            table(links, "word bits", "header", "payload at most", "CRC", "frames kept"),
            "",
        ]
    )


if __name__ == "__main__":
    write(PAGE, page())
