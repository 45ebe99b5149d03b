"""What the host tests share: a join by brute force over the codes of a spec."""

import numpy as np
import pyarrow as pa
import pytest

from host.spec import JoinSpec


@pytest.fixture(scope="session")
def brute():
    """A function that joins two tables as device and host would: it compares every point with every box."""

    def join(spec: JoinSpec, r: pa.Table, s: pa.Table, device=None) -> list[tuple[int, int]]:
        arrivals = spec.arrange(r.append_column("#", _numbers(r)), s.append_column("#", _numbers(s)))
        return brute_arrivals(spec, arrivals, device)

    def brute_arrivals(spec, arrivals, device=None):
        encoded = spec.encode(arrivals)
        dims = range(len(spec.dimensions)) if device is None else device
        inside = np.ones((len(encoded.points.row), len(encoded.boxes.row)), bool)
        for k in dims:
            inside &= spec.dimensions[k].contains(
                encoded.points.codes[k][:, None], encoded.boxes.lo[k][None, :], encoded.boxes.hi[k][None, :]
            )
        point, box = np.nonzero(inside)
        keep = spec.refine(arrivals, encoded, point, box, set(range(len(spec.dimensions))) - set(dims))
        r_rows, s_rows = encoded.points.row[point[keep]], encoded.boxes.row[box[keep]]
        names = [
            arrivals.r.rows.column("#").to_numpy()[r_rows],
            arrivals.s.rows.column("#").to_numpy()[s_rows],
        ]
        pairs = list(zip(names[0].tolist(), names[1].tolist(), strict=True))
        assert len(set(pairs)) == len(pairs), "a pair came out twice"
        return sorted(pairs)

    join.arrivals = brute_arrivals
    return join


def _numbers(table: pa.Table) -> pa.Array:
    return pa.array(np.arange(table.num_rows))
