"""`servescope customers document`: what a customer is given to read and to load, made of its policy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS
from servescope.contract.types import Metric
from servescope.customers.bundle import render_alerts, render_dashboard
from servescope.customers.config import find_policy, read_policies
from servescope.customers.naming import (
    KEY_LABEL,
    RESOURCE_LABELS,
    WINDOW_LABEL,
    describe_figure,
    describe_metric,
    exported_labels,
    label_name,
)
from servescope.customers.policy import Policy
from servescope.customers.quotas import most_series
from servescope.errors import ServescopeError
from servescope.settings.values import format_duration

_MEANINGS = {
    "model_name": "the model that is served",
    "deployment_id": "the deployment",
    "inference_stack": "what serves it",
    "environment": "its environment",
    "rollout_phase": "`promoting` or `stable` while one deployment takes over from another",
    "role": "what the process does: `aggregated`, `prefill`, `decode`, `router` or `autoscaler`",
    KEY_LABEL: "which key replicas are hashed with: when it changes, so do the names of all replicas, and the former "
    "series end",
    WINDOW_LABEL: "the time that a derived figure is derived over",
}


def document(arguments: argparse.Namespace) -> int:
    """Print a customer's document, or write all that it is given; raises ServescopeError."""
    policy = find_policy(read_policies(arguments.config), arguments.customer)
    if arguments.output is None:
        sys.stdout.write(render_document(policy))
        return 0
    folder: Path = arguments.output
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in render_files(policy).items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise ServescopeError(f"{folder}: cannot be written: {error.strerror}") from error
    return 0


def render_files(policy: Policy) -> dict[str, str]:
    """What a customer is given, by the names of the files."""
    return {
        "README.md": render_document(policy),
        "alerts.yml": render_alerts(policy),
        "dashboard.json": render_dashboard(policy),
    }


def render_document(policy: Policy) -> str:
    """The document: metrics, labels, units, how many series they are, and how they arrive."""
    return "\n".join(
        (*_introduction(policy), *_metrics(policy), *_figures(policy), *_labels(policy), *_use(policy), "")
    )


def count_series_of(metric: Metric, policy: Policy) -> int:
    """How many series one replica, or one deployment, has of a metric, with the edges and label values of the catalog.

    Labels whose values the catalog does not list count once.
    """
    series = len(metric.edges or ()) + 3 if metric.kind == "histogram" else 1
    for label in metric.labels:
        if label in policy.labels:
            series *= len(metric.label_values.get(label, ("",)))
    return series


def _introduction(policy: Policy) -> Iterator[str]:
    ids = sorted({each.deployment_id for each in policy.deployments})
    yield f"# Metrics for {policy.name}"
    yield ""
    named = ", ".join(f"`{each}`" for each in ids)
    yield f"Of the deployments {named}, one point every {format_duration(policy.interval_ms)}."
    ways = [f"by push to `{push.place}` ({push.protocol}, {push.temporality})" for push in policy.push]
    if policy.pull is not None:
        ways.append(
            f"on the page `/customers/{policy.name}/metrics`, with your bearer token, at most "
            f"{policy.pull.requests_per_minute} requests a minute"
        )
    yield f"They arrive {'; '.join(ways)}."
    per = sum(count_series_of(METRICS[name], policy) for name in policy.metrics)
    cost = f"About {per} series for each {policy.resolution}" if per else "No series of metrics"
    figures = f", and {len(policy.figures)} derived figures for each deployment" if policy.figures else ""
    yield f"{cost}{figures}; a histogram has one for each bucket, its sum and its count, as Prometheus counts them."
    minute = 60_000 / policy.interval_ms
    yield f"Each series has {minute:g} sample{'' if minute == 1 else 's'} a minute."
    if (quota := most_series(policy)) is not None:
        yield f"At most {quota} series are sent; what is beyond is left out, and those that are sent stay the same."
    yield ""


def _metrics(policy: Policy) -> Iterator[str]:
    if not policy.metrics:
        return
    yield "## Metrics"
    yield ""
    yield f"| metric | type | unit | labels | series for each {policy.resolution} | meaning |"
    yield "|---|---|---|---|---|---|"
    for name in policy.metrics:
        metric, shown = METRICS[name], describe_metric(policy, name)
        labels = ", ".join(f"`{label_name(policy, label)}`" for label in metric.labels if label in policy.labels)
        yield (
            f"| `{shown.name}` | {shown.kind} | {metric.unit} | {labels} | {count_series_of(metric, policy)} "
            f"| {metric.help} Absent: {metric.absent}. |"
        )
    yield ""


def _figures(policy: Policy) -> Iterator[str]:
    if not policy.figures:
        return
    yield "## Derived figures"
    yield ""
    window = label_name(policy, WINDOW_LABEL)
    yield f"Gauges of a deployment, each over the time that `{window}` names; do not average them."
    yield ""
    yield "| figure | unit | labels | meaning |"
    yield "|---|---|---|---|"
    for name in policy.figures:
        figure = FIGURES[name]
        labels = ", ".join(f"`{label_name(policy, label)}`" for label in figure.by)
        idle = "0 while idle" if figure.idle == "zero" else "absent while idle"
        yield f"| `{describe_figure(policy, name).name}` | {figure.unit} | {labels} | {figure.help} {idle}. |"
    yield ""


def _labels(policy: Policy) -> Iterator[str]:
    labels = [*exported_labels(policy)]
    hashed = policy.replicas == "hashed" and "replica" in labels
    labels += [KEY_LABEL] if hashed else []
    labels += [WINDOW_LABEL] if policy.figures else []
    if not labels:
        return
    yield "## Labels"
    yield ""
    yield "| label | meaning |"
    yield "|---|---|"
    for label in labels:
        replica = "the replica, hashed with a key that is yours alone" if hashed else "the replica"
        meaning = replica if label == "replica" else _MEANINGS.get(label, f"of metrics by {label}")
        where = " (of the resource in OTLP)" if label in RESOURCE_LABELS else ""
        yield f"| `{label_name(policy, label)}` | {meaning}{where} |"
    yield ""


def _use(policy: Policy) -> Iterator[str]:
    yield "## Reading them"
    yield ""
    yield "- Divide sums of counters; never average ratios. A quantile is computed of summed buckets."
    if any(push.temporality == "cumulative" for push in policy.push) or policy.pull is not None:
        yield "- Counters count from their start time; when a replica restarts, they begin anew."
    if any(push.temporality == "delta" for push in policy.push):
        yield "- Delta points are what was counted since the point before: add them up."
    yield "- After an outage of the receiver what it missed is sent in order; a delivery statement names gaps."
    yield (
        "- `gen_ai.*` metrics are pushed by the serving processes themselves, of other requests than these; do not "
        "compare them series by series."
    )
    yield (
        "- `dashboard.json` and `alerts.yml` have the names that the page and remote write have, and OTLP in a backend "
        "that adds no units to names."
    )
