"""Fits a join to a chain of OP-Blocks: its tests are programmed, its filters done where blocks are free."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hw.dimension import Dimension, Test
from hw.errors import DataError
from hw.parameters import Parameters

from .arrival import Arrivals
from .expression import Node
from .fit import Codes, Fit
from .program import CHANNELS, Query, Selection, Term, compile_queries
from .pushdown import Pushed
from .spec import Encoded, JoinSpec


class ChainFit(Fit):
    """Which dimension of a chain takes which of the join's, and which blocks do its filters.

    Every dimension is programmed to the test that is asked of it. Those that the join leaves over carry what
    filters test: an R tuple's value as its point, an S tuple's as both bounds of its box. A filter of R may
    test a point of the join as well. `channel` is where the tuples enter. Without `push` all filters are left
    to the host.
    """

    def __init__(self, spec: JoinSpec, parameters: Parameters, *, channel: int = 0, push: bool = True):
        self._spec, self._parameters, self._channel = spec, parameters, channel
        width, count = parameters.dims[0].width, len(parameters.dims)
        programmed = [Dimension(dim.test, width, dim.negated) for dim in spec.dimensions[:count]]
        super().__init__(spec.dimensions, [*programmed, *parameters.dims[len(programmed) :]])
        self.pushed: list[Pushed] = []
        self._places: list[tuple[int, int]] = []  # of each: its dimension, and its block among its side's
        points = dict(enumerate(spec.points()))
        #: What R tuples carry for the join. A dimension that is tested negated may be left open.
        self._points = {
            dim: ("r", points[source], None)
            for dim, source in enumerate(self.sources)
            if source in points and not self.device[dim].negated
        }
        found, self._refused = spec.pushable()
        self._values = {self._carries(test) for tests in found for test in tests}
        for tests in found if push else ():
            self._push(tests)
        if not push:
            self._refused |= {tests[0].term: "the host was asked to do it" for tests in found}
        program = compile_queries([self.query([])], parameters)
        self._lines = program.lines
        self.capacity = program.capacity(0)

    def _carries(self, test: Pushed) -> tuple[str, Node, int | None]:
        """What a dimension must carry for a test: side, value and the code of NULL, if there is any."""
        joined = ("r", test.value, None) in self._points.values() and test.side == "r"
        return test.side, test.value, None if joined else test.missing

    def _push(self, tests: list[Pushed]) -> None:
        """Finds dimensions and blocks for a filter, or a reason why the host must do it."""
        # Alternatives must meet in one block; tests that must all hold may be in any.
        groups = [tests] if tests[0].alternatives else [[test] for test in tests]
        placed = list(zip(self.pushed, self._places))
        for group in groups:
            side = [place for other, place in placed if other.side == group[0].side]
            # Its own block among those of its side, unless one has room for it.
            for block in range(len({block for _, block in side}) + 1):
                places = self._places_in(block, group, placed)
                if places:
                    placed += zip(group, places)
                    break
            else:
                self._refused[tests[0].term] = "no device dimension is free for it"
                return
        blocks = len({(test.side, block) for test, (_, block) in placed})
        if blocks >= self._parameters.cores:
            self._refused[tests[0].term] = "no block is free for it"
            return
        if blocks >= CHANNELS:
            self._refused[tests[0].term] = "no channel is free for it"
            return
        self.pushed, self._places = ([pair[k] for pair in placed] for k in (0, 1))

    def _places_in(self, block: int, tests: list[Pushed], placed) -> list[tuple[int, int]] | None:
        """Dimensions for tests in one block, each carrying what its test needs; None if there are too few."""
        mine = [(other, place) for other, place in placed if other.side == tests[0].side]
        if tests[0].alternatives and any(test.alternatives for test, place in mine if place[1] == block):
            return None
        carried = {dim: self._carries(test) for test, (dim, _) in mine}
        carried |= self._points if tests[0].side == "r" else {}
        busy = {dim for _, (dim, at) in mine if at == block}
        found = []
        for test in tests:
            wanted = self._carries(test)
            ready = [dim for dim in sorted(carried) if carried[dim] == wanted and dim not in busy]
            spare = [dim for dim, source in enumerate(self.sources) if source is None and dim not in carried]
            others = {value for value in self._values if value[0] == test.side} - {*carried.values(), wanted}
            if wanted in carried.values() and not test.alternatives and len(spare) <= len(others):
                spare = []  # a block more is better than a value that finds no dimension
            if not ready + spare:
                return None
            dim = (ready + spare)[0]
            carried[dim] = wanted
            busy.add(dim)
            found.append((dim, block))
        return found

    def query(self, outcomes: Sequence[Term | bool]) -> Query:
        """The query; `outcomes` are its filters' tests as terms, or what they always give (none: any)."""
        groups: dict[tuple[str, int], list[tuple[Pushed, Term | bool]]] = {}
        for number, (test, (dim, block)) in enumerate(zip(self.pushed, self._places)):
            outcome = outcomes[number] if outcomes else Term(dim, Test.BAND)
            groups.setdefault((test.side, block), []).append((test, outcome))
        filters = [
            Selection(side, _products(tests), _text(list(dict.fromkeys(test.term for test, _ in tests))))
            for (side, _), tests in groups.items()
        ]
        tested = [
            Term(dim, self.device[dim].test, self.device[dim].negated)
            for dim, source in enumerate(self.sources)
            if source is not None
        ]
        return Query(tuple(tested), tuple(filters), r=self._channel, s=self._channel)

    def narrow(self, points, lo, hi, filtered: Sequence[np.ndarray] = ()) -> Codes:
        """The codes on this device, and the query that they need; `filtered` are the codes of the filters."""
        codes = super().narrow(points, lo, hi)
        outcomes, unfiltered = [], []
        for test, (dim, _), values in zip(self.pushed, self._places, filtered):
            narrowed, outcome, exact = _constants(test, dim, values, self.device[dim].width)
            if test.side == "r":
                codes.points[dim] = narrowed
            else:
                codes.lo[dim] = codes.hi[dim] = narrowed
            outcomes.append(outcome)
            if not exact:
                unfiltered.append(test.term)
        return replace(codes, query=self.query(outcomes), unfiltered=tuple(dict.fromkeys(unfiltered)))

    def unpushed(self) -> "ChainFit":
        """The same with all filters left to the host."""
        fit = ChainFit(self._spec, self._parameters, channel=self._channel, push=False)
        fit.capacity = self.capacity
        return fit

    def instructions(self, codes: Codes) -> list[np.ndarray]:
        """The program of the codes' query, alone on the device."""
        return [compile_queries([codes.query], self._parameters).words]

    def explain(self) -> str:
        """Where each dimension, filter and column of the join goes, and what each block does."""
        return "\n".join([self.placed(), *self._lines])

    def placed(self) -> str:
        """Where each dimension, filter and column of the join goes."""
        lines = [super().explain()]
        done: dict[str, list[str]] = {}
        for test, (dim, _) in zip(self.pushed, self._places):
            done.setdefault(test.term.text, []).append(f"d{dim}")
        lines += [
            f"{text}: device {' and '.join(dict.fromkeys(dims))}, selected" for text, dims in done.items()
        ]
        lines += [f"{term.text}: host, {reason}" for term, reason in self._refused.items()]
        placed = {source for source in self.sources if source is not None}
        for side, schema in self._spec.schemas.items():
            used = self._spec.columns(side, placed)
            used |= {name for test in self.pushed if test.side == side for _, name in test.value.columns}
            sent, kept = (
                ", ".join(name for name in schema.names if (name in used) == wanted) or "none"
                for wanted in (True, False)
            )
            lines.append(f"columns of {side.upper()} that go to the device: {sent}; that do not: {kept}")
        return "\n".join(lines)


