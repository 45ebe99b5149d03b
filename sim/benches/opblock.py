"""The figures in the docstring of the chain of OP-Blocks, each measured, and what a new program costs."""

import cocotb
import numpy as np

from hw.gather import Gather
from hw.instruction import Opcode, encode
from hw.op_block import OpBlock
from hw.op_chain import OpChain
from hw.socket import Tag
from hw.words import pack_instruction

from .testbench import STALLS, Testbench


@cocotb.test()
async def throughput_is_a_tuple_every_depth_cycles(dut):
    """Without matches, not a cycle more once the first skid is full, from empty windows to full ones."""
    bench = await Testbench.start(dut)
    count = 4 * bench.parameters.capacity + 3
    is_s = bench.random.random(count) < 0.5
    words = np.where(is_s[:, None], bench.boxes(np.zeros(count, bool)), bench.points(count))
    traffic = await bench.exchange(words, until=None)
    assert not traffic.words
    assert set(np.diff(traffic.taken[2:]).tolist()) == {bench.depth}
    cocotb.log.info("cycles per tuple: %d", bench.depth)


@cocotb.test()
async def one_match_per_tuple_costs_nothing(dut):
    """A single pair at a time leaves the chain without slowing it down."""
    bench = await Testbench.start(dut)
    boxes = bench.boxes(np.arange(bench.parameters.capacity) == 0)
    points = bench.points(3 * bench.parameters.capacity)
    traffic = await bench.exchange(np.concatenate([boxes, points, bench.flush()]))
    assert len(traffic.pairs) == len(points)
    assert set(np.diff(traffic.taken[2 : len(boxes) + len(points)]).tolist()) == {bench.depth}


@cocotb.test()
async def latency_of_every_block(dut):
    """A pair in the first row of a block is out after `OpChain.latency` cycles, and turns in the tree."""
    bench = await Testbench.start(dut)
    for block in range(bench.parameters.cores):
        boxes = bench.boxes(np.arange(bench.parameters.cores) == block)
        await bench.exchange(np.concatenate([boxes, bench.mark(1)]), until=1)
        traffic = await bench.exchange(np.concatenate([bench.points(1), bench.flush()]))
        assert traffic.pairs == [(0, block)]
        turns = traffic.given[0] - traffic.taken[0] - OpChain.latency(bench.parameters, block)
        assert 0 <= turns <= Gather.levels(bench.parameters.cores)


@cocotb.test()
async def a_mark_takes_as_long_as_it_says(dut):
    """Through an idle chain; a flush ahead of it takes a cycle."""
    bench = await Testbench.start(dut)
    traffic = await bench.exchange(bench.mark(5), until=5)
    assert traffic.given[0] - traffic.taken[0] == OpChain.mark_latency(bench.parameters)
    traffic = await bench.exchange(bench.flush(6), until=6)
    assert traffic.taken[1] - traffic.taken[0] == OpChain.flush_cycles(bench.parameters)


@cocotb.test()
@cocotb.parametrize(stalls=list(STALLS))
async def a_new_program_in_the_middle_of_the_stream(dut, stalls):
    """Tuples before it are answered by the old query, those after it by the new one, and none is lost."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    # The same join, under another number: its windows begin empty, and so does the oracle's second half.
    program = [
        pack_instruction(p.dims, bits)
        for block in range(p.cores)
        for bits in (
            encode(Opcode.JOIN, block, query=9, products=1),
            encode(Opcode.SHARE, block, position=block, last=p.cores - 1),
            *(encode(Opcode.TERM, block, dim=dim, test=1, within=1) for dim in range(len(p.dims))),
        )
    ]
    first, second = (bench.streams(3 * p.capacity + 1) for _ in range(2))
    words = np.concatenate([first.words, *program, second.words, bench.flush()])
    traffic = await bench.exchange(words, stalls=STALLS[stalls])
    results = traffic.results
    for query, streams in ((0, first), (9, second)):
        found = (results.tag == Tag.PAIR.value) & (results.query == query)
        pairs = zip(results.r_id[found].tolist(), results.s_id[found].tolist())
        assert sorted(pairs) == streams.pairs(p.capacity)
    assert bench.counters()["tuples"] == len(first.words) + len(second.words)
    await bench.ends_empty()


@cocotb.test()
@cocotb.parametrize(kind=["flush", "instruction", "instructions"])
async def a_new_program_among_tuples_takes_few_cycles(dut, kind):
    """One for each word, and the `latency` of the block: for the tuples before it, and the one behind."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    share = pack_instruction(p.dims, encode(Opcode.SHARE, 0, last=p.cores - 1))
    words = {"flush": bench.flush()[:1], "instruction": share, "instructions": np.concatenate([share] * 3)}[
        kind
    ]
    tuples = bench.points(12)
    traffic = await bench.exchange(np.concatenate([tuples, words, tuples]), until=None)
    took = traffic.taken[-1] - traffic.taken[2] - bench.depth * (2 * len(tuples) - 3)
    assert took == len(words) + OpBlock.latency(p)


@cocotb.test()
async def programming_a_block_takes_few_cycles(dut):
    """The word after a block's program is taken no later than two cycles after as many as it has."""
    bench = await Testbench.start(dut)
    p = bench.parameters
    block = p.cores - 1
    program = [
        encode(Opcode.JOIN, block, products=1),
        encode(Opcode.SHARE, block),
        *(encode(Opcode.TERM, block, dim=dim, test=1, within=1) for dim in range(len(p.dims))),
    ]
    words = [pack_instruction(p.dims, bits) for bits in program]
    traffic = await bench.exchange(np.concatenate([*words, bench.mark(3)]), until=3)
    took = traffic.taken[-1] - traffic.taken[0]
    assert took <= len(program) + 2
    cocotb.log.info("a join core is programmed by %d words in %d cycles", len(program), took)
