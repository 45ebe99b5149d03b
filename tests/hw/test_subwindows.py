"""The ring of subwindows: each has a slot of its own, and the spare one is nobody's."""

from collections import deque

from hw.subwindows import Subwindows

from .streams import simulate

PLACES, MOST = 3, 20


def test_random_operations_keep_every_array(rng):
    dut = Subwindows(PLACES, MOST, 8)

    async def testbench(ctx):
        async def strobe(signal):
            ctx.set(signal, 1)
            await ctx.tick()
            ctx.set(signal, 0)

        async def settled():
            for _ in range(PLACES + 1):
                if not ctx.get(dut.busy):
                    return
                await ctx.tick()
            raise AssertionError("the ring is busy for too long")

        await settled()
        model = deque()  # (count, width, slot or None)
        for _ in range(400):
            choice = rng.choice(["create", "expire", "update", "clear"], p=[0.35, 0.2, 0.42, 0.03])
            if choice == "create" and len(model) < PLACES:
                ctx.set(dut.select, len(model))
                await strobe(dut.create)
                model.append([0, 0, None])
            elif choice == "expire" and model:
                await strobe(dut.expire)
                model.popleft()
            elif choice == "update" and model:
                model[-1] = [int(rng.integers(1, MOST + 1)), int(rng.integers(256)), ctx.get(dut.spare)]
                ctx.set(dut.select, len(model) - 1)
                ctx.set(dut.count, model[-1][0])
                ctx.set(dut.width, model[-1][1])
                await strobe(dut.update)
            elif choice == "clear":
                await strobe(dut.clear)
                await settled()
                model.clear()
            assert ctx.get(dut.used) == len(model)
            assert ctx.get(dut.full) == (len(model) == PLACES)
            slots = [ctx.get(dut.spare)]
            for number, (count, width, slot) in enumerate(model):
                ctx.set(dut.select, number)
                await ctx.tick()
                shown = ctx.get(dut.shown)
                assert (shown.count, shown.width) == (count, width)
                assert slot in (None, shown.slot)
                slots.append(shown.slot)
            assert len(set(slots)) == len(slots) and max(slots) <= PLACES

    simulate(dut, [testbench])
