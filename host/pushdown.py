"""Push-down: which one-sided terms of a condition a device can test itself, as constants on a dimension."""

from dataclasses import dataclass

import numpy as np

from hw.dimension import Test

from . import encoding
from .evaluate import Rows, evaluate
from .expression import Node
from .plan import Plan
from .term import FLIPPED, OPPOSITE, inexact, strip

_ANY = Rows({}, {}, 1)


@dataclass(frozen=True)
class Pushed:
    """One comparison of an expression over one side with constants: `lo <= value <= hi` in codes, or not."""

    side: str
    term: Node  #: the whole term that it is part of
    value: Node
    test: Test
    negated: bool
    lo: np.uint64
    hi: np.uint64


def pushable(plan: Plan) -> tuple[list[list[Pushed]], dict[Node, str]]:
    """The filters that a device can do, each as comparisons that must all hold; and why not the others."""
    found, refused = [], {}
    for disjunct in plan.filters:
        for side, terms in disjunct.items():
            for term in terms:
                if plan.disjuncts > 1:
                    refused[term] = "the host tells alternatives apart"
                    continue
                tests = _tests(side, term, term, True)
                if isinstance(tests, str):
                    refused[term] = tests
                else:
                    found.append(tests)
    return found, refused


def _tests(side: str, term: Node, node: Node, wanted: bool) -> list[Pushed] | str:
    """The comparisons that `node` is made of, or why it cannot be made of any."""
    if node.op == "not":
        return _tests(side, term, node.args[0], not wanted)
    if node.op in ("between", "and") and wanted:
        parts = [_tests(side, term, arg, True) for arg in node.args]
        refusals = [part for part in parts if isinstance(part, str)]
        return refusals[0] if refusals else [test for part in parts for test in part]
    if node.op not in FLIPPED:
        return "it is no comparison with a constant"
    op = node.op if wanted else OPPOSITE[node.op]
    value, bound = node.args
    if not value.columns:
        value, op, bound = bound, FLIPPED[op], value
    if bound.columns:
        return "it compares with a column"
    value = strip(value)
    if reason := inexact(value.type):
        return reason
    constant = evaluate(bound, _ANY)
    if constant.null_count:
        return "its constant is NULL"
    strict = op in ("lt", "gt")
    (lo,), (below,) = encoding.lower(constant, value.type, strict)
    (hi,), (above,) = encoding.upper(constant, value.type, strict)
    if op in ("eq", "ne"):
        if below or above or lo != hi:
            return "no value equals its constant"
        return [Pushed(side, term, value, Test.EQUAL, op == "ne", lo, hi)]
    if op in ("ge", "gt"):
        if below:
            return "no value reaches its constant"
        return [Pushed(side, term, value, Test.AT_LEAST, False, lo, encoding.HIGHEST)]
    if above:
        return "no value reaches its constant"
    return [Pushed(side, term, value, Test.AT_MOST, False, np.uint64(0), hi)]
