"""Runs of records as flits, and records as numbers, for tests of engines that pass them on."""

import numpy as np
from amaranth.lib import data

#: A record of 8 bytes, as of an R tuple with one dimension of 32 bits.
RECORD = data.StructLayout({"key": 32, "id": 32})
#: A box, whose low bound is the key.
BOX = data.StructLayout({"key": 16, "id": 32, "hi": 16})


def numbered(keys) -> list[dict]:
    """Records with these keys, and their numbers as ids."""
    return [{"key": int(key), "id": number} for number, key in enumerate(keys)]


def flits(records: list[dict], lanes: int) -> list[dict]:
    """A run as the payloads of its flits; what is beyond its end is not 0."""
    return flits_of(records, {"key": 1, "id": 0xDEAD}, lanes)


def flits_of(records: list[dict], blank: dict, lanes: int) -> list[dict]:
    """A run of any records as the payloads of its flits, filled up with `blank` ones."""
    payloads = []
    for start in range(0, len(records), lanes) or [0]:
        part = records[start : start + lanes]
        padded = part + [blank] * (lanes - len(part))
        payloads.append({"records": padded, "count": len(part), "last": start + lanes >= len(records)})
    return payloads


def words_of(layout: data.StructLayout, records: list[dict], lanes: int) -> list[int]:
    """An array in memory, as words; behind its last record lies what has the lowest key."""
    bits = [layout.const(record).as_bits() for record in records]
    return [
        sum(record << layout.size * lane for lane, record in enumerate(bits[k : k + lanes]))
        for k in range(0, len(bits), lanes)
    ]


def runs_of(payloads, lanes: int) -> list[np.ndarray]:
    """What came out, one array of (key, id) for each run; checks that only last flits are not full."""
    runs, run = [], []
    for flit in payloads:
        assert flit.last or flit.count == lanes, "a flit that is not the last is not full"
        assert flit.count or not run, "an empty flit at the end of a run"
        run += [(flit.records[k].key, flit.records[k].id) for k in range(flit.count)]
        if flit.last:
            runs.append(np.array(run, np.int64).reshape(-1, 2))
            run = []
    assert not run, "a run without an end"
    return runs


def sorted_records(rng, layout, count: int, span: int, first_id: int) -> list[dict]:
    """Sorted records, numbered in their order."""
    keys = np.sort(rng.integers(0, span, count)).tolist()
    records = [{"key": key, "id": first_id + k} for k, key in enumerate(keys)]
    if "hi" in layout.members:
        for record in records:
            record["hi"] = min(record["key"] + int(rng.integers(0, 100)), (1 << 16) - 1)
    return records


def from_words(words: list[int], count: int, layout, lanes: int) -> list[dict]:
    """And back."""
    mask = (1 << layout.size) - 1
    bits = [word >> k * layout.size & mask for word in words for k in range(lanes)][:count]
    return [{name: layout.from_bits(one)[name] for name in layout.members} for one in bits]
