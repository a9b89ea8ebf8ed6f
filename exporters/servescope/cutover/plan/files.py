"""Plans of cutovers as TOML: the least one has arms and a stage, the rest are the documented expectations."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Final, Literal

from servescope.contract import judged
from servescope.contract.identity import IDENTITY_LABELS, Identity
from servescope.cutover.plan.plan import CONFIGURATIONS, LEAST_MARGIN, Arm, CutoverPlan, MetricPlan, Stage
from servescope.errors import ConfigurationError, UsageError
from servescope.settings.tables import REQUIRED, Setting, Table

PRESETS: Final = ("documented", "none")

_PLAN_SETTINGS = (
    Setting("name", "the name of the file"), Setting("preset", '"documented"'), Setting("arms", REQUIRED),
    Setting("stages", REQUIRED), Setting("metrics", "[]"), Setting("alpha_harm", f"{judged.DEFAULT_ALPHA_HARM}"),
    Setting("alpha_health", f"{judged.DEFAULT_ALPHA_HEALTH}"), Setting("holdback", f"{judged.DEFAULT_HOLDBACK}"),
    Setting("calibration", f'"{judged.DEFAULT_CALIBRATION_DAYS}d"'), Setting("configurations", "{}"),
    Setting("checklist", "[]"), Setting("coverage", f"{judged.DEFAULT_COVERAGE}"),
)  # fmt: skip
_ARM_SETTINGS = (Setting("v1", REQUIRED), Setting("v2", REQUIRED))
_STAGE_SETTINGS = (Setting("share", REQUIRED), Setting("least_hours", "0"))
_METRIC_SETTINGS = (
    Setting("name", REQUIRED), Setting("required", ""), Setting("guard", ""), Setting("margin", ""),
    Setting("floor", ""), Setting("low", ""), Setting("high", ""), Setting("edges", "[]"),
)  # fmt: skip

_LARGEST_MARGIN: Final = {"mean": 1.0, "ratio": 0.9, "events": 9.0}
_MOST_STAGES: Final = 100
_MOST_SELECTORS: Final = 1000
_MOST_REQUIRED: Final = 12
"""Each takes a part of `alpha_harm` and has to be proven (docs/adr/0008-guards.md says what that costs)."""


def parse_plan(document: Mapping[str, object], origin: str) -> CutoverPlan:
    """The plan in a TOML document, which errors call `origin`; raises ConfigurationError naming file, key and value."""
    table = Table(document, origin, "")
    table.check_keys([setting.key for setting in _PLAN_SETTINGS])
    for key in ("arms", "stages"):
        if key not in document:
            raise ConfigurationError(f"{origin}: {key!r} is missing, expected {_EXAMPLES[key]}")
    v1, v2 = _read_arms(table.table("arms", _ARM_SETTINGS))
    return CutoverPlan(
        name=table.string("name", PurePath(origin).stem or "cutover"),
        v1=v1,
        v2=v2,
        stages=_read_stages(table),
        metrics=_read_metrics(table),
        alpha_harm=_number(table, "alpha_harm", judged.DEFAULT_ALPHA_HARM, 0.0, 0.5, more=True),
        alpha_health=_number(table, "alpha_health", judged.DEFAULT_ALPHA_HEALTH, 0.0, 0.5, more=True),
        holdback=_number(table, "holdback", judged.DEFAULT_HOLDBACK, 0.0, 0.5),
        calibration_hours=table.duration("calibration", judged.DEFAULT_CALIBRATION_DAYS * 86_400_000) / 3_600_000,
        configurations=_read_configurations(table),
        checklist=tuple(table.strings("checklist", [])),
        coverage=_number(table, "coverage", judged.DEFAULT_COVERAGE, 0.0, 1.0),
    )


_EXAMPLES: Final = {
    "arms": '[arms] with v1 = { deployment_id = "chat-v1" } and v2 = { deployment_id = "chat-v2" }',
    "stages": "at least one [[stages]] with share = 0.25",
}


def preset_metrics() -> tuple[MetricPlan, ...]:
    """The documented expectations, as a plan has them that says nothing of its metrics."""
    return tuple(_default(metric) for metric in judged.JUDGED.values() if metric.preset)


def check_arms(plan: CutoverPlan, identities: Iterable[Identity]) -> None:
    """Raise UsageError unless each arm selects a target that there is, and none of them selects one of the other's."""
    known = tuple(identities)
    both = next((each for each in known if plan.v1.selects(each) and plan.v2.selects(each)), None)
    if both is not None:
        raise UsageError(f"the arms of plan {plan.name!r} overlap: target {both.target_id!r} is in v1 and in v2")
    for arm in (plan.v1, plan.v2):
        if not any(arm.selects(each) for each in known):
            deployments = ", ".join(sorted({repr(each.deployment_id) for each in known})) or "none"
            selectors = " or ".join(_spell(selector) for selector in arm.selectors)
            raise UsageError(
                f"arm {arm.name} of plan {plan.name!r} selects nothing: no target has {selectors}; "
                f"deployments there are: {deployments}"
            )


