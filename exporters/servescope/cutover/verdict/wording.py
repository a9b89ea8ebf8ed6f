"""What a judgement says to people: one sentence for a metric, one for the whole, and what would change a verdict."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Final

import numpy as np

from servescope.contract.limits import describe_band, describe_worse, format_level, format_number
from servescope.cutover.comparison.spans import Span
from servescope.cutover.conditions.sensitivity import LASTING_BLOCKS
from servescope.cutover.evidence.coverage import MetricCoverage
from servescope.cutover.judgement import Cause, Verdict
from servescope.cutover.statistics.sequences import Floats
from servescope.cutover.verdict.tracks import MetricTrack, Shown
from servescope.increments.blocks import BLOCK_MS
from servescope.settings.values import format_wait


def percent(change: float) -> str:
    """A logarithm of v2 ÷ v1 as the change that it is: `+12 %`, `−3 %`."""
    size = _size(change)
    return f"{'−' if change < 0 and float(size) else '+'}{size} %"


def _size(change: float) -> str:
    size = abs(math.expm1(change)) * 100.0
    return f"{size:.{0 if size >= 9.95 else 1}f}"


def _own(track: MetricTrack, *costs: float) -> tuple[float, ...]:
    """Costs as logarithms of the metric's own v2 ÷ v1, the lower limit first."""
    return tuple(-cost for cost in reversed(costs)) if track.plan.better == "higher" else costs


def _interval(track: MetricTrack, shown: Span) -> str:
    low, high = _own(track, shown.low, shown.high)
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


def _change(track: MetricTrack, found: Shown, block: int) -> str:
    """What harms, with its interval, as the change of the metric itself; since when, where the effect has changed."""
    shown, parts = found
    if shown is None:
        return ""
    floor = math.log1p(track.plan.floor or 0.0)
    if track.judged.kind != "events" and not shown.cost > floor:
        mean = f", though its mean is {_against(track, shown)}" if math.isfinite(shown.cost) else ""
        return f"has more slow requests than on v1{mean}"
    if not shown.low > 0.0 and _is_slow(track, block):
        return f"has more slow requests than on v1, and its mean is {_against(track, shown)}"
    if not parts:
        return _is(track, shown, "is")
    if shown is parts[-1]:
        until = f", {_rate(track, parts[-2])} until then" if math.isfinite(parts[-2].cost) else ""
        return f"{_is(track, shown, 'became')} since {_time(track, shown.first)}{until}"
    ended = f"until {_time(track, shown.end)}"
    return f"{_is(track, shown, 'was')} {ended}, and {_rate(track, parts[-1])} since"


def _is_slow(track: MetricTrack, block: int) -> bool:
    """Whether a limit shows that v2 has more slow requests."""
    slow_low = track.path.slow_low if track.path is not None else None
    return slow_low is not None and bool(slow_low()[block] > 0.0)


def _wide(track: MetricTrack, found: Shown, block: int, bound: float) -> str:
    """That an interval does not show what is proven: its limits hold for all metrics, and from every block on."""
    shown = found[0]
    if shown is None or shown.low > bound or _is_slow(track, block) or not shown.cost > bound:
        return ""
    return "; its limits are stricter, and do not show it"


def _flood(track: MetricTrack, block: int, shown: Span | None) -> str:
    """What proves harm of events that the limits of their ratio do not show."""
    if track.path is None or track.path.flood is None or shown is None or shown.low > track.margin:
        return ""
    return ": a flood of them lasted longer than clusters do" if track.path.flood[: block + 1].any() else ""


def _is(track: MetricTrack, shown: Span, verb: str) -> str:
    if track.judged.kind == "events":
        happen = "happened" if verb == "was" else "happen"
        rate = f"{_times(shown.cost)} times as often as on v1" if math.isfinite(shown.cost) else "on v2 and not on v1"
        return f"{happen} {rate} ({_interval(track, shown)})"
    worse = "" if track.judged.better is None else "worse: "
    return f"{verb} {worse}{_against(track, shown)}"


def _against(track: MetricTrack, shown: Span) -> str:
    return f"{_rate(track, shown)} than on v1 ({_interval(track, shown)})"


def _rate(track: MetricTrack, shown: Span) -> str:
    if track.judged.kind == "events":
        return f"{_times(shown.cost)} times v1's rate" if math.isfinite(shown.cost) else "on one side only"
    (change,) = _own(track, shown.cost)
    return f"{_size(change)} % {'higher' if change > 0 else 'lower'}"


