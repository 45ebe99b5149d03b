"""The partitioner: which partition of a sorted array a bound falls into, by binary search in on-chip memory.

::

    index -> by entry:   0          P/2        P/4, 3P/4      ...    odd entries
                         |           |             |                     |
    bounds ----------> [first] -> [half] ----> [quarter] -> ... ----> [last] ---> targets

The index holds the first key of each partition. Every step of the search looks at entries that no other step
looks at, so each has a memory of its own and all work at once: one bound per cycle, sorted or not, with as
much memory as one table. The rebounding search, which begins where the last one ended, needs a single memory
and comparator, but a cycle for each of its steps.

The target's first record lies before the bound, the next partition's first one does not. So the bound's place
is in the target or at its end, also where one key fills several partitions. A bound before which nothing lies
has no target.
"""

from amaranth import Cat, Module, Signal
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .boundary import bound_layout, is_below
from .skid import Skid


def index_layout(width: int, partitions: int, banks: int) -> data.StructLayout:
    """The first key of one partition, for one of the arrays."""
    return data.StructLayout({"bank": range(banks), "entry": range(partitions), "key": width})


def target_layout(width: int, batch: int, partitions: int) -> data.StructLayout:
    """A bound with its partition; `none` if there is no record before it, or it is closing."""
    return data.StructLayout({"bound": bound_layout(width, batch), "partition": range(partitions), "none": 1})


class Partitioner(wiring.Component):
    """Finds the last partition whose first record lies before the bound.

    `partitions` is a power of two; an array in `bank` has the first `entries` of them. `index` takes an entry
    in every cycle; those of an array are not changed while it is searched.

    Latency: one cycle, and 3 for each of `1 + log2(partitions)` steps: what a memory holds comes late in its
    cycle, and is compared in the next. Throughput: one bound per cycle.
    """

    def __init__(self, width: int, batch: int, partitions: int, banks: int):
        self._partitions = partitions
        self._banks = banks
        super().__init__(
            {
                "index": In(stream.Signature(index_layout(width, partitions, banks))),
                "bank": In(range(banks)),
                "entries": In(range(partitions + 1)),
                "bounds": In(stream.Signature(bound_layout(width, batch))),
                "targets": Out(stream.Signature(target_layout(width, batch, partitions))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        levels = self._partitions.bit_length() - 1
        shape = self.targets.payload.shape()
        step = Signal()
        valid = Signal()
        head = Signal(shape)
        m.d.comb += [
            self.index.ready.eq(1),
            self.bounds.ready.eq(step),
            valid.eq(self.bounds.valid),
            head.bound.eq(self.bounds.p),
        ]
        # Entry 0 first, then the entries whose lowest one is bit `levels - 1`, and so on.
        for level in (None, *reversed(range(levels))):
            name = "first" if level is None else f"step_{level}"
            shift = levels if level is None else level + 1
            m.submodules[name] = table = memory.Memory(
                shape=self.index.p.key.shape(),
                depth=self._banks * self._partitions >> shift,
                init=[],
                attrs={"no_rw_check": 1},
            )
            write, read = table.write_port(), table.read_port()
            entry = self.index.p.entry
            own = ~entry.any() if level is None else entry[: level + 1] == 1 << level
            m.d.comb += [
                write.addr.eq(Cat(entry[shift:], self.index.p.bank)),
                write.data.eq(self.index.p.key),
                write.en.eq(self.index.valid & own),
                read.addr.eq(Cat(head.partition[shift:], self.bank)),
                read.en.eq(step),
            ]
            reading, looking, decided = (
                Signal(name=f"{name}_{at}") for at in ("reading", "looking", "decided")
            )
            read_for, looked_at, after = (
                Signal(shape, name=f"{name}_{at}", reset_less=True)
                for at in ("read_for", "looked_at", "after")
            )
            key = Signal.like(read.data, name=f"{name}_key", reset_less=True)
            tried = Signal(range(self._partitions), name=f"{name}_tried")
            below = Signal(name=f"{name}_below")
            m.d.comb += [
                tried.eq(looked_at.partition | (0 if level is None else 1 << level)),
                below.eq((tried < self.entries) & is_below(key, looked_at.bound.code)),
            ]
            with m.If(step):
                m.d.sync += [
                    *(reading.eq(valid), looking.eq(reading), decided.eq(looking)),
                    *(read_for.eq(head), looked_at.eq(read_for), after.eq(looked_at)),
                    key.eq(read.data),
                ]
                if level is None:
                    m.d.sync += after.none.eq(~below | looked_at.bound.closing)
                else:
                    m.d.sync += after.partition[level].eq(below)
            valid, head = decided, after
        # All registers step at once: that must not wait for who takes the targets.
        m.submodules.skid = skid = Skid(shape)
        m.d.comb += [step.eq(~valid | skid.input.ready), skid.input.valid.eq(valid), skid.input.p.eq(head)]
        wiring.connect(m, skid.output, wiring.flipped(self.targets))
        return m
