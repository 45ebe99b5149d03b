"""Several joins at once on a chain of OP-Blocks, and joins of three streams."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import numpy as np
import pyarrow as pa

from hw.dimension import Dimension
from hw.errors import DeviceError, ParameterError, SpecError
from hw.instruction import Part
from hw.socket import Tag
from hw.words import Results, pack_boxes, pack_points

from . import encoding
from .arrival import Arrivals
from .batches import batches, end
from .chain_fit import ChainFit, encode
from .device import Device
from .evaluate import Rows, evaluate
from .fit import Fit
from .output import joined_rows, result_names
from .program import Composition, Program, Query, Term, compile_queries, enter
from .runner import Runner, Stats
from .session import JoinResult
from .spec import Encoded, JoinSpec
from .tiling import Reach

#: The column of a composite that holds the time of its later member.
COMPOSITE_TIME = "rs_time"


def composite_schema(inner: JoinSpec) -> pa.Schema:
    """The columns of the pairs of `inner`, as R of a join with a third stream: a result's, and the time."""
    r_names, s_names = result_names(inner.r_schema.names, inner.s_schema.names)
    named = zip([*inner.r_schema, *inner.s_schema], [*r_names, *s_names])
    fields = [field.with_name(name) for field, name in named]
    return pa.schema([*fields, pa.field(COMPOSITE_TIME, inner.time_type, nullable=False)])


class ChainSession:
    """A chain of OP-Blocks for more than one join; `spares` take over when the device is lost."""

    def __init__(self, device: Device, spares: Sequence[Device] = ()):
        if device.parameters.architecture != "opblock":
            raise ParameterError(
                f"{device.url}: several joins at once need the architecture opblock, "
                f"not {device.parameters.architecture}"
            )
        self._runner = Runner(device, spares)
        self._p = device.parameters

    def _run(self, words: Sequence[np.ndarray]) -> tuple[Results, Stats]:
        """All results of one run, and what it took."""
        exchanges = self._runner.run(np.concatenate([*words, end(self._p.dims)]))
        stats = sum((self._runner.account(exchange) for exchange in exchanges), Stats())
        parts = [self._runner.results(exchange) for exchange in exchanges]
        return Results(*(np.concatenate(fields) for fields in zip(*parts))), stats

    # Several joins at once

    def _fits(self, specs: Sequence[JoinSpec]) -> tuple[list[ChainFit], Program]:
        """Each join on a channel of its own; filters are done by blocks if there are enough for all."""
        for push in (True, False):
            fits = [ChainFit(spec, self._p, channel=k, push=push) for k, spec in enumerate(specs)]
            queries = [fit.query([]) for fit in fits]
            if not push or sum(query.blocks for query in queries) <= self._p.cores:
                break
        program = compile_queries(queries, self._p)
        for k, fit in enumerate(fits):
            fit.capacity = program.capacity(k)
        return fits, program

    def explain(self, specs: Sequence[JoinSpec]) -> str:
        """Where each part of each join runs, and what each block does."""
        fits, program = self._fits(specs)
        parts = [
            f"query {k}\n{spec.explain()}\n{fit.placed()}" for k, (spec, fit) in enumerate(zip(specs, fits))
        ]
        return "\n".join([*parts, f"on {self._runner.device.url}:", *program.lines])

    def join_all(self, specs: Sequence[JoinSpec], arrivals: Sequence[Arrivals]) -> list[JoinResult]:
        """The results of joins that share the device, each over its own arrivals.

        Every run carries a part of each join. The stats are those of all joins together.
        """
        fits, _ = self._fits(specs)
        work: list[tuple[Encoded, Iterator]] = []
        for k, (spec, each) in enumerate(zip(specs, arrivals)):
            fits[k], encoded = encode(spec, fits[k], each)
            places = each.r.place[encoded.points.row], each.s.place[encoded.boxes.row]
            reach = Reach.of(spec.dimensions, encoded, *places)
            work.append((encoded, batches(fits[k], self._p.dims, encoded, reach)))
        pairs: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in specs]
        stats = Stats(tuples=sum(len(each.r.time) + len(each.s.time) for each in arrivals))
        for together in zip_longest(*(parts for _, parts in work)):
            active = [(k, batch) for k, batch in enumerate(together) if batch is not None]
            program = compile_queries([batch.codes.query for _, batch in active], self._p)
            words = [part for k, batch in active for part in (enter(k, self._p), batch.words)]
            results, took = self._run([program.words, *words])
            stats += took
            for number, (k, batch) in enumerate(active):
                found = (results.tag == Tag.PAIR.value) & (results.query == number)
                point, box = results.r_id[found].astype(np.int64), results.s_id[found].astype(np.int64)
                encoded, left = work[k][0], (batch.codes.unchecked, batch.codes.unfiltered)
                kept = specs[k].refine(arrivals[k], encoded, point, box, *left)
                pairs[k].append((encoded.points.row[point[kept]], encoded.boxes.row[box[kept]]))
        stats += Stats(pairs=sum(len(r) for parts in pairs for r, _ in parts))
        nothing = np.empty(0, np.int64)
        return [
            JoinResult(
                *(np.concatenate([part[side] for part in parts] or [nothing]) for side in (0, 1)), stats
            )
            for parts in pairs
        ]

    # Three streams

    def join_three(
        self, inner: JoinSpec, outer: JoinSpec, r: pa.Table, s: pa.Table, t: pa.Table
    ) -> tuple[pa.Table, Stats]:
        """The pairs of `inner`, over `r` and `s`, joined with `t` by `outer`.

        `outer` is a spec over `composite_schema(inner)` and the columns of `t`; its time is `COMPOSITE_TIME`
        on the side of the pairs: a pair arrives with its later member. Both windows are of time.
        """
        three = _ThreeWay(inner, outer, self._p)
        stats = Stats(tuples=r.num_rows + s.num_rows + t.num_rows)
        arrivals, third = inner.arrange(r, s), outer.arrange(three.empty, t)
        found = [three.nothing()]
        for words, places in three.runs(arrivals, third):
            results, took = self._run(words)
            stats += took
            found.append(three.triples(arrivals, third, results, *places))
        joined = pa.concat_tables(found)
        return joined, stats + Stats(pairs=joined.num_rows)


