"""Join specs: what the user asks, validated, and compiled to points and boxes."""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from hw.dimension import Test
from hw.errors import DataError, SpecError

from . import arrival, encoding, sqltypes
from .arrival import Arrivals
from .compiled import spread
from .condition import Left, parse_condition
from .evaluate import Rows, evaluate, holds
from .expression import SIDES, Node, Scope
from .plan import SpecDimension, make_plan, taken
from .pushdown import Pushed, pushable
from .term import Filter, Residual
from .window import EARLIEST, LONGEST, Window, parse_window

_TIMES = (*sqltypes.INTEGERS, *sqltypes.TIMES)


@dataclass(frozen=True)
class Points:
    """R rows (positions in the arrivals) and their code in each dimension."""

    row: np.ndarray
    codes: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Boxes:
    """S rows (positions in the arrivals), which disjunct the box is for, and its bounds in each dimension."""

    row: np.ndarray
    disjunct: np.ndarray
    lo: tuple[np.ndarray, ...]
    hi: tuple[np.ndarray, ...]


@dataclass(frozen=True)
class Source:
    """What the points, or the boxes, of a dimension are made of: where these are equal, so are the codes."""

    what: Hashable
    negated: bool = False


@dataclass(frozen=True)
class Encoded:
    """What a device joins: points and boxes, both in arrival order.

    `filtered` holds, for each filter that was pushed down, the codes that it tests, in points or boxes.
    """

    points: Points
    boxes: Boxes
    filtered: tuple[np.ndarray, ...] = ()


