"""Memory behind the port of a joiner in cocotb, with channels that wait at random."""

from collections import deque

from cocotb.triggers import RisingEdge
from numpy.random import Generator

from hw.memory_port import MemoryPort, burst_layout

LATENCY = 4
#: The chance that a channel waits in a cycle.
STALL = 0.2


class Memory:
    """Words in a dict: what nobody wrote cannot be read."""

    def __init__(self, dut, port: MemoryPort, random: Generator):
        self._dut = dut
        self._layout = burst_layout(port.address_width)
        self._random = random
        self._words: dict[int, int] = {}

    async def serve(self) -> None:
        """Serves the port for ever; a reset ends all that is under way."""
        dut = self._dut
        data, writes, taken, pending = deque(), deque(), [], deque()
        cycle, offering = 0, False
        while True:
            goes = (self._random.random(5) >= STALL).tolist()
            if not offering and data and data[0][0] <= cycle and goes[0]:
                offering = True
                dut.memory__data__payload.value = data[0][1]
            levels = {
                "data__valid": offering,
                "read__ready": goes[1],
                "write__ready": goes[2],
                "written__ready": bool(writes) and goes[3],
                "done": bool(pending) and pending[0][0] <= cycle and goes[4],
            }
            for name, level in levels.items():
                getattr(dut, f"memory__{name}").value = int(level)
            await RisingEdge(dut.clk)
            cycle += 1
            if int(dut.rst.value):
                data, writes, taken, pending, offering = deque(), deque(), [], deque(), False
                continue
            if offering and int(dut.memory__data__ready.value):
                data.popleft()
                offering = False
            if levels["done"]:
                _, address, words = pending.popleft()
                self._words.update(enumerate(words, address))
            if levels["written__ready"] and int(dut.memory__written__valid.value):
                taken.append(dut.memory__written__payload.value.to_unsigned())
                if len(taken) == writes[0][1]:
                    pending.append((cycle + LATENCY, writes.popleft()[0], taken))
                    taken = []
            for name, ready in (("read", goes[1]), ("write", goes[2])):
                if ready and int(getattr(dut, f"memory__{name}__valid").value):
                    bits = getattr(dut, f"memory__{name}__payload").value.to_unsigned()
                    burst = self._layout.from_bits(bits)
                    assert burst.length
                    if name == "write":
                        writes.append((burst.address, burst.length))
                        continue
                    addresses = range(burst.address, burst.address + burst.length)
                    data.extend((cycle + LATENCY, self._words[address]) for address in addresses)
