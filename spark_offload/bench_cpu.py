"""`make bench`, second part: the CPU engine against other engines in the same run, and its own figures.

    bands       a band join over time windows: counted and listed, against every peer
    order       the same with its condition written in either order
    streams     micro-batches through `push` and `poll`, against Spark's and Flink's streaming joins
    steady      the papers' two-attribute band, and equality, with full windows
    structures  insertion into and probing of each structure, also drawn; their memory
    skew        how soon RaP-Tables are balanced, and what rising values are kept in
    auto        the structures in whole joins, and what `auto` chooses: its thresholds come from here
    growth      as windows double

Every measurement is a process of its own with a time limit, and the least of several repetitions counts.
Ratios are between figures of one run; what is absolute by nature stands beside the machine's name. Where
other programs keep cores busy, CPU time, printed beside it, says more than the clock. `--only` runs some
sections, and `--resume` takes what an earlier run of the same code has measured. In the end all targets are
listed, with what was reached.
"""

import argparse
import hashlib
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from tabulate import tabulate

from host.bisort import BiSort, Order, Sorted
from host.choice import Statistics, choose_structure
from host.columns import Layout
from host.compiled import cores
from host.cpu import CpuSession
from host.engine import SUBWINDOWS, SUBWINDOWS_OF_TABLES, Batch, Engine
from host.llat import partitions
from host.plan import SpecDimension
from host.rap_table import RapTable, even_splitters
from host.spec import JoinSpec
from host.wib_tree import WibTree
from hw.dimension import Test

from .bench_peers import ON, PEERS, SECOND, Query, flink_streamed, spark_streamed, stream

#: Seconds that one measurement may take, and one of a finite join; what takes longer is reported as such.
LIMIT, PATIENCE = 600, 90
#: A measurement is repeated so often at least, and until so many seconds are gone.
REPEATS, REPEATING = 3, 4
#: Turns in which windows that double are measured: many, because others use the memory too, not always alike.
TURNS = 8
#: What has been measured, for `--resume`.
KEPT = Path("build/bench_cpu.jsonl")
PICTURE = Path("docs/structures.png")


# Joins of finite streams


def band(name: str, query: dict) -> dict:
    """One measurement of a band join over time windows."""
    run = PEERS[name](Query(**query))
    if name == "touchline":
        run()  # compiles, which may take longer than `timed` waits for a second run
    return timed(run)


def timed(run: Callable[[], int]) -> dict:
    """The least time and CPU time of several runs, and what they return.

    The first run, which may compile, counts only if it takes so long that there is none after it.
    """
    times, busy, found = [], [], None
    while len(times) <= REPEATS or sum(times) < REPEATING:
        start, cpu = time.perf_counter(), cpu_time()
        got = run()
        times.append(time.perf_counter() - start)
        busy.append(cpu_time() - cpu)
        if found not in (None, got):
            raise RuntimeError(f"{got:,} pairs, and {found:,} the time before")
        found = got
        if sum(times) > PATIENCE / 6:
            break
    return {"seconds": min(times[1:] or times), "cpu": min(busy[1:] or busy), "found": found}


def cpu_time() -> float:
    """CPU seconds of this process and of its children, such as Spark's virtual machine."""
    spent = time.process_time()
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            # After the name, which is in parentheses, fields 12 and 13 are the time of user and system.
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            spent += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


# Micro-batches


def pushed(rows: int, batch: int, seconds: int) -> dict:
    """Micro-batches of `batch` rows of each stream through `push` and `poll`."""
    r, s = stream("x", rows, 1), stream("a", rows, 2)
    spec = JoinSpec(ON, seconds * SECOND, "ts", r.schema, s.schema)

    def run() -> int:
        session, found = CpuSession(spec), 0
        for start in range(0, rows, batch):
            # Parts are cut by time, so that none is late.
            session.push(r.slice(start, batch), s.slice(start, batch))
            found += session.poll().num_rows
        return found

    run()  # as in `band`
    got = timed(run)
    return {"rate": 2 * rows / got["seconds"], "found": got["found"]}


