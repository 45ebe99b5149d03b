"""Chains of OP-Blocks against their reference: every configuration alone, and random programs.

words -> [ chain, Verilated, with stalls ] -> results
  |                                              =
  +----> [ interpreter ] -------------------> records
"""

from collections import Counter

import numpy as np
import pytest

from hw.instruction import TESTS, Opcode, Part, encode
from hw.socket import Fault, Kind, Tag, tuple_layout
from hw.words import pack_boxes, pack_control, pack_instruction, pack_points, unpack, unpack_results
from sim.interpreter import Interpreter, records
from sim.library import load

from ..configurations import parameters

DEVICES = ["opblock", "opblock_serial"]
END = 4711


class Chain:
    """A chain and its reference, given the same words."""

    def __init__(self, device: str, rng: np.random.Generator):
        self.p, self.rng = parameters(device), rng
        self.dims = self.p.dims
        self.model = load(self.p).open()
        self.reference = Interpreter(self.p)
        self.parts: list[np.ndarray] = []
        self._ids = {Kind.R: 0, Kind.S: 0}
        self.tuples_sent = self.pairs = 0

    def tell(self, opcode: Opcode, block: int = 0, lo=(), hi=(), **operands) -> None:
        self.parts.append(pack_instruction(self.dims, encode(opcode, block, **operands), lo, hi))

    def clear(self) -> None:
        """Every block lets pass."""
        for block in range(self.p.cores):
            self.tell(Opcode.PASS, block)

    def token(self, kind: Kind, id: int = 0) -> None:
        self.parts.append(pack_control(self.dims, kind, id))

    def tuples(self, count: int, span: int = 6, chance_s: float = 0.5) -> None:
        """Random tuples with codes below `span` and boxes up to 2 wide."""
        for is_s in (self.rng.random(count) < chance_s).tolist():
            lo = [self.rng.integers(0, span, 1).astype(np.uint64) for _ in self.dims]
            hi = [low + self.rng.integers(0, 3, 1).astype(np.uint64) for low in lo]
            kind = Kind.S if is_s else Kind.R
            ids = np.array([self._ids[kind]])
            self._ids[kind] += 1
            self.parts.append(pack_boxes(self.dims, ids, lo, hi) if is_s else pack_points(self.dims, ids, lo))

    def join(self, blocks, products: int = 1, **operands) -> None:
        """Blocks that share the windows of a join in which every dimension is a band."""
        for position, block in enumerate(blocks):
            self.tell(Opcode.JOIN, block, products=products, **operands)
            self.tell(Opcode.SHARE, block, position=position, last=len(blocks) - 1)
            for dim in range(len(self.dims)):
                self.tell(Opcode.TERM, block, dim=dim, test=1, within=products)

    def check(self, stalls=None) -> list:
        """Runs what was collected on both; returns the records, which agree."""
        stalls = self.rng.integers(0, 200, 2).tolist() if stalls is None else stalls
        self.token(Kind.MARK, END)
        words, self.parts = np.concatenate(self.parts), []
        want = self.reference.run(words)
        marks = sum(record.tag is Tag.MARK for record in want)
        run = self.model.run(
            words,
            marks=marks,
            stall_seed=int(self.rng.integers(1 << 60)),
            stall_in=stalls[0],
            stall_out=stalls[1],
        )
        got = records(unpack_results(run.results))
        assert Counter(got) == Counter(want)
        assert run.counters["live_evictions"] == self.reference.lost
        self.tuples_sent += int((unpack(tuple_layout(self.dims), words, "kind") <= Kind.S.value).sum())
        self.pairs += count(want, Tag.PAIR)
        assert (run.counters["tuples"], run.counters["pairs"]) == (self.tuples_sent, self.pairs)
        for mark in (record for record in want if record.tag is Tag.MARK):
            before = Counter(want[: want.index(mark)])
            assert Counter(got[: got.index(mark)]) >= before, f"{mark} overtook a result"
        # What one block puts out, and what goes through the chain, keeps its order.
        for tag in (Tag.MARK, Tag.ERROR):
            assert [each for each in got if each.tag is tag] == [each for each in want if each.tag is tag]
        return want


@pytest.fixture(params=DEVICES)
def chain(request, rng):
    made = Chain(request.param, rng)
    yield made
    made.model.close()


def count(found, tag: Tag, query: int | None = None) -> int:
    return sum(each.tag is tag and query in (None, each.query) for each in found)


def test_after_reset_all_blocks_join(chain):
    chain.tuples(6 * chain.p.capacity)
    assert count(chain.check(), Tag.PAIR, 0) > 10


