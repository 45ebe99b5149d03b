"""The reference of OP-Block chains: what words in make of words out, by the instruction set's definition.

One word at a time walks the whole chain, so that what it gives stands together; a chain may put out what
later words give before the record of a mark, but never what earlier words give after it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from hw.dimension import Dimension
from hw.instruction import COMPOSITE_ID_LAYOUT, PRODUCTS, TESTS, Opcode, Part, Role, decode
from hw.parameters import Parameters
from hw.socket import Fault, Kind, Tag, tuple_layout
from hw.words import Results, unpack

ID_LIMIT = 2**32


@dataclass(frozen=True)
class Message:
    """What goes from block to block; a point is in `lo`."""

    kind: int
    channel: int
    id: int
    lo: tuple[int, ...]
    hi: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """A word on `results`: the ids of a pair, of a composite, r and s, of a mark; or fault and value."""

    tag: Tag
    query: int
    fields: tuple[int, ...]


@dataclass
class _Window:
    """One side's tuples in a block: `places` is overwritten in turn."""

    places: list[Message | None]
    next: int = 0
    seen: int = 0
    horizon: int | None = None


@dataclass
class _Term:
    test: int = 0
    negated: int = 0
    within: int = 0


@dataclass
class _Program:
    role: Role
    operands: dict[str, int] = field(default_factory=dict)
    position: int = 0
    last: int = 0
    target: int | None = None  #: of a COMPOSE
    terms: list[_Term] = field(default_factory=list)
    routes: list[int | None] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)


class Block:
    """One block; `records` takes what it puts out."""

    def __init__(self, parameters: Parameters, address: int, records: list[Record]):
        self._p, self._address, self._records = parameters, address, records
        self.lost = 0
        self._begin(Role.JOIN, {"r_channel": 0, "s_channel": 0, "query": 0, "products": 1})
        self._program.position, self._program.last = address, parameters.cores - 1
        for term, dim in zip(self._program.terms, parameters.dims):
            term.test, term.within = TESTS.index(dim.test), 1

    def _begin(self, role: Role, operands: dict[str, int]) -> None:
        dims = range(len(self._p.dims))
        self._program = _Program(
            role, operands, terms=[_Term() for _ in dims], routes=list(dims), parts=[Part.R for _ in dims]
        )
        self._constants: Message | None = None
        self._clear()

    def _clear(self) -> None:
        self._windows = {side: _Window([None] * self._p.segment) for side in "rs"}
        self._composites = 0

    def take(self, message: Message) -> list[Message]:
        """What goes on to the next block."""
        program, operands = self._program, self._program.operands
        if message.kind == Kind.INSTRUCTION.value:
            if not self._execute(message):
                return [message]
            self._composites = 0
            return []
        if message.kind == Kind.FLUSH.value:
            self._clear()
        if program.role in (Role.SELECT, Role.PROJECT) and message.channel == operands["channel"]:
            tuples, horizons = (
                ((Kind.R, Kind.HORIZON_R), (Kind.S, Kind.HORIZON_S))[operands["side"]][k].value
                for k in (0, 1)
            )
            if message.kind in (tuples, horizons):
                return self._filter(message, message.kind == tuples)
        if program.role is Role.JOIN:
            for side, kind, horizon in (("r", Kind.R, Kind.HORIZON_R), ("s", Kind.S, Kind.HORIZON_S)):
                if message.channel == operands[f"{side}_channel"]:
                    if message.kind == horizon.value:
                        self._windows[side].horizon = message.id
                    if message.kind == kind.value:
                        return [*self._join(message, side), message]
        return [message]

    def _filter(self, message: Message, is_tuple: bool) -> list[Message]:
        operands = self._program.operands
        passes = True
        if is_tuple and self._program.role is Role.SELECT:
            members = (self._constants, message) if operands["side"] else (message, self._constants)
            passes = self._holds(*members)
        made = [replace(self._routed(message), channel=operands["target"])] if passes else []
        return made + ([message] if operands["keep"] else [])

    def _join(self, message: Message, side: str) -> list[Message]:
        program, made = self._program, []
        for other in self._windows["s" if side == "r" else "r"].places:
            r, s = (message, other) if side == "r" else (other, message)
            if other is None or not self._holds(r, s):
                continue
            query = program.operands["query"]
            if program.target is None:
                self._records.append(Record(Tag.PAIR, query, (r.id, s.id)))
                continue
            id = COMPOSITE_ID_LAYOUT.const({"number": self._composites, "block": self._address}).as_bits()
            self._composites += 1
            self._records.append(Record(Tag.COMPOSITE, query, (id, r.id, s.id)))
            values = {Part.R: r.lo, Part.S_LO: s.lo, Part.S_HI: s.hi, Part.LATER: message.lo}
            lo = tuple(values[part][k] for k, part in enumerate(program.parts))
            # Upper bounds mean nothing in an R tuple; the later member's go on.
            composite = Message(Kind.R.value, program.target, id, lo, message.hi)
            made.append(self._routed(composite))
        self._store(message, side)
        return made

    def _store(self, message: Message, side: str) -> None:
        program, window = self._program, self._windows[side]
        if window.seen == program.position:
            left = window.places[window.next]
            if left is not None:
                live = window.horizon is not None and (left.id - window.horizon) % ID_LIMIT < ID_LIMIT // 2
                self.lost += bool(program.operands.get(f"strict_{side}") or live)
            window.places[window.next] = message
            window.next = (window.next + 1) % self._p.segment
        window.seen = 0 if window.seen == program.last else window.seen + 1

    def _holds(self, r: Message, s: Message) -> bool:
        """Whether the predicate holds: an OR of ANDs of terms."""
        held = []
        for k, term in enumerate(self._program.terms):
            dim = Dimension(TESTS[term.test], self._p.dims[k].width)
            held.append(bool(dim.contains(r.lo[k], {"lo": s.lo[k], "hi": s.hi[k]})) != bool(term.negated))
        return any(
            all(holds or not term.within >> j & 1 for holds, term in zip(held, self._program.terms))
            for j in range(PRODUCTS)
            if self._program.operands["products"] >> j & 1
        )

    def _routed(self, message: Message) -> Message:
        routes = self._program.routes
        lo, hi = (
            tuple(0 if source is None else bound[source] for source in routes)
            for bound in (message.lo, message.hi)
        )
        return replace(message, lo=lo, hi=hi)

    def _execute(self, message: Message) -> bool:
        """Does what an instruction for this block says; False if it is not for it, or not legal."""
        opcode, block, operands = decode(message.id)
        program, count = self._program, len(self._p.dims)
        if block != self._address or opcode in (None, Opcode.ENTER):
            return False
        if opcode in (Opcode.PASS, Opcode.SELECT, Opcode.PROJECT, Opcode.JOIN):
            self._begin(Role[opcode.name], operands)
            self._constants = message
            return True
        roles = {Opcode.TERM: (Role.JOIN, Role.SELECT), Opcode.ROUTE: (Role.JOIN, Role.SELECT, Role.PROJECT)}
        if program.role not in roles.get(opcode, (Role.JOIN,)):
            return False
        if max(operands.get("dim", 0), operands.get("source", 0)) >= count:
            return False
        match opcode:
            case Opcode.SHARE:
                if operands["position"] > operands["last"]:
                    return False
                program.position, program.last = operands["position"], operands["last"]
                self._clear()
            case Opcode.COMPOSE:
                program.target = operands["target"]
            case Opcode.TERM:
                program.terms[operands["dim"]] = _Term(*(operands[k] for k in ("test", "negated", "within")))
            case Opcode.ROUTE:
                program.routes[operands["dim"]] = None if operands["drop"] else operands["source"]
            case Opcode.TAKE:
                program.parts[operands["dim"]] = Part(operands["part"])
        return True


