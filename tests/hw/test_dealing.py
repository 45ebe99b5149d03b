"""Words dealt to the inputs of a ScaleJoin, and results as they were numbered before."""

import numpy as np
import pytest

from hw.dealing import MOST_TUPLES, Dealer
from hw.dimension import Dimension
from hw.errors import DataError
from hw.gate_word import gate_id
from hw.parameters import Parameters
from hw.socket import RESULT_LAYOUT, Kind, Tag, tuple_layout
from hw.words import pack, unpack, unpack_results

DIMS = (Dimension.parse("equal8"),)
SCALEJOIN = Parameters("scalejoin", dims=DIMS, inputs=3)


def words(*given: tuple[Kind, int]) -> np.ndarray:
    kinds, ids = zip(*given)
    return pack(
        tuple_layout(DIMS), {"kind": np.array([k.value for k in kinds]), "id": np.array(ids)}, len(given)
    )


def ids(rows: np.ndarray) -> list[int]:
    return unpack(tuple_layout(DIMS), rows, "id").tolist()


def pairs(*given: tuple[int, int]) -> np.ndarray:
    r, s = np.array(given).T
    fields = {"tag": Tag.PAIR.value, "body.pair.r_id": r, "body.pair.s_id": s}
    return pack(RESULT_LAYOUT, fields, len(given))


def test_tuples_are_numbered_and_go_to_the_inputs_in_turn():
    dealer = Dealer(SCALEJOIN)
    given = words((Kind.R, 70), (Kind.S, 5), (Kind.R, 71), (Kind.MARK, 9), (Kind.S, 6))
    dealt = dealer.deal(given)
    assert ids(dealt) == [gate_id(0, 0), gate_id(1, 1), gate_id(2, 2), 9, gate_id(0, 3)]
    assert (unpack(tuple_layout(DIMS), dealt, "kind") == unpack(tuple_layout(DIMS), given, "kind")).all()
    assert ids(dealer.deal(words((Kind.S, 7)))) == [gate_id(1, 4)]
    found = unpack_results(
        dealer.restore(pairs((gate_id(0, 2), gate_id(0, 1)), (gate_id(0, 0), gate_id(0, 4))))
    )
    assert found.r_id.tolist() == [71, 70] and found.s_id.tolist() == [5, 7]
    mark = pack(RESULT_LAYOUT, {"tag": Tag.MARK.value, "body.mark.id": 123456}, 1)
    assert (dealer.restore(mark) == mark).all()


def test_horizons_name_the_number_of_the_first_that_lives():
    """Of tuples still to come, all before them are dead; ids wrap, and begin anew behind a flush."""
    top = 2**32 - 1
    dealer = Dealer(SCALEJOIN)
    dealt = dealer.deal(
        words(
            *((Kind.R, top), (Kind.S, 0), (Kind.R, 0), (Kind.S, 4), (Kind.R, 1)),
            *((Kind.HORIZON_R, 0), (Kind.HORIZON_S, 3), (Kind.HORIZON_R, 9), (Kind.HORIZON_R, top - 1)),
            *((Kind.FLUSH, 0), (Kind.R, 0), (Kind.HORIZON_R, 0), (Kind.HORIZON_S, 0)),
        )
    )
    assert ids(dealt)[5:9] == [gate_id(0, number) for number in (2, 3, 5, 0)]
    assert ids(dealt)[10:] == [gate_id(2, 5), gate_id(0, 5), gate_id(0, 6)]


def test_horizons_are_the_same_in_whatever_parts_words_are_dealt(rng):
    """What is dead is: of the stream's tuples so far since the flush, those with ids before the horizon."""
    dealer = Dealer(SCALEJOIN)
    next_id = {Kind.R: 2**32 - 60, Kind.S: 2**32 - 30}
    live = {Kind.R: [], Kind.S: []}  # (id, number), since the flush
    given, number = 0, 0
    for _ in range(200):
        part = []
        for kind in rng.choice([Kind.R, Kind.S], rng.integers(0, 6)):
            next_id[kind] += int(rng.integers(1, 4))
            live[kind].append((next_id[kind], number))
            part.append((kind, next_id[kind] % 2**32))
            number += 1
        horizons = [
            (of, max(0, next_id[of] - int(rng.integers(-3, 40)))) for of in rng.choice([Kind.R, Kind.S], 2)
        ]
        names = {Kind.R: Kind.HORIZON_R, Kind.S: Kind.HORIZON_S}
        dealt = ids(dealer.deal(words(*part, *((names[of], id % 2**32) for of, id in horizons))))
        for (of, horizon), named in zip(horizons, dealt[len(part) :]):
            dead = [id < horizon for id, _ in live[of]]
            assert [gate_id(0, at) < named for _, at in live[of]] == dead
            given += any(dead) and not all(dead)
        if rng.random() < 0.02:
            dealer.deal(words((Kind.FLUSH, 0)))
            live = {Kind.R: [], Kind.S: []}
    assert given > 100


def test_words_of_joiners_without_inputs_stay_as_they_are():
    dealer, given = Dealer(Parameters(dims=DIMS)), words((Kind.R, 70), (Kind.HORIZON_R, 3))
    assert dealer.deal(given) is given
    assert dealer.restore(given) is given


def test_too_many_tuples_are_refused(monkeypatch):
    assert MOST_TUPLES == 2**25
    monkeypatch.setattr("hw.dealing.MOST_TUPLES", 4)
    dealer = Dealer(SCALEJOIN)
    dealer.deal(words(*[(Kind.R, k) for k in range(4)]))
    with pytest.raises(DataError) as caught:
        dealer.deal(words((Kind.R, 4)))
    assert str(caught.value) == "a run of scalejoin must have at most 4 tuples, not 5"
