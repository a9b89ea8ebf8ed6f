"""The only module that uses grafanalib: it writes panels and dashboards, with corrections where grafanalib is outdated.

Its thresholds have no base, its data sources are names, its axes take whole numbers, and its table, gauge and heatmap
are of Grafana 5: these are ours. What remains of older models is dropped, so that a dashboard is what Grafana 11 to 13
write themselves. It is never imported elsewhere.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from grafanalib import core

from dashboards.panels.colors import DASHES, NEUTRAL, NEW_COLOR, OLD_COLOR, PLAIN, SERIES_COLORS
from dashboards.panels.layout import Place, place
from dashboards.panels.panels import EVERY, LIMIT, Column, Panel, Row, Threshold
from dashboards.panels.queries import Query
from servescope.contract.identity import ROLES
from servescope.contract.metrics import METRICS

SCHEMA_VERSION: Final = 41
DATASOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_GRAFANA: Final = {"type": "grafana", "uid": "-- Grafana --"}

_ON_TIME_CHANGE: Final = 2
_ALL: Final = {"selected": True, "text": ["All"], "value": ["$__all"]}

_LEGACY_OF_DASHBOARD: Final = ("__inputs", "gnetId", "hideControls", "id", "rows", "sharedCrosshair", "style")
_LEGACY_OF_PANEL: Final = ("cacheTimeout", "editable", "error", "height", "hideTimeOverride", "minSpan", "span")


class Target(core.Target):  # type: ignore[misc]  # grafanalib has no types
    """A Prometheus query: grafanalib's has a resolution of its own, keys of Graphite, and no exemplars."""

    exemplar = False

    def to_json_data(self) -> dict[str, Any]:
        """The query as Grafana's own editor writes it."""
        return {
            "datasource": DATASOURCE,
            "editorMode": "code",
            "expr": self.expr,
            "format": self.format,
            "instant": self.instant,
            "legendFormat": self.legendFormat,
            **({"exemplar": True} if self.exemplar else {}),
            "range": not self.instant,
            "refId": self.refId,
        }


class Gauge(core.Panel):  # type: ignore[misc]  # grafanalib has no types
    """A value within its bands."""

    def to_json_data(self) -> Any:
        """The panel as Grafana's own editor writes it."""
        options = {"reduceOptions": _LAST, "showThresholdLabels": False, "showThresholdMarkers": True}
        return self.panel_json({"type": "gauge", "options": options})


class Table(core.Panel):  # type: ignore[misc]  # grafanalib has no types
    """Instant queries side by side, one row for each set of labels."""

    def to_json_data(self) -> Any:
        """The panel as Grafana's own editor writes it."""
        return self.panel_json({"type": "table", "options": {"showHeader": True, "cellHeight": "sm"}})


class StateTimeline(core.Panel):  # type: ignore[misc]  # grafanalib has no types
    """A state at each moment, one lane for each series."""

    def to_json_data(self) -> Any:
        """The panel as Grafana's own editor writes it."""
        options = {
            "alignValue": "center",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "mergeValues": True,
            "rowHeight": 0.8,
            "showValue": "auto",
            "tooltip": {"mode": "single", "sort": "none"},
        }
        return self.panel_json({"type": "state-timeline", "options": options})


class Heatmap(core.Panel):  # type: ignore[misc]  # grafanalib has no types
    """Buckets as Prometheus has them."""

    def to_json_data(self) -> Any:
        """The panel as Grafana's own editor writes it."""
        options = {
            "calculate": False,
            "cellGap": 1,
            "color": {
                "mode": "scheme", "scheme": "Oranges", "exponent": 0.5, "fill": "dark-orange", "scale": "exponential",
                "steps": 64, "reverse": False,
            },
            "exemplars": {"color": "rgba(255,0,255,0.7)"},
            "filterValues": {"le": 1e-9},
            "legend": {"show": True},
            "rowsFrame": {"layout": "auto"},
            "showValue": "never",
            "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": False},
            "yAxis": {"axisPlacement": "left", "reverse": False},
        }  # fmt: skip
        return self.panel_json({"type": "heatmap", "options": options})


