"""The report of a run for the change record: one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from servescope import __version__
from servescope.contract.events import Event
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.judgement import ArmState, Judgement, MetricJudgement, Verdict
from servescope.cutover.plan.plan import FrozenPlan
from servescope.judge.report.drawing import SIGNS, Mark, draw_course, draw_forest, verdict_class
from servescope.judge.report.text import (
    CONFIGURED,
    SEGMENT_HEADER,
    alert,
    changed,
    decided,
    duration,
    excluded_harm,
    gathered,
    incidents,
    interval,
    margin,
    moment,
    named,
    number,
    overall,
    quantity,
    ratio,
    segment_row,
    sensitivity,
    share,
)

_LANES: Final = (
    ("Deploys", ("deploy",)),
    ("Alerts", ("alert_fired", "alert_resolved")),
    ("Targets", ("target_appeared", "target_gone", "target_changed")),
    ("Configured share", ("traffic_split",)),
)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the journal has of a run: its number, each decision with the verdict it was made on, and the last hash."""

    run: int
    decisions: Sequence[tuple[Decision, str]]
    journal: str
    head: str


def render_report(
    judgement: Judgement, frozen: FrozenPlan, events: Iterable[Event], recorded: Recorded | None = None
) -> str:
    """The report as HTML; `recorded` is None for a judgement without a journal."""
    decisions = [decision for decision, _ in recorded.decisions] if recorded is not None else []
    body = [
        *_verdict(judgement),
        "<h2>Metrics</h2>",
        f"<figure>{draw_forest(judgement.metrics)}<figcaption>v2 ÷ v1 with its interval, which holds at every look. "
        "The shaded side is beyond the margin.</figcaption></figure>",
        _table(_METRIC_HEADER, map(_metric_row, judgement.metrics)),
        "<p>Figures of v1 and v2 are of the blocks and replicas that the ratio is of, weighted as it is. "
        "Intervals are of the present stage. Over the whole run, all stages together, they have a level of their "
        "own, 95 %, and decide nothing.</p>",
        *_incidents(judgement),
        *_list(
            "Without what reuse and load explain",
            [f"{each.title}: {sensitivity(each.sensitivity)}" for each in judgement.metrics if each.sensitivity],
        ),
        *_segments(judgement),
        "<h2>Course</h2>",
        f"<figure>{_draw_course(judgement, frozen, decisions, events)}</figure>",
        *_changes(judgement),
        *_stages(judgement, frozen, decisions),
        *_decisions(recorded),
        *_observation(judgement),
        *_calibration(frozen),
        *_list("What is incomparable", [f"{name}: {why}" for name, why in judgement.incomparable.items()]),
        *_list(
            "What was not observed",
            [f"{moment(start)} to {moment(end)}: {why}" for start, end, why in judgement.missed],
        ),
        *_list("Notes", judgement.notes),
        *_list("What this verdict covers", judgement.scope.covers),
        *_list("What nothing here can see", judgement.scope.unseen),
        *_list("After the move", frozen.plan.checklist),
        *_identity(judgement, frozen, recorded),
    ]
    title = f"{judgement.verdict}: cutover {judgement.plan}"
    return _PAGE.format(title=escape(title), style=_STYLE, body="\n".join(body))


# --- Sections ---------------------------------------------------------------------------------------------------------


