"""A core of SplitJoin: a region of each stream, side by side.

::

                  +-> [ region of R ] -> flow of S: what S tuples find
        tuples ---+
                  +-> [ region of S ] -> flow of R
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from .parameters import Parameters
from .punctuation import punctuated_layout
from .region import Region, slot_width
from .socket import tuple_layout
from .stamp import Stamp


class SplitCore(wiring.Component):
    """The core at `position`: of each tuple one region may store it while the other processes it.

    Each region takes a word when it can: with two places for words in each, and the one that is shown, one
    is up to three words ahead of the other. With `counted` there is `compared`, the stored tuples met in a
    cycle.

    Latency and throughput: those of `Region`.
    """

    def __init__(self, parameters: Parameters, counted: bool = False):
        self._parameters = parameters
        compared = {"compared": Out(range(2 * parameters.lanes + 1))} if counted else {}
        found = stream.Signature(punctuated_layout(slot_width(parameters)))
        super().__init__(
            compared
            | {
                "tuples": In(stream.Signature(tuple_layout(parameters.dims))),
                "flows": Out(found).array(2),  # of R, of S
                "position": In(range(parameters.cores)),
                "dead": In(1),  # this core finds nothing more, but its stars go on
                "found": Out(1),  # a pair is put out
                "scans": Out(range(3)),  # rows that are met
                "lost": Out(range(3)),  # live tuples that were overwritten
                "stalled": Out(1),  # what was found holds a region up
            }
        )

    def elaborate(self, platform):
        m = Module()
        # R tuples find what the region of S stores.
        counted = "compared" in self.signature.members
        regions = [Stamp(Region, self._parameters, of_s, counted) for of_s in (True, False)]
        m.submodules.s_region, m.submodules.r_region = regions
        # The tree is far away: that the last of them takes a word is told by a register.
        ready = Signal(init=1)
        done = Signal(2)
        taken = Signal(2)  # `done` of the next cycle
        free = Signal(2)
        m.d.comb += self.tuples.ready.eq(ready)
        m.d.sync += [done.eq(taken), ready.eq((taken | free).all())]
        for k, (region, flow) in enumerate(zip(regions, self.flows)):
            wiring.connect(m, region.output, wiring.flipped(flow))
            m.d.comb += [
                region.input.payload.eq(self.tuples.payload),
                region.input.valid.eq(self.tuples.valid & ~done[k]),
                region.position.eq(self.position),
                region.dead.eq(self.dead),
                taken[k].eq(Mux(self.tuples.valid, ~ready & (done[k] | region.input.ready), done[k])),
                free[k].eq(region.frees),
            ]
        one, other = regions
        m.d.comb += [
            self.found.eq(one.found | other.found),
            self.scans.eq(one.scans + other.scans),
            self.lost.eq(one.lost + other.lost),
            self.stalled.eq(one.stalled | other.stalled),
        ]
        if counted:
            m.d.comb += self.compared.eq(one.compared + other.compared)
        return m