class Template(core.Template):  # type: ignore[misc]  # grafanalib has no types
    """A variable: grafanalib's has tags of Grafana 6 and an interval it never uses."""

    def to_json_data(self) -> dict[str, Any]:
        """The variable as Grafana's own editor writes it."""
        if self.type == "adhoc":
            return {
                "name": self.name,
                "label": self.label,
                "type": "adhoc",
                "datasource": DATASOURCE,
                "hide": 0,
                "skipUrlSync": False,
            }
        if self.type == "datasource":
            chosen = {"selected": True, "text": self.default, "value": self.default}
            return {
                **({"current": chosen} if self.default else {}),
                "name": self.name,
                "label": self.label,
                "type": "datasource",
                "query": self.query,
                "regex": self.regex,
                "hide": 0,
                "includeAll": False,
                "multi": False,
                "options": [],
                "refresh": 1,
                "skipUrlSync": False,
            }
        if self.type == "custom":
            pairs = [pair.split(" : ") for pair in self.query.split(",")]
            options = [
                {"selected": number == 0, "text": text, "value": value} for number, (text, value) in enumerate(pairs)
            ]
            return {
                "name": self.name,
                "label": self.label,
                "type": "custom",
                "query": self.query,
                "current": options[0],
                "options": options,
                "hide": 0,
                "includeAll": False,
                "multi": False,
                "skipUrlSync": False,
            }
        return {
            "name": self.name,
            "label": self.label,
            "type": "query",
            "datasource": DATASOURCE,
            "query": {"qryType": 1, "query": self.query, "refId": "PrometheusVariableQueryEditor-VariableQuery"},
            "regex": "",
            "allValue": self.allValue,
            "current": _ALL,
            "hide": 0,
            "includeAll": True,
            "multi": True,
            "options": [],
            "refresh": _ON_TIME_CHANGE,
            "skipUrlSync": False,
            "sort": core.SORT_ALPHA_ASC,
        }


_LAST: Final = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def make_datasource_variable(default: str, regex: str) -> core.Template:
    """The variable for the Prometheus data source."""
    return Template(
        name="datasource", label="Data source", type="datasource", query="prometheus", default=default, regex=regex
    )


def make_switch(name: str, title: str, choices: Mapping[str, str]) -> core.Template:
    """A variable with values of its own by what they are called; the first is chosen."""
    return Template(
        name=name, label=title, query=",".join(f"{key} : {value}" for key, value in choices.items()), type="custom"
    )


def make_variable(name: str, title: str, query: str, every: str) -> core.Template:
    """A variable with the values of a label; it is asked again when the time changes."""
    return Template(name=name, label=title, query=query, allValue=every)


def make_links(title: str, tag: str) -> core.DashboardLink:
    """One menu of the dashboards with a tag, whose links keep time range and variables."""
    return core.DashboardLink(title=title, tags=[tag], asDropdown=True, includeVars=True, keepTime=True)


def make_filters() -> core.Template:
    """The variable of filters that an operator adds: labels of every query, such as an availability zone."""
    return Template(name="filters", label="Filters", type="adhoc", query="")


def make_annotation(name: str, query: Query, color: str, text: str, *, enabled: bool = True) -> dict[str, Any]:
    """An annotation where a query has a value; grafanalib has no current model of it."""
    return {
        "name": name,
        "datasource": DATASOURCE,
        "enable": enabled,
        "hide": False,
        "iconColor": color,
        "target": {"expr": query.expression, "refId": "Anno", "legendFormat": ""},
        "titleFormat": name,
        "textFormat": text,
        "useValueForTime": False,
    }


