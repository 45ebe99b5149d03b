"""A window segment: a shift register of tuples that is read a row of lanes at a time."""

from amaranth import Module, Signal
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

#: Distributed RAM reads in the cycle of its address, which the scan counts on.
DISTRIBUTED = {"ram_style": "distributed"}


class Segment(wiring.Component):
    """`lanes * depth` tuples in order of arrival, as `lanes` banks of `depth` tuples each.

    ::

                  bank 0      bank 1            bank lanes-1
        entering -> [row] -----> [row] ---> ... ---> [row] -> leaving
                      |            |                   |
                   rows[0]      rows[1]          rows[lanes-1]

    All banks use one row address, so a bank is a circular buffer and the banks in a line are one
    shift register: `shift` moves `rows[k]` into bank `k + 1` and drops `leaving`, the oldest tuple of
    all. `advance` goes to the next row; after `depth` advances every row has been shown once and the
    address is where it was. A shift must only happen there, and advances too.

    With a depth of 1 the banks are registers, otherwise distributed RAM.

    Latency: `rows` shows the addressed row in the same cycle; a shift is visible one cycle later.
    Throughput: one shift and one row per cycle.
    """

    def __init__(self, shape: data.StructLayout, lanes: int, depth: int):
        self._lanes = lanes
        self._depth = depth
        super().__init__(
            {
                "entering": In(shape),
                "shift": In(1),
                "advance": In(1),
                "clear": In(1),  # with `shift`: every bank takes an invalid tuple
                "rows": Out(shape).array(lanes),
                "leaving": Out(shape),
            }
        )

    def elaborate(self, platform):
        m = Module()
        shape = self.entering.shape()
        address = Signal(range(self._depth))
        if self._depth > 1:
            with m.If(self.advance):
                m.d.sync += address.eq(address + 1)
                if self._depth & (self._depth - 1):
                    with m.If(address == self._depth - 1):
                        m.d.sync += address.eq(0)

        previous = self.entering
        for lane in range(self._lanes):
            if self._depth == 1:
                bank = Signal(shape, name=f"bank_{lane}", reset_less=True)
                with m.If(self.shift):
                    m.d.sync += bank.eq(previous)
                # Whatever shifts: this needs no logic, only a register's reset.
                with m.If(self.clear):
                    m.d.sync += bank.valid.eq(0)
                row = bank
            else:
                incoming = Signal(shape, name=f"incoming_{lane}")
                m.d.comb += incoming.eq(previous)
                with m.If(self.clear):
                    m.d.comb += incoming.valid.eq(0)
                bank = m.submodules[f"bank_{lane}"] = memory.Memory(
                    shape=shape, depth=self._depth, init=[], attrs=DISTRIBUTED
                )
                write = bank.write_port()
                read = bank.read_port(domain="comb")
                m.d.comb += [
                    write.addr.eq(address),
                    write.data.eq(incoming),
                    write.en.eq(self.shift),
                    read.addr.eq(address),
                ]
                row = read.data
            m.d.comb += self.rows[lane].eq(row)
            previous = row
        m.d.comb += self.leaving.eq(previous)
        return m
