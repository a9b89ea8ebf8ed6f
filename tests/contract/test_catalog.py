"""The catalog: the documented contract is in it, its records fit together, and nothing of it is written elsewhere."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from servescope.contract import bounds
from servescope.contract.bands import EFFICIENCY_BAND, SKEW_BAND, SPECULATION_BAND
from servescope.contract.bounds import BOUNDS
from servescope.contract.expressions import (
    Difference,
    Expression,
    Increase,
    Level,
    Matchers,
    Quantile,
    Rate,
    Ratio,
    leaves,
)
from servescope.contract.figures import FIGURES, GROUPS, figure_key
from servescope.contract.identity import IDENTITY_LABELS
from servescope.contract.metrics import METRICS, OUTCOMES, PROCESS_RATIOS, REPLICA_STATUSES
from servescope.contract.own_metrics import own_family
from servescope.contract.types import Band, Bound, Metric
from tests.conftest import ROOT

DOCUMENTED = (
    "tps_per_request", "input_tokens", "output_tokens", "input_tokens_per_request", "output_tokens_per_request",
    "concurrent_requests", "speculation_rate", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos", "cpu_usage", "memory_usage", "gpu_usage", "gpu_memory_usage",
    "replica_count_by_status", "kv_cache_hit_rate", "kv_cache_hit_rate_skew", "kv_cache_best_prefix_hit_rate",
    "kv_cache_hit_rate_efficiency", "autoscaler_in_flight_tokens", "autoscaler_avg_in_flight_tokens",
    "autoscaler_avg_num_requests", "autoscaler_avg_num_workers", "autoscaler_desired_scale",
    "autoscaler_policy_desired_scale", "autoscaler_rounded_desired_scale",
)  # fmt: skip
FOR_A_CUTOVER = (
    "requests_started_total", "requests_total", "time_to_first_token_seconds", "time_per_output_token_seconds",
    "request_duration_seconds", "inter_token_latency_seconds", "queued_requests", "kv_cache_usage",
    "preemptions_total", "decode_seconds_total", "kv_cache_eligible_tokens_total",
    "kv_cache_predicted_tokens_total", "kv_cache_reused_tokens_total", "kv_cache_best_tokens_total",
    "router_unreported_decisions_total",
)  # fmt: skip
HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
NAME = re.compile(r"[a-z][a-z0-9_]*")


def test_every_documented_metric_is_in_the_catalog() -> None:
    """The documented names are kept; a counter's exposition adds `_total`."""
    assert set(DOCUMENTED) - {metric.documented for metric in METRICS.values()} == set()
    assert set(FOR_A_CUTOVER) - METRICS.keys() == set()


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS.keys())
def test_a_metric_is_well_formed(metric: Metric) -> None:
    """Counters, and nothing else, end in `_total`; histograms, and nothing else, have edges, ascending and finite."""
    assert NAME.fullmatch(metric.name)
    assert not metric.name.endswith(HISTOGRAM_SUFFIXES)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert (metric.unit == "seconds") == ("_seconds" in metric.name)
    assert not set(metric.labels) & {*IDENTITY_LABELS, "le"}
    assert metric.label_values.keys() <= set(metric.labels)
    assert metric.help.endswith(".")
    assert not metric.absent.endswith(".")
    if metric.kind == "histogram":
        assert metric.edges
        assert list(metric.edges) == sorted(set(metric.edges))
        assert all(math.isfinite(edge) for edge in metric.edges)
    else:
        assert metric.edges is None


def test_the_closed_sets_of_labels_are_the_contract_s() -> None:
    """An outcome and a replica's status are one of those the contract names."""
    assert METRICS["requests_total"].label_values["outcome"] == OUTCOMES
    assert METRICS["replica_count_by_status"].label_values["status"] == REPLICA_STATUSES


