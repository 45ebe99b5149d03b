"""Joins of three streams on a chain of OP-Blocks: (R join S) join T, in one run of both joins.

::

    R, S -> [ join cores of inner ] -- composites --> [ join cores of outer ] -> triples
    T -------------------------------------------------^
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hw.dimension import Dimension
from hw.errors import DeviceError, SpecError
from hw.instruction import Part
from hw.parameters import Parameters
from hw.socket import Tag
from hw.words import Results, pack_boxes, pack_points

from . import encoding
from .arrival import Arrivals, Side
from .evaluate import Rows, evaluate
from .expression import Node
from .fit import Fit
from .output import joined_rows, result_names
from .program import Composition, Query, Term, compile_queries, enter
from .spec import Boxes, Encoded, JoinSpec, Points
from .tiling import Reach

#: The column of a composite that holds the time of its later member.
COMPOSITE_TIME = "rs_time"


def composite_schema(inner: JoinSpec) -> pa.Schema:
    """The columns of the pairs of `inner`, as R of a join with a third stream: a result's, and the time."""
    r_names, s_names = result_names(inner.r_schema.names, inner.s_schema.names)
    named = zip([*inner.r_schema, *inner.s_schema], [*r_names, *s_names])
    fields = [field.with_name(name) for field, name in named]
    return pa.schema([*fields, pa.field(COMPOSITE_TIME, inner.time_type, nullable=False)])


def composites(
    inner: JoinSpec, arrivals: Arrivals, r: np.ndarray, s: np.ndarray
) -> tuple[pa.Table, np.ndarray]:
    """Pairs of rows as rows of `composite_schema`, and their times."""
    rows = joined_rows(arrivals.r.rows.take(pa.array(r)), arrivals.s.rows.take(pa.array(s)))
    time = np.maximum(arrivals.r.time[r], arrivals.s.time[s])
    moment = composite_schema(inner).field(COMPOSITE_TIME)
    stored = pa.array(time, pa.int64()).cast(pa.int64() if moment.type.bit_width == 64 else pa.int32())
    return rows.append_column(moment, stored.cast(moment.type)), time


def check_three(inner: JoinSpec, outer: JoinSpec) -> None:
    """Refuses specs that do not make a join of three streams."""
    if outer.r_schema != composite_schema(inner) or outer.time[0] != COMPOSITE_TIME:
        raise SpecError(
            f"outer must be a spec over composite_schema(inner) with the time {COMPOSITE_TIME!r}, "
            f"not over {outer.r_schema.names} with {outer.time[0]!r}"
        )
    if outer.tiebreak:
        raise SpecError(
            "outer must have no tiebreak, because pairs come in the order in which inner finds them, "
            f"not {outer.tiebreak}"
        )


@dataclass(frozen=True)
class Carried:
    """A dimension of the outer join that composites carry: whose part it is, and the expression over it."""

    number: int
    part: Part
    point: Node | None  #: None: the time


@dataclass(frozen=True)
class Run:
    """What the triples of one run are resolved by."""

    arrivals: Arrivals
    third: Side
    encoded: Encoded
    boxes: Boxes
    inner_open: frozenset[int]  #: the inner join's dimensions that the device does not decide alone
    outer_open: frozenset[int]  #: the same of the outer join


