"""The insertion engine: merges a sorted batch with sorted arrays in memory into a new one, all in one pass.

::

                              batch --------------> second
    memory --> [ reader 0 ] (newest array) ------> first  [ merger 0 ] ----> second
    memory --> [ reader 1 ] ----------------------------------------------> first  [ merger 1 ] --> ...
                                                                                                     |
    memory <-- [ writer ] <--------------------------- [ indexer ] --> index       [ widest ] <------+

PanJoin's engine has one array, into which every batch is merged. With more, batches are gathered in small
arrays first, so that the large ones are copied less often; see `hw/levels.py`.
"""

from amaranth import Cat, Module, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .flit_merger import FlitMerger
from .indexer import Indexer, entry_layout, flits_of_partition
from .memory_port import MemoryPort
from .record import flit_layout
from .run_reader import ReadShare, RunReader, array_layout
from .run_writer import RunWriter
from .widest import Widest

#: The most words of a burst that is written. All go to one place, so that longer ones would be no faster.
WRITE_BURST = 64


def command_layout(address_width: int, records: int, levels: int) -> data.StructLayout:
    """Merge the next batch and the `arrays`, newest first, into one from the word `target` on.

    An array of no records takes no part.
    """
    arrays = data.ArrayLayout(array_layout(address_width, records), levels)
    return data.StructLayout({"arrays": arrays, "target": address_width})


def answer_layout(record: data.StructLayout, records: int) -> data.StructLayout:
    """How many records the new array has, and the largest width of its boxes: 0 if they have no `hi`."""
    return data.StructLayout({"count": range(records + 1), "width": record["key"].shape})


class Insertion(wiring.Component):
    """Takes a command and a sorted batch; answers when the new array and its index are there.

    No array has more than `records` records, and none that is read may overlap the target. Equal keys stay in
    the order of their arrival: older arrays come first, and the batch last. `index` brings the first key
    of every `partition` records of the new array.

    Reads are bursts of up to `burst` words; `ahead` words of each array are asked for before they are needed,
    which hides a latency of about `ahead - burst` cycles. Several arrays are read by turns, so that each
    burst may have to open a row of memory: then long ones are better.

    Throughput: `lanes` records per cycle, or as fast as memory takes or gives them, whatever the keys are.
    """

    def __init__(
        self,
        record: data.StructLayout,
        lanes: int,
        *,
        records: int,
        partition: int,
        address_width: int,
        levels: int = 1,
        burst: int = 64,
        ahead: int = 256,
    ):
        self._record = record
        self._lanes = lanes
        self._records = records
        self._partition = partition
        self._levels = levels
        self._sizes = {"address_width": address_width, "burst": burst, "ahead": ahead}
        flits_of_partition(lanes, partition)
        self._entries = -(-records // partition)
        port = MemoryPort(lanes * record.size, address_width)
        super().__init__(
            {
                "commands": In(stream.Signature(command_layout(address_width, records, levels))),
                "batch": In(stream.Signature(flit_layout(record, lanes))),
                "index": Out(stream.Signature(entry_layout(record, self._entries))),
                "answers": Out(stream.Signature(answer_layout(record, records))),
                "memory": Out(port),
            }
        )

    def elaborate(self, platform):
        m = Module()
        memory = self.memory
        readers = [
            RunReader(self._record, self._lanes, self._records, **self._sizes) for _ in range(self._levels)
        ]
        merged = wiring.flipped(self.batch)
        for k, reader in enumerate(readers):
            m.submodules[f"reader_{k}"] = reader
            merger = m.submodules[f"merger_{k}"] = FlitMerger(self._record, self._lanes)
            wiring.connect(m, reader.output, merger.first)
            wiring.connect(m, merged, merger.second)
            merged = merger.output
        m.submodules.share = share = ReadShare(
            memory.signature,
            self._levels,
            outstanding=self._levels * self._sizes["ahead"] // self._sizes["burst"],
        )
        for k, reader in enumerate(readers):
            wiring.connect(m, reader.read, share.reads[k])
            wiring.connect(m, share.words[k], reader.words)
        wiring.connect(m, share.read, wiring.flipped(memory.read))
        wiring.connect(m, wiring.flipped(memory.data), share.data)

        m.submodules.indexer = indexer = Indexer(self._record, self._lanes, self._partition, self._entries)
        sizes = self._sizes | {"burst": min(self._sizes["burst"], WRITE_BURST)}
        m.submodules.writer = writer = RunWriter(self._record, self._lanes, self._records, **sizes)
        wiring.connect(m, merged, indexer.input)
        wiring.connect(m, indexer.output, writer.input)
        wiring.connect(m, indexer.index, wiring.flipped(self.index))
        wiring.connect(m, writer.write, wiring.flipped(memory.write))
        wiring.connect(m, writer.written, wiring.flipped(memory.written))
        m.d.comb += writer.done.eq(memory.done)

        # All parts have finished when the writer has, and they begin together.
        idle = Cat(writer.target.ready, *(reader.command.ready for reader in readers)).all()
        begins = Signal()
        m.d.comb += [
            self.commands.ready.eq(idle),
            begins.eq(self.commands.valid & idle),
            writer.target.valid.eq(begins),
            writer.target.p.eq(self.commands.p.target),
        ]
        for k, reader in enumerate(readers):
            m.d.comb += [reader.command.valid.eq(begins), reader.command.p.eq(self.commands.p.arrays[k])]

        settled = 1
        if "hi" in self._record.members:
            m.submodules.widest = widest = Widest(self._record, self._lanes)
            m.d.comb += [
                widest.flit.eq(writer.input.p),
                widest.moves.eq(writer.input.valid & writer.input.ready),
                self.answers.p.width.eq(widest.width),
            ]
            settled = widest.settled
        m.d.comb += [
            self.answers.p.count.eq(writer.answer.p),
            self.answers.valid.eq(writer.answer.valid & settled & ~self.index.valid),
            writer.answer.ready.eq(self.answers.ready & settled & ~self.index.valid),
        ]
        return m