def _time(track: MetricTrack, block: int) -> str:
    return f"{datetime.fromtimestamp((track.begins_ms + block * BLOCK_MS) / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _margin(track: MetricTrack) -> str:
    """The margin; where higher is better, v1 may have so much more than v2, which is a smaller fall."""
    fall = f" (a fall of {_size(-track.margin)} %)" if track.plan.better == "higher" else ""
    return describe_worse(track.plan.name, track.plan.margin or 0.0, track.plan.better) + fall


def explain(track: MetricTrack, block: int, eta_seconds: float | None = None, shown: Shown | None = None) -> str:
    """The reason of a metric's verdict after a block of its stage, as a sentence without its full stop.

    `shown` is what the track shows of that block, where that is known already.
    """
    shown = shown or track.shown(block)
    interval = _interval(track, shown[0]) if shown[0] is not None else ""
    cause: Cause = track.causes[block]
    title = track.judged.title
    match cause:
        case "better" | "not worse":
            # What is not within the margin of v1's rate is proven to be rare.
            if track.judged.kind == "events" and shown[0] is not None and shown[0].high > track.margin:
                events, requests = track.v2.above[:, : block + 1].sum(), track.v2.below[:, : block + 1].sum()
                return f"{title}: {_of(events, requests)} on v2, proven rarer than {_rare(track)}"
            found = "better" if cause == "better" else f"within the margin of {_margin(track)}"
            against = "" if track.judged.kind == "events" else " against v1"
            return f"{title}: proven {found}, at {interval}{against}"
        case "proven cost":
            cost, parts = track.harmful(block)
            if cost is None or not cost.cost > math.log1p(track.plan.floor or 0.0):
                return (
                    f"{title}: more slow requests than on v1 are a proven cost; the mean is within the margin of "
                    f"{_margin(track)}, at {interval}"
                )
            within = f"a proven cost{'; all of the stage is' if parts else ','} within the margin of {_margin(track)}"
            return f"{title} {_change(track, (cost, parts), block)}: {within}"
        case "beyond margin":
            why = _flood(track, block, shown[0]) or _wide(track, shown, block, track.margin)
            return f"{title} {_change(track, shown, block)}, beyond the margin of {_margin(track)}{why}"
        case "probable":
            proven = (
                f"harm is proven, though not beyond the margin of {_margin(track)}{_wide(track, shown, block, 0.0)}"
            )
            return f"{title} {_change(track, shown, block)}: {proven}"
        case "explained by reuse" | "explained by load":
            return (
                f"{title} {_change(track, shown, block)}, {cause}: {_sensitivity(track, block)}{_lasting(track, block)}"
            )
        case "objective":
            v1, v2 = (_of(arm.above[:, block].sum(), arm.below[:, block].sum()) for arm in (track.v1, track.v2))
            return f"{title}: {v2} requests to v2 within five minutes, {v1} to v1, and more than one block of it"
        case "gross harm while warming":
            times = math.exp(float(track.value[block]))
            side = "lower" if track.plan.better == "higher" else "higher"
            return f"{title} is {times:.2g} times {side} than on v1: gross harm while warming, for a quarter of an hour"
        case "in band" | "out of band" if track.judged.made_of:
            value, joined = format_level(track.value[block], track.judged.unit), "and" if cause == "in band" else "but"
            return f"{title} will be {value} if it goes on as in the last day, {joined} {_band(track)} is expected"
        case "in band" | "out of band":
            verb = "is" if track.judged.unit == "ratio" else "are"
            value, joined = format_level(track.value[block], track.judged.unit), "and" if cause == "in band" else "but"
            return f"{title} is {value} over the last hour, {joined} {_band(track)} {verb} expected"
        case "needs data":
            if track.path is None:
                return f"{title}: an hour of it is needed"
            later = f"; to be settled in about {format_wait(eta_seconds)}" if eta_seconds is not None else ""
            return f"{title}: not settled yet ({interval}), with a margin of {_margin(track)}{later}"
        case "uncovered" | "torn" | "rejected" if track.coverage:
            return f"{title}: {_lost(track.coverage, block, cause)}"
        case "unaccounted" if track.coverage:
            lacking = 100.0 * float(track.coverage[-1].missed[block] - track.coverage[0].missed[block])
            return f"{title}: {lacking:.2g} % of v2's requests began and ended in no counter; {_CAUSES[cause]}"
        case "one replica" if track.alone is not None:
            return (
                f"{title}: one replica: {track.alone.named(block)} than the others of v2, whose harm that is not; "
                "HEALTHY waits until it is over or the replica is replaced"
            )
        case "metric absent" | "incomparable" | "never run" if track.comparability is not None:
            return f"{title}: {track.comparability.reason}"
        case _:
            return f"{title}: {_CAUSES[cause]}"