class JoinSpec:
    """A sliding-window join of two streams, R and S.

    `on` is a condition in Spark SQL over columns of `r` and `s`; `window` a length such as
    "10 minutes" or "1000 rows", or a pair of them for R and S; `time` the event-time column, or a pair
    of names; `tiebreak` names columns that order rows of equal time (each a name, or a pair of names);
    `by` names columns that must be equal, and by which windows of rows are counted: each key has its own;
    `timezone` is Spark's session time zone. With `residual`, terms that no box can hold are listed in
    `left`: the join lets their pairs through, and the caller must evaluate `on` on each.
    """

    def __init__(
        self,
        on: str,
        window: str | int | tuple[str | int, str | int],
        time: str | tuple[str, str],
        r_schema: pa.Schema,
        s_schema: pa.Schema,
        *,
        tiebreak: Collection[str | tuple[str, str]] = (),
        by: Collection[str | tuple[str, str]] = (),
        timezone: str = "UTC",
        residual: bool = False,
    ):
        self._arguments = (on, window, time, r_schema, s_schema)
        self._options = {"tiebreak": tiebreak, "by": by, "timezone": timezone, "residual": residual}
        self.on, self.timezone = on, timezone
        self.r_schema, self.s_schema = r_schema, s_schema
        self.schemas = {"r": r_schema, "s": s_schema}
        scope = Scope(r_schema, s_schema, timezone)
        #: The names of the time column in R and in S.
        self.time = _pair(time, "time", scope)
        self.time_type = self._time_type(scope)
        self.window: Window = parse_window(window, self.time_type)
        self.tiebreak = self._orderable(tiebreak, "tiebreak", scope)
        self.by = self._orderable(by, "by", scope)
        self._check_ties()
        #: The terms that the caller must evaluate on each pair.
        self.left: list[Left] = []
        self._terms = parse_condition(on, scope, self.by, self.left if residual else None)
        self._plan = make_plan(self._terms)
        #: Value dimensions, then the window's.
        self.dimensions: tuple[SpecDimension, ...] = (*self._plan.described(), *self._window_dimensions())

    def __reduce__(self):
        return _rebuild, (self._arguments, self._options)

    # Validation

    def _time_type(self, scope: Scope) -> pa.DataType:
        types = []
        for side, name in zip(SIDES, self.time):
            type = sqltypes.canonical(self.schemas[side].field(name).type)
            if type not in _TIMES:
                raise SpecError(
                    f"time column `{side}.{name}` must be a timestamp (in microseconds), date or integer, "
                    f"not {self.schemas[side].field(name).type}"
                )
            types.append(type)
        whole = all(sqltypes.is_integer(type) for type in types)
        if not whole and types[0] != types[1]:
            raise SpecError(
                "time columns must have one type in R and S, "
                f"not {sqltypes.name(types[0])} and {sqltypes.name(types[1])}"
            )
        return sqltypes.common(*types)

    def _orderable(self, names, what: str, scope: Scope) -> tuple[tuple[str, str], ...]:
        """Columns of R and S, as pairs of names, that have one type with an order."""
        if isinstance(names, str):
            names = (names,)
        pairs = tuple(_pair(each, what, scope) for each in names)
        for pair in pairs:
            types = [self.schemas[side].field(name).type for side, name in zip(SIDES, pair)]
            kinds = [sqltypes.canonical(type) or type for type in types]
            if kinds[0] != kinds[1] or not encoding.is_sortable(kinds[0]):
                raise SpecError(
                    f"{what} columns `r.{pair[0]}` and `s.{pair[1]}` must have one type that can be "
                    f"ordered, not {types[0]} and {types[1]}"
                )
        return pairs

    def _check_ties(self) -> None:
        """Refuses columns without an order where the rows' own values have to break ties."""
        for side in SIDES if not self.tiebreak else ():
            for column in self.schemas[side]:
                if not encoding.is_sortable(column.type):
                    raise SpecError(
                        f"`{side}.{column.name}` is {column.type}, which cannot be ordered; "
                        "name columns that order rows of equal time with tiebreak="
                    )

    def _window_dimensions(self) -> tuple[SpecDimension, ...]:
        w = self.window
        if w.kind == "time":
            text = f"-{w.r} <= r.{self.time[0]} - s.{self.time[1]} <= {w.s}"
            return (SpecDimension(text, Test.BAND, role="time"),)
        return (
            SpecDimension(f"r is among the last {w.r} rows of R before s", Test.AT_LEAST, role="index"),
            SpecDimension(f"s is among the last {w.s} rows of S before r", Test.AT_MOST, role="index"),
        )

    # Arrival order

    @property
    def by_key(self) -> bool:
        """Whether rows are arranged key by key, which is how windows of rows count those of one key only.

        Within a key the numbers of rows then differ as if it were alone, and rows of other keys, which are in
        the window by number, are not equal in `by`.
        """
        return bool(self.by) and self.window.kind == "rows"

    def times(self, table: pa.Table, side: str) -> pa.Array:
        """The event times of one side's rows as 64-bit integers, NULL where there is none."""
        self._check(table, side)
        return as_times(Rows.of(side, table).column(side, self.time[SIDES.index(side)]))

    def arrange(self, r: pa.Table, s: pa.Table) -> Arrivals:
        """All rows of both streams in arrival order, by key first if `by_key`; none whose time is NULL."""
        tables, times, dropped = [], [], []
        for side, table in zip(SIDES, (r, s)):
            time = self.times(table, side)
            if time.null_count:
                table = table.filter(time.is_valid())
            dropped.append(time.null_count)
            tables.append(table)
            times.append((time.drop_null() if time.null_count else time).to_numpy())

        def sort_keys(pairs: Sequence[tuple[str, str]]) -> list[np.ndarray]:
            keys = []
            for pair in pairs:
                columns = [_plain(table.column(name)) for table, name in zip(tables, pair)]
                keys += encoding.sort_keys(pa.concat_arrays([columns[0], columns[1].cast(columns[0].type)]))
            return keys

        first = sort_keys(self.by) if self.by_key else ()
        ties = sort_keys(self.tiebreak)
        return arrival.arrange(tuple(tables), tuple(times), ties, _own_values, tuple(dropped), first)

    def ordered(
        self,
        r: pa.Table,
        s: pa.Table,
        is_s: np.ndarray,
        *,
        r_base: int = 0,
        s_base: int = 0,
        own: np.ndarray | None = None,
    ) -> Arrivals:
        """Arrivals of rows that are in order already; see `Arrivals.ordered` for the arguments."""
        times = []
        for side, table in zip(SIDES, (r, s)):
            time = self.times(table, side)
            if time.null_count:
                raise DataError(
                    f"{time.null_count} rows of {side.upper()} have no time; leave them out of the order"
                )
            times.append(time.to_numpy())
        return Arrivals.ordered(r, s, *times, is_s, r_base=r_base, s_base=s_base, own=own)

    def needed(self, side: str) -> set[str]:
        """The columns of one side that the join itself reads."""
        names = {self.time[SIDES.index(side)]}
        names |= {pair[SIDES.index(side)] for pair in (*self.tiebreak, *self.by)}
        terms = [term for terms in self._terms for term in terms]
        return names | {name for term in terms for where, name in term.term.columns if where == side}

    def _check(self, table: pa.Table, side: str) -> None:
        """Refuse rows that are not of the schema this spec was made for, in the columns it reads."""
        if table.schema.equals(self.schemas[side]):
            return
        for name in sorted(self.needed(side)):
            planned = self.schemas[side].field(name).type
            found = table.schema.field(name).type if name in table.schema.names else None
            kinds = [None if type is None else sqltypes.canonical(type) or type for type in (found, planned)]
            if kinds[0] != kinds[1]:
                what = "is missing" if found is None else f"is {found}"
                raise DataError(f"`{side}.{name}` {what}, where the join was planned for {planned}")

    # Points and boxes

    @property
    def disjuncts(self) -> int:
        """How many boxes an S row can have, at least 1."""
        return max(self._plan.disjuncts, 1)

    @property
    def decided(self) -> bool:
        """Whether codes alone decide which pairs are results, without a recheck of terms or disjuncts."""
        return self.disjuncts == 1 and not any(self._plan.refined)

    def points(self) -> list[Node]:
        """The expressions over R that value dimensions are made of; flags have none and come after them."""
        return [dim.point for dim in self._plan.dimensions]

    def made_of(self) -> list[tuple[Source, Source]]:
        """Of each dimension, the source of its points and that of its boxes; of the first disjunct only."""
        made = []
        for dim in self._plan.dimensions:
            # The point's type says how bounds are rounded.
            bounds = frozenset((dim.point.type, *term.bounds) for term in dim.uses.get(0, ()))
            made.append((Source(dim.point, dim.negated), Source(bounds, dim.negated)))
        w = self.window
        if w.kind == "time":
            return [*made, (Source("time"), Source(("time", w.r, w.s)))]
        return [
            *made,
            (Source("index"), Source(("before", w.r))),
            (Source(("before", w.s)), Source("index")),
        ]

    def filters(self, side: str) -> list[Node]:
        """The one-sided terms over `side`."""
        return [term for disjunct in self._plan.filters for term in disjunct[side]]

    def pushable(self) -> tuple[list[list[Pushed]], dict[Node, str]]:
        """Filters that a device can do instead of the host, and why not the others."""
        return pushable(self._plan)

    def encode(self, arrivals: Arrivals, pushed: Sequence[Pushed] = (), threads: int = 1) -> Encoded:
        """Points and boxes of all rows that can be part of a result; the device does the filters `pushed`."""
        encoded = self._encode(arrivals, {each.term for each in pushed}, threads)
        codes = []
        tables = {"r": arrivals.r.rows, "s": arrivals.s.rows}
        keep = {"r": np.ones(len(encoded.points.row), bool), "s": np.ones(len(encoded.boxes.row), bool)}
        for each in pushed:
            taken = encoded.points.row if each.side == "r" else encoded.boxes.row
            value = evaluate(each.value, Rows.of(each.side, tables[each.side]).take(taken))
            code, valid = encoding.encode(value)
            if each.missing is None:
                keep[each.side] &= valid
            else:
                code[~valid] = each.missing
            codes.append(code)
        if not pushed:
            return encoded
        points, boxes = encoded.points, encoded.boxes
        return Encoded(
            Points(points.row[keep["r"]], tuple(code[keep["r"]] for code in points.codes)),
            Boxes(
                boxes.row[keep["s"]],
                boxes.disjunct[keep["s"]],
                *(tuple(code[keep["s"]] for code in side) for side in (boxes.lo, boxes.hi)),
            ),
            tuple(code[keep[each.side]] for each, code in zip(pushed, codes)),
        )

    def _encode(self, arrivals: Arrivals, pushed: Collection[Node], threads: int) -> Encoded:
        self._check(arrivals.r.rows, "r")
        self._check(arrivals.s.rows, "s")
        windows = self.window_codes(arrivals)
        both = zip((self._points, self._boxes), (arrivals.r.rows, arrivals.s.rows), windows)
        points, boxes = spread(lambda made, rows, window: made(rows, window, pushed), both, threads)
        return Encoded(points, boxes)

    def _points(self, table: pa.Table, window, pushed: Collection[Node]) -> Points:
        rows, codes = self._plan.points(Rows.of("r", table), pushed)
        return Points(rows, (*codes, *taken(window, rows)))

    def _boxes(self, table: pa.Table, window, pushed: Collection[Node]) -> Boxes:
        if not self._plan.disjuncts:
            none = np.empty(0, np.int64)
            return Boxes(none, none, *(tuple(code[:0] for code in side) for side in window))
        parts = [self._plan.boxes(Rows.of("s", table), k, pushed) for k in range(self._plan.disjuncts)]
        row, *bounds = parts[0]
        disjunct = np.zeros(len(row), np.int64)
        windows = [taken(side, row) for side in window]
        if len(parts) > 1:
            row = np.concatenate([part[0] for part in parts])
            disjunct = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
            order = np.lexsort([disjunct, row])
            row, disjunct = row[order], disjunct[order]
            bounds = [
                [np.concatenate(codes)[order] for codes in zip(*(part[which] for part in parts))]
                for which in (1, 2)
            ]
            windows = [[code[row] for code in side] for side in window]
        lo, hi = ((*values, *codes) for values, codes in zip(bounds, windows))
        return Boxes(row, disjunct, lo, hi)

    def window_codes(self, arrivals: Arrivals):
        """The codes of every row in the window's dimensions: points, and lows and highs of boxes."""
        r, s, w = arrivals.r, arrivals.s, self.window
        if w.kind == "time":
            box = ([_shifted(s.time, -w.r)], [_shifted(s.time, w.s)])
            return [encoding.signed(r.time)], box
        open_lo, open_hi = np.zeros(len(s.index), np.uint64), np.full(len(s.index), encoding.HIGHEST)
        points = [encoding.signed(r.index), _shifted(r.before, -w.s)]
        return points, ([_shifted(s.before, -w.r), open_lo], [open_hi, encoding.signed(s.index)])

    def refine(
        self,
        arrivals: Arrivals,
        encoded: Encoded,
        point: np.ndarray,
        box: np.ndarray,
        unchecked: Collection[int] = (),
        unfiltered: Collection[Node] = (),
    ) -> np.ndarray:
        """Which candidate pairs (positions in the encoded points and boxes) are results.

        Checks the dimensions in `unchecked` and the filters in `unfiltered`, which the device left out or
        made coarser; the terms that codes do not decide; that no earlier disjunct gives the same pair; and
        who owns it.
        """
        points, boxes = encoded.points, encoded.boxes
        r_rows, s_rows, disjunct = points.row[point], boxes.row[box], boxes.disjunct[box]
        keep = arrival.owned(arrivals, r_rows, s_rows)
        for k in unchecked:
            keep &= self.dimensions[k].contains(points.codes[k][point], boxes.lo[k][box], boxes.hi[k][box])

        for term in unfiltered:
            places = np.flatnonzero(keep)
            rows = Rows.pairs(arrivals.r.rows, arrivals.s.rows, r_rows[places], s_rows[places])
            keep[places] = holds(term, rows)

        def meets(k: int, places: np.ndarray) -> np.ndarray:
            """Where disjunct k's terms hold, among those of `places` whose codes already agree."""
            for term in self._plan.refined[k]:
                rows = Rows.pairs(arrivals.r.rows, arrivals.s.rows, r_rows[places], s_rows[places])
                places = places[holds(term, rows)]
            return places

        for k in range(self._plan.disjuncts):
            if self._plan.refined[k]:
                places = np.flatnonzero(keep & (disjunct == k))
                keep[places] = False
                keep[meets(k, places)] = True
        for k in range(self._plan.disjuncts - 1):
            places = np.flatnonzero(keep & (disjunct > k))
            there, earlier = self._earlier_boxes(boxes, box[places], k)
            places = places[there]
            for d in range(len(self.dimensions)):
                inside = self.dimensions[d].contains(
                    points.codes[d][point[places]], boxes.lo[d][earlier], boxes.hi[d][earlier]
                )
                places, earlier = places[inside], earlier[inside]
            keep[meets(k, places)] = False
        return keep

    def _earlier_boxes(self, boxes: Boxes, box: np.ndarray, disjunct: int) -> tuple[np.ndarray, np.ndarray]:
        """Where the S row of `box` also has one for `disjunct`, and the positions of those."""
        found = np.full(len(box), -1)
        for step in range(1, self._plan.disjuncts):  # a row's boxes stand side by side
            near = np.maximum(box - step, 0)
            hit = (boxes.row[near] == boxes.row[box]) & (boxes.disjunct[near] == disjunct)
            found[hit] = near[hit]
        there = found >= 0
        return there, found[there]

    def columns(self, side: str, dimensions: Collection[int]) -> set[str]:
        """The columns of one side that the codes in some of the dimensions are made of."""
        uses = [self._plan.dimensions[k].uses for k in dimensions if k < len(self._plan.dimensions)]
        terms = [term for use in uses for terms in use.values() for term in terms]
        used = {name for term in terms for where, name in term.term.columns if where == side}
        timed = any(self.dimensions[k].role == "time" for k in dimensions)
        return used | ({self.time[SIDES.index(side)]} if timed else set())

    def explain(self) -> str:
        """What became of each term: its dimension, filter or refinement, and why."""
        lines = [f"on {self.on}"]
        if self.by:
            names = ", ".join(f"r.{r} = s.{s}" for r, s in self.by)
            counted = ", and windows count the rows of each key alone" if self.by_key else ""
            lines.append(f"by {names}{counted}")
        for k, terms in enumerate(self._terms):
            if len(self._terms) > 1:
                lines.append(f"alternative {k + 1} of {len(self._terms)}")
            lines += dict.fromkeys(f"  {self._explain_term(term, k)}" for term in terms)
        if not self._terms:
            lines.append("  never true: no box is sent")
        lines += [
            f"  `{term.text}`: no dimension, evaluated on each pair because {term.reason}"
            for term in self.left
        ]
        lines.append("dimensions")
        for k, dim in enumerate(self.dimensions):
            test = f"{'not ' if dim.negated else ''}{dim.test.value.replace('_', ' ')}"
            lines.append(f"  {k}: {test} ({dim.role}, {'exact' if dim.exact else 'refined'}): {dim.text}")
        return "\n".join(lines)

    def _explain_term(self, term, disjunct: int) -> str:
        text = f"`{term.term.text}`:"
        if isinstance(term, Filter):
            flagged = term.side == "r" and disjunct in self._plan.flags and term.term not in self._plan.common
            return (
                f"{text} one-sided filter of {term.side.upper()}{', as a flag dimension' if flagged else ''}"
            )
        if isinstance(term, Residual):
            return f"{text} no dimension, refined on the host because {term.reason}"
        k = next(
            k
            for k, dim in enumerate(self._plan.dimensions)
            if any(use is term for use in dim.uses.get(disjunct, ()))
        )
        how = "exact" if not term.reason else f"refined on the host because {term.reason}"
        return f"{text} dimension {k}, {how}"


