"""The tables, as HTML: dense rows that the browser lays out as cards where the window is narrow."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import pandas as pd

from app.charts.charts import Dash
from app.data import readings
from app.data.promised import Promises
from app.data.queries import COVERAGES, Record, Shown, Trend, count_replicas, fleet_row, has_values, records
from app.data.readings import FiguresAt
from app.elements import display
from app.elements.display import ABSENT
from app.elements.markup import cell, chip, draw_lines, element, grid, heading, image, link
from app.elements.plain import escape
from servescope.alerting.rules.listing import START_GRACE
from servescope.contract.figures import FIGURES
from servescope.contract.types import Figure, Status
from servescope.increments.extrapolation import LOOKBACK_MS
from servescope.settings.clock import AHEAD_MS
from servescope.settings.values import parse_duration
from servescope.store.records import Health

Explain = Callable[[str, Figure, float | None], str]
"""Why a figure of a deployment, by name, is 0 or absent; "" of any other value, or where that is not known."""

LATE_SECONDS = 60
"""Figures older than this are marked: by default the collector writes them every 15 s."""
SPARK_FIGURE = "request_rate"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the fleet: one figure, or two above each other."""

    upper: str
    lower: str | None = None


# The order in which an operator reads a deployment: demand, harm, speed, load, what makes it fast.
FLEET_COLUMNS = (
    Column("request_error_share", "request_rejected_share"),
    Column("time_to_first_token_p50", "time_to_first_token_p95"),
    Column("tps_per_request"),
    Column("input_tokens_per_second", "output_tokens_per_second"),
    Column("concurrent_requests", "queued_requests"),
    Column("speculation_rate"),
    Column("kv_cache_hit_rate", "kv_cache_best_prefix_hit_rate"),
    Column("kv_cache_hit_rate_skew", "kv_cache_hit_rate_efficiency"),
    Column("autoscaler_in_flight_tokens"),
)
FLEET_FIGURES = (SPARK_FIGURE, *(name for column in FLEET_COLUMNS for name in (column.upper, column.lower) if name))


def swatch(color: str, dash: Dash = (1, 0)) -> str:
    """The mark of a deployment in the hue of its stack, as its lines are drawn."""
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="14" height="10"><line x1="0" y1="5" x2="14" y2="5" '
        f'stroke="{color}" stroke-width="3.4" stroke-dasharray="{dash[0] if dash[1] else 14} {dash[1]}"/></svg>'
    )
    return image(drawn, "swatch", "")


def show_figure(figure: Figure, value: float | None, why: str, promised: Promises, moment: FiguresAt) -> str:
    """A figure's value, with its reading on hover; an en dash where absent. `why` it is 0 or absent is on hover too.

    Harm has a background, what is only to be tuned an underline; over a window that is filling it is in italics.
    """
    text, filling = display.format_bare(value, figure.unit), moment.filling(figure)
    if text == ABSENT:
        tip = "; ".join(filter(None, (f"{figure.title}: {why}", filling)))
        return element("span", ABSENT, "absent", data_tip=tip, tabindex="0")
    reading, lacking = readings.read(figure, value, promised, moment), moment.lacking(figure, promised)
    if reading is None and not (filling or lacking or why):
        return element("span", escape(text), "value")
    first = reading.rating.label if reading else lacking or filling or why
    look, said = "value", [f"{figure.title} {text}: {first}"]
    if why and why != first:
        said.append(display.as_sentence(why))
    if reading is not None:
        look += f" {'band' if reading.harm and reading.rating.status != 'good' else 'tuned'} {reading.rating.status}"
        said.append(reading.rating.advice)
    if filling:
        look += " filling"
        said.append(f"{display.as_sentence(filling)} {EXPLAIN_FILLING}")
    return element("span", escape(text), look, data_tip="\n".join(said), tabindex="0")


EXPLAIN_FILLING: Final = (
    "Until the window is whole, rates are too low by the part that is missing; ratios and latencies are of the rest."
)


def draw_reading_key() -> str:
    """What backgrounds and underlines of values mean."""
    entries = (
        ("band critical", "far beyond an objective: users notice"),
        ("band warning", "beyond an objective"),
        ("tuned critical", "to tune soon"),
        ("tuned warning", "to tune"),
    )
    drawn = (element("span", element("span", "12 %", f"value {look}") + f" {words}") for look, words in entries)
    return element("div", "".join(drawn), "scope legend")


