"""The query compiler: block assignments, instructions, and what does not fit."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from host.chain_fit import ChainFit
from host.program import Composition, Projection, Query, Selection, Term, compile_queries
from host.spec import JoinSpec
from hw.dimension import Test
from hw.errors import SpecError
from hw.instruction import Opcode, Part, decode
from hw.parameters import OPBLOCK_DIMS, Parameters
from hw.socket import tuple_layout
from hw.words import unpack

DEVICE = Parameters("opblock", cores=8, segment=4, lanes=4, dims=OPBLOCK_DIMS)
KEY = (Term(0, Test.EQUAL),)


def instructions(program):
    """Opcode, block and operands of each, in order."""
    return [decode(bits) for bits in unpack(tuple_layout(DEVICE.dims), program.words, "id").tolist()]


def select(side: str = "r") -> Selection:
    return Selection(side, ((Term(1, Test.AT_LEAST, lo=6),),), f"{side}.y >= 6")


def spec(on: str) -> JoinSpec:
    columns = {"ts": pa.int64(), "x": pa.int32(), "y": pa.float32(), "k": pa.string()}
    schema = pa.schema(list(columns.items()))
    return JoinSpec(on, 10, "ts", schema, schema)


def test_one_join_takes_all_blocks():
    program = compile_queries([Query(KEY)], DEVICE)
    assert program.joins == (range(8),) and program.capacity(0) == DEVICE.capacity
    shares = [operands for opcode, _, operands in instructions(program) if opcode is Opcode.SHARE]
    assert shares == [{"position": k, "last": 7} for k in range(8)]
    assert instructions(program)[-1][0] is Opcode.ENTER


def test_filters_come_first_and_take_a_block_each():
    program = compile_queries([Query(KEY, (select("r"), select("s")))], DEVICE)
    assert program.joins == (range(2, 8),)
    assert program.lines == (
        "block 0: select R where r.y >= 6",
        "block 1: select S where s.y >= 6",
        "blocks 2 to 7: join cores of query 0, windows of 24 tuples",
    )
    roles = [(opcode, operands) for opcode, _, operands in instructions(program)]
    selects = [operands for opcode, operands in roles if opcode is Opcode.SELECT]
    join = next(operands for opcode, operands in roles if opcode is Opcode.JOIN)
    assert [each["side"] for each in selects] == [0, 1]
    assert (join["r_channel"], join["s_channel"]) == tuple(each["target"] for each in selects)
    assert unpack(tuple_layout(DEVICE.dims), program.words, "dims.box.d1.lo")[0] == 6


def test_tuples_that_another_query_reads_are_kept():
    queries = [Query(KEY, (select(),)), Query(KEY), Query(KEY, (select(),), r=3)]
    selects = [
        operands
        for opcode, _, operands in instructions(compile_queries(queries, DEVICE))
        if opcode is Opcode.SELECT
    ]
    assert [each["keep"] for each in selects] == [1, 0]
    assert len({each["target"] for each in selects} | {0, 3}) == 4


def test_composites_go_to_a_channel_that_the_next_join_reads():
    first = Query(KEY, composition=Composition((Part.R, Part.S_LO, Part.LATER, Part.R), (2, 1, None, 3)))
    program = compile_queries([first, Query(KEY, r=first, s=1)], DEVICE)
    told = instructions(program)
    target = next(operands["target"] for opcode, _, operands in told if opcode is Opcode.COMPOSE)
    last = [operands for opcode, _, operands in told if opcode is Opcode.JOIN][-1]
    assert last["r_channel"] == target and last["s_channel"] == 1
    routes = {
        (operands["dim"], operands["source"], operands["drop"])
        for op, _, operands in told
        if op is Opcode.ROUTE
    }
    assert routes == {(0, 2, 0), (2, 0, 1)}
    assert program.joins == (range(4), range(4, 8))


def test_projections_route_dimensions():
    program = compile_queries([Query(KEY, (Projection("s", (1, 0, 2, None)),))], DEVICE)
    told = instructions(program)
    assert told[0][0] is Opcode.PROJECT and told[0][2]["side"] == 1
    assert [operands["dim"] for opcode, _, operands in told if opcode is Opcode.ROUTE] == [0, 1, 3]


@pytest.mark.parametrize(
    "queries, message",
    [
        (
            [Query(KEY, (select("r"), select("s"), Projection("r", (0, 1, 2, 3))))] * 2 + [Query(KEY)],
            "needs 9 blocks, the device has 8: "
            "query 0 a selection of R, a selection of S, a projection of R, a join core; "
            "query 1 a selection of R, a selection of S, a projection of R, a join core; "
            "query 2 a join core",
        ),
        ([], "a chain takes 1 to 16 queries, not 0"),
        (
            [Query(KEY, r=Query(KEY))],
            "query 0 must read channels or an earlier query that has a composition",
        ),
        (
            [Query(KEY, (Selection("r", ((Term(0, Test.EQUAL),),) * 5),))],
            "a selection takes 4 products at most, not 5",
        ),
    ],
)
def test_what_does_not_fit_is_refused(queries, message):
    with pytest.raises(SpecError) as error:
        compile_queries(queries, DEVICE)
    assert str(error.value) == message


def test_a_dimension_has_one_test_per_block():
    twice = Selection("r", ((Term(0, Test.EQUAL, lo=1),), (Term(0, Test.EQUAL, lo=2),)))
    with pytest.raises(SpecError, match="dimension 0 must be tested in one way per block"):
        compile_queries([Query(KEY, (twice,))], DEVICE)


@pytest.mark.parametrize(
    "on, pushed, host",
    [
        ("r.x = s.x AND r.y > 6", {"r.y > 6"}, {}),
        ("r.x = s.x AND r.y > 6 AND s.y <= 2", {"r.y > 6", "s.y <= 2"}, {}),
        ("r.x = s.x AND r.x BETWEEN 2 AND 9", {"r.x BETWEEN 2 AND 9"}, {}),
        ("r.x = s.x AND 5 <> s.x", {"5 <> s.x"}, {}),
        ("r.x = s.x AND r.k = 'a'", set(), {"r.k = 'a'": "strings are compared by hash"}),
        ("r.x = s.x AND r.y > r.x", set(), {"r.y > r.x": "it compares with a column"}),
        ("r.x = s.x AND r.k IS NULL", set(), {"r.k IS NULL": "it is no comparison with a constant"}),
        ("r.x = s.x AND r.x = 2.5", set(), {"r.x = 2.5": "no value meets it"}),
        ("r.x = s.x AND r.x <> 2.5", set(), {"r.x <> 2.5": "it holds for every value but NULL"}),
        ("r.x = s.x AND (r.y > 6 OR r.y < 2)", {"r.y > 6 OR r.y < 2"}, {}),
        ("r.x = s.x AND (r.y > 6 OR r.x = 2)", {"r.y > 6 OR r.x = 2"}, {}),
        ("r.x = s.x AND s.y NOT BETWEEN 2 AND 6", {"NOT (s.y BETWEEN 2 AND 6)"}, {}),
        ("r.x = s.x AND r.x IN (1, 4, 9)", {"r.x IN (1, 4, 9)"}, {}),
        (
            "r.x = s.x AND s.x IN (1, 4, 9)",
            set(),
            {"s.x IN (1, 4, 9)": "no device dimension is free for it"},
        ),
        (
            "r.x = s.x AND r.x IN (1, 3, 5, 7, 9)",
            set(),
            {"r.x IN (1, 3, 5, 7, 9)": "it has more than 4 alternatives"},
        ),
        (
            "r.x = s.x AND (s.x = 1 AND s.y = 1 OR s.x = 3 AND s.y = 5 OR s.x = 5 AND s.y < 9 OR "
            "s.x = 7 AND s.y = 2 OR s.x > 9 AND s.y = 4)",
            set(),
            {
                "s.x = 1 AND s.y = 1 OR s.x = 3 AND s.y = 5 OR s.x = 5 AND s.y < 9 OR "
                "s.x = 7 AND s.y = 2 OR s.x > 9 AND s.y = 4": "it has more than 4 alternatives"
            },
        ),
        (
            "r.x = s.x AND (r.y < 3 AND r.x > 2 OR r.y > 5 AND r.x < 4)",
            set(),
            {"r.y < 3 AND r.x > 2 OR r.y > 5 AND r.x < 4": "no device dimension is free for it"},
        ),
        (
            "r.x = s.x AND (r.x > 3 OR r.k IS NULL)",
            set(),
            {"r.x > 3 OR r.k IS NULL": "it is no comparison with a constant"},
        ),
        (
            "r.x = s.x AND r.y > 1 OR r.y = s.y",
            set(),
            {"r.y > 1": "the host tells alternatives apart"},
        ),
        (
            "s.x = r.x AND s.y > 1 AND s.x > 2 AND s.ts > 3",
            {"s.y > 1", "s.x > 2"},
            {"s.ts > 3": "no device dimension is free for it"},
        ),
        # A filter of R may test what the join tests.
        ("r.x = s.x AND r.y > 1 AND r.x > 2 AND r.ts > 3", {"r.y > 1", "r.x > 2", "r.ts > 3"}, {}),
        (
            "r.x <> s.x AND r.y > 1 AND r.x > 2 AND r.ts > 3",
            {"r.y > 1", "r.x > 2"},
            {"r.ts > 3": "no device dimension is free for it"},
        ),
    ],
)
def test_which_filters_are_pushed_down(on, pushed, host):
    fit = ChainFit(spec(on), DEVICE)
    assert {test.term.text for test in fit.pushed} == pushed
    assert {term.text: reason for term, reason in fit._refused.items()} == host


def test_without_a_free_block_filters_stay_on_the_host():
    text = "r.x = s.x AND r.y > 1 AND s.y > 1"
    fit = ChainFit(spec(text), replace(DEVICE, cores=2))
    assert [test.term.text for test in fit.pushed] == ["r.y > 1"]
    assert "s.y > 1: host, no block is free for it" in fit.explain()


def test_two_filters_with_alternatives_take_a_block_each():
    wide = replace(DEVICE, dims=OPBLOCK_DIMS * 2)
    fit = ChainFit(spec("r.x = s.x AND (r.y > 1 OR r.x < 2) AND (r.y < 0 OR r.ts > 3) AND r.ts < 9"), wide)
    assert [(each.text, len(each.products)) for each in fit.query([]).filters] == [
        ("(r.y > 1 OR r.x < 2) AND r.ts < 9", 2),
        ("r.y < 0 OR r.ts > 3", 2),
    ]


def test_explain_names_filters_columns_and_blocks():
    text = ChainFit(spec("r.x = s.x AND r.y > 6 AND s.k = 'b'"), DEVICE).explain()
    assert text.splitlines() == [
        "r.x = s.x: device d0 (equal32)",
        "-10 <= r.ts - s.ts <= 10: device d1 (band32)",
        "r.y > 6: device d2, selected",
        "s.k = 'b': host, strings are compared by hash",
        "columns of R that go to the device: ts, x, y; that do not: k",
        "columns of S that go to the device: ts, x; that do not: y, k",
        "block 0: select R where r.y > 6",
        "blocks 1 to 7: join cores of query 0, windows of 28 tuples",
    ]


def test_constants_outside_the_values_pass_all_or_nothing():
    """A filter's constants follow the rebased codes, and may lie beyond all of them."""
    fit = ChainFit(spec("r.x = s.x AND r.y > 6 AND s.y <> 1"), DEVICE)
    one = [np.array([5], np.uint64)] * 2
    low, high = (np.array([code], np.uint64) for code in (0, 2**64 - 1))
    assert [each.products for each in fit.narrow(one, one, one, [low, high]).query.filters] == [(), ((),)]