class ThreeWay:
    """How a join of three streams lies on a chain.

    The first dimensions of the device are those of the inner join. The rest carry what the outer join needs:
    an R or S tuple has there its member's part of the composite, a tuple of the third stream its box. The
    host rechecks what no dimension is left for, what both members decide together, and coarse codes.
    """

    def __init__(self, inner: JoinSpec, outer: JoinSpec, parameters: Parameters):
        self._inner, self._outer, self._p = inner, outer, parameters
        names = result_names(inner.r_schema.names, inner.s_schema.names)
        self._names = dict(zip("rs", names))
        width, count = parameters.dims[0].width, len(parameters.dims)
        own = inner.dimensions[: count - 1]
        self._inner_fit = Fit(inner.dimensions, [Dimension(dim.test, width, dim.negated) for dim in own])
        carried = self._carried_dimensions()
        self._carried, self._left = carried[: count - len(own)], carried[count - len(own) :]
        wanted = [outer.dimensions[each.number] for each in self._carried]
        self._outer_fit = Fit(wanted, [Dimension(dim.test, width, dim.negated) for dim in wanted])
        parts = [Part.R] * len(own) + [each.part for each in self._carried]
        parts += [Part.R] * (count - len(parts))
        first = Query(_terms(self._inner_fit, 0), composition=Composition(tuple(parts), tuple(range(count))))
        second = Query(_terms(self._outer_fit, len(own)), r=first, s=1)
        self._program = compile_queries([first, second], parameters)

    def _carried_dimensions(self) -> list[Carried]:
        """The outer join's dimensions that one member decides, and its time, which is the later member's."""
        carried = []
        for number, point in enumerate(self._outer.points()):
            columns = {name for _, name in point.columns}
            members = [side for side in "rs" if columns <= set(self._names[side])]
            if members:
                carried.append(Carried(number, Part.R if members[0] == "r" else Part.S_LO, point))
        return [*carried, Carried(len(self._outer.dimensions) - 1, Part.LATER, None)]

    def explain(self) -> str:
        """One line per dimension of both joins: where it is decided, and by whose value; then the blocks."""
        first = len(self._inner_fit.device)
        placed = {each.number: (first + place, each.part) for place, each in enumerate(self._carried)}
        whose = {Part.R: "R's value", Part.S_LO: "S's value", Part.LATER: "the later member's time"}
        left = {each.number for each in self._left}
        lines = [self._inner_fit.explain()]
        for number, dimension in enumerate(self._outer.dimensions):
            if number in placed:
                place, part = placed[number]
                where = f"device d{place}, {whose[part]}"
            elif number in left:
                where = "host, no device dimension is free for it"
            else:
                where = "host, both members decide it"
            lines.append(f"{dimension.text}: {where}")
        return "\n".join([*lines, *self._program.lines])

    def runs(self, arrivals: Arrivals, third: Arrivals) -> Iterator[tuple[list[np.ndarray], Run]]:
        """The words of each run, and what its triples are resolved by.

        A run takes so many rows of each stream that none leaves its window. Only rows of the third stream
        are loaded ahead, so that of each pair the device sees the members in order of arrival.
        """
        encoded, codes = self._members(arrivals, self._inner.encode(arrivals))
        boxes = self._outer.encode(third).boxes
        places = arrivals.r.place[encoded.points.row], arrivals.s.place[encoded.boxes.row]
        reach = Reach.of(self._inner.dimensions, encoded, *places)
        times = (
            arrivals.r.time[encoded.points.row],
            arrivals.s.time[encoded.boxes.row],
            third.s.time[boxes.row],
        )
        window = self._outer.window
        capacities = self._program.capacity(0), self._program.capacity(1)
        for r in _chunks(len(times[0]), capacities[0]):
            for s in _chunks(len(times[1]), capacities[0]):
                if reach.first[s.start] >= r.stop or reach.last[s.stop - 1] <= r.start:
                    continue
                begin, end = np.maximum(times[0][r][[0, -1]], times[1][s][[0, -1]]).tolist()
                for t in _chunks(len(times[2]), capacities[1]):
                    if end - int(times[2][t][0]) >= -window.r and begin - int(times[2][t][-1]) <= window.s:
                        words, left = self._words(places, encoded, boxes, codes, r, s, t)
                        yield [self._program.words, *words], Run(arrivals, third.s, encoded, boxes, *left)

    def _members(self, arrivals: Arrivals, encoded: Encoded) -> tuple[Encoded, list[dict[str, np.ndarray]]]:
        """The rows that composites may be made of, and their codes in each carried dimension."""
        points, boxes = encoded.points, encoded.boxes
        sides = {"r": (arrivals.r, points.row), "s": (arrivals.s, boxes.row)}
        keep = {name: np.ones(len(rows), bool) for name, (_, rows) in sides.items()}
        codes = []
        for each in self._carried:
            if each.part is Part.LATER:
                codes.append({name: encoding.signed(side.time[rows]) for name, (side, rows) in sides.items()})
                continue
            name = "r" if each.part is Part.R else "s"
            side, rows = sides[name]
            table = Rows.of("r", side.rows.rename_columns(self._names[name])).take(rows)
            code, valid = encoding.encode(evaluate(each.point, table))
            if self._outer.disjuncts == 1:
                keep[name] &= valid  # NULL joins nothing
            codes.append({name: code})
        r, s = keep["r"], keep["s"]
        kept = Encoded(
            Points(points.row[r], tuple(code[r] for code in points.codes)),
            Boxes(
                boxes.row[s],
                boxes.disjunct[s],
                *(tuple(code[s] for code in bound) for bound in (boxes.lo, boxes.hi)),
            ),
        )
        return kept, [{name: code[keep[name]] for name, code in each.items()} for each in codes]

    def _words(self, places, encoded: Encoded, boxes: Boxes, codes, r: slice, s: slice, t: slice):
        """T's boxes, then points and boxes of R and S as they arrive; and what the device leaves open."""
        dims, own = self._p.dims, len(self._inner_fit.device)
        points = [code[r] for code in encoded.points.codes]
        lo, hi = ([code[s] for code in bound] for bound in (encoded.boxes.lo, encoded.boxes.hi))
        narrowed = self._inner_fit.narrow(points, lo, hi)
        members = [{name: code[r if name == "r" else s] for name, code in each.items()} for each in codes]
        outer = self._outer_fit.narrow(
            [np.concatenate(list(each.values())) for each in members],
            *([bound[each.number][t] for each in self._carried] for bound in (boxes.lo, boxes.hi)),
        )

        def padded(values, count):
            return [*values, *[np.zeros(count, np.uint64)] * (len(dims) - len(values))]

        carried = {"r": [], "s": []}
        for each, code in zip(members, outer.points):
            at = 0
            for name, values in each.items():
                carried[name].append(code[at : at + len(values)])
                at += len(values)
            for name in carried.keys() - each.keys():
                carried[name].append(np.zeros(len(points[0]) if name == "r" else len(lo[0]), np.uint64))
        sent = narrowed.sent
        r_ids, s_ids = np.arange(r.start, r.stop), np.arange(s.start, s.stop)[sent]
        r_words = pack_points(dims, r_ids, padded([*narrowed.points, *carried["r"]], len(r_ids)))
        s_words = pack_boxes(
            dims,
            s_ids,
            *(
                padded([*(b[sent] for b in bound), *(c[sent] for c in carried["s"])], len(s_ids))
                for bound in (narrowed.lo, narrowed.hi)
            ),
        )
        t_ids = np.arange(t.start, t.stop)[outer.sent]
        skipped = [np.zeros(len(t_ids), np.uint64)] * own
        t_words = pack_boxes(
            dims,
            t_ids,
            *(
                padded([*skipped, *(b[outer.sent] for b in bound)], len(t_ids))
                for bound in (outer.lo, outer.hi)
            ),
        )
        place = np.concatenate([places[0][r_ids], places[1][s_ids]])
        both = np.concatenate([r_words, s_words])[np.argsort(place, kind="stable")]
        exact = {each.number for k, each in enumerate(self._carried) if k not in outer.unchecked}
        left = narrowed.unchecked, frozenset(range(len(self._outer.dimensions))) - exact
        return [enter(1, self._p), t_words, enter(0, self._p), both], left

    def triples(self, run: Run, results: Results) -> pa.Table:
        """The rows of the results of one run. A composite's id is looked up among those put out."""
        made = results.tag == Tag.COMPOSITE.value
        ids = results.composite[made]
        order = np.argsort(ids)
        ids = ids[order]
        if (ids[1:] == ids[:-1]).any():
            raise DeviceError("the device gave two composites one id, after too many of them in one run")
        pairs = (results.tag == Tag.PAIR.value) & (results.query == 1)
        asked = results.r_id[pairs]
        unknown = asked[~np.isin(asked, ids)]
        if len(unknown):
            raise DeviceError(f"the device paired the composite {unknown[0]}, which it has not put out")
        used, composite = np.unique(np.searchsorted(ids, asked), return_inverse=True)
        t_box = results.s_id[pairs].astype(np.int64)
        point, box = (
            part[made][order][used].astype(np.int64) for part in (results.composite_r, results.composite_s)
        )
        valid = self._inner.refine(run.arrivals, run.encoded, point, box, run.inner_open)
        kept = valid[composite]
        composite, t_box = composite[kept], t_box[kept]
        r_rows, s_rows = run.encoded.points.row[point], run.encoded.boxes.row[box]
        if run.outer_open or not self._outer.decided or self._outer.filters("r"):
            composite, t_box = self._refined(run, r_rows, s_rows, composite, t_box)
        rows, _ = composites(self._inner, run.arrivals, r_rows[composite], s_rows[composite])
        return joined_rows(rows, run.third.rows.take(pa.array(run.boxes.row[t_box])))

    def _refined(self, run: Run, r_rows, s_rows, composite, t_box) -> tuple[np.ndarray, np.ndarray]:
        """Those triples that meet what the device left open of the outer join."""
        used, composite = np.unique(composite, return_inverse=True)
        rows, time = composites(self._inner, run.arrivals, r_rows[used], s_rows[used])
        is_t = np.repeat([False, True], [len(time), len(run.third.time)])
        both = Arrivals.ordered(rows, run.third.rows, time, run.third.time, is_t)
        encoded = self._outer.encode(both)
        place = np.full(len(used), -1)
        place[encoded.points.row] = np.arange(len(encoded.points.row))
        known = place[composite] >= 0
        composite, t_box = composite[known], t_box[known]
        kept = self._outer.refine(both, encoded, place[composite], t_box, run.outer_open)
        return used[composite[kept]], t_box[kept]


def _terms(fit: Fit, first: int) -> tuple[Term, ...]:
    """The tests of a fit's dimensions, which begin at `first` on the device."""
    return tuple(Term(first + place, dim.test, dim.negated) for place, dim in enumerate(fit.device))


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
