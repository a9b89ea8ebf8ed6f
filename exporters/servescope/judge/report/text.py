"""A judgement as text for people: the verdict and its reason first, then a table of metrics, then all the rest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

from servescope.contract.expressions import Matchers, matchers_promql, promql
from servescope.contract.judged import JUDGED, SPEED_HISTOGRAM
from servescope.contract.limits import describe_worse
from servescope.cutover.forecast.duration import MetricForecast, StageForecast
from servescope.cutover.judgement import (
    ArmFigures,
    ArmState,
    Decided,
    FiringAlert,
    Incidents,
    Judgement,
    MetricJudgement,
    SegmentJudgement,
    SegmentMetricJudgement,
    SensitivityJudgement,
)
from servescope.cutover.plan.plan import Arm, FrozenPlan
from servescope.cutover.verdict.waiting import TIMED
from servescope.increments.blocks import BLOCK_MS
from servescope.settings.values import format_percent, format_wait

CONFIGURED: Final = {"v1": "v1", "v2": "v2", "management_api": "v2 in the Management API"}
"""What a plan's hashes of configurations are of."""
_ABSENT: Final = "–"
# From here on values are whole, in groups of three.
_MANY: Final = 999.5


def describe_judgement(judgement: Judgement) -> str:
    """What `judge run` prints: verdict, reason, one line per metric, and what else one has to know."""
    harmed = [each for each in judgement.segments if each.finding == "harm"]
    return (
        "\n".join([*_head(judgement), "", *_table(judgement.metrics), *_segments(harmed), *_remarks(judgement)]) + "\n"
    )


def explain_judgement(judgement: Judgement, frozen: FrozenPlan, metric: str | None = None) -> str:
    """What `judge explain` prints: how each metric was judged and what would change it, for one metric or for all."""
    shown = [each for each in judgement.metrics if metric in (None, each.name)]
    blocks = max(0, judgement.at_ms - judgement.stage.since_ms) // BLOCK_MS
    lines = [*_head(judgement), "", f"{blocks} blocks of five minutes since the stage began"]
    for name, state in (("v1", judgement.v1), ("v2", judgement.v2)):
        lines += _arm_lines(name, state)
    if judgement.mix is not None:
        distance = number(judgement.mix.distance)
        lines.append(f"prompt mix: {judgement.mix.reason or 'no remark'} (total variation distance {distance})")
    for each in shown:
        lines += ["", *_metric_lines(each, frozen)]
    lines += _segments(judgement.segments)
    return "\n".join([*lines, *_remarks(judgement)]) + "\n"


def excluded_harm(judgement: Judgement) -> Iterator[str]:
    """A sentence for each span that was left out although harm was proven."""
    for each in judgement.excluded_harm:
        yield (
            f"harm was proven, and {each.by} excluded {moment(each.start_ms)} to {moment(each.end_ms)} at "
            f"{moment(each.at_ms)}: {each.reason}"
        )


def describe_forecast(stages: Sequence[StageForecast]) -> str:
    """What `judge plan` prints: a sentence per stage, and what it settles of each metric."""
    lines: list[str] = []
    for stage in stages:
        lines += [f"{stage.sentence}", *_columns([_FORECAST_HEADER, *map(_forecast_row, stage.metrics)]), ""]
    lines.append("If v2 equals v1, half of the cutovers are settled in that time. Bands are judged on v2 alone.")
    return "\n".join(lines) + "\n"


_FORECAST_HEADER: Final = ("  metric", "margin", "proven healthy in", "harm found within a day", "")


def role(metric: MetricForecast | MetricJudgement) -> str:
    """What a metric decides, in a word."""
    return "required" if metric.required else "guard" if metric.guard else "optional"


def named(metric: MetricForecast | MetricJudgement) -> str:
    """A metric by its title, with its role unless it is required."""
    return metric.title if metric.required else f"{metric.title} ({role(metric)})"


def _forecast_row(metric: MetricForecast) -> tuple[str, ...]:
    name = named(metric)
    found = _ABSENT
    if metric.detectable is not None:
        # Of an expectation no more digits are known.
        found = f"from {_worse(metric.name, float(f'{metric.detectable:.2g}'))} on"
    return f"  {name}", _worse(metric.name, metric.margin), duration(metric.healthy_seconds), found, metric.reason


