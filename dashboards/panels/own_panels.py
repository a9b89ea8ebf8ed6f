"""Panels of series about the monitoring itself, whose descriptions are their help."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dashboards.options import Options
from dashboards.panels.colors import SERIES_COLORS
from dashboards.panels.composed import among_collectors
from dashboards.panels.panels import LATELY, UNITS, NoData, Panel, Threshold, absent_own, axis_of
from dashboards.panels.queries import Query, compile_own, legend
from servescope.contract.expressions import Expression, Quantile, leaves
from servescope.contract.own_metrics import OWN_METRICS, OwnUnit

_LEAST_RATE = 0.1
"""Where the axis of a rate ends at least: that of a rate at 0 would end at 100."""


def own_panel(
    title: str,
    expression: Expression,
    options: Options,
    *,
    unit: OwnUnit,
    by: tuple[str, ...],
    normal: str,
    first: str,
    meaning: str = "",
    stacked: bool = False,
    is_common: bool = False,
    colors: Mapping[str, str] = SERIES_COLORS,
    happened: NoData | None = None,
) -> Panel:
    """An expression over series about the monitoring, with the series' help unless `meaning` is given.

    `is_common` keeps only the series of collectors, for metrics that every program exposes. Of the many kinds that
    there are, `happened` shows those of the last hour, and says why the panel can be empty.
    """
    names = sorted(leaves(expression))
    text = compile_own(expression, options, by=by)
    if happened is not None:
        text = f"{text} and max_over_time(({text})[{LATELY}] @ end()) > 0"
    return Panel(
        title=title,
        kind="timeseries",
        queries=(Query(among_collectors(text, options) if is_common else text, legend(options, *by)),),
        unit=UNITS[unit],
        meaning=meaning or OWN_METRICS[names[0]].help,
        normal=normal,
        first=first,
        no_data=happened or absent_own(names[0]),
        axis=(0.0, _LEAST_RATE) if unit.endswith("/s") else axis_of(unit, None),
        stacked=stacked,
        colors=colors,
    )


def own_stat(
    title: str,
    expression: Expression,
    options: Options,
    *,
    unit: OwnUnit,
    steps: tuple[Threshold, ...],
    meaning: str,
    normal: str,
    first: str,
) -> Panel:
    """One number over all programs, with the color of the step that it is on."""
    panel = own_panel(title, expression, options, unit=unit, by=(), meaning=meaning, normal=normal, first=first)
    queries = tuple(replace(query, instant=True) for query in panel.queries)
    return replace(panel, kind="stat", queries=queries, thresholds=steps, axis=None, width=3, height=4)


def own_quantiles(title: str, histogram: str, options: Options, *, normal: str, first: str) -> Panel:
    """The median and the upper percentiles of a histogram about the monitoring."""
    return Panel(
        title=title,
        kind="timeseries",
        queries=tuple(
            Query(compile_own(Quantile(share, histogram), options, by=()), f"p{share * 100:g}")
            for share in (0.5, 0.95, 0.99)
        ),
        unit=UNITS["seconds"],
        meaning=OWN_METRICS[histogram].help,
        normal=normal,
        first=first,
        no_data=NoData("idle", "nothing happened in the window"),
    )
