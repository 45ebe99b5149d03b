"""Which of some places comes first when they take turns, and whether one more follows."""

from amaranth import Cat, Module, Signal, Value


def more_than_one(bits: Value) -> Value:
    """Whether more than one of them is high."""
    return Cat(bits[k] & bits[:k].any() for k in range(1, len(bits))).any()


def lowest(m: Module, mask: Value, name: str) -> tuple[Signal, Signal]:
    """The number of the lowest bit that is high in `mask`, and the mask without it."""
    number = Signal(range(len(mask)), name=f"{name}_lowest")
    rest = Signal(len(mask), name=f"{name}_rest")
    for k in reversed(range(len(mask))):
        m.d.comb += rest[k].eq(mask[k] & mask[:k].any())
        with m.If(mask[k]):
            m.d.comb += number.eq(k)
    return number, rest