def test_pass_lets_everything_pass(chain):
    chain.clear()
    chain.tuples(3 * chain.p.capacity)
    assert count(chain.check(), Tag.PAIR) == 0


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.value)
@pytest.mark.parametrize("negated", [0, 1])
@pytest.mark.parametrize("side", [0, 1])
def test_select(chain, side, test, negated):
    """What fails the test is dropped; the other side goes on as it was."""
    chain.clear()
    # Without a COMPOSE nothing tells what passes, so the last block joins with all there is.
    chain.tell(Opcode.SELECT, 0, lo=[2] * len(chain.dims), hi=[4] * len(chain.dims), side=side, products=1)
    chain.tell(Opcode.TERM, 0, dim=1, test=TESTS.index(test), negated=negated, within=1)
    chain.tell(Opcode.JOIN, chain.p.cores - 1, products=1)
    chain.tuples(60)
    assert count(chain.check(), Tag.PAIR) > 0


def test_select_keeps_or_moves(chain):
    """With `keep`, query 1 sees some tuples and query 2 all; without it, those that fail are gone."""
    for keep in (0, 1):
        chain.clear()
        chain.token(Kind.FLUSH)
        constants = [2] * len(chain.dims), [9] * len(chain.dims)
        chain.tell(Opcode.SELECT, 0, *constants, target=5, keep=keep, products=1)
        chain.tell(Opcode.TERM, 0, dim=0, test=1, within=1)
        chain.join([1], r_channel=5, query=1)
        chain.join([2], r_channel=0, query=2)
        chain.tuples(200, span=4)
        found = chain.check()
        assert count(found, Tag.PAIR, 1) > 0
        assert (count(found, Tag.PAIR, 2) > count(found, Tag.PAIR, 1)) == bool(keep)


def test_project_reorders_and_drops(chain):
    """A join on dimension 0 of tuples whose dimension 0 was dimension 2, and whose 1 is gone."""
    chain.clear()
    for block, side in enumerate((0, 1)):
        chain.tell(Opcode.PROJECT, block, side=side, target=0)
        for dim, source in enumerate((2, 0, 1)):
            chain.tell(Opcode.ROUTE, block, dim=dim, source=source, drop=dim == 1)
    chain.tell(Opcode.JOIN, 2, products=1, query=9)
    for dim in (0, 1):
        chain.tell(Opcode.TERM, 2, dim=dim, test=1, within=1)
    chain.tuples(100)
    assert count(chain.check(), Tag.PAIR, 9) > 0


def test_or_of_ands(chain):
    chain.clear()
    chain.tell(Opcode.JOIN, 0, products=0b1011)
    chain.tell(Opcode.TERM, 0, dim=0, test=0, within=0b0001)
    chain.tell(Opcode.TERM, 0, dim=1, test=1, negated=1, within=0b0011)
    chain.tell(Opcode.TERM, 0, dim=2, test=3, within=0b1110)
    chain.tuples(100)
    assert count(chain.check(), Tag.PAIR) > 0


def test_two_queries_share_the_tuples(chain):
    blocks = list(range(chain.p.cores))
    chain.clear()
    chain.join(blocks[:1], query=3)
    chain.join(blocks[1:], query=4)
    chain.tuples(5 * chain.p.capacity)
    found = chain.check()
    assert count(found, Tag.PAIR, 3) and count(found, Tag.PAIR, 4) > count(found, Tag.PAIR, 3)


def test_composites_join_a_third_stream(chain):
    chain.clear()
    chain.join([0], query=1, s_channel=0)
    chain.tell(Opcode.COMPOSE, 0, target=2)
    for dim, part in enumerate((Part.S_LO, Part.S_HI, Part.LATER)):
        chain.tell(Opcode.TAKE, 0, dim=dim, part=part)
    chain.join([1, 2], query=2, r_channel=2, s_channel=1, strict_r=1)
    for _ in range(20):
        chain.tell(Opcode.ENTER, channel=int(chain.rng.integers(0, 2)))
        chain.tuples(int(chain.rng.integers(1, 6)), span=3)
    found = chain.check()
    assert count(found, Tag.COMPOSITE, 1) and count(found, Tag.PAIR, 2)


@pytest.mark.parametrize("stalls", [(0, 0), (0, 150), (150, 0), (90, 120)])
def test_a_new_program_takes_effect_between_two_tuples(chain, stalls):
    """Of equal tuples, those before the new query are answered by the old one and the rest by the new."""
    ones = [np.ones(1, np.uint64) for _ in chain.dims]
    for query in range(8):
        chain.clear()
        chain.join(list(range(chain.p.cores)), query=query)
        chain.parts.append(pack_boxes(chain.dims, np.array([query]), ones, ones))
        for id in range(20):
            chain.parts.append(pack_points(chain.dims, np.array([id]), ones))
    found = chain.check(stalls)
    assert [each.fields for each in found if each.tag is Tag.PAIR] == [
        (id, query) for query in range(8) for id in range(20)
    ]
    assert [count(found, Tag.PAIR, query) for query in range(8)] == [20] * 8


