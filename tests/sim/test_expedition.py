"""The rules of low-latency handshake join against the oracle, for thousands of orders of events.

::

    tuples --> [ driver: windows ] --> [ chain: any node, any order ] --> pairs = oracle's
"""

from collections import Counter

import numpy as np
import pytest

from sim.expedition import Chain, Message, Node
from sim.oracle import Windows, three_steps, window_boxes


class _Random:
    """Random tuples through a chain whose nodes process messages in random order."""

    def __init__(self, rng: np.random.Generator, chain: type[Chain], nodes: int, hashed: bool):
        count = int(rng.integers(1, 40))
        self.is_s = rng.random(count) < rng.choice([0.1, 0.5, 0.9])
        time = np.cumsum(rng.integers(0, 3, count))
        kind = str(rng.choice(["rows", "time"]))
        self.windows = Windows(kind, *(int(size) for size in rng.integers(1, 9, 2)))
        keys = rng.integers(0, 2, count)
        key = {"r": keys[~self.is_s], "s": keys[self.is_s]}
        dims, points, lo, hi = window_boxes(self.is_s, time, self.windows)

        def joins(r: int, s: int) -> bool:
            return bool(key["r"][r] == key["s"][s])

        def within(r: int, s: int) -> bool:
            return all(
                dim.contains(point[r], {"lo": low[s], "hi": high[s]})
                for dim, point, low, high in zip(dims, points, lo, hi)
            )

        # The window's dimensions are part of the condition: expiry only frees storage.
        self.chain = chain(nodes, lambda r, s: joins(r, s) and within(r, s))
        self.expected = Counter(three_steps(self.is_s, time, self.windows, joins))
        live = {"r": [], "s": []}
        size = {"r": self.windows.r, "s": self.windows.s}
        numbers = {"r": 0, "s": 0}
        eager = rng.random()  # how busy the nodes are while tuples come
        for of_s, now in zip(self.is_s.tolist(), time.tolist()):
            stream = "s" if of_s else "r"
            number = numbers[stream]
            numbers[stream] += 1
            home = int(key[stream][number]) % nodes if hashed else number % nodes
            if kind == "rows":
                expired = [(stream, live[stream][0])] if len(live[stream]) == size[stream] else []
            else:
                expired = [(of, old) for of in live for old in live[of] if old[1] < now - size[of]]
            for of, old in expired:
                live[of].remove(old)
                self.chain.expire(of, old[0], old[2])
            self.chain.arrive(stream, number, home)
            live[stream].append((number, now, home))
            while rng.random() < eager and self.chain.waiting():
                self._process(rng)
        while self.chain.waiting():
            self._process(rng)
        # What is left in the windows expires, and then nothing is stored.
        for of, left in live.items():
            for number, _, home in left:
                self.chain.expire(of, number, home)
        while self.chain.waiting():
            self._process(rng)

    def _process(self, rng: np.random.Generator) -> None:
        waiting = self.chain.waiting()
        self.chain.process(*waiting[rng.integers(len(waiting))])

    @property
    def exact(self) -> bool:
        pairs = Counter((found.r, found.s) for found in self.chain.found)
        return (
            pairs == self.expected and self.chain.empty() and not any(n.w_r + n.w_s for n in self.chain.nodes)
        )


@pytest.mark.parametrize("hashed", [False, True], ids=["round_robin", "hashed"])
@pytest.mark.parametrize("nodes, trials", [(1, 400), (2, 800), (3, 800), (8, 300), (40, 40)])
def test_every_pair_once_in_any_order_of_events(nodes, trials, hashed, rng):
    for trial in range(trials):
        assert _Random(rng, Chain, nodes, hashed).exact, f"trial {trial}"


class _MatchesAllStored(Chain):
    """S tuples match all of W_R."""

    def matchable(self, node: Node) -> list[int]:
        return node.w_r


class _MatchesTravelling(Chain):
    """S tuples match what the printed figure literally says: entries that are (not) marked as expedited."""

    def matchable(self, node: Node) -> list[int]:
        return [number for number in node.w_r if number not in node.ended]


class _EndsBehindOthers(Chain):
    """An expedition end waits behind S tuples that the last node has not processed."""

    def end(self, message: Message) -> None:
        self.to_left[-1].append(message)


@pytest.mark.parametrize("rule", [_MatchesAllStored, _MatchesTravelling, _EndsBehindOthers])
def test_other_readings_of_the_paper_are_wrong(rule, rng):
    assert not all(_Random(rng, rule, 3, False).exact for _ in range(200))