def draw_fleet(
    fleet: pd.DataFrame,
    shown: Sequence[Shown],
    trends: Mapping[str, Trend],
    explain: Explain,
    *,
    now_ms: int,
    window_ms: int,
    parameters: Mapping[str, str],
    unread: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """The fleet as a table, one row per deployment in the order given.

    `unread` are how many targets of each, by its name, answer and are not understood.
    """
    columns = [each for each in FLEET_COLUMNS if is_shown(fleet, each)]
    rows = [
        _fleet_row(
            one,
            FiguresAt(fleet_row(fleet, one.name), window_ms),
            columns,
            trends[one.name],
            explain,
            now_ms,
            parameters,
            unread.get(one.name, 0),
        )
        for one in shown
    ]
    return grid("fleet", _fleet_head(columns), rows)


def is_shown(fleet: pd.DataFrame, column: Column) -> bool:
    """Whether any deployment has a value of a column's figures."""
    return any(has_values(fleet, name) for name in (column.upper, column.lower) if name)


def _fleet_head(columns: Sequence[Column]) -> list[str]:
    request = FIGURES[SPARK_FIGURE]
    return [
        heading("Deployment", "model · environment"),
        heading("Stack", "rollout"),
        heading(FIGURES["replica_count_by_status"].title, "by status", tip=FIGURES["replica_count_by_status"].help),
        heading(request.title, request.unit, tip=request.help, numeric=True),
        *(_figure_head(column) for column in columns),
        heading("Updated", "ago", numeric=True),
    ]


def _figure_head(column: Column) -> str:
    upper = FIGURES[column.upper]
    unit = "" if upper.unit == "seconds" else "share" if upper.unit == "ratio" else upper.unit
    if column.lower is None:
        return heading(upper.title, unit, tip=upper.help, numeric=True)
    lower = FIGURES[column.lower]
    tip = f"{upper.title}: {upper.help}\n{lower.title}: {lower.help}"
    base, reading = display.short_title(upper)
    if display.short_title(lower)[0] == base:
        return heading(base, f"{reading} · {display.short_title(lower)[1]}", tip=tip, numeric=True)
    return heading(upper.title, lower.title, unit, tip=tip, numeric=True)


def _fleet_row(
    one: Shown,
    moment: FiguresAt,
    columns: Sequence[Column],
    trend: Trend,
    explain: Explain,
    now_ms: int,
    parameters: Mapping[str, str],
    unread: int,
) -> str:
    deployment, row = one.deployment, moment.figures
    target = {"deployment": one.name, **parameters}
    name = f"{swatch(one.color)}{link('deployment', one.name, target, 'name')}"
    place = " · ".join(part for part in (deployment.model_name, deployment.environment) if part)
    cells = [
        cell("Deployment", name, element("span", escape(place)) + _worst_unshown(one, moment, columns), "identity"),
        cell("Stack", chip(deployment.inference_stack), element("span", escape(deployment.rollout_phase or ABSENT))),
        cell(FIGURES["replica_count_by_status"].title, *_replicas(one, moment, explain, unread)),
        cell(
            FIGURES[SPARK_FIGURE].title,
            _figure(one, moment, SPARK_FIGURE, explain),
            draw_trend(trend, one.color),
            "number",
        ),
        *(_figure_cell(one, moment, column, explain) for column in columns),
        cell("Updated", _freshness(row["time_ms"], now_ms), _filling(moment), "number"),
    ]
    return element("tr", "".join(cells), "" if is_current(row["time_ms"], now_ms) else "past")


def _worst_unshown(one: Shown, moment: FiguresAt, columns: Sequence[Column]) -> str:
    """The harm of a figure without a column where that is worse than all that has one: what is counted is marked."""
    shown = {name for column in columns for name in (column.upper, column.lower) if name}
    row = moment.figures
    read = [(readings.read(figure, row.get(name), one.promised, moment), figure) for name, figure in FIGURES.items()]
    harm = [(found.weight, figure) for found, figure in read if found is not None and found.harm and found.weight]
    seen = max((weight for weight, figure in harm if figure.name in shown), default=0)
    worst = max(harm, key=lambda each: each[0], default=(0, None))
    if worst[1] is None or worst[0] <= seen:
        return ""
    value = show_figure(worst[1], row.get(worst[1].name), "", one.promised, moment)
    return element("div", f"{escape(worst[1].title)} {value}", "lower")


def is_current(time_ms: float, now_ms: int) -> bool:
    """Whether figures of this time still describe the present: as long as Prometheus would show a gauge."""
    return -AHEAD_MS <= now_ms - time_ms <= LOOKBACK_MS


def _filling(moment: FiguresAt) -> str:
    filling = moment.filling(FIGURES[SPARK_FIGURE])
    return element("span", escape(filling), "value filling", data_tip=EXPLAIN_FILLING, tabindex="0") if filling else ""


def _figure_cell(one: Shown, moment: FiguresAt, column: Column, explain: Explain) -> str:
    base, reading = display.short_title(FIGURES[column.upper])
    other, other_reading = display.short_title(FIGURES[column.lower or column.upper])
    label = f"{base}, {reading} / {other_reading}" if base == other and reading else f"{base} / {other}"
    lower = _figure(one, moment, column.lower, explain) if column.lower else ""
    return cell(label if column.lower else base, _figure(one, moment, column.upper, explain), lower, "number")


def _figure(one: Shown, moment: FiguresAt, name: str, explain: Explain) -> str:
    value = moment.figures.get(name)
    figure = FIGURES[name]
    return show_figure(figure, value, explain(one.name, figure, value), one.promised, moment)


def _replicas(one: Shown, moment: FiguresAt, explain: Explain, unread: int) -> tuple[str, str]:
    figure = FIGURES["replica_count_by_status"]
    active, others = draw_replicas(moment.figures)
    active = active or show_figure(figure, None, explain(one.name, figure, None), one.promised, moment)
    if not unread:
        return active, others
    tip = f"{unread} of its targets answer, and no source map reads what they expose: see the Sources page"
    return active, others + element("span", f"{unread} not understood", "replicas unread", data_tip=tip, tabindex="0")


def draw_replicas(row: Mapping[str, float]) -> tuple[str, str]:
    """How many replicas are active, and how many have another status; "" for what is not known."""
    known = count_replicas(row)
    if not known:
        return "", ""
    others = [
        element("span", f"{display.format_number(count)} {status}", f"replicas {status}")
        for status, count in known.items()
        if count and status != "active"
    ]
    reading = readings.read_replicas(known)
    text, look = f"{display.format_number(known.get('active', 0.0))} active", "value"
    if reading is None:
        active = element("span", text, look)
    else:
        tip = f"{reading.rating.label}\n{reading.rating.advice}"
        active = element("span", text, f"{look} band {reading.rating.status}", data_tip=tip, tabindex="0")
    return active, " ".join(others) or element("span", "", "none")


def _freshness(time_ms: float, now_ms: int) -> str:
    if math.isnan(time_ms):
        return element("span", ABSENT, "absent", data_tip="no figures in this range", tabindex="0")
    age = (now_ms - time_ms) / 1000
    is_ahead = age < -AHEAD_MS / 1000
    late = age > LATE_SECONDS or is_ahead
    tip = "the collector has written nothing newer" if late else "the collector is writing"
    if is_ahead:
        tip = "its time is later than now: a clock was ahead"
    return element("span", display.format_age(age), "value band warning" if late else "value", data_tip=tip)


def draw_trend(trend: Trend, color: str) -> str:
    """A sparkline over the whole range, from 0 upwards; missing values are gaps. Empty below two values."""
    known = [value for _, value in trend if not math.isnan(value)]
    if len(known) < 2:
        return ""
    width, height = 76, 16
    top = max(*known, 1e-12)
    path, pen = [], "M"
    for place, value in trend:
        if math.isnan(value):
            pen = "M"
            continue
        path.append(f"{pen}{place * width:.1f} {height - 1 - value / top * (height - 3):.1f}")
        pen = "L"
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
        f'<path d="{"".join(path)}" fill="none" stroke="{color}" stroke-width="1.3" stroke-linejoin="round"/></svg>'
    )
    return image(drawn, "trend", "over the selected range")