def render_dashboard(
    *,
    uid: str,
    title: str,
    description: str,
    tags: list[str],
    rows: tuple[Row, ...],
    variables: list[core.Template],
    links: list[core.DashboardLink],
    annotations: list[dict[str, Any]],
    refresh: str,
    time_from: str,
    timezone: str,
    stacks: tuple[str, ...],
) -> str:
    """The dashboard as the text of its file; `stacks` are the old and the new one of a cutover, none where each
    deployment has a color of its own.
    """
    dashboard = core.Dashboard(
        uid=uid,
        title=title,
        description=description,
        tags=tags,
        panels=[element for row, position, inside in place(rows) for element in _row(row, position, inside, stacks)],
        templating=core.Templating(list=variables),
        links=links,
        annotations=core.Annotations(list=[_BUILT_IN, *annotations]),
        editable=True,
        graphTooltip=core.GRAPH_TOOLTIP_MODE_SHARED_CROSSHAIR,
        refresh=refresh,
        schemaVersion=SCHEMA_VERSION,
        time=core.Time(time_from, "now"),
        timezone=timezone,
    )
    plain = json.loads(json.dumps(dashboard.to_json_data(), default=lambda part: part.to_json_data()))
    # Deeper indented, the panels of collapsed rows would make more of a ConfigMap than `kubectl apply` takes.
    return json.dumps(_modern(plain), indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False) + "\n"


_BUILT_IN: Final = {
    "name": "Annotations & Alerts",
    "builtIn": 1,
    "type": "dashboard",
    "datasource": _GRAFANA,
    "enable": True,
    "hide": True,
    "iconColor": "rgba(0, 211, 255, 1)",
}


def _row(row: Row, position: Place, inside: list[tuple[Panel, Place]], stacks: tuple[str, ...]) -> list[core.Panel]:
    """The row and its panels, which a collapsed one holds within."""
    panels = [_panel(panel, place, stacks) for panel, place in inside]
    heading = core.RowPanel(
        title=row.title,
        gridPos=_grid(position),
        id=2_000_000 + position[1],
        collapsed=row.collapsed,
        panels=panels if row.collapsed else [],
    )
    return [heading] if row.collapsed else [heading, *panels]


def _grid(position: Place) -> core.GridPos:
    x, y, width, height = position
    return core.GridPos(h=height, w=width, x=x, y=y)


def _panel(element: Panel, position: Place, stacks: tuple[str, ...]) -> core.Panel:
    shared = {
        "title": element.title,
        "description": element.description,
        "dataSource": DATASOURCE,
        "gridPos": _grid(position),
        "id": element.panel_id,
        "maxDataPoints": None,
        "interval": _least_step(element),
        "targets": [_target(query, number) for number, query in enumerate(element.queries)],
        "thresholds": [_threshold(each) for each in element.thresholds],
        "repeat": core.Repeat("h", element.repeat, _REPEATED_PER_ROW) if element.repeat else core.Repeat(),
    }
    if element.kind == "timeseries":
        return _time_series(element, shared, stacks)
    return _PANELS[element.kind](element, shared)


def _least_step(panel: Panel) -> str | None:
    """A subquery over hours is evaluated at every point: no more of them than it has steps itself."""
    return "5m" if any(_LONG_PAST.search(query.expression) for query in panel.queries) else None


_LONG_PAST: Final = re.compile(r"\[\d+[hd]:5m\]")
_REPEATED_PER_ROW: Final = 2


def _target(query: Query, number: int) -> core.Target:
    target = Target(
        expr=query.expression,
        format=query.format,
        instant=query.instant,
        legendFormat=query.legend,
        refId=chr(ord("A") + number),
    )
    target.exemplar = query.exemplar
    return target


def _threshold(threshold: Threshold) -> dict[str, Any]:
    return {"color": threshold.color, "value": threshold.value}


def _defaults(panel: Panel) -> dict[str, Any]:
    """What grafanalib's panels cannot say of their fields: fractions as ends of an axis, and what no data means."""
    return {"noValue": f"No data: {panel.no_data.text}", "unit": panel.unit}


