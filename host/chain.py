"""A chain of OP-Blocks for more than one join: several at once, or one that feeds another."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np
import pyarrow as pa

from hw.errors import ParameterError
from hw.socket import Tag
from hw.words import Results

from .arrival import Arrivals, Side, in_order
from .batches import batches, end
from .chain_fit import ChainFit, encode
from .device import Device
from .output import joined_rows
from .program import CHANNELS, Program, compile_queries, enter
from .runner import Runner, Stats
from .session import JoinResult, Session
from .share import Sharing
from .spec import Encoded, JoinSpec
from .three_way import ThreeWay, check_three, composites
from .tiling import Reach


@dataclass(frozen=True)
class _Part:
    """How one join's results of a run are read."""

    join: int
    encoded: Encoded
    points: np.ndarray  #: of each id, the number among the join's points; -1: it is none of them
    boxes: np.ndarray
    left: tuple  #: what `JoinSpec.refine` must check


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
        """Each join on a channel of its own; filters are done by blocks if all have blocks and channels."""
        for push in (True, False):
            fits = [ChainFit(spec, self._p, channel=k, push=push) for k, spec in enumerate(specs)]
            queries = [fit.query([]) for fit in fits]
            # A filter takes a block and a channel.
            channels = len(queries) + sum(len(query.filters) for query in queries)
            if not push or (sum(query.blocks for query in queries) <= self._p.cores and channels <= CHANNELS):
                break
        program = compile_queries(queries, self._p)
        for k, fit in enumerate(fits):
            fit.capacity = program.capacity(k)
        return fits, program

    def explain(self, specs: Sequence[JoinSpec], *, shared: bool = False) -> str:
        """Where each part of each join runs, and what each block does; `shared`: over the same arrivals."""
        fits, program = self._fits(specs)
        placed = [[fit.placed()] for fit in fits]
        how = program.lines
        if shared:
            sharing = Sharing(specs, self._p)
            how = [sharing.explain(), *(program.lines if sharing.refused else ())]
            placed = placed if sharing.refused else [[]] * len(specs)
        parts = [line for k, spec in enumerate(specs) for line in (f"query {k}", spec.explain(), *placed[k])]
        return "\n".join([*parts, f"on {self._runner.device.url}:", *how])

    def join_all(
        self, specs: Sequence[JoinSpec], arrivals: Arrivals | Sequence[Arrivals]
    ) -> list[JoinResult]:
        """The results of joins that share the device, each over its own arrivals, or all over the same.

        Over the same arrivals each tuple is sent once for all joins, if their windows fit the device and
        their dimensions fit a tuple. Otherwise every join has its own tuples, and every run carries a part
        of each join. The stats are those of all joins together.
        """
        runs = None
        if isinstance(arrivals, Arrivals):
            runs = self._shared_runs(specs, arrivals)
            arrivals = [arrivals] * len(specs)
        pairs: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in specs]
        stats = Stats(tuples=sum(len(each.r.time) + len(each.s.time) for each in arrivals))
        for words, parts in self._own_runs(specs, arrivals) if runs is None else runs:
            results, took = self._run(words)
            stats += took
            for number, part in enumerate(parts):
                found = (results.tag == Tag.PAIR.value) & (results.query == number)
                point, box = part.points[results.r_id[found]], part.boxes[results.s_id[found]]
                mine = (point >= 0) & (box >= 0)
                point, box = point[mine], box[mine]
                kept = specs[part.join].refine(arrivals[part.join], part.encoded, point, box, *part.left)
                rows = part.encoded.points.row[point[kept]], part.encoded.boxes.row[box[kept]]
                pairs[part.join].append(rows)
        stats += Stats(pairs=sum(len(r) for parts in pairs for r, _ in parts))
        nothing = np.empty(0, np.int64)
        return [
            JoinResult(
                *(np.concatenate([part[side] for part in parts] or [nothing]) for side in (0, 1)), stats
            )
            for parts in pairs
        ]

    def _own_runs(
        self, specs, arrivals: Sequence[Arrivals]
    ) -> Iterator[tuple[list[np.ndarray], list[_Part]]]:
        """The words of each run, in which every join has its own tuples, and how to read its results."""
        fits, _ = self._fits(specs)
        work: list[tuple[Encoded, np.ndarray, np.ndarray]] = []
        waiting: list[Iterator] = []
        for k, (spec, each) in enumerate(zip(specs, arrivals)):
            fits[k], encoded = encode(spec, fits[k], each)
            places = each.r.place[encoded.points.row], each.s.place[encoded.boxes.row]
            reach = Reach.of(spec.dimensions, encoded, *places)
            work.append((encoded, *(np.arange(len(rows)) for rows in places)))
            waiting.append(batches(fits[k], self._p.dims, encoded, reach))
        for together in zip_longest(*waiting):
            active = [(k, batch) for k, batch in enumerate(together) if batch is not None]
            program = compile_queries([batch.codes.query for _, batch in active], self._p)
            words = [part for k, batch in active for part in (enter(k, self._p), batch.words)]
            yield (
                [program.words, *words],
                [_Part(k, *work[k], (batch.codes.unchecked, batch.codes.unfiltered)) for k, batch in active],
            )

    def _shared_runs(self, specs, arrivals: Arrivals) -> list[tuple[list[np.ndarray], list[_Part]]] | None:
        """The same of the one run in which the joins share their tuples; None if they cannot."""
        sharing = Sharing(specs, self._p)
        if sharing.refused:
            return None
        encoded = [spec.encode(arrivals) for spec in specs]
        run = sharing.run(arrivals, encoded)
        if run is None:
            return None
        parts = [
            _Part(k, encoded[k], run.points[k], run.boxes[k], (run.unchecked[k],)) for k in range(len(specs))
        ]
        return [([run.words], parts)]

    # Three streams

    def join_three(
        self, inner: JoinSpec, outer: JoinSpec, r: pa.Table, s: pa.Table, t: pa.Table
    ) -> tuple[pa.Table, Stats]:
        """The pairs of `inner`, over `r` and `s`, joined with `t` by `outer`.

        `outer` is a spec over `composite_schema(inner)` and the columns of `t`; its time is `COMPOSITE_TIME`
        on the side of the pairs. A pair arrives with its later member, after the pairs with the same later
        member whose earlier one came before its own, and before rows of `t` of equal time.

        One run of the chain does both joins, unless the window of `outer` is of rows: how many pairs came
        before a row is known only when all of them are, so then the pairs are joined first, and their
        composites, with their numbers, after that.
        """
        check_three(inner, outer)
        arrivals, third = inner.arrange(r, s), outer.arrange(outer.r_schema.empty_table(), t)
        stats = Stats(tuples=r.num_rows + s.num_rows + t.num_rows)
        if outer.window.kind == "rows":
            joined, took = self._in_turn(inner, outer, arrivals, third.s)
            return joined, stats + replace(took, tuples=0, pairs=joined.num_rows)
        three = ThreeWay(inner, outer, self._p)
        found = [joined_rows(outer.r_schema.empty_table(), outer.s_schema.empty_table())]
        for words, run in three.runs(arrivals, third):
            results, took = self._run(words)
            stats += took
            found.append(three.triples(run, results))
        joined = pa.concat_tables(found)
        return joined, stats + Stats(pairs=joined.num_rows)

    def explain_three(self, inner: JoinSpec, outer: JoinSpec) -> str:
        """Where each part of `join_three` runs, and what each block does."""
        check_three(inner, outer)
        parts = ["the pairs of R and S", inner.explain(), "with T", outer.explain()]
        if outer.window.kind == "rows":
            programs = [ChainFit(spec, self._p).explain() for spec in (inner, outer)]
            how = ["first the pairs:", programs[0], "then the pairs with T:", programs[1]]
        else:
            how = [ThreeWay(inner, outer, self._p).explain()]
        return "\n".join([*parts, f"on {self._runner.device.url}:", *how])

    def _in_turn(self, inner, outer, arrivals: Arrivals, third: Side) -> tuple[pa.Table, Stats]:
        """The pairs, and then their composites with the third stream."""
        pairs = self._session(inner).join(arrivals)
        order = in_order(arrivals, pairs.r, pairs.s)
        rows, time = composites(inner, arrivals, pairs.r[order], pairs.s[order])
        is_t = np.argsort(np.concatenate([time, third.time]), kind="stable") >= len(time)
        both = Arrivals.ordered(rows, third.rows, time, third.time, is_t)
        triples = self._session(outer).join(both)
        joined = joined_rows(rows.take(pa.array(triples.r)), third.rows.take(pa.array(triples.s)))
        return joined, pairs.stats + triples.stats

    def _session(self, spec: JoinSpec) -> Session:
        """One join on the whole chain."""
        return Session(self._runner.device, spec, self._runner.spares)
