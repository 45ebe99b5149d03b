"""The ring of frames.

write, commit, abort -> FrameRing -> word_shown; take, rewind, release
"""

import random
from collections import deque

import pytest

from hw.frame import Link
from hw.frame_ring import FrameRing

from .streams import simulate


@pytest.mark.parametrize("payload, frames", [(1, 2), (5, 4), (8, 2)])
def test_frames_are_shown_until_released(payload, frames, seed):
    dut = FrameRing(Link(16, payload, frames))
    chance = random.Random(seed)

    async def testbench(ctx):
        kept, shown, filling, number = deque(), 0, [], 0
        for _ in range(3000):
            assert ctx.get(dut.free) == frames - len(kept)
            assert ctx.get(dut.full) == (len(kept) == frames)
            assert ctx.get(dut.available) == (shown < len(kept))
            assert ctx.get(dut.ahead) == shown
            for name in ("write", "commit", "abort", "step", "take", "rewind", "release"):
                ctx.set(getattr(dut, name), 0)
            act = chance.random()
            if act < 0.5 and len(kept) < frames and len(filling) < payload:
                ctx.set(dut.word, number)
                ctx.set(dut.write, 1)
                filling.append(number)
                number = (number + 1) % 65536
                await ctx.tick()
                continue
            if act < 0.6 and filling:
                good = chance.random() < 0.7
                ctx.set(dut.commit if good else dut.abort, 1)
                if good:
                    kept.append(filling)
                filling = []
            elif act < 0.8 and shown < len(kept):
                # Reads a whole frame, word by word.
                assert ctx.get(dut.length) == len(kept[shown])
                for place, word in enumerate(kept[shown]):
                    assert ctx.get(dut.word_shown) == word
                    last = place == len(kept[shown]) - 1
                    assert ctx.get(dut.last) == last
                    ctx.set(dut.take if last else dut.step, 1)
                    if not last:
                        await ctx.tick()
                        ctx.set(dut.step, 0)
                shown += 1
            elif act < 0.9 and shown:
                if chance.random() < 0.5:
                    ctx.set(dut.rewind, 1)
                    shown = 0
                else:
                    freed = chance.randint(1, shown)
                    ctx.set(dut.release, freed)
                    for _ in range(freed):
                        kept.popleft()
                    shown -= freed
            await ctx.tick()

    simulate(dut, [testbench])
