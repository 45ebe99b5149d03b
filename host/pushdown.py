"""Push-down: which one-sided terms of a condition a device can test itself, as constants on dimensions.

A filter becomes an OR of alternatives, each an AND of tests; a test says that the code of an expression lies
in a range, or that it does not. What a filter says about one expression is a set of ranges: a point (of R) is
tested to lie between the first and the last, and outside each gap; a box (of S) meets one constant at a time,
so that a range has a test for each end, and gaps become alternatives.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product

from hw.instruction import PRODUCTS

from . import encoding
from .evaluate import Rows, evaluate
from .expression import Node
from .plan import Plan
from .term import FLIPPED, OPPOSITE, inexact, strip

_ANY = Rows({}, {}, 1)
_LAST = int(encoding.HIGHEST)
#: Ranges of codes, both ends included, in order and with gaps between them.
Ranges = tuple[tuple[int, int], ...]
#: What must hold at once: the ranges in which the code of each expression lies.
Alternative = dict[Node, Ranges]
_Test = tuple[Node, int, int, bool]


@dataclass(frozen=True)
class Pushed:
    """One test of a filter: the code of an expression lies in `lo .. hi`, or not if `negated`."""

    side: str
    term: Node  #: the whole filter
    value: Node
    lo: int
    hi: int
    negated: bool = False
    #: The alternatives in which it counts; none: in all of them.
    alternatives: frozenset[int] = frozenset()
    #: The code of NULL, which fails the test; None: rows with NULL fail the filter, and are not sent.
    missing: int | None = None


class _Refused(Exception):
    """Why the host must do a filter."""


def pushable(plan: Plan) -> tuple[list[list[Pushed]], dict[Node, str]]:
    """The filters that a device can do, each as its tests; and why not the others."""
    found, refused = [], {}
    for disjunct in plan.filters:
        for side, terms in disjunct.items():
            for term in terms:
                try:
                    if plan.disjuncts > 1:
                        raise _Refused("the host tells alternatives apart")
                    found.append(_pushed(side, term))
                except _Refused as reason:
                    refused[term] = str(reason)
    return found, refused


def _pushed(side: str, term: Node) -> list[Pushed]:
    """The tests of a filter."""
    alternatives = _merged(_alternatives(term, True))
    if not alternatives:
        raise _Refused("no value meets it")
    if any(ranges == ((0, _LAST),) for each in alternatives for ranges in each.values()):
        raise _Refused("it holds for every value but NULL")
    lowered = [tests for each in alternatives for tests in _lowered(side, each)]
    if max(len(lowered), *(len(ranges) for each in alternatives for ranges in each.values())) > PRODUCTS:
        raise _Refused(f"it has more than {PRODUCTS} alternatives")
    always = set.intersection(*({value for value, *_ in tests} for tests in lowered))
    within: dict[_Test, set[int]] = {}
    for number, tests in enumerate(lowered):
        for test in tests:
            within.setdefault(test, set()).add(number)
    return [
        Pushed(
            side,
            term,
            *test,
            frozenset(numbers) if len(lowered) > 1 else frozenset(),
            None if test[0] in always or not test[0].nullable else _failing(*test[1:]),
        )
        for test, numbers in within.items()
    ]


def _failing(lo: int, hi: int, negated: bool) -> int:
    """A code that fails a test."""
    if negated:
        return lo
    return hi + 1 if hi < _LAST else lo - 1


def _lowered(side: str, alternative: Alternative) -> Iterator[list[_Test]]:
    """An alternative as tests that the device has for tuples of `side`, in one alternative or more."""
    choices = []
    for value, ranges in alternative.items():
        (first, _), (_, last) = ranges[0], ranges[-1]
        gaps = [(before[1] + 1, after[0] - 1) for before, after in pairwise(ranges)]
        outside = [(value, *gap, True) for gap in gaps]
        if side == "r":
            hull = [(value, first, last, False)] if (first, last) != (0, _LAST) else []
            choices.append([hull + outside])
        elif all(lo == hi for lo, hi in gaps):
            choices.append([_ends(value, first, last) + outside])
        else:
            choices.append([_ends(value, *each) for each in ranges])
    for chosen in product(*choices):
        yield [test for tests in chosen for test in tests]


def _ends(value: Node, lo: int, hi: int) -> list[_Test]:
    """A range as tests with one constant each."""
    if lo == hi:
        return [(value, lo, hi, False)]
    tests = [(value, lo, _LAST, False)] if lo else []
    return tests + ([(value, 0, hi, False)] if hi < _LAST else [])


def _alternatives(node: Node, wanted: bool) -> list[Alternative]:
    """The alternatives in which `node` is true, or false if not `wanted`: never NULL."""
    if node.op == "not":
        return _alternatives(node.args[0], not wanted)
    if node.op in ("and", "between", "or"):
        parts = [_alternatives(arg, wanted) for arg in node.args]
        # Under NOT the two change places; this also holds where NULL is involved.
        if (node.op == "or") == wanted:
            return [each for part in parts for each in part]
        both: list[Alternative] = [{}]
        for part in parts:
            both = [each for a, b in product(both, part) if (each := _both(a, b)) is not None]
            if len(both) > PRODUCTS**2:
                raise _Refused(f"it has more than {PRODUCTS} alternatives")
        return both
    return _comparison(node, wanted)


def _comparison(node: Node, wanted: bool) -> list[Alternative]:
    """A comparison with a constant: one alternative, or none if no value meets it."""
    if node.op not in FLIPPED:
        raise _Refused("it is no comparison with a constant")
    op = node.op if wanted else OPPOSITE[node.op]
    value, bound = node.args
    if not value.columns:
        value, op, bound = bound, FLIPPED[op], value
    if bound.columns:
        raise _Refused("it compares with a column")
    value = strip(value)
    if reason := inexact(value.type):
        raise _Refused(reason)
    constant = evaluate(bound, _ANY)
    if constant.null_count:
        return []
    strict = op in ("lt", "gt")
    (lo,), (below,) = encoding.lower(constant, value.type, strict)
    (hi,), (above,) = encoding.upper(constant, value.type, strict)
    lo, hi = _LAST + 1 if below else int(lo), -1 if above else int(hi)
    ranges = {
        "eq": ((lo, hi),),
        "ne": ((0, lo - 1), (hi + 1, _LAST)) if lo <= hi else ((0, _LAST),),
    }.get(op, ((lo, _LAST),) if op in ("ge", "gt") else ((0, hi),))
    ranges = tuple(each for each in ranges if each[0] <= each[1])
    return [{value: ranges}] if ranges else []


def _both(a: Alternative, b: Alternative) -> Alternative | None:
    """Where two alternatives hold; None if nowhere."""
    both = a | b
    for value in a.keys() & b.keys():
        met = ((max(x[0], y[0]), min(x[1], y[1])) for x, y in product(a[value], b[value]))
        both[value] = tuple(sorted(each for each in met if each[0] <= each[1]))
    return both if all(both.values()) else None


def _merged(alternatives: list[Alternative]) -> list[Alternative]:
    """The same with fewer alternatives: those that differ in the ranges of one expression become one."""
    merged: list[Alternative] = []
    for each in alternatives:
        while other := next((other for other in merged if _differ(each, other) < 2), None):
            merged.remove(other)
            each = {value: _united(each[value] + other[value]) for value in each}
        merged.append(each)
    return merged


def _differ(a: Alternative, b: Alternative) -> float:
    """In how many expressions' ranges two alternatives over the same expressions differ."""
    return sum(a[value] != b[value] for value in a) if a.keys() == b.keys() else float("inf")


def _united(ranges: Ranges) -> Ranges:
    """Ranges that may overlap or touch, as such that do not."""
    united: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if united and lo <= united[-1][1] + 1:
            united[-1] = united[-1][0], max(united[-1][1], hi)
        else:
            united.append((lo, hi))
    return tuple(united)