_SHOWN: Final = 0.002
"""What explains less, as a logarithm, is not named."""


def _sensitivity(track: MetricTrack, block: int) -> str:
    """What the arms were given, what that explains of a metric, and what is left without it."""
    found = track.sensitivity
    if found is None or not math.isfinite((left := found.paths.left.whole(block + 1)).cost):
        return ""
    given = []
    reused = [float(each[block]) for each in found.stage.reused]
    if abs(found.paths.by_reuse[block]) >= _SHOWN and all(map(math.isfinite, reused)):
        (part,) = _own(track, float(found.paths.by_reuse[block]))
        shares = f"v2 reuses {100.0 * reused[1]:.1f} % of its prompt tokens and v1 {100.0 * reused[0]:.1f} %"
        given.append(f"{shares}, which explains {percent(part)}")
    loads = [float(each[block]) for each in found.stage.loads]
    if abs(found.paths.by_load[block]) >= _SHOWN and all(each > 0.0 for each in loads):
        (part,) = _own(track, float(found.paths.by_load[block]))
        more = percent(math.log(loads[1] / loads[0]))
        given.append(f"v2's replicas get {more} requests each, which explains {percent(part)}")
    (rest,) = _own(track, left.cost)
    low, high = _own(track, left.low, left.high)
    ends = f"{_bound(low, 'no lower limit')} to {_bound(high, 'no upper limit')}"
    proven = "harm is proven without that as well" if found.harmful[block] else "harm is not proven without that"
    return f"{'; '.join(given)}; without that it is {percent(rest)} ({ends}), and {proven}"


def _lasting(track: MetricTrack, block: int) -> str:
    found = track.sensitivity
    if found is None or not found.lasting[block] or track.causes[block] != "explained by reuse":
        return ""
    return (
        f"; so for at least {LASTING_BLOCKS // 12} h, with prompts of the same sizes on both: unless conversations are "
        "tied to a stack, suspect v2's routing or its caches"
    )


def sensitivity_notes(track: MetricTrack, block: int) -> list[str]:
    """What is explained of a metric, where it makes v2 worse and the reason does not say so yet."""
    found = track.sensitivity
    if found is None or not found.differs[block] or track.causes[block].startswith("explained"):
        return []
    return [text for text in (_sensitivity(track, block),) if text]


def _lost(coverage: tuple[MetricCoverage, ...], block: int, cause: Cause) -> str:
    """What of both arms' requests the evidence does not have, with the replicas that it is missing of."""
    if cause == "rejected":
        v1, v2 = (100.0 * float(each.rejected[block]) for each in coverage)
        return (
            f"{v1:.1f} % of v1's requests and {v2:.1f} % of v2's are in blocks that were thrown away, as counters "
            "contradict each other there: what is left could choose the outcome"
        )
    arm = min(coverage, key=lambda each: _least(each, block))
    lost = arm.lost_until(block)
    served = arm.served
    torn, scraped = served.torn[:, : block + 1], served.scraped[:, : block + 1]
    ways = (
        (torn, "counters contradict each other on"),
        (scraped & ~torn, "it is not reported by"),
        (~scraped, "scrapes failed of"),
    )
    whole = lost.sum()
    found = [
        f"{what} {_names(served.replicas, requests)}"
        for where, what in ways
        if (requests := (lost * where).sum(axis=1)).sum() > _MENTIONED * whole
    ]
    if arm.unanswered[block] > arm.missed[block]:
        found.append(f"{100.0 * float(arm.unanswered[block]):.1f} % began and have not ended")
    elif arm.missed[block] > 0.0:
        found.append("it counts fewer requests than other counters of the same processes")
    return (
        f"the evidence has {_part(_least(arm, block))} of {served.arm}'s requests, and the plan asks for "
        f"{100.0 * arm.wanted:g} %{': ' if found else ''}{', '.join(found)}"
    )


_MENTIONED: Final = 0.1
"""The part of what is lost from which its cause is said."""
_MOST_NAMES: Final = 3


