"""Insertion by levels: batches are gathered in small arrays before they get into the large one.

::

    batch ---+                                      level 0: [ up to c0 records ]
             |      merges levels 0 .. k and the    level 1: [ up to c1 records ]
             +----> batch into level k, the first   ...
                    that holds them all             main:    [ all of the subwindow ]

Merging every batch into one array, as PanJoin does, copies the whole array for every batch. With n levels,
whose sizes grow by a constant factor, a record is copied about n * (records / batch) ** (1 / n) / 2 times
instead of (records / batch) / 2 times; probes have to look into up to n arrays.
"""

import math

from amaranth import C, Cat, Module, Mux, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from .errors import ParameterError
from .insertion import Insertion, answer_layout
from .run_reader import array_layout


def capacities(records: int, batch: int, levels: int) -> list[int]:
    """How many records each level holds, the main array last: powers of two apart but for that one."""
    if type(levels) is not int or not 1 <= levels <= 8:
        raise ParameterError(f"levels must be an integer from 1 to 8, not {levels!r}")
    growth = math.log2(max(1, records / batch)) / levels
    return [batch << round((level + 1) * growth) for level in range(levels - 1)] + [records]


def level_for(counts: list[int], batch: int, room: list[int], *, whole: bool = False) -> int:
    """The level into which a batch is merged, together with all arrays of this level and those before.

    This is what the gateware does, for those who want to know what it costs.
    """
    total = batch
    for level, count in enumerate(counts):
        total += count
        if level == len(room) - 1 or (total <= room[level] and not whole):
            return level
    raise AssertionError("counts has an entry for each level")


def leveled_layout(address_width: int, records: int, streams: int = 1) -> data.StructLayout:
    """Insert a batch of so many records, where the `main` array may be replaced by one at `target`.

    With `whole` it shall be, and take in all small ones, which are those of `stream`.
    """
    return data.StructLayout(
        {
            "stream": range(streams),
            "main": array_layout(address_width, records),
            "target": address_width,
            "batch": range(records + 1),
            "whole": 1,
        }
    )


