"""What a judgement says to people: one sentence for a metric, one for the whole, and what would change a verdict."""

from __future__ import annotations

import math
from typing import Final

from servescope.cutover.judgement import Cause, Verdict
from servescope.cutover.paths import IMMATERIAL_RATE
from servescope.cutover.tracks import MetricTrack


def percent(change: float) -> str:
    """A logarithm of v2 ÷ v1 as the change that it is: `+12 %`, `−3 %`."""
    size = _size(change)
    return f"{'−' if change < 0 and float(size) else '+'}{size} %"


def _size(change: float) -> str:
    size = abs(math.expm1(change)) * 100.0
    return f"{size:.{0 if size >= 9.95 else 1}f}"


def span(seconds: float) -> str:
    """A time as people say it: `40 min`, `3 h`, `2 days`."""
    if seconds < 5_400:
        return f"{max(1, round(seconds / 60))} min"
    return f"{round(seconds / 3_600)} h" if seconds < 129_600 else f"{round(seconds / 86_400)} days"


def _own(track: MetricTrack, *costs: float) -> tuple[float, ...]:
    """Costs as logarithms of the metric's own v2 ÷ v1, the lower limit first."""
    return tuple(-cost for cost in reversed(costs)) if track.plan.better == "higher" else costs


def _interval(track: MetricTrack, block: int) -> str:
    path = track.path
    if path is None:
        return ""
    low, high = _own(track, float(path.low[block]), float(path.high[block]))
    if track.judged.kind == "events":
        unbounded = low == -math.inf and high == math.inf
        return "no limits so far" if unbounded else f"{_times(low)} to {_times(high)} times v1's rate"
    ends = dict.fromkeys((_bound(low, "no lower limit"), _bound(high, "no upper limit")))
    return " to ".join(ends)


def _bound(change: float, otherwise: str) -> str:
    return percent(change) if math.isfinite(change) and abs(change) < _LARGEST_CHANGE else otherwise


_LARGEST_CHANGE: Final = 3.0


def _times(change: float) -> str:
    if change == math.inf:
        return "any number of"
    times = math.exp(change)
    return f"{times:.0f}" if times >= 99.5 else f"{times:.2g}" if times >= 0.01 or times == 0.0 else "less than 0.01"


def _change(track: MetricTrack, block: int) -> str:
    """The estimate with its interval, as the change of the metric itself."""
    path = track.path
    if path is None:
        return ""
    cost, recent = float(path.cost[block]), float(path.recent[block])
    interval = _interval(track, block)
    if track.judged.kind == "events":
        rate = f"{_times(cost)} times as often as on v1" if math.isfinite(cost) else "on v2 and not on v1"
        return f"happen {rate} ({interval})"
    if not math.isfinite(cost):
        return f"has more slow requests than on v1 ({interval})"
    (change,) = _own(track, cost)
    if track.causes[block] == "beyond margin" and cost < track.margin / 2:
        # The whole stage hides what began late.
        late = f"{percent(*_own(track, recent))} in the last hour or two, " if recent > cost else ""
        return f"became worse ({late}{percent(change)} over the whole stage)"
    word = "worse" if cost > 0 else "better"
    size = f"{_size(change)} % {'higher' if change > 0 else 'lower'}"
    return f"is {word}: {size} than on v1 ({interval})"


def _margin(track: MetricTrack) -> str:
    """The margin; where higher is better, v1 may have so much more than v2, which is a smaller fall."""
    margin = track.plan.margin or 0.0
    if track.judged.kind == "events":
        return f"{1 + margin:g} times v1's rate"
    fall = f" (a fall of {_size(-track.margin)} %)" if track.plan.better == "higher" else ""
    return f"{margin * 100:g} %{fall}"


