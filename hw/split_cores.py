"""All cores of a SplitJoin or a ScaleJoin behind their distribution tree, and what they count.

::

            tuples -> [ distribution tree ]
                       |        |        |
                    [core 0] [core 1] [core n-1]
                      |  |     |  |     |  |
                         flows of each core
"""

from amaranth import Cat, Module, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from . import fan
from .broadcast import Broadcast
from .parameters import Parameters
from .punctuation import punctuated_layout
from .region import slot_width
from .socket import COUNTERS_LAYOUT, Kind, Tag, tuple_layout
from .split_core import SplitCore
from .stamp import Stamp


class SplitCores(wiring.Component):
    """Every tuple goes to all cores, is processed by all and stored by one.

    `counters` has the steps, stalls and live evictions; what goes in and out is counted where it does. With
    `counted`, for tests, `compared` says for each core how many stored tuples it meets in a cycle.

    Latency: `levels(cores, fanout) + Region.LATENCY` cycles to a pair in the first row, or a mark.
    Throughput: that of `Region`.
    """

    def __init__(self, parameters: Parameters, counted: bool = False):
        self._p = parameters
        most = 2 * parameters.lanes
        compared = {"compared": Out(range(most + 1)).array(parameters.cores)} if counted else {}
        found = stream.Signature(punctuated_layout(slot_width(parameters)))
        super().__init__(
            compared
            | {
                "tuples": In(stream.Signature(tuple_layout(parameters.dims))),
                "flows": Out(found).array(parameters.cores, 2),  # of R, of S
                "dead": In(parameters.cores),  # cores that find nothing more
                "counters": Out(COUNTERS_LAYOUT),
                "activity": Out(parameters.cores),
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self._p
        counted = "compared" in self.signature.members
        cores = [Stamp(SplitCore, p, counted) for _ in range(p.cores)]
        m.submodules.distribution = distribution = Broadcast(tuple_layout(p.dims), p.cores, p.fanout)
        m.submodules.scans = scans = fan.FanSum(2, p.cores)
        m.submodules.lost = lost = fan.FanSum(2, p.cores)
        m.submodules.stalled = stalled = fan.FanIn(1, p.cores)
        wiring.connect(m, wiring.flipped(self.tuples), distribution.input)
        # What is wrong with a word of no known kind is its kind: cores put out ids.
        kind = self.tuples.payload.kind.as_value()
        with m.If(kind > Kind.HORIZON_S.value):
            m.d.comb += distribution.input.payload.id.eq(kind)
        for k, core in enumerate(cores):
            m.submodules[f"core_{k}"] = core
            wiring.connect(m, distribution.outputs[k], core.tuples)
            for source, flow in zip(core.flows, self.flows[k]):
                wiring.connect(m, source, wiring.flipped(flow))
            m.d.comb += [
                core.position.eq(k),
                core.dead.eq(self.dead[k]),
                scans.numbers[k].eq(core.scans),
                lost.numbers[k].eq(core.lost),
                stalled.flags[k].eq(core.stalled),
            ]
            if counted:
                m.d.comb += self.compared[k].eq(core.compared)
        m.d.comb += self.activity.eq(Cat(core.found for core in cores))

        counters = self.counters
        count_steps(m, counters, scans.total, p.cores)
        m.d.sync += [
            counters.live_evictions.eq(counters.live_evictions + lost.total),
            counters.stalls.eq(counters.stalls + stalled.any),
        ]
        return m


def count_ends(m: Module, joiner: wiring.Component, inner) -> None:
    """Counts what goes into a joiner and comes out of it, next to what its cores count."""
    counters, kind = joiner.counters, joiner.tuples.payload.kind
    with m.If(joiner.tuples.valid & joiner.tuples.ready & ((kind == Kind.R) | (kind == Kind.S))):
        m.d.sync += counters.tuples.eq(counters.tuples + 1)
    with m.If(joiner.results.valid & joiner.results.ready & (joiner.results.payload.tag == Tag.PAIR)):
        m.d.sync += counters.pairs.eq(counters.pairs + 1)
    m.d.comb += [counters[name].eq(inner[name]) for name in ("steps", "stalls", "live_evictions")]


def count_steps(m: Module, counters, rows: Value, cores: int) -> None:
    """Counts a step whenever as many rows have been met as there are cores, up to 2 per cycle."""
    rest = Signal(range(cores))  # rows met that are not steps yet
    steps = Signal(range(3))  # counted a cycle later, as a long counter takes most of one
    m.d.sync += counters.steps.eq(counters.steps + steps)
    for number in range(3):
        left = rest + rows - number * cores
        with m.If(left >= 0):
            m.d.sync += [rest.eq(left), steps.eq(number)]