def small_words(records: int, batch: int, levels: int, lanes: int) -> list[int]:
    """The words of each small array, of which there are two per level."""
    return [-(-room // lanes) for room in capacities(records, batch, levels)[:-1]]


def small_layout(
    record: data.StructLayout, address_width: int, records: int, levels: int
) -> data.StructLayout:
    """A small array, and the `number` of its place: 2 per level, used by turns."""
    array = array_layout(address_width, records)
    return data.StructLayout({**array.members, "width": record["key"].shape, "number": range(2 * levels - 2)})


class LeveledInsertion(wiring.Component):
    """An `Insertion` that chooses which arrays it merges; with one level it always takes the main array.

    A command is taken with its answer, which says whether there is a new main array, and count and width of
    the array that was made; until then nothing changes for those who read. The small arrays of each stream
    lie from one of the words `bases` on, at places of `small_words`, two for each level in turn; `smalls`
    shows what is in them, newest first, and `into` where the `index` that comes out belongs. `clear`,
    between commands, forgets those of its streams.

    Latency: up to `levels + 2` cycles more than `Insertion`. Throughput: as there.
    """

    def __init__(
        self,
        record: data.StructLayout,
        lanes: int,
        *,
        records: int,
        batch: int,
        partition: int,
        address_width: int,
        levels: int = 1,
        bases: tuple[int, ...] = (0,),
        burst: int = 64,
        ahead: int = 256,
    ):
        self._room = capacities(records, batch, levels)
        self._words = small_words(records, batch, levels, lanes)
        self._bases = bases
        self._insertion = Insertion(
            record,
            lanes,
            records=records,
            partition=partition,
            address_width=address_width,
            levels=levels,
            burst=burst,
            ahead=ahead,
        )
        inside = self._insertion.signature.members
        small = small_layout(record, address_width, records, levels)
        streams = len(bases)
        super().__init__(
            {
                "commands": In(stream.Signature(leveled_layout(address_width, records, streams))),
                "answers": Out(
                    stream.Signature(data.StructLayout({"main": 1, **answer_layout(record, records).members}))
                ),
                **{name: inside[name] for name in ("batch", "index", "memory")},
                "into": Out(data.StructLayout({"main": 1, "number": small["number"].shape})),
                "smalls": Out(data.ArrayLayout(data.ArrayLayout(small, levels - 1), streams)),
                "clear": In(streams),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.insertion = insertion = self._insertion
        wiring.connect(m, wiring.flipped(self.batch), insertion.batch)
        wiring.connect(m, insertion.index, wiring.flipped(self.index))
        wiring.connect(m, insertion.memory, wiring.flipped(self.memory))

        command, merge, answer = self.commands.p, insertion.commands.p, self.answers.p
        levels = len(self._room)
        main = levels - 1
        level = Signal(range(levels))
        total = Signal(range(2 * self._room[-1] + 1))
        counts = [Signal.like(command.batch, name=f"count_{k}") for k in range(main)]
        m.d.comb += [
            self.into.main.eq(level == main),
            merge.arrays[main].address.eq(command.main.address),
            merge.arrays[main].count.eq(Mux(self.into.main, command.main.count, 0)),
            merge.target.eq(command.target),
            answer.main.eq(self.into.main),
            answer.count.eq(insertion.answers.p.count),
            answer.width.eq(insertion.answers.p.width),
        ]
        made = Signal()
        for number, base in enumerate(self._bases):
            # One stream alone has no bits for its number, which Verilog cannot compare.
            of_this = command.stream == number if len(self._bases) > 1 else C(1)
            start = base
            for k, words in enumerate(self._words):
                # It lies at one of two places by turns, and is merged into the other.
                half = Signal(name=f"half_{number}_{k}")
                count = Signal.like(command.batch, name=f"count_{number}_{k}")
                width = Signal.like(answer.width, name=f"width_{number}_{k}", reset_less=True)
                small, array = self.smalls[number][k], merge.arrays[k]
                m.d.comb += [
                    small.address.eq(Mux(half, start + words, start)),
                    small.count.eq(count),
                    small.width.eq(width),
                    small.number.eq(Cat(half, C(k, len(small.number) - 1))),
                ]
                with m.If(of_this):
                    m.d.comb += [
                        counts[k].eq(count),
                        array.address.eq(small.address),
                        array.count.eq(Mux(k <= level, count, 0)),
                    ]
                    with m.If(level == k):
                        m.d.comb += [
                            merge.target.eq(Mux(half, start, start + words)),
                            self.into.number.eq(Cat(~half, C(k, len(small.number) - 1))),
                        ]
                    with m.If(made & (level == k)):
                        m.d.sync += [count.eq(answer.count), width.eq(answer.width), half.eq(~half)]
                    with m.Elif(made & (level > k)):
                        m.d.sync += count.eq(0)
                with m.If(self.clear[number]):
                    m.d.sync += count.eq(0)
                start += 2 * words

        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [level.eq(0), total.eq(command.batch)]
                with m.If(self.commands.valid):
                    m.next = "CHOOSE"
            with m.State("CHOOSE"):
                with m.If(self.into.main):
                    m.next = "BEGIN"
                for k in range(main):
                    with m.If(level == k):
                        both = Signal.like(total, name=f"sum_{k}")
                        m.d.comb += both.eq(total + counts[k])
                        with m.If((both <= self._room[k]) & ~command.whole):
                            m.next = "BEGIN"
                        with m.Else():
                            m.d.sync += [level.eq(k + 1), total.eq(both)]
            with m.State("BEGIN"):
                m.d.comb += insertion.commands.valid.eq(1)
                with m.If(insertion.commands.ready):
                    m.next = "MERGE"
            with m.State("MERGE"):
                m.d.comb += [
                    self.answers.valid.eq(insertion.answers.valid),
                    insertion.answers.ready.eq(self.answers.ready),
                    made.eq(self.answers.valid & self.answers.ready),
                    self.commands.ready.eq(made),
                ]
                with m.If(made):
                    m.next = "IDLE"
        return m
