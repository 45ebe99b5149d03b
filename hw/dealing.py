"""Words in arrival order, made for ScaleJoin: numbered, dealt to its physical inputs, and back again.

A host that has both streams in order needs no gate; it deals its tuples to the inputs in turn, so that none
of them starves. For joiners without inputs words are left as they are.
"""

import numpy as np

from .errors import DataError
from .gate_word import INPUT_WIDTH, NUMBER_WIDTH, gate_id
from .parameters import Parameters
from .socket import RESULT_LAYOUT, Kind, Tag, tuple_layout
from .words import put, unpack

_SIGN = 1 << 31

#: Tuples of one run: modulo 2**26, one that is further behind a horizon would seem to be ahead of it.
MOST_TUPLES = 1 << NUMBER_WIDTH - 1


class _Row:
    """Numbers of 32 bits in a row that grows: adding to it takes time for what is added, on average."""

    def __init__(self):
        self._places = np.empty(0, np.uint32)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def values(self) -> np.ndarray:
        return self._places[: self._count]

    def extend(self, values: np.ndarray) -> None:
        count = self._count + len(values)
        if count > len(self._places):
            grown = np.empty(max(count, 2 * len(self._places)), np.uint32)
            grown[: self._count] = self.values
            self._places = grown
        self._places[self._count : count] = values
        self._count = count


class _Stream:
    """The tuples of one stream since the last flush: how far their ids are behind the first, and numbers."""

    def __init__(self):
        self._first = np.uint32(0)
        self._behind = _Row()
        self._numbers = _Row()

    def extend(self, ids: np.ndarray, numbers: np.ndarray) -> None:
        if len(ids) and not len(self._numbers):
            self._first = ids[0]
        self._behind.extend(ids - self._first)
        self._numbers.extend(numbers)

    def horizons(self, ids: np.ndarray, next_number: int) -> np.ndarray:
        """The numbers of the first tuples whose ids are not before `ids`, or the next to be given."""
        behind = ids - self._first
        place = np.searchsorted(self._behind.values, np.where(behind < _SIGN, behind, np.uint32(0)))
        numbers = np.full(len(ids), next_number)
        known = place < len(self._numbers)
        numbers[known] = self._numbers.values[place[known]]
        return numbers


class Dealer:
    """Numbers the tuples that are dealt, and finds their ids again in what comes back.

    `deal` may be called again for words that follow. Ids of a stream rise between flushes, modulo 2**32.
    """

    def __init__(self, parameters: Parameters):
        self._inputs = parameters.inputs
        self._layout = tuple_layout(parameters.dims)
        self._ids = _Row()  # of all tuples, by their numbers
        self._streams = {Kind.R: _Stream(), Kind.S: _Stream()}

    def deal(self, words: np.ndarray) -> np.ndarray:
        """The words with numbers and inputs for ids; horizons name numbers too."""
        if self._inputs is None:
            return words
        dealt = words.copy()
        kind = unpack(self._layout, words, "kind")
        flushes = np.flatnonzero(kind == Kind.FLUSH.value) + 1
        for start, stop in zip([0, *flushes.tolist()], [*flushes.tolist(), len(words)]):
            self._deal(kind[start:stop], dealt[start:stop])
        return dealt

    def _deal(self, kind: np.ndarray, words: np.ndarray) -> None:
        """Deals words up to a flush, in place."""
        id = unpack(self._layout, words, "id")
        tuples = (kind == Kind.R.value) | (kind == Kind.S.value)
        numbers = len(self._ids) + np.arange(int(tuples.sum()))
        self._ids.extend(id[tuples])
        if len(self._ids) > MOST_TUPLES:
            raise DataError(
                f"a run of scalejoin must have at most {MOST_TUPLES} tuples, not {len(self._ids)}"
            )
        new = id.copy()
        new[tuples] = gate_id(numbers % self._inputs, numbers)
        for of, horizon in ((Kind.R, Kind.HORIZON_R), (Kind.S, Kind.HORIZON_S)):
            own, chosen = kind == of.value, kind == horizon.value
            self._streams[of].extend(id[own], numbers[own[tuples]])
            new[chosen] = gate_id(0, self._streams[of].horizons(id[chosen], len(self._ids)))
        put(self._layout, words, "id", new)
        if len(kind) and kind[-1] == Kind.FLUSH.value:
            self._streams = {Kind.R: _Stream(), Kind.S: _Stream()}

    def restore(self, results: np.ndarray) -> np.ndarray:
        """The results with the ids that the tuples had before they were dealt."""
        if self._inputs is None:
            return results
        ids = self._ids.values
        restored = results.copy()
        found = unpack(RESULT_LAYOUT, results, "tag") == Tag.PAIR.value
        pairs = restored[found]
        for path in ("body.pair.r_id", "body.pair.s_id"):
            put(RESULT_LAYOUT, pairs, path, ids[unpack(RESULT_LAYOUT, pairs, path) >> INPUT_WIDTH])
        restored[found] = pairs
        return restored