def _spell(selector: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f'{label} = "{value}"' for label, value in selector.items()) + " }"


# --- Arms and stages --------------------------------------------------------------------------------------------------


def _read_arms(table: Table) -> tuple[Arm, Arm]:
    v1, v2 = (_read_arm(table, name) for name in ("v1", "v2"))
    for one in v1.selectors:
        for other in v2.selectors:
            if one.items() <= other.items() or other.items() <= one.items():
                shared = _spell(max(one, other, key=len))
                raise ConfigurationError(f"{table.origin}: arms: v1 and v2 overlap: what has {shared} is in both")
    return v1, v2


def _read_arm(table: Table, name: Literal["v1", "v2"]) -> Arm:
    value = table.values[name]
    selectors = value if isinstance(value, list) else [value]
    expected = 'labels such as { deployment_id = "chat-v1" }, or a list of them'
    if not selectors or not all(isinstance(each, dict) and each for each in selectors):
        raise table.wrong(name, expected)
    if len(selectors) > _MOST_SELECTORS:
        raise ConfigurationError(
            f"{table.origin}: {table.key(name)}: {len(selectors)} sets of labels, expected at most {_MOST_SELECTORS}"
        )
    read = []
    for number, selector in enumerate(selectors):
        place = Table(
            selector, table.origin, f"{table.key(name)}[{number}]" if isinstance(value, list) else table.key(name)
        )
        place.check_keys(IDENTITY_LABELS)
        read.append({label: place.string(label, None) for label in selector})
    return Arm(name, tuple(read))


def _read_configurations(table: Table) -> dict[str, str]:
    hashes = table.table("configurations", [Setting(name, "") for name in CONFIGURATIONS])
    for name in hashes.values:
        if not re.fullmatch("[0-9a-f]{64}", hashes.string(name, None)):
            raise hashes.wrong(name, "a hash of 64 hexadecimal digits, as `servescope migrate --format json` has it")
    return {name: hashes.string(name, None) for name in hashes.values}


def _read_stages(table: Table) -> tuple[Stage, ...]:
    stages = table.tables("stages", _STAGE_SETTINGS)
    if not stages:
        raise table.wrong("stages", _EXAMPLES["stages"])
    if len(stages) > _MOST_STAGES:
        raise ConfigurationError(f"{table.origin}: {len(stages)} stages, expected at most {_MOST_STAGES}")
    shares: list[float] = []
    read = []
    for stage in stages:
        share = _number(stage, "share", 0.0, 0.0, 1.0, more=True)
        if shares and share <= shares[-1]:
            raise stage.wrong("share", f"a share above that of the stage before, {shares[-1]:g}")
        shares.append(share)
        read.append(Stage(share, _number(stage, "least_hours", 0.0, 0.0, 24.0 * 365)))
    return tuple(read)


# --- Metrics ----------------------------------------------------------------------------------------------------------