def _verdict(judgement: Judgement) -> Iterator[str]:
    stage = judgement.stage
    severity = f", {judgement.severity}" if judgement.severity else ""
    yield f'<header class="{verdict_class(judgement.verdict)}">'
    yield (
        f'<p class="verdict">{SIGNS[judgement.verdict]} {judgement.verdict}{escape(severity)}'
        f'<span class="advice">{"rolled back" if judgement.rolled_back else escape(judgement.advice)}</span></p>'
    )
    yield f"<h1>{escape(judgement.reason)}</h1>"
    waits = [f"waits for {judgement.waits_for}"] if judgement.waits_for else []
    yield from (f"<p>{escape(line)}</p>" for line in (*map(alert, judgement.alerts), *waits, *decided(judgement)))
    yield (
        f"<p>Cutover <strong>{escape(judgement.plan)}</strong>, stage {stage.index + 1} of {stage.count}: "
        f"{share(stage.share)} of the requests on v2, {share(stage.observed_share)} observed, "
        f"since {moment(stage.since_ms)}. Judged at {moment(judgement.at_ms)}.</p>"
    )
    yield from (f"<p>{escape(each[0].upper() + each[1:])}.</p>" for each in excluded_harm(judgement))
    if judgement.latched_since_ms is not None:
        differs = judgement.live not in (None, judgement.verdict)
        live = f" Without that the verdict would be {judgement.live}." if differs else ""
        yield f"<p>Harm was proven at {moment(judgement.latched_since_ms)}; nobody has acknowledged it.{live}</p>"
    yield from (f"<p>{escape(each.sentence)}</p>" for each in judgement.efficiency)
    yield "</header>"


_METRIC_HEADER: Final = (
    "Metric", "Verdict", "Reason", "v1", "v2", "v2 ÷ v1", "Interval", "Margin", "Gathered", "Settled in",
    "Whole run",
)  # fmt: skip


def _metric_row(metric: MetricJudgement) -> tuple[str, ...]:
    v1, v2 = ("–" if arm is None else quantity(arm.value, metric.unit) for arm in (metric.v1, metric.v2))
    name = named(metric)
    why = "; would change it: ".join(each for each in (metric.reason, metric.flips) if each)
    return (
        name, _signed(metric.verdict), why, v1, v2,
        ratio(metric.ratio), _interval(metric), margin(metric), gathered(metric), duration(metric.eta_seconds),
        overall(metric),
    )  # fmt: skip


def _interval(metric: MetricJudgement) -> str:
    return "; ".join(filter(None, (interval(metric), changed(metric))))


def _incidents(judgement: Judgement) -> Iterator[str]:
    rows = [
        (metric.title, name, number(arm.events), number(arm.count), incidents(arm.incidents) if arm.events else "–")
        for metric in judgement.metrics
        for name, arm in (("v1", metric.v1), ("v2", metric.v2))
        if arm is not None and arm.incidents is not None
    ]
    if rows:
        yield "<h2>Incidents</h2>"
        yield "<p>Many events in few blocks, or on one replica, are one incident and not the stack.</p>"
        yield _table(("Metric", "Arm", "Events", "Requests", "Where"), rows)


def _segments(judgement: Judgement) -> Iterator[str]:
    if judgement.segments:
        yield "<h2>Segments</h2>"
        yield (
            "<p>Each segment is compared by the metrics that are required. Harm in one withholds HEALTHY and never "
            "makes DEGRADED.</p>"
        )
        yield _table(tuple(each[0].upper() + each[1:] for each in SEGMENT_HEADER), map(segment_row, judgement.segments))


def _signed(verdict: Verdict) -> str:
    # They stay on one line in a table.
    return f"{SIGNS[verdict]} {verdict}".replace(" ", "\N{NO-BREAK SPACE}")


def _draw_course(
    judgement: Judgement, frozen: FrozenPlan, decisions: Sequence[Decision], events: Iterable[Event]
) -> str:
    advances = [each for each in decisions if each.kind == "advance" and each.stage is not None]
    stages = frozen.plan.stages
    first = 0 if decisions else judgement.stage.index
    shares = [(frozen.started_ms, stages[first].share)]
    shares += [(each.at_ms, stages[each.stage or 0].share) for each in advances]
    end_ms = judgement.at_ms
    seen = [each for each in events if frozen.started_ms <= each.time_ms <= end_ms]
    marks = [("Decisions", [Mark(each.at_ms, _decision_text(each)) for each in decisions])]
    marks += [(name, [Mark(each.time_ms, each.text) for each in seen if each.kind in kinds]) for name, kinds in _LANES]
    return draw_course(shares, judgement.changes, marks, frozen.started_ms, end_ms)


