"""ScaleGate: readiness, order, heartbeats, ends, tokens, and its rate, in Amaranth's simulator.

sources (stalled at random) -> ScaleGate, one port each -> sink (stalled at random)
"""

import random

import pytest

from hw.broadcast import levels
from hw.scale_gate import GateTree, ScaleGate, Shown, shown_layout

from .streams import simulate, sink, source

BODY = 8
FANIN = 4


def tuple_(number: int, body: int = 0) -> dict:
    return {"what": Shown.TUPLE, "number": number % 2**32, "second": 0, "body": body}


def other(what: Shown, number: int = 0) -> dict:
    return {"what": what, "number": number % 2**32, "second": 0, "body": 0}


def gate(inputs: int, depth: int = 4, fanin: int = FANIN) -> ScaleGate:
    return ScaleGate(BODY, inputs, depth, fanin)


def dealt(chance: random.Random, inputs: int, numbers: list[int]) -> list[list[dict]]:
    """The tuples with these numbers, each at a random input, and how far inputs have come now and then."""
    ports = [[] for _ in range(inputs)]
    for number in numbers:
        at = chance.randrange(inputs)
        ports[at].append(tuple_(number, body=number % 200))
        for port in ports:
            if port is not ports[at] and chance.random() < 0.2:
                port.append(other(Shown.BEAT, number))
    return ports


def run(dut: ScaleGate, ports: list[list[dict]], count: int, seed: int, stalls: list[float]) -> list[tuple]:
    """What comes out, as (cycle, what, number, body)."""
    taken = []
    sources = [
        source(port, shown, seed=seed + k, stall=stalls[k % len(stalls)])
        for k, (port, shown) in enumerate(zip(dut.inputs, ports))
    ]
    simulate(dut, [*sources, sink(dut.output, taken, count, seed=seed, stall=stalls[-1])])
    return [(cycle, shown.what, shown.number, shown.body) for cycle, shown in taken]


@pytest.mark.parametrize("inputs, fanin", [(1, 2), (2, 2), (5, 2), (7, 4)])
def test_the_sequence_is_that_of_the_numbers(inputs, fanin, seed):
    """Whatever comes when; numbers wrap at 2**32, and ends and tokens let go all before them."""
    chance = random.Random(seed)
    first = 2**32 - 40
    numbers = [first + 3 * k for k in range(90)]
    ports = dealt(chance, inputs, numbers[:60])
    for port in ports:
        port.append(other(Shown.TOKEN, 7))
    for port, more in zip(ports, dealt(chance, inputs, numbers[60:])):
        port += [*more, other(Shown.END)]
    stalls = [chance.choice([0.0, 0.3, 0.8]) for _ in range(inputs)]
    out = run(gate(inputs, chance.choice([2, 5]), fanin), ports, len(numbers) + 1, seed, stalls)
    expected = [(Shown.TUPLE, number % 2**32, number % 200) for number in numbers]
    expected.insert(60, (Shown.TOKEN, 7, 0))
    assert [shown for _, *shown in out] == [list(shown) for shown in expected]


@pytest.mark.parametrize(
    "shown, ready",
    [
        ([tuple_(9)], [5]),
        ([tuple_(3)], [3]),
        ([other(Shown.BEAT, 4)], []),
        ([other(Shown.BEAT, 5)], [5]),
        ([other(Shown.END)], [5]),
        ([other(Shown.BEAT, 4), other(Shown.BEAT, 8)], [5]),
        ([], []),
    ],
    ids=["later", "earlier", "beat_before", "beat_at", "end", "beats", "nothing"],
)
def test_a_tuple_is_ready_once_every_other_input_has_shown_a_later_one(shown, ready):
    """Input 0 shows a tuple with number 5 and its end, input 2 one far away, and input 1 what is given."""
    dut, out = gate(3), []

    async def testbench(ctx):
        ctx.set(dut.output.ready, 1)
        for port, payloads in zip(
            dut.inputs, ([tuple_(5), other(Shown.END)], shown, [tuple_(99), tuple_(100)])
        ):
            for payload in payloads:
                ctx.set(port.payload, payload)
                ctx.set(port.valid, 1)
                await ctx.tick().until(port.ready)
            ctx.set(port.valid, 0)
        for _ in range(20):
            _, _, valid, payload = await ctx.tick().sample(dut.output.valid, dut.output.payload)
            if valid:
                out.append(payload.number)
        # Nobody waits for input 1 if it has ended, and all is out.
        assert ctx.get(dut.starving) == (0b100 if other(Shown.END) in shown else 0b010)

    simulate(dut, [testbench])
    assert [number for number in out if number < 9] == ready


