"""Sorted runs out of memory, as flits: words are asked for long before they are needed."""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .flit_merger import log2_lanes
from .gather import Merge
from .memory_port import MemoryPort, burst_layout
from .queue import Queue
from .read_queue import ReadQueue
from .record import flit_layout


def array_layout(address_width: int, records: int) -> data.StructLayout:
    """A sorted array in memory: `count` of at most `records` records from the word `address` on."""
    return data.StructLayout({"address": address_width, "count": range(records + 1)})


class RunReader(wiring.Component):
    """Reads arrays of up to `records` records, one after another, in bursts of up to `burst` words.

    ::

        command --> [ ReadQueue ] --> read
                    [           ] <-- words
                         |
                         +--> [ flits ] --> output

    It asks for words as long as there is room for them, so it never refuses one. Room for `ahead` words hides
    a latency of about `ahead - burst` cycles.

    Throughput: one flit per cycle.
    """

    def __init__(
        self,
        record: data.StructLayout,
        lanes: int,
        records: int,
        *,
        address_width: int,
        burst: int,
        ahead: int,
    ):
        self._records = records
        self._burst = burst
        self._ahead = ahead
        self._port = MemoryPort(lanes * record.size, address_width)
        super().__init__(
            {
                "command": In(stream.Signature(array_layout(address_width, records))),
                "read": Out(stream.Signature(burst_layout(address_width))),
                "words": In(stream.Signature(lanes * record.size)),
                "output": Out(stream.Signature(flit_layout(record, lanes))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        command, flit = self.command.p, self.output.p
        lanes = len(flit.records)
        m.submodules.queue = queue = ReadQueue(
            self._port,
            burst=self._burst,
            ahead=self._ahead,
            length_width=(-(-self._records // lanes)).bit_length(),
        )
        wiring.connect(m, queue.requests, wiring.flipped(self.read))
        wiring.connect(m, wiring.flipped(self.words), queue.words)
        array = Signal(self.command.p.shape(), reset_less=True)
        asking = Signal()
        running = Signal()
        left = Signal.like(command.count)
        last = Signal()
        m.d.comb += [
            self.command.ready.eq(~asking & ~running),
            queue.read.valid.eq(asking),
            queue.read.p.address.eq(array.address),
            queue.read.p.length.eq((array.count + (lanes - 1)) >> log2_lanes(lanes)),
            last.eq(left <= lanes),
            flit.records.eq(data.View(flit.records.shape(), queue.data.p)),
            flit.last.eq(last),
            flit.count.eq(Mux(last, left, lanes)),
            self.output.valid.eq(running & (queue.data.valid | (left == 0))),
            queue.data.ready.eq(running & self.output.ready & (left != 0)),
        ]
        with m.If(queue.read.ready):
            m.d.sync += asking.eq(0)
        with m.If(self.output.valid & self.output.ready):
            m.d.sync += left.eq(left - lanes)
            with m.If(last):
                m.d.sync += running.eq(0)
        with m.If(self.command.valid & self.command.ready):
            m.d.sync += [array.eq(command), left.eq(command.count), asking.eq(1), running.eq(1)]
        return m


class ReadShare(wiring.Component):
    """Lets several readers, which never refuse a word, use one memory port; they take turns by bursts.

    At most `outstanding` bursts are on their way, and three more.

    Latency: that of `Merge` for requests, none for words that come 3 cycles after theirs or later.
    Throughput: one word per cycle.
    """

    def __init__(self, port: MemoryPort, readers: int, *, outstanding: int):
        self._outstanding = outstanding
        burst = stream.Signature(burst_layout(port.address_width))
        word = stream.Signature(port.width)
        super().__init__(
            {
                "reads": In(burst).array(readers),
                "words": Out(word).array(readers),
                "read": Out(burst),
                "data": In(word),
            }
        )

    def elaborate(self, platform):
        m = Module()
        readers = len(self.reads)
        tagged = data.StructLayout({"burst": self.read.p.shape(), "reader": range(readers)})
        m.submodules.merge = merge = Merge(tagged, inputs=readers)
        for k, read in enumerate(self.reads):
            m.d.comb += [
                merge.inputs[k].p.burst.eq(read.p),
                merge.inputs[k].p.reader.eq(k),
                merge.inputs[k].valid.eq(read.valid),
                read.ready.eq(merge.inputs[k].ready),
            ]
        expected = data.StructLayout({"length": self.read.p.length.shape(), "reader": range(readers)})
        m.submodules.queue = queue = Queue(expected, self._outstanding)
        entry, current = queue.input, queue.output
        m.d.comb += [
            self.read.p.eq(merge.output.p.burst),
            self.read.valid.eq(merge.output.valid & entry.ready),
            merge.output.ready.eq(self.read.ready & entry.ready),
            entry.p.length.eq(merge.output.p.burst.length),
            entry.p.reader.eq(merge.output.p.reader),
            entry.valid.eq(self.read.valid & self.read.ready),
        ]
        come = Signal.like(self.read.p.length)
        with m.Switch(current.p.reader):
            for k, words in enumerate(self.words):
                m.d.comb += words.p.eq(self.data.p)
                with m.Case(k):
                    m.d.comb += [
                        words.valid.eq(self.data.valid & current.valid),
                        self.data.ready.eq(words.ready & current.valid),
                    ]
        with m.If(self.data.valid & self.data.ready):
            m.d.sync += come.eq(come + 1)
            with m.If(come + 1 == current.p.length):
                m.d.sync += come.eq(0)
                m.d.comb += current.ready.eq(1)
        return m