def test_the_ratios_of_a_process_are_gauges_with_a_figure_of_the_same_name() -> None:
    """The collector derives for the deployment what an instrument exposes of its process."""
    assert {METRICS[name].kind for name in PROCESS_RATIOS} == {"gauge"}
    assert set(PROCESS_RATIOS) <= FIGURES.keys()


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_reads_metrics_of_the_catalog(name: str) -> None:
    """Counters and histograms by their increase, gauges by their value, and only labels that exist."""
    for kind, metric_name, where in _reads(FIGURES[name].expression):
        metric = METRICS[metric_name]
        assert metric.kind == kind
        for label, values in where:
            assert set(values) <= set(metric.label_values[label])
    read = [METRICS[metric_name] for _, metric_name, _ in _reads(FIGURES[name].expression)]
    assert all(set(FIGURES[name].by) <= set(metric.labels) for metric in read)
    assert not leaves(FIGURES[name].expression) & set(PROCESS_RATIOS)


def _reads(expression: Expression) -> Iterator[tuple[str, str, Matchers]]:
    """What an expression reads: the kind a metric must have for it, its name, and the labels asked for."""
    match expression:
        case Rate(name, where) | Increase(name, where):
            family = name.removesuffix("_sum").removesuffix("_count")
            yield ("counter", name, where) if name == family else ("histogram", family, where)
        case Level(name, _, where):
            yield "gauge", name, where
        case Quantile(_, name):
            yield "histogram", name, ()
        case Ratio(left, right) | Difference(left, right):
            yield from _reads(left)
            yield from _reads(right)
        case _:
            raise AssertionError(expression)


def test_no_two_figures_share_a_name() -> None:
    """Neither on the collector's page, where contract metrics are too, nor among the recorded series."""
    exposed = [figure.exposed for figure in FIGURES.values() if figure.exposed]
    recorded = [figure.record() for figure in FIGURES.values()]

    assert len(set(exposed)) == len(exposed)
    assert len(set(recorded)) == len(recorded)
    assert set(exposed) & (METRICS.keys() - set(PROCESS_RATIOS)) == set()


def test_a_recorded_name_says_level_metric_and_operation() -> None:
    """With the window, where there is one."""
    assert FIGURES["kv_cache_hit_rate"].record("5m") == "deployment:kv_cache_hit_rate:ratio_rate5m"
    assert FIGURES["concurrent_requests"].record("5m") == "deployment:concurrent_requests:sum"
    for figure in FIGURES.values():
        assert re.fullmatch(r"deployment:[a-z0-9_]+:(sum|avg|max|[a-z0-9_]*rate30s)", figure.record("30s"))


@pytest.mark.parametrize("name", FIGURES)
def test_a_ratio_is_absent_when_idle_and_a_rate_is_zero(name: str) -> None:
    """The record of an idle deployment agrees with the expression."""
    figure = FIGURES[name]

    assert (figure.idle == "absent") == isinstance(figure.expression, Ratio | Quantile)
    assert figure.help.endswith(".")
    assert figure.group in GROUPS


def test_a_figure_s_key_carries_its_labels() -> None:
    """The bare name without any."""
    assert figure_key("request_rate", {}) == "request_rate"
    assert figure_key("replica_count_by_status", {"status": "active"}) == 'replica_count_by_status{status="active"}'


@pytest.mark.parametrize(
    ("band", "edge", "below", "at", "above"),
    [
        (SPECULATION_BAND, 0.40, "critical", "warning", "warning"),
        (SPECULATION_BAND, 0.80, "warning", "good", "good"),
        (SKEW_BAND, -0.15, "critical", "warning", "warning"),
        (SKEW_BAND, -0.05, "warning", "good", "good"),
        (SKEW_BAND, 0.15, "good", "good", "warning"),
        (SKEW_BAND, 0.30, "warning", "warning", "critical"),
        (EFFICIENCY_BAND, 0.90, "warning", "good", "good"),
    ],
)
def test_a_band_s_edge_belongs_to_the_side_it_says(band: Band, edge: float, below: str, at: str, above: str) -> None:
    """Lower edges are inclusive; the normal skew includes both of its ends."""
    values = (math.nextafter(edge, -math.inf), edge, math.nextafter(edge, math.inf))

    assert tuple(band.judge(value).status for value in values) == (below, at, above)


