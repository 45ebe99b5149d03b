"""The gathering tree that keeps an order.

sources of pairs and stars (stalled at random) -> Mergers, Combiner -> sink (stalled at random)
"""

import random

import pytest

from hw.punctuation import Combiner, Mergers, What

from .streams import simulate, sink, source

STALLS = [(0, 0), (0.5, 0), (0, 0.5), (0.4, 0.6)]


def pair(origin: int, number: int) -> dict:
    return {"what": What.PAIR, "from_s": 0, "body": {"pair": {"r_id": origin, "s_id": number}}}


def star(number: int, what=What.STAR, from_s: int = 0) -> dict:
    return {"what": what, "from_s": from_s, "body": {"id": number}}


def run(dut, given, count, seed, stalls):
    taken = []
    sources = [
        source(stream, items, seed=seed + k, stall=stalls[0])
        for k, (stream, items) in enumerate(zip(dut.inputs, given))
    ]
    simulate(dut, [*sources, sink(dut.output, taken, count, seed=seed - 1, stall=stalls[1])])
    return [
        (item.body.pair.r_id, item.body.pair.s_id)
        if item.what == What.PAIR
        else (item.what, item.from_s, item.body.id)
        for _, item in taken
    ]


def groups(got: list) -> list[list]:
    """What lies between stars."""
    found = [[]]
    for item in got:
        found[-1].append(item)
        if isinstance(item[0], What):
            found.append([])
    assert not found.pop()
    return found


@pytest.mark.parametrize("inputs, fanin", [(1, 2), (2, 2), (5, 2), (5, 4), (9, 4)])
@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("stalls", STALLS)
def test_what_lies_between_stars_stays_there(inputs, fanin, in_turn, stalls, seed):
    chance = random.Random(seed)
    rounds = 6
    given, expected = [[] for _ in range(inputs)], []
    for number in range(rounds):
        expected.append([])
        for k, items in enumerate(given):
            found = [(k, 100 * number + step) for step in range(chance.randrange(4))]
            expected[-1] += found
            items += [*(pair(*item) for item in found), star(number, from_s=number % 2)]
    dut = Mergers.by_stars(inputs, fanin, in_turn)
    got = groups(run(dut, given, rounds + sum(map(len, expected)), seed, stalls))
    for number, (one, want) in enumerate(zip(got, expected)):
        assert one[-1] == (What.STAR, number % 2, number)
        # In turn, all of the first input comes before the second: Algorithm 5.
        assert (one[:-1] if in_turn else sorted(one[:-1])) == want


def test_without_turns_no_input_waits_for_the_star_of_another():
    """A burst of one input comes out though the others have neither pair nor star."""
    dut = Mergers.by_stars(3, 4, in_turn=False)
    given = [[], [pair(1, number) for number in range(9)], []]
    assert run(dut, given, 9, 5, (0, 0)) == [(1, number) for number in range(9)]


def test_inputs_take_turns_where_no_order_is_kept():
    dut = Mergers.by_stars(3, 4, in_turn=False)
    given = [[pair(k, number) for number in range(4)] for k in range(3)]
    origins = [origin for origin, _ in run(dut, given, 12, 5, (0, 0))]
    assert all(sorted(origins[k : k + 3]) == [0, 1, 2] for k in range(0, 12, 3))


def test_stars_of_all_inputs_take_one_cycle():
    dut, taken = Mergers.by_stars(4, 4, in_turn=True), []
    stars = [star(number) for number in range(20)]
    sources = [source(stream, stars, seed=k, stall=0) for k, stream in enumerate(dut.inputs)]
    simulate(dut, [*sources, sink(dut.output, taken, 20, seed=0, stall=0)])
    assert [cycle for cycle, _ in taken] == list(range(2, 22))


@pytest.mark.parametrize("inputs", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("stalls", STALLS)
def test_pairs_between_stars_come_by_slot_and_then_by_input(inputs, stalls, seed):
    chance = random.Random(seed)
    rounds = 8
    given, expected = [[] for _ in range(inputs)], []
    for number in range(rounds):
        slots = [sorted(chance.sample(range(8), chance.randrange(5))) for _ in given]
        for k, (items, own) in enumerate(zip(given, slots)):
            items += [pair(k, slot) | {"slot": slot} for slot in own] + [star(number)]
        found = sorted((slot, k) for k, own in enumerate(slots) for slot in own)
        expected += [*((k, slot) for slot, k in found), (What.STAR, 0, number)]
    assert run(Mergers.by_slots(inputs, 3), given, len(expected), seed, stalls) == expected


def test_a_pair_or_a_star_of_all_slots_takes_one_cycle():
    dut, taken = Mergers.by_slots(4, 2), []
    given = [[item for n in range(9) for item in (pair(k, n) | {"slot": 3 - k}, star(n))] for k in range(4)]
    sources = [
        source(stream, items, seed=k, stall=0) for k, (stream, items) in enumerate(zip(dut.inputs, given))
    ]
    simulate(dut, [*sources, sink(dut.output, taken, 9 * 5, seed=0, stall=0)])
    assert [cycle for cycle, _ in taken] == list(range(4, 4 + 9 * 5))
    assert [item.slot for _, item in taken if item.what == What.PAIR] == [0, 1, 2, 3] * 9


@pytest.mark.parametrize("in_turn", [False, True])
@pytest.mark.parametrize("stalls", STALLS)
def test_the_combiner_follows_the_input_and_says_whose_stars_they_are(in_turn, stalls, seed):
    """Each tuple finds pairs in the flow of its own stream; a star of that stream ends it."""
    chance = random.Random(seed)
    given, expected = [[], []], []
    for number in range(12):
        from_s = chance.randrange(2)
        for step in range(chance.randrange(4)):
            given[from_s] += [pair(number, step), star(0, What.INNER)]
            expected.append((number, step))
        for flow in given:
            flow.append(star(number, from_s=from_s))
        expected.append((What.STAR, from_s, number))
    for flow in given:
        flow.append(star(99, What.MARK))
    expected.append((What.MARK, 0, 99))
    dut = Combiner(in_turn)
    assert run(dut, given, len(expected), seed, stalls) == expected
