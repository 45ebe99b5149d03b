"""Where one stream's newest tuples wait: a batch that has not probed yet, behind the insertion buffer.

::

                 0              members             count           size
                 +-----------------+------------------+---------------+
                 | have probed     | are new          |               |
                 +-----------------+------------------+---------------+
                   searched            one by one --> run
                   row by row --> words

Both lie in one memory in order of arrival. When the new tuples have probed, they are members of the insertion
buffer, or all of it goes into the main array.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .memory_port import burst_layout


def item_layout(record: data.StructLayout) -> data.StructLayout:
    """A record of a run that comes one by one."""
    return data.StructLayout({"record": record, "last": 1})


class BatchBuffer(wiring.Component):
    """Up to `size` records, a multiple of `lanes`, in rows of `lanes`.

    `store` appends `record`. `settle` makes all of them members, `drop` forgets the new ones and `clear` all.
    `feed` starts a run on `items`: the new records, or with `all` the members too; there must be one.
    `read` and `words` give rows as a memory port does; not while a run goes on.

    Latency: 2 cycles from `feed` or `read`. Throughput: one record or row per cycle.
    """

    def __init__(self, record: data.StructLayout, lanes: int, size: int):
        self._record = record
        self._lanes = lanes
        self._rows = size // lanes
        address_width = (self._rows - 1).bit_length()
        super().__init__(
            {
                "record": In(record),
                "store": In(1),
                "settle": In(1),
                "drop": In(1),
                "clear": In(1),
                "count": Out(range(size + 1)),
                "members": Out(range(size + 1)),
                "feed": In(1),
                "all": In(1),
                "items": Out(stream.Signature(item_layout(record))),
                "read": In(stream.Signature(burst_layout(address_width))),
                "words": Out(stream.Signature(lanes * record.size)),
            }
        )

    def elaborate(self, platform):
        m = Module()
        lanes = self._lanes
        m.submodules.store = store = memory.Memory(
            shape=data.ArrayLayout(self._record, lanes),
            depth=self._rows,
            init=[],
            attrs={"no_rw_check": 1},
        )
        write, read = store.write_port(granularity=1), store.read_port()
        m.d.comb += [
            write.addr.eq(self.count // lanes),
            *(lane.eq(self.record) for lane in write.data),
            write.en.eq(Mux(self.store, 1 << (self.count % lanes), 0)),
        ]
        with m.If(self.store):
            m.d.sync += self.count.eq(self.count + 1)
        with m.If(self.settle):
            m.d.sync += self.members.eq(self.count)
        with m.If(self.drop):
            m.d.sync += self.count.eq(self.members)
        with m.If(self.clear):
            m.d.sync += [self.count.eq(0), self.members.eq(0)]

        # A run and rows take turns with the memory's one read port, and never wait for each other.
        item, lane = Signal.like(self.count), Signal(range(lanes))
        feeding, row, rows = Signal(), Signal(range(self._rows)), Signal.like(self.read.p.length)
        last = Signal()
        taken, more = self.items.ready | ~self.items.valid, self.words.ready | ~self.words.valid
        m.d.comb += [
            read.addr.eq(Mux(feeding, item // lanes, row)),
            read.en.eq(Mux(feeding | self.items.valid, taken, more)),
            self.items.p.record.eq(read.data[lane]),
            self.items.p.last.eq(last),
            self.words.p.eq(read.data),
            self.read.ready.eq(rows == 0),
        ]
        with m.If(self.feed):
            m.d.sync += [feeding.eq(1), item.eq(Mux(self.all, 0, self.members))]
        with m.If(taken):
            m.d.sync += self.items.valid.eq(feeding)
            with m.If(feeding):
                m.d.sync += [item.eq(item + 1), lane.eq(item % lanes), last.eq(item + 1 == self.count)]
                with m.If(item + 1 == self.count):
                    m.d.sync += feeding.eq(0)
        with m.If(self.read.ready & self.read.valid):
            m.d.sync += [row.eq(self.read.p.address), rows.eq(self.read.p.length)]
        with m.If(more):
            m.d.sync += self.words.valid.eq(rows != 0)
            with m.If(rows != 0):
                m.d.sync += [row.eq(row + 1), rows.eq(rows - 1)]
        return m
