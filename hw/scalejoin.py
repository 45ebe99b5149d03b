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
             [   gate: by (later, earlier)   ]      tuple by tuple, and then by the earlier one's slot
                        |
                     results

The paper is "ScaleJoin: a Deterministic, Disjoint-Parallel and Skew-Resilient Stream Join". All elements
process every ready tuple and store it in turn, R and S counted for themselves. A tuple's `id` is its number
in the arrival order of both streams, and its input (see `hw/gate_word.py`); pairs come out by (later,
earlier number), whatever came when, by however many inputs, and however many elements there are.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import Out

from .broadcast import levels
from .merge_node import PAIRWISE
from .parameters import Parameters
from .punctuation import Combiner, Mergers, What
from .region import Region, slot_width
from .scale_door import ScaleDoor, body_layout
from .scale_gate import ScaleGate, Shown
from .skid import Skid
from .socket import COUNTER_WIDTH, ERROR_LAYOUT, ID_WIDTH, RESULT_LAYOUT, Fault, Socket, Tag
from .split_cores import SplitCores, count_ends
from .stamp import Stamp


class ScaleJoin(wiring.Component):
    """The elements between both gates, behind the socket; windows hold the last `cores * segment` tuples.

    With `depth = segment / lanes`, and `levels(n, k) = ceil(log(n) / log(k))`,

    - the gate puts out a ready tuple per cycle. A tuple takes `depth + 1` cycles of the elements' regions of
      the other stream and 1 of those of its own, which work at the same time: throughput is a tuple every
      `depth + 1` cycles if all are of one stream, and every `depth / 2 + 1` if streams alternate. Each tuple
      takes a cycle of the second gate, and each pair one;
    - `latency(parameters)`, which is
      `14 + 2 * levels(inputs, 2) + levels(cores, fanout) + 2 * levels(cores, 2)`, cycles pass from the
      transfer that makes a tuple ready to a pair on `results` if the two meet in the first row, and one more
      for each row before it. The pair waits until no other element can have an earlier one, no longer than
      until all have met their last row: `processing_latency(parameters)`, which is `depth` cycles more;
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
        gates = 2 * levels(p.inputs, PAIRWISE) + 2 * levels(p.cores, PAIRWISE)
        return Region.LATENCY + 7 + gates + levels(p.cores, p.fanout)

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
        m.submodules.gate = gate = ScaleGate(body_layout(p), p.inputs, p.buffer)
        m.submodules.cores = cores = SplitCores(p, counted)
        m.submodules.merged = merged = Mergers.by_slots(p.cores, slot_width(p))
        m.submodules.errors = errors = Skid(ERROR_LAYOUT)
        m.submodules.out = out = Skid(RESULT_LAYOUT)
        wiring.connect(m, wiring.flipped(self.tuples), door.tuples)
        wiring.connect(m, out.output, wiring.flipped(self.results))
        for source, sink in zip(door.outputs, gate.inputs):
            wiring.connect(m, source, sink)
        for k in range(p.cores):
            # A ready tuple has its pairs in one flow of an element, and its star in both.
            element = m.submodules[f"element_{k}"] = Stamp(Combiner, True, slot_width(p))
            for source, sink in zip(cores.flows[k], element.inputs):
                wiring.connect(m, source, sink)
            wiring.connect(m, element.output, merged.inputs[k])
        m.d.comb += [
            door.starving.eq(gate.starving),
            door.idle.eq(gate.idle),
            gate.pass_over.eq(door.pass_over),
            self.activity.eq(cores.activity),
        ]

        # A ready tuple that is not after the one before it came too late, or twice. It takes a cycle to know,
        # so that it is compared with the one on its last step, and with the newest before that.
        coming, ready = gate.output.payload, Signal(gate.output.payload.shape(), reset_less=True)
        waiting, late = Signal(), Signal(reset_less=True)
        newest, begun = Signal(ID_WIDTH, reset_less=True), Signal()
        passes = waiting & (ready.what == Shown.TUPLE) & ~late
        flushes = waiting & (ready.what == Shown.FLUSH)
        after_newest = (newest - coming.number)[:ID_WIDTH].as_signed() < 0
        after_ready = (ready.number - coming.number)[:ID_WIDTH].as_signed() < 0
        in_order = Mux(passes, after_ready, ~begun | flushes | after_newest)
        m.d.comb += gate.output.ready.eq(~waiting | Mux(late, errors.input.ready, cores.tuples.ready))
        with m.If(gate.output.ready):
            m.d.sync += [
                waiting.eq(gate.output.valid),
                ready.eq(coming),
                late.eq((coming.what == Shown.TUPLE) & ~in_order),
            ]
            with m.If(passes):
                m.d.sync += [newest.eq(ready.number), begun.eq(1)]
            with m.If(flushes):
                m.d.sync += begun.eq(0)
        word = cores.tuples.payload
        m.d.comb += [
            word.kind.eq(ready.body.kind),
            word.id.eq(ready.number),
            word.dims.eq(ready.body.dims),
            cores.tuples.valid.eq(waiting & ~late),
        ]

        # What elements found is in order: stars have done their work. Errors come first.
        found, result = merged.output.payload, out.input.payload
        star = found.what == What.STAR
        reports_late = waiting & late
        m.d.comb += [
            errors.input.valid.eq(reports_late | door.faults.valid),
            errors.input.payload.eq(door.faults.payload),
            door.faults.ready.eq(errors.input.ready & ~reports_late),
            errors.output.ready.eq(out.input.ready),
        ]
        with m.If(reports_late):
            m.d.comb += [
                errors.input.payload.fault.eq(Fault.OUT_OF_ORDER),
                errors.input.payload.value.eq(ready.number),
            ]
        with m.If(errors.output.valid):
            m.d.comb += [result.tag.eq(Tag.ERROR), result.body.error.eq(errors.output.payload)]
        with m.Elif(found.what == What.PAIR):
            m.d.comb += [result.tag.eq(Tag.PAIR), result.body.pair.eq(found.body.pair)]
        with m.Else():
            m.d.comb += [result.tag.eq(Tag.MARK), result.body.mark.id.eq(found.body.id)]
        m.d.comb += [
            out.input.valid.eq(errors.output.valid | (merged.output.valid & ~star)),
            merged.output.ready.eq(star | (out.input.ready & ~errors.output.valid)),
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
