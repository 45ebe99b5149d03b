"""Writes docs/instructions.md, the instruction set of OP-Blocks, from `hw/instruction.py`."""

import inspect

from amaranth.hdl import Shape

from . import instruction
from .instruction import INSTRUCTION_LAYOUT, OPERANDS, PRODUCTS, TESTS, Opcode, Part
from .page import DOCS, notes_of, table, write

PAGE = DOCS / "instructions.md"


def page() -> str:
    """The page's text."""
    notes = notes_of(instruction)

    def bits(first: int, width: int) -> str:
        return f"{first}" if width == 1 else f"{first} to {first + width - 1}"

    fields = [
        (name, bits(field.offset, Shape.cast(field.shape).width))
        for name, field in INSTRUCTION_LAYOUT
        if name != "operands"
    ]
    begin = INSTRUCTION_LAYOUT["operands"].offset
    operands = []
    for opcode in Opcode:
        at = begin
        for name, shape in OPERANDS[opcode].items():
            width = Shape.cast(shape).width
            operands.append((opcode.name, name, bits(at, width), notes.get(name, "")))
            at += width
    return "\n".join(
        [
            "# The instructions of OP-Blocks",
            "",
            "<!-- Written by `make docs` from hw/instruction.py; edit that. -->",
            "",
            *inspect.getdoc(instruction).partition("\n\n")[2].splitlines(),
            "",
            "## Opcodes",
            "",
            table(
                [(opcode.value, opcode.name, notes[opcode.name]) for opcode in Opcode],
                "opcode",
                "name",
                "meaning",
            ),
            "",
            f"A predicate is an OR of {PRODUCTS} products, each an AND of terms.",
            "",
            "## Fields",
            "",
            table(fields, "field", "bits"),
            "",
            table(operands, "instruction", "operand", "bits", "meaning"),
            "",
            "## Tests of a TERM",
            "",
            table([(number, test.value) for number, test in enumerate(TESTS)], "test", "name"),
            "",
            "## Parts of a TAKE",
            "",
            table([(part.value, part.name, notes[part.name]) for part in Part], "part", "name", "meaning"),
            "",
        ]
    )


if __name__ == "__main__":
    write(PAGE, page())