class _ThreeWay:
    """How a join of three streams lies on a chain.

    The first dimensions of the device are those of the inner join. The rest carry what the outer join needs:
    an R or S tuple has there its member's part of the composite, a tuple of the third stream its box.
    """

    def __init__(self, inner: JoinSpec, outer: JoinSpec, parameters):
        for name, spec in (("inner", inner), ("outer", outer)):
            if spec.window.kind != "time":
                raise SpecError(f"a join of three streams takes windows of time, not of rows in {name}")
        if outer.r_schema != composite_schema(inner) or outer.time[0] != COMPOSITE_TIME:
            raise SpecError(
                f"outer must be a spec over composite_schema(inner) with the time {COMPOSITE_TIME!r}, "
                f"not over {outer.r_schema.names} with {outer.time[0]!r}"
            )
        self._inner, self._outer, self._p = inner, outer, parameters
        self.empty = outer.r_schema.empty_table()
        names = result_names(inner.r_schema.names, inner.s_schema.names)
        self._names = dict(zip("rs", names))
        width, count = parameters.dims[0].width, len(parameters.dims)
        own = inner.dimensions[: count - 1]
        self._inner_fit = Fit(inner.dimensions, [Dimension(dim.test, width, dim.negated) for dim in own])
        self._carried = self._carried_dimensions()[: count - len(own)]
        device = [Dimension(outer.dimensions[number].test, width) for number, _, _ in self._carried]
        self._outer_fit = Fit([outer.dimensions[number] for number, _, _ in self._carried], device)
        parts = [Part.R] * len(own) + [part for _, part, _ in self._carried]
        parts += [Part.R] * (count - len(parts))
        terms = tuple(Term(place, dim.test, dim.negated) for place, dim in enumerate(self._inner_fit.device))
        first = Query(terms, composition=Composition(tuple(parts), tuple(range(count))))
        terms = tuple(Term(len(own) + place, dim.test) for place, dim in enumerate(device))
        self._program = compile_queries([first, Query(terms, r=first, s=1)], parameters)

    def _carried_dimensions(self) -> list[tuple[int, Part, object]]:
        """The outer join's dimensions that one member decides: number, whose part, and its expression."""
        carried = []
        for number, point in enumerate(self._outer.points()):
            dim = self._outer.dimensions[number]
            columns = {name for _, name in point.columns}
            members = [side for side in "rs" if columns <= set(self._names[side])]
            if members and not dim.negated:
                carried.append((number, Part.R if members[0] == "r" else Part.S_LO, point))
        # The window's dimension comes last, and its time is the later member's.
        return [*carried, (len(self._outer.dimensions) - 1, Part.LATER, None)]

    def nothing(self) -> pa.Table:
        """A result without rows."""
        return joined_rows(self.empty, self._outer.s_schema.empty_table())

    def runs(self, arrivals: Arrivals, third: Arrivals) -> Iterator:
        """The words of each run, and what its triples are resolved by.

        A run takes so many rows of each stream that none leaves its window. Only rows of the third stream
        are loaded ahead, so that of each pair the device sees the members in order of arrival.
        """
        encoded, boxes = self._inner.encode(arrivals), self._outer.encode(third).boxes
        capacities = self._program.capacity(0), self._program.capacity(1)
        times = (
            arrivals.r.time[encoded.points.row],
            arrivals.s.time[encoded.boxes.row],
            third.s.time[boxes.row],
        )
        codes = self._member_codes(arrivals, encoded)
        for r in _chunks(len(times[0]), capacities[0]):
            for s in _chunks(len(times[1]), capacities[0]):
                if not _reachable(self._inner.window, times[0][r], times[1][s]):
                    continue
                later = np.maximum(times[0][r][[0, -1]], times[1][s][[0, -1]])
                for t in _chunks(len(times[2]), capacities[1]):
                    if _reachable(self._outer.window, later, times[2][t]):
                        words, unchecked = self._words(arrivals, encoded, boxes, codes, r, s, t)
                        yield [self._program.words, *words], (encoded, unchecked)

    def _member_codes(self, arrivals: Arrivals, encoded: Encoded) -> list[dict[str, np.ndarray]]:
        """Of each carried dimension, the codes of the members that have a part in it."""
        codes = []
        sides = {"r": (arrivals.r, encoded.points.row), "s": (arrivals.s, encoded.boxes.row)}
        for _, part, point in self._carried:
            if part is Part.LATER:
                codes.append({name: encoding.signed(side.time[rows]) for name, (side, rows) in sides.items()})
                continue
            name = "r" if part is Part.R else "s"
            side, rows = sides[name]
            table = side.rows.rename_columns(self._names[name])
            # The codes of NULL are those of some value: the recheck drops such composites.
            value = evaluate(point, Rows.of("r", table))
            codes.append({name: encoding.encode(value)[0][rows]})
        return codes

    def _words(self, arrivals, encoded: Encoded, boxes, codes, r: slice, s: slice, t: slice):
        """T's boxes, then points and boxes of R and S as they arrive; and what the device leaves open."""
        dims, own = self._p.dims, len(self._inner_fit.device)
        points = [code[r] for code in encoded.points.codes]
        lo, hi = ([code[s] for code in bound] for bound in (encoded.boxes.lo, encoded.boxes.hi))
        narrowed = self._inner_fit.narrow(points, lo, hi)
        members = [{name: code[r if name == "r" else s] for name, code in each.items()} for each in codes]
        outer = self._outer_fit.narrow(
            [np.concatenate(list(each.values())) for each in members],
            *([bound[number][t] for number, _, _ in self._carried] for bound in (boxes.lo, boxes.hi)),
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
        place = np.concatenate(
            [arrivals.r.place[encoded.points.row[r_ids]], arrivals.s.place[encoded.boxes.row[s_ids]]]
        )
        both = np.concatenate([r_words, s_words])[np.argsort(place, kind="stable")]
        return [enter(1, self._p), t_words, enter(0, self._p), both], narrowed.unchecked

    def triples(
        self, arrivals: Arrivals, third: Arrivals, results: Results, encoded: Encoded, unchecked
    ) -> pa.Table:
        """The rows of the results of one run. A composite's id is looked up among those put out."""
        made = results.tag == Tag.COMPOSITE.value
        ids = results.composite[made]
        order = np.argsort(ids)
        ids = ids[order]
        if (ids[1:] == ids[:-1]).any():
            raise DeviceError("the device gave two composites one id, after too many of them in one run")
        point, box = (
            part[made][order].astype(np.int64) for part in (results.composite_r, results.composite_s)
        )
        pairs = (results.tag == Tag.PAIR.value) & (results.query == 1)
        composite = np.searchsorted(ids, results.r_id[pairs])
        t_box = results.s_id[pairs].astype(np.int64)
        valid = self._inner.refine(arrivals, encoded, point, box, unchecked)
        kept = valid[composite]
        composite, t_box = composite[kept], t_box[kept]
        used, composite = np.unique(composite, return_inverse=True)

        # The composites as rows; the outer join rechecks all of its dimensions on them.
        r_rows, s_rows = encoded.points.row[point[used]], encoded.boxes.row[box[used]]
        rows = joined_rows(arrivals.r.rows.take(pa.array(r_rows)), arrivals.s.rows.take(pa.array(s_rows)))
        time = np.maximum(arrivals.r.time[r_rows], arrivals.s.time[s_rows])
        moment = self._outer.r_schema.field(COMPOSITE_TIME)
        stored = pa.array(time, pa.int64()).cast(pa.int64() if moment.type.bit_width == 64 else pa.int32())
        rows = rows.append_column(moment, stored.cast(moment.type))
        both = Arrivals.ordered(
            rows, third.s.rows, time, third.s.time, np.repeat([False, True], [len(time), len(third.s.time)])
        )
        again = self._outer.encode(both)
        place = np.full(len(used), -1)
        place[again.points.row] = np.arange(len(again.points.row))
        known = place[composite] >= 0
        composite, t_box = composite[known], t_box[known]
        every = range(len(self._outer.dimensions))
        kept = self._outer.refine(both, again, place[composite], t_box, every)
        return joined_rows(
            rows.take(pa.array(composite[kept])), third.s.rows.take(pa.array(again.boxes.row[t_box[kept]]))
        )


def _chunks(count: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _reachable(window, r: np.ndarray, s: np.ndarray) -> bool:
    """Whether some row of R, whose times are in order, is in reach of one of S."""
    return int(r[-1]) - int(s[0]) >= -window.r and int(r[0]) - int(s[-1]) <= window.s
