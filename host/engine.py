"""The CPU engine: PanJoin's subwindows, batches and expiry, over points and boxes.

               R's subwindows  [ oldest | ... | newest ]  <-- insert --+
                     ^ probe                                           |
    new boxes  ------+------- x ------+------ new points --------------+
        |                             v probe
        +-- insert -->  [ newest | ... | oldest ]  S's subwindows

A batch is sorted once; its boxes probe the points kept, its points the boxes kept, and both each other. Then
subwindows that nothing can join any more are dropped whole, and what may still be joined is inserted. Every
pair is tested in all dimensions that do not hold for the whole of its subwindow, so it does not matter how
late that is.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil, prod, sqrt

import numpy as np

from .bisort import BiSort, Order, Sorted, boxes_find_points
from .choice import SAMPLE, Shares, Statistics, choose_order, choose_structure
from .columns import Layout
from .compiled import spread, stretches
from .llat import partitions
from .nested import block_pairs, relation
from .rap_table import RapTable, even_splitters
from .wib_tree import WibTree
from .window import LONGEST

#: Tuples in a task, so that threads can share a block.
CHUNK = 16384
#: Rows in a block of a batch that is longer than the windows, at least.
SHORTEST_BLOCK = 512
#: How many candidates can be tested in the time of a search.
SEARCH = 10
#: Pairs that a thread lists at a time: so few that the next ones get the same memory, and it is in the cache.
PAIRS = 2**17
#: How many subwindows a window is cut into. A probe searches each of them, but one more than that is kept,
#: which tells in structures that take more memory.
SUBWINDOWS, SUBWINDOWS_OF_TABLES = 8, 16
#: Rows that a subwindow of fixed size has room for: at least, and as a multiple of those in the one before.
SMALLEST, SLACK = 64, 1.03
#: Tuples that stand for a subwindow, and for a batch, in samples.
KEPT_SAMPLE, NEW_SAMPLE = 512, 4096
#: Tuples up to which one thread has probed or sorted before another has begun.
ALONE = 8192
#: Tuples after which shares are measured again at the latest, if a subwindow has begun since.
MEASURED_FOR = 2**15
#: How much the newest batch counts in the average of batch sizes.
RECENT = 0.1

#: Row numbers of points and of boxes, and how many there are (the numbers are left out when only counting).
Found = tuple[np.ndarray, np.ndarray, int]


@dataclass(frozen=True)
class Batch:
    """Points or boxes in arrival order."""

    columns: np.ndarray  #: uint64[column, row], see `Layout`
    numbers: np.ndarray  #: uint32, row numbers less `base`
    base: int
    place: np.ndarray  #: int64, in the arrival order of both streams
    age: np.ndarray  #: int64, what the window counts in: event time, or the number in the stream

    def __len__(self) -> int:
        return self.columns.shape[1]


@dataclass
class Subwindow:
    """Rows that came one after another, and leave together."""

    structure: BiSort | RapTable | WibTree
    name: str
    why: str
    begin: int  #: the age from which on rows belong to it
    newest: int  #: the age of its newest row
    rows: int = 0
    sample: np.ndarray | None = None  #: columns of some of its rows, each as likely as any other
    drift: float = 0.0  #: the share of sampled keys that lie beyond those of the subwindow before

    def sample_also(self, new: np.ndarray, random: np.random.Generator) -> None:
        """Lets rows that were just added stand in the sample by their share of all rows."""
        share = KEPT_SAMPLE * new.shape[1] / max(self.rows, KEPT_SAMPLE)
        count = min(new.shape[1], int(share + random.random()))
        parts = [new.take(random.integers(0, new.shape[1], count), axis=1) if count < new.shape[1] else new]
        if self.sample is not None:
            if not count:
                return
            room = KEPT_SAMPLE - count
            known = self.sample.shape[1]
            kept = self.sample
            parts.append(kept if known <= room else kept.take(random.integers(0, known, room), axis=1))
        self.sample = np.concatenate(parts, axis=1)


@dataclass
class Ring:
    """One stream's subwindows, oldest first."""

    boxes: bool
    span: int  #: the ages in the window
    subwindows: list[Subwindow] = field(default_factory=list)
    batch: float = 0.0  #: rows in a batch, on average
    random: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    @property
    def rows(self) -> int:
        """Rows kept."""
        return sum(sub.rows for sub in self.subwindows)

    @property
    def first(self) -> int | None:
        """The lowest number that a row kept can have."""
        return self.subwindows[0].structure.base if self.subwindows else None

    @property
    def step(self) -> int:
        """The ages in a subwindow such as the newest."""
        tables = bool(self.subwindows) and not isinstance(self.subwindows[-1].structure, BiSort)
        count = SUBWINDOWS_OF_TABLES if tables else SUBWINDOWS
        return min(max(self.span // count, 1), LONGEST // 2)

    def expire(self, limit: int) -> None:
        """Drops the subwindows in which all ages are below `limit`."""
        self.subwindows = [sub for sub in self.subwindows if sub.newest >= limit]

    def sample(self, new: Batch) -> np.ndarray:
        """Columns of some rows, kept or new, each as likely as any other."""
        kept = [sub.sample for sub in self.subwindows]
        known = sum(part.shape[1] for part in kept)
        count = min(NEW_SAMPLE, ceil(len(new) * known / self.rows) if known else NEW_SAMPLE)
        chosen = self.random.integers(0, max(len(new), 1), count if len(new) else 0)
        return np.concatenate([*kept, new.columns[:, chosen]], axis=1)


def spans(layout: Layout, points: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first point that each of some boxes can meet by the windows alone, and the one after the last.

    Points are in arrival order.
    """
    first = np.zeros(boxes.shape[1], np.int64)
    last = np.full(boxes.shape[1], points.shape[1], np.int64)
    for d in np.flatnonzero(layout.window):
        if layout.flipped[d]:
            last = np.minimum(last, points.shape[1] - np.searchsorted(points[d][::-1], boxes[d], "left"))
            continue
        first = np.maximum(first, np.searchsorted(points[d], boxes[d], "left"))
        if layout.hi[d] >= 0:
            last = np.minimum(last, np.searchsorted(points[d], boxes[layout.hi[d]], "right"))
    return first, np.maximum(first, last)


class Engine:
    """Joins batches of points and boxes with each other and with what is kept of earlier ones.

    `window` is how many ages rows of R and of S stay; `structure` one of `choice.STRUCTURES`.
    """

    def __init__(self, layout: Layout, window: tuple[int, int], structure: str, threads: int):
        self.layout, self.threads, self.structure = layout, threads, structure
        self.rings = tuple(Ring(boxes, span) for boxes, span in zip((False, True), window))
        self.order = Order(-1)  #: of the newest batch
        self.shares: Shares | None = None  #: measured with it
        self._random = np.random.default_rng(1)
        self._values = int((~layout.window).sum())
        self._stale = True
        self._seen, self._measured_until = 0, 0

    # Joining

    def process(
        self, points: Batch, boxes: Batch, limits: tuple[int, int], pairs: bool = True
    ) -> list[Found]:
        """The pairs of a batch with each other and with what is kept, in parts; then keeps the batch.

        `limits` are the ages of R and S below which no later row can join.
        """
        new = points, boxes
        self._measure(points, boxes)
        # What is kept is searched faster by a batch that is sorted as a whole, if it is the most of the work;
        # and to join a short one takes less than to find out how to cut it.
        kept = all(ring.rows > len(batch) for ring, batch in zip(self.rings[::-1], new))
        longest = max(map(len, new))
        whole = kept or longest <= 2 * SHORTEST_BLOCK
        sides = self._sides(new, [longest] * 2 if whole else self._blocks(*new))
        found = self._among(sides, pairs)
        probes = list(self._probes(sides))
        threads = self._threads(sum(last - first for _, _, first, last, _ in probes))
        found += spread(lambda meet, *probe: meet(*probe, pairs), probes, threads)
        self._keep(new, sides, limits)
        return found

    def fill(self, points: Batch, boxes: Batch) -> None:
        """Keeps a batch without joining it: for windows that begin full."""
        self._measure(points, boxes)
        sides = self._sides((points, boxes), [max(len(points), len(boxes))] * 2)
        lowest = np.iinfo(np.int64).min
        self._keep((points, boxes), sides, (lowest, lowest))

    def _keep(self, new: tuple[Batch, Batch], sides: list, limits: tuple[int, int]) -> None:
        """Drops what no later row can join, and inserts a batch."""
        for ring, batch, limit in zip(self.rings, new, limits):
            ring.expire(limit)
            if len(batch):
                ring.batch += (len(batch) - ring.batch) * (RECENT if ring.batch else 1)
        spread(self._insert, zip(self.rings, new, sides, limits), self._threads(sum(map(len, new))))

    def _threads(self, tuples: int) -> int:
        """How many threads are worth it for so many tuples."""
        return self.threads if tuples > ALONE else 1

    def join(
        self, points: Batch, boxes: Batch, pairs: bool = True, use: Callable = lambda *found: found
    ) -> list:
        """What `use` makes of the pairs within a batch, part by part; the batch is not kept.

        A part is used by the thread that has found it, while it is in its cache.
        """
        self._measure(points, boxes)
        return self._among(self._sides((points, boxes), self._blocks(points, boxes)), pairs, use)

    def _among(self, sides: list, pairs: bool, use: Callable = lambda *found: found) -> list:
        """What `use` makes of the pairs within a sorted batch."""
        (p, _, *p_places), (b, bounds, *b_places) = sides
        hi, negated = self.layout.hi, self.layout.negated
        tasks = block_pairs(
            (p.lows, p.highs, *p_places),
            (b.lows, b.highs, *b_places, bounds),
            hi,
            negated,
            self._values,
            CHUNK,
        )
        stored, probe = p.points(), (b.data, b.ids, b.base)
        probing = int((tasks[:, 2] - tasks[:, 1]).sum())
        threads = self._threads(probing)
        parts = 1 if threads == 1 else 4 * threads
        if pairs and self.shares is not None:
            blocks = max(len(p.offsets), 1)
            parts = max(parts, int(probing * len(p) / blocks * self._share() / PAIRS))
        cuts = stretches(len(tasks), parts)
        shares = ((stored, probe, hi, negated, tasks[i:j], pairs) for i, j in cuts)
        return spread(lambda *share: use(*boxes_find_points(*share)), shares, threads)

    def _share(self) -> float:
        """The share of pairs that the order lets through."""
        kept = [self.shares.kept[d] for d in (self.order.key, self.order.stripe) if d >= 0]
        return prod(map(float, kept))

    def _probes(self, sides: list) -> Iterator[tuple]:
        """What has to be probed with what: the blocks of a batch with the subwindows of the other stream."""
        hi, negated = self.layout.hi, self.layout.negated
        for ring, (run, bounds, *_) in zip(self.rings[::-1], sides):
            for part in (part for sub in ring.subwindows for part in sub.structure.parts()):
                for block in range(len(bounds) - 1):
                    new, kept = (run.lows[block], run.highs[block]), (part.lows, part.highs)
                    both = (*new, *kept) if ring.boxes else (*kept, *new)
                    wanted = relation(*both, hi, negated, 0)
                    if wanted >= 0:
                        for first in range(bounds[block], bounds[block + 1], CHUNK):
                            yield part.meet, run, first, min(first + CHUNK, int(bounds[block + 1])), wanted

    # Measuring and sorting

    def _measure(self, points: Batch, boxes: Batch) -> None:
        """Chooses the order for a batch, if that is due."""
        new = len(points) + len(boxes)
        self._seen += new
        if not (new and self._stale and self._seen > self._measured_until):
            return
        # Not more pairs than there are tuples.
        each = min(SAMPLE[1], ceil((new + sum(ring.rows for ring in self.rings)) / SAMPLE[0]))
        reach, pairs = 0, []
        if len(points) and len(boxes):
            chosen, first, width = self._reached(points, boxes)
            reach = int(width.mean())
            first, width = np.tile(first, each), np.tile(width, each)
            others = first + (width * self._random.random(len(width))).astype(np.int64)
            # Pairs within a batch count by their part in all that a box meets.
            some = np.flatnonzero(width)
            some = some[: ceil(len(some) * reach / max(reach + self.rings[0].rows, 1))]
            pairs.append((points.columns[:, others[some]], chosen[:, some % SAMPLE[0]]))
        kept = [ring.sample(batch) for ring, batch in zip(self.rings, (points, boxes))]
        if all(part.shape[1] for part in kept):
            count = SAMPLE[0] * each
            pairs.append(tuple(part[:, self._random.integers(0, part.shape[1], count)] for part in kept))
        if pairs:
            self.shares = Shares.measure(self.layout, *(np.concatenate(side, axis=1) for side in zip(*pairs)))
            block = max(2 * reach, SHORTEST_BLOCK, self.rings[0].rows // SUBWINDOWS)
            self.order = choose_order(self.layout, self.shares, kept[0], block)
            self._stale = False
            self._measured_until = min(4 * self._seen, self._seen + MEASURED_FOR)
        if self.structure == "nested":
            self.order = Order(-1)

    def _reached(self, points: Batch, boxes: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Some boxes, and the first point and how many points each of them meets by the windows alone."""
        chosen = boxes.columns[:, self._random.integers(0, len(boxes), SAMPLE[0])]
        first, last = spans(self.layout, points.columns, chosen)
        return chosen, first, last - first

    def _blocks(self, points: Batch, boxes: Batch) -> tuple[int, int]:
        """How many rows blocks of points and of boxes have, where they meet each other the most.

        A box meets whole blocks of points: long ones take few searches, short ones bring few candidates from
        outside its window.
        """
        both = len(points) and len(boxes)
        reach = int(self._reached(points, boxes)[2].mean()) if both else 0
        best = sqrt(SEARCH * reach / self._share()) if self.shares and self.order.key >= 0 else 2 * reach
        rows = max(SHORTEST_BLOCK, int(min(2 * reach, best)))
        return rows, max(SHORTEST_BLOCK, rows * len(boxes) // max(len(points), 1) // 5)

    def _sides(self, new: tuple[Batch, Batch], block: Sequence[int]) -> list[tuple]:
        """Points and boxes, `_sorted` in blocks of so many rows: threads share these, or take a side each."""
        whole = all(len(batch) <= rows for batch, rows in zip(new, block))
        return spread(self._sorted, zip(new, block), self._threads(sum(map(len, new))) if whole else 1)

    def _sorted(self, batch: Batch, rows: int) -> tuple:
        """A batch in sorted blocks, their bounds, and the places of the first and the last row of each."""
        bounds = np.array([*range(0, len(batch), max(rows, 1)), len(batch)])
        run = Sorted.build(
            batch.columns, batch.numbers, batch.base, bounds, self.order, self._threads(len(batch))
        )
        return run, bounds, batch.place[bounds[:-1]], batch.place[bounds[1:] - 1]

    # Keeping

    def _insert(self, ring: Ring, batch: Batch, side: tuple, limit: int) -> None:
        """Inserts the rows of a batch that later ones may join."""
        first = int(np.searchsorted(batch.age, limit))
        # What is left of a batch that is longer than a subwindow is one as a whole.
        whole = first < len(batch) and int(batch.age[-1]) - int(batch.age[first]) >= ring.step
        while first < len(batch):
            begin, last = int(batch.age[first]), len(batch)
            if whole or not ring.subwindows or begin - ring.subwindows[-1].begin >= ring.step:
                if not whole:
                    last = int(np.searchsorted(batch.age, min(begin + ring.step, LONGEST)))
                self._begin(ring, begin, batch, last - first)
            sub = ring.subwindows[-1]
            if not whole:
                until = min(sub.begin + ring.step, LONGEST)
                last = max(first + 1, int(np.searchsorted(batch.age, until)))
            # The first rows to come, not those with the lowest keys, go into what has no room for all.
            if room := sub.structure.capacity - sub.rows:
                last = min(last, first + room)
            run = side[0]
            if last - first < len(run) or len(run.offsets) > 1:
                columns, numbers = (
                    np.ascontiguousarray(batch.columns[:, first:last]),
                    batch.numbers[first:last],
                )
                order, bounds = ring.subwindows[-1].structure.order, np.array([0, last - first])
                run = Sorted.build(columns, numbers, batch.base, bounds, order)
            done = 0
            while True:
                sub = ring.subwindows[-1]
                before, done = done, sub.structure.insert(run, done, len(run))
                sub.rows += done - before
                sub.newest = max(sub.newest, int(batch.age[last - 1]))
                if done > before:
                    sub.sample_also(run.data[:, before:done], ring.random)
                if done == len(run):
                    break
                self._begin(ring, sub.begin, batch, len(run) - done)
            first = last

    def _begin(self, ring: Ring, begin: int, batch: Batch, rows: int) -> None:
        """Begins a subwindow for at least `rows` rows, with a structure chosen by what is known now."""
        before = ring.subwindows[-1] if ring.subwindows else None
        expected = max(rows, SMALLEST)
        if before:
            # Rows come at the rate they came at; what is full sooner is followed by something smaller.
            known = sum(sub.rows for sub in ring.subwindows if sub.begin == before.begin)
            expected = max(expected, known // 8 if begin == before.begin else int(SLACK * known))
            before.structure.seal()
            before.drift = self._drift(ring)
        structure, why = self.structure, "asked for"
        order = self.order
        if structure == "auto":
            matches = expected * self.shares.kept[order.key] if self.shares and order.key >= 0 else 0.0
            drift = before.drift if before else 0.0
            structure, why = choose_structure(
                order, Statistics(ring.batch, ring.rows + len(batch), matches, drift)
            )
        if order.key < 0:
            structure, why = (
                "nested",
                why if structure == "nested" else "no dimension narrows the window down",
            )
        first = ring.subwindows[-1].structure if before else None
        base = batch.base
        made: BiSort | RapTable | WibTree
        match structure:
            case "wib_tree":
                made = WibTree(self.layout, ring.boxes, Order(order.key), base, expected)
            case "rap_table":
                if isinstance(first, RapTable) and first.order.key == order.key:
                    splitters = first.next_splitters(expected)
                else:
                    keys = batch.columns[order.key]
                    splitters = even_splitters(int(keys.min()), int(keys.max()), partitions(expected))
                made = RapTable(self.layout, ring.boxes, Order(order.key), base, expected, splitters)
            case "nested":
                made = BiSort(self.layout, ring.boxes, Order(-1), base)
            case _:
                made = BiSort(self.layout, ring.boxes, order, base, levelled=structure == "levels")
        ring.subwindows.append(Subwindow(made, structure, why, begin, begin))
        self._stale = True

    def _drift(self, ring: Ring) -> float:
        """The share of the newest subwindow's keys that lie beyond those of the one before it."""
        if len(ring.subwindows) < 2 or self.order.key < 0:
            return 0.0
        old, new = (sub.sample[self.order.key] for sub in ring.subwindows[-2:])
        return float(((new < old.min()) | (new > old.max())).mean())

    # Telling

    @property
    def bytes(self) -> int:
        """Bytes that the subwindows take."""
        return sum(sub.structure.bytes for ring in self.rings for sub in ring.subwindows)

    @property
    def encoded_bytes(self) -> int:
        """Bytes of the codes and numbers of the rows kept."""
        return sum(ring.rows * self.layout.bytes_per(ring.boxes) for ring in self.rings)

    def explain(self) -> str:
        """What the newest batch was sorted by, what holds the windows, and why."""
        if self.shares is None:
            return f"structure {self.structure}: dimensions and structure are chosen when rows come"
        order = self.order
        lines = []
        if order.key < 0:
            lines.append("not sorted, all pairs in the windows are tested: no dimension narrows them down")
        else:
            lines.append(
                f"sorted by dimension {order.key}, which keeps {self.shares.kept[order.key]:.2%} of a sample"
            )
        if order.stripe >= 0:
            share = self.shares.kept[order.stripe]
            lines.append(
                f"in {len(order.splitters) + 1} stripes of dimension {order.stripe}, which keeps {share:.2%}"
            )
        others = [d for d in range(len(self.layout)) if d not in (order.key, order.stripe)]
        lines.append(f"tested in the kernel: dimensions {', '.join(map(str, others)) or 'none'}")
        for name, ring in zip("RS", self.rings):
            if ring.subwindows:
                newest = ring.subwindows[-1]
                lines.append(f"{name}: {len(ring.subwindows)} subwindows, newest {newest.name}: {newest.why}")
        if not any(ring.subwindows for ring in self.rings):
            lines.append(
                "one batch, in blocks as long as the windows: BI-Sort" if order.key >= 0 else "nested loops"
            )
        if self.encoded_bytes:
            lines.append(
                f"{self.bytes:,} bytes, {self.bytes / self.encoded_bytes:.2f} times the encoded windows"
            )
        return "\n".join(f"  {line}" for line in lines)