def draw_levels(table: pd.DataFrame, left: Shown, right: Shown, swatches: tuple[str, str]) -> str:
    """The rates and levels of two deployments, without a reading: neither is better for being higher."""
    heads = [
        heading("Rate or level", "average over the range"),
        element("th", swatches[0] + escape(left.name), "number", scope="col"),
        element("th", swatches[1] + escape(right.name), "number", scope="col"),
    ]
    rows: list[str] = []
    group = ""
    for record in records(table):
        figure = FIGURES[record["figure"]]
        if figure.group != group:
            group = figure.group
            rows.append(element("tr", element("th", escape(group), colspan="3", scope="colgroup"), "group"))
        title = f"{figure.title}, {record['label']}" if record["label"] else figure.title
        values = (display.format_value(float(record[side]), figure.unit) for side in ("left", "right"))
        cells = [element("th", escape(title), scope="row", data_tip=figure.help)]
        cells += [cell(one.name, escape(value), "", "number") for one, value in zip((left, right), values, strict=True)]
        rows.append(element("tr", "".join(cells)))
    return grid("comparison", heads, rows)


def draw_sources(sources: pd.DataFrame, *, now_ms: int, parameters: Mapping[str, str], sources_known: bool) -> str:
    """The targets as a table, in the order given; a Prometheus does not hold how they are read."""
    head = [
        heading("Target"),
        heading("Deployment", "model"),
        heading("Role", "replica"),
        heading("Source", "versions"),
        heading("Health", "last success"),
        heading("Scrape", "samples", numeric=True),
        heading("Coverage", "of contract metrics"),
    ]
    rows = [_source_row(record, now_ms, parameters, sources_known) for record in records(sources)]
    return grid("sources", head, rows)


