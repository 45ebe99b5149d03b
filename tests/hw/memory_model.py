"""A memory behind a `MemoryPort` in Amaranth's simulator, with stalls on every channel from a seed."""

import random
from collections import deque

from hw.memory_port import MemoryPort


class MemoryModel:
    """`words` words, with garbage in them at first: a run that reads what nobody wrote notices.

    `simulate(..., background=[model.testbench])` runs it. A write is visible from its `done` on.
    `contents` may be read and set at any time. `reads` and `writes` list the bursts as (address, length).
    """

    def __init__(self, port, words: int, *, seed: int, stall: float, latency: int = 4):
        self._port = port
        self._random = random.Random(seed)
        self._stall = stall
        self._latency = latency
        signature: MemoryPort = port.signature
        assert words <= 1 << signature.address_width
        self.contents = [self._random.getrandbits(signature.width) for _ in range(words)]
        self.reads: list[tuple[int, int]] = []
        self.writes: list[tuple[int, int]] = []
        self._data = deque()  # (cycle from which it is on offer, word)
        self._open = deque()  # [address, words still to come] of writes
        self._taken: list[int] = []
        self._pending = deque()  # (cycle of its `done`, address, words)

    @property
    def idle(self) -> bool:
        """Nothing that was requested is still to be done."""
        return not (self._data or self._open or self._pending)

    def _goes(self) -> bool:
        return self._random.random() >= self._stall

    def _burst(self, request, log: list) -> tuple[int, int]:
        address, length = request.address, request.length
        assert length and address + length <= len(self.contents), f"burst of {length} words from {address}"
        log.append((address, length))
        return address, length

    async def testbench(self, ctx):
        """Serves the port for ever."""
        port = self._port
        cycle = 0
        offering = False
        while True:
            if not offering and self._data and self._data[0][0] <= cycle and self._goes():
                offering = True
                ctx.set(port.data.payload, self._data[0][1])
            read, write = self._goes(), self._goes()
            taking = bool(self._open) and self._goes()
            done = bool(self._pending) and self._pending[0][0] <= cycle and self._goes()
            ctx.set(port.data.valid, offering)
            ctx.set(port.read.ready, read)
            ctx.set(port.write.ready, write)
            ctx.set(port.written.ready, taking)
            ctx.set(port.done, done)
            _, _, reads, wanted, taken, writes, target, offered, word = await ctx.tick().sample(
                port.read.valid,
                port.read.payload,
                port.data.ready,
                port.write.valid,
                port.write.payload,
                port.written.valid,
                port.written.payload,
            )
            cycle += 1
            if offering and taken:
                self._data.popleft()
                offering = False
            if reads and read:
                address, length = self._burst(wanted, self.reads)
                due = cycle + self._latency
                self._data.extend((due, word) for word in self.contents[address : address + length])
            if done:
                _, address, words = self._pending.popleft()
                self.contents[address : address + len(words)] = words
            if offered and taking:
                self._taken.append(word)
                self._open[0][1] -= 1
                if not self._open[0][1]:
                    self._pending.append((cycle + self._latency, self._open.popleft()[0], self._taken))
                    self._taken = []
            if writes and write:
                self._open.append([*self._burst(target, self.writes)])