def encode(spec: JoinSpec, fit: Fit, arrivals: Arrivals) -> tuple[Fit, Encoded]:
    """Points and boxes, and the fit for them: the given one, unless its filters must be left to the host."""
    try:
        return fit, spec.encode(arrivals, fit.pushed)
    except DataError:
        if not fit.pushed:
            raise
        # The condition may fail on a row that a filter keeps out: then the host must filter first.
        return fit.unpushed(), spec.encode(arrivals)


def _products(tests: list[tuple[Pushed, Term | bool]]) -> tuple[tuple[Term, ...], ...]:
    """The products of one block's tests; none at all: nothing passes."""
    numbers = sorted({number for test, _ in tests for number in test.alternatives}) or [0]
    factors = [
        [outcome for test, outcome in tests if not test.alternatives or number in test.alternatives]
        for number in numbers
    ]
    return tuple(
        tuple(each for each in outcomes if each is not True)
        for outcomes in factors
        if not any(each is False for each in outcomes)
    )


def _text(terms: list[Node]) -> str:
    """The AND of some filters."""
    alone = len(terms) == 1
    return " AND ".join(term.text if alone or term.op != "or" else f"({term.text})" for term in terms)


def _constants(test: Pushed, dim: int, values: np.ndarray, width: int):
    """The device's codes of a filter's values, the term that tests them, or what that gives for all of them,
    and whether that is exact.
    """
    if not len(values):
        return values, True, True
    smallest, largest = int(values.min()), int(values.max())
    shift = max(0, (largest - smallest).bit_length() - width)
    codes = (values - np.uint64(smallest)) >> np.uint64(shift)
    if test.lo > largest or test.hi < smallest:
        return codes, test.negated, True
    if test.negated and shift:
        return codes, True, False  # what is coarse would lose tuples
    low, high = ((min(max(bound, smallest), largest) - smallest) >> shift for bound in (test.lo, test.hi))
    if test.side == "r":
        return codes, Term(dim, Test.BAND, test.negated, low, high), not shift
    # The constant is a point, and the value both bounds of the tuple's box.
    if test.lo == test.hi:
        return codes, Term(dim, Test.EQUAL, test.negated, low, low), not shift
    seen, point = (Test.AT_MOST, low) if test.lo else (Test.AT_LEAST, high)
    return codes, Term(dim, seen, test.negated, point, point), not shift
