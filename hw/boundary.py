"""The boundary generator: what a batch of sorted tuples looks for in a sorted array, as one sorted stream.

::

                +-> [ lower keys ] -> bound below -+
        batch --+                                  +-> smaller first -> bounds
                +-> [ upper keys ] -> bound above -+

A tuple looks for the keys from its lower bound up to and with its upper one. Its range starts behind all
records below the lower bound, and ends behind all that are not above the upper one. So a record lies before
a bound if `2 * key < 2 * bound.key + bound.upper`, and bounds are sorted by that code: both kinds are found
in one walk over the array.

A tuple of several bands is several boxes, each with a range of its own.
"""

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, memory, stream, wiring
from amaranth.lib.wiring import In, Out

from .dimension import Dimension, Test
from .record import flit_layout
from .skid import Skid


def code_layout(width: int) -> data.StructLayout:
    """A bound as one number, by which bounds are sorted."""
    return data.StructLayout({"upper": 1, "key": width})


def bound_layout(width: int, batch: int) -> data.StructLayout:
    """A bound of the tuple in place `slot` of the batch, or what closes the stream."""
    return data.StructLayout({"code": code_layout(width), "slot": range(batch), "closing": 1})


def key_layout(dim: Dimension, batch: int) -> data.StructLayout:
    """What a tuple's bound is made from, and its place in the batch."""
    return data.StructLayout({"key": dim.width, "id": range(batch)})


def is_below(key: Value, code) -> Value:
    """Whether a record with this key lies before the bound."""
    return Cat(0, key) < code.as_value()


def needs_sorting(dim: Dimension, side: str) -> bool:
    """Whether upper bounds may come in another order than the batch: boxes are sorted by their low bounds."""
    return side == "s" and dim.test is Test.BAND


def lower_bound(dim: Dimension, side: str, key, width):
    """The lowest key that a tuple of `side` looks for; `width` is that of the widest box in the array."""
    match side, dim.test:
        case ("r", Test.AT_LEAST) | ("s", Test.AT_MOST):
            return 0
        case "r", Test.BAND:
            return Mux(key < width, 0, (key - width)[: dim.width])
    return key


def upper_bound(dim: Dimension, side: str, key):
    """The highest key that a tuple of `side` looks for; of a band's box, `key` is the high bound."""
    match side, dim.test:
        case ("r", Test.AT_MOST) | ("s", Test.AT_LEAST):
            return dim.highest
    return key