def _decision_text(decision: Decision) -> str:
    if decision.kind == "advance" and decision.stage is not None:
        return f"advance to stage {decision.stage + 1}"
    return decision.kind


def _changes(judgement: Judgement) -> Iterator[str]:
    rows = [(moment(each.at_ms), str(each.stage + 1), _signed(each.verdict), each.reason) for each in judgement.changes]
    if rows:
        yield _table(("Since", "Stage", "Verdict", "Reason"), rows)


def _stages(judgement: Judgement, frozen: FrozenPlan, decisions: Sequence[Decision]) -> Iterator[str]:
    begun = {each.stage: each.at_ms for each in decisions if each.stage is not None}
    begun.setdefault(judgement.stage.index, judgement.stage.since_ms)
    rows = [
        (
            str(index + 1), share(stage.share), f"{stage.least_hours:g} h" if stage.least_hours else "–",
            moment(begun[index]) if index in begun else "not begun",
        )
        for index, stage in enumerate(frozen.plan.stages)
    ]  # fmt: skip
    yield "<h2>Stages</h2>"
    yield _table(("Stage", "Share of v2", "At least", "Begun"), rows)


def _decisions(recorded: Recorded | None) -> Iterator[str]:
    if recorded is None:
        return
    rows = [
        (moment(each.at_ms), _decision_text(each), each.by or "–", each.reason or "–", verdict or "–")
        for each, verdict in recorded.decisions
    ]
    yield "<h2>Decisions</h2>"
    yield _table(("At", "Decision", "By", "Reason", "Verdict then"), rows)


def _observation(judgement: Judgement) -> Iterator[str]:
    yield "<h2>Observation</h2>"
    arms = (("v1", judgement.v1), ("v2", judgement.v2))
    yield _table(
        ("Arm", "Deployments", "Replicas", "Requests", "Scrapes", "Failed", "Torn", "Resets", "Gaps", "Warm",
         "Saturated", "Requests per s and replica, last hour"),
        [_arm_row(name, state) for name, state in arms],
    )  # fmt: skip
    yield (
        "<p>The part of each arm's requests that the evidence of a metric has, since the stage began or of the last "
        "hour, whichever is less, and the part that was thrown away as counters contradict each other.</p>"
    )
    yield _table(
        ("Metric", "v1: evidence of", "v2: evidence of", "v1: thrown away", "v2: thrown away"),
        [_evidence_row(metric) for metric in judgement.metrics if metric.v1 is not None],
    )
    if judgement.mix is not None:
        distance = number(judgement.mix.distance)
        yield f"<p>Prompt mix: {escape(judgement.mix.reason)}. Total variation distance {distance}.</p>"


def _arm_row(name: str, state: ArmState | None) -> tuple[str, ...]:
    if state is None:
        return (name, "nothing was observed", *("–",) * 10)
    warm = "yes" if state.warm else "no"
    return (
        name, ", ".join(state.deployments), str(state.replicas), number(state.requests),
        f"{state.scrapes} of {state.expected}", str(state.failed), str(state.torn), str(state.resets),
        str(state.gaps), f"{warm}, {duration(state.cold_start_seconds)}" if state.cold_start_seconds else warm,
        share(state.saturated_share), number(state.requests_per_replica_second),
    )  # fmt: skip


def _evidence_row(metric: MetricJudgement) -> tuple[str, ...]:
    covered, rejected = (
        [share(None if arm is None else getattr(arm, part)) for arm in (metric.v1, metric.v2)]
        for part in ("covered", "rejected")
    )
    return (metric.title, *covered, *rejected)


def _calibration(frozen: FrozenPlan) -> Iterator[str]:
    rows = [
        (
            name, number(math.sqrt(noise.tau2)), number(math.sqrt(noise.pod_tau2)), number(math.sqrt(noise.cv2)),
            number(noise.information_wanted), str(noise.blocks), "yes" if noise.calibrated else "no",
        )
        for name, noise in frozen.noise.items()
    ]  # fmt: skip
    yield "<h2>Calibration</h2>"
    yield (
        f"<p>What v1 against v1 showed in the {frozen.plan.calibration_hours:g} hours before "
        f"{moment(frozen.started_ms)}, as standard deviations of natural logarithms; frozen with the plan.</p>"
    )
    header = (
        "Metric",
        "Of a block",
        "Between replicas",
        "Of one request",
        "Information wanted",
        "Blocks",
        "Calibrated",
    )
    yield _table(header, rows)