# Full windows


@dataclass
class Source:
    """Both streams of a join: `values` uniform in 1..`highest`, bands of `margin` each way, by time."""

    values: int
    highest: int
    margin: int
    window: int  #: in microseconds
    rate: int  #: tuples a second and stream
    slope: int = 0  #: what the values of a row exceed those of the row before by

    def __post_init__(self):
        test = Test.BAND if self.margin else Test.EQUAL
        dims = [SpecDimension("", test) for _ in range(self.values)]
        self.layout = Layout.of([*dims, SpecDimension("", Test.BAND, role="time")])
        self._rng = np.random.default_rng(3)

    def engine(self, structure: str = "auto", threads: int | None = None) -> Engine:
        """An engine for these streams."""
        return Engine(self.layout, (self.window, self.window), structure, threads or cores())

    def batch(self, first: int, count: int) -> tuple[Batch, Batch]:
        """The tuples of both streams from number `first` on."""
        rise = self.slope * np.arange(first, first + count, dtype=np.uint64)
        points, boxes = (
            [
                self._rng.integers(1, self.highest + 1, count).astype(np.uint64) + rise
                for _ in range(self.values)
            ]
            for _ in range(2)
        )
        # Codes are unsigned, so everything is moved up by what is subtracted from it.
        margin, span = np.uint64(self.margin), np.uint64(self.window)
        age = np.arange(first, first + count) * SECOND // self.rate + self.window
        time = age.astype(np.uint64)
        columns = (
            self.layout.points([*(code + margin for code in points), time]),
            self.layout.boxes(
                [*boxes, time - span], [*(code + margin + margin for code in boxes), time + span]
            ),
        )
        numbers = np.arange(count, dtype=np.uint32)
        places = 2 * np.arange(first, first + count)
        r, s = (Batch(part, numbers, first, places + k, age) for k, part in enumerate(columns))
        return r, s

    def limits(self, following: int) -> tuple[int, int]:
        """The ages that tuples from number `following` on reach back to."""
        oldest = following * SECOND // self.rate
        return oldest, oldest


