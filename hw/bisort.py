"""BI-Sort: windows of millions of tuples in external memory, as sorted arrays with an index on the chip.

::

    tuples --> [ controller ] ---------------------------- marks, errors ----------------+
                    |                                                                     |
              [ batch buffer R ]--+--> [ packer ] -> [ sorter ] --+--> [ probing R ] --+--+--> results
              [ batch buffer S ]--+                               +--> [ probing S ] --+  |
                    |  |                                          +--> [ run ]         |  |
                    |  +--> one by one --> [ linear search R, S ] -------|-------------|--+
                    +-----> row by row ----------^                 [ insertion ] ------^ index
                                                                         |             |
              [ subwindows R ]  slots, counts, widths                 [ shared reads, writes ]
              [ subwindows S ]                                                   |
                                                                              memory

The paper is "PanJoin: A Partition-based Adaptive Stream Join", sections III-D and IV. A stream's window is a
ring of subwindows. Its newest tuples wait in a batch buffer. In an episode, which a full buffer begins, or a
mark or a flush, the new tuples of R probe all subwindows of S and, one after another, the insertion buffer of
S; then they become members of R's insertion buffer, or all of that is merged into R's newest subwindow. Then
the new tuples of S do the same, and find those of R too: so two tuples meet once, when the later one probes.

A merge goes on in the background. Until its array is there, the old one is probed, and what is merged can
be searched in the buffer. The change takes place between episodes, or before the newest subwindow is probed.
"""

from dataclasses import dataclass

from amaranth import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, enum, wiring
from amaranth.lib.wiring import Out

from .batch_buffer import BatchBuffer
from .evictions import Evictions
from .flit_packer import FlitPacker
from .ledger import OPTION_LAYOUT
from .levels import LeveledInsertion, small_words
from .materialiser import Materialiser
from .memory_port import MemoryPort
from .parameters import Parameters
from .probing import Probing
from .queue import Queue
from .read_queue import ReadQueue
from .record import record_layouts, record_of
from .run_reader import ReadShare
from .skid import Skid
from .socket import ID_WIDTH, QUERY_WIDTH, RESULT_LAYOUT, Fault, Kind, Socket, Tag
from .sorter import Sorter
from .subwindow_command import COMMAND_LAYOUT, Command
from .subwindows import Subwindows

#: Words of a burst, and how many bursts are asked for ahead of their use: more than a memory takes to answer.
BURST = 32
AHEAD = 4
#: The most partitions of a subwindow's index.
MOST_PARTITIONS = 1024
SIDES = ("r", "s")