def _source_row(record: Record, now_ms: int, parameters: Mapping[str, str], sources_known: bool) -> str:
    text = {name: escape(str(record[name] or ABSENT)) for name in _SOURCE_TEXTS}
    target = str(record["target_id"])
    cells = [
        cell(
            "Target",
            link("sources", target, {**parameters, "view": "coverage", "target": target}, "name"),
            element("span", text["url"]) if record["url"] not in (target, "") else "",
            "identity",
        ),
        cell("Deployment", f"{text['deployment_id']} {chip(str(record['inference_stack']))}", text["model_name"]),
        cell("Role", text["role"], text["replica"]),
        cell("Source", text["source"], text["versions"]),
        cell("Health", *_health(record, now_ms, "never" if sources_known else "last success not known")),
        cell("Scrape", *_scrape(record), "number"),
        cell("Coverage", *_coverage(record, sources_known)),
    ]
    kind = "warning" if record["state"] == "not_understood" else "error"
    notes = [(kind, [record["error"]] if record["error"] else []), ("warning", record["warnings"].splitlines())]
    below = [
        element("tr", element("td", draw_lines(map(display.as_sentence, lines)), kind, colspan=str(len(cells))), kind)
        for kind, lines in notes
        if lines
    ]
    return element("tr", "".join(cells)) + "".join(below)


HEALTHS: Final[Mapping[Health, tuple[str, Status]]] = {
    "up": ("healthy", "good"),
    "not_understood": ("answers, not understood", "warning"),
    "down": ("failing", "critical"),
    "unknown": ("failing", "critical"),
}
"""The health of a target in words, by how its last scrape ended, and the status that it is coloured as."""


_START_GRACE_SECONDS: Final = parse_duration(START_GRACE) / 1000


def describe_health(state: Health, starting_since_ms: float | None, now_ms: int) -> tuple[tuple[str, Status], str]:
    """A target's health in words with its status, and for how long one starts that has not answered yet, or ""."""
    if state != "down" or starting_since_ms is None or math.isnan(starting_since_ms):
        return HEALTHS[state], ""
    seconds = max(0.0, (now_ms - starting_since_ms) / 1000)
    age = f"for {display.format_age(max(1.0, seconds))}"
    return (("starting", "warning"), age) if seconds < _START_GRACE_SECONDS else (HEALTHS[state], f"no answer {age}")


def draw_warnings(warnings: Sequence[str]) -> str:
    """What is wrong with the last scrape of a target that could be read."""
    return element("div", element("div", draw_lines(map(display.as_sentence, warnings)), "warnings"), "scope")


_SOURCE_TEXTS = ("url", "deployment_id", "model_name", "role", "replica", "source", "versions")


