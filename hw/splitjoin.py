"""SplitJoin: every tuple goes to all cores at once, is processed by all and stored by one.

::

                 tuples
                   |
            [ distribution tree ]
             |      |        |
           +-v--+ +-v--+   +-v--+
           |core| |core|...|core|     each: a region of R, a region of S
           | 0  | | 1  |   |n-1 |
           +|--|+ +|--|+   +|--|+
            |  |   |  |     |  |
        [ mergers: R ]  [ mergers: S ]
                 |          |
                [  combiner  ]
                      |
                   results

The paper is "SplitJoin: A Scalable, Low-latency Stream Join Architecture with Adjustable Ordering Precision".
Cores neither talk to each other nor to a coordinator. Each counts the tuples of both streams and stores one
in `cores` of them, so a pair meets once, where its earlier tuple is stored. Stars, which every region puts
out after the same tuples, keep the order of what is gathered, and marks are stars too.
"""

from amaranth import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In

from .broadcast import levels
from .parameters import Parameters
from .punctuation import Combiner, Mergers, What
from .region import Region
from .socket import Fault, Socket, Tag
from .split_cores import SplitCores, count_ends


class SplitJoin(wiring.Component):
    """The cores between both trees, behind the socket; windows hold the last `cores * segment` tuples.

    With `depth = segment / lanes`, one more if the order within a tuple is kept, and
    `levels = ceil(log(cores) / log(fanout))`,

    - a tuple takes `depth` cycles of the regions of the other stream and 1 of those of its own. Both work at
      the same time, so that throughput is one tuple every `depth` cycles if all are of one stream, and every
      `(depth + 1) / 2` if streams alternate. Where the order within a tuple is kept, tuples are gathered
      one after another, and stars that are more than rows take a cycle each;
    - `latency(parameters)`, which is `9 + 3 * levels`, cycles pass from a tuple's transfer on `tuples` to a
      pair on `results` if the two meet in the first row, and one more for each row before it;
    - so all pairs of a tuple are out, if none competes with another, after `processing_latency(parameters)`
      cycles, `8 + depth + 3 * levels`;
    - a mark comes out `latency(parameters)` cycles after its transfer when the cores are idle;
    - a flush takes a cycle.

    `steps` counts the rows that tuples met, divided by `cores`: up to 2 per cycle, as both regions work.
    `stalls` counts the cycles in which some region waited because of what it had found. With `killable`, for
    tests, there is an input `kill`, one bit per core: what that core stores is lost, and all else goes on.
    """

    def __init__(self, parameters: Parameters, killable: bool = False):
        self._parameters = parameters
        socket = Socket(parameters.dims, parameters.cores)
        kill = {"kill": In(parameters.cores)} if killable else {}
        super().__init__(wiring.Signature({**socket.members, **kill}))

    @staticmethod
    def latency(parameters: Parameters) -> int:
        """Cycles from a tuple's transfer to its pair with a tuple in the first row it meets."""
        return Region.LATENCY + 2 + 3 * levels(parameters.cores, parameters.fanout)

    @staticmethod
    def processing_latency(parameters: Parameters) -> int:
        """Cycles from a tuple's transfer to its pair with a tuple in the last row of a full window."""
        return SplitJoin.latency(parameters) + Region.cycles(parameters) - 1

    @staticmethod
    def flush_cycles(parameters: Parameters) -> int:
        """Cycles from a flush's transfer until the next word is taken."""
        return 1

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        m.submodules.cores = cores = SplitCores(p)
        m.submodules.combiner = combiner = Combiner(p.ordering.in_turn)
        flows = [Mergers.by_stars(p.cores, p.fanout, p.ordering.in_turn) for _ in range(2)]
        m.submodules.r_flow, m.submodules.s_flow = flows
        wiring.connect(m, wiring.flipped(self.tuples), cores.tuples)
        for k in range(p.cores):
            for source, flow in zip(cores.flows[k], flows):
                wiring.connect(m, source, flow.inputs[k])
        for flow, sink in zip(flows, combiner.inputs):
            wiring.connect(m, flow.output, sink)
        m.d.comb += [
            cores.dead.eq(self.kill if "kill" in self.signature.members else 0),
            self.activity.eq(cores.activity),
        ]

        # What the combiner puts out is in order: stars have done their work.
        found, result = combiner.output.payload, self.results.payload
        star = found.what == What.STAR
        m.d.comb += [
            self.results.valid.eq(combiner.output.valid & ~star),
            combiner.output.ready.eq(self.results.ready | star),
        ]
        with m.Switch(found.what):
            with m.Case(What.MARK):
                m.d.comb += [result.tag.eq(Tag.MARK), result.body.mark.id.eq(found.body.id)]
            with m.Case(What.ERROR):
                error = result.body.error
                m.d.comb += [
                    result.tag.eq(Tag.ERROR),
                    error.fault.eq(Fault.UNKNOWN_KIND),
                    error.value.eq(found.body.id),
                ]
            with m.Default():
                m.d.comb += [result.tag.eq(Tag.PAIR), result.body.pair.eq(found.body.pair)]
        count_ends(m, self, cores.counters)
        return m