@dataclass(frozen=True)
class Geometry:
    """What follows from the parameters: how arrays lie in memory and how their index is cut."""

    most: int  #: tuples of a subwindow: with `segment` of them it is full, and the last batch may bring more
    partition: int  #: records of a partition
    partitions: int  #: of a subwindow
    places: int  #: subwindows of a ring
    slots: int  #: arrays of a stream, and behind them the room of its small ones
    stride: int  #: words of an array
    linear: int  #: the most tuples of an insertion buffer
    banks: int  #: arrays of a stream that have an index
    bases: tuple[int, int]  #: the words from which on the small arrays of R and S lie
    burst: int  #: words of a burst, at most an array's
    port: MemoryPort

    @classmethod
    def of(cls, parameters: Parameters) -> "Geometry":
        """The geometry of a joiner with these parameters."""
        p = parameters
        most = p.segment + p.buffer - 1
        partition = max(4 * p.lanes, _power_of_two(-(-most // MOST_PARTITIONS)))
        partitions = max(2, _power_of_two(-(-most // partition)))
        # A tuple costs `levels * (most / linear) ** (1 / levels) / 2` words of merges and `linear / 2` of
        # linear search, at least when both are about alike.
        linear = min(p.buffer - 1, int((2 * p.segment) ** (1 / (p.levels + 1))))
        main = p.cores + 2
        stride = _power_of_two(-(-most // p.lanes))
        small = 2 * sum(small_words(most, linear + 1, p.levels, p.lanes))
        slots = main + -(-small // stride)
        record = record_layouts(p.dims)["s"]
        address = address_layout(stride, slots)
        bases = tuple(
            address.const({"slot": main if small else 0, "side": side}).as_bits() for side in range(2)
        )
        return cls(
            most=most,
            partition=partition,
            partitions=partitions,
            places=p.cores + 1,
            slots=slots,
            stride=stride,
            linear=linear,
            banks=main + 2 * (p.levels - 1),
            bases=bases,
            burst=min(BURST, stride),
            port=MemoryPort(p.lanes * record.size, address.size),
        )


def address_layout(stride: int, slots: int) -> data.StructLayout:
    """The address of a word: which one of an array it is, which array, and whose."""
    return data.StructLayout({"word": range(stride), "slot": range(slots), "side": 1})


def _power_of_two(least: int) -> int:
    return 1 << (least - 1).bit_length()


#: Whether tuples are inserted, whether they probe, and whether main arrays are answered with ranges.
MODE_LAYOUT = data.StructLayout({"insert": 1, "probe": 1, "ranges": 1})
DEFAULT_MODE = {"insert": 1, "probe": 1, "ranges": 0}
#: Ranges tell their subwindow in the bits of a query's number.
MOST_WITH_RANGES = 1 << QUERY_WIDTH


class Then(enum.Enum, shape=2):
    """What follows an episode."""

    COLLECT = 0
    SPEAK = 1  # a mark
    CLEAR = 2  # the windows are emptied
    OBEY = 3  # a command is carried out


class BiSort(wiring.Component):
    """The joiner behind the socket, with a memory port; windows hold at least `cores * segment` tuples.

    There are `cores` subwindows of `segment` tuples, and one more that fills up while the oldest waits to be
    dropped whole: which tuples still meet is for the dimensions to say. A word of memory has `lanes` records,
    a batch up to `buffer` tuples.

    Tuples are taken one per cycle between episodes. An episode of b new tuples of one stream, with n tuples
    in the other's window and m in the newest subwindow of their own, takes about b cycles and those of
    `Sorter` to sort, the words of n that `Search` reads, one for each further word that may match and for
    each pair. The merge, of `m / lanes` cycles, goes on while tuples are taken and the next ones probe; of a
    batch that is more than half an insertion buffer, only the newest subwindow of n waits for it.

    With `levels`, the newest subwindow has small arrays beside the main one, which are probed behind it.
    """

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        self._geometry = geometry = Geometry.of(parameters)
        socket = Socket(parameters.dims, parameters.cores)
        super().__init__({**socket.members, "memory": Out(geometry.port)})

    def elaborate(self, platform):
        m = Module()
        p, g = self._parameters, self._geometry
        dims, lanes, address_width = p.dims, p.lanes, g.port.address_width
        records = record_layouts(dims)
        # Records of both streams have key, id and size in common, and that is all that sorting looks at.
        record = records["s"]

        buffers, rings, probings, linears = [], [], [], []
        for name in SIDES:
            # Room for what is merged, and for the batch behind it.
            buffer = m.submodules[f"buffer_{name}"] = BatchBuffer(record, lanes, 2 * p.buffer)
            ring = m.submodules[f"subwindows_{name}"] = Subwindows(g.places, g.most, dims[0].width)
            probing = m.submodules[f"probing_{name}"] = Probing(
                dims,
                name,
                lanes,
                partition=g.partition,
                partitions=g.partitions,
                banks=g.banks,
                batch=p.buffer,
                address_width=address_width,
                ahead=AHEAD * g.burst,
            )
            linear = m.submodules[f"linear_{name}"] = Materialiser(
                dims,
                name,
                lanes,
                capacity=2 * p.buffer + lanes - 1,
                address_width=len(buffer.read.p.address),
                ahead=2,
            )
            for parts, part in zip((buffers, rings, probings, linears), (buffer, ring, probing, linear)):
                parts.append(part)
        m.submodules.packer = packer = FlitPacker(record, lanes)
        m.submodules.sorter = sorter = Sorter(record, lanes, p.buffer)
        m.submodules.insertion = insertion = LeveledInsertion(
            record,
            lanes,
            records=g.most,
            batch=g.linear + 1,
            partition=g.partition,
            address_width=address_width,
            levels=p.levels,
            bases=g.bases,
            burst=g.burst,
            ahead=AHEAD * g.burst,
        )
        # The sorter is free again when all of its run is here.
        flits = sorter.output.payload.shape()
        m.submodules.run = run = Queue(flits, p.buffer // lanes)
        m.submodules.evictions = evictions = Evictions(
            record, lanes, g.most, address_width=address_width, burst=g.burst
        )
        wiring.connect(m, packer.output, sorter.input)

        # The stream whose turn it is, 0 for R, and the opposite one.
        side = Signal()
        age = Signal(range(g.places + 1))  # of the opposite subwindow that is probed, 0 for the oldest
        level = Signal(range(p.levels))  # behind all of them, of the small array that is probed
        number = Signal(range(g.places + 1))  # of the own subwindow that is looked at
        own, met = Signal(rings[0].shown.shape()), Signal(rings[0].shown.shape())
        used, met_used, full = Signal.like(rings[0].used), Signal.like(rings[0].used), Signal()
        count, members, met_members = (Signal.like(buffers[0].count) for _ in range(3))
        met_offset = Signal.like(buffers[0].offset)
        feed, leave, settle, drop, create, expire, clear = (Signal() for _ in range(7))
        items = Signal.like(buffers[0].items.payload)
        items_valid, items_ready = Signal(), Signal()
        with m.Switch(side):
            for k, (buffer, ring) in enumerate(zip(buffers, rings)):
                with m.Case(k):
                    m.d.comb += [
                        *(own.eq(ring.shown), used.eq(ring.used), full.eq(ring.full)),
                        *(met.eq(rings[1 - k].shown), met_used.eq(rings[1 - k].used)),
                        *(count.eq(buffer.count), members.eq(buffer.members)),
                        *(met_members.eq(buffers[1 - k].searched), met_offset.eq(buffers[1 - k].offset)),
                        *(items.eq(buffer.items.p), items_valid.eq(buffer.items.valid)),
                        *(buffer.items.ready.eq(items_ready), buffer.feed.eq(feed)),
                        *(buffer.settle.eq(settle), buffer.drop.eq(drop), buffer.leave.eq(leave)),
                        *(ring.create.eq(create), ring.expire.eq(expire)),
                    ]

        # What is merged in the background, and whether its end may take effect.
        job = Signal(insertion.commands.payload.shape())
        busy, changing, begin, obeying = (Signal() for _ in range(4))
        answers = insertion.answers
        m.d.comb += [
            insertion.commands.p.eq(job),
            insertion.commands.valid.eq(busy),
            answers.ready.eq(changing),
        ]
        with m.If(begin):
            m.d.sync += busy.eq(1)
        with m.If(answers.valid & answers.ready):
            m.d.sync += busy.eq(0)
        for k, (buffer, ring) in enumerate(zip(buffers, rings)):
            made = answers.valid & answers.ready & (job.stream == k)
            m.d.comb += [
                ring.select.eq(Mux(side == k, number, age)),
                ring.count.eq(answers.p.count),
                ring.width.eq(answers.p.width),
                ring.update.eq(made & answers.p.main),
                ring.clear.eq(clear),
                buffer.all.eq(leave),
                buffer.release.eq(made),
                buffer.clear.eq(clear),
                insertion.clear[k].eq(clear),
            ]
            with m.If(made):
                m.d.comb += ring.select.eq(ring.used - 1)
        smalls, met_smalls = (Signal(insertion.smalls[0].shape()) for _ in range(2))
        m.d.comb += [
            smalls.eq(Mux(side, insertion.smalls[1], insertion.smalls[0])),
            met_smalls.eq(Mux(side, insertion.smalls[0], insertion.smalls[1])),
        ]
        small_count = Signal(range(g.most + 1))
        m.d.comb += small_count.eq(sum(small.count for small in smalls))

        def array(of: Value, slot: Value) -> Value:
            """The address of an array's first word."""
            first = Signal(address_layout(g.stride, g.slots))
            m.d.comb += [first.slot.eq(slot), first.side.eq(of)]
            return first.as_value()

        # What is done with the tuples of each stream.
        modes = [Signal(MODE_LAYOUT, init=DEFAULT_MODE, name=f"mode_{name}") for name in SIDES]
        mode = Signal(MODE_LAYOUT)
        m.d.comb += mode.eq(Mux(side, modes[1], modes[0]))

        # Sorted runs go to whom they are for.
        merging, hollow = Signal(), Signal()
        flit = run.input.p  # what is merged next: of the sorter, or a run of none
        m.d.comb += [
            flit.eq(sorter.output.payload),
            run.input.valid.eq(sorter.output.valid & merging | hollow),
            evictions.command.p.address.eq(array(side, own.slot)),
            evictions.command.p.count.eq(own.count),
        ]
        wiring.connect(m, run.output, insertion.batch)
        with m.If(hollow):
            m.d.comb += [flit.count.eq(0), flit.last.eq(1)]
        with m.If(merging):
            m.d.comb += sorter.output.ready.eq(run.input.ready)
        spares = [array(k, ring.spare) for k, ring in enumerate(rings)]
        stored = Signal.like(small_count)  # in the newest subwindow
        fits, nothing = Signal(), Signal()  # what waits, in it; nothing waits
        with m.If(begin):
            m.d.sync += [
                job.stream.eq(side),
                job.main.address.eq(array(side, own.slot)),
                job.main.count.eq(own.count),
                job.target.eq(Mux(side, spares[1], spares[0])),
                job.batch.eq(count),
                # A subwindow that is full is one array.
                job.whole.eq(obeying | (stored + count >= p.segment)),
            ]

        # What is probed: a main array, and behind all of them small ones. The index is kept where the other
        # stream probes.
        main = age != met_used
        small = Signal(met_smalls.shape().elem_shape)
        for k in range(p.levels - 1):
            with m.If(level == k):
                m.d.comb += small.eq(met_smalls[k])
        probed_count = Mux(main, met.count, small.count)
        index, into = insertion.index, insertion.into
        m.d.comb += index.ready.eq(1)
        for k, probing in enumerate(probings):
            batch, searched_array = probing.batch.payload, probing.command.p.array
            m.d.comb += [
                probing.batch.valid.eq(sorter.output.valid & ~merging & (side == k)),
                *(batch.count.eq(sorter.output.p.count), batch.last.eq(sorter.output.p.last)),
                batch.records.as_value().eq(sorter.output.p.records),
                searched_array.address.eq(Mux(main, array(1 - k, met.slot), small.address)),
                searched_array.count.eq(probed_count),
                searched_array.bank.eq(Mux(main, met.slot, p.cores + 2 + small.number)),
                searched_array.width.eq(Mux(main, met.width, small.width)),
                # Positions in small arrays mean nothing to others.
                probing.command.p.pairs.eq(~(modes[k].ranges & main)),
                probing.index.p.bank.eq(Mux(into.main, rings[1 - k].spare, p.cores + 2 + into.number)),
                probing.index.p.entry.eq(index.p.entry),
                probing.index.p.key.eq(index.p.key),
                probing.index.valid.eq(index.valid & (job.stream != k)),
            ]
            with m.If(~merging & (side == k)):
                m.d.comb += sorter.output.ready.eq(probing.batch.ready)

        # Linear search: every new tuple meets all members of the opposite buffer.
        closing = Signal()
        searching = Signal()
        for k, (name, linear) in enumerate(zip(SIDES, linears)):
            rows = buffers[1 - k]
            wiring.connect(m, linear.memory.read, rows.read)
            wiring.connect(m, rows.words, linear.memory.data)
            candidates, probe = linear.candidates, linear.candidates.p.probe
            fields = data.View(records[name], items.record.as_value())
            behind = met_offset + met_members
            m.d.comb += [
                linear.count.eq(behind),
                *(probe[field].eq(fields[field]) for field in probe.shape().members),
                # A negated first dimension looks at what lies outside the range.
                candidates.p.start.eq(0 if dims[0].negated else met_offset),
                candidates.p.end.eq(met_offset if dims[0].negated else behind),
                candidates.p.closing.eq(closing),
                candidates.valid.eq((side == k) & (searching & items_valid | closing)),
            ]
        packing = Signal()
        searched = Signal()
        m.d.comb += [
            packer.items.p.eq(items),
            packer.items.valid.eq(items_valid & packing),
            searched.eq(Mux(side, linears[1].candidates.ready, linears[0].candidates.ready)),
            items_ready.eq(packing & packer.items.ready | searching & searched),
        ]

        # Results, in the order in which the states let them out.
        m.submodules.skid = skid = Skid(RESULT_LAYOUT)
        wiring.connect(m, skid.output, wiring.flipped(self.results))
        record_out = Signal(RESULT_LAYOUT, reset_less=True)
        probed, looked_up, ended, speaking = (Signal() for _ in range(4))
        with m.If(speaking):
            m.d.comb += [skid.input.payload.eq(record_out), skid.input.valid.eq(1)]
        for k, (probing, linear) in enumerate(zip(probings, linears)):
            results, pairs = probing.results, linear.pairs
            with m.If(probed & (side == k)):
                m.d.comb += [
                    ended.eq(results.valid & (results.p.tag == Tag.MARK)),
                    skid.input.payload.eq(results.payload),
                    skid.input.p.query.eq(Mux(results.p.tag == Tag.RANGE, age, 0)),
                    skid.input.valid.eq(results.valid & ~ended),
                    results.ready.eq(skid.input.ready | ended),
                ]
            with m.If(looked_up & (side == k)):
                m.d.comb += [
                    ended.eq(pairs.valid & pairs.p.closing),
                    skid.input.p.tag.eq(Tag.PAIR),
                    skid.input.p.body.pair.eq(pairs.p.pair),
                    skid.input.valid.eq(pairs.valid & ~ended),
                    pairs.ready.eq(skid.input.ready | ended),
                ]

        # Tuples come in.
        word = self.tuples.payload
        then = Signal(Then)
        instruction = Signal(ID_WIDTH, reset_less=True)
        command = data.View(COMMAND_LAYOUT, instruction[: COMMAND_LAYOUT.size])
        horizons = [Signal(OPTION_LAYOUT, name=f"horizon_{name}") for name in SIDES]
        horizon = Signal(OPTION_LAYOUT)
        taken = Signal(2)
        m.d.comb += [horizon.eq(Mux(side, horizons[1], horizons[0])), evictions.horizon.eq(horizon.id)]
        for k, (name, buffer) in enumerate(zip(SIDES, buffers)):
            incoming = data.View(records[name], buffer.record.as_value())
            m.d.comb += [incoming[field].eq(value) for field, value in record_of(dims, name, word).items()]
            m.d.comb += buffer.store.eq(taken[k])
        # Tuples that all are inserted and probe may wait together, whichever came first; others may not.
        apart = ~Cat(own_mode[name] for own_mode in modes for name in ("insert", "probe")).all()
        new = [buffer.count != buffer.members for buffer in buffers]
        m.d.comb += number.eq(used - 1)  # shown a cycle later, as are changes of side, age and rings
        # A large batch finds what is merged sooner in the new array than one by one in the buffer.
        patient = Signal()
        m.d.sync += patient.eq(count - members > g.linear // 2)

        with m.FSM():
            with m.State("CLEAR"):
                with m.If(~rings[0].busy & ~rings[1].busy):
                    m.next = "COLLECT"
            with m.State("COLLECT"):
                m.d.comb += [self.tuples.ready.eq(1), changing.eq(1)]
                m.d.sync += [side.eq(0), then.eq(Then.COLLECT), obeying.eq(0)]
                with m.If(self.tuples.valid):
                    with m.Switch(word.kind):
                        for k, kind in enumerate((Kind.R, Kind.S)):
                            with m.Case(kind):
                                m.d.comb += taken[k].eq(~apart | ~new[1 - k])
                                m.d.comb += self.tuples.ready.eq(taken[k])
                                with m.If(~taken[k] | (buffers[k].count == p.buffer - 1)):
                                    m.next = "BEGIN"
                        for kind, own_horizon in zip((Kind.HORIZON_R, Kind.HORIZON_S), horizons):
                            with m.Case(kind):
                                m.d.sync += [own_horizon.valid.eq(1), own_horizon.id.eq(word.id)]
                        with m.Case(Kind.FLUSH):
                            m.d.sync += then.eq(Then.CLEAR)
                            m.next = "BEGIN"
                        with m.Case(Kind.MARK):
                            m.d.sync += [
                                then.eq(Then.SPEAK),
                                record_out.tag.eq(Tag.MARK),
                                record_out.body.mark.id.eq(word.id),
                            ]
                            m.next = "BEGIN"
                        with m.Case(Kind.INSTRUCTION):
                            m.d.sync += [then.eq(Then.OBEY), instruction.eq(word.id)]
                            m.next = "BEGIN"
                        with m.Default():
                            m.d.sync += [
                                record_out.tag.eq(Tag.ERROR),
                                record_out.body.error.fault.eq(Fault.UNKNOWN_KIND),
                                record_out.body.error.value.eq(word.kind),
                            ]
                            m.next = "SPEAK"
            with m.State("SPEAK"):
                m.d.comb += speaking.eq(1)
                with m.If(skid.input.ready):
                    m.next = "COLLECT"

            # An episode, first for the new tuples of R and then for those of S.
            with m.State("BEGIN"):
                m.d.comb += changing.eq(1)
                m.d.sync += [age.eq(0), level.eq(0)]
                with m.If(count == members):
                    m.next = "NEXT"
                with m.Elif(~mode.probe):
                    m.next = "SETTLE"
                with m.Elif(met_used == 0):
                    m.next = "SEARCH"
                with m.Else():
                    m.d.comb += feed.eq(1)
                    m.next = "SORT"
            with m.State("SORT"):
                m.d.comb += packing.eq(1)
                with m.If(sorter.output.valid & sorter.output.ready & sorter.output.p.last):
                    m.next = "PROBE"
            with m.State("PROBE"):
                with m.If(busy & (job.stream != side) & patient & (age + 1 == met_used)):
                    m.next = "WAIT"
                with m.Elif(~main & (level == p.levels - 1)):
                    m.next = "SEARCH"
                with m.Elif(probed_count == 0):
                    m.next = "STEP"
                with m.Else():
                    for k, probing in enumerate(probings):
                        with m.If(side == k):
                            m.d.comb += probing.command.valid.eq(1)
                            with m.If(probing.command.ready):
                                m.next = "PROBING"
            with m.State("WAIT"):
                m.d.comb += changing.eq(1)
                with m.If(~busy):
                    m.next = "PROBE"
            with m.State("PROBING"):
                m.d.comb += probed.eq(1)
                with m.If(ended):
                    m.next = "STEP"
            with m.State("STEP"):
                m.d.sync += [age.eq(age + main), level.eq(level + ~main)]
                m.next = "SHOW"
            with m.State("SHOW"):  # the next array
                m.next = "PROBE"
            with m.State("SEARCH"):
                with m.If(met_members == 0):
                    m.next = "SETTLE"
                with m.Else():
                    m.d.comb += feed.eq(1)
                    m.next = "SEARCHING"
            with m.State("SEARCHING"):
                m.d.comb += [searching.eq(1), looked_up.eq(1)]
                with m.If(items_valid & items_ready & items.last):
                    m.next = "CLOSING"
            with m.State("CLOSING"):
                m.d.comb += [closing.eq(1), looked_up.eq(1)]
                with m.If(searched):
                    m.next = "SEARCHED"
            with m.State("SEARCHED"):
                m.d.comb += looked_up.eq(1)
                with m.If(ended):
                    m.next = "SETTLE"
            with m.State("SETTLE"):
                m.d.comb += [settle.eq(mode.insert), drop.eq(~mode.insert)]
                m.next = "NEXT"
                with m.If(mode.insert & (count > g.linear)):
                    m.next = "WEIGH"

            # A buffer of more than a linear search should meet goes into the newest subwindow.
            with m.State("WEIGH"):
                m.d.comb += changing.eq(1)
                with m.If(~busy):
                    m.next = "WEIGHED"
            with m.State("WEIGHED"):
                m.d.sync += stored.eq(own.count + small_count)
                m.next = "JUDGE"
            with m.State("JUDGE"):
                m.d.sync += [fits.eq((used != 0) & (stored + count <= g.most)), nothing.eq(count == 0)]
                m.next = "PLACE"
            with m.State("PLACE"):
                m.d.comb += number.eq(0)  # `own` is the newest still, and the oldest in EXPIRE
                with m.If(fits):
                    m.d.comb += [begin.eq(1), leave.eq(1), feed.eq(~nothing), hollow.eq(nothing)]
                    m.next = "MERGE"
                    with m.If(hollow):
                        m.next = "HEED"
                with m.Elif(full):
                    m.next = "EXPIRE"
                with m.Else():
                    m.next = "CREATE"
            with m.State("EXPIRE"):
                m.d.comb += [number.eq(0), evictions.command.valid.eq(horizon.valid)]
                with m.If(~horizon.valid | evictions.command.ready):
                    m.d.comb += expire.eq(1)
                    m.next = "CREATE"
                    with m.If(obeying & (command.command == Command.EXPIRE)):
                        m.next = "COLLECT"
            with m.State("CREATE"):
                m.d.comb += [number.eq(used), create.eq(1)]
                m.next = "WEIGH"
            with m.State("MERGE"):
                m.d.comb += [packing.eq(1), merging.eq(1)]
                with m.If(sorter.output.valid & sorter.output.ready & sorter.output.p.last):
                    m.next = "NEXT"
                    with m.If(obeying):
                        m.next = "HEED"
            with m.State("NEXT"):
                m.d.comb += changing.eq(1)
                m.d.sync += side.eq(1)
                m.next = "BEGIN"
                with m.If(side):
                    m.next = "COLLECT"
                    with m.If(then == Then.SPEAK):
                        m.next = "SPEAK"
                    with m.Elif((then == Then.CLEAR) & busy):
                        m.next = "NEXT"
                    with m.Elif(then == Then.CLEAR):
                        m.d.comb += clear.eq(1)
                        m.d.sync += [own_horizon.valid.eq(0) for own_horizon in horizons]
                        m.d.sync += [own_mode.eq(own_mode.shape().const(DEFAULT_MODE)) for own_mode in modes]
                        m.next = "CLEAR"
                    with m.Elif(then == Then.OBEY):
                        m.d.sync += [side.eq(command.side), obeying.eq(1)]
                        m.next = "HEED"

            # A command, when all tuples before it are where they belong.
            with m.State("HEED"):  # until the newest of its stream is shown
                m.next = "OBEY"
            with m.State("OBEY"):
                m.d.comb += [changing.eq(1), number.eq(0)]  # `own` is the newest still, and the oldest then
                m.next = "COLLECT"
                refused, waits = Signal(), Signal()
                m.d.comb += waits.eq((count != 0) | (small_count != 0))
                with m.If(busy & (command.command != Command.TUPLES)):
                    m.next = "HEED"
                with m.Else(), m.Switch(command.command):
                    with m.Case(Command.TUPLES):
                        m.d.comb += refused.eq(command.ranges if p.cores >= MOST_WITH_RANGES else 0)
                        for k, own_mode in enumerate(modes):
                            with m.If((side == k) & ~refused):
                                m.d.sync += [
                                    own_mode.insert.eq(command.insert),
                                    own_mode.probe.eq(command.probe),
                                    own_mode.ranges.eq(command.ranges),
                                ]
                    with m.Case(Command.CREATE):
                        # What waits belongs to the subwindow that was the newest until now.
                        with m.If(waits):
                            m.next = "WEIGH"
                        with m.Else():
                            m.d.comb += [refused.eq(full), number.eq(used), create.eq(~full)]
                    with m.Case(Command.EXPIRE):
                        m.d.comb += refused.eq(used == 0)
                        m.next = "EXPIRE"
                        # What waits leaves with the newest subwindow: it is counted in its array.
                        with m.If((used == 1) & waits):
                            m.next = "WEIGH"
                    with m.Case(Command.STATUS):
                        status = record_out.body.status
                        m.d.sync += [
                            record_out.tag.eq(Tag.STATUS),
                            status.side.eq(side),
                            status.subwindows.eq(used),
                            status.newest_full.eq((used != 0) & (own.count >= p.segment)),
                            status.newest.eq(Mux(used != 0, own.count, 0)),
                            status.waiting.eq(count + small_count),
                        ]
                        m.next = "OLDEST"
                with m.If(refused):
                    m.d.sync += [
                        record_out.tag.eq(Tag.ERROR),
                        record_out.body.error.fault.eq(Fault.ILLEGAL_INSTRUCTION),
                        record_out.body.error.value.eq(instruction),
                    ]
                    m.next = "SPEAK"
            with m.State("OLDEST"):
                m.d.sync += record_out.body.status.oldest_empty.eq((used == 0) | (own.count == 0))
                m.next = "SPEAK"

        compared = self._share_memory(m, side, probings, insertion, evictions)
        for linear in linears:
            compared |= linear.memory.data.valid & linear.memory.data.ready
        counters = self.counters
        found = skid.input.valid & skid.input.ready & (skid.input.p.tag == Tag.PAIR)
        rows = Signal(range(p.cores))  # words that were compared and are not a step yet
        last_row = rows == p.cores - 1
        with m.If(compared):
            m.d.sync += [rows.eq(Mux(last_row, 0, rows + 1)), counters.steps.eq(counters.steps + last_row)]
        m.d.sync += [
            counters.tuples.eq(counters.tuples + taken.any()),
            counters.pairs.eq(counters.pairs + found),
            counters.stalls.eq(counters.stalls + (self.results.valid & ~self.results.ready)),
            counters.live_evictions.eq(counters.live_evictions + evictions.lost),
        ]
        where = Mux(looked_up | (age >= p.cores), p.cores - 1, age)
        m.d.comb += self.activity.eq(found << where)
        return m

    def _share_memory(self, m: Module, side: Value, probings, insertion, evictions) -> Value:
        """Lets all readers use the memory port; tells when a word comes that is compared."""
        port, burst = self._geometry.port, self._geometry.burst
        readers = 4
        runs = readers - 1 + self._parameters.levels  # an insertion reads one for each level
        m.submodules.share = share = ReadShare(port, readers, outstanding=runs * AHEAD)
        wiring.connect(m, insertion.memory.read, share.reads[0])
        wiring.connect(m, share.words[0], insertion.memory.data)
        wiring.connect(m, evictions.read, share.reads[1])
        wiring.connect(m, share.words[1], evictions.words)
        compared = 0
        # Words of `gather` are needed before those of `search` are taken: neither may wait behind the other.
        for number, name in enumerate(("search", "gather"), 2):
            queue = m.submodules[name] = ReadQueue(port, burst=burst, ahead=AHEAD * burst)
            wiring.connect(m, queue.requests, share.reads[number])
            wiring.connect(m, share.words[number], queue.words)
            for k, probing in enumerate(probings):
                user = getattr(probing, name)
                m.d.comb += user.data.payload.eq(queue.data.payload)
                with m.If(side == k):
                    m.d.comb += [
                        queue.read.payload.eq(user.read.payload),
                        queue.read.valid.eq(user.read.valid),
                        user.read.ready.eq(queue.read.ready),
                        user.data.valid.eq(queue.data.valid),
                        queue.data.ready.eq(user.data.ready),
                    ]
            compared |= queue.words.valid & queue.words.ready
        wiring.connect(m, share.read, wiring.flipped(self.memory.read))
        wiring.connect(m, wiring.flipped(self.memory.data), share.data)
        wiring.connect(m, insertion.memory.write, wiring.flipped(self.memory.write))
        wiring.connect(m, insertion.memory.written, wiring.flipped(self.memory.written))
        m.d.comb += insertion.memory.done.eq(self.memory.done)
        return compared