@pytest.mark.parametrize("stalls", [(0, 0), (0, 200)])
def test_a_mark_right_behind_a_pair_comes_after_it(chain, stalls):
    """The turn in the tree is another block's, and what the last tuple finds is queued as the mark passes."""
    cores, dims = chain.p.cores, len(chain.dims)
    for turn in range(cores):
        for block in range(cores):
            chain.token(Kind.FLUSH)
            # One box per block, of which the first point finds one and the second another, or all others.
            keys = np.where(np.arange(cores) == turn, 1, np.where(np.arange(cores) == block, 2, 3))
            wanted = (1, 2 if block != turn else 3)
            bounds = [keys.astype(np.uint64)] * dims
            chain.parts.append(pack_boxes(chain.dims, np.arange(cores), bounds, bounds))
            for id, key in enumerate(wanted):
                chain.token(Kind.MARK, 1000 * id + 10 * turn + block)
                chain.parts.append(
                    pack_points(chain.dims, np.array([id]), [np.array([key], np.uint64)] * dims)
                )
            chain.token(Kind.MARK, 2000 + 10 * turn + block)
    found = chain.check(stalls)
    assert count(found, Tag.PAIR) == cores * (2 * (cores - 1) + cores)


def test_illegal_instructions_name_block_and_instruction(chain):
    """They come out as errors, in order, and the chain goes on as it was programmed."""
    cores, dims = chain.p.cores, len(chain.dims)
    chain.join(list(range(cores)))
    illegal = [
        (Fault.NO_SUCH_BLOCK, encode(Opcode.PASS, cores)),
        (Fault.NO_SUCH_BLOCK, encode(Opcode.JOIN, 511)),
        (Fault.ILLEGAL_INSTRUCTION, 15 | 1 << 4),
        (Fault.ILLEGAL_INSTRUCTION, encode(Opcode.TERM, 0, dim=dims)),
        (Fault.ILLEGAL_INSTRUCTION, encode(Opcode.ROUTE, 1, dim=0, source=15)),
        (Fault.ILLEGAL_INSTRUCTION, encode(Opcode.SHARE, 2, position=3, last=2)),
    ]
    for _, bits in illegal:
        chain.tuples(10)
        chain.parts.append(pack_instruction(chain.dims, bits))
    chain.tuples(40)
    found = chain.check()
    assert [each.fields for each in found if each.tag is Tag.ERROR] == [
        (fault.value, bits) for fault, bits in illegal
    ]
    # Of a block that lets pass, nothing but a role is accepted.
    chain.clear()
    for opcode in (Opcode.SHARE, Opcode.COMPOSE, Opcode.TERM, Opcode.ROUTE, Opcode.TAKE):
        chain.tell(opcode, 1)
    chain.tell(Opcode.PROJECT, 1)
    chain.tell(Opcode.TERM, 1)
    assert count(chain.check(), Tag.ERROR) == 6


@pytest.mark.parametrize("number", range(12))
def test_random_programs(chain, number):
    """Instructions, legal or not, anywhere in the stream, with stalls; all is as the reference says."""
    rng, cores, dims = chain.rng, chain.p.cores, len(chain.dims)

    def some(limit: int) -> int:
        return int(rng.integers(0, limit))

    for _ in range(60):
        block = some(cores + (rng.random() < 0.05))
        match some(12):
            case 0 | 1 | 2 | 3:
                chain.tuples(some(2 * chain.p.capacity), span=4)
            case 4:
                joins = sorted({some(cores), some(cores), some(cores)})
                channels = {"r_channel": some(3), "s_channel": some(3)}
                chain.join(joins, query=some(16), strict_r=some(2), strict_s=some(2), **channels)
            case 5:
                chain.tell(Opcode.COMPOSE, block, target=some(3))
                chain.tell(Opcode.TAKE, block, dim=some(dims), part=some(4))
            case 6:
                constants = [rng.integers(0, 4, dims).tolist() for _ in range(2)]
                operands = {"channel": some(3), "target": some(3), "keep": some(2), "products": some(16)}
                chain.tell(Opcode.SELECT, block, *constants, side=some(2), **operands)
            case 7:
                chain.tell(Opcode.PROJECT, block, side=some(2), channel=some(3), target=some(3), keep=some(2))
            case 8:
                for _ in range(3):
                    terms = {"test": some(4), "negated": some(2), "within": some(16)}
                    chain.tell(Opcode.TERM, block, dim=some(dims + 1), **terms)
            case 9:
                chain.tell(Opcode.ROUTE, block, dim=some(dims), source=some(dims), drop=some(2))
                chain.tell(Opcode.ENTER, channel=some(3))
            case 10:
                chain.token([Kind.FLUSH, Kind.HORIZON_R, Kind.HORIZON_S][some(3)], some(200))
            case 11:
                chain.token(Kind.MARK, some(1000))
                chain.parts.append(pack_instruction(chain.dims, some(1 << 32)))
    chain.check()