def _identity(judgement: Judgement, frozen: FrozenPlan, recorded: Recorded | None) -> Iterator[str]:
    yield "<footer>"
    yield f"<p>Frozen plan <code>{escape(judgement.plan_hash)}</code></p>"
    for name, found in frozen.plan.configurations.items():
        yield f"<p>Configuration of {CONFIGURED[name]}: <code>{escape(found)}</code></p>"
    if recorded is not None:
        head = escape(recorded.head)
        yield (
            f"<p>Run {recorded.run} in the journal {escape(recorded.journal)}, whose last entry then had the hash "
            f"<code>{head}</code>. <code>servescope judge verify --head {head}</code> checks that the journal still "
            "has it.</p>"
        )
    yield f"<p>servescope {escape(__version__)}</p></footer>"


def _list(title: str, lines: Sequence[str]) -> Iterator[str]:
    if lines:
        yield f"<h2>{escape(title)}</h2>"
        yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(each)}</th>' for each in header)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


_STYLE: Final = """\
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --quiet: #59636e; --rule: #d4dae0; --shade: #f4e3d7;
  --healthy: #00694f; --degraded: #b03a00; --inconclusive: #1f5fa8; --no-data: #59636e; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181d; --ink: #e8ebee; --quiet: #a3adb8; --rule: #39424c;
  --shade: #4a2d1b; --healthy: #4fc9a4; --degraded: #ff9b66; --inconclusive: #7db6f5; --no-data: #a3adb8; } }
* { box-sizing: border-box; }
body { margin: 2rem auto; max-width: 68rem; padding: 0 1.5rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
header { border-left: 0.5rem solid var(--tone); padding: 0.2rem 0 0.2rem 1.2rem; }
h1 { font-size: 1.45rem; line-height: 1.3; margin: 0.3rem 0 0.8rem; }
h2 { font-size: 1.1rem; margin: 2.2rem 0 0.6rem; }
p { margin: 0.4rem 0; }
.verdict { color: var(--tone); font-size: 1.15rem; font-weight: 700; }
.advice { border: 1px solid var(--tone); border-radius: 0.3rem; margin-left: 0.8rem; padding: 0.05rem 0.5rem;
  font-size: 0.95rem; }
.healthy { --tone: var(--healthy); } .degraded { --tone: var(--degraded); }
.inconclusive { --tone: var(--inconclusive); } .no-data { --tone: var(--no-data); }
figure { margin: 0.5rem 0 1rem; } figcaption { color: var(--quiet); font-size: 0.85rem; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .tick { fill: var(--quiet); font-size: 11px; } svg .value { font-weight: 600; }
svg .optional { fill: var(--quiet); } svg .beyond { fill: var(--shade); }
svg .grid { stroke: var(--rule); } svg .even { stroke: var(--ink); }
svg .margin { stroke: var(--degraded); stroke-width: 2; } svg .interval { stroke: var(--tone); stroke-width: 3; }
svg .point, svg .span { fill: var(--tone); } svg .inverse { fill: var(--paper); font-weight: 600; }
svg .share { fill: none; stroke: var(--ink); stroke-width: 2; } svg .mark { fill: var(--ink); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.87rem; width: 100%; }
th, td { border-bottom: 1px solid var(--rule); padding: 0.3rem 0.6rem 0.3rem 0; text-align: left; vertical-align: top; }
th { color: var(--quiet); font-weight: 600; }
footer { border-top: 1px solid var(--rule); color: var(--quiet); font-size: 0.85rem; margin-top: 2.5rem; }
code { overflow-wrap: anywhere; }
@media print { body { margin: 0; max-width: none; } }
"""

_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""
