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


class Dealer:
    """Numbers the tuples that are dealt, and finds their ids again in what comes back.

    `deal` may be called again for words that follow. Ids of a stream rise between flushes, modulo 2**32.
    """

    def __init__(self, parameters: Parameters):
        self._inputs = parameters.inputs
        self._layout = tuple_layout(parameters.dims)
        self._ids = np.empty(0, np.uint32)  # of all tuples, by their numbers
        self._is_s = np.empty(0, bool)
        self._begin = 0  # the first number since the last flush

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
        self._ids = np.concatenate([self._ids, id[tuples]])
        self._is_s = np.concatenate([self._is_s, kind[tuples] == Kind.S.value])
        if len(self._ids) > 1 << NUMBER_WIDTH:
            raise DataError(
                f"a run of scalejoin must have at most {1 << NUMBER_WIDTH} tuples, not {len(self._ids)}"
            )
        new = id.copy()
        new[tuples] = gate_id(numbers % self._inputs, numbers)
        for horizon, side in ((Kind.HORIZON_R, False), (Kind.HORIZON_S, True)):
            chosen = kind == horizon.value
            if chosen.any():
                new[chosen] = self._horizons(id[chosen], side)
        put(self._layout, words, "id", new)
        if len(kind) and kind[-1] == Kind.FLUSH.value:
            self._begin = len(self._ids)

    def _horizons(self, ids: np.ndarray, of_s: bool) -> np.ndarray:
        """The numbers of the first tuples of a stream whose ids are not before `ids`, as they travel."""
        numbers = self._begin + np.flatnonzero(self._is_s[self._begin :] == of_s)
        known = self._ids[numbers]
        first = known[0] if len(known) else np.uint32(0)
        after = ids - first
        place = np.searchsorted(known - first, np.where(after < _SIGN, after, 0))
        return gate_id(0, np.append(numbers, len(self._ids))[place])

    def restore(self, results: np.ndarray) -> np.ndarray:
        """The results with the ids that the tuples had before they were dealt."""
        if self._inputs is None:
            return results
        restored = results.copy()
        found = unpack(RESULT_LAYOUT, results, "tag") == Tag.PAIR.value
        pairs = restored[found]
        for path in ("body.pair.r_id", "body.pair.s_id"):
            put(RESULT_LAYOUT, pairs, path, self._ids[unpack(RESULT_LAYOUT, pairs, path) >> INPUT_WIDTH])
        restored[found] = pairs
        return restored