def _part(value: float) -> str:
    """A part in percent, rounded down: what falls short of a plan's is not shown as it."""
    return f"{math.floor(1000.0 * value) / 10.0:g} %"


def _least(coverage: MetricCoverage, block: int) -> float:
    return min(float(coverage.covered[block]), float(coverage.lately[block]))


def _names(replicas: tuple[str, ...], requests: Floats) -> str:
    order = [int(replica) for replica in np.argsort(-requests, kind="stable") if requests[replica] > 0.0]
    named = ", ".join(replicas[replica].split("#")[0] for replica in order[:_MOST_NAMES])
    return f"{named} and {len(order) - _MOST_NAMES} more" if len(order) > _MOST_NAMES else named


def _of(events: float, requests: float) -> str:
    return f"{format_number(events)} of {format_number(requests)}"


def _band(track: MetricTrack) -> str:
    """A band as text: `at least 90 %`, `50 000 to 150 000 tokens`."""
    return describe_band(track.plan.low, track.plan.high, track.judged.unit)


_CAUSES: Final[dict[str, str]] = {
    "mix": "the arms get different prompts, so that their figures cannot be compared",
    "load": (
        "load not matched in most of the last hour: a replica of one arm carried much more than one of the other, or "
        "was saturated"
    ),
    "prompts unknown": "how long prompts are is not reported of all requests any more, so that the arms may get others",
    "warming": "v2 is still warming up",
    "pods too few": "the replicas differ too much for so few of them: waiting does not settle it, more replicas do",
    "uncalibrated": "v1's past does not show the noise, which is estimated first: at least three hours of both arms",
    "no control": "v1 has no requests left to compare with",
    "arm missing": "an arm has no target that was scraped",
    "metric absent": "an arm does not report it",
    "stale": "an arm was not scraped any more",
    "quiet": "an arm gets no requests any more",
    "scrapes missing": "fewer than 80 % of the expected scrapes succeeded",
    "torn": "its counters contradict each other",
    "uncovered": "an arm does not report it of all its requests",
    "unseen": "none of an arm's requests showed it in the last half an hour: they fail, or its replicas warm up",
    "unaccounted": "as events these would be beyond the margin: is a series of one outcome lost on the way?",
    "rejected": "more was thrown away of one arm than of the other",
    "too few": "an arm has fewer than 20 observations",
    "query error": "the past could not be read whole",
    "share": "v2 does not have the share of the requests that the stage plans",
    "load range": "the highest load has not been seen",
    "incomparable": "the arms do not report the same thing",
    "never run": "it is of a program that was never run",
}


def flips(track: MetricTrack, block: int, verdict: Verdict, eta_seconds: float | None) -> str:
    """What would change the verdict."""
    margin = _margin(track)
    if track.path is None and verdict != "NO DATA":
        return f"an hour {'outside' if verdict == 'HEALTHY' else 'inside'} its band: {_band(track)}"
    match verdict:
        case "HEALTHY":
            return f"evidence that it is more than {_floor(track)}, a restart, missing scrapes or the next stage"
        case "DEGRADED":
            return f"a fix, and proof that it stays below the margin of {margin}; an acknowledgement ends the latch"
        case "NO DATA":
            return "the missing data"
    if track.causes[block] == "one replica" and track.alone is not None:
        return f"{track.alone.names[track.alone.replica[block]]} like the others of v2 again, or replaced"
    match track.causes[block]:
        case "explained by reuse":
            return (
                "harm beyond what is explained, or reuse that is alike: send conversations to both stacks at random "
                "and compare what they reuse; if v2 still reuses less, its routing or its caches lose it, and that is "
                "harm"
            )
        case "explained by load":
            return "harm beyond what is explained, or as many requests for each replica of v2 as for one of v1"
    later = f", about {format_wait(eta_seconds)} at this rate" if eta_seconds is not None else ""
    if track.plan.better == "higher":
        harmless, harmful = percent(-track.margin), percent(-math.log1p(track.plan.floor or 0.0))
        return f"a lower limit above {harmless}, or an upper one below {harmful}{later}"
    return f"an upper limit below {margin}, or a lower one above {_floor(track)}{later}"


def _rare(track: MetricTrack) -> str:
    rate = track.judged.immaterial
    return f"{100.0 * rate:g} %" if track.judged.of_requests else f"{format_number(24.0 * rate)} a day and replica"


def _floor(track: MetricTrack) -> str:
    floor = track.plan.floor
    return describe_worse(track.plan.name, floor, track.plan.better) if floor else "v1's rate"