def _worse(name: str, change: float) -> str:
    return describe_worse(name, change, JUDGED[name].better)


# --- Values -----------------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """A value in three digits, large ones in groups of three; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return _ABSENT
    if abs(value) >= _MANY:
        return f"{value:,.0f}".replace(",", " ")
    shown = f"{value:.3g}"
    return shown if "e" not in shown else f"{value:.1e}"


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit; a ratio in percent."""
    if value is None or not math.isfinite(value):
        return _ABSENT
    return share(value) if unit == "ratio" else f"{number(value)} {unit}"


def ratio(value: float | None) -> str:
    """A ratio of v2 to v1, as `1.07`."""
    return _ABSENT if value is None or not math.isfinite(value) else f"{value:.2f}"


def interval(metric: MetricJudgement | SensitivityJudgement | SegmentMetricJudgement) -> str:
    """The interval of a metric's ratio, as `0.99–1.15`."""
    if metric.low is None and metric.high is None:
        return _ABSENT
    return f"{ratio(metric.low)}–{'∞' if metric.high is None else ratio(metric.high)}"


def changed(metric: MetricJudgement) -> str:
    """How the effect changed in the stage, `was 3.70 until 2026-11-20 14:00 UTC, 1.20 since`; "" where it did not."""
    if not metric.spans:
        return ""
    *former, latest = metric.spans
    was = ", ".join(f"{ratio(each.ratio)} until {moment(each.until_ms)}" for each in former)
    return f"was {was}, {ratio(latest.ratio)} since"


def overall(metric: MetricJudgement) -> str:
    """A metric's ratio over the whole run with its interval, as `1.07 (0.99–1.15)`."""
    found = metric.overall
    if found is None:
        return _ABSENT
    return f"{ratio(found.ratio)} ({ratio(found.low)}–{'∞' if found.high is None else ratio(found.high)})"


def sensitivity(found: SensitivityJudgement) -> str:
    """A metric without what reuse of prompts and load explain of it, as a sentence."""
    given = f"requests per second and replica {number(found.v1_load)} and {number(found.v2_load)}"
    if found.v1_reused is not None and found.v2_reused is not None:
        given = f"v1 and v2 reuse {share(found.v1_reused)} and {share(found.v2_reused)} of their prompt tokens, {given}"
    proven = "no harm is proven"
    if found.explained or found.harmful:
        proven = f"harm is {'' if found.harmful else 'not '}proven without that{' as well' if found.harmful else ''}"
    return (
        f"{given}: reuse explains {ratio(found.by_reuse)} and load {ratio(found.by_load)}; v2 ÷ v1 without that = "
        f"{ratio(found.ratio)} ({interval(found)}); {proven}"
    )


def incidents(found: Incidents) -> str:
    """Where an arm's events happened, as `on 1 of 24 replicas, in 12 of 864 blocks of a replica`."""
    return (
        f"on {found.replicas} of {found.of_replicas} replicas, "
        f"in {number(found.blocks)} of {number(found.of_blocks)} blocks of a replica"
    )


def margin(metric: MetricJudgement) -> str:
    """The margin of a metric, or its band; a dash without either."""
    return metric.limit or _ABSENT


def duration(seconds: float | None) -> str:
    """A time to wait: `40 min`, `5 h`, `3 days`; a dash where there is none."""
    return _ABSENT if seconds is None or not math.isfinite(seconds) else format_wait(seconds)


def share(value: float | None) -> str:
    """A share of requests in percent."""
    return _ABSENT if value is None or not math.isfinite(value) else f"{100 * value:.3g} %".replace("-", "−")


