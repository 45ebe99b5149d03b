"""Low-latency handshake join: tuples rush past all nodes, and a copy of each stays at its home.

::

                      results
                         ^
                 [ skid ]<-- marks, errors  <---- [ collector ] <- high-water marks
                         ^
                  [ gathering tree ]
                    ^      ^       ^
                  +-|----+-|----+--|---+
         +------->| node | node | node |---> high-water mark of R, expedition ends
         |   +----|  0   |  1   |  n-1 |<--------+
         |   v    +------+------+------+         |
         | high-water mark of S                  |
         |                                       |
         +----------[ window driver ]------------+
                           ^
                         tuples

The paper is "Low-Latency Handshake Join" (Roy, Teubner, Gemulla). Two tuples meet where Table 1 says, and
nowhere else; `sim/expedition.py` has the rules without the clock, and why they are these.
"""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import fifo, stream, wiring
from amaranth.lib.wiring import In, Out

from . import fan
from .collector import Collector
from .gather import Gather
from .lowlatency_node import LowLatencyNode
from .message import Note, stamp_width
from .parameters import Parameters
from .result_sorter import ResultSorter
from .scanner import found_layout
from .skid import Skid
from .socket import RESULT_LAYOUT, Fault, Socket, Tag
from .split_cores import count_steps
from .stamp import Stamp
from .window_driver import WindowDriver, expeditions


