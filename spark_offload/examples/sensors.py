"""Sensor fusion: which radar and camera detections are of the same object?

Both sensors look at a crossroads, at times of their own. A detection of either is a point in the plane. Two
are of one object if they are within 1.5 m in x and in y, and within 60 ms: a band on two attributes. Where
the pairs lie in that box shows how the camera is mounted askew; clutter finds no partner.
"""

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
from matplotlib.collections import LineCollection

from .example import BLUE, GREEN, RED, START, Example, micros, timestamps

#: Metres from the centre to the edge, and seconds for which an object is seen.
REACH, SEEN = 40.0, 8.0
#: Detections a second of each object.
RADAR_HZ, CAMERA_HZ = 13, 20
ASKEW = np.array([0.45, -0.30])  #: metres by which the camera is off
CLUTTER = 0.15  #: the share of detections that are of nothing
NEAR = 1.5  #: metres
ON = f"r.x BETWEEN s.u - {NEAR} AND s.u + {NEAR} AND r.y BETWEEN s.v - {NEAR} AND s.v + {NEAR}"
SAMPLE = f"timestamp_micros({START + 20_000_000})"  #: the first 20 seconds
#: Four roads: where they begin and end. The third and fourth turn.
ROADS = (
    ((-REACH, -2.0), (-2.0, -2.0), (REACH, -2.0)),
    ((2.0, -REACH), (2.0, 2.0), (2.0, REACH)),
    ((REACH, 2.0), (2.0, 2.0), (-2.0, -REACH)),
    ((-2.0, REACH), (-2.0, -2.0), (-REACH, 2.0)),
)


def _positions(road: np.ndarray, where: np.ndarray) -> np.ndarray:
    """Points on roads: curves from edge to edge that the point at the centre pulls."""
    begin, centre, end = (np.array([part[k] for part in ROADS])[road] for k in range(3))
    t = where[:, None]
    return (1 - t) ** 2 * begin + 2 * t * (1 - t) * centre + t**2 * end


