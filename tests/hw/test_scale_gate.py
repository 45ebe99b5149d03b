"""ScaleGate: readiness, order, heartbeats, ends, tokens, and its rate, in Amaranth's simulator.

sources (stalled at random) -> ScaleGate, one port each -> sink (stalled at random)
source (stalled at random) -> ScaleDoor -> ScaleGate -> sinks of tuples and of faults (stalled at random)
"""

import random

import pytest
from amaranth import Module
from amaranth.lib import wiring

from hw.broadcast import levels
from hw.dimension import Dimension
from hw.gate_word import gate_id
from hw.merge_node import PAIRWISE
from hw.parameters import Parameters
from hw.scale_door import ScaleDoor, body_layout
from hw.scale_gate import GateTree, ScaleGate, Shown, shown_layout
from hw.socket import Fault, Kind

from .streams import simulate, sink, source

BODY = 8


def tuple_(number: int, body: int = 0) -> dict:
    return {"what": Shown.TUPLE, "number": number % 2**32, "body": body}


def other(what: Shown, number: int = 0) -> dict:
    return {"what": what, "number": number % 2**32, "body": 0}


def gate(inputs: int, depth: int = 4) -> ScaleGate:
    return ScaleGate(BODY, inputs, depth)


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


@pytest.mark.parametrize("inputs", [1, 2, 5, 7])
def test_the_sequence_is_that_of_the_numbers(inputs, seed):
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
    out = run(gate(inputs, chance.choice([2, 5])), ports, len(numbers) + 1, seed, stalls)
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
    assert cycles[0] == 2 + 2 * levels(inputs, PAIRWISE)
    assert cycles[-1] - cycles[0] == total - 1


@pytest.mark.parametrize("depth", [2, 3])
def test_one_ready_tuple_per_cycle_from_short_queues(depth):
    out = run(gate(2, depth), [[*map(tuple_, range(20)), other(Shown.END)], [other(Shown.END)]], 20, 1, [0.0])
    cycles = [cycle for cycle, *_ in out]
    assert cycles[-1] - cycles[0] == 19


def test_heartbeats_take_a_cycle_each_and_tokens_one_for_all():
    """A tuple comes before the heartbeat of its number, and all else of its own input stays behind it."""
    dut, taken = GateTree(shown_layout(BODY), 3), []
    ports = [
        [other(Shown.BEAT, 1), other(Shown.BEAT, 2), other(Shown.TOKEN, 4)],
        [other(Shown.BEAT, 1), tuple_(2), other(Shown.BEAT, 2), other(Shown.TOKEN, 4)],
        [tuple_(1), other(Shown.BEAT, 2), other(Shown.TOKEN, 4)],
    ]
    benches = [
        source(port, shown, seed=k, stall=0.3) for k, (port, shown) in enumerate(zip(dut.inputs, ports))
    ]
    simulate(dut, [*benches, sink(dut.output, taken, 8, seed=9, stall=0.3)])
    beats = [(Shown.BEAT, 1)] * 2, [(Shown.BEAT, 2)] * 3
    assert [(shown.what, shown.number) for _, shown in taken] == [
        *((Shown.TUPLE, 1), *beats[0], (Shown.TUPLE, 2), *beats[1], (Shown.TOKEN, 4))
    ]


