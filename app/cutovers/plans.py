"""A plan in words and in HTML: what it compares, what v2 must be proven to be, and its stages."""

from __future__ import annotations

from collections.abc import Sequence

from app.cutovers.self_tests import describe_harm
from app.data import queries
from app.data.queries import Shown
from app.elements import display
from app.elements.markup import cell, element, grid, heading
from app.elements.plain import escape
from servescope.contract.judged import JUDGED
from servescope.contract.limits import describe_band, describe_worse
from servescope.cutover.forecast.duration import MetricForecast, StageForecast
from servescope.cutover.plan.plan import CutoverPlan, MetricPlan
from servescope.judge.drafting import draft_stages


def propose_plan(known: Sequence[Shown]) -> str:
    """The least plan for two deployments of one model on different stacks, with the usual stages."""
    pair = queries.cutover_pair(known)
    v1, v2 = (one.deployment.deployment_id for one in pair) if pair else ("chat-v1", "chat-v2")
    return (
        "# What is compared: every target whose labels are these.\n"
        f'[arms]\nv1 = {{ deployment_id = "{v1}" }}\nv2 = {{ deployment_id = "{v2}" }}\n\n'
        "# v2's share of the requests, stage by stage; the last leaves v1 a holdback as a control.\n"
        f"{draft_stages()}"
    )


def draw_metrics(plan: CutoverPlan) -> str:
    """The metrics of a plan: which of them gate, and within what."""
    heads = [heading("Metric"), heading("Decides"), heading("Must stay", "ignored below")]
    rows = [_metric_row(metric) for metric in plan.metrics]
    return grid("planned", heads, rows)


def _metric_row(metric: MetricPlan) -> str:
    judged = JUDGED[metric.name]
    good = display.describe_better(metric.better, has_margin=metric.margin is not None)
    gates = element("span", metric.role, "quiet" if metric.role == "reported" else "value")
    ignored = describe_worse(metric.name, metric.floor, metric.better) if metric.floor else ""
    cells = [
        element("th", escape(judged.title) + element("div", escape(good), "lower"), scope="row", data_tip=metric.name),
        cell("Decides", gates),
        cell("Must stay", escape(describe_limit(metric)), escape(ignored)),
    ]
    return element("tr", "".join(cells))


def describe_limit(metric: MetricPlan) -> str:
    """What v2 must be proven to be: less than so much worse, or within so much."""
    if metric.margin is None:
        return describe_band(metric.low, metric.high, JUDGED[metric.name].unit)
    return f"less than {describe_worse(metric.name, metric.margin, metric.better)}"


def draw_stages(plan: CutoverPlan) -> str:
    """The stages of the plan."""
    lasting = any(stage.least_hours for stage in plan.stages)
    heads = [heading("Stage"), heading("Share of v2", numeric=True)]
    heads += [heading("Lasts at least", numeric=True)] if lasting else []
    rows = []
    for index, stage in enumerate(plan.stages):
        cells = element("th", str(index + 1), scope="row")
        cells += cell("Share", display.format_planned(stage.share), "", "number")
        if lasting:
            least = display.format_wait(3600 * stage.least_hours) if stage.least_hours else display.ABSENT
            cells += cell("Lasts at least", least, "", "number")
        rows.append(element("tr", cells))
    return grid("stages", heads, rows)


def draw_forecast(stages: Sequence[StageForecast]) -> str:
    """What each stage is expected to settle, metric by metric: how long it takes, what shows, and why some never is."""
    names = list(dict.fromkeys((each.name, each.title) for stage in stages for each in stage.metrics))
    heads = [heading("Metric")]
    heads += [
        heading(f"{display.format_planned(stage.share)} on v2", display.format_replicas(stage.v2_pods), numeric=True)
        for stage in stages
    ]
    rows = [element("tr", element("th", "All required", scope="row") + "".join(_stage_cell(each) for each in stages))]
    for name, title in names:
        found = [next((each for each in stage.metrics if each.name == name), None) for stage in stages]
        rows.append(element("tr", element("th", escape(title), scope="row") + "".join(map(_forecast_cell, found))))
    never = [element("li", escape(display.as_sentence(stage.sentence))) for stage in stages if stage.seconds is None]
    said = element("div", element("ul", "".join(never)), "scope gaps") if never else ""
    return said + grid("forecast", heads, rows)


def _stage_cell(stage: StageForecast) -> str:
    required = [each for each in stage.metrics if each.required]
    if stage.seconds is None:
        known = all(each.known for each in required if each.healthy_seconds is None)
        return cell("All required", element("strong", "never" if known else "not known yet"), "", "number")
    if not required:
        return cell("All required", display.ABSENT, "no metric is required", "number")
    text = f"about {display.format_wait(stage.seconds)}"
    cold = "more than a week" if stage.cold_seconds is None else f"about {display.format_wait(stage.cold_seconds)}"
    said = f"{stage.longest}; {cold} with slow starts or cold caches"
    return cell("All required", element("strong", escape(text)), escape(said), "number")


def _forecast_cell(forecast: MetricForecast | None) -> str:
    if forecast is None:
        return cell("Metric", element("span", display.ABSENT, "absent"), "", "number")
    wait = forecast.healthy_seconds
    settled = "never" if wait is None else f"about {display.format_wait(wait)}"
    found = "nothing found within a day"
    if not forecast.known:
        settled, found = "not known yet", ""
    if forecast.detectable is not None:
        found = f"finds {describe_harm(forecast.name, forecast.detectable)}"
    shown = element("span", escape(settled), data_tip=display.as_sentence(forecast.reason) or None)
    return cell("Metric", shown, escape(found), "number")
