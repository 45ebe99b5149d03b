"""ScaleJoin: a gate merges the physical inputs, elements join what is ready, a gate merges what they find.

::

                      tuples
                        |
                     [ door ]              each to the input that it carries the number of
                     |  |  |
                    [  gate  ]             ready tuples, in the order of their numbers
                        |
               [ distribution tree ]
                |       |        |
              +-v--+  +-v--+   +-v--+
              | PE |  | PE |...| PE |      processing elements: cores of a SplitJoin
              | 0  |  | 1  |   |n-1 |
              +-|--+  +-|--+   +-|--+
                |       |        |
             [   gate: by (later, earlier)   ]
                        |
                     results

The paper is "ScaleJoin: a Deterministic, Disjoint-Parallel and Skew-Resilient Stream Join". All elements
process every ready tuple and store it in turn, R and S counted for themselves. A tuple's `id` is its number
in the arrival order of both streams, and its input (see `hw/gate_word.py`); pairs come out by (later,
earlier number), whatever came when, by however many inputs, and however many elements there are.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .broadcast import levels
from .parameters import Parameters
from .punctuation import PUNCTUATED_LAYOUT, Combiner, What
from .region import Region
from .scale_door import ScaleDoor, body_layout
from .scale_gate import GateTree, ScaleGate, Shown, shown_layout
from .skid import Skid
from .socket import COUNTER_WIDTH, ID_WIDTH, RESULT_LAYOUT, Fault, Socket, Tag
from .split_cores import SplitCores, count_ends
from .stamp import Stamp

#: What an element shows the second gate: pairs by (later, earlier number), a heartbeat after every ready
#: tuple, and marks. `body` is high if the later tuple of a pair is of S.
FOUND_LAYOUT = shown_layout(1, ID_WIDTH)


class ElementOutput(wiring.Component):
    """The two flows of an element's core as one, in order. Latency: 1 cycle. Throughput: one per cycle."""

    def __init__(self):
        super().__init__(
            {
                "flows": In(stream.Signature(PUNCTUATED_LAYOUT)).array(2),
                "output": Out(stream.Signature(FOUND_LAYOUT)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.combiner = combiner = Combiner(in_turn=True)
        for flow, sink in zip(self.flows, combiner.inputs):
            wiring.connect(m, wiring.flipped(flow), sink)
        found, shown = combiner.output.payload, self.output.payload
        pair = found.body.pair
        m.d.comb += [
            self.output.valid.eq(combiner.output.valid),
            combiner.output.ready.eq(self.output.ready),
            shown.number.eq(found.body.id),
            shown.body.eq(found.from_s),
        ]
        with m.Switch(found.what):
            with m.Case(What.PAIR):
                m.d.comb += [
                    shown.what.eq(Shown.TUPLE),
                    shown.number.eq(Mux(found.from_s, pair.s_id, pair.r_id)),
                    shown.second.eq(Mux(found.from_s, pair.r_id, pair.s_id)),
                ]
            with m.Case(What.STAR):
                m.d.comb += shown.what.eq(Shown.BEAT)
            with m.Default():
                m.d.comb += shown.what.eq(Shown.TOKEN)
        return m


class ScaleJoin(wiring.Component):
    """The elements between both gates, behind the socket; windows hold the last `cores * segment` tuples.

    With `depth = segment / lanes`, and `levels(n) = ceil(log(n) / log(fanout))`,

    - the gate puts out a ready tuple per cycle. A tuple takes `depth + 1` cycles of the elements' regions of
      the other stream and 1 of those of its own, which work at the same time: throughput is a tuple every
      `depth + 1` cycles if all are of one stream, and every `depth / 2 + 1` if streams alternate. Each tuple
      takes a cycle of the second gate, and each pair one;
    - `latency(parameters)`, which is `10 + levels(inputs) + 2 * levels(cores)`, cycles pass from the transfer
      that makes a tuple ready to a pair on `results` if the two meet in the first row, and one more for each
      row before it. The pair waits until no other element can have an earlier one, no longer than until all
      have met their last row: `processing_latency(parameters)`, which is `depth` cycles more;
    - a mark, which makes all before it ready, comes out `latency(parameters)` cycles after its transfer when
      the elements are idle; a flush takes a cycle.

    Errors are put out as soon as they are seen, and so before every later mark. `steps` and `stalls` are as
    in SplitJoin. With `counted`, for tests, there is a stream `comparisons`: how many stored tuples each
    element has met, whenever a mark comes out.
    """

    def __init__(self, parameters: Parameters, counted: bool = False):
        self._parameters = parameters
        socket = Socket(parameters.dims, parameters.cores)
        totals = stream.Signature(parameters.cores * COUNTER_WIDTH)
        super().__init__(
            wiring.Signature({**socket.members, **({"comparisons": Out(totals)} if counted else {})})
        )

    @staticmethod
    def latency(parameters: Parameters) -> int:
        """Cycles from the transfer that makes a tuple ready to its pair with one in the first row."""
        p = parameters
        return Region.LATENCY + 4 + levels(p.inputs, p.fanout) + 2 * levels(p.cores, p.fanout)

    @staticmethod
    def processing_latency(parameters: Parameters) -> int:
        """Cycles from that transfer to its pair with a tuple in the last row of a full window."""
        return ScaleJoin.latency(parameters) + Region.cycles(parameters) - 1

    @staticmethod
    def flush_cycles(parameters: Parameters) -> int:
        """Cycles from a flush's transfer until the next word is taken."""
        return 1

    def elaborate(self, platform):
        m = Module()
        p = self._parameters
        counted = "comparisons" in self.signature.members
        m.submodules.door = door = ScaleDoor(p)
        m.submodules.gate = gate = ScaleGate(body_layout(p), p.inputs, p.buffer, p.fanout)
        m.submodules.cores = cores = SplitCores(p, counted)
        m.submodules.merged = merged = GateTree(FOUND_LAYOUT, p.cores, p.fanout)
        m.submodules.out = out = Skid(RESULT_LAYOUT)
        wiring.connect(m, wiring.flipped(self.tuples), door.tuples)
        wiring.connect(m, out.output, wiring.flipped(self.results))
        for source, sink in zip(door.outputs, gate.inputs):
            wiring.connect(m, source, sink)
        for k in range(p.cores):
            element = m.submodules[f"element_{k}"] = Stamp(ElementOutput)
            for source, sink in zip(cores.flows[k], element.flows):
                wiring.connect(m, source, sink)
            wiring.connect(m, element.output, merged.inputs[k])
        m.d.comb += [
            door.starving.eq(gate.starving),
            door.idle.eq(gate.idle),
            gate.pass_over.eq(door.pass_over),
            self.activity.eq(cores.activity),
        ]

        # A ready tuple that is not after the one before it came too late, or twice.
        ready, word = gate.output.payload, cores.tuples.payload
        newest, begun = Signal(ID_WIDTH, reset_less=True), Signal()
        is_tuple = ready.what == Shown.TUPLE
        late = is_tuple & begun & ((newest - ready.number)[:ID_WIDTH].as_signed() >= 0)
        reports_late = Signal()
        m.d.comb += [
            word.kind.eq(ready.body.kind),
            word.id.eq(ready.number),
            word.dims.eq(ready.body.dims),
            reports_late.eq(gate.output.valid & late),
            cores.tuples.valid.eq(gate.output.valid & ~late),
            gate.output.ready.eq(Mux(late, out.input.ready, cores.tuples.ready)),
        ]
        with m.If(cores.tuples.valid & cores.tuples.ready):
            with m.If(is_tuple):
                m.d.sync += [newest.eq(ready.number), begun.eq(1)]
            with m.Elif(ready.what == Shown.FLUSH):
                m.d.sync += begun.eq(0)

        # What elements found is in order: heartbeats have done their work. Errors come first.
        found, result = merged.output.payload, out.input.payload
        beat = found.what == Shown.BEAT
        r_id, s_id = Mux(found.body, found.second, found.number), Mux(found.body, found.number, found.second)
        with m.If(reports_late):
            m.d.comb += [
                result.tag.eq(Tag.ERROR),
                result.body.error.fault.eq(Fault.OUT_OF_ORDER),
                result.body.error.value.eq(ready.number),
            ]
        with m.Elif(door.faults.valid):
            m.d.comb += [
                result.tag.eq(Tag.ERROR),
                result.body.error.eq(door.faults.payload),
                door.faults.ready.eq(out.input.ready),
            ]
        with m.Elif(found.what == Shown.TUPLE):
            m.d.comb += [
                result.tag.eq(Tag.PAIR),
                result.body.pair.r_id.eq(r_id),
                result.body.pair.s_id.eq(s_id),
            ]
        with m.Else():
            m.d.comb += [result.tag.eq(Tag.MARK), result.body.mark.id.eq(found.number)]
        errs = reports_late | door.faults.valid
        m.d.comb += [
            out.input.valid.eq(errs | (merged.output.valid & ~beat)),
            merged.output.ready.eq(beat | (out.input.ready & ~errs)),
        ]
        count_ends(m, self, cores.counters)

        if counted:
            totals = [Signal(COUNTER_WIDTH, name=f"total_{k}") for k in range(p.cores)]
            m.d.sync += [total.eq(total + number) for total, number in zip(totals, cores.compared)]
            for k, total in enumerate(totals):
                m.d.comb += self.comparisons.payload.word_select(k, COUNTER_WIDTH).eq(total)
            m.d.comb += self.comparisons.valid.eq(
                self.results.valid & self.results.ready & (self.results.payload.tag == Tag.MARK)
            )
        return m
