"""`servescope customers document`: what a customer is given to read and to load, made of its policy."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS
from servescope.contract.types import Metric
from servescope.customers.config import find_policy, read_policies
from servescope.customers.documents.bundle import render_alerts, render_dashboard
from servescope.customers.points.naming import (
    INSTANCE_LABELS,
    KEY_LABEL,
    RESOURCE_LABELS,
    SERVICE_INSTANCE,
    SERVICE_NAME,
    WINDOW_LABEL,
    describe_figure,
    describe_metric,
    exported_labels,
    label_name,
    service_name,
)
from servescope.customers.points.quotas import most_series
from servescope.customers.policy.policy import Policy, Pull, Push
from servescope.customers.stored_names import INSTANCE, JOB, StoredNames, names_at, why_no_promql
from servescope.errors import ServescopeError
from servescope.settings.values import format_duration

_MEANINGS = {
    "model_name": "the model that is served",
    "deployment_id": "the deployment",
    "inference_stack": "what serves it",
    "environment": "its environment",
    "rollout_phase": "`promoting` or `stable` while one deployment takes over from another",
    "role": "what the process does: `aggregated`, `prefill`, `decode`, `router`, `autoscaler`, or `auxiliary` where it "
    "is beside these",
    KEY_LABEL: "which key replicas are hashed with: when it changes, so do the names of all replicas, and the former "
    "series end",
    WINDOW_LABEL: "the time that a derived figure is derived over",
}


@dataclass(frozen=True, slots=True)
class Bundle:
    """A dashboard and alerts: the names in them, the destinations that have these, and the end of the files' names."""

    names: StoredNames
    destinations: tuple[str, ...]
    suffix: str

    @property
    def dashboard(self) -> str:
        """The dashboard, which Grafana distinguishes from those of other names."""
        return render_dashboard(self.names, f"{self.names.policy.name}{self.suffix}")

    @property
    def alerts(self) -> str:
        """The rule file."""
        return render_alerts(self.names)


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
    files = {"README.md": render_document(policy)}
    for bundle in make_bundles(policy):
        files |= {f"dashboard{bundle.suffix}.json": bundle.dashboard, f"alerts{bundle.suffix}.yml": bundle.alerts}
    return files


def make_bundles(policy: Policy) -> list[Bundle]:
    """A dashboard with its alerts for each set of names that the policy's destinations have; none without PromQL."""
    alike: dict[tuple[str, str], tuple[StoredNames, list[str]]] = {}
    for destination in _destinations(policy):
        if (names := names_at(policy, destination)) is not None:
            bundle = Bundle(names, (), "")
            alike.setdefault((bundle.dashboard, bundle.alerts), (names, []))[1].append(destination.name)
    return [Bundle(names, tuple(named), f"-{named[0]}" if len(alike) > 1 else "") for names, named in alike.values()]


def render_document(policy: Policy) -> str:
    """The document: metrics, labels, units, how many series they are, how they arrive, and as what they are stored."""
    sections = (_introduction, _metrics, _figures, _labels, _stored, _use)
    return "\n".join((*(line for section in sections for line in section(policy)), ""))


def count_series_of(metric: Metric, policy: Policy) -> int:
    """How many series one replica, or one deployment, has of a metric, with the edges and label values of the catalog.

    Labels whose values the catalog does not list count once.
    """
    series = len(metric.edges or ()) + 3 if metric.kind == "histogram" else 1
    for label in metric.own_labels:
        if label in policy.labels:
            series *= len(metric.label_values.get(label, ("",)))
    return series


def _introduction(policy: Policy) -> Iterator[str]:
    yield f"# Metrics for {policy.name}"
    yield ""
    ids = sorted({each.deployment_id for each in policy.deployments})
    whose = f"the deployments {_listed(ids)}" if "deployment_id" in policy.labels else "your deployments"
    yield f"Of {whose}, one point every {format_duration(policy.interval_ms)}."
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
        labels = ", ".join(f"`{label_name(policy, label)}`" for label in metric.own_labels if label in policy.labels)
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
    labels = _all_labels(policy)
    by_otlp = any(push.protocol != "remote-write" for push in policy.push)
    if labels or by_otlp:
        yield "## Labels"
        yield ""
    if labels:
        yield "| label | meaning |"
        yield "|---|---|"
        yield from (f"| `{label_name(policy, label)}` | {_meaning(policy, label)} |" for label in labels)
        yield ""
    if by_otlp:
        services = sorted({service_name(policy, dict(each.labels())) for each in policy.deployments})
        yield f"The resource in OTLP has `{SERVICE_NAME}` in any case: {_listed(services)}."
        if policy.resolution == "replica":
            yield f"Of a replica's metrics it has `{SERVICE_INSTANCE}`, with the replica in it."
        yield ""


def _meaning(policy: Policy, label: str) -> str:
    meaning = _MEANINGS.get(label, f"of metrics by {label}")
    if label == "replica":
        hashed = ", hashed with a key that is yours alone" if policy.replicas == "hashed" else ""
        meaning = f"the replica{hashed}"
    return f"{meaning} (of the resource in OTLP)" if label in RESOURCE_LABELS else meaning


def _stored(policy: Policy) -> Iterator[str]:
    for bundle in make_bundles(policy):
        rows = [(sent, stored) for sent, stored in _stored_as(bundle.names) if f"`{sent}`" != stored]
        if bundle.names.translation is None or not rows:
            continue
        yield f"## Names at {_listed(bundle.destinations)}"
        yield ""
        yield f"Stored by {bundle.names.translation.title}; what is not listed has the name that is sent."
        yield ""
        yield "| sent | stored |"
        yield "|---|---|"
        yield from (f"| `{sent}` | {stored} |" for sent, stored in rows)
        yield ""
        if bundle.names.has_jobs:
            yield "What is not on series can be promoted to them, by `promote_resource_attributes` in Prometheus."
            yield ""


def _stored_as(names: StoredNames) -> Iterator[tuple[str, str]]:
    """Each name that is sent, and what is stored of it."""
    policy = names.policy
    for name in policy.metrics:
        yield describe_metric(policy, name).name, f"`{names.series(name)}`"
    for name in policy.figures:
        yield describe_figure(policy, name).name, f"`{names.figure(name)}`"
    labels = _all_labels(policy)
    services = {SERVICE_NAME: JOB} if names.has_jobs else {}
    services |= {SERVICE_INSTANCE: INSTANCE} if names.has_jobs and {*labels} & {*INSTANCE_LABELS} else {}
    yield from ((sent, f"`{stored}`") for sent, stored in services.items())
    for label in labels:
        if (sent := label_name(policy, label)) not in services:
            yield sent, f"`{names.label(label)}`" if names.has(label) else "in `target_info`, not on series"


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
    for bundle in make_bundles(policy):
        files = f"`dashboard{bundle.suffix}.json` and `alerts{bundle.suffix}.yml`"
        yield f"- {files} have the names that are stored at {_listed(bundle.destinations)}."
    for destination in _destinations(policy):
        if why := why_no_promql(destination):
            yield f"- There is no dashboard for `{destination.name}`, as {why}; it has the names of the tables above."


def _destinations(policy: Policy) -> tuple[Push | Pull, ...]:
    return (*policy.push, *([policy.pull] if policy.pull else []))


def _all_labels(policy: Policy) -> list[str]:
    """All labels that are exported, by their names in the contract."""
    labels = [*exported_labels(policy)]
    labels += [KEY_LABEL] if policy.replicas == "hashed" and "replica" in labels else []
    return labels + ([WINDOW_LABEL] if policy.figures else [])


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
