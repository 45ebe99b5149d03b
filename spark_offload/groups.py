"""Groups: the keys of a streaming join whose windows count the rows of each key alone.

A shard numbers its keys as they come, and counts the rows of R and of S that each has had.
"""

import numpy as np
import pyarrow as pa

from host.arrival import Arrivals
from host.encoding import sort_keys
from host.expression import SIDES
from host.spec import JoinSpec

_COUNTS = ("count of r", "count of s")


class Groups:
    """The keys of a shard; `table`, from an earlier micro-batch, has a row for each that was known then."""

    def __init__(self, spec: JoinSpec, table: pa.Table | None):
        self._names = [[pair[k] for pair in spec.by] for k in range(len(SIDES))]
        fields = [
            pa.field(f"key {number}", spec.r_schema.field(name).type)
            for number, name in enumerate(self._names[0])
        ]
        if table is None:
            schema = pa.schema([*fields, *((name, pa.int64()) for name in _COUNTS)])
            table = schema.empty_table()
        self._keys = table.select([field.name for field in fields])
        self.counts = [table[name].to_numpy() for name in _COUNTS]  #: rows of R and S in each group

    @property
    def table(self) -> pa.Table:
        """The keys and their counts."""
        columns = dict(zip(self._keys.column_names, self._keys.columns))
        return pa.table(columns | dict(zip(_COUNTS, self.counts)))

    def number(self, new: Arrivals) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Of each row of R and of S: its number in its group, how many of the others came before, the group.

        The rows come key by key. They are counted from now on.
        """
        sides = (new.r, new.s)
        group = self._group([side.rows for side in sides])
        #: What `counts` was before the newest rows.
        self.begun = before = self.counts
        # Both streams in arrival order: which group a row is of, and whose it is.
        total = sum(len(side.time) for side in sides)
        whole, is_s = np.empty(total, np.int64), np.zeros(total, bool)
        for k, side in enumerate(sides):
            whole[side.place], is_s[side.place] = group[k], bool(k)
        starts = np.concatenate([[True], whole[1:] != whole[:-1]]) if total else np.empty(0, bool)
        first = np.maximum.accumulate(np.where(starts, np.arange(total), 0))
        earlier = [np.cumsum(mine) - mine for mine in (~is_s, is_s)]  # rows of R and of S before each place
        numbered = []
        for k, side in enumerate(sides):
            begin = first[side.place]
            own = side.index - earlier[k][begin] + before[k][group[k]]
            others = side.before - earlier[1 - k][begin] + before[1 - k][group[k]]
            numbered.append((own, others, group[k]))
        self.counts = [
            counts + np.bincount(mine, minlength=len(counts)) for counts, mine in zip(before, group)
        ]
        return numbered

    def _group(self, tables: list[pa.Table]) -> list[np.ndarray]:
        """The groups of some rows of R and S. Keys that are new get the next numbers."""
        known = self._keys.num_rows
        names = self._keys.column_names
        parts = [
            pa.table([table[name].cast(type) for name, type in zip(mine, self._keys.schema.types)], names)
            for table, mine in zip(tables, self._names)
        ]
        keys = pa.concat_tables([self._keys, *parts])
        codes = [code for column in keys.columns for code in sort_keys(column.combine_chunks())]
        order = np.lexsort(codes[::-1])
        starts = np.ones(len(order), bool)
        if len(order):
            starts[1:] = np.any([code[order][1:] != code[order][:-1] for code in codes], axis=0)
        # The first of each run of equal keys came first, because the sort is stable.
        first = order[starts]
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        group = np.empty(len(order), np.int64)
        group[order] = rank[np.cumsum(starts) - 1]
        self._keys = keys.take(pa.array(np.sort(first)))
        self.counts = [np.concatenate([c, np.zeros(len(first) - known, np.int64)]) for c in self.counts]
        split = known + tables[0].num_rows
        return [group[known:split], group[split:]]