def steady(
    rate: int, values: int, highest: int, margin: int, window: int, subwindows: int = 1, repeats: int = 1
) -> dict:
    """Full windows of `window` seconds at `rate` tuples a second per stream; then subwindows more are timed.

    So everything that happens to a tuple is counted: every second's tuples are a batch that is joined and
    inserted, and a subwindow is completed and another dropped. With several repeats, the least time of each
    batch's place in them counts.
    """
    source = Source(values, highest, margin, window * SECOND, rate)
    engine = source.engine()
    step = max(1, window // SUBWINDOWS)
    for begin in range(0, window, step):
        engine.fill(*source.batch(rate * begin, rate * min(step, window - begin)))
    times, busy, found = [], [], []
    for second in range(window, window + repeats * subwindows * step + 1):
        new = source.batch(rate * second, rate)
        start, cpu = time.perf_counter(), time.process_time()
        parts = engine.process(*new, source.limits(rate * (second + 1)))
        if second > window:  # the first may have compiled kernels
            times.append(time.perf_counter() - start)
            busy.append(time.process_time() - cpu)
            found.append(sum(count for *_, count in parts))
    times, busy = (np.reshape(each, (repeats, subwindows * step)).min(axis=0) for each in (times, busy))
    return {
        "seconds": float(times.mean()),
        "longest": float(times.max()),
        "cpu": float(busy.mean()),
        "found": int(np.mean(found)),
        "bytes": engine.bytes / engine.encoded_bytes,
        "explained": engine.explain(),
    }


# Structures

#: The axes of PanJoin's Figures 10 to 13: tuples in a batch and in a subwindow, and matches of a probe.
USUAL = {"batch": 1024, "rows": 2**20, "matches": 1}
AXES = {
    "batch": [2**k for k in range(4, 17, 2)],
    "rows": [2**k for k in range(14, 23, 2)],
    "matches": [4**k for k in range(6)],
}
MEASURED = ("bisort", "levels", "rap_table", "wib_tree")
#: Rows in the batches of whole joins.
BATCHES = (4, 16, 64, 1024)
#: Seconds that one point of the figure may take for inserting.
POINT = 1.0
#: Seconds of the windows that double, of which an eighth, a subwindow, is whole batches.
WINDOWS = (32, 64, 128, 256)


def structure(name: str) -> dict:
    """Tuples a second of one core along each axis: [inserted, probing] by axis and place on it."""
    _throughput(name, batch=256, rows=2**12, matches=1)  # compiles
    return {
        axis: [_throughput(name, **{**USUAL, axis: at}) for at in places] for axis, places in AXES.items()
    }


def _throughput(name: str, batch: int, rows: int, matches: int) -> list[float]:
    """Tuples a second that are inserted into the second half of a subwindow, and that probe it after that."""
    rng = np.random.default_rng(4)
    layout = Layout.of([SpecDimension("", Test.BAND)])
    highest, order = 2**31, Order(0)
    width = np.uint64(highest * matches // rows)

    def run(boxes: bool, count: int) -> Sorted:
        low = rng.integers(0, highest, count).astype(np.uint64)
        columns = np.stack([low, low + width]) if boxes else low[None, :]
        numbers = np.arange(count, dtype=np.uint32)
        return Sorted.build(np.ascontiguousarray(columns), numbers, 0, np.array([0, count]), order)

    match name:
        case "rap_table":
            splitters = even_splitters(0, highest, partitions(rows))
            made = RapTable(layout, False, order, 0, rows, splitters)
        case "wib_tree":
            made = WibTree(layout, False, order, 0, rows)
        case _:
            made = BiSort(layout, False, order, 0, levelled=name == "levels")
    batch = min(batch, rows // 2)
    made.insert(run(False, rows // 2), 0, rows // 2)
    new = [run(False, batch) for _ in range(min(rows // 2 // batch, 4096))]
    start, inserted = time.thread_time(), 0
    for part in new:
        inserted += made.insert(part, 0, batch)
        if time.thread_time() - start > POINT:
            break
    inserting = inserted / (time.thread_time() - start)
    # So many that their matches are not in the cache.
    probes, parts = [run(True, batch) for _ in range(max(2, 2**16 // batch))], made.parts()
    start, probed = time.thread_time(), 0
    while not probed or time.thread_time() - start < POINT / 8:
        for part in parts:
            part.meet(probes[probed // batch % len(probes)], 0, batch, 1, True)
        probed += batch
    return [inserting, probed / (time.thread_time() - start)]


#: Whole joins: rows in a window, matches of a probe in it, rows in a batch.
WHOLE = [(rows, matches, batch) for rows in (2**14, 2**18) for matches in (1, 64, 1024) for batch in BATCHES]


def whole(name: str) -> dict:
    """Tuples a second of one core in whole joins with full windows."""
    _join_rate(name, 2**12, 1, 256)  # compiles
    return {"rates": [_join_rate(name, *point) for point in WHOLE]}


def _join_rate(name: str, rows: int, matches: int, batch: int) -> float:
    margin = 1000
    source = Source(1, (2 * margin + 1) * rows // matches, margin, rows, SECOND)
    engine = source.engine(name, threads=1)
    part = rows // SUBWINDOWS_OF_TABLES
    for first in range(0, rows, part):
        engine.fill(*source.batch(first, part))
    # Until a subwindow has been completed and another dropped, if that is not too long.
    spent, done = 0.0, 0
    while done < rows // SUBWINDOWS and spent < POINT:
        new = source.batch(rows + done, batch)
        start = time.thread_time()
        engine.process(*new, source.limits(rows + done + batch))
        spent += time.thread_time() - start
        done += batch
    return 2 * done / spent


def memory(name: str) -> dict:
    """The most bytes that a structure takes for those of the encoded windows, while windows slide on."""
    rows, batch = 2**18, 1024
    source = Source(1, 100 * rows, 50, rows, SECOND)
    engine = source.engine(name, threads=1)
    encoded = rows * (source.layout.bytes_per(False) + source.layout.bytes_per(True))
    most = 0
    for first in range(0, 3 * rows, batch):
        engine.process(*source.batch(first, batch), source.limits(first + batch), pairs=False)
        if first >= rows:
            most = max(most, engine.bytes)
    return {"bytes": most / encoded}


# Skew

#: Tuples in a subwindow, and how often splitters are adjusted.
SKEWED, ADJUSTMENTS = 2**20, 5
#: The mean distance of a partition from its share, in shares, up to which a table is balanced.
BALANCED = 0.35
DISTRIBUTIONS = {
    "uniform": lambda rng, count: rng.integers(2**30, 2**30 + 2**24, count),
    "normal": lambda rng, count: rng.normal(2**31, 2**20, count),
    "three normals": lambda rng, count: rng.normal(rng.choice([2**28, 2**31, 3 * 2**30], count), 2**22),
    # Views of videos: most values within a small part of the range, and a long tail.
    "rank-size": lambda rng, count: 2**31 / rng.permutation(np.arange(1, count + 1)) ** 0.9,
}


def balance(name: str) -> dict:
    """How far partitions are from their share after each adjustment; the first are equal parts of 32 bits."""
    rng = np.random.default_rng(5)
    layout, order = Layout.of([SpecDimension("", Test.BAND)]), Order(0)
    splitters = even_splitters(0, 2**32 - 1, partitions(SKEWED))
    errors = []
    for _ in range(ADJUSTMENTS + 1):
        keys = DISTRIBUTIONS[name](rng, SKEWED).astype(np.uint64)
        numbers = np.arange(SKEWED, dtype=np.uint32)
        run = Sorted.build(keys[None, :], numbers, 0, np.array([0, SKEWED]), order)
        table = RapTable(layout, False, order, 0, SKEWED, splitters)
        table.insert(run, 0, SKEWED)
        counts = table.histograms[0]
        errors.append(float(np.abs(counts / counts.mean() - 1).mean()))
        splitters = table.next_splitters(SKEWED)
    return {"errors": errors}


def rising() -> dict:
    """What `auto` keeps values in that rise from row to row, in batches of a few rows."""
    rows, batch = 2**12, 4
    source = Source(1, 10, 5, rows, SECOND, slope=10)
    engine = source.engine(threads=1)
    for first in range(0, 2 * rows, batch):
        engine.process(*source.batch(first, batch), source.limits(first + batch), pairs=False)
    return {"names": [ring.subwindows[-1].name for ring in engine.rings], "explained": engine.explain()}


MEASUREMENTS = {
    "band": band,
    "pushed": pushed,
    "spark_streamed": spark_streamed,
    "flink_streamed": flink_streamed,
    "steady": steady,
    "structure": structure,
    "memory": memory,
    "balance": balance,
    "rising": rising,
    "whole": whole,
}


class Run:
    """A run of the benchmark: takes measurements, tells so, and keeps them under the digest of the code."""

    def __init__(self, resume: bool):
        self._known: dict[str, dict] = {}
        #: What was asked for, the target, what was reached, and whether that is enough.
        self.verdicts: list[tuple[str, str, str, str]] = []
        room = Path(__file__).parent
        sources = sorted([*(room.parent / "host").glob("*.py"), *room.glob("bench_*.py")])
        self._code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]
        KEPT.parent.mkdir(exist_ok=True)
        if resume and KEPT.exists():
            self._known = dict(json.loads(line) for line in KEPT.read_text().splitlines())
        else:
            KEPT.write_text("")

    def measured(self, name: str, *arguments, turn: int = 0) -> dict:
        """One measurement in a process of its own; a reason in its place if there is no figure.

        The same one is taken again in another `turn`.
        """
        asked = json.dumps([self._code, name, *arguments, turn])
        if asked not in self._known:
            said = f"{time.strftime('%H:%M:%S')} {name} {', '.join(map(str, arguments))}"
            print(said, end=" ... ", file=sys.stderr, flush=True)
            start = time.monotonic()
            self._known[asked] = _measured(name, arguments)
            print(f"{time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
            with KEPT.open("a") as file:
                file.write(json.dumps([asked, self._known[asked]]) + "\n")
        return self._known[asked]

    def judge(self, what: str, target: str, reached: str, enough: bool) -> None:
        """Notes whether a target was reached."""
        self.verdicts.append((what, target, reached, "yes" if enough else "NO"))


def _measured(name: str, arguments: tuple) -> dict:
    command = [sys.executable, "-m", "spark_offload.bench_cpu", "--measure", name, json.dumps(arguments)]
    limit = PATIENCE if name == "band" else LIMIT
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"why": f"more than {limit} s", "beyond": limit}
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line or "Exception" in line]
        return {"why": f"not run: {(lines or [f'exit status {done.returncode}'])[-1][:120]}"}
    return json.loads(done.stdout.splitlines()[-1])


# Tables


def _seconds(got: dict) -> str:
    return f"{got['seconds']:.3f} s" if "seconds" in got else got["why"]


def _rate(got: dict) -> str:
    return f"{got['rate']:,.0f}" if "rate" in got else got["why"]


def _same(got: dict, ours: dict) -> str:
    return (
        "" if "found" not in got or "found" not in ours else "yes" if got["found"] == ours["found"] else "NO"
    )


def _table(title: str, rows: list, headers: tuple) -> None:
    print(f"\n{title}\n\n{tabulate(rows, headers, disable_numparse=True)}", flush=True)


def compare_bands(run: Run) -> None:
    """Count and list, against every peer."""
    slow: dict[str, str] = {}  # what takes too long to count is asked for nothing larger
    for rows, seconds in ((200_000, 1), (200_000, 10), (2_000_000, 1)):
        asked = f"{rows:,} x {rows:,} rows, window {seconds} s"
        for listed in (False, True):
            query = asdict(Query(rows, seconds * SECOND, listed))
            got = {}
            for name in PEERS:
                got[name] = {"why": slow[name]} if name in slow else run.measured("band", name, query)
                if "beyond" in got[name] and not listed:
                    slow[name] = f"not run: counting {asked} takes {got[name]['why']}"
            ours = got["touchline"]
            what = "4 columns of all pairs as Arrow" if listed else "count"
            lines, least = [], {}
            clocks = ("seconds", "cpu")
            for name, result in got.items():
                times = {of: result[of] / ours[of] for of in clocks if of in result and of in ours}
                ratios = [f"{times[of]:.1f}" if of in times else "" for of in clocks]
                busy = f"{result['cpu']:.3f} s" if "cpu" in result else ""
                lines.append((name, _seconds(result), ratios[0], busy, ratios[1], _same(result, ours)))
                if name != "touchline" and times:
                    least = {of: min(ratio, least.get(of, ratio)) for of, ratio in times.items()}
            headers = ("engine", "time", "times ours", "CPU", "times ours", "same result")
            _table(f"{asked}, {ours.get('found', 0):,} pairs: {what}", lines, headers)
            target = LISTED if listed else COUNTED
            reached = "{seconds:.1f}, by CPU time {cpu:.1f}".format(**least) if least else "not run"
            same = all(line[-1] != "NO" for line in lines)
            run.judge(
                f"{asked}: {'listed' if listed else 'counted'}, for the fastest peer's time",
                f"at least {target} times",
                reached,
                bool(least) and same and least["seconds"] >= target,
            )


def compare_orders(run: Run) -> None:
    """The same condition with the selective part first, and last."""
    lines = []
    spread = {}
    for name in ("touchline", "duckdb", "polars", "clickhouse"):
        value, moment = (
            run.measured("band", name, asdict(Query(50_000, SECOND, False, first))) for first in (False, True)
        )
        both = "seconds" in value and "seconds" in moment
        ratio = f"{moment['seconds'] / value['seconds']:.1f}" if both else ""
        lines.append((name, _seconds(value), _seconds(moment), ratio, _same(moment, value)))
        if both:
            spread[name] = max(moment["seconds"] / value["seconds"], value["seconds"] / moment["seconds"])
    headers = ("engine", "value first", "time first", "times", "same result")
    _table("The order of conditions, 50,000 x 50,000 rows, window 1 s, count", lines, headers)
    ours = spread.get("touchline", float("inf"))
    run.judge("the order of conditions", f"at most {REORDERED} times", f"{ours:.2f}", ours <= REORDERED)


def compare_streams(run: Run) -> None:
    """Micro-batches through `push` and `poll`, and through Spark and Flink."""
    # Enough micro-batches for an average, and not more than they can take.
    sizes = {1_000: 20_000, 10_000: 200_000, 100_000: 400_000}
    flink = run.measured("flink_streamed", 200_000, 1, LIMIT)
    lines = []
    for batch, rows in sizes.items():
        ours = run.measured("pushed", rows, batch, 1)
        spark = run.measured("spark_streamed", rows, batch, 1, LIMIT)
        ratios = [
            f"{ours['rate'] / their['rate']:.0f}" if "rate" in ours and "rate" in their else ""
            for their in (spark, flink)
        ]
        same = [_same(spark, ours), _same(flink, ours) if rows == 200_000 else ""]
        known = [float(ratio) for ratio in ratios if ratio]
        run.judge(
            f"micro-batches of {batch:,}, for Spark's and Flink's rate",
            f"at least {STREAMED} times",
            " and ".join(ratio or "not run" for ratio in ratios),
            len(known) == 2 and min(known) >= STREAMED and "NO" not in same,
        )
        lines.append((f"{batch:,}", _rate(ours), _rate(spark), ratios[0], same[0], ratios[1], same[1]))
    headers = (
        "rows per batch and stream",
        "tuples/s",
        "Spark, binned",
        "times",
        "same",
        "times Flink",
        "same",
    )
    _table(f"Streaming, window 1 s; Flink, binned, tuple by tuple: {_rate(flink)} tuples/s", lines, headers)


#: Tuples a second and stream in the papers: of CellJoin on 8 SPEs, handshake join on 8 cores and on 40,
#: ScaleJoin on 48, SplitJoin on 28; and of low-latency handshake join with a hash index, on 40.
PAPERS = "750, 1,400, 5,125, 3,000, 4,400"
HASHED = 225_234
#: What is asked for.
COUNTED, LISTED, STREAMED, REORDERED, TWO_BANDS, DOUBLED = 20, 10, 20, 1.25, 50_000, 1.2
MEMORY = {"bisort": 1.25, "levels": 1.25, "rap_table": 2.6, "wib_tree": 2.6}


def _bounded(structure: str, times: float) -> tuple[str, str, bool]:
    """The verdict on memory."""
    most = MEMORY[structure]
    return f"at most {most} times", f"{times:.2f}", times <= most


def steady_states(run: Run) -> None:
    """The papers' benchmark with 15-minute windows, and equality with windows that memory holds."""
    lines = []
    short = 30
    for rate in (5_125, TWO_BANDS, 60_000, 4 * HASHED):
        equal = rate == 4 * HASHED
        asked = (rate, 1, rate * short, 0, short) if equal else (rate, 2, 10_000, 10, 900)
        got = run.measured("steady", *asked)
        named = [f"equality, {short} s" if equal else "two bands, 900 s", f"{rate:,}"]
        if "seconds" not in got:
            lines.append([*named, got["why"]])
            continue
        times = [f"{got[what]:.2f} s" for what in ("seconds", "longest", "cpu")]
        sustained = "yes" if got["seconds"] <= 1 else "no"
        if rate in (TWO_BANDS, 4 * HASHED):
            run.judge(
                f"{named[0]} at {named[1]} tuples/s per stream",
                "at most 1 s per second",
                f"{times[0]}, {times[2]} of CPU on {cores()} cores",
                got["seconds"] <= 1,
            )
            run.judge(f"{named[0]}: bytes for the encoded windows'", *_bounded("levels", got["bytes"]))
        pairs = f"{got['found'] / max(got['seconds'], 1):,.0f}"
        lines.append([*named, *times, sustained, pairs, f"{got['bytes']:.2f}"])
    headers = (
        "predicate, window",
        "tuples/s per stream",
        "per second of stream",
        "longest",
        "CPU",
        "sustained",
        "pairs/s",
        "bytes",
    )
    _table(f"Full windows, pairs listed, on {machine()}", lines, headers)
    print(f"\nIn the papers two bands reach {PAPERS} tuples/s per stream, equality {HASHED:,}.")


def structures(run: Run) -> None:
    """Insertion and probing of each structure, in millions of tuples a second on one core, also drawn."""
    got = _figures(run, "structure")
    for axis, places in AXES.items():
        lines = [
            [f"{at:,}", *(" / ".join(f"{rate / 1e6:.2f}" for rate in each[axis][k]) for each in got.values())]
            for k, at in enumerate(places)
        ]
        others = ", ".join(f"{name} {at:,}" for name, at in USUAL.items() if name != axis)
        _table(f"Millions of tuples/s on one core, inserted / probing: {others}", lines, (axis, *got))
    draw(got, PICTURE)
    print(f"\ndrawn in {PICTURE}")
    lines = []
    for name, got in _figures(run, "memory").items():
        lines.append((name, *_bounded(name, got["bytes"])[:2]))
        run.judge(f"{name}: bytes for the encoded windows'", *_bounded(name, got["bytes"]))
    _table(
        "Bytes for the encoded windows', at most while they slide", lines, ("structure", "target", "bytes")
    )


def skew(run: Run) -> None:
    """RaP-Table's balance after each adjustment, and what values that rise are kept in."""
    lines = []
    for name in DISTRIBUTIONS:
        errors = run.measured("balance", name).get("errors")
        if errors:
            lines.append([name, *(f"{error:.2f}" for error in errors)])
            balanced = next((k for k, error in enumerate(errors) if error <= BALANCED), None)
            what = f"RaP-Table with {name} values: balanced to {BALANCED} shares"
            run.judge(what, "within 3 adjustments", str(balanced), balanced is not None and balanced <= 3)
    headers = ("values", *(f"after {k}" for k in range(ADJUSTMENTS + 1)))
    _table("Mean distance of partitions from their share, in shares, by adjustments", lines, headers)
    got = run.measured("rising")
    names = ", ".join(sorted(set(got.get("names", ["not run"]))))
    print(f"\nrising values, batches of 4:\n{got.get('explained', got.get('why'))}")
    run.judge("structure of values that rise", "wib_tree", names, names == "wib_tree")


def _figures(run: Run, measurement: str) -> dict[str, dict]:
    """A measurement of each structure; those without figures are printed with the reason, and left out."""
    got = {name: run.measured(measurement, name) for name in MEASURED}
    for name, each in got.items():
        if "why" in each:
            print(f"\n{name}: {each['why']}")
    return {name: each for name, each in got.items() if "why" not in each}


def draw(got: dict[str, dict], path: Path) -> None:
    """Throughput against each axis, a line per structure."""
    import matplotlib

    matplotlib.use("Agg")  # needs no screen
    import matplotlib.pyplot as plt

    named = {"batch": "tuples in a batch", "rows": "tuples in a subwindow", "matches": "matches per probe"}
    figure, panels = plt.subplots(2, len(AXES), figsize=(11, 6), layout="constrained", sharey="row")
    for row, what in enumerate(("inserted", "probing, pairs listed")):
        for panel, (axis, places) in zip(panels[row], AXES.items()):
            for name, each in got.items():
                panel.plot(places, [at[row] / 1e6 for at in each[axis]], marker="o", label=name)
            panel.set(xscale="log", yscale="log", xlabel=named[axis])
            panel.grid(alpha=0.3)
        panels[row][0].set_ylabel(f"millions of tuples/s, {what}")
    panels[0][0].legend()
    usual = ", ".join(f"{at:,} {named[axis]}" for axis, at in USUAL.items())
    figure.suptitle(f"one core; unless varied {usual}")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def choices(run: Run) -> None:
    """Whole joins with each structure, and what `auto` takes."""
    got = _figures(run, "whole")
    lines = []
    for k, (rows, matches, batch) in enumerate(WHOLE):
        rates = {name: each["rates"][k] for name, each in got.items()}
        known = Statistics(batch, rows, matches / SUBWINDOWS, drift=0.0)
        chosen, _ = choose_structure(Order(0), known)
        share = f"{rates[chosen] / max(rates.values()):.0%}" if chosen in rates else ""
        cells = [f"{rate / 1e6:.3f}" for rate in rates.values()]
        lines.append([f"{rows:,}", f"{matches:,}", f"{batch:,}", *cells, chosen, share])
    headers = ("window", "matches", "batch", *got, "auto", "of the best")
    _table("Whole joins, millions of tuples/s on one core, pairs listed", lines, headers)


def growth(run: Run) -> None:
    """Time per tuple as the window doubles while matches per tuple stay.

    All windows are measured in turns, for as many tuples each. What else runs for a while meets the windows
    of a turn mostly alike, so a window is compared with the one before it turn by turn, and the median of
    that counts.
    """
    lines, rate = [], 50_000
    for what, margin, matches in (("equality", 0, 1), ("band", 10, 16)):
        turns = []
        for turn in range(TURNS):
            got = {}
            for window in WINDOWS if turn % 2 else WINDOWS[::-1]:
                highest = rate * window * (2 * margin + 1) // matches
                asked = rate, 1, highest, margin, window, WINDOWS[-1] // window, REPEATS
                got[window] = run.measured("steady", *asked, turn=turn)
            turns.append(got)
        ratios, before = [], None
        for window in WINDOWS:
            each = [got[window] for got in turns]
            line = [what, f"{matches}", f"{rate * window:,}"]
            if missing := [one["why"] for one in each if "cpu" not in one]:
                lines.append([*line, missing[0]])
                before = None
                continue
            spent = [one["cpu"] / (2 * rate) * 1e9 for one in each]
            times = ""
            if before:
                ratios.append(statistics.median(now / then for now, then in zip(spent, before)))
                times = f"{ratios[-1]:.2f}"
            told = f"{statistics.median(spent):.0f} ns", f"{min(spent):.0f} ns", times
            lines.append([*line, *told, f"{each[0]['bytes']:.2f}"])
            before = spent
        complete = len(ratios) == len(WINDOWS) - 1
        run.judge(
            f"{what}: CPU per tuple as the window doubles",
            f"at most {DOUBLED} times",
            f"{max(ratios):.2f}" if complete else "not measured",
            complete and max(ratios) <= DOUBLED,
        )
    headers = ("predicate", "matches", "rows per window", "CPU per tuple", "least", "times", "bytes")
    _table("Doubling the window", lines, headers)


def machine() -> str:
    """The processor, and how many cores of it."""
    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    name = names[0].partition(":")[2].strip() if names else platform.processor()
    return f"{name}, {cores()} cores, {os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') >> 30} GiB"


SECTIONS = {
    "bands": compare_bands,
    "order": compare_orders,
    "streams": compare_streams,
    "steady": steady_states,
    "structures": structures,
    "skew": skew,
    "auto": choices,
    "growth": growth,
}


def main() -> None:
    """Prints the tables, or one measurement."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--measure", nargs=2, metavar=("NAME", "ARGUMENTS"), help=argparse.SUPPRESS)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION")
    parser.add_argument("--resume", action="store_true", help="take what an earlier run has measured")
    options = parser.parse_args()
    if options.measure:
        name, arguments = options.measure
        print(json.dumps(MEASUREMENTS[name](*json.loads(arguments))))
        return
    run = Run(options.resume)
    for name in options.only:
        SECTIONS[name](run)
    _table(f"Targets, on {machine()}", run.verdicts, ("what", "target", "reached", "enough"))


if __name__ == "__main__":
    main()
