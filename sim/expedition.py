"""The rules of low-latency handshake join, without time: messages, nodes and windows as plain lists.

::

    driver -> [ node 0 ] <-> [ node 1 ] <-> ... <-> [ node n-1 ] <- driver
              R arrivals, expiries of S -->
              <-- S arrivals, expiries of R

`Chain` is the reference for `hw/lowlatency.py`: a message is processed at one node at a time, in any order
that the first-in-first-out channels allow. Which pairs come out must not depend on that order.

What an S tuple may match in `w_r` follows from Table 1 of the paper: only tuples that have ended their
expedition. One that is still on its way has met, or will meet, every S tuple ahead of its expedition end,
and finds it in `iw_s` or `w_s`. An expedition end must separate the S tuples that the last node has processed
from those that it has not, so it goes to the head of that node's queue: behind S tuples that wait there and
have not met its tuple, it would come too late for them. Expiries, which only free places, may stay ahead.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from itertools import takewhile


class Kind(Enum):
    """What a message is."""

    ARRIVAL = "arrival"
    ACKNOWLEDGEMENT = "acknowledgement"  # to the right: an S tuple has arrived
    END = "expedition end"  # to the left: an R tuple has seen all nodes
    EXPIRY = "expiry"


@dataclass(frozen=True)
class Message:
    """A message about tuple `number` of R or S, whose home is the node `home`."""

    kind: Kind
    number: int
    home: int


@dataclass
class Node:
    """What a node stores: tuples in order of arrival."""

    w_r: list[int] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)  # those of `w_r` whose expedition flag is cleared
    w_s: list[int] = field(default_factory=list)
    iw_s: list[int] = field(default_factory=list)  # fresh S tuples that are not acknowledged
    dead_r: set[int] = field(default_factory=set)  # tombstones: expired before they came
    dead_s: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Found:
    """A pair, the node that found it, and the stream of the tuple that was on its way there."""

    r: int
    s: int
    node: int
    probe: str


class Chain:
    """A chain of `nodes` nodes; `matches(r, s)` is the join's condition."""

    def __init__(self, nodes: int, matches: Callable[[int, int], bool]):
        self.nodes = [Node() for _ in range(nodes)]
        self.to_right = [deque() for _ in range(nodes)]  # what waits at each node, coming from its left
        self.to_left = [deque() for _ in range(nodes)]
        self.found: list[Found] = []
        self._matches = matches

    def arrive(self, stream: str, number: int, home: int) -> None:
        """A tuple enters: of R at the left end, of S at the right one."""
        self._enter(stream == "r", Message(Kind.ARRIVAL, number, home))

    def expire(self, stream: str, number: int, home: int) -> None:
        """The window driver's word that a tuple has left its window: at the opposite end."""
        self._enter(stream == "s", Message(Kind.EXPIRY, number, home))

    def _enter(self, from_left: bool, message: Message) -> None:
        (self.to_right[0] if from_left else self.to_left[-1]).append(message)

    def waiting(self) -> list[tuple[int, bool]]:
        """The nodes that can process a message, and whether it goes to the right."""
        return [(k, True) for k, queue in enumerate(self.to_right) if queue] + [
            (k, False) for k, queue in enumerate(self.to_left) if queue
        ]

    def process(self, k: int, rightwards: bool) -> Message:
        """Node `k` processes its next message from the left, or from the right."""
        message = (self.to_right if rightwards else self.to_left)[k].popleft()
        (self._from_left if rightwards else self._from_right)(k, message)
        return message

    def empty(self) -> bool:
        """Whether nothing is under way or waits for something."""
        return not self.waiting() and not any(n.iw_s or n.dead_r or n.dead_s for n in self.nodes)

    def _from_left(self, k: int, message: Message) -> None:
        """Figure 13."""
        node, number = self.nodes[k], message.number
        if message.kind is Kind.ARRIVAL:
            if k + 1 < len(self.nodes):
                self.to_right[k + 1].append(message)
            self._scan(k, "r", number, node.w_s + node.iw_s)
            if k == message.home:
                _store(node.w_r, node.dead_r, number)
            if k + 1 == len(self.nodes):
                self.end(Message(Kind.END, number, message.home))
        elif message.kind is Kind.ACKNOWLEDGEMENT:
            node.iw_s.remove(number)
        elif k == message.home:
            _expire(node.w_s, node.dead_s, number)
        else:
            self.to_right[k + 1].append(message)

    def _from_right(self, k: int, message: Message) -> None:
        """Figure 14."""
        node, number = self.nodes[k], message.number
        if message.kind is Kind.ARRIVAL:
            if k > 0:
                self.to_left[k - 1].append(message)
            self._scan(k, "s", number, self.matchable(node))
            if k > message.home:
                node.iw_s.append(number)
            if k == message.home:
                _store(node.w_s, node.dead_s, number)
            if message.home <= k < len(self.nodes) - 1:  # the sender has it in its `iw_s`
                self.to_right[k + 1].append(Message(Kind.ACKNOWLEDGEMENT, number, message.home))
        elif k != message.home:
            self.to_left[k - 1].append(message)
        elif message.kind is Kind.END:
            node.ended.add(number)
        else:
            _expire(node.w_r, node.dead_r, number)

    def matchable(self, node: Node) -> list[int]:
        """The R tuples at a node that an S tuple may match: their expedition has ended."""
        return [number for number in node.w_r if number in node.ended]

    def end(self, message: Message) -> None:
        """An R tuple has seen all nodes: before the last one processes another S tuple, it learns that."""
        queue = self.to_left[-1]
        ahead = takewhile(lambda waiting: waiting.kind is Kind.EXPIRY, queue)
        queue.insert(len(list(ahead)), message)

    def _scan(self, k: int, probe: str, number: int, stored: list[int]) -> None:
        for other in stored:
            pair = (number, other) if probe == "r" else (other, number)
            if self._matches(*pair):
                self.found.append(Found(*pair, k, probe))


def _store(window: list[int], dead: set[int], number: int) -> None:
    if number in dead:
        dead.remove(number)
    else:
        window.append(number)


def _expire(window: list[int], dead: set[int], number: int) -> None:
    if number in window:
        window.remove(number)
    else:
        dead.add(number)
