"""Tuples as they lie in external memory, and runs of them as they go from engine to engine.

The key is what arrays are sorted by, `dims[0]`: an R tuple's point, an S tuple's low bound (the high one of
`at_most`, which has no other).
"""

from collections.abc import Mapping

from amaranth import Cat
from amaranth.lib import data

from .dimension import Dimension, Test
from .socket import ID_WIDTH, box_layout, point_layout


def key_bound(dim: Dimension) -> str:
    """The bound of a box by which S is sorted, `lo` or `hi`."""
    return dim.bounds[0]


def record_layouts(dims: tuple[Dimension, ...]) -> dict[str, data.StructLayout]:
    """The records of `r` and `s`: the key, the id and whatever else the tests look at.

    Both are padded to the same power of two of bytes, so that a word holds as many of either.
    """
    first = {"key": dims[0].width, "id": ID_WIDTH}
    further = {"hi": dims[0].width} if dims[0].test is Test.BAND else {}
    fields = {
        "r": first | _rest(point_layout(dims).members),
        "s": first | further | _rest(box_layout(dims).members),
    }
    sizes = {side: data.StructLayout(own).size for side, own in fields.items()}
    padded = 8 << (-(-max(sizes.values()) // 8) - 1).bit_length()
    return {side: data.StructLayout(own | {"padding": padded - sizes[side]}) for side, own in fields.items()}


def _rest(members: Mapping[str, object]) -> dict[str, object]:
    """All dimensions but the first."""
    return {name: member for name, member in members.items() if name != "d0"}


def record_of(dims: tuple[Dimension, ...], side: str, word) -> dict[str, object]:
    """The record's fields of a word on `tuples`, a value for each name but the padding's."""
    given = word.dims.point if side == "r" else word.dims.box
    fields = {"id": word.id} | {f"d{k}": given[f"d{k}"] for k in range(1, len(dims))}
    if side == "r":
        return fields | {"key": given.d0}
    if dims[0].test is Test.BAND:
        fields["hi"] = given.d0.hi
    return fields | {"key": given.d0[key_bound(dims[0])]}


def joins(dims: tuple[Dimension, ...], r, s):
    """Whether the R record `r` joins the S record `s`, by all dimensions."""
    first = {key_bound(dims[0]): s.key}
    if dims[0].test is Test.BAND:
        first["hi"] = s.hi
    found = [dims[0].contains(r.key, first)]
    found += [dim.contains(r[f"d{k}"], s[f"d{k}"]) for k, dim in enumerate(dims) if k]
    return Cat(found).all()


def flit_layout(record: data.StructLayout, lanes: int) -> data.StructLayout:
    """Up to `lanes` records of a run, the first in the lowest lane.

    Only the last flit of a run may hold fewer than `lanes`; a run without records is one flit with none.
    """
    return data.StructLayout(
        {"records": data.ArrayLayout(record, lanes), "count": range(lanes + 1), "last": 1}
    )