def generate(rows: int, rng: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    """Detections by radar (R) and camera (S) of objects that come every second or so."""
    objects = max(4, round(rows * (1 - CLUTTER) / (RADAR_HZ * SEEN)))
    begin, road = np.cumsum(rng.exponential(0.8, objects)), rng.integers(0, len(ROADS), objects)
    lane = rng.normal(0, 0.5, (objects, 2))
    tables = []
    for rate, blur, offset, names in (
        (RADAR_HZ, 0.30, np.zeros(2), ("detection", "x", "y", "speed")),
        (CAMERA_HZ, 0.20, ASKEW, ("frame", "u", "v", "score")),
    ):
        whole = np.repeat(np.arange(objects), int(rate * SEEN))
        age = np.tile(np.arange(int(rate * SEEN)) / rate, objects) + rng.uniform(0, 1 / rate, len(whole))
        at = begin[whole] + age
        points = _positions(road[whole], age / SEEN) + lane[whole] + offset
        points += rng.normal(0, blur, points.shape)
        clutter = int(len(at) * CLUTTER / (1 - CLUTTER))
        at = np.concatenate([at, rng.uniform(0, at.max(), clutter)])
        points = np.concatenate([points, rng.uniform(-REACH, REACH, (clutter, 2))])
        order = np.argsort(at, kind="stable")
        tables.append(
            pa.table(
                {
                    names[0]: np.arange(len(at)),
                    "ts": timestamps(at[order] * 1e6),
                    names[1]: points[order, 0].astype(np.float32),
                    names[2]: points[order, 1].astype(np.float32),
                    names[3]: rng.random(len(at)).astype(np.float32),
                }
            )
        )
    return tables[0], tables[1]


def describe(r: pa.Table, s: pa.Table, joined: pa.Table) -> dict[str, str]:
    """How the camera is mounted, and how much clutter there is."""
    dx, dy = (np.median(part) for part in _apart(joined))
    alone = len(r) - len(np.unique(joined["detection"].to_numpy()))
    return {
        "the camera is off": f"by {dx:+.2f} m in x and {dy:+.2f} m in y",
        "clutter": f"{alone:,} of {len(r):,} radar detections have no partner ({alone / len(r):.1%})",
    }


def _apart(joined: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Metres from radar to camera."""
    return tuple(joined[b].to_numpy() - joined[a].to_numpy() for a, b in (("x", "u"), ("y", "v")))


def draw(r: pa.Table, s: pa.Table, joined: pa.Table) -> plt.Figure:
    """The crossroads for some seconds, and where in the box of the condition pairs lie."""
    figure, (plane, box) = plt.subplots(1, 2, figsize=(11, 5.2), width_ratios=(1.15, 1), layout="constrained")
    figure.suptitle("Radar and camera detections of the same object", fontweight="bold")
    begin, end, edge = 11e6, 15e6, 20
    seen = {}
    for side, table, names, number in (("r", r, ("x", "y"), "detection"), ("s", s, ("u", "v"), "frame")):
        at = micros(table["ts"])
        paired = np.zeros(len(table), bool)
        paired[joined[number].to_numpy()] = True
        shown = (at >= begin) & (at < end)
        seen[side] = [table[name].to_numpy() for name in names], shown & paired, shown & ~paired
    shown = (micros(joined["r_ts"]) >= begin) & (micros(joined["r_ts"]) < end)
    ends = [[joined[name].to_numpy()[shown] for name in names] for names in (("x", "y"), ("u", "v"))]
    plane.add_collection(LineCollection(np.array(ends).transpose(2, 0, 1), colors="black", lw=0.4, alpha=0.5))
    for side, colour, label in (("r", BLUE, "radar"), ("s", GREEN, "camera")):
        (x, y), paired, alone = seen[side]
        plane.scatter(x[paired], y[paired], 11, colour, lw=0, label=label, zorder=2)
        plane.scatter(
            x[alone], y[alone], 22, colour, marker="x", lw=0.8, label=f"{label}, no partner", zorder=2
        )
    plane.set_xlim(-edge, edge)
    plane.set_ylim(-edge, edge)
    plane.set_aspect("equal")
    plane.set_xlabel("x in metres")
    plane.set_ylabel("y in metres")
    plane.set_title(f"{(end - begin) / 1e6:.0f} seconds at the crossroads", fontsize="medium")
    plane.legend(loc="lower left", fontsize="small", framealpha=0.9)
    dx, dy = _apart(joined)
    edges = np.linspace(-NEAR, NEAR, 61)
    image = box.hist2d(dx, dy, bins=(edges, edges), cmap="viridis")[3]
    box.plot(0, 0, "+", color="white", ms=12, mew=1.5)
    box.plot(np.median(dx), np.median(dy), "x", color=RED, ms=10, mew=2.5)
    box.annotate(
        f"the camera is off by\n({np.median(dx):+.2f}, {np.median(dy):+.2f}) m",
        (np.median(dx), np.median(dy)),
        (-1.35, -1.2),
        color="white",
        arrowprops={"arrowstyle": "->", "color": "white", "shrinkB": 8},
    )
    box.set_aspect("equal")
    box.set_xlabel("camera x - radar x in metres")
    box.set_ylabel("camera y - radar y in metres")
    box.set_title("where pairs lie in the box of the condition", fontsize="medium")
    figure.colorbar(image, ax=box, label="pairs", shrink=0.8)
    return figure


EXAMPLE = Example(
    name="sensors",
    title="radar and camera detections that are near in x, in y and in time",
    rows=60_000,
    options={
        "on": ON,
        "window": "60 milliseconds",
        "time": "ts",
    },
    sample=f"ts < {SAMPLE}",
    sampled=f"greatest(r_ts, s_ts) < {SAMPLE}",
    plain=f"SELECT * FROM r JOIN s ON {ON} AND abs(unix_micros(r.ts) - unix_micros(s.ts)) <= 60000",
    generate=generate,
    describe=describe,
    draw=draw,
)
