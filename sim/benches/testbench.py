"""The test bench around a joiner: a source, a sink, and the rules of both streams.

::

    source --> tuples  [ joiner ]  results --> sink
    (gaps)             counters             (refusals)

Everything random comes from one printed seed.
"""

import os
from collections import Counter
from dataclasses import dataclass, field

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge

from hw.bisort import Geometry
from hw.dealing import Dealer
from hw.dimension import Dimension, Test
from hw.joiner import memory_port
from hw.parameters import Parameters
from hw.socket import COUNTERS_LAYOUT, RESULT_LAYOUT, Kind, Tag, tuple_layout
from hw.words import WORD, Results, pack_boxes, pack_control, pack_points, unpack, unpack_results, word_count
from sim.oracle import Windows, matcher, three_steps

from .memory import Memory

CLOCK_NANOSECONDS = 10
#: Cycles that a small batch may take to be sorted, to probe and to be merged, for each place in the windows.
EPISODE = 100


@dataclass(frozen=True)
class Stalls:
    """How often a stream waits: the chance of a gap before a word, and of a refused result."""

    source: float = 0.0
    sink: float = 0.0


STALLS = {
    "none": Stalls(),
    "source": Stalls(source=0.6),
    "sink": Stalls(sink=0.6),
    "both": Stalls(source=0.4, sink=0.5),
}