@pytest.mark.parametrize("band", [SPECULATION_BAND, SKEW_BAND, EFFICIENCY_BAND])
def test_a_band_judges_every_value_and_says_what_to_do(band: Band) -> None:
    """Far outside too; nothing is clamped."""
    assert band.judge(-math.inf) == band.lowest
    assert band.judge(math.inf) == band.steps[-1].rating
    assert [step.start for step in band.steps] == sorted(step.start for step in band.steps)
    assert all(step.rating.advice.endswith(".") for step in band.steps)


def test_every_bound_is_among_those_an_operator_can_replace() -> None:
    """By its name in lower case."""
    constants = {name: value for name, value in vars(bounds).items() if isinstance(value, Bound)}

    assert {name.lower(): bound for name, bound in constants.items()} == BOUNDS


FUNCTIONS_OF_PROMQL = re.compile(r"\b(?:rate|increase|histogram_quantile|(?:sum|avg|max) by)\s*\(")
KNOWN_NAMES = {
    name
    for metric in METRICS.values()
    for name in (metric.name, *(f"{metric.name}{suffix}" for suffix in HISTOGRAM_SUFFIXES))
}
# Of vLLM's API server, which the emulator can look like.
OTHERS_NAMES = {"http_requests_total"}
# Of instruments about themselves, which no collector needs.
INSTRUMENTS_NAMES = {"servescope_instrument_errors_total", "servescope_group_processes_ended_total"}
METRIC_LIKE = re.compile(r"[a-z][a-z0-9_]*_(?:total|bucket)")
THRESHOLDS = {abs(step.start) for figure in FIGURES.values() if figure.band is not None for step in figure.band.steps}
# Where they belong: the records, and their compilers.
HOME = (
    *(
        f"exporters/servescope/contract/{name}.py"
        for name in ("metrics", "figures", "bands", "own_metrics", "expressions")
    ),
    "exporters/servescope/alerting/rules/records.py",
    "dashboards/panels/conditions.py",
    "dashboards/panels/composed.py",
)


def slips(source: str) -> list[str]:
    """What a module must not write: PromQL, unknown metric names, comparisons with thresholds."""
    tree = ast.parse(source)
    docstrings = _docstrings(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings:
            if FUNCTIONS_OF_PROMQL.search(node.value):
                found.append(f"line {node.lineno}: PromQL {node.value!r}, to be compiled from the catalog")
            if METRIC_LIKE.fullmatch(node.value) and not _is_known(node.value):
                found.append(f"line {node.lineno}: no metric {node.value!r} in the catalog")
        if isinstance(node, ast.Compare):
            found.extend(
                f"line {node.lineno}: {ast.unparse(node)!r} compares with a band's threshold, to be judged by the band"
                for operand in (node.left, *node.comparators)
                if _number(operand) in THRESHOLDS
            )
    return found


def _is_known(name: str) -> bool:
    return name in KNOWN_NAMES | OTHERS_NAMES | INSTRUMENTS_NAMES or own_family(name) is not None


def _number(node: ast.expr) -> float | None:
    operand = node.operand if isinstance(node, ast.UnaryOp) else node
    return operand.value if isinstance(operand, ast.Constant) and isinstance(operand.value, float) else None


def _docstrings(tree: ast.Module) -> set[ast.expr]:
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, _DOCUMENTED_NODES))
    return {body[0].value for body in bodies if body and isinstance(body[0], ast.Expr)}


_DOCUMENTED_NODES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def _modules() -> list[Path]:
    folders = ("exporters", "app", "alerts", "dashboards")
    paths = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in paths if str(path.relative_to(ROOT)) not in HOME]


@pytest.mark.slow
def test_nothing_of_the_catalog_is_written_elsewhere() -> None:
    """No formula, no unknown metric name and no threshold; a look-up such as `METRICS["…"]` is how to name a metric."""
    found = {str(path.relative_to(ROOT)): slips(path.read_text(encoding="utf-8")) for path in _modules()}

    assert {path: slipped for path, slipped in found.items() if slipped} == {}
