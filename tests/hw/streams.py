"""Drives Amaranth streams in Amaranth's own simulator, with stalls from a seed."""

import random
from collections.abc import Callable, Sequence

from amaranth import Module, Signal
from amaranth.sim import Simulator


def simulate(component, testbenches: Sequence[Callable], background: Sequence[Callable] = ()) -> None:
    """Runs `testbenches` to their end, and those in the `background` as long as these run."""
    top = Module()
    top.submodules.component = component
    top.d.sync += Signal().eq(1)  # a clock to tick by, also for a component that has none
    simulator = Simulator(top)
    simulator.add_clock(1e-6)
    for testbench in testbenches:
        simulator.add_testbench(testbench)
    for testbench in background:
        simulator.add_testbench(testbench, background=True)
    simulator.run()


def passed_through(dut, stalls: tuple[float, float], seed: int) -> list[int]:
    """Sends numbers from `input` to `output`, which must be in order; returns the cycles they came out in."""
    payloads, taken = list(range(200)), []
    simulate(
        dut,
        [
            source(dut.input, payloads, seed=seed, stall=stalls[0]),
            sink(dut.output, taken, len(payloads), seed=seed + 1, stall=stalls[1]),
        ],
    )
    assert [payload for _, payload in taken] == payloads
    return [cycle for cycle, _ in taken]


def source(stream, payloads, *, seed: int, stall: float):
    """A testbench that offers `payloads` one after another, with random gaps."""
    chance = random.Random(seed)

    async def testbench(ctx):
        for payload in payloads:
            while chance.random() < stall:
                await ctx.tick()
            ctx.set(stream.payload, payload)
            ctx.set(stream.valid, 1)
            await ctx.tick().until(stream.ready)
            ctx.set(stream.valid, 0)

    return testbench


def sink(stream, taken: list, count: int, *, seed: int, stall: float, limit: int = 10_000):
    """A testbench that takes `count` payloads into `taken` as (cycle, payload), refusing at random."""
    chance = random.Random(seed)

    async def testbench(ctx):
        held = None
        for cycle in range(limit):
            ready = chance.random() >= stall
            ctx.set(stream.ready, ready)
            _, _, valid, payload = await ctx.tick().sample(stream.valid, stream.payload)
            if held is not None:
                assert valid and payload == held, "a payload changed before it was taken"
            held = payload if valid and not ready else None
            if valid and ready:
                taken.append((cycle, payload))
            if len(taken) == count:
                ctx.set(stream.ready, 0)
                return
        raise AssertionError(f"{len(taken)} of {count} payloads after {limit} cycles")

    return testbench
