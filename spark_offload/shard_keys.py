"""Keys of shards: chosen so that Spark spreads them evenly over its partitions.

Spark puts a key into the partition `hash(key) mod partitions`. Its hash of an integer (Murmur3 of 32 bits)
can be undone, so the key of shard k is the integer whose hash is k, and two shards share a partition only if
there are more shards than partitions. The keys depend on nothing else: those of a checkpoint stay the same.
"""

_BITS = 32
_ALL = (1 << _BITS) - 1
_SEED, _LENGTH = 42, 4
_FIRST, _SECOND, _ADDED = 0xCC9E2D51, 0x1B873593, 0xE6546B64
_FINAL = 0x85EBCA6B, 0xC2B2AE35


def shard_keys(shards: int) -> list[int]:
    """The keys of shards 0, 1, 2, ..."""
    return [_with_hash(shard) for shard in range(shards)]


def _with_hash(value: int) -> int:
    """The integer that Spark's hash makes `value` of: the steps of the hash, last step first."""
    h = _unshifted(value, 16)
    h = _unshifted(_divided(h, _FINAL[1]), 13)
    h = _unshifted(_divided(h, _FINAL[0]), 16) ^ _LENGTH
    k = _rotated(_divided(h - _ADDED, 5), _BITS - 13) ^ _SEED
    k = _divided(_rotated(_divided(k, _SECOND), _BITS - 15), _FIRST)
    return k - (1 << _BITS) if k >> (_BITS - 1) else k


def _divided(value: int, factor: int) -> int:
    """What times `factor` is `value`, modulo 2^32."""
    return value * pow(factor, -1, 1 << _BITS) & _ALL


def _rotated(value: int, left: int) -> int:
    return (value << left | value >> (_BITS - left)) & _ALL


def _unshifted(value: int, by: int) -> int:
    """What gives `value` when it is XORed with itself shifted right."""
    found = value
    for _ in range(_BITS // by):
        found = value ^ found >> by
    return found
