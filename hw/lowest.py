"""Which of some places comes first when they take turns, and whether others follow."""

from amaranth import Cat, Const, Module, Signal, Value


def at_least(number: int, bits: Value) -> Value:
    """Whether so many of them are high: a tree, which is fast for few bits."""
    if number > len(bits):
        return Const(0)
    if number == 0:
        return Const(1)
    if len(bits) == 1:
        return bits
    half = len(bits) // 2
    return Cat(at_least(k, bits[:half]) & at_least(number - k, bits[half:]) for k in range(number + 1)).any()


def number_of(one: Value) -> Value:
    """The number of the only bit that is high; 0 if none is."""
    places = range((len(one) - 1).bit_length())
    return Cat(Cat(one[k] for k in range(len(one)) if k >> place & 1).any() for place in places)


def lowest(m: Module, mask: Value, name: str) -> tuple[Signal, Signal]:
    """The number of the lowest bit that is high in `mask`, and the mask without it."""
    number = Signal(range(len(mask)), name=f"{name}_lowest")
    rest = Signal(len(mask), name=f"{name}_rest")
    for k in reversed(range(len(mask))):
        m.d.comb += rest[k].eq(mask[k] & mask[:k].any())
        with m.If(mask[k]):
            m.d.comb += number.eq(k)
    return number, rest