def _stack_colors(panel: Panel, stacks: tuple[str, ...]) -> list[dict[str, Any]]:
    legends = [query.legend for query in panel.queries]
    # A stack alone has its color, its deployments shades of it.
    alone = {"{{inference_stack}}"} >= {legend for legend in legends if not _is_overlay(panel, legend)}
    if not stacks or not any("{{inference_stack}}" in legend for legend in legends):
        return []
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/(^| ){_SPECIAL.sub(_ESCAPED, stack)}( |$)/"},
            "properties": [{"id": "color", "value": {"mode": "fixed" if alone else "shades", "fixedColor": color}}],
        }
        for stack, color in zip(stacks, (OLD_COLOR, NEW_COLOR), strict=True)
    ]


_SPECIAL: Final = re.compile(r"[.*+?^${}()|\[\]\\/]")
_ESCAPED: Final = r"\\\g<0>"


def _is_overlay(panel: Panel, legend: str) -> bool:
    return legend.rpartition(" ")[2] in panel.overlay


def _state_colors(panel: Panel) -> list[dict[str, Any]]:
    return [
        {
            # A series is named after its label's value, alone or behind those of its deployment.
            "matcher": {"id": "byRegexp", "options": f"/(^| ){name}$/"},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
        for name, color in panel.colors.items()
        if panel.colors is not SERIES_COLORS or _names(panel, name)
    ]


def _dashes(panel: Panel) -> list[dict[str, Any]]:
    """The dashes of series that would be distinguished by a shade alone."""
    if panel.stacked:
        return []
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/(^| ){word}$/"},
            "properties": [{"id": "custom.lineStyle", "value": {"fill": "dash", "dash": list(dash)}}],
        }
        for word, dash in DASHES.items()
        if word not in panel.overlay
        and ((word in panel.colors and panel.colors is not SERIES_COLORS) or _names(panel, word))
    ]


def _overlay(panel: Panel) -> list[dict[str, Any]]:
    properties = [
        {"id": "custom.stacking", "value": {"mode": "none", "group": "A"}},
        {"id": "custom.fillOpacity", "value": 0},
        {"id": "custom.lineWidth", "value": 1},
        {"id": "custom.lineStyle", "value": {"fill": "dash", "dash": [10, 10]}},
        {"id": "color", "value": {"mode": "fixed", "fixedColor": NEUTRAL}},
    ]
    # One of each series would fill the legend; the panel's description says what they are.
    hidden = {"id": "custom.hideFrom", "value": {"legend": True, "tooltip": False, "viz": False}}
    return [
        {
            "matcher": {"id": "byRegexp", "options": f"/(^| ){word}$/"},
            "properties": [*properties, hidden] if word == LIMIT else properties,
        }
        for word in panel.overlay
    ]


_ANY_NUMBER: Final = re.compile(r"(?<=^position )\d+")


def _names(panel: Panel, name: str) -> bool:
    """Whether the name of one of the panel's series can end with this one."""
    endings = (f" {name}", f" {_ANY_NUMBER.sub('{{position}}', name)}")
    if any(f" {query.legend}".endswith(endings) for query in panel.queries):
        return True
    return any(f"{{{{{label}}}}}" in query.legend for label in _labels_with(name) for query in panel.queries)


@cache
def _labels_with(value: str) -> frozenset[str]:
    closed = [("role", ROLES), *(pair for metric in METRICS.values() for pair in metric.label_values.items())]
    return frozenset(label for label, values in closed if value in values)


