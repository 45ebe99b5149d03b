"""Click attribution: which clicks on an advertisement led to a purchase within 30 minutes, and which did not?

A purchase is paired with every click of the same visitor in the 30 minutes before it; the full outer join
also keeps clicks that led to nothing and purchases that no click led to. The window of purchases has no
length, because a click after a purchase is not its cause.
"""

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa
from matplotlib.ticker import PercentFormatter

from .example import BLUE, GREEN, GREY, RED, Example, micros, timestamps

CAMPAIGNS = ("search", "video", "banner", "partner")
COLOURS = (BLUE, GREEN, "#edae49", RED)
#: The share of clicks on each, how many lead to a purchase, and minutes until then.
SHARE, CHANCE, MINUTES = (0.4, 0.2, 0.3, 0.1), (0.09, 0.05, 0.015, 0.12), (4, 12, 9, 20)
HOURS = 12
ORGANIC = 0.04  #: purchases that no click led to, for each click


def generate(rows: int, rng: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    """Clicks (R) and purchases (S) of a day, busy at noon and in the evening."""
    visitors = rows // 3 + 1
    peaks = rng.choice((3.0, 9.0), rows, p=(0.4, 0.6))
    hour = np.where(rng.random(rows) < 0.35, rng.uniform(0, HOURS, rows), rng.normal(peaks, 1.1))
    hour = np.sort(np.clip(hour, 0, HOURS))
    campaign = rng.choice(len(CAMPAIGNS), rows, p=SHARE)
    visitor = rng.integers(0, visitors, rows)
    buys = rng.random(rows) < np.array(CHANCE)[campaign]
    later = hour[buys] + rng.gamma(2, np.array(MINUTES)[campaign[buys]] / 120, buys.sum())
    organic = int(rows * ORGANIC)
    at = np.concatenate([later, rng.choice(hour, organic)])
    who = np.concatenate([visitor[buys], rng.integers(0, visitors, organic)])
    order = np.argsort(at, kind="stable")
    clicks = pa.table(
        {
            "click": np.arange(rows),
            "ts": timestamps(hour * 3.6e9),
            "visitor": visitor,
            "campaign": np.array(CAMPAIGNS)[campaign],
        }
    )
    purchases = pa.table(
        {
            "purchase": np.arange(len(at)),
            "ts": timestamps(at[order] * 3.6e9),
            "visitor": who[order],
            "amount": rng.gamma(2, 20, len(at)).round(2),
        }
    )
    return clicks, purchases


def _last_clicks(joined: pa.Table) -> dict[str, np.ndarray]:
    """Purchases with the last click before: its campaign (-1 if none), minutes since then, hour, amount."""
    rows = joined.filter(joined["purchase"].is_valid())
    clicked, bought = micros(rows["r_ts"]), micros(rows["s_ts"])
    order = np.lexsort((clicked, rows["purchase"].to_numpy()))
    last = order[np.append(np.diff(rows["purchase"].to_numpy()[order]) != 0, True)]
    names = rows["campaign"].to_pylist()
    return {
        "campaign": np.array([CAMPAIGNS.index(names[k]) if names[k] else -1 for k in last], int),
        "minutes": (bought - clicked)[last] / 6e7,
        "hour": bought[last] / 3.6e9,
        "amount": rows["amount"].to_numpy()[last],
    }


def describe(r: pa.Table, s: pa.Table, joined: pa.Table) -> dict[str, str]:
    """What the clicks on each campaign brought, counting the last before a purchase."""
    last, lines = _last_clicks(joined), {}
    clicks = r["campaign"].to_numpy()
    for number, name in enumerate(CAMPAIGNS):
        mine, total = last["campaign"] == number, np.count_nonzero(clicks == name)
        share = np.count_nonzero(mine) / max(total, 1)
        lines[name] = f"{total:>7,} clicks, {share:6.2%} bought, {last['amount'][mine].sum():>12,.2f} in all"
    mine = last["campaign"] < 0
    lines["no click before"] = (
        f"{np.count_nonzero(mine):>7,} purchases, {last['amount'][mine].sum():,.2f} in all"
    )
    return lines


def draw(r: pa.Table, s: pa.Table, joined: pa.Table) -> plt.Figure:
    """Revenue by hour and campaign, and how long after the click it came."""
    last = _last_clicks(joined)
    figure, (revenue, delay) = plt.subplots(
        1, 2, figsize=(11, 4.6), width_ratios=(1.5, 1), layout="constrained"
    )
    figure.suptitle("Purchases, and the last click in the 30 minutes before", fontweight="bold")
    edges = np.arange(0, HOURS + 0.25, 0.25)
    groups = [(-1, "no click", GREY), *zip(range(len(CAMPAIGNS)), CAMPAIGNS, COLOURS)]
    chosen = [last["campaign"] == number for number, _, _ in groups]
    revenue.hist(
        [last["hour"][mine] for mine in chosen],
        edges,
        weights=[last["amount"][mine] for mine in chosen],
        stacked=True,
        color=[colour for *_, colour in groups],
        label=[name for _, name, _ in groups],
    )
    handles, labels = revenue.get_legend_handles_labels()
    revenue.legend(handles[::-1], labels[::-1], loc="upper left", fontsize="small", frameon=False)
    revenue.set_xlim(0, HOURS)
    revenue.set_xticks(
        range(0, HOURS + 1, 2), [f"{9 + (30 + 60 * h) // 60}:30" for h in range(0, HOURS + 1, 2)]
    )
    revenue.set_xlabel("time of day")
    revenue.set_ylabel("revenue per quarter of an hour")
    for number, name, colour in groups[1:]:
        minutes = np.sort(last["minutes"][last["campaign"] == number])
        clicks = np.count_nonzero(r["campaign"].to_numpy() == name)
        share = np.arange(1, len(minutes) + 1) / max(clicks, 1)
        delay.step(minutes, share, where="post", color=colour, lw=2.2)
        if len(share):
            delay.annotate(
                name, (30, share[-1]), (3, 0), textcoords="offset points", va="center", color="black"
            )
    delay.set_xlim(0, 30)
    delay.set_ylim(0, None)
    delay.yaxis.set_major_formatter(PercentFormatter(1))
    delay.set_xlabel("minutes since the click")
    delay.set_ylabel("clicks that have led to a purchase")
    for axes in (revenue, delay):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


EXAMPLE = Example(
    name="clicks",
    title="every purchase with the clicks of its visitor in the 30 minutes before, and what is left of both",
    rows=150_000,
    options={
        "on": "r.visitor = s.visitor",
        "window": ["30 minutes", "0 minutes"],
        "time": "ts",
        "how": "full",
    },
    sample="visitor % 20 = 0",
    sampled="coalesce(r_visitor, s_visitor) % 20 = 0",
    plain=(
        "SELECT * FROM r FULL JOIN s ON r.visitor = s.visitor "
        "AND unix_micros(s.ts) - unix_micros(r.ts) BETWEEN 0 AND 1800000000"
    ),
    generate=generate,
    describe=describe,
    draw=draw,
)
