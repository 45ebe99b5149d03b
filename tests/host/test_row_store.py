"""Rows are found by their numbers, in whatever pieces they are kept, and forgotten when nobody asks again."""

import numpy as np
import pyarrow as pa

from host.row_store import RowStore


def rows(first: int, count: int) -> pa.Table:
    number = np.arange(first, first + count)
    texts = [f"row {k}" if k % 7 else None for k in number]
    return pa.table({"number": number, "text": pa.array(texts, pa.string())})


def test_rows_in_any_pieces(rng):
    store, come, gone = RowStore(), 0, 0
    for _ in range(60):
        count = int(rng.choice([0, 1, 5, 300]))
        store.append(rows(come, count))
        come += count
        limit = int(rng.integers(gone, come + 1))
        if rng.random() < 0.3:
            store.drop(limit)
            gone = limit
        if gone == come:
            continue
        # Few of many rows and many of few, in any order, some several times.
        for wanted in (0, 1, 3, 2 * (come - gone)):
            numbers = rng.integers(gone, come, wanted)
            found = store.take(numbers)
            assert found["number"].to_pylist() == numbers.tolist()
            assert found.equals(rows(0, come).take(pa.array(numbers)))
    assert len(store) <= 2 * (come - gone) + 1


def test_rows_are_forgotten_in_time():
    store = RowStore()
    for start in range(0, 1000, 10):
        store.append(rows(start, 10))
        store.drop(start - 50)
        first = max(0, start - 50)
        assert store.take(np.arange(first, start + 10))["number"].to_pylist() == list(
            range(first, start + 10)
        )
        assert len(store) <= 2 * 60 + 10