def _time_series(panel: Panel, shared: Mapping[str, Any], stacks: tuple[str, ...]) -> core.Panel:
    low, high = panel.axis or (0.0, None)
    custom = {
        "axisSoftMin": low,
        "axisSoftMax": high,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "scaleDistribution": {"type": "linear", "log": None},
    }
    return core.TimeSeries(
        **shared,
        colorMode="shades",
        # Areas without lines: that of a series at 0 would colour the edge of those below it.
        fillOpacity=60 if panel.stacked else 0,
        lineWidth=0 if panel.stacked else 1,
        legendDisplayMode="table" if panel.ranked else "list",
        legendPlacement="right" if panel.ranked else "bottom",
        legendCalcs=[panel.ranked] if panel.ranked else [],
        # A state comes after its deployment in a series' name, and has its own color.
        overrides=[*_stack_colors(panel, stacks), *_state_colors(panel), *_dashes(panel), *_overlay(panel)],
        showPoints="never",
        thresholdsStyleMode="dashed" if len(panel.thresholds) > 1 else "off",
        tooltipMode="multi",
        tooltipSort="desc",
        transformations=_shortened(panel),
        extraJson={
            "fieldConfig": {"defaults": {**_defaults(panel), "color": _default_color(panel, stacks), "custom": custom}},
            **({"options": {"legend": _ranking(panel.ranked)}} if panel.ranked else {}),
        },
    )


def _default_color(panel: Panel, stacks: tuple[str, ...]) -> dict[str, str]:
    """Of series by deployment outside of a cutover one by their name, the same on every panel."""
    by_name = not stacks and any("{{deployment_id}}" in query.legend for query in panel.queries)
    # Elsewhere Grafana's palette would give series the colors of stacks and states.
    return {"mode": "palette-classic-by-name"} if by_name else {"mode": "shades", "fixedColor": PLAIN}


def _shortened(panel: Panel) -> list[dict[str, Any]]:
    """The names of groups of rules without the path of their file, which is Prometheus' own affair."""
    if not any("{{rule_group}}" in query.legend for query in panel.queries):
        return []
    return [{"id": "renameByRegex", "options": {"regex": r"/\S*;/", "renamePattern": ""}}]


def _ranking(calculation: str) -> dict[str, Any]:
    return {"sortBy": calculation.capitalize(), "sortDesc": calculation == "max"}


def _stat(panel: Panel, shared: Mapping[str, Any]) -> core.Panel:
    is_now = all(query.instant for query in panel.queries)
    return core.Stat(
        **shared,
        color={"mode": "thresholds"},
        format=panel.unit,
        reduceCalc="lastNotNull",
        graphMode="none" if is_now else "area",
        overrides=[],
        # A past is drawn below the number, not behind it.
        extraJson={"fieldConfig": {"defaults": _defaults(panel)}, "options": {"wideLayout": is_now}},
    )


def _gauge(panel: Panel, shared: Mapping[str, Any]) -> core.Panel:
    low, high = panel.axis or (0.0, 1.0)
    defaults = {**_defaults(panel), "min": low, "max": high, "color": {"mode": "thresholds"}}
    return Gauge(**shared, extraJson={"fieldConfig": {"defaults": defaults, "overrides": []}})


def _heatmap(panel: Panel, shared: Mapping[str, Any]) -> core.Panel:
    defaults = {"noValue": f"No data: {panel.no_data.text}"}
    return Heatmap(
        **shared,
        extraJson={
            "fieldConfig": {"defaults": defaults, "overrides": []}, "options": {"yAxis": {"unit": panel.unit}},
        },
    )  # fmt: skip


_MOST: Final = 1e15


def _state_timeline(panel: Panel, shared: Mapping[str, Any]) -> core.Panel:
    defaults = {
        **_defaults(panel),
        "color": {"mode": "thresholds"},
        "custom": {"fillOpacity": 70, "lineWidth": 0},
        "mappings": _mappings(panel.states),
    }
    return StateTimeline(**shared, extraJson={"fieldConfig": {"defaults": defaults, "overrides": []}})


def _mappings(states: Mapping[int | None, tuple[str, str]]) -> list[dict[str, Any]]:
    if EVERY in states:
        text, color = states[EVERY]
        return [{"type": "range", "options": {"from": -_MOST, "to": _MOST, "result": {"color": color, "text": text}}}]
    named = {
        str(number): {"color": color, "index": index, "text": text}
        for index, (number, (text, color)) in enumerate(states.items())
    }
    return [{"type": "value", "options": named}]


