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

from amaranth import Module, Mux, Signal
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


def leveled_layout(address_width: int, records: int) -> data.StructLayout:
    """Insert a batch of so many records, where the `main` array may be replaced by one at `target`.

    With `whole` it shall be, and take in all small ones.
    """
    return data.StructLayout(
        {
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
    the array that was made. Small ones lie from the word `base` on, at places of `small_words`, two for each
    level in turn; `smalls` shows what is in them, newest first, and `into` where the `index` that comes out
    belongs. `clear`, between commands, forgets them.

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
        base: int = 0,
        burst: int = 64,
        ahead: int = 256,
    ):
        self._room = capacities(records, batch, levels)
        self._words = small_words(records, batch, levels, lanes)
        self._base = base
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
        super().__init__(
            {
                "commands": In(stream.Signature(leveled_layout(address_width, records))),
                "answers": Out(
                    stream.Signature(data.StructLayout({"main": 1, **answer_layout(record, records).members}))
                ),
                **{name: inside[name] for name in ("batch", "index", "memory")},
                "into": Out(data.StructLayout({"main": 1, "number": small["number"].shape})),
                "smalls": Out(data.ArrayLayout(small, levels - 1)),
                "clear": In(1),
            }
        )

    def elaborate(self, platform):
        m = Module()
        m.submodules.insertion = insertion = self._insertion
        wiring.connect(m, wiring.flipped(self.batch), insertion.batch)
        wiring.connect(m, insertion.index, wiring.flipped(self.index))
        wiring.connect(m, insertion.memory, wiring.flipped(self.memory))

        command, merge = self.commands.p, insertion.commands.p
        levels = len(self._room)
        level = Signal(range(levels))
        total = Signal(range(2 * self._room[-1] + 1))
        # Small array k lies at one of two places by turns, and is merged into the other.
        halves = Signal(levels - 1)
        places, spares = [], []
        start = self._base
        for k, words in enumerate(self._words):
            places.append(Mux(halves[k], start + words, start))
            spares.append(Mux(halves[k], start, start + words))
            start += 2 * words
        counts = [Signal.like(command.batch, name=f"count_{k}") for k in range(levels - 1)]
        width = self.answers.p.width
        widths = [Signal.like(width, name=f"width_{k}", reset_less=True) for k in range(levels - 1)]
        for k, small in enumerate(self.smalls):
            m.d.comb += [
                small.address.eq(places[k]),
                small.count.eq(counts[k]),
                small.width.eq(widths[k]),
                small.number.eq(2 * k + halves[k]),
                merge.arrays[k].address.eq(places[k]),
                merge.arrays[k].count.eq(Mux(k <= level, counts[k], 0)),
            ]
        m.d.comb += [
            self.into.main.eq(level == levels - 1),
            merge.arrays[levels - 1].address.eq(command.main.address),
            merge.arrays[levels - 1].count.eq(Mux(self.into.main, command.main.count, 0)),
            merge.target.eq(command.target),
            self.answers.p.main.eq(self.into.main),
            self.answers.p.count.eq(insertion.answers.p.count),
            self.answers.p.width.eq(insertion.answers.p.width),
        ]

        with m.Switch(level):
            for k, spare in enumerate(spares):
                with m.Case(k):
                    m.d.comb += [merge.target.eq(spare), self.into.number.eq(2 * k + 1 - halves[k])]
        with m.FSM():
            with m.State("IDLE"):
                m.d.sync += [level.eq(0), total.eq(command.batch)]
                with m.If(self.commands.valid):
                    m.next = "CHOOSE"
            with m.State("CHOOSE"):
                with m.If(self.into.main):
                    m.next = "BEGIN"
                for k in range(levels - 1):
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
                    self.commands.ready.eq(self.answers.valid & self.answers.ready),
                ]
                with m.If(self.commands.ready):
                    for k in range(levels - 1):
                        with m.If(level == k):
                            m.d.sync += [
                                counts[k].eq(self.answers.p.count),
                                widths[k].eq(self.answers.p.width),
                                halves[k].eq(~halves[k]),
                            ]
                        with m.Elif(level > k):
                            m.d.sync += counts[k].eq(0)
                    m.next = "IDLE"
        with m.If(self.clear):
            m.d.sync += [count.eq(0) for count in counts]
        return m