def _read_metrics(table: Table) -> tuple[MetricPlan, ...]:
    preset = table.choice("preset", PRESETS, PRESETS[0])
    metrics = {each.name: each for each in preset_metrics()} if preset == PRESETS[0] else {}
    own: set[str] = set()
    for each in table.tables("metrics", _METRIC_SETTINGS):
        name = each.string("name", None)
        if name not in judged.JUDGED:
            near = difflib.get_close_matches(name, judged.JUDGED, n=1)
            raise each.wrong("name", f"{near[0]!r}" if near else f"one of {', '.join(judged.JUDGED)}")
        if name in own:
            raise each.wrong("name", "each metric once")
        own.add(name)
        metrics[name] = _read_metric(each, judged.JUDGED[name])
    if not any(metric.required for metric in metrics.values()):
        raise ConfigurationError(f"{table.origin}: no metric is required: nothing could ever be proven healthy")
    required = [name for name, metric in metrics.items() if metric.required]
    if len(required) > _MOST_REQUIRED:
        raise ConfigurationError(
            f"{table.origin}: {len(required)} metrics are required, expected at most {_MOST_REQUIRED}: set "
            f"required = false on some of {', '.join(required)}"
        )
    return tuple(metrics.values())


def _default(metric: judged.JudgedMetric) -> MetricPlan:
    return MetricPlan(
        metric.name, metric.kind, metric.better, metric.required, metric.margin, metric.floor, metric.low, metric.high,
        guard=metric.guard and not metric.required,
    )  # fmt: skip


def _read_metric(table: Table, metric: judged.JudgedMetric) -> MetricPlan:
    default = _default(metric)
    required = table.boolean("required", default=default.required)
    guard = table.boolean("guard", default=default.guard and not required)
    if required and guard:
        raise table.wrong("guard", "false, or no 'guard', of a metric that is required")
    if metric.kind == "band":
        return _read_band(table, metric, required=required, guard=guard)
    for key in ("low", "high"):
        if key in table.values:
            raise table.wrong(key, f"no {key!r}: {metric.name} has a margin, and only metrics of v2 alone have a band")
    largest = _LARGEST_MARGIN[metric.kind]
    margin = _number(table, "margin", default.margin or 0.0, LEAST_MARGIN, largest)
    floor = _number(table, "floor", min(default.floor or 0.0, margin / 2), 0.0, largest)
    if floor >= margin:
        raise table.wrong("floor", f"a fraction below the margin, {margin:g}")
    edges = _read_edges(table, metric)
    return MetricPlan(metric.name, metric.kind, metric.better, required, margin, floor, None, None, edges, guard)


def _read_band(table: Table, metric: judged.JudgedMetric, *, required: bool, guard: bool) -> MetricPlan:
    for key in ("margin", "floor", "edges"):
        if key in table.values:
            raise table.wrong(key, f"no {key!r}: {metric.name} is judged by its band, from 'low' to 'high'")
    low = _bound(table, "low", metric.low)
    high = _bound(table, "high", metric.high)
    if low is not None and high is not None and low >= high:
        raise table.wrong("low" if "low" in table.values else "high", f"low below high, not {low:g} and {high:g}")
    return MetricPlan(metric.name, "band", None, required, low=low, high=high, guard=guard)


def _read_edges(table: Table, metric: judged.JudgedMetric) -> tuple[float, ...]:
    edges = table.values.get("edges", [])
    good = isinstance(edges, list) and all(
        isinstance(edge, int | float) and not isinstance(edge, bool) and edge > 0 for edge in edges
    )
    has_edges = metric.kind == "mean"
    if not good or (edges and not has_edges):
        expected = "ascending bucket edges above 0" if has_edges else f"no edges: {metric.name} has no histogram"
        raise table.wrong("edges", expected)
    read = tuple(float(edge) for edge in edges) if isinstance(edges, list) else ()
    if list(read) != sorted(set(read)) or len(read) > _MOST_EDGES:
        raise table.wrong("edges", f"at most {_MOST_EDGES} ascending bucket edges")
    return read


_MOST_EDGES: Final = 3


def _bound(table: Table, key: str, default: float | None) -> float | None:
    value = table.values.get(key, default)
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < float("inf")):
        return None if value is None else float(value)
    raise table.wrong(key, "a number")


def _number(table: Table, key: str, default: float, least: float, most: float, *, more: bool = False) -> float:
    """The number at a key, from `least`, or with `more` above it, to `most`."""
    value = table.values.get(key, default)
    good = isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most
    if not good or (more and value == least):
        raise table.wrong(key, f"a number {'above' if more else 'from'} {least:g} to {most:g}")
    return float(value)  # type: ignore[arg-type] # a number, as it is good