class LowLatency(wiring.Component):
    """The chain behind the socket; windows hold the last `cores * segment` R and `cores * s_segment` S
    tuples, of a single core where homes depend on keys.

    - a tuple goes from node to node in a cycle, whatever these have stored, unless a node is still busy with
      the one before it; `latency(parameters)` cycles pass from an R tuple's transfer on `tuples` to a pair on
      `results` if the two meet in the first row of the last node, and one more for each row before it, and
      wherever it was another's turn: in the node, or in one of the tree's;
    - throughput is one tuple every `rows` cycles if all are of one stream, where `rows` hold what a node
      stores of the other: `s_segment / lanes` for tuples of R, `segment / lanes` for those of S, rounded up,
      or one more where the oldest tuple is not the first in its row. Tuples in flight take another. With full
      windows it is two at least, and up to `1 / cores` more: the last node is told of each R tuple's end and
      expiry, and of each S tuple's acknowledgement or expiry. Tuples of R and of S are compared at the same
      time;
    - a flush of an idle chain takes `flush_cycles(parameters)` cycles.

    With `stallable`, for tests, there is a stream `stalls`: a word holds up those channels whose bits are
    high for a cycle, first those into each node from its left, then those from its right. `places` tells the
    nodes that find pairs, and `fills` the most results that are kept to be sorted, whenever they are more.
    """

    def __init__(self, parameters: Parameters, stallable: bool = False):
        self._parameters = parameters
        socket = Socket(parameters.dims, parameters.cores)
        if stallable:
            socket = wiring.Signature(
                {
                    **socket.members,
                    "stalls": In(stream.Signature(2 * parameters.cores)),
                    "places": Out(stream.Signature(parameters.cores)),
                    "fills": Out(stream.Signature(32)),
                }
            )
        super().__init__(socket)

    @staticmethod
    def latency(parameters: Parameters) -> int:
        """Cycles from an R tuple's transfer to its pair with a tuple in the first row of the last node."""
        return 1 + parameters.cores + LowLatencyNode.LATENCY + Gather.levels(parameters.cores) + 1

    @staticmethod
    def flush_cycles(parameters: Parameters) -> int:
        """Cycles from a flush's transfer to an idle chain until the next word is taken.

        Clears from both ends meet at the middle node, if there is one, and one waits.
        """
        return parameters.cores + 4 + parameters.cores % 2

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        nodes = [Stamp(LowLatencyNode, p) for _ in range(p.cores)]
        m.submodules.driver = driver = WindowDriver(p)
        m.submodules.gather = gather = Gather(found_layout(p), p.cores, "epoch")
        m.submodules.epochs = epochs = fan.FanOut(1, p.cores)
        m.submodules.held = held = fan.FanIn(2, p.cores)
        m.submodules.scans = scans = fan.FanSum(2, p.cores)
        m.submodules.stalled = stalled = fan.FanIn(1, p.cores)
        # An epoch reaches the nodes, what they hold is told, and so is what the tree holds.
        settle = 5 + fan.levels(p.cores) + max(fan.levels(p.cores), Gather.busy_lag(p.cores))
        m.submodules.collector = collector = Collector(stamp_width(p), settle)
        # A single node has no number, and synthesis no memory without bits.
        m.submodules.ends = ends = fifo.SyncFIFO(width=max(1, len(nodes[0].position)), depth=expeditions(p))
        wiring.connect(m, wiring.flipped(self.tuples), driver.tuples)

        # The chain.
        stall = Signal(2 * p.cores)
        if "stalls" in self.signature.members:
            m.d.comb += [
                self.stalls.ready.eq(1),
                stall.eq(Mux(self.stalls.valid, self.stalls.payload, 0)),
                self.places.valid.eq(self.activity.any()),
                self.places.payload.eq(self.activity),
            ]
        right_of = [driver.to_right, *(node.to_right for node in nodes)]
        left_of = [*(node.to_left for node in nodes), driver.to_left]
        for k, node in enumerate(nodes):
            m.submodules[f"node_{k}"] = node
            wiring.connect(m, right_of[k], node.from_left)
            wiring.connect(m, left_of[k + 1], node.from_right)
            m.d.comb += [
                node.position.eq(k),
                node.hold.eq(Cat(stall[k], stall[p.cores + k])),
                node.epoch.eq(epochs.copies[k]),
                held.flags[k].eq(node.held),
                scans.numbers[k].eq(node.scans),
                stalled.flags[k].eq(node.stalled),
            ]
            wiring.connect(m, node.results, gather.inputs[k])
        m.d.comb += self.activity.eq(Cat(node.found for node in nodes))

        # Its ends: high-water marks, a cycle later, and word for the homes of R tuples that their expedition
        # is over.
        first, last, ended = nodes[0].to_left, nodes[-1].to_right, nodes[-1].ended
        m.d.comb += [first.ready.eq(1), last.ready.eq(1)]
        passed = Signal()  # an R tuple leaves the last node
        m.d.comb += passed.eq(last.valid & ~last.p.acknowledges & (last.p.kind == Note.ARRIVAL))
        for end, comes, time, passes, cleared in (
            (last, last.valid & ~last.p.acknowledges, collector.time_r, driver.r_passed, driver.s_cleared),
            (first, first.valid, collector.time_s, driver.s_passed, driver.r_cleared),
        ):
            note = Signal(Note, reset_less=True)
            came, stamp, mark = Signal(), Signal.like(time, reset_less=True), Signal.like(time)
            m.d.sync += [came.eq(comes), note.eq(end.p.kind), stamp.eq(end.p.stamp)]
            m.d.comb += [
                time.eq(mark),
                passes.eq(came & (note == Note.ARRIVAL)),
                cleared.eq(came & (note == Note.CLEAR)),
            ]
            with m.If(came & ((note == Note.ARRIVAL) | (note == Note.MARK))):
                m.d.sync += mark.eq(stamp)
        took_note = Signal()
        m.d.sync += took_note.eq(ended.valid & ended.ready)
        m.d.comb += [
            driver.r_ended.eq(took_note),
            epochs.value.eq(collector.epoch),
            collector.held.eq(held.any | gather.busy),
        ]

        # An end is shown in the cycle after it came, because no S tuple may pass it. If it finds another
        # there, it goes round by the queue, and S tuples wait. In which order ends come is all the same.
        m.submodules.queued = queued = Skid(last.p.home.shape())
        refills, late = Signal(), Signal()
        home, late_home = Signal.like(last.p.home), Signal.like(last.p.home, reset_less=True)
        m.d.comb += [
            refills.eq(~ended.valid | ended.ready),
            home.eq(Mux(queued.output.valid, queued.output.payload, last.p.home)),
            queued.output.ready.eq(refills),
            queued.input.valid.eq(ends.r_rdy | late),
            queued.input.payload.eq(Mux(ends.r_rdy, ends.r_data, late_home)),
            ends.r_en.eq(queued.input.ready),
            ends.w_en.eq(late & (ends.r_rdy | ~queued.input.ready)),
            ends.w_data.eq(late_home),
            nodes[-1].ending.eq(queued.input.valid | queued.output.valid),
        ]
        m.d.sync += [
            ended.valid.eq(~refills | queued.output.valid | passed),
            late.eq(passed & (queued.output.valid | ~refills)),
            late_home.eq(last.p.home),
        ]
        with m.If(refills):
            m.d.sync += [ended.p.home.eq(home), ended.p.here.eq(home == p.cores - 1)]

        # Results: pairs, and marks whose time has come.
        m.submodules.output = output = Skid(RESULT_LAYOUT)
        wiring.connect(m, output.output, wiring.flipped(self.results))
        record, result = driver.record, output.input.payload
        pairs = gather.output
        pair = pairs.payload.pair
        time = collector.punctuation  # what comes before it is out
        past = Signal()
        due = Signal()
        if p.ordering.every:
            m.submodules.sorter = sorter = ResultSorter(p)
            wiring.connect(m, gather.output, sorter.results)
            pairs, pair, time = sorter.pairs, sorter.pairs.payload, sorter.time
            m.d.comb += [
                sorter.punctuation.eq(collector.punctuation),
                sorter.hold.eq(past),
                driver.held_back.eq((driver.stamp - time)[: len(time)] >= p.sorter_size[0]),
                due.eq(past & ~pairs.valid),
            ]
        else:
            m.d.comb += due.eq(past)
        m.d.comb += [
            past.eq(record.valid & ((time - record.stamp)[: len(time)].as_signed() >= 0)),
            output.input.valid.eq(due | pairs.valid),
            driver.announced.eq(due & output.input.ready),
            pairs.ready.eq(output.input.ready & ~due),
        ]
        with m.If(~due):
            m.d.comb += [result.tag.eq(Tag.PAIR), result.body.pair.eq(pair)]
        with m.Elif(record.error):
            error = result.body.error
            m.d.comb += [
                result.tag.eq(Tag.ERROR),
                error.fault.eq(Fault.UNKNOWN_KIND),
                error.value.eq(record.id),
            ]
        with m.Else():
            m.d.comb += [result.tag.eq(Tag.MARK), result.body.mark.id.eq(record.id)]

        if p.ordering.every and "fills" in self.signature.members:
            told = Signal.like(sorter.filled)
            m.d.sync += told.eq(sorter.filled)
            m.d.comb += [self.fills.valid.eq(sorter.filled != told), self.fills.payload.eq(sorter.filled)]

        counters = self.counters
        took, gave = Signal(), Signal()
        count_steps(m, counters, scans.total, p.cores)
        m.d.sync += [
            took.eq(driver.took),
            gave.eq(pairs.ready & pairs.valid),
            counters.tuples.eq(counters.tuples + took),
            counters.pairs.eq(counters.pairs + gave),
            counters.stalls.eq(counters.stalls + stalled.any),
            counters.live_evictions.eq(counters.live_evictions + driver.lost),
        ]
        return m
