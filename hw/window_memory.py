"""Window memory: a part of one stream's window, written one tuple and read one row of lanes at a time."""

from amaranth import Module, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from .segment import DISTRIBUTED

#: From so many bits on a bank is worth a block RAM, if it is deeper than a LUT; others are distributed RAM.
BLOCK_BITS = 4096
LUT_DEPTH = 16
BLOCK = {"ram_style": "block"}


def ram_style(shape, depth: int) -> dict[str, str]:
    """The kind of RAM for `depth` values of a shape."""
    bits = depth * data.StructLayout({"all": shape}).size
    return BLOCK if bits >= BLOCK_BITS and depth > LUT_DEPTH else DISTRIBUTED


class WindowMemory(wiring.Component):
    """`lanes` banks of `depth` tuples each, in block or distributed RAM by size, or in registers.

    While `write` is high, `tuple` is stored at (`row`, `lane`). While `go` is high, `rows` shows the row
    `show` one cycle later, as it was before; otherwise it stays.

    Latency: 1 cycle. Throughput: one tuple and one row per cycle.
    """

    def __init__(self, shape, lanes: int, depth: int):
        self._shape = shape
        self._depth = depth
        super().__init__(
            {
                "go": In(1),
                "write": In(1),
                "row": In(range(depth)),
                "lane": In(range(lanes)),
                "tuple": In(shape),
                "show": In(range(depth)),
                "rows": Out(shape).array(lanes),
            }
        )

    def elaborate(self, platform):
        m = Module()
        for lane, shown in enumerate(self.rows):
            write_here = self.write & (self.lane == lane)
            if self._depth == 1:
                # It changes as late as a row is shown: no row is shown while it does.
                bank = Signal(self._shape, name=f"bank_{lane}", reset_less=True)
                with m.If(write_here):
                    m.d.sync += bank.eq(self.tuple)
                m.d.comb += shown.eq(bank)
                continue
            bank = m.submodules[f"bank_{lane}"] = memory.Memory(
                shape=self._shape, depth=self._depth, init=[], attrs=ram_style(self._shape, self._depth)
            )
            write, read = bank.write_port(), bank.read_port()
            m.d.comb += [
                write.addr.eq(self.row),
                write.data.eq(self.tuple),
                write.en.eq(write_here),
                read.addr.eq(self.show),
                read.en.eq(self.go),
                shown.eq(read.data),
            ]
        return m