class Replay(wiring.Component):
    """A run of up to `size` items, kept and given out one by one as often as `start` asks for it.

    After the last item comes one that is `closing`. A new run replaces the old one, and must not come while
    that is given out.

    Latency: 3 cycles from `start`. Throughput: `lanes` items per cycle in, one out.
    """

    def __init__(self, shape: data.StructLayout, lanes: int, size: int):
        self._lanes = lanes
        self._size = size
        super().__init__(
            {
                "run": In(stream.Signature(flit_layout(shape, lanes))),
                "start": In(1),
                "items": Out(
                    stream.Signature(
                        data.StructLayout({"item": shape, "slot": range(size), "closing": 1}),
                    )
                ),
            }
        )

    def elaborate(self, platform):
        m = Module()
        run = self.run
        rows = self._size // self._lanes
        item = run.p.records.shape().elem_shape
        m.submodules.kept = kept = memory.Memory(
            shape=data.ArrayLayout(item, self._lanes), depth=rows, init=[], attrs={"no_rw_check": 1}
        )
        write, read = kept.write_port(), kept.read_port()
        count = Signal(range(self._size + 1))
        begun = Signal()  # flits of a run have come, and its last has not
        row = Signal(range(rows))
        m.d.comb += [
            run.ready.eq(1),
            row.eq(Mux(begun, count // self._lanes, 0)),
            write.addr.eq(row),
            write.data.eq(run.p.records),
            write.en.eq(run.valid),
        ]
        with m.If(run.valid):
            m.d.sync += [begun.eq(~run.p.last), count.eq(row * self._lanes + run.p.count)]

        m.submodules.skid = skid = Skid(self.items.payload.shape())
        asked = Signal()
        number = Signal(range(self._size + 1))  # of the item that is read next
        reading = Signal()
        given = Signal(
            data.StructLayout({"lane": range(self._lanes), "slot": range(self._size), "closing": 1})
        )
        step = Signal()
        m.d.comb += [
            step.eq(~reading | skid.input.ready),
            read.addr.eq(number // self._lanes),
            read.en.eq(step),
            skid.input.valid.eq(reading),
            skid.input.p.item.eq(read.data[given.lane]),
            skid.input.p.slot.eq(given.slot),
            skid.input.p.closing.eq(given.closing),
        ]
        with m.If(step):
            m.d.sync += [
                reading.eq(asked),
                given.lane.eq(number % self._lanes),
                given.slot.eq(number),
                given.closing.eq(number == count),
            ]
            with m.If(asked):
                m.d.sync += number.eq(number + 1)
                with m.If(number == count):
                    m.d.sync += asked.eq(0)
        with m.If(self.start):
            m.d.sync += [asked.eq(1), number.eq(0)]
        wiring.connect(m, skid.output, wiring.flipped(self.items))
        return m


class BoundaryGenerator(wiring.Component):
    """Keeps the keys of a batch, and gives out its bounds, sorted, whenever `start` asks for them.

    `lower` and `upper` are the keys of both kinds of bounds with the slots of their tuples, each a sorted
    run. For `upper` of a band's boxes these are the high bounds; otherwise both runs are the batch as it
    is, and slots are not looked at. `width` is that of the widest box in the array that is searched. Behind
    the last bound comes one that is `closing`.

    Latency: 4 cycles from `start`. Throughput: one bound per cycle.
    """

    def __init__(self, dim: Dimension, side: str, lanes: int, batch: int):
        self._dim = dim
        self._side = side
        self._lanes = lanes
        self._batch = batch
        keys = stream.Signature(flit_layout(key_layout(dim, batch), lanes))
        super().__init__(
            {
                "lower": In(keys),
                "upper": In(keys),
                "width": In(dim.width),
                "start": In(1),
                "bounds": Out(stream.Signature(bound_layout(dim.width, batch))),
            }
        )

    def elaborate(self, platform):
        m = Module()
        dim, side = self._dim, self._side
        heads = {}
        for kind, run in (("lower", self.lower), ("upper", self.upper)):
            sorted_alone = kind == "upper" and needs_sorting(dim, side)
            kept = key_layout(dim, self._batch) if sorted_alone else data.StructLayout({"key": dim.width})
            m.submodules[kind] = replay = Replay(kept, self._lanes, self._batch)
            m.submodules[f"{kind}_skid"] = skid = Skid(self.bounds.payload.shape())
            for own, given in zip(replay.run.p.records, run.p.records):
                m.d.comb += [own[name].eq(given[name]) for name in kept.members]
            item = replay.items.p.item
            if kind == "lower":
                bound = lower_bound(dim, side, item.key, self.width)
            else:
                bound = upper_bound(dim, side, item.key)
            m.d.comb += [
                replay.run.p.count.eq(run.p.count),
                replay.run.p.last.eq(run.p.last),
                replay.run.valid.eq(run.valid),
                run.ready.eq(replay.run.ready),
                replay.start.eq(self.start),
                replay.items.ready.eq(skid.input.ready),
                skid.input.valid.eq(replay.items.valid),
                skid.input.p.code.key.eq(bound),
                skid.input.p.code.upper.eq(kind == "upper"),
                skid.input.p.slot.eq(item.id if sorted_alone else replay.items.p.slot),
                skid.input.p.closing.eq(replay.items.p.closing),
            ]
            heads[kind] = skid.output
        lower, upper, bounds = heads["lower"], heads["upper"], self.bounds
        lower_first = Signal()
        m.d.comb += [
            lower_first.eq(
                upper.p.closing | ~lower.p.closing & (lower.p.code.as_value() < upper.p.code.as_value())
            ),
            # Both close at once.
            bounds.valid.eq(lower.valid & upper.valid),
            bounds.p.eq(Mux(lower_first, lower.p, upper.p)),
            lower.ready.eq(bounds.ready & upper.valid & lower_first),
            upper.ready.eq(bounds.ready & lower.valid & (~lower_first | lower.p.closing)),
        ]
        return m
