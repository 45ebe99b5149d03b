"""Millions of rows through a simulated BI-Sort device, with windows in its memory: cycles for each row.

`python -m host.bench_device` prints it; `--rows` says how many come, in both streams together. They go the
way of every join, from Arrow tables to pairs of rows, which are compared with those of the CPU engine.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from tqdm import tqdm

from hw.errors import DeviceError

from .cpu import CpuSession
from .device import Device, open_device
from .session import JoinResult, Session
from .spec import JoinSpec

DEVICE = "sim:bisort?cores=4&segment=65536&lanes=4&buffer=16384&dims=equal32,band32"
#: A row comes every microsecond: windows have 250,000 of each stream, where a row finds one on average.
WINDOW = "500 milliseconds"
KEYS = 250_000
ROWS = 1_000_000


def tables(rows: int, keys: int = KEYS, seed: int = 1) -> tuple[pa.Table, pa.Table]:
    """Rows of R and S, in turn."""
    rng = np.random.default_rng(seed)
    times, key = np.arange(rows), rng.integers(0, keys, rows).astype(np.int32)
    return tuple(
        pa.table({"ts": pa.array(times[side::2], pa.timestamp("us")), "k": key[side::2]}) for side in range(2)
    )


def joined(device: Device, spec: JoinSpec, r: pa.Table, s: pa.Table) -> JoinResult:
    """What the device finds, which must be what the CPU engine finds."""
    arrivals = spec.arrange(r, s)
    exchange = device.exchange
    with tqdm(total=r.num_rows + s.num_rows, desc="rows", file=sys.stderr, leave=False) as bar:

        def shown(words: np.ndarray, **options):
            answer = exchange(words, **options)
            bar.update(len(words))
            return answer

        device.exchange = shown
        result = Session(device, spec).join(arrivals)
    expected = CpuSession(spec).join(arrivals)
    pairs = [np.sort(one.r * s.num_rows + one.s) for one in (result, expected)]
    if not np.array_equal(*pairs):
        raise DeviceError(
            f"{device.url}: {len(pairs[0])} pairs, which are not the {len(pairs[1])} of the CPU engine"
        )
    return result


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints what the rows took."""
    parser = argparse.ArgumentParser(prog="python -m host.bench_device", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--rows", type=int, default=ROWS, help=f"of both streams together, {ROWS:,} unless given"
    )
    rows = parser.parse_args(arguments).rows
    if rows < 2:
        parser.error(f"--rows must be at least 2, not {rows}")
    r, s = tables(rows)
    spec = JoinSpec("r.k = s.k", WINDOW, "ts", r.schema, s.schema)
    with open_device(DEVICE) as device:
        stats = joined(device, spec, r, s).stats
    print(
        f"{DEVICE}\n{rows:,} rows, windows of {WINDOW}: {stats.pairs:,} pairs, those of the CPU engine;\n"
        f"{stats.cycles:,} cycles, {stats.cycles / rows:.2f} for each row"
    )


if __name__ == "__main__":
    main()