def explain(track: MetricTrack, block: int, eta_seconds: float | None = None) -> str:
    """The reason of a metric's verdict after a block of its stage, as a sentence without its full stop."""
    cause: Cause = track.causes[block]
    title = track.judged.title
    match cause:
        case "better" | "not worse":
            if track.judged.kind == "events" and track.path is not None and track.path.high[block] == math.inf:
                events, requests = track.v2.above[:, : block + 1].sum(), track.v2.below[:, : block + 1].sum()
                return f"{title}: {_of(events, requests)} on v2, proven rarer than {IMMATERIAL_RATE * 100:g} %"
            found = "better" if cause == "better" else f"within the margin of {_margin(track)}"
            against = "" if track.judged.kind == "events" else " against v1"
            return f"{title}: proven {found}, at {_interval(track, block)}{against}"
        case "proven cost":
            return f"{title} {_change(track, block)}: a proven cost, within the margin of {_margin(track)}"
        case "beyond margin":
            return f"{title} {_change(track, block)}, beyond the margin of {_margin(track)}"
        case "probable":
            return f"{title} {_change(track, block)}: harm is proven, though not beyond the margin of {_margin(track)}"
        case "objective":
            events, requests = track.v2.above[:, block].sum(), track.v2.below[:, block].sum()
            return f"{title}: {_of(events, requests)} requests to v2 within five minutes, far above any objective"
        case "in band" | "out of band":
            verb = "is" if track.judged.unit == "ratio" else "are"
            value, joined = _quantity(track.value[block], track.judged.unit), "and" if cause == "in band" else "but"
            return f"{title} is {value} over the last hour, {joined} {_band(track)} {verb} expected"
        case "needs data":
            if track.path is None:
                return f"{title}: an hour of it is needed"
            later = f"; to be settled in about {span(eta_seconds)}" if eta_seconds is not None else ""
            return f"{title}: not settled yet ({_interval(track, block)}), with a margin of {_margin(track)}{later}"
        case "one replica" if track.alone is not None:
            return (
                f"{title}: one replica: {track.alone.named(block)} than the others of v2, whose harm that is not; "
                "HEALTHY waits until it is over or the replica is replaced"
            )
        case "metric absent" | "incomparable" if track.comparability is not None:
            return f"{title}: {track.comparability.reason}"
        case _:
            return f"{title}: {_CAUSES[cause]}"


def _of(events: float, requests: float) -> str:
    return f"{_number(events)} of {_number(requests)}"


def _number(value: float) -> str:
    """A number in three digits, from a thousand on whole and in groups of three that no line breaks."""
    return f"{value:,.0f}".replace(",", "\N{NO-BREAK SPACE}") if abs(value) >= 999.5 else f"{value:.3g}"


def _quantity(value: float, unit: str) -> str:
    # Below a hundredth of a percent there is nothing to read; adding 0 takes the sign of what was rounded to it.
    text = f"{_number(round(100.0 * value, 2) + 0.0)} %" if unit == "ratio" else f"{_number(value)} {unit}"
    return text.replace("-", "−")


def _band(track: MetricTrack) -> str:
    """A band as text: `at least 90 %`, `50 000 to 150 000 tokens`."""
    low, high, unit = track.plan.low, track.plan.high, track.judged.unit
    if low is None or high is None:
        return f"at most {_quantity(high, unit)}" if high is not None else f"at least {_quantity(low or 0.0, unit)}"
    return f"{_quantity(low, unit).removesuffix(f' {unit}')} to {_quantity(high, unit)}"


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
    if track.path is None and verdict != "NO DATA":
        return f"an hour {'outside' if verdict == 'HEALTHY' else 'inside'} its band: {_band(track)}"
    match verdict:
        case "HEALTHY":
            return f"evidence of harm above {_floor(track)}, a restart, missing scrapes or the next stage"
        case "DEGRADED":
            return f"a fix, and proof that it stays below the margin of {margin}; an acknowledgement ends the latch"
        case "NO DATA":
            return "the missing data"
    if track.causes[block] == "one replica" and track.alone is not None:
        return f"{track.alone.names[track.alone.replica[block]]} like the others of v2 again, or replaced"
    later = f", about {span(eta_seconds)} at this rate" if eta_seconds is not None else ""
    if track.plan.better == "higher":
        harmless, harmful = percent(-track.margin), percent(-math.log1p(track.plan.floor or 0.0))
        return f"a lower limit above {harmless}, or an upper one below {harmful}{later}"
    return f"an upper limit below {margin}, or a lower one above {_floor(track)}{later}"


def _floor(track: MetricTrack) -> str:
    floor = track.plan.floor or 0.0
    if track.judged.kind == "events":
        return f"{1 + floor:g} times v1's rate" if floor else "v1's rate"
    return f"{floor * 100:g} %"