def moment(time_ms: int) -> str:
    """A time as people read it, in UTC."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def gathered(metric: MetricJudgement) -> str:
    """The share of the information that settles a metric, of what it has; a dash where information settles nothing."""
    waits = metric.verdict == "INCONCLUSIVE" and metric.cause not in TIMED
    if waits or metric.verdict == "NO DATA" or not metric.information_wanted:
        return _ABSENT
    return format_percent(min(1.0, metric.information / metric.information_wanted))


def alert(found: FiringAlert) -> str:
    """An alert that pages somebody, in a line."""
    where = f", {found.replica}," if found.replica else ""
    return f"{found.name} fires on {found.arm}{where} since {moment(found.since_ms)}: {found.summary}"


def decided(judgement: Judgement) -> list[str]:
    """Who ended the run, or acknowledged what was proven, a line each."""
    found = [("rolled back", judgement.rolled_back)]
    if judgement.latched_since_ms is None:
        found.append(("the harm that was proven was acknowledged", judgement.acknowledged))
    return [f"{what} {_by(each)}" for what, each in found if each is not None]


def _by(found: Decided) -> str:
    who = f"by {found.by} " if found.by else ""
    return f"{who}at {moment(found.at_ms)}" + (f": {found.reason}" if found.reason else "")


# --- Lines ------------------------------------------------------------------------------------------------------------


def _head(judgement: Judgement) -> Iterator[str]:
    severity = f" ({judgement.severity})" if judgement.severity else ""
    advice = "rolled back" if judgement.rolled_back else judgement.advice
    yield f"{judgement.verdict}{severity}: {advice}"
    yield from (alert(each) for each in judgement.alerts)
    yield judgement.reason
    if judgement.waits_for:
        yield f"waits for {judgement.waits_for}"
    yield from decided(judgement)
    stage = judgement.stage
    yield ""
    yield (
        f"plan {judgement.plan}, stage {stage.index + 1} of {stage.count} ({share(stage.share)} on v2, "
        f"observed {share(stage.observed_share)}) since {moment(stage.since_ms)}; judged at {moment(judgement.at_ms)}"
    )
    yield from excluded_harm(judgement)
    if judgement.latched_since_ms is not None:
        differs = judgement.live not in (None, judgement.verdict)
        live = f"; without that it would be {judgement.live}" if differs else ""
        yield (
            f"harm was proven at {moment(judgement.latched_since_ms)} and nobody has acknowledged it{live}: "
            "`servescope judge decide acknowledge`"
        )


_HEADER: Final = ("metric", "verdict", "v2 ÷ v1", "interval", "margin", "gathered", "settled in")


def _table(metrics: Sequence[MetricJudgement]) -> list[str]:
    return _columns([_HEADER, *(_row(metric) for metric in metrics)])


SEGMENT_HEADER: Final = (
    "segment",
    "finding",
    "of v1's requests",
    "of v2's requests",
    "worst metric",
    "v2 ÷ v1",
    "interval",
)


def segment_row(segment: SegmentJudgement) -> tuple[str, ...]:
    """A segment in the columns of `SEGMENT_HEADER`."""
    worst = segment.worst
    return (
        segment.name, segment.finding, share(segment.v1_share), share(segment.v2_share),
        *((_ABSENT, _ABSENT, _ABSENT) if worst is None else (worst.title, ratio(worst.ratio), interval(worst))),
    )  # fmt: skip


def _segments(segments: Sequence[SegmentJudgement]) -> list[str]:
    return ["", *_columns([SEGMENT_HEADER, *map(segment_row, segments)])] if segments else []


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _row(metric: MetricJudgement) -> tuple[str, ...]:
    name = named(metric)
    return (
        name, metric.verdict, ratio(metric.ratio), interval(metric), margin(metric), gathered(metric),
        duration(metric.eta_seconds),
    )  # fmt: skip


def _remarks(judgement: Judgement) -> Iterator[str]:
    remarks = [
        *(each.sentence for each in judgement.efficiency),
        *judgement.notes,
        *(f"covers: {each}" for each in judgement.scope.covers),
        *(f"not seen: {each}" for each in judgement.scope.unseen),
        *(f"not observed from {moment(start)} to {moment(end)}: {why}" for start, end, why in judgement.missed),
        *(f"{name}: {why}" for name, why in judgement.incomparable.items()),
    ]
    if remarks:
        yield ""
        yield from remarks


def _arm_lines(name: str, state: ArmState | None) -> Iterator[str]:
    if state is None:
        yield f"{name}: nothing was observed"
        return
    yield (
        f"{name}: {', '.join(state.deployments)}; {state.replicas} replicas, {number(state.requests)} requests, "
        f"{state.scrapes} of {state.expected} scrapes ({state.failed} failed), {state.resets} resets, "
        f"{state.torn} torn, {state.gaps} gaps; {'warm' if state.warm else 'warming up'}"
        + (f" after {duration(state.cold_start_seconds)}" if state.cold_start_seconds else "")
        + f"; evidence of {share(state.covered)} of the requests, {share(state.rejected)} thrown away"
        + f"; saturated {share(state.saturated_share)} of the time, "
        f"{number(state.requests_per_replica_second)} requests per second and replica in the last hour"
    )


def _metric_lines(metric: MetricJudgement, frozen: FrozenPlan) -> Iterator[str]:
    yield f"{metric.title} ({metric.name}, {role(metric)}): {metric.verdict}, {metric.cause}"
    yield f"  {metric.reason}"
    for side, arm, figures in ((0, frozen.plan.v1, metric.v1), (1, frozen.plan.v2, metric.v2)):
        yield f"  {arm.name}: {_figures(figures, metric.unit)}{_place(metric.name, side, frozen)}"
        yield from (f"    {query}" for query in _queries(metric.name, arm, frozen))
    if metric.ratio is not None:
        yield f"  v2 ÷ v1 = {ratio(metric.ratio)} ({interval(metric)}), margin {margin(metric)}{_blocks(metric)}"
        if metric.spans:
            yield f"  the effect changed: {changed(metric)}"
        if metric.overall is not None:
            yield f"  over the whole run, all stages together: {overall(metric)}, which decides nothing"
    elif metric.band is not None:
        yield f"  band {margin(metric)}"
    yield (
        f"  information {number(metric.information)} of {number(metric.information_wanted)}, "
        f"settled in {duration(metric.eta_seconds)}"
    )
    noise = frozen.noise.get(metric.name)
    if noise is not None:
        origin = f"calibrated on {noise.blocks} blocks of v1's past" if noise.calibrated else "not calibrated"
        replicas = number(math.sqrt(noise.pod_tau2))
        yield f"  noise of a block {number(math.sqrt(noise.tau2))}, between replicas {replicas}, {origin}"
    for edge in metric.edges:
        harm = ", harmful" if edge.harmful else ""
        yield (
            f"  above {number(edge.edge)} {metric.unit}: v1 {share(edge.v1)}, v2 {share(edge.v2)}, difference "
            f"{share(edge.difference)} ({share(edge.low)} to {share(edge.high)}){harm}"
        )
    if metric.sensitivity is not None:
        yield f"  sensitivity: {sensitivity(metric.sensitivity)}"
    if metric.flips:
        yield f"  would change it: {metric.flips}"
    yield from (f"  {note}" for note in metric.notes)


def _blocks(metric: MetricJudgement) -> str:
    found = metric.compared
    if found is None or not found.blocks:
        return ""
    return f", of {found.blocks} of {found.of_blocks} blocks, from {moment(found.since_ms)} to {moment(found.until_ms)}"


def _figures(figures: ArmFigures | None, unit: str) -> str:
    if figures is None:
        return "nothing was observed"
    events = "" if figures.events is None else f", {number(figures.events)} events"
    where = "" if figures.incidents is None or not figures.events else f" {incidents(figures.incidents)}"
    everything = "" if figures.everything is None else f"; of everything {quantity(figures.everything, unit)}"
    return f"{quantity(figures.value, unit)}, n = {number(figures.count)}{events}{where}{everything}"


def _place(name: str, side: int, frozen: FrozenPlan) -> str:
    """Where in the deployment an arm's metric is measured."""
    judged = SPEED_HISTOGRAM if name in frozen.histograms else JUDGED[name]
    places = {frozen.layers[family][side] for family in judged.families if family in frozen.layers} - {""}
    return f", measured at the {' and the '.join(sorted(places))}" if places else ""


def _queries(name: str, arm: Arm, frozen: FrozenPlan) -> Iterable[str]:
    """What a Prometheus would be asked for the same of a block, per selector of the arm, where a query can."""
    metric = SPEED_HISTOGRAM if name in frozen.histograms else JUDGED[name]
    if metric.expression is None:
        return
    for selector in arm.selectors:
        where: Matchers = tuple((label, (value,)) for label, value in selector.items())
        scope = matchers_promql(where).strip("{}")
        yield promql(metric.expression, window="5m", by=("deployment_id",), scope=scope)