@dataclass
class Traffic:
    """What went in and out: the cycle of each transfer, and the results."""

    taken: list[int] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    words: list[int] = field(default_factory=list)

    @property
    def results(self) -> Results:
        """The results, unpacked."""
        return unpack_results(_rows(self.words, word_count(RESULT_LAYOUT)))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The pairs, in the order in which they came out."""
        results = self.results
        chosen = results.tag == Tag.PAIR.value
        return list(zip(results.r_id[chosen].tolist(), results.s_id[chosen].tolist()))


@dataclass
class Streams:
    """Random R and S tuples in arrival order, as codes and as words."""

    is_s: np.ndarray
    points: list[np.ndarray]
    lo: list[np.ndarray]
    hi: list[np.ndarray]
    words: np.ndarray
    dims: tuple[Dimension, ...]

    def pairs(self, window: int) -> list[tuple[int, int]]:
        """What the oracle finds with windows of so many rows, sorted."""
        return sorted(self.found(window, len(self.is_s)))

    def found(self, window: int, count: int) -> list[tuple[int, int]]:
        """What the oracle finds among the first `count` tuples."""
        matches = matcher(self.dims, self.points, self.lo, self.hi)
        times = np.zeros(count, np.int64)
        return three_steps(self.is_s[:count], times, Windows("rows", window, window), matches)


class Testbench:
    """A joiner with both streams driven."""

    def __init__(self, dut):
        self.dut = dut
        self.parameters = Parameters.from_options(*_from_environment())
        self.random = np.random.default_rng(cocotb.RANDOM_SEED)
        self.cycle = 0
        self._order = _Order(self.parameters)
        self._dealer = Dealer(self.parameters)
        cocotb.log.info("seed %d", cocotb.RANDOM_SEED)

    @classmethod
    async def start(cls, dut) -> "Testbench":
        """A bench whose clock runs and whose joiner is fresh from reset."""
        bench = cls(dut)
        dut.tuples__valid.value = 0
        dut.tuples__payload.value = 0
        dut.results__ready.value = 0
        cocotb.start_soon(Clock(dut.clk, CLOCK_NANOSECONDS, unit="ns").start())
        if port := memory_port(bench.parameters):
            cocotb.start_soon(Memory(dut, port, bench.random).serve())
        await bench.reset()
        return bench

    async def reset(self) -> None:
        """Resets the joiner."""
        self._order = _Order(self.parameters)
        self._dealer = Dealer(self.parameters)
        self.dut.rst.value = 1
        await ClockCycles(self.dut.clk, 2)
        self.dut.rst.value = 0
        await RisingEdge(self.dut.clk)

    @property
    def depth(self) -> int:
        """How many cycles the comparators need for a tuple, or a batch at most for each of its tuples."""
        p = self.parameters
        return EPISODE if p.architecture == "bisort" else p.segment // p.lanes

    def check(self, pairs: list[tuple[int, int]], *streams: Streams) -> None:
        """Checks that each pair within the windows is there once, and none beyond what they hold at most."""
        least, most = (
            Counter(pair for stream in streams for pair in stream.pairs(window))
            for window in (self.parameters.capacity, self.parameters.most)
        )
        found = Counter(pairs)
        assert found >= least and found <= most

    def evicted(self, is_s: np.ndarray) -> list[int]:
        """How many tuples of R and S leave full windows while such tuples come, and then a flush."""
        p = self.parameters
        if p.architecture != "bisort":
            return [max(0, int((is_s == side).sum()) - p.windows[side]) for side in (0, 1)]
        g = Geometry.of(p)
        waiting, rings, gone = [0, 0], [[], []], [0, 0]
        for side in [*is_s.astype(int).tolist(), None]:
            if side is not None:
                waiting[side] += 1
                if waiting[side] < p.buffer:
                    continue
            for own, ring in enumerate(rings):
                if waiting[own] <= g.linear:
                    continue
                if not ring or ring[-1] + waiting[own] > g.most:
                    if len(ring) == p.cores + 1:
                        gone[own] += ring.pop(0)
                    ring.append(0)
                ring[-1] += waiting[own]
                waiting[own] = 0
        return gone

    def points(self, count: int) -> np.ndarray:
        """R tuples that all stand at 1, numbered from 0."""
        dims = self.parameters.dims
        return pack_points(dims, np.arange(count), [np.ones(count, np.uint64)] * len(dims))

    def boxes(self, match: np.ndarray) -> np.ndarray:
        """S tuples of which those match the points that are to `match`, numbered from 0."""
        low, high = [], []
        for dim in self.parameters.dims:
            around = match != dim.negated
            low.append(np.where(around, 1, 2).astype(np.uint64))
            high.append(np.where(around, 1, 0 if dim.test is Test.AT_MOST else 2).astype(np.uint64))
        return pack_boxes(self.parameters.dims, np.arange(len(match)), low, high)

    def streams(
        self, count: int, *, span: int | None = None, width: int = 2, chance_s: float = 0.5
    ) -> Streams:
        """Random tuples whose codes lie below `span`, and boxes up to `width` wide.

        The usual span makes about one pair in ten match, however many dimensions there are.
        """
        dims = self.parameters.dims
        span = span or max(3, 12 // len(dims))
        is_s = self.random.random(count) < chance_s
        r_count, s_count = int((~is_s).sum()), int(is_s.sum())

        def codes(number):
            return [self.random.integers(0, span, number).astype(np.uint64) for _ in dims]

        points, lo = codes(r_count), codes(s_count)
        hi = [low + self.random.integers(0, width + 1, s_count).astype(np.uint64) for low in lo]
        words = np.empty((count, self._token(Kind.FLUSH).shape[1]), np.uint32)
        words[~is_s] = pack_points(dims, np.arange(r_count), points)
        words[is_s] = pack_boxes(dims, np.arange(s_count), lo, hi)
        return Streams(is_s, points, lo, hi, words, dims)

    def _token(self, kind: Kind, id: int = 0) -> np.ndarray:
        return pack_control(self.parameters.dims, kind, id)

    def flush(self, mark: int = 0) -> np.ndarray:
        """A flush, and a mark that says that all is out."""
        return np.concatenate([self._token(Kind.FLUSH), self.mark(mark)])

    def mark(self, id: int) -> np.ndarray:
        """A mark."""
        return self._token(Kind.MARK, id)

    def horizon(self, kind: Kind, id: int) -> np.ndarray:
        """A horizon."""
        return self._token(kind, id)

    async def exchange(
        self,
        words: np.ndarray,
        *,
        until: int | None = 0,
        stalls: Stalls = STALLS["none"],
        refuse: int = 0,
    ) -> Traffic:
        """Sends all words, and takes results until the mark `until` has come (None: until all are sent).

        Refuses all results in the first `refuse` cycles. When nothing moves for longer than the
        joiner may take, the bench fails.
        """
        p, dut = self.parameters, self.dut
        # Every tuple scans, every result leaves, and each does so only between stalls.
        patience = 200 + refuse + 4 * self.depth * (p.capacity + 8)
        # Nor may it go on for ever: each tuple gives at most a window of pairs, each result stalls a little.
        limit = self.cycle + 20 * (len(words) + 1) * (patience + p.capacity)
        traffic = Traffic()
        pending = [_integer(row) for row in self._dealer.deal(words)]
        pending.reverse()
        offered = held = None
        idle = 0
        refuse += self.cycle
        while True:
            if offered is None and pending and self.random.random() >= stalls.source:
                offered = pending.pop()
                dut.tuples__payload.value = offered
            dut.tuples__valid.value = int(offered is not None)
            ready = int(self.cycle >= refuse and self.random.random() >= stalls.sink)
            dut.results__ready.value = ready
            await RisingEdge(dut.clk)
            idle += 1
            if offered is not None and int(dut.tuples__ready.value):
                traffic.taken.append(self.cycle)
                offered = None
                idle = 0
            valid = int(dut.results__valid.value)
            payload = dut.results__payload.value.to_unsigned() if valid else None
            assert held is None or payload == held, "a result changed or vanished before it was taken"
            held = payload if valid and not ready else None
            if valid and ready:
                traffic.given.append(self.cycle)
                traffic.words.append(payload)
                idle = 0
                if mark_of(payload) == until:
                    until = None
            self.cycle += 1
            if offered is None and not pending and until is None:
                break
            assert idle < patience and self.cycle < limit, (
                f"stuck for {idle} cycles: {len(traffic.taken)} of {len(words)} words taken, "
                f"{len(traffic.words)} results, waiting for mark {until}"
            )
        dut.tuples__valid.value = 0
        dut.results__ready.value = 0
        results = _rows(traffic.words, word_count(RESULT_LAYOUT))
        traffic.words = [_integer(row) for row in self._dealer.restore(results)]
        self._order.check(words, traffic.results)
        return traffic

    async def push(self, words: np.ndarray, *, cycles: int) -> None:
        """Sends words for some cycles, and takes no results."""
        dut = self.dut
        for word in self._dealer.deal(words):
            dut.tuples__payload.value = _integer(word)
            dut.tuples__valid.value = 1
            taken = False
            while not taken and cycles:
                await RisingEdge(dut.clk)
                taken = bool(int(dut.tuples__ready.value))
                cycles -= 1
                self.cycle += 1
        dut.tuples__valid.value = 0

    async def ends_empty(self) -> None:
        """Checks that nothing more comes out."""
        traffic = await self.exchange(self.flush(4711), until=4711)
        results = traffic.results
        assert results.tag.tolist() == [Tag.MARK.value], "results were left inside"
        assert results.mark_id.tolist() == [4711]

    def counters(self) -> dict[str, int]:
        """The joiner's counters."""
        words = _rows([self.dut.counters.value.to_unsigned()], word_count(COUNTERS_LAYOUT))
        return {name: int(unpack(COUNTERS_LAYOUT, words, name)[0]) for name in COUNTERS_LAYOUT.members}


