"""Scrapes of one target, as they may come: restarts, missed and failed scrapes, torn histograms, a clock set back."""

from __future__ import annotations

import math
from collections.abc import Mapping

from hypothesis import strategies as st

from servescope.contract.samples import Series
from servescope.increments.blocks import BLOCK_MS

Page = Mapping[Series, float]
"""One scrape; an empty one failed."""


def _ended(outcome: str) -> Series:
    return Series("requests_total", (("outcome", outcome),))


T0 = 4 * BLOCK_MS
TOKENS = Series("output_tokens_total", ())
OK, ERROR = _ended("ok"), _ended("error")
START = Series("replica_start_time_seconds", ())
QUEUED = Series("queued_requests", ())


def histogram(counts: Mapping[float, float], total: float, seconds: float) -> dict[Series, float]:
    """A histogram of these cumulative buckets, count and sum."""
    stem = "time_to_first_token_seconds"
    buckets = {Series(f"{stem}_bucket", (("le", _le(edge)),)): count for edge, count in counts.items()}
    return {**buckets, Series(f"{stem}_count", ()): total, Series(f"{stem}_sum", ()): seconds}


def _le(edge: float) -> str:
    return "+Inf" if edge == math.inf else str(edge)


@st.composite
def pasts(draw: st.DrawFn) -> dict[int, Page]:
    """The scrapes of a target: missed and failed ones, restarts with and without a start time, torn histograms."""
    clock = T0 + draw(st.integers(-20_000, 20_000))
    scrapes: dict[int, Page] = {}
    shows_start = draw(st.booleans())
    born = clock - draw(st.integers(0, 100_000))
    count = {"tokens": 0, "ok": 0, "error": 0, "low": 0, "high": 0}
    for _ in range(draw(st.integers(1, 45))):
        clock += draw(st.sampled_from([15_000] * 8 + [14_000, 30_000, 37_000, 38_000, 90_000, 310_000, -40_000]))
        for name in count:
            count[name] += draw(st.sampled_from([0, 1, 2, 7])) if name != "error" or draw(st.booleans()) else 0
        event = draw(st.sampled_from([""] * 12 + ["failed", "restart", "torn", "partly", "hidden", "edges"]))
        if event == "restart":
            count = {name: draw(st.integers(0, 3)) for name in count}
            born = clock - draw(st.integers(0, 40_000))
        if event == "failed":
            scrapes[clock] = {}
            continue
        count["low"] -= min(count["low"], 2) if event == "partly" else 0
        total = count["low"] + count["high"]
        edge = 0.5 if event == "edges" else 0.1
        page = {
            TOKENS: count["tokens"],
            **histogram({edge: count["low"], math.inf: total}, total + (event == "torn"), float(total)),
            **({OK: count["ok"]} if count["ok"] and event != "hidden" else {}),
            **({ERROR: count["error"]} if count["error"] else {}),
            **({START: born / 1000} if shows_start else {}),
        }
        scrapes[clock] = page
    return scrapes
