"""Conditions become disjuncts of terms, or one clear sentence."""

import pyarrow as pa
import pytest

from host.condition import parse_condition
from host.expression import Scope
from host.term import Bound, Filter, Outside, Residual
from hw.errors import SpecError

R = pa.schema(
    [("x", pa.int32()), ("y", pa.int32()), ("u", pa.float64()), ("name", pa.string()), ("b", pa.bool_())]
)
S = pa.schema(
    [("a", pa.int32()), ("c", pa.int64()), ("v", pa.float64()), ("tag", pa.string()), ("e", pa.bool_())]
)


def parse(text):
    return parse_condition(text, Scope(R, S, "UTC"))


def shape(text):
    """Disjuncts as text: the kind of each term and what it says."""
    found = []
    for terms in parse(text):
        found.append([])
        for term in terms:
            match term:
                case Filter():
                    found[-1].append(f"{term.side}: {term.term.text}")
                case Bound():
                    found[-1].append(
                        f"{term.point.text} {term.op} {term.bound.text}{'' if term.exact else '?'}"
                    )
                case Outside():
                    found[-1].append(f"{term.point.text} outside {term.low.text}, {term.high.text}")
                case Residual():
                    found[-1].append(f"? {term.term.text}")
    return found


@pytest.mark.parametrize(
    ("text", "disjuncts"),
    [
        ("r.x = s.a", [["r.x eq s.a"]]),
        ("s.a < r.x", [["r.x gt s.a"]]),
        ("s.a <= r.x + 10", [["r.x + 10 ge s.a"]]),
        ("r.x BETWEEN s.a - 1 AND s.a + 1", [["r.x ge s.a - 1", "r.x le s.a + 1"]]),
        ("r.x NOT BETWEEN s.a AND s.c", [["r.x outside s.a, s.c"]]),
        ("NOT r.x < s.a", [["r.x ge s.a"]]),
        ("NOT (r.x = s.a AND r.u = s.v)", [["r.x ne s.a"], ["r.u ne s.v"]]),
        ("r.x > 5 AND r.x = s.a", [["r: r.x > 5", "r.x eq s.a"]]),
        ("(r.x > 5 OR r.b) AND r.x = s.a", [["r: r.x > 5 OR r.b", "r.x eq s.a"]]),
        ("(r.x > 5 OR s.e) AND r.x = s.a", [["r: r.x > 5", "r.x eq s.a"], ["s: s.e", "r.x eq s.a"]]),
        ("r.name = s.tag", [["r.name eq s.tag?"]]),
        ("r.name <> s.tag", [["? r.name <> s.tag"]]),
        ("abs(r.x - s.a) <= 3", [["r.x le s.a + 3", "r.x ge s.a - 3"]]),
        ("abs(r.x - s.a) >= 3", [["r.x ge s.a + 3?"], ["r.x le s.a - 3?"]]),
        ("r.x - s.a <= 3", [["r.x le s.a + 3?"]]),
        ("r.x - s.a = 3", [["r.x eq s.a + 3"]]),
        ("r.x - s.a <> 3", [["? r.x - s.a <> 3"]]),
        ("s.a - r.x <= 3", [["r.x ge s.a - 3?"]]),
        ("r.u - s.v <= 3", [["r.u le r.u - s.v <= 3?"]]),
        ("true", [[]]),
        ("1 > 2", []),
        ("1 > 2 OR r.x = s.a", [["r.x eq s.a"]]),
        ("r.x = s.a OR true", [["r.x eq s.a"], []]),
        ("NULL AND r.x = s.a", []),
        ("r.x = s.a AND r.x = s.a", [["r.x eq s.a"]]),
    ],
)
def test_disjuncts(text, disjuncts):
    found = shape(text)
    assert [sorted(terms) for terms in found] == [sorted(terms) for terms in disjuncts]


BOX = (
    "is not point-in-box; a term must compare an expression of R with an expression of S, "
    "or a sum of both with a bound"
)
ON = "on must be a condition in Spark SQL, such as 'r.x = s.a'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("r.name LIKE s.tag", f"`r.name LIKE s.tag` {BOX}"),
        ("r.x * s.a > 3", f"`r.x * s.a > 3` {BOX}"),
        ("r.x = s.a AND r.x * s.a - 1 > 3", f"`r.x * s.a - 1 > 3` {BOX}"),
        ("abs(r.x - s.a) + 1 < 3", f"`ABS(r.x - s.a) + 1 < 3` {BOX}"),
        ("abs(r.x - s.a) < abs(r.y - s.c)", f"`ABS(r.x - s.a) < ABS(r.y - s.c)` {BOX}"),
        ("(r.x > s.a) = r.b", f"`(r.x > s.a) = r.b` {BOX}"),
        ("(r.x > s.a) IS NULL", f"`(r.x > s.a) IS NULL` {BOX}"),
        ("r.name < s.tag", "`r.name < s.tag` compares strings of R and S; accepted are = and <>"),
        (
            "r.u - s.v <= r.x",
            "`r.u - s.v <= r.x` has R in more than one place; write it with one expression of R, "
            "such as (r.x + r.y) - s.a",
        ),
        ("r.x + s.a", "`r.x + s.a` is int, where a condition (boolean) is needed"),
        (
            " AND ".join(f"(r.x = s.a + {k} OR r.y = s.a + {k})" for k in range(5)),
            "on must have at most 16 alternatives once OR is moved outward, not 32, in "
            + repr(" AND ".join(f"(r.x = s.a + {k} OR r.y = s.a + {k})" for k in range(5))),
        ),
        ("SELECT 1", f"{ON}, not 'SELECT 1'"),
        ("r.x = s.a; true", f"{ON}, not 'r.x = s.a; true'"),
        ("r.x = s.a AS q", f"{ON}, not 'r.x = s.a AS q'"),
        (5, f"{ON}, not 5"),
    ],
)
def test_refused(text, message):
    with pytest.raises(SpecError) as error:
        parse(text)
    assert str(error.value) == message


@pytest.mark.parametrize("text", ["", "r.x =", "r.x = (s.a", "r.x = 'a"])
def test_syntax_errors(text):
    with pytest.raises(SpecError) as error:
        parse(text)
    assert str(error.value).startswith(f"{ON}, not {text!r}: ")
    assert "\n" not in str(error.value)