class Entrance:
    """A gate behind its door, with queues of two places."""

    def __init__(self, inputs: int):
        dims = (Dimension.parse("equal8"),)
        p = Parameters("scalejoin", 1, 2, 1, 2, dims, inputs=inputs)
        self.top = m = Module()
        m.submodules.door = self.door = ScaleDoor(p)
        m.submodules.gate = self.gate = ScaleGate(body_layout(p), inputs, p.buffer)
        for output, port in zip(self.door.outputs, self.gate.inputs):
            wiring.connect(m, output, port)
        m.d.comb += [
            self.door.starving.eq(self.gate.starving),
            self.door.idle.eq(self.gate.idle),
            self.gate.pass_over.eq(self.door.pass_over),
        ]

    def run(self, words: list[dict], count: int, seed: int, stall: float = 0.0) -> tuple[list, list]:
        """The first `count` tuples and tokens that come out, by numbers, and errors as (fault, value)."""
        taken, errors = [], []
        chance = random.Random(seed)

        async def faults(ctx):
            while True:
                ready = chance.random() >= stall
                ctx.set(self.door.faults.ready, ready)
                _, _, valid, error = await ctx.tick().sample(self.door.faults.valid, self.door.faults.payload)
                if valid and ready:
                    errors.append((error.fault, error.value))

        feed = source(self.door.tuples, words, seed=seed, stall=stall)
        simulate(self.top, [feed, sink(self.gate.output, taken, count, seed=seed, stall=stall)], [faults])
        return [shown.number >> 6 if shown.what == Shown.TUPLE else shown.what for _, shown in taken], errors


def word(kind: Kind, input: int = 0, number: int = 0, dim: int = 0) -> dict:
    return {"kind": kind, "id": gate_id(input, number), "dims": {"point": {"d0": dim}}}


@pytest.mark.parametrize("inputs", [4, 5, 8])
@pytest.mark.parametrize("stall", [0.0, 0.4])
def test_inputs_that_starve_and_go_on_are_in_order(inputs, stall, seed):
    """Nothing that comes later has an earlier number, so that whoever is passed over disturbs nobody."""
    chance = random.Random(seed)
    at = [0] * 12 + [k for _ in range(6) for k in (2, 3, 0, 1)]  # all but one starve, then none does
    for _ in range(12):
        some = chance.sample(range(inputs), chance.randrange(1, inputs + 1))
        at += chance.choices(some, k=8)
    words = [word(Kind.R, k, number) for number, k in enumerate(at)]
    out, errors = Entrance(inputs).run([*words, word(Kind.MARK)], len(at) + 1, seed, stall)
    assert out == [*range(len(at)), Shown.TOKEN]
    assert {fault for fault, _ in errors} == {Fault.STARVED}
    # The first to starve are reported one after the other.
    assert [k for _, k in errors[: inputs - 1]] == list(range(1, inputs))


def test_an_input_that_nobody_waits_for_does_not_starve():
    """A node has what input 1 sent first: input 2 alone is passed over, and 1 is not too late."""
    sent = [(1, 0), (0, 5), *((3, number) for number in range(6, 12)), (1, 1), (1, 2), (2, 12)]
    words = [word(Kind.R, *at) for at in sent]
    out, errors = Entrance(4).run([*words, word(Kind.MARK)], 12, 1)
    assert out == [0, 1, 2, *range(5, 13), Shown.TOKEN]
    assert errors == [(Fault.STARVED, 2)]


def test_what_comes_after_the_end_of_an_input_is_left_out():
    """It stays ended behind a mark, and is open again behind a flush."""
    ends = [word(Kind.INSTRUCTION, k, 0, dim=1) for k in (1, 2, 3)]
    late = [word(Kind.INSTRUCTION, 1, 7), word(Kind.R, 2, 8), word(Kind.INSTRUCTION, 3, 9, dim=1)]
    alone = [word(Kind.R, 0, number) for number in range(20)]
    flushed = [word(Kind.FLUSH), *(word(Kind.R, k, 30 + k) for k in (1, 2, 3)), word(Kind.MARK)]
    words = [*ends, *late, *alone[:10], word(Kind.MARK), late[1], *alone[10:], *flushed]
    out, errors = Entrance(4).run(words, 26, 1)
    assert out == [*range(10), Shown.TOKEN, *range(10, 20), Shown.FLUSH, 31, 32, 33, Shown.TOKEN]
    assert errors == [(Fault.OUT_OF_ORDER, gate_id(k, n)) for k, n in ((1, 7), (2, 8), (3, 9), (2, 8))]
