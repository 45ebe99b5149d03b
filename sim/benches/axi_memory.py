"""Copies through the AXI4 adapter, in a memory of cocotbext-axi that waits at random.

::

    commands --> [ copier ]<-->[ adapter ]<-- m_axi --> AxiRam
    answers  <--                                        (gaps and refusals)
"""

import cocotb
import numpy as np
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, with_timeout
from cocotbext.axi import AxiBus, AxiRam

from sim.copier import command_layout

from .testbench import CLOCK_NANOSECONDS, STALLS, Stalls

ADDRESS_WIDTH = 12
#: What the adapter offers, and fields that tell one offer from another.
_CHANNELS = {"ar": ("addr", "len"), "aw": ("addr", "len"), "w": ("data", "last")}


class CopyBench:
    """A copier whose memory is an `AxiRam`."""

    def __init__(self, dut):
        self.dut = dut
        self.random = np.random.default_rng(cocotb.RANDOM_SEED)
        self.word_bytes = len(dut.m_axi_wdata) // 8
        bus = AxiBus.from_prefix(dut, "m_axi")
        self.ram = AxiRam(bus, dut.clk, dut.rst, size=self.word_bytes << ADDRESS_WIDTH)
        for channel in (self.ram.write_if, self.ram.read_if):
            channel.log.setLevel("WARNING")
        self.bursts = {"ar": [], "aw": []}

    @classmethod
    async def start(cls, dut, stalls: Stalls) -> "CopyBench":
        """A bench whose clock runs and whose memory is full of random bytes."""
        bench = cls(dut)
        dut.commands__valid.value = 0
        dut.answers__ready.value = 1
        cocotb.start_soon(Clock(dut.clk, CLOCK_NANOSECONDS, unit="ns").start())
        dut.rst.value = 1
        await ClockCycles(dut.clk, 2)
        dut.rst.value = 0
        read, write = bench.ram.read_if, bench.ram.write_if
        for channels, chance in (
            ((read.r_channel, write.b_channel), stalls.source),
            ((read.ar_channel, write.aw_channel, write.w_channel), stalls.sink),
        ):
            for channel in channels:
                channel.set_pause_generator(bench._pauses(chance) if chance else None)
        bench.ram.write(0, bench.random.bytes(bench.word_bytes << ADDRESS_WIDTH))
        cocotb.start_soon(bench._watch())
        return bench

    def _pauses(self, chance: float):
        while True:
            yield bool(self.random.random() < chance)

    async def _watch(self) -> None:
        """Notes each burst; a word or address on offer must stay until it is taken."""
        dut = self.dut
        held = {}
        while True:
            await RisingEdge(dut.clk)
            for channel, fields in _CHANNELS.items():
                valid, ready, *values = (
                    int(getattr(dut, f"m_axi_{channel}{name}").value) for name in ("valid", "ready", *fields)
                )
                offer = tuple(values) if valid else None
                assert held.get(channel) in (None, offer), "an offer changed or vanished before it was taken"
                held[channel] = None if ready else offer
                if valid and ready and channel != "w":
                    self.bursts[channel].append((offer[0], offer[1] + 1))

    async def copy(self, source: int, target: int, count: int) -> None:
        """Copies `count` words."""
        command = command_layout(ADDRESS_WIDTH).const({"source": source, "target": target, "count": count})
        self.dut.commands__payload.value = command.as_bits()
        self.dut.commands__valid.value = 1
        for _ in range(100 + 40 * count):
            await RisingEdge(self.dut.clk)
            if int(self.dut.answers__valid.value):
                break
        else:
            raise AssertionError(f"a copy of {count} words did not end")
        self.dut.commands__valid.value = 0
        await RisingEdge(self.dut.clk)


@cocotb.test()
@cocotb.parametrize(stalls=list(STALLS))
async def copies_are_exact_in_legal_bursts(dut, stalls):
    """Memory holds what was copied when the answer comes; no burst is too long or crosses 4 KiB."""
    bench = await CopyBench.start(dut, STALLS[stalls])
    size, half = bench.word_bytes, 1 << (ADDRESS_WIDTH - 1)
    moved = 0
    for count in (1, 2, 300, *bench.random.integers(1, 700, 4).tolist()):
        source = int(bench.random.integers(0, half - count))
        target = half + int(bench.random.integers(0, half - count))
        want = bench.ram.read(source * size, count * size)
        rest = bench.ram.read(half * size, half * size)
        await bench.copy(source, target, count)
        expected = bytearray(rest)
        expected[(target - half) * size : (target - half + count) * size] = want
        assert bench.ram.read(half * size, half * size) == bytes(expected)
        moved += count
    for channel, bursts in bench.bursts.items():
        assert sum(beats for _, beats in bursts) == moved, channel
        for address, beats in bursts:
            assert beats <= 256
            assert address // 4096 == (address + beats * size - 1) // 4096
    assert not int(dut.fault.value)


@cocotb.test()
async def many_reads_are_outstanding(dut):
    """Requests do not wait for the words of those before them."""
    bench = await CopyBench.start(dut, STALLS["none"])
    bench.ram.read_if.r_channel.pause = True
    copying = cocotb.start_soon(bench.copy(0, 1 << (ADDRESS_WIDTH - 1), 1500))
    await ClockCycles(dut.clk, 100)
    assert len(bench.bursts["ar"]) >= 3
    bench.ram.read_if.r_channel.pause = False
    await with_timeout(copying, 100_000 * CLOCK_NANOSECONDS, "ns")