class Interpreter:
    """A chain fresh from reset."""

    def __init__(self, parameters: Parameters):
        self._p = parameters
        self.records: list[Record] = []
        self._blocks = [Block(parameters, k, self.records) for k in range(parameters.cores)]
        self._channel = 0

    @property
    def lost(self) -> int:
        """Live evictions."""
        return sum(block.lost for block in self._blocks)

    def run(self, words: np.ndarray) -> list[Record]:
        """Lets words through the chain; returns what they give."""
        before = len(self.records)
        for message in self._messages(words):
            if message.kind == Kind.INSTRUCTION.value:
                opcode, _, operands = decode(message.id)
                if opcode is Opcode.ENTER:
                    self._channel = operands["channel"]
                    continue
            messages = [replace(message, channel=self._channel)]
            for block in self._blocks:
                messages = [out for each in messages for out in block.take(each)]
            for left in messages:
                self._end(left)
        return self.records[before:]

    def _messages(self, words: np.ndarray) -> Iterable[Message]:
        layout, dims = tuple_layout(self._p.dims), range(len(self._p.dims))
        kinds, ids = (unpack(layout, words, name).tolist() for name in ("kind", "id"))
        points, lows, highs = (
            [unpack(layout, words, f"dims.{path.format(k)}").tolist() for k in dims]
            for path in ("point.d{}", "box.d{}.lo", "box.d{}.hi")
        )
        for n, (kind, id) in enumerate(zip(kinds, ids)):
            lows_or_points = points if kind == Kind.R.value else lows
            yield Message(kind, 0, id, tuple(lo[n] for lo in lows_or_points), tuple(hi[n] for hi in highs))

    def _end(self, message: Message) -> None:
        if message.kind == Kind.MARK.value:
            self.records.append(Record(Tag.MARK, 0, (message.id,)))
        elif message.kind == Kind.INSTRUCTION.value:
            there = decode(message.id)[1] < self._p.cores
            fault = Fault.ILLEGAL_INSTRUCTION if there else Fault.NO_SUCH_BLOCK
            self.records.append(Record(Tag.ERROR, 0, (fault.value, message.id)))
        elif message.kind not in {kind.value for kind in Kind}:
            self.records.append(Record(Tag.ERROR, 0, (Fault.UNKNOWN_KIND.value, message.kind)))


def records(results: Results) -> list[Record]:
    """Result words that came out of a chain, as the interpreter writes them."""
    fields = {
        Tag.PAIR: (results.r_id, results.s_id),
        Tag.COMPOSITE: (results.composite, results.composite_r, results.composite_s),
        Tag.MARK: (results.mark_id,),
        Tag.ERROR: (results.fault, results.value),
    }
    return [
        Record(Tag(tag), int(query), tuple(int(values[n]) for values in fields[Tag(tag)]))
        for n, (tag, query) in enumerate(zip(results.tag.tolist(), results.query.tolist()))
    ]
