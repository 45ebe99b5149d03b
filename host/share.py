"""One copy of the tuples for several joins of the same streams, on a chain of OP-Blocks.

::

                  +-> [ join cores of query 0 ]
    R, S, once ---+
                  +-> [ project R ] -> [ join cores of query 1 ]

R tuples carry every point that some join needs, S tuples every box. Where a join's points do not stand where
its boxes are, a block puts R's tuples, with their dimensions in that join's order, on another channel.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hw.dimension import Test
from hw.errors import SpecError
from hw.parameters import Parameters

from .arrival import Arrivals
from .batches import slide
from .fit import Codes
from .program import Program, Projection, Query, Term, compile_queries
from .spec import Boxes, Encoded, JoinSpec, Points, Source
from .tiling import Reach


@dataclass(frozen=True)
class SharedRun:
    """The words that all joins share, and how each join's results are read."""

    words: np.ndarray
    points: list[np.ndarray]  #: of each join, the number among its points of each id; -1: it is none of them
    boxes: list[np.ndarray]  #: the same of its boxes
    unchecked: list[frozenset[int]]  #: of each join, the dimensions that the device does not decide alone


class Sharing:
    """How several joins lie on a chain that is sent each tuple once; `refused` says why they cannot.

    All filters are the host's: a row that only some of the joins keep is sent for those, and what it gives in
    the others is dropped.
    """

    def __init__(self, specs: Sequence[JoinSpec], parameters: Parameters):
        self._specs, self._p = specs, parameters
        self.refused = ""
        self._edges = [spec.made_of() for spec in specs]
        if len(specs) == 1:
            self.refused = "there is one join only"
        elif any(spec.disjuncts > 1 for spec in specs):
            self.refused = "the host tells alternatives apart"
        if self.refused:
            return
        self._place(len(parameters.dims))
        if self.refused:
            return
        try:
            self.program: Program = compile_queries([self._query(k) for k in range(len(specs))], parameters)
        except SpecError as error:
            self.refused = str(error)

    def _place(self, count: int) -> None:
        """Chooses which point and which box each place has; None: nothing.

        Pair by pair if there are places enough; otherwise every point and every box once.
        """
        pairs = list(dict.fromkeys(edge for edges in self._edges for edge in edges))
        points, boxes = (list(dict.fromkeys(pair[side] for pair in pairs)) for side in (0, 1))
        self._r: list[Source | None] = [pair[0] for pair in pairs]
        self._s: list[Source | None] = [pair[1] for pair in pairs]
        if len(pairs) > count:
            needed = max(len(points), len(boxes))
            if needed > count:
                self.refused = f"they need {needed} dimensions, the device has {count}"
            elif any(len({box for _, box in edges}) < len(edges) for edges in self._edges):
                self.refused = "a join compares two values with one bound"
            partner = {box: point for point, box in reversed(pairs)}
            wanted = [partner[box] for box in boxes] + [None] * (count - len(boxes))
            # A point stands at its first box, unless another needs the place.
            placed = [point if point not in wanted[:k] else None for k, point in enumerate(wanted)]
            left = [point for point in points if point not in placed]
            for place, point in enumerate(placed):
                if point is None:
                    placed[place] = left.pop(0) if left else wanted[place]
            self._r, self._s = placed, boxes
        self._r += [None] * (count - len(self._r))
        self._s += [None] * (count - len(self._s))

    def _at(self, k: int) -> list[int]:
        """The places at which join k's dimensions are tested: where its boxes are."""
        pairs = list(zip(self._r, self._s))
        return [pairs.index(edge) if edge in pairs else self._s.index(edge[1]) for edge in self._edges[k]]

    def _query(self, k: int) -> Query:
        spec, sources = self._specs[k], list(range(len(self._p.dims)))
        terms = []
        for place, dimension, (point, _) in zip(self._at(k), spec.dimensions, self._edges[k]):
            # Ends that are open reach as far as codes do, so that a band stands for every test.
            terms.append(Term(place, Test.BAND, dimension.negated))
            if self._r[place] != point:
                sources[place] = self._r.index(point)
        moved = [f"d{place} from d{source}" for place, source in enumerate(sources) if source != place]
        projections = (Projection("r", tuple(sources), ", ".join(moved)),) if moved else ()
        return Query(tuple(terms), projections)

    def explain(self) -> str:
        """What each dimension carries, and what each block does; or why each join has its own tuples."""
        if self.refused:
            return f"each join has its own tuples: {self.refused}"
        used = [
            f"d{place}: {' and '.join(names)}"
            for place, names in enumerate(
                [
                    f"{spec.dimensions[number].text} (query {k})"
                    for k, spec in enumerate(self._specs)
                    for number, at in enumerate(self._at(k))
                    if at == place
                ]
                for place in range(len(self._p.dims))
            )
            if names
        ]
        return "\n".join(["all joins share their tuples", *used, *self.program.lines])

    def run(self, arrivals: Arrivals, encoded: Sequence[Encoded]) -> SharedRun | None:
        """The run of all joins; None if their windows do not fit, so that each must be cut into tiles."""
        rows = np.unique(np.concatenate([each.points.row for each in encoded]))
        s_rows = np.unique(np.concatenate([each.boxes.row for each in encoded]))
        reach = self._reach(arrivals, rows, s_rows)
        capacity = min(self.program.capacity(k) for k in range(len(self._specs)))
        live = reach.live()
        if live > capacity:
            return None
        codes, coarse = self._codes(encoded, rows, s_rows)
        batch = slide(self._p.dims, codes, reach, capacity - live)
        return SharedRun(
            np.concatenate([self.program.words, batch.words]),
            [_numbers(each.points.row, rows) for each in encoded],
            [_numbers(each.boxes.row, s_rows) for each in encoded],
            [
                frozenset(number for number, at in enumerate(self._at(k)) if at in coarse)
                for k in range(len(self._specs))
            ],
        )

    def _reach(self, arrivals: Arrivals, rows: np.ndarray, s_rows: np.ndarray) -> Reach:
        """The points that each box can meet in any of the joins, by the windows alone."""
        places = arrivals.r.place[rows], arrivals.s.place[s_rows]
        reaches = []
        for spec in self._specs:
            points, (lo, hi) = spec.window_codes(arrivals)
            bounds = (tuple(code[s_rows] for code in bound) for bound in (lo, hi))
            window = Encoded(
                Points(rows, tuple(code[rows] for code in points)),
                Boxes(s_rows, np.zeros(len(s_rows), int), *bounds),
            )
            dimensions = [dim for dim in spec.dimensions if dim.role != "value"]
            reaches.append(Reach.of(dimensions, window, *places))
        first = np.minimum.reduce([one.first for one in reaches])
        last = np.maximum.reduce([one.last for one in reaches])
        return Reach(first, last, *places)

    def _codes(self, encoded: Sequence[Encoded], rows, s_rows) -> tuple[Codes, set[int]]:
        """The codes at each place, and the places where they are coarse.

        Points and boxes that meet anywhere are taken from the same smallest point on. A row that no join
        gives a point or a box lies at a code that is no other's, and so do boxes beyond all points.
        """
        points, boxes = self._gathered(encoded, rows, s_rows)
        width = self._p.dims[0].width
        codes = Codes([], [], [], np.ones(len(s_rows), bool), frozenset())
        coarse = set()
        for place, (point, box) in enumerate(zip(self._r, self._s)):
            if point in points:
                values, there = points[point]
                smallest, _, shift, nowhere = self._range(point, points, width)
                codes.points.append(np.where(there, (values - smallest) >> shift, nowhere))
            else:
                codes.points.append(np.zeros(len(rows), np.uint64))
            if box not in boxes:
                codes.lo.append(np.zeros(len(s_rows), np.uint64))
                codes.hi.append(codes.lo[-1])
                continue
            lo, hi, there = boxes[box]
            partner = next(p for edges in self._edges for p, b in edges if b == box)
            smallest, largest, shift, nowhere = self._range(partner, points, width)
            within = there & (lo <= largest) & (hi >= smallest)
            for bounds, into in ((lo, codes.lo), (hi, codes.hi)):
                into.append(
                    np.where(within, (np.clip(bounds, smallest, largest) - smallest) >> shift, nowhere)
                )
            if shift:
                coarse.add(place)
                if box.negated:  # what is coarse would lose pairs
                    codes.lo[-1], codes.hi[-1] = np.ones_like(lo), np.zeros_like(hi)
        return codes, coarse

    def _range(self, point: Source, points: dict, width: int) -> tuple[np.uint64, ...]:
        """Of all points that share a box with this one: the smallest, the largest, how far to shift their
        codes, and the code of what is nowhere among them.
        """
        edges = [edge for edges in self._edges for edge in edges]
        together, known = {point}, 0
        while len(together) > known:
            known = len(together)
            met = {box for p, box in edges if p in together}
            together |= {p for p, box in edges if box in met}
        values = np.concatenate([points[p][0][points[p][1]] for p in together])
        smallest, largest = (int(values.min()), int(values.max())) if len(values) else (0, 0)
        nowhere = largest - smallest + 1
        shift = max(0, nowhere.bit_length() - width)
        return tuple(np.uint64(each) for each in (smallest, largest, shift, nowhere >> shift))

    def _gathered(self, encoded: Sequence[Encoded], rows, s_rows) -> tuple[dict, dict]:
        """Of each point and box, the codes of all rows, and which rows have one."""
        points: dict[Source, tuple[np.ndarray, np.ndarray]] = {}
        boxes: dict[Source, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        for edges, each in zip(self._edges, encoded):
            at, s_at = np.searchsorted(rows, each.points.row), np.searchsorted(s_rows, each.boxes.row)
            for number, (point, box) in enumerate(edges):
                whole = points.setdefault(point, (np.zeros(len(rows), np.uint64), np.zeros(len(rows), bool)))
                whole[0][at], whole[1][at] = each.points.codes[number], True
                empty = (np.zeros(len(s_rows), kind) for kind in (np.uint64, np.uint64, bool))
                bounds = boxes.setdefault(box, tuple(empty))
                bounds[0][s_at], bounds[1][s_at] = each.boxes.lo[number], each.boxes.hi[number]
                bounds[2][s_at] = True
        return points, boxes


def _numbers(mine: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Of each of `rows`, its number in `mine`, or -1."""
    numbers = np.full(len(rows), -1)
    numbers[np.searchsorted(rows, mine)] = np.arange(len(mine))
    return numbers
