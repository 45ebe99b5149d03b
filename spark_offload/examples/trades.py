"""Trades and quotes: which quotes, within 50 ms of a trade, could it have been made at?

A feed of trades comes some milliseconds after the quotes that they were made at. The join needs no guess of
that delay: it pairs each trade with every quote of its symbol within 50 ms whose bid and ask its price lies
between. How the pairs are spread over time shows the delay; a trade without a pair was made off the market.
"""

import matplotlib.pyplot as plt
import numpy as np
import pyarrow as pa

from .example import BLUE, GREEN, GREY, RED, Example, micros, timestamps

SYMBOLS = ("ALFA", "BRAV", "CHAR", "DELT", "ECHO", "FOXT", "GOLF", "HOTL")
#: Milliseconds between two quotes of a symbol, on average, and quotes for each trade.
EVERY, QUOTES = 6, 8
DELAY_MS = 18  #: of the feed of trades
ON = "r.sym = s.sym AND r.price BETWEEN s.bid AND s.ask"
OFF_MARKET = 0.03  #: the share of trades that are made at another price


def generate(rows: int, rng: np.random.Generator) -> tuple[pa.Table, pa.Table]:
    """Trades and quotes of eight symbols; each mid price is a random walk in cents."""
    quotes = rows * QUOTES // len(SYMBOLS) + 1
    parts = {"r": [], "s": []}
    for number, symbol in enumerate(SYMBOLS):
        at = np.cumsum(rng.exponential(EVERY * 1000, quotes))
        mid = 100.0 + 10 * number + np.cumsum(rng.choice((-0.01, 0.0, 0.01), quotes, p=(0.3, 0.4, 0.3)))
        bid, ask = mid - rng.integers(1, 3, quotes) / 100, mid + rng.integers(1, 3, quotes) / 100
        parts["s"].append((at, np.full(quotes, symbol), bid.round(2), ask.round(2)))
        # A trade is made at one side of the quote that stands at that time, and is told of later.
        count = rows // len(SYMBOLS) + (number < rows % len(SYMBOLS))
        made = np.sort(rng.uniform(at[0], at[-1], count))
        stands = np.searchsorted(at, made, side="right") - 1
        price = np.where(rng.random(count) < 0.5, bid[stands], ask[stands])
        off = rng.random(count) < OFF_MARKET
        price = np.where(off, price + rng.choice((-1, 1), count) * rng.uniform(0.06, 0.15, count), price)
        told = made + rng.gamma(20, DELAY_MS * 1000 / 20, count)
        parts["r"].append((told, np.full(count, symbol), price.round(2), rng.integers(1, 20, count) * 100))
    tables = []
    for part, names in (("r", ("sym", "price", "size")), ("s", ("sym", "bid", "ask"))):
        at, *columns = (np.concatenate(column) for column in zip(*parts[part]))
        order = np.argsort(at, kind="stable")
        key = "trade" if part == "r" else "quote"
        named = {name: column[order] for name, column in zip(names, columns)}
        tables.append(pa.table({key: np.arange(len(at)), "ts": timestamps(at[order]), **named}))
    return tables[0], tables[1]


def _lags(joined: pa.Table) -> np.ndarray:
    """Milliseconds from quote to trade."""
    return (micros(joined["r_ts"]) - micros(joined["s_ts"])) / 1000


def _explained(r: pa.Table, joined: pa.Table) -> np.ndarray:
    """Which trades have a quote."""
    found = np.zeros(len(r), bool)
    found[joined["trade"].to_numpy()] = True
    return found


def describe(r: pa.Table, s: pa.Table, joined: pa.Table) -> dict[str, str]:
    """How late trades come, and how many no quote explains."""
    counts, edges = np.histogram(_lags(joined), bins=50, range=(-50, 50))
    off = np.count_nonzero(~_explained(r, joined))
    most = counts.argmax()
    return {
        "trades come late": f"most often by {edges[most]:.0f} to {edges[most + 1]:.0f} ms",
        "off the market": f"{off:,} of {len(r):,} trades ({off / len(r):.1%})",
    }


def draw(r: pa.Table, s: pa.Table, joined: pa.Table) -> plt.Figure:
    """The market of one symbol for a second or so, with its trades; and pairs by the time between them."""
    figure, (market, lag) = plt.subplots(1, 2, figsize=(11, 4.6), width_ratios=(2.2, 1), layout="constrained")
    figure.suptitle("Trades, and the quotes within 50 ms that explain them", fontweight="bold")
    explained, symbol = _explained(r, joined), SYMBOLS[0]
    trades = np.flatnonzero(r["sym"].to_numpy() == symbol)
    quotes = np.flatnonzero(s["sym"].to_numpy() == symbol)
    at = {"r": micros(r["ts"])[trades] / 1e6, "s": micros(s["ts"])[quotes] / 1e6}
    # The time with the most trades that nothing explains.
    lost = at["r"][~explained[trades]]
    begin = (
        max(lost, key=lambda time: np.count_nonzero((lost >= time) & (lost < time + 0.7)), default=0.1) - 0.1
    )
    seen, shown = ((at[side] >= begin) & (at[side] <= begin + 0.9) for side in ("r", "s"))
    bid, ask = (s[name].to_numpy()[quotes[shown]] for name in ("bid", "ask"))
    market.fill_between(at["s"][shown], bid, ask, step="post", color=GREY, alpha=0.55, lw=0)
    market.step(at["s"][shown], bid, where="post", color=BLUE, lw=0.9, label="bid")
    market.step(at["s"][shown], ask, where="post", color=GREEN, lw=0.9, label="ask")
    price = r["price"].to_numpy()[trades]
    for chosen, colour, marker, label in (
        (explained[trades], "black", "o", "trade with a quote"),
        (~explained[trades], RED, "X", "trade without"),
    ):
        both = seen & chosen
        size = 26 if marker == "o" else 70
        market.hlines(price[both], at["r"][both] - 0.05, at["r"][both] + 0.05, colour, lw=0.7, alpha=0.6)
        market.scatter(at["r"][both], price[both], size, colour, marker=marker, zorder=3, label=label, lw=0)
    market.set_xlim(begin, begin + 0.9)
    market.set_xlabel("seconds (bars: 50 ms before and after a trade)")
    market.set_ylabel(f"price of {symbol}")
    market.legend(loc="best", fontsize="small", framealpha=0.9)
    counts, edges, _ = lag.hist(_lags(joined), bins=50, range=(-50, 50), color=BLUE)
    lag.axvline(0, color="black", lw=0.8)
    top = edges[counts.argmax()] + 1
    lag.annotate(
        f"the feed of trades\nis {top:.0f} ms late",
        (top, counts.max()),
        (-47, counts.max() * 0.93),
        arrowprops={"arrowstyle": "->", "color": "black"},
        fontsize="small",
        va="center",
    )
    lag.set_xlim(-50, 50)
    lag.set_ylim(0, counts.max() * 1.12)
    lag.set_xlabel("ms from quote to trade")
    lag.set_ylabel("pairs")
    for axes in (market, lag):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


EXAMPLE = Example(
    name="trades",
    title="every trade with the quotes within 50 ms that its price lies in",
    rows=60_000,
    options={
        "on": ON,
        "window": "50 milliseconds",
        "time": "ts",
    },
    sample="sym = 'ALFA'",
    sampled="r_sym = 'ALFA'",
    plain=f"SELECT * FROM r JOIN s ON {ON} AND abs(unix_micros(r.ts) - unix_micros(s.ts)) <= 50000",
    generate=generate,
    describe=describe,
    draw=draw,
)
