"""A plain copy from memory to memory: the yardstick for whatever reads and writes arrays.

::

    commands --+--> [ bursts ] --> read        data --> written
               +--> [ bursts ] --> write       done --> [ count ] --> answers
"""

from amaranth import Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from hw.bursts import Bursts
from hw.memory_port import MemoryPort

COUNT_WIDTH = 32


def command_layout(address_width: int) -> data.StructLayout:
    """Copy `count` words, at least one, from `source` to `target`."""
    return data.StructLayout({"source": address_width, "target": address_width, "count": COUNT_WIDTH})


class Copier(wiring.Component):
    """Copies arrays in bursts of up to `longest` words; answers with their length when they are in memory.

    Throughput: a word per cycle, or as fast as the slower of the two channels.
    """

    def __init__(self, port: MemoryPort, longest: int = 64):
        self._port = port
        self._longest = longest
        super().__init__(
            {
                "commands": In(stream.Signature(command_layout(port.address_width))),
                "answers": Out(stream.Signature(COUNT_WIDTH)),
                "memory": Out(port),
            }
        )

    def elaborate(self, platform):
        m = Module()
        command, memory = self.commands.p, self.memory
        issued = Signal(2)
        pending = Signal(COUNT_WIDTH)  # bursts that are not done
        ended = Signal()
        for k, (name, address) in enumerate((("read", command.source), ("write", command.target))):
            bursts = Bursts(self._port.address_width, COUNT_WIDTH, self._longest)
            m.submodules[name] = bursts
            wiring.connect(m, bursts.bursts, wiring.flipped(getattr(memory, name)))
            m.d.comb += [
                bursts.request.valid.eq(self.commands.valid & ~issued[k]),
                bursts.request.p.address.eq(address),
                bursts.request.p.count.eq(command.count),
            ]
            with m.If(bursts.request.valid & bursts.request.ready):
                m.d.sync += issued[k].eq(1)
        wiring.connect(m, wiring.flipped(memory.data), wiring.flipped(memory.written))
        begun = memory.write.valid & memory.write.ready
        m.d.sync += pending.eq(pending + begun - memory.done)
        m.d.comb += [
            ended.eq(issued.all() & (pending == 0)),
            self.answers.valid.eq(ended),
            self.answers.payload.eq(command.count),
            self.commands.ready.eq(ended & self.answers.ready),
        ]
        with m.If(self.commands.ready):
            m.d.sync += issued.eq(0)
        return m
