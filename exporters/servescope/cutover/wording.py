"""What a judgement says to people: one sentence for a metric, one for the whole, and what would change a verdict."""

from __future__ import annotations

import math
from typing import Final

from servescope.cutover.judgement import Cause, Verdict
from servescope.cutover.paths import IMMATERIAL_RATE
from servescope.cutover.tracks import MetricTrack


def percent(cost: float) -> str:
    """A cost as a change: `+12 %`, `−3 %`."""
    change = math.expm1(cost) * 100.0
    digits = 0 if abs(change) >= 9.95 else 1
    text = f"{abs(change):.{digits}f}"
    return f"{'−' if change < 0 and float(text) else '+'}{text} %"


def span(seconds: float) -> str:
    """A time as people say it: `40 min`, `3 h`, `2 days`."""
    if seconds < 5_400:
        return f"{max(1, round(seconds / 60))} min"
    return f"{round(seconds / 3_600)} h" if seconds < 129_600 else f"{round(seconds / 86_400)} days"


def _interval(track: MetricTrack, block: int) -> str:
    path = track.path
    if path is None:
        return ""
    low, high = float(path.low[block]), float(path.high[block])
    if track.judged.kind == "events":
        unbounded = low == -math.inf and high == math.inf
        return "no limits so far" if unbounded else f"{_times(low)} to {_times(high)} times v1's rate"
    return f"{_bound(low, 'no lower limit')} to {_bound(high, 'no upper limit')}"


def _bound(cost: float, otherwise: str) -> str:
    return percent(cost) if math.isfinite(cost) and abs(cost) < _LARGEST_COST else otherwise


_LARGEST_COST: Final = 3.0


def _times(cost: float) -> str:
    if cost == math.inf:
        return "any number of"
    return f"{math.exp(cost):.2g}" if cost > -math.inf else "0"


def _change(track: MetricTrack, block: int) -> str:
    """The estimate with its interval, worse as a plus: `worse by 12 % (+4 % to +20 %)`."""
    path = track.path
    if path is None:
        return ""
    cost = float(path.cost[block])
    if track.judged.kind == "events":
        rate = f"{_times(cost)} times as often as on v1" if math.isfinite(cost) else "on v2 and not on v1"
        return f"happen {rate} ({_interval(track, block)})"
    if not math.isfinite(cost):
        return f"has more slow requests than on v1 ({_interval(track, block)})"
    recent = float(path.recent[block])
    if track.causes[block] == "beyond margin" and cost < track.margin / 2:
        # The whole stage hides what began late.
        late = f"by {percent(recent).lstrip('+')} in the last hour or two, "
        return f"became worse ({late if recent > cost else ''}{percent(cost)} over the whole stage)"
    word = "worse" if cost > 0 else "better"
    size = percent(cost).lstrip("+−")
    return f"is {word} by {size} ({_interval(track, block)})"


def _margin(track: MetricTrack) -> str:
    margin = track.plan.margin or 0.0
    return f"{1 + margin:g} times v1's rate" if track.judged.kind == "events" else f"{margin * 100:g} %"


def explain(track: MetricTrack, block: int, eta_seconds: float | None = None) -> str:
    """The reason of a metric's verdict after a block of its stage, as a sentence without its full stop."""
    cause: Cause = track.causes[block]
    title = track.judged.title
    plan = track.plan
    match cause:
        case "better" | "not worse":
            if track.judged.kind == "events" and track.path is not None and track.path.high[block] == math.inf:
                events, requests = track.v2.above[:, : block + 1].sum(), track.v2.below[:, : block + 1].sum()
                return f"{title}: {events:.0f} of {requests:.0f} on v2, proven rarer than {IMMATERIAL_RATE:.1%}"
            return f"{title}: proven within the margin of {_margin(track)}, at {_interval(track, block)}"
        case "proven cost":
            return f"{title} {_change(track, block)}: a proven cost, within the margin of {_margin(track)}"
        case "beyond margin":
            return f"{title} {_change(track, block)}, beyond the margin of {_margin(track)}"
        case "probable":
            return f"{title} {_change(track, block)}: harm is proven, though not beyond the margin of {_margin(track)}"
        case "objective":
            events, requests = track.v2.above[:, block].sum(), track.v2.below[:, block].sum()
            return (
                f"{title}: {events:.0f} of {requests:.0f} requests to v2 within five minutes, far above any objective"
            )
        case "in band" | "out of band":
            where = "within" if cause == "in band" else "outside"
            return f"{title} is {track.value[block]:.4g}, {where} {band_text(plan.low, plan.high)}"
        case "needs data":
            if track.path is None:
                return f"{title}: an hour of it is needed"
            later = f"; about {span(eta_seconds)} more settle it" if eta_seconds is not None else ""
            return f"{title}: not settled yet ({_interval(track, block)}), with a margin of {_margin(track)}{later}"
        case "metric absent" | "incomparable" if track.comparability is not None:
            return f"{title}: {track.comparability.reason}"
        case _:
            return f"{title}: {_CAUSES[cause]}"


def band_text(low: float | None, high: float | None) -> str:
    """A band as text: `0.9 and above`, `50000 to 150000`."""
    if low is not None and high is not None:
        return f"{low:g} to {high:g}"
    return f"{low:g} and above" if low is not None else f"{high:g} and below"


_CAUSES: Final[dict[str, str]] = {
    "mix": "the arms get different prompts, so that their figures cannot be compared",
    "load": "load not matched: a replica of one arm carries much more than one of the other, or is saturated",
    "warming": "v2 is still warming up",
    "pods too few": "the pods differ too much for so few of them: waiting does not settle it, more pods do",
    "uncalibrated": "v1's past does not show the noise, which is estimated first: at least three hours of both arms",
    "no control": "v1 has no requests left to compare with",
    "arm missing": "an arm has no target that was scraped",
    "metric absent": "an arm does not report it",
    "stale": "an arm was not scraped any more",
    "quiet": "an arm gets no requests any more",
    "scrapes missing": "fewer than 80 % of the expected scrapes succeeded",
    "torn": "its histograms' parts do not fit together",
    "too few": "an arm has fewer than 20 observations",
    "query error": "the past could not be read whole",
    "load range": "the highest load has not been seen",
    "incomparable": "the arms do not report the same thing",
}


def flips(track: MetricTrack, block: int, verdict: Verdict, eta_seconds: float | None) -> str:
    """What would change the verdict."""
    margin = _margin(track)
    if track.path is None:
        return f"an hour outside {band_text(track.plan.low, track.plan.high)}" if verdict == "HEALTHY" else (
            f"an hour within {band_text(track.plan.low, track.plan.high)}"
        )  # fmt: skip
    match verdict:
        case "HEALTHY":
            return f"evidence of harm above {_floor(track)}, a restart, missing scrapes or the next stage"
        case "DEGRADED":
            return f"a fix, and proof that it stays below the margin of {margin}; an acknowledgement ends the latch"
        case "NO DATA":
            return "the missing data"
    later = f", about {span(eta_seconds)} at this rate" if eta_seconds is not None else ""
    return f"an upper limit below {margin}, or a lower one above {_floor(track)}{later}"


def _floor(track: MetricTrack) -> str:
    floor = track.plan.floor or 0.0
    if track.judged.kind == "events":
        return f"{1 + floor:g} times v1's rate" if floor else "v1's rate"
    return f"{floor * 100:g} %"
