"""How values, times and units read: the same words in tables, tiles and tooltips."""

from __future__ import annotations

import math
import re
from datetime import datetime, tzinfo
from typing import Literal

from servescope.contract.types import Band, Figure, Rating
from servescope.settings.clock import AHEAD_MS
from servescope.settings.values import format_wait as format_wait  # pages have all formats from here

ABSENT = "–"
"""Shown where there is no value; never 0 and never NaN."""

MINUS = "\N{MINUS SIGN}"
_SCALES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def as_sentence(text: str) -> str:
    """A text with a full stop at its end, and a capital at its beginning unless that is a name."""
    first = text.partition(" ")[0]
    is_name = text.startswith(("v1", "v2")) or "_" in first or ":" in first.rstrip(":")
    begun = text if is_name else text[:1].upper() + text[1:]
    return begun if not begun or begun.endswith((".", "!", "?")) else f"{begun}."


def is_absent(value: float | None) -> bool:
    """Whether there is no value: None, or NaN in a frame."""
    return value is None or math.isnan(value)


def format_value(value: float | None, unit: str) -> str:
    """The value with three significant digits and its unit; an en dash for None and NaN."""
    if value is None or is_absent(value):
        return ABSENT
    if unit == "ratio":
        return format_share(value)
    if unit == "seconds":
        return format_seconds(value)
    if unit == "bytes":
        return f"{format_number(value)}B"
    return f"{format_number(value)} {unit}"


def format_bare(value: float | None, unit: str) -> str:
    """The value under a heading that names its unit: shares and durations keep theirs, other units are left out."""
    if value is None or is_absent(value):
        return ABSENT
    return format_value(value, unit) if unit in ("ratio", "seconds", "bytes") else format_number(value)


def format_share(value: float) -> str:
    """A share as percent; small ones have two digits, so that a reader can divide one of them by another."""
    if value == 0:
        return "0 %"
    percent = 100 * value
    if 0 < abs(percent) < 0.0005:
        return "< 0.001 %"
    digits = 3 if 0 < abs(percent) < 0.0995 else 2 if abs(percent) < 1 else 1 if abs(percent) < 99.95 else 0
    return f"{percent:.{digits}f} %".replace("-", "\N{MINUS SIGN}")


def format_planned(share: float) -> str:
    """A share that somebody chose, as they would write it: `1 %`, `2.5 %`."""
    return f"{100 * share:g} %".replace("-", "\N{MINUS SIGN}")


def describe_better(better: Literal["higher", "lower"] | None, *, has_margin: bool) -> str:
    """Which way a metric is better: `lower is better`, `neither is better`, or `within a band`."""
    if better is None:
        return "neither more nor less" if has_margin else "within a band"
    return f"{better} is better"


def format_seconds(value: float) -> str:
    """A duration in the unit a person would say it in: `182 ms`, `1.24 s`, `3.5 min`, `1 h 10 min`."""
    if value == 0:
        return "0 s"
    if abs(value) < 0.001:
        return f"{_three_digits(value * 1e6)} µs"
    if abs(value) < 1:
        return f"{_three_digits(value * 1e3)} ms"
    if abs(value) < 120:
        return f"{_three_digits(value)} s"
    if abs(value) < 3_600:
        return f"{_three_digits(value / 60)} min"
    return f"{MINUS if value < 0 else ''}{format_wait(abs(value))}"


def format_number(value: float) -> str:
    """A number with three significant digits, thousands as k, M, G, T."""
    for scale, letter in _SCALES:
        # 999.6 would round to 1000: it belongs to the next scale.
        if abs(value) >= scale * 0.9995:
            return f"{_three_digits(value / scale)} {letter}"
    return _three_digits(value)


def _three_digits(value: float) -> str:
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-9))
    text = f"{value:.{min(digits, 6)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "\N{MINUS SIGN}")


def format_age(seconds: float) -> str:
    """How long ago: `now`, `12 s`, `4 min`, `3 h`, `2 d`; an en dash for what has not been yet."""
    if seconds < -AHEAD_MS / 1000:
        return ABSENT
    if seconds < 1:
        return "now"
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= 2 * size or (seconds >= size and unit != "min"):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_replicas(count: int) -> str:
    """How many replicas: `1 replica`, `3 replicas`."""
    return f"{count} replica" if count == 1 else f"{count} replicas"


def format_time(time_ms: float, zone: tzinfo) -> str:
    """A moment in the reader's time zone: `20 Nov 14:05:30`."""
    return f"{datetime.fromtimestamp(time_ms / 1000, zone):%-d %b %H:%M:%S}"


def format_day_minute(time_ms: float, zone: tzinfo) -> str:
    """A minute of a range that may be of several days: `20 Nov 14:05`."""
    return f"{datetime.fromtimestamp(time_ms / 1000, zone):%-d %b %H:%M}"


def format_minute(time_ms: float, zone: tzinfo) -> str:
    """A time of day in the reader's time zone: `14:05`."""
    return f"{datetime.fromtimestamp(time_ms / 1000, zone):%H:%M}"


def format_near(time_ms: float, now_ms: float, zone: tzinfo) -> str:
    """A minute in the reader's time zone, with its day where that is not the one of `now_ms`."""
    same = datetime.fromtimestamp(time_ms / 1000, zone).date() == datetime.fromtimestamp(now_ms / 1000, zone).date()
    return format_minute(time_ms, zone) if same else format_day_minute(time_ms, zone)


def in_zone(text: str, now_ms: float, zone: tzinfo) -> str:
    """A text of the judge with its times, `2026-11-20 14:05 UTC`, as the reader's clock shows them."""

    def local(found: re.Match[str]) -> str:
        return format_near(datetime.fromisoformat(f"{found[1]}T{found[2]}+00:00").timestamp() * 1000, now_ms, zone)

    return re.sub(r"(\d{4}-\d{2}-\d{2}) (\d{2}:\d{2}) UTC", local, text)


def band_ranges(band: Band) -> list[tuple[float, float, Rating]]:
    """The band as stretches (from, to, rating) that follow each other from -inf to +inf."""
    starts = [-math.inf, *(step.start for step in band.steps)]
    ratings = [band.lowest, *(step.rating for step in band.steps)]
    return list(zip(starts, [*starts[1:], math.inf], ratings, strict=True))


def short_title(figure: Figure) -> tuple[str, str]:
    """The figure's title as what it measures and which reading of it: (`Time to first token`, `p95`)."""
    base, _, reading = figure.title.partition(", ")
    return base, reading
