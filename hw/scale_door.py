"""The door of a gate behind the socket: words of one stream go to the inputs that they come from."""

from amaranth import Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .gate_word import GATE_ID_LAYOUT, INPUT_WIDTH
from .parameters import Parameters
from .scale_gate import Shown, shown_layout
from .skid import Skid
from .socket import ERROR_LAYOUT, Fault, Kind, tuple_layout


def body_layout(parameters: Parameters) -> data.StructLayout:
    """What a gate carries along with the number of a tuple or a token."""
    word = tuple_layout(parameters.dims)
    return data.StructLayout({"kind": Kind, "dims": word["dims"].shape})


class ScaleDoor(wiring.Component):
    """Hands tuples and heartbeats to the input whose number they carry, and tokens to all inputs.

    All words come through one door, so that an input whose queue is full keeps out those of the others. If
    the gate waits for one of these (it is `idle`), nothing can ever move: the first input that is `starving`
    is reported, and passed over until the word is in; then the next, if that was not enough. What has no
    known kind or input, or comes from an input that has ended, is reported and left out.

    Latency: 1 cycle. Throughput: one word per cycle.
    """

    def __init__(self, parameters: Parameters):
        self._p = parameters
        shown = stream.Signature(shown_layout(body_layout(parameters)))
        super().__init__(
            {
                "tuples": In(stream.Signature(tuple_layout(parameters.dims))),
                "outputs": Out(shown).array(parameters.inputs),
                "faults": Out(stream.Signature(ERROR_LAYOUT)),
                "starving": In(parameters.inputs),
                "idle": In(1),
                "pass_over": Out(parameters.inputs),
            }
        )

    def elaborate(self, platform):
        m = Module()
        p = self._p
        # Where a word goes, and as what, is known when it comes in: `named` are none if it is not known.
        decoded = data.StructLayout({"word": self.tuples.payload.shape(), "what": Shown, "named": p.inputs})
        m.submodules.skid = skid = Skid(decoded)
        coming, kind = skid.input.payload, self.tuples.payload.kind
        input = data.View(GATE_ID_LAYOUT, self.tuples.payload.id).input
        m.d.comb += [
            skid.input.valid.eq(self.tuples.valid),
            self.tuples.ready.eq(skid.input.ready),
            coming.word.eq(self.tuples.payload),
        ]
        with m.Switch(kind):
            with m.Case(Kind.R, Kind.S, Kind.INSTRUCTION):
                m.d.comb += coming.named.eq(Cat(input == k for k in range(p.inputs)))
                with m.If(kind == Kind.INSTRUCTION):
                    ends = self.tuples.payload.dims.as_value()[0]
                    m.d.comb += coming.what.eq(Mux(ends, Shown.END, Shown.BEAT))
            with m.Case(Kind.FLUSH, Kind.MARK, Kind.HORIZON_R, Kind.HORIZON_S):
                m.d.comb += coming.named.eq(~0)
                m.d.comb += coming.what.eq(Mux(kind == Kind.FLUSH, Shown.FLUSH, Shown.TOKEN))

        word, what, named = (skid.output.payload[name] for name in ("word", "what", "named"))
        origin = data.View(GATE_ID_LAYOUT, word.id)
        token = what.as_value()[1]
        ended = Signal(p.inputs)  # no more is taken from these before a flush
        to = Signal(p.inputs)
        m.d.comb += to.eq(Mux(token, named, named & ~ended))
        fault = Signal(Fault, init=Fault.UNKNOWN_KIND)
        with m.Switch(word.kind):
            with m.Case(Kind.R, Kind.S, Kind.INSTRUCTION):
                m.d.comb += fault.eq(Mux(named.any(), Fault.OUT_OF_ORDER, Fault.NO_SUCH_INPUT))
        done = Signal(p.inputs)  # inputs that have the word, while others have not
        reached = ~to | done | Cat(output.ready for output in self.outputs)
        there = reached.all()
        enters = skid.output.valid & to.any() & there
        for k, output in enumerate(self.outputs):
            m.d.comb += [
                output.valid.eq(skid.output.valid & to[k] & ~done[k]),
                output.payload.what.eq(what),
                # The input's number has done its work.
                output.payload.number.eq(Mux(token, word.id, origin.number << INPUT_WIDTH)),
                output.payload.body.kind.eq(word.kind),
                output.payload.body.dims.eq(word.dims),
            ]
        with m.If(skid.output.valid):
            m.d.sync += done.eq(Mux(there, 0, to & reached))
        with m.If(enters & (what == Shown.END)):
            m.d.sync += ended.eq(ended | to)
        with m.If(enters & (what == Shown.FLUSH)):
            m.d.sync += ended.eq(0)

        # The gate may still move for as long as there are places in its nodes.
        patience = 4 * p.inputs + 2
        waited = Signal(range(patience + 1))
        starved = waited == patience
        with m.If(~skid.output.valid | there | ~self.idle):
            m.d.sync += waited.eq(0)
        with m.Elif(~starved):
            m.d.sync += waited.eq(waited + 1)
        number = Signal(range(p.inputs))
        for k in reversed(range(p.inputs)):
            with m.If(self.starving[k]):
                m.d.comb += number.eq(k)

        m.submodules.reports = reports = Skid(ERROR_LAYOUT)
        wiring.connect(m, reports.output, wiring.flipped(self.faults))
        error = reports.input.payload
        m.d.comb += [
            reports.input.valid.eq(skid.output.valid & (~to.any() | starved)),
            skid.output.ready.eq(there & (to.any() | reports.input.ready)),
            error.fault.eq(fault),
            error.value.eq(Mux(fault == Fault.UNKNOWN_KIND, word.kind.as_value(), word.id)),
        ]
        with m.If(to.any()):
            m.d.comb += [error.fault.eq(Fault.STARVED), error.value.eq(number)]
        with m.If(enters):
            m.d.sync += self.pass_over.eq(0)
        with m.Elif(to.any() & reports.input.valid & reports.input.ready):
            m.d.sync += [self.pass_over.eq(self.pass_over | (1 << number)), waited.eq(0)]
        return m
