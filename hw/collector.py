"""The collector of a low-latency handshake chain: it knows the time before which all results are out.

::

    high-water marks of R and S --> [ collector ] --> punctuation [min(t_R, t_S)]
                                       |     ^
                                     epoch  held
                                       v     |
                                      [ nodes ]

Section 6.1 of the paper: read the high-water marks, vacuum the result queues, put out the punctuation. What a
node has begun to find belongs to an epoch. The collector begins another, and once nothing of the old one is
left in nodes and tree, all that was found when it read the marks has come out.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out


class Collector(wiring.Component):
    """Turns times of `width` bits, modulo, that the two ends have reached into punctuation.

    No R tuple from before `time_r`, and no S tuple from before `time_s`, can find anything more. `settle` is
    the number of cycles after which `held` tells all about the epoch before.

    Latency: `settle + 2` cycles from a time to `punctuation` if nothing was found, up to twice as many if
    it comes during another.
    """

    def __init__(self, width: int, settle: int):
        self._settle = settle
        super().__init__(
            {
                "time_r": In(width),
                "time_s": In(width),
                "epoch": Out(1),
                "held": In(2),
                "punctuation": Out(width),
            }
        )

    def elaborate(self, platform):
        m = Module()
        time = Signal.like(self.punctuation)
        least = Signal.like(self.punctuation)
        vacuuming = Signal()
        left = Signal(range(self._settle + 1))  # cycles in which nothing may be seen of the old epoch
        m.d.comb += least.eq(
            Mux((self.time_r - self.time_s)[: len(time)].as_signed() < 0, self.time_r, self.time_s)
        )
        with m.If(~vacuuming):
            with m.If(least != self.punctuation):
                m.d.sync += [
                    vacuuming.eq(1),
                    time.eq(least),
                    self.epoch.eq(~self.epoch),
                    left.eq(self._settle),
                ]
        with m.Elif(self.held.bit_select(~self.epoch, 1)):
            m.d.sync += left.eq(self._settle)
        with m.Elif(left != 0):
            m.d.sync += left.eq(left - 1)
        with m.Else():
            m.d.sync += [vacuuming.eq(0), self.punctuation.eq(time)]
        return m