class _Order:
    """Holds a joiner to the order that it promises, from mark to mark."""

    def __init__(self, parameters: Parameters):
        self._parameters = parameters
        self._tuples: list[tuple[bool, int]] = []  # since the last flush
        self._flushed = False
        self._words: list[tuple[Kind, int]] = []  # up to the next mark that has not come out
        self._pairs: list[tuple[int, int]] = []

    def check(self, words: np.ndarray, results: Results) -> None:
        """Takes note of what went in and came out, and checks what lies before a mark."""
        p = self._parameters
        if p.order is None or not p.order.every:
            return
        layout = tuple_layout(p.dims)
        self._words += zip(*(unpack(layout, words, name).tolist() for name in ("kind", "id")))
        for tag, *pair in zip(*(column.tolist() for column in (results.tag, results.r_id, results.s_id))):
            if tag == Tag.PAIR.value:
                self._pairs.append(tuple(pair))
            elif tag == Tag.MARK.value:
                self._check_until_mark()

    def _check_until_mark(self) -> None:
        p = self._parameters
        kinds = [kind for kind, _ in self._words]
        end = kinds.index(Kind.MARK.value)
        for kind, id in self._words[:end]:
            if kind in (Kind.R.value, Kind.S.value):
                if self._flushed:
                    self._tuples, self._flushed = [], False
                self._tuples.append((kind == Kind.S.value, id))
            self._flushed |= kind == Kind.FLUSH.value
        is_s = np.array([of_s for of_s, _ in self._tuples], bool)
        r, s = (
            {id: number for number, id in enumerate(id for of_s, id in self._tuples if of_s == side)}
            for side in (False, True)
        )
        pairs = np.array([(r[r_id], s[s_id]) for r_id, s_id in self._pairs], np.int64).reshape(-1, 2)
        broken = p.order.first_broken(is_s, pairs[:, 0], pairs[:, 1], p.cores, p.segment)
        assert broken is None, f"{p.order} is broken by pair {broken}: {self._pairs[broken]}"
        self._words, self._pairs = self._words[end + 1 :], []


def _from_environment() -> tuple[str, dict[str, str]]:
    architecture, _, options = os.environ["TOUCHLINE_BENCH"].partition("?")
    return architecture, dict(option.split("=") for option in options.split("&"))


def _integer(row: np.ndarray) -> int:
    return int.from_bytes(row.astype("<u4").tobytes(), "little")


def _rows(integers: list[int], words: int) -> np.ndarray:
    data = b"".join(integer.to_bytes(words * WORD // 8, "little") for integer in integers)
    return np.frombuffer(data, "<u4").reshape(-1, words)


def mark_of(payload: int) -> int | None:
    """The id of a result that is a mark."""
    result = RESULT_LAYOUT.from_bits(payload)
    return result.body.mark.id if result.tag == Tag.MARK else None
