"""The verdict on a cutover: its row of panels, and the marks of its changes."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from dashboards import grafana
from dashboards.options import Options
from dashboards.panels import UNITS, Panel, Row, absent_own
from dashboards.queries import RATE_INTERVAL, Query, compile_own, legend, own_scope
from servescope.contract.expressions import level
from servescope.contract.own_metrics import OWN_METRICS, OwnUnit

# Red is for what is broken.
_VERDICT_COLORS: Mapping[str, str] = MappingProxyType(
    {"HEALTHY": "green", "INCONCLUSIVE": "blue", "NO DATA": "orange", "DEGRADED": "red"}
)
_VERDICT: Final = OWN_METRICS["servescope_judgement"].name
_STAGE: Final = OWN_METRICS["servescope_judgement_stage"].name


def verdict_row(options: Options) -> Row:
    """What the judge says of the cutover, and how sure it is."""
    return Row(
        "Verdict",
        (
            _panel(
                "Verdict", {"": "servescope_judgement"}, options, unit="state", by=("plan", "verdict"), stacked=True,
                colors=_VERDICT_COLORS,
                normal="INCONCLUSIVE until the traffic of a stage suffices, then HEALTHY.",
                first="`servescope judge explain` names the metric, its interval and what would change the verdict.",
            ),
            _panel(
                "Ratio of each metric", {
                    "": "servescope_judgement_metric_ratio", "low": "servescope_judgement_metric_ratio_low",
                    "high": "servescope_judgement_metric_ratio_high",
                }, options, unit="ratio", by=("plan", "metric"),
                meaning="Each metric of v2 divided by that of v1, with its interval (dashed), valid at every look.",
                normal="the interval includes 1, and gets narrower.",
                first="if a whole interval is beyond the margin, move the traffic back to v1.",
            ),
            _panel(
                "Metrics by verdict", {"": "servescope_judgement_metric_verdict"}, options, unit="state",
                by=("plan", "verdict"), stacked=True, colors=_VERDICT_COLORS,
                meaning="How many metrics have each verdict.",
                normal="more and more HEALTHY while a stage lasts.",
                first="the cutover page of the console lists each metric with its reason.",
            ),
            _panel(
                "Information", {"": "servescope_judgement_metric_information_ratio"}, options, unit="ratio",
                by=("plan", "metric"), normal="grows towards 100 %; a stage with a small share gathers it slowly.",
                first="if it does not grow, v2 gets no traffic, or its load cannot be compared with that of v1.",
            ),
            _panel(
                "Share of v2", {
                    "planned": "servescope_judgement_planned_share_ratio",
                    "observed": "servescope_judgement_observed_share_ratio",
                }, options, unit="ratio", by=("plan",),
                meaning="The share of requests that v2 is to have in this stage, and the one it has had.",
                normal="the same.", first="if they differ, check the weights of the gateway that splits the traffic.",
            ),
            _panel(
                "Age of the judgement", {"": "servescope_judgement_age_seconds"}, options, unit="seconds", by=("plan",),
                normal="below five minutes.", first="if it grows, the log of `servescope judge watch` has the cause.",
            ),
        ),
    )  # fmt: skip


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
    stacked: bool = False,
    colors: Mapping[str, str] = MappingProxyType({}),
) -> Panel:
    """Gauges of the judge, each under the word that ends its series' names; "" for none."""
    names = list(series.values())
    return Panel(
        title=title,
        kind="timeseries",
        queries=tuple(
            Query(compile_own(level(name), options, by=by), " ".join(filter(None, (legend(options, *by), word))))
            for word, name in series.items()
        ),
        unit=UNITS[unit],
        meaning=meaning or OWN_METRICS[names[0]].help,
        normal=normal,
        first=first,
        no_data=absent_own(names[0]),
        axis=(0.0, 1.0) if unit in ("ratio", "state") else None,
        stacked=stacked,
        overlay=tuple(word for word in ("low", "high", "planned") if word in series),
        colors=colors,
    )


def verdict_annotations(options: Options) -> list[dict[str, Any]]:
    """Where the verdict of a plan changed, and where a stage began."""
    verdict, stage = (_narrowed(name, options) for name in (_VERDICT, _STAGE))
    return [
        grafana.make_annotation(
            "Verdict",
            # Only its start: an endless band would hide what is under it.
            Query(f"{verdict} == 1 unless {verdict} offset {RATE_INTERVAL} == 1", ""),
            "purple",
            legend(options, "plan", "verdict"),
        ),
        grafana.make_annotation(
            "Stage begins", Query(f"changes({stage}[{RATE_INTERVAL}]) > 0", ""), "blue", legend(options, "plan")
        ),
    ]


def _narrowed(name: str, options: Options) -> str:
    chosen = own_scope(name, options)
    return f"{name}{{{chosen}}}" if chosen else name