def _table(panel: Panel, shared: Mapping[str, Any]) -> core.Panel:
    custom = {"align": "auto", "minWidth": _LEAST_COLUMN, "wrapHeaderText": True}
    defaults = {**_defaults(panel), "unit": "none", "custom": custom}
    shown = {name: column for name, column in panel.columns.items() if not column.hidden}
    organize = {
        "excludeByName": {"Time": True, **{name: True for name, column in panel.columns.items() if column.hidden}},
        "indexByName": {name: number for number, name in enumerate(panel.columns)},
        "renameByName": {name: column.title for name, column in shown.items()},
    }
    return Table(
        **shared,
        transformations=[
            {"id": "merge", "options": {}},
            *(
                {"id": "sortBy", "options": {"fields": {}, "sort": [{"field": field, "desc": True}]}}
                for field in reversed(panel.sort)
            ),
            {"id": "organize", "options": organize},
        ],
        extraJson={
            "fieldConfig": {"defaults": defaults, "overrides": [_column(column) for column in shown.values()]},
        },
    )


# In pixels; with Grafana's 150 a table of all figures is wider than a screen.
_LEAST_COLUMN: Final = 80


def _column(column: Column) -> dict[str, Any]:
    # What the panel says when it is empty, Grafana would write into its empty cells, too.
    properties: list[dict[str, Any]] = [{"id": "unit", "value": column.unit}, {"id": "noValue", "value": ""}]
    if column.unit == "none":
        properties.append({"id": "custom.filterable", "value": not column.shown})
    else:
        properties.append({"id": "custom.align", "value": "right"})
    if len(column.thresholds) > 1:
        properties += [
            {
                "id": "thresholds",
                "value": {"mode": "absolute", "steps": [_threshold(each) for each in column.thresholds]},
            },
            {"id": "custom.cellOptions", "value": {"type": "color-text"}},
        ]
    if column.states:
        properties += [
            {"id": "mappings", "value": _mappings(column.states)},
            {"id": "custom.cellOptions", "value": {"type": "color-text"}},
            {"id": "custom.align", "value": "left"},
        ]
    if column.shown:
        every = {"type": "regex", "options": {"pattern": ".+", "result": {"index": 0, "text": column.shown}}}
        properties.append({"id": "mappings", "value": [every]})
    if column.width:
        properties.append({"id": "custom.width", "value": column.width})
    if column.link:
        properties.append({"id": "links", "value": [{"title": column.link_title, "url": column.link}]})
    return {"matcher": {"id": "byName", "options": column.title}, "properties": properties}


_PANELS: Final = {
    "stat": _stat,
    "gauge": _gauge,
    "heatmap": _heatmap,
    "table": _table,
    "state-timeline": _state_timeline,
}


def _modern(dashboard: dict[str, Any]) -> dict[str, Any]:
    """The dashboard without keys of older models and without nulls, but for the base of thresholds, which is one."""
    modern: dict[str, Any] = _without_nulls(
        {key: dashboard[key] for key in dashboard if key not in _LEGACY_OF_DASHBOARD}
    )
    modern["panels"] = [_modern_panel(panel) for panel in modern["panels"]]
    modern["timepicker"] = {}
    return modern


def _modern_panel(panel: dict[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in panel.items() if key not in _LEGACY_OF_PANEL}
    if kept["type"] == "row":
        inside = {"panels": [_modern_panel(each) for each in kept["panels"]]}
        return {key: kept[key] for key in ("collapsed", "gridPos", "id", "title", "type")} | inside
    return kept


def _without_nulls(part: Any) -> Any:
    if isinstance(part, list):
        return [_without_nulls(each) for each in part]
    if not isinstance(part, dict):
        return part
    if part.keys() == {"color", "value"}:
        return part
    return {key: _without_nulls(value) for key, value in part.items() if value is not None}
