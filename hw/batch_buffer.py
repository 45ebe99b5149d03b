"""Where one stream's newest tuples wait: a batch that has not probed yet, behind the insertion buffer.

::

    first      leaving          members                    count
      +------------------+-----------------+------------------+
      | are being merged | have probed     | are new          |
      +------------------+-----------------+------------------+
       searched row by row --> words        one by one --> run

All lie in one memory in order of arrival, as in a ring. When the new tuples have probed, they are members of
the insertion buffer. When all of that goes into the main array, it can be searched until it is there.
"""

from amaranth import Module, Mux, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .memory_port import burst_layout


def item_layout(record: data.StructLayout) -> data.StructLayout:
    """A record of a run that comes one by one."""
    return data.StructLayout({"record": record, "last": 1})


class BatchBuffer(wiring.Component):
    """Up to `size` records, a power of two, in rows of `lanes`.

    `store` appends `record`. `settle` makes all of them members, `drop` forgets the new ones and `clear` all.
    `feed` starts a run on `items`: the new records, or with `all` the members too; there must be one. With
    `leave` all members leave; `release` forgets those that did. `count` and `members` are without them.

    `read` and `words` give rows as a memory port does, from the first record's row on; not while a run goes
    on. So the `searched` records that have probed follow `offset` others.

    Latency: 2 cycles from `feed` or `read`. Throughput: one record or row per cycle.
    """

    def __init__(self, record: data.StructLayout, lanes: int, size: int):
        self._record = record
        self._lanes = lanes
        self._size = size
        self._rows = size // lanes
        super().__init__(
            {
                "record": In(record),
                "store": In(1),
                "settle": In(1),
                "drop": In(1),
                "clear": In(1),
                "count": Out(range(size + 1)),
                "members": Out(range(size + 1)),
                "leave": In(1),
                "release": In(1),
                "offset": Out(range(lanes)),
                "searched": Out(range(size + 1)),
                "feed": In(1),
                "all": In(1),
                "items": Out(stream.Signature(item_layout(record))),
                "read": In(stream.Signature(burst_layout(self._rows.bit_length()))),
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
        first, end = Signal(range(self._size)), Signal(range(self._size))
        leaving = Signal.like(self.count)
        m.d.comb += [
            write.addr.eq(end // lanes),
            *(lane.eq(self.record) for lane in write.data),
            write.en.eq(Mux(self.store, 1 << (end % lanes), 0)),
            self.offset.eq(first % lanes),
            self.searched.eq(leaving + self.members),
        ]
        with m.If(self.store):
            m.d.sync += [self.count.eq(self.count + 1), end.eq(end + 1)]
        with m.If(self.settle):
            m.d.sync += self.members.eq(self.count)
        with m.If(self.drop):
            m.d.sync += [self.count.eq(self.members), end.eq(first + leaving + self.members)]
        with m.If(self.leave):
            m.d.sync += [leaving.eq(self.members), self.count.eq(0), self.members.eq(0)]
        with m.If(self.release):
            m.d.sync += [first.eq(first + leaving), leaving.eq(0)]
        with m.If(self.clear):
            m.d.sync += [signal.eq(0) for signal in (first, end, leaving, self.count, self.members)]

        # A run and rows take turns with the memory's one read port, and never wait for each other.
        item, left, lane = Signal.like(first), Signal.like(self.count), Signal(range(lanes))
        row, rows = Signal(range(self._rows)), Signal.like(self.read.p.length)
        feeding, last = Signal(), Signal()
        taken, more = self.items.ready | ~self.items.valid, self.words.ready | ~self.words.valid
        m.d.comb += [
            feeding.eq(left != 0),
            read.addr.eq(Mux(feeding, item // lanes, row)),
            read.en.eq(Mux(feeding | self.items.valid, taken, more)),
            self.items.p.record.eq(read.data[lane]),
            self.items.p.last.eq(last),
            self.words.p.eq(read.data),
            self.read.ready.eq(rows == 0),
        ]
        with m.If(taken):
            m.d.sync += self.items.valid.eq(feeding)
            with m.If(feeding):
                m.d.sync += [item.eq(item + 1), left.eq(left - 1), lane.eq(item % lanes), last.eq(left == 1)]
        with m.If(self.feed):
            known = Mux(self.all, 0, self.members)
            m.d.sync += [item.eq(first + leaving + known), left.eq(self.count - known)]
        with m.If(self.read.ready & self.read.valid):
            m.d.sync += [row.eq(first // lanes + self.read.p.address), rows.eq(self.read.p.length)]
        with m.If(more):
            m.d.sync += self.words.valid.eq(rows != 0)
            with m.If(rows != 0):
                m.d.sync += [row.eq(row + 1), rows.eq(rows - 1)]
        return m