@pytest.mark.parametrize(
    "on, selections",
    [
        # What lies outside one range is a negated band; ranges that touch are one.
        ("(r.y > 6 OR r.y < 2) AND r.x IN (2, 1)", {"r": [[{2: True, 3: False}]]}),
        # Ranges with gaps: one test for all, and one for each gap, in another dimension while one is free.
        ("r.x IN (1, 4, 9)", {"r": [[{2: False, 3: True}], [{2: True}]]}),
        ("r.x IN (1, 4) AND r.y > 3", {"r": [[{2: False, 3: False}], [{2: True}]]}),
        # A box of S meets one constant at a time, so that a gap is an OR.
        ("s.x NOT BETWEEN 2 AND 6", {"s": [[{2: False}, {3: False}]]}),
        ("s.x NOT IN (1, 3)", {"s": [[{2: True, 3: True}]]}),
        ("(r.x > 3 OR r.y < 2)", {"r": [[{2: False}, {3: False}]]}),
    ],
)
def test_filters_become_products(on, selections):
    """Of each block, of each product, the dimensions and whether they are tested negated."""
    fit = ChainFit(spec(f"r.ts = s.ts AND {on}"), DEVICE)
    codes = [np.arange(100, dtype=np.uint64) << np.uint64(27)] * 2
    filtered = [np.arange(100, dtype=np.uint64) + np.uint64(test.lo or test.hi) for test in fit.pushed]
    filtered = [values - np.minimum(values.min(), np.uint64(50)) for values in filtered]
    found = {}
    for each in fit.narrow(codes, codes, codes, filtered).query.filters:
        products = [{term.dim: term.negated for term in terms} for terms in each.products]
        found.setdefault(each.side, []).append(products)
    assert found == selections