def as_times(column: pa.Array) -> pa.Array:
    """A column of event times as 64-bit integers."""
    if column.type == sqltypes.DATE:
        column = column.view(pa.int32())
    return column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column.cast(pa.int64())


def _rebuild(arguments: tuple, options: dict) -> JoinSpec:
    return JoinSpec(*arguments, **options)


def _pair(names, what: str, scope: Scope) -> tuple[str, str]:
    """A column's name in R and in S, from one name for both or a pair."""
    pair = (names, names) if isinstance(names, str) else names
    if not (
        isinstance(pair, tuple | list) and len(pair) == 2 and all(isinstance(name, str) for name in pair)
    ):
        raise SpecError(f"{what} must be a column name, or a pair of names for R and S, not {names!r}")
    return tuple(scope.find(side, name) for side, name in zip(SIDES, pair))


def _shifted(values: np.ndarray, by: int) -> np.ndarray:
    """Codes of `values + by`, held at the ends of the 64-bit range."""
    held = np.minimum(values, LONGEST - by) if by >= 0 else np.maximum(values, EARLIEST - by)
    return encoding.signed(held + by)


def _plain(column: pa.ChunkedArray) -> pa.Array:
    column = column.combine_chunks()
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _own_values(table: pa.Table) -> list[np.ndarray]:
    """Sort keys of whole rows; columns that cannot be ordered are left to `tiebreak`."""
    columns = [column.combine_chunks() for column in table.columns if encoding.is_sortable(column.type)]
    return [key for column in columns for key in encoding.sort_keys(column)]