def _coverage(record: Record, sources_known: bool) -> tuple[str, str]:
    if sources_known:
        return draw_coverage({status: int(record[status]) for status in COVERAGES}, int(record["missing_metrics"]))
    return element("span", ABSENT, "absent", data_tip="not stored in a Prometheus", tabindex="0"), ""


def _health(record: Record, now_ms: int, unknown: str) -> tuple[str, str]:
    (state, status), starting = describe_health(record["state"], record["starting_since_ms"], now_ms)
    if starting:
        return element("span", state, f"value band {status}"), element("span", starting)
    success = record["last_success_ms"]
    age = unknown if display.is_absent(success) else display.format_age((now_ms - success) / 1000)
    since = age if age in (unknown, ABSENT) else f"last success {age}" if age == "now" else f"last success {age} ago"
    return element("span", state, f"value band {status}"), element("span", since)


def _scrape(record: Record) -> tuple[str, str]:
    duration = display.format_value(record["duration_seconds"], "seconds")
    return element("span", duration, "value"), element("span", describe_samples(record["samples"]))


def describe_samples(samples: float | None) -> str:
    """How many samples a scrape had, "" where that is not known."""
    return "" if samples is None or display.is_absent(samples) else f"{display.format_bare(samples, '1')} samples"


def draw_coverage(counts: Mapping[str, int], missing: int) -> tuple[str, str]:
    """A bar of how many contract metrics have each coverage; the count of those with a value, and of those missing."""
    total = sum(counts.values())
    if not total:
        return element("span", ABSENT, "absent", data_tip="nothing was scraped yet", tabindex="0"), ""
    tip = "\n".join(f"{count} {status}" for status, count in counts.items() if count)
    bar = "".join(
        element("i", "", f"part {status}", style=f"flex-grow:{count}") for status, count in counts.items() if count
    )
    observed = sum(counts[status] for status in counts if status not in ("elsewhere", "impossible"))
    lacking = f" · {element('span', f'{missing} missing', 'value warning')}" if missing else ""
    return element(
        "span", bar, "bar", data_tip=tip, tabindex="0"
    ), f"{observed} of {total} metrics have a value{lacking}"


_COVERAGE_WORDS: Final[Mapping[str, str]] = {
    "present": "reported",
    "derived": "computed from other series",
    "approximate": "approximated",
    "elsewhere": "reported by another target",
    "impossible": "not reported by this source",
    "missing": "no longer reported",
}


def draw_coverage_key() -> str:
    """What the colours of the coverage bars mean."""
    entries = (
        element("span", element("i", "", f"key part {status}") + f" {escape(words)}")
        for status, words in _COVERAGE_WORDS.items()
        if status in COVERAGES
    )
    return element("div", "Coverage:" + "".join(entries), "scope legend")


def draw_metrics(coverage: pd.DataFrame) -> str:
    """One target's coverage, metric by metric."""
    head = [heading("Contract metric"), heading("Coverage"), heading("Native series", "or the reason")]
    rows: list[str] = []
    for component, metrics in coverage.groupby("component", sort=False):
        rows.append(element("tr", element("th", escape(str(component)), colspan="3", scope="colgroup"), "group"))
        rows.extend(_metric_row(record) for record in records(metrics))
    return grid("metrics", head, rows)


def _metric_row(record: Record) -> str:
    native, status = record["native"], record["status"]
    known = [element("code", escape(native))] if native else []
    texts = [display.as_sentence(record[part]) for part in ("reason", "zero") if record[part]]
    said = [element("span", escape(" ".join(texts)), "quiet")] if texts else []
    cells = [
        element("th", element("code", escape(record["metric"])), scope="row"),
        cell("Coverage", element("span", escape(_COVERAGE_WORDS[status]), f"value coverage {status}")),
        cell("Native series", *((known + said) or [element("span", ABSENT, "quiet")])),
    ]
    return element("tr", "".join(cells))


def fleet_rows(fleet: pd.DataFrame, shown: Sequence[Shown]) -> pd.DataFrame:
    """The fleet for a file: the labels of each deployment, then its figures."""
    labels = pd.DataFrame([{**dict(one.deployment.labels())} for one in shown], index=[one.name for one in shown])
    return labels.join(fleet).rename_axis("deployment").reset_index()
