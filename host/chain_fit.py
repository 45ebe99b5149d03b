"""Fits a join to a chain of OP-Blocks: its tests are programmed, its filters done where blocks are free."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from hw.dimension import Dimension, Test
from hw.errors import DataError
from hw.parameters import Parameters

from .arrival import Arrivals
from .fit import Codes, Fit
from .program import Query, Selection, Term, compile_queries
from .pushdown import Pushed
from .spec import Encoded, JoinSpec


class ChainFit(Fit):
    """Which dimension of a chain takes which of the join's, and which blocks do its filters.

    Every dimension is programmed to the test that is asked of it. Those that the join leaves over carry what
    filters test: an R tuple's value as its point, an S tuple's as both bounds of its box. `channel` is where
    the tuples enter. Without `push` all filters are left to the host.
    """

    def __init__(self, spec: JoinSpec, parameters: Parameters, *, channel: int = 0, push: bool = True):
        self._spec, self._parameters, self._channel = spec, parameters, channel
        width, count = parameters.dims[0].width, len(parameters.dims)
        programmed = [Dimension(dim.test, width, dim.negated) for dim in spec.dimensions[:count]]
        super().__init__(spec.dimensions, [*programmed, *parameters.dims[len(programmed) :]])
        self.pushed: list[Pushed] = []
        self._places: list[tuple[int, int]] = []  # of each: its dimension, and its block among its side's
        found, self._refused = spec.pushable()
        for tests in found if push else ():
            self._push(tests)
        if not push:
            self._refused |= {tests[0].term: "the host was asked to do it" for tests in found}
        program = compile_queries([self.query([])], parameters)
        self._lines = program.lines
        self.capacity = program.capacity(0)

    def _push(self, tests: list[Pushed]) -> None:
        """Finds dimensions and blocks for a filter, or a reason why the host must do it."""
        places = []
        for test in tests:
            dim = self._dimension(test, [*zip(self.pushed, self._places), *zip(tests, places)])
            if dim is None:
                self._refused[test.term] = "no device dimension is free for it"
                return
            used = [
                place
                for other, place in (*zip(self.pushed, self._places), *zip(tests, places))
                if other.side == test.side
            ]
            # Its own block among those of its side, unless one does not test the dimension yet.
            block = next(k for k in range(len(used) + 1) if (dim, k) not in used)
            places.append((dim, block))
        blocks = {(test.side, block) for test, (_, block) in zip(tests, places)} | {
            (test.side, block) for test, (_, block) in zip(self.pushed, self._places)
        }
        if len(blocks) >= self._parameters.cores:
            self._refused[tests[0].term] = "no block is free for it"
            return
        self.pushed += tests
        self._places += places

    def _dimension(self, test: Pushed, placed) -> int | None:
        """A dimension that carries the value of a test, or a free one."""
        mine = [(other.value, dim) for other, (dim, _) in placed if other.side == test.side]
        for value, dim in mine:
            if value == test.value:
                return dim
        taken = {dim for _, dim in mine}
        free = [dim for dim, source in enumerate(self.sources) if source is None and dim not in taken]
        return free[0] if free else None

    def query(self, terms: Sequence[Term | None]) -> Query:
        """The query, with the terms of its filters (none at all: any; None: one that always holds)."""
        groups: dict[tuple[str, int], list[tuple[Pushed, Term | None]]] = {}
        for number, (test, (dim, block)) in enumerate(zip(self.pushed, self._places)):
            term = terms[number] if terms else Term(dim, test.test)
            groups.setdefault((test.side, block), []).append((test, term))
        filters = [
            Selection(
                side,
                (tuple(term for _, term in tests if term is not None),),
                " AND ".join(dict.fromkeys(test.term.text for test, _ in tests)),
            )
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
        terms, unfiltered = [], []
        for test, (dim, _), values in zip(self.pushed, self._places, filtered):
            narrowed, term, exact = _constants(test, dim, values, self.device[dim].width)
            if test.side == "r":
                codes.points[dim] = narrowed
            else:
                codes.lo[dim] = codes.hi[dim] = narrowed
            terms.append(term)
            if not exact:
                unfiltered.append(test.term)
        return replace(codes, query=self.query(terms), unfiltered=tuple(dict.fromkeys(unfiltered)))

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


def _constants(test: Pushed, dim: int, values: np.ndarray, width: int):
    """The device's codes of a filter's values, the term that tests them (None: all pass), and if exactly."""
    if not len(values):
        return values, None, True
    smallest, largest = values.min(), values.max()
    shift = max(0, int(largest - smallest).bit_length() - width)
    codes = (values - smallest) >> np.uint64(shift)
    if test.negated and shift:
        return codes, None, False  # what is coarse would lose tuples
    if test.lo > largest or test.hi < smallest:
        # No value lies between the bounds: all pass, or none, which is to fail what always holds.
        highest = (1 << width) - 1
        never = Term(dim, Test.AT_LEAST, True, 0 if test.side == "r" else highest, highest)
        return codes, None if test.negated else never, True
    low, high = (
        int((np.clip(bound, smallest, largest) - smallest) >> np.uint64(shift))
        for bound in (test.lo, test.hi)
    )
    if test.side == "r":
        return codes, Term(dim, test.test, test.negated, low, high), not shift
    # The constant is a point, and the value both bounds of the tuple's box.
    seen_from_there = {Test.EQUAL: (Test.EQUAL, low), Test.AT_LEAST: (Test.AT_MOST, low)}
    device_test, point = seen_from_there.get(test.test, (Test.AT_LEAST, high))
    return codes, Term(dim, device_test, test.negated, point, point), not shift
