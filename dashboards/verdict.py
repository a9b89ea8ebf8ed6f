"""The verdict on a cutover: its row of panels, and the marks of its changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from dashboards.options import Options
from dashboards.panels import grafana
from dashboards.panels.colors import METRIC_COLORS, NEUTRAL, STAGE_MARK, STATUS_COLORS, VERDICT_MARK
from dashboards.panels.composed import state_number
from dashboards.panels.panels import UNITS, Column, Panel, Row, Threshold, above, absent_own, query_panel
from dashboards.panels.queries import RATE_INTERVAL, Query, compile_own, legend, own_scope
from servescope.contract.bounds import JUDGEMENT_AGE
from servescope.contract.expressions import level
from servescope.contract.own_metrics import OWN_METRICS, OwnUnit

_STATES: Final[Mapping[int | None, tuple[str, str]]] = MappingProxyType(
    {
        number: (verdict, color)
        for number, (verdict, color) in enumerate(
            (("HEALTHY", "green"), ("INCONCLUSIVE", NEUTRAL), ("NO DATA", "yellow"), ("DEGRADED", "red")), start=1
        )
    }
)
"""The number, name and color of each verdict, the worst last."""

_VERDICT: Final = OWN_METRICS["servescope_judgement"].name
_OF_METRICS: Final = OWN_METRICS["servescope_judgement_metric_verdict"].name
_STAGE: Final = OWN_METRICS["servescope_judgement_stage"].name


def verdict_row(options: Options) -> Row:
    """What the judge says of the cutover, and how sure it is."""
    old, new, oldest = options.choices.old_stack, options.choices.new_stack, options.bound(JUDGEMENT_AGE)
    return Row(
        "Verdict",
        (
            replace(
                _timeline(
                    "Verdict", _VERDICT, options, by=("plan",), meaning="The verdict on each plan over time.",
                    normal="INCONCLUSIVE until the traffic of a stage suffices, then HEALTHY.",
                    first="`servescope judge explain` names the metric, its interval and what would change the "
                    "verdict.",
                ),
                height=6,
            ),
            replace(
                _panel(
                    f"Share of {new}", {
                        "planned": "servescope_judgement_planned_share_ratio",
                        "observed": "servescope_judgement_observed_share_ratio",
                    }, options, unit="ratio", by=("plan",),
                    meaning=f"The share of requests that {new} is to have in this stage (dashed), and the one it "
                    "has had.",
                    normal="the same.",
                    first="if they differ, check the weights of the gateway that splits the traffic.",
                ),
                height=6,
            ),
            replace(
                _panel(
                    "Age of the judgement", {"": "servescope_judgement_age_seconds"}, options, unit="seconds",
                    by=("plan",), normal=f"below {oldest:g} seconds.",
                    first="if it grows, the log of `servescope judge watch` has the cause.",
                ),
                height=6, thresholds=_stale(oldest), axis=(0.0, 1.25 * oldest),
            ),
            _metrics(options),
            _timeline(
                "Metrics by verdict", _OF_METRICS, options, by=("plan", "metric"),
                meaning="The verdict on each metric over time.",
                normal="more and more HEALTHY while a stage lasts.",
                first="the cutover page of the console lists each metric with its reason.",
            ),
            replace(
                _panel(
                    "Ratio of each metric", {"": "servescope_judgement_metric_ratio"}, options, unit="ratio",
                    by=("plan", "metric"),
                    meaning=f"Each metric of {new} divided by that of {old}; the table has its interval and its "
                    "margin.",
                    normal="near 100 %.",
                    first=f"if a whole interval is beyond the margin, move the traffic back to {old}.",
                ),
                axis=(0.5, 1.5), height=9, colors=METRIC_COLORS,
            ),
            replace(_panel(
                "Information", {"": "servescope_judgement_metric_information_ratio"}, options, unit="ratio",
                by=("plan", "metric"), normal="grows towards 100 %; a stage with a small share gathers it slowly.",
                first=f"if it does not grow, {new} gets no traffic, or its load cannot be compared with that of {old}.",
            ), height=9, colors=METRIC_COLORS),
        ),
    )  # fmt: skip


def _stale(oldest: float) -> tuple[Threshold, ...]:
    return Threshold(STATUS_COLORS["good"]), Threshold(STATUS_COLORS["warning"], above(oldest))


def _timeline(
    title: str, name: str, options: Options, *, by: tuple[str, ...], meaning: str, normal: str, first: str
) -> Panel:
    """The verdict over time, one lane for each value of the labels in `by`."""
    return Panel(
        title=title,
        kind="state-timeline",
        queries=(Query(_number(name, options, by), legend(options, *by)),),
        unit=UNITS["state"],
        meaning=meaning,
        normal=normal,
        first=first,
        no_data=absent_own(name),
        states=_STATES,
        height=9,
    )


def _number(name: str, options: Options, by: tuple[str, ...]) -> str:
    verdicts = [verdict for verdict, _ in _STATES.values()]
    return state_number(name, "verdict", verdicts, options, by=by, is_own=True)


def _metrics(options: Options) -> Panel:
    """Each metric now: its verdict, the worst first, its interval and its margin."""
    by = ("plan", "metric")
    ratio, old, new = UNITS["ratio"], options.choices.old_stack, options.choices.new_stack
    shown = (
        ("Verdict", Column("Verdict", states=_STATES, width=130), _number(_OF_METRICS, options, by)),
        *(
            (title, Column(title, ratio), compile_own(level(f"servescope_judgement_metric_{name}"), options, by=by))
            for title, name in (
                (f"{new} / {old}", "ratio"), ("Interval from", "ratio_low"), ("Interval to", "ratio_high"),
                ("Margin", "margin_ratio"), ("Information", "information_ratio"),
            )
        ),
    )  # fmt: skip
    keys = {f"Value #{chr(ord('A') + number)}": column for number, (_, column, _) in enumerate(shown)}
    return Panel(
        title="Metrics of the cutover",
        kind="table",
        queries=tuple(Query(text, legend(options, *by), True, "table") for _, _, text in shown),
        unit="none",
        meaning=f"Each metric of {new} divided by that of {old}, with its interval, valid at every look, and the "
        f"margin: the relative change for the worse that {new} must be proven to stay below.",
        normal="no metric is DEGRADED; intervals include 100 % and get narrower.",
        first=f"if a whole interval is beyond the margin, move the traffic back to {old}.",
        no_data=absent_own(_OF_METRICS),
        columns=MappingProxyType({"plan": Column("Plan"), "metric": Column("Metric", width=300), **keys}),
        sort=("Value #A",),
        width=24,
        height=11,
    )


def _panel(
    title: str,
    series: Mapping[str, str],
    options: Options,
    *,
    unit: OwnUnit,
    by: tuple[str, ...],
    normal: str,
    first: str,
    meaning: str = "",
) -> Panel:
    """Gauges of the judge, each under the word that ends its series' names; "" for none."""
    names = list(series.values())
    queries = {word: compile_own(level(name), options, by=by) for word, name in series.items()}
    panel = query_panel(
        title, queries, options, unit=unit, by=by, no_data=absent_own(names[0]),
        meaning=meaning or OWN_METRICS[names[0]].help, normal=normal, first=first,
    )  # fmt: skip
    return replace(panel, overlay=("planned",) if "planned" in series else ())


def verdict_annotations(options: Options) -> list[dict[str, Any]]:
    """Where the verdict of a plan changed, and where a stage began."""
    verdict, stage = (_narrowed(name, options) for name in (_VERDICT, _STAGE))
    return [
        grafana.make_annotation(
            "Verdict",
            # Only its start: an endless band would hide what is under it.
            Query(f"{verdict} == 1 unless {verdict} offset {RATE_INTERVAL} == 1", ""),
            VERDICT_MARK,
            legend(options, "plan", "verdict"),
        ),
        grafana.make_annotation(
            "Stage begins", Query(f"changes({stage}[{RATE_INTERVAL}]) > 0", ""), STAGE_MARK, legend(options, "plan")
        ),
    ]


def _narrowed(name: str, options: Options) -> str:
    chosen = own_scope(name, options)
    return f"{name}{{{chosen}}}" if chosen else name