def test_an_input_that_has_ended_is_open_again_after_a_flush():
    """Until then nobody waits for it, not even behind other tokens."""
    ends = [other(Shown.END), other(Shown.TOKEN, 1), other(Shown.FLUSH)]
    goes_on = [tuple_(1), other(Shown.TOKEN, 1), tuple_(2), tuple_(3), other(Shown.FLUSH), tuple_(9)]
    before = [(Shown.TUPLE, 1), (Shown.TOKEN, 1), (Shown.TUPLE, 2), (Shown.TUPLE, 3), (Shown.FLUSH, 0)]
    out = run(gate(2), [ends, goes_on], 5, 1, [0.0])
    assert [(what, number) for _, what, number, _ in out] == before
    out = run(gate(2), [[*ends, tuple_(4), other(Shown.BEAT, 9)], goes_on], 7, 1, [0.0])
    assert [(what, number) for _, what, number, _ in out] == [*before, (Shown.TUPLE, 4), (Shown.TUPLE, 9)]
    dut, taken = gate(2), []
    benches = [source(port, shown, seed=1, stall=0) for port, shown in zip(dut.inputs, (ends, goes_on))]
    with pytest.raises(AssertionError, match="5 of 6 payloads"):
        simulate(dut, [*benches, sink(dut.output, taken, 6, seed=1, stall=0, limit=60)])


@pytest.mark.parametrize("inputs", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("order", ["in_turn", "bursts"])
def test_one_ready_tuple_per_cycle(inputs, order):
    """And the first comes out after as many cycles as the docstring says."""
    each = 12
    numbers = [
        [k * inputs + at if order == "in_turn" else at * each + k for k in range(each)]
        for at in range(inputs)
    ]
    ports = [[*map(tuple_, own), other(Shown.END)] for own in numbers]
    total = inputs * each
    out = run(gate(inputs, depth=each + 1), ports, total, 1, [0.0])
    assert [number for _, _, number, _ in out] == list(range(total))
    cycles = [cycle for cycle, *_ in out]
    assert cycles[0] == 1 + levels(inputs, FANIN)
    assert cycles[-1] - cycles[0] == total - 1


def test_pairs_are_merged_by_both_numbers():
    """As elements show them: heartbeats that all inputs show are one, and a mark comes out once."""
    layout = shown_layout(1, 8)
    dut, taken = GateTree(layout, 3, 2), []

    def pair(number, second):
        return {"what": Shown.TUPLE, "number": number, "second": second % 256, "body": 0}

    def beat(number):
        return {"what": Shown.BEAT, "number": number, "second": 0, "body": 0}

    mark = {"what": Shown.TOKEN, "number": 4, "second": 0, "body": 0}
    ports = [
        [pair(1, -2), pair(1, 1), beat(1), beat(2), mark],
        [beat(1), pair(2, 0), beat(2), mark],
        [pair(1, -1), beat(1), pair(2, -3), beat(2), mark],
    ]
    benches = [
        source(port, shown, seed=k, stall=0.3) for k, (port, shown) in enumerate(zip(dut.inputs, ports))
    ]
    simulate(dut, [*benches, sink(dut.output, taken, 8, seed=9, stall=0.3)])
    out = [(shown.what, shown.number, shown.second) for _, shown in taken]
    pairs = [(1, 254), (1, 255), (1, 1), (2, 253), (2, 0)]
    assert [shown[1:] for shown in out if shown[0] == Shown.TUPLE] == pairs
    assert [shown[0] for shown in out if shown[0] != Shown.TUPLE] == [Shown.BEAT, Shown.BEAT, Shown.TOKEN]
