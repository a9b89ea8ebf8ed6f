"""Numbers from traffic on the readiness page: what v1 served, and what v2's autoscaler would have made of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from app.charts.charts import Chart, Line, draw_lines
from app.elements import display
from app.elements.colors import V1, V2
from app.elements.markup import cell, element, grid, heading
from app.elements.plain import escape
from app.selection import TimeRange
from servescope.contract.identity import GROUP_LABELS, OLD_STACK, Deployment
from servescope.migration.advice.advice import ADVICE_TITLES, Advice
from servescope.migration.document.document import Document
from servescope.migration.scaling import TokenScaling
from servescope.migration.traffic.measuring import follow_config
from servescope.migration.traffic.simulation import TargetSimulation, load_of, scaling_for, simulate_target
from servescope.migration.traffic.token_target import TargetOptions, TokenTargets, measure_targets
from servescope.migration.traffic.traffic_reading import find_deployment, read_traffic
from servescope.store.history import History


def list_choices(history: History) -> dict[str, str]:
    """The deployments that traffic may be read of, v1's first: what the page calls each, and its labels."""
    known = sorted({_labels(each): each for each in history.deployments()}.items(),
                   key=lambda pair: (pair[1].inference_stack != OLD_STACK, pair[0]))  # fmt: skip
    return {f"{each.model_name}/{each.deployment_id} ({each.inference_stack})": labels for labels, each in known}


def _labels(deployment: Deployment) -> str:
    pairs = ((label, getattr(deployment, label)) for label in GROUP_LABELS)
    return ",".join(f"{label}={value}" for label, value in pairs if value)


def measure(history: History, labels: str, config: Document, hours: int, now_ms: int) -> TokenTargets:
    """The numbers from the last hours of a deployment; raises ServescopeError where they cannot be made."""
    traffic = read_traffic(history, find_deployment(history, labels), now_ms - hours * 3_600_000, now_ms)
    return measure_targets(traffic, follow_config(TargetOptions(), config))


def simulate(numbers: TokenTargets, target: int, max_replica: int, start_seconds: int) -> TargetSimulation:
    """v2's autoscaler with another target on what was served; initial replicas as v1 had them."""
    load = load_of(numbers.tokens, numbers.traffic.blocks)
    scaling = scaling_for(TokenScaling(max_replica=max_replica), target, numbers.traffic.replicas)
    return simulate_target(load, scaling, replace(numbers.capacity, start_seconds=start_seconds))


def draw_replicas(numbers: TokenTargets, simulation: TargetSimulation) -> Chart:
    """Replicas over time: v1's as observed, v2's as simulated with one target."""
    traffic = numbers.traffic
    span = TimeRange(traffic.start_ms, traffic.end_ms, live=False)
    lines = [
        Line("v1, observed", _series(traffic.blocks, numbers.served.replicas), V1),
        Line("v2, simulated", _series(traffic.blocks, simulation.replicas), V2, (6, 3)),
    ]
    return draw_lines(lines, title="Replicas", unit="replicas", span=span)


def draw_tokens(numbers: TokenTargets, simulation: TargetSimulation) -> Chart:
    """Tokens in flight of a replica over time, by the band's estimate: on v1, and on v2 as simulated."""
    traffic = numbers.traffic
    span = TimeRange(traffic.start_ms, traffic.end_ms, live=False)
    lines = [
        Line("v1, reconstructed", _series(traffic.blocks, numbers.served.tokens_per_replica), V1),
        Line("v2, simulated", _series(traffic.blocks, simulation.tokens_per_replica), V2, (6, 3)),
    ]
    return draw_lines(lines, title="Tokens in flight per replica", unit="tokens", span=span)


def _series(blocks: NDArray[np.int64], values: NDArray[np.float64]) -> pd.Series[float]:
    series: pd.Series[float] = pd.Series(values, index=pd.Index(blocks, name="time_ms"), dtype=float)
    return series


def draw_targets(numbers: TokenTargets, chosen: TargetSimulation) -> str:
    """What v1 did, the targets that were tried, and the one that is chosen on the page, a row each."""
    has_gpus = numbers.served.gpu_hours is not None
    heads = [
        heading("Target", "tokens in flight"), heading("GPU-hours" if has_gpus else "Replica-hours", numeric=True),
        heading("Tokens per replica", "95 % of the time", numeric=True), heading("At the maximum", numeric=True),
        heading("Beyond capacity", "of requests in flight", numeric=True), heading("Caches lost", numeric=True),
    ]  # fmt: skip
    rows = [("as v1 was", numbers.served), ("as chosen here", chosen)]
    rows += [(_mark(numbers, each), each) for each in numbers.simulations]
    return grid("targets", heads, [element("tr", "".join(_cells(*row, has_gpus=has_gpus))) for row in rows])


def _mark(numbers: TokenTargets, simulation: TargetSimulation) -> str:
    return "recommended" if round(simulation.target or 0) == numbers.recommendation.target else ""


def _cells(mark: str, simulation: TargetSimulation, *, has_gpus: bool) -> Iterator[str]:
    name = "v1" if simulation.target is None else display.format_number(simulation.target)
    lower = element("div", escape(mark), "lower") if mark else ""
    yield element("th", escape(name) + lower, scope="row")
    hours = simulation.gpu_hours if has_gpus and simulation.gpu_hours is not None else simulation.replica_hours
    for label, text in (
        ("Hours", display.format_number(hours)), ("Tokens", display.format_number(simulation.most_tokens)),
        ("At the maximum", display.format_share(simulation.at_maximum_share)),
        ("Beyond", display.format_share(simulation.beyond_share)), ("Caches lost", str(simulation.stopped)),
    ):  # fmt: skip
        yield cell(label, text, "", "number")


def draw_advice(advice: Sequence[Advice]) -> str:
    """Whether what v2 adds pays for this traffic, and why."""
    rows = [
        element("tr", element("th", escape(ADVICE_TITLES[each.topic]), scope="row")
                + cell("Answer", element("span", escape(each.answer), "value"))
                + cell("Why", escape(each.text), "".join(element("div", escape(reason)) for reason in each.reasons)))
        for each in advice
    ]  # fmt: skip
    return grid("readiness", [heading("Of v2"), heading("Answer"), heading("Why")], rows)
