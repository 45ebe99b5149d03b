"""A hash of a key's code, for home nodes and for buckets of an index."""

from amaranth import Cat, Value

from .dimension import Dimension, Test

#: Bits of a hash. Buckets take the lowest, homes begin with the lowest too: codes are often small numbers.
WIDTH = 16


def hashable(dims: tuple[Dimension, ...]) -> bool:
    """Whether tuples can only join if their codes in the first dimension are equal."""
    return dims[0].test is Test.EQUAL and not dims[0].negated


def key_of(dims: Value, of_s: bool) -> Value:
    """The code in the first dimension, which must be one of equality, of a point or a box (`of_s`)."""
    return dims.d0.lo if of_s else dims.d0


def hashed(key: Value) -> Value:
    """All bits of a key folded into `WIDTH`."""
    folded = key[:WIDTH]
    for first in range(WIDTH, len(key), WIDTH):
        folded = folded ^ key[first : first + WIDTH]
    return folded[:WIDTH]


def home_of(key: Value, nodes: int) -> Value:
    """A number from 0 to `nodes` - 1, the same for equal keys; neighbouring keys have different homes."""
    bits = hashed(key)
    return (
        Cat(bits[WIDTH - 1 - k] if WIDTH - 1 - k < len(bits) else 0 for k in range(WIDTH)) * nodes
    ) >> WIDTH


def bucket_of(key: Value, buckets: int) -> Value:
    """A number from 0 to `buckets` - 1, a power of two, which does not depend on the bits that make homes."""
    bits = hashed(key)
    size = buckets.bit_length() - 1
    return (bits ^ (bits >> (len(bits) // 2)))[:size]
