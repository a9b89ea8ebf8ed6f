"""Every derived figure equals what a real Prometheus computes from the same samples."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from servescope.collector.figures.rates import read_recent
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.contract.expressions import (
    Difference,
    Expression,
    FractionAbove,
    Level,
    Quantile,
    Ratio,
    Vector,
    increase,
    level,
    rate,
)
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, Identity
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Series, Snapshot, Window, make_labels
from servescope.contract.types import Figure
from servescope.increments.extrapolation import LOOKBACK_MS, WindowBounds
from servescope.increments.extrapolation import Range as TimeRange
from servescope.increments.readings import WindowReadings, compute, evaluate
from tests.collector.support.replay import Figures, replay
from tests.support.differential import (
    LONGEST_INTERVAL_MS,
    Comparison,
    Frozen,
    Named,
    Scenario,
    ask,
    compare_at,
    figures,
    flipped_values,
    instants,
    label,
    play,
    read,
    without,
)
from tests.support.fake_targets import FakeTarget, Incident
from tests.support.prometheus import running

pytestmark = pytest.mark.proof

SCENARIO_SECONDS = 56.0
WINDOW = "10s"
WINDOW_MS = 10_000
OTHER_WINDOWS = {"3s": 3_000, "27s": 27_000}
ENOUGH = 5_000

_V1 = {"model_name": "llama-70b", "deployment_id": "chat-v1", "inference_stack": "v1"}
_V2 = {
    "model_name": "llama-70b",
    "deployment_id": "chat-v2",
    "inference_stack": "v2",
    "environment": "production",
    "rollout_phase": "promoting",
}
_IDLE = Incident(39, 54, idle=True)
_PROMOTED = Incident(45, rollout_phase="stable")


def _target(
    name: str, identity: Mapping[str, str], role: str, seed: int, *incidents: Incident, **known: Any
) -> FakeTarget:
    return FakeTarget(name, Identity(**identity, replica=name, role=role), seed, incidents, gpu_errors=True, **known)


def _targets() -> dict[str, list[FakeTarget]]:
    """The scenario: what each deployment's targets go through, in seconds since the first scrape."""
    return {
        "v1": [
            _target(
                "v1-0", _V1, "aggregated", 10, _IDLE,
                Incident(8, restart=True), Incident(9, restart=True), Incident(20, 30, missing="*", share=0.03),
            ),
            _target(
                "v1-1", _V1, "aggregated", 11, _IDLE,
                Incident(13, 16, answer="slow"), Incident(26, 28, answer="500"), Incident(33, 33.6, answer="closed"),
            ),
            _target(
                "v1-2", _V1, "aggregated", 12, _IDLE,
                Incident(21, 25, answer="closed"), Incident(25, restart=True),
                Incident(30, 37, answer="500", share=0.4),
            ),
            _target("v1-3", _V1, "aggregated", 13, _IDLE, known=((10, 30),)),
        ],
        "v2": [
            _target(
                "v2-0", _V2, "prefill", 20, _PROMOTED,
                Incident(0, 14, missing="spec_decode*"), Incident(34, 99, missing="spec_decode*"),
                Incident(0, 9, missing="gpu_*"), Incident(22, 30, missing="*_bucket", share=0.1),
            ),
            _target(
                "v2-1", _V2, "decode", 21, _PROMOTED,
                Incident(10, 10.9, answer="garbage"), Incident(18, 19.3, answer="cut"),
                Incident(25, 34, answer="slow", share=0.25),
            ),
            _target("v2-2", _V2, "decode", 22, _PROMOTED, Incident(30, restart=True), known=((0, 12), (32, 99))),
            _target(
                "v2-router", _V2, "router", 23, _PROMOTED,
                Incident(20, 23, missing="router_index*"), Incident(29, restart=True), Incident(36, 40, idle=True),
            ),
            _target("v2-autoscaler", _V2, "autoscaler", 24, _PROMOTED, Incident(24, 27, answer="500")),
        ],
    }  # fmt: skip


SCRAPES = {"v1": ("250ms", "150ms"), "v2": ("300ms", "200ms")}

BEYOND_FIGURES: Mapping[str, tuple[Expression, tuple[str, ...]]] = {
    "increase": (increase("output_tokens_total"), DEPLOYMENT_LABELS),
    "per replica": (rate("output_tokens_total"), ("deployment_id", "replica")),
    "over everything": (rate("output_tokens_total"), ()),
    "harm": (rate("requests_total", outcome=("error", "rejected")), DEPLOYMENT_LABELS),
    "harm share": (
        Ratio(increase("requests_total", outcome=("error", "rejected")), increase("requests_total")),
        ("deployment_id",),
    ),
    "by outcome": (rate("requests_total"), ("deployment_id", "outcome")),
    "slow first tokens": (FractionAbove(0.25, "time_to_first_token_seconds"), DEPLOYMENT_LABELS),
    "no such edge": (FractionAbove(0.26, "time_to_first_token_seconds"), DEPLOYMENT_LABELS),
    "lowest": (Quantile(0.0, "request_duration_seconds"), DEPLOYMENT_LABELS),
    "highest": (Quantile(1.0, "request_duration_seconds"), DEPLOYMENT_LABELS),
    "from edge 0": (Quantile(0.02, "router_candidates"), DEPLOYMENT_LABELS),
    "quantile per replica": (Quantile(0.9, "inter_token_latency_seconds"), ("deployment_id", "replica")),
    "difference": (Difference(level("concurrent_requests"), level("queued_requests")), ("replica",)),
    "one state": (Level("router_index_state", "max", (("state", ("exact",)),)), DEPLOYMENT_LABELS),
    "no environment": (Level("concurrent_requests", "sum", (("environment", ("",)),)), ("deployment_id",)),
}  # fmt: skip


@pytest.fixture(scope="module")
def frozen(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frozen]:
    """The scenario played to a Prometheus, which is then started again over its data with nothing to scrape."""
    folder = tmp_path_factory.mktemp("prometheus")
    play(prometheus, folder, Scenario(_targets(), SCRAPES, SCENARIO_SECONDS, WINDOW))
    with running(prometheus, folder, {}) as server:
        yield read(server, folder)


def test_every_figure_is_what_prometheus_computes(frozen: Frozen) -> None:
    """Same groups, same values, at every instant: over resets, gaps, failures, changing replicas and idle stretches."""
    comparison = Comparison()
    for at_ms in instants(frozen, WINDOW_MS):
        compare_at(comparison, frozen, figures(), at_ms, WINDOW, WINDOW_MS)

    comparison.report("figures")
    assert comparison.values > ENOUGH
    assert not [name for name in FIGURES if name not in comparison.present], "never present"


def test_the_collector_derives_what_prometheus_computes(frozen: Frozen, tmp_path: Path) -> None:
    """The same scrapes as pages through parser, translation, recent scrapes and derivation: the same figures."""
    comparison = Comparison()
    moments = instants(frozen, WINDOW_MS)[::3]
    derived = replay(frozen.windows, moments, tmp_path, window_ms=WINDOW_MS)
    # Where no autoscaler reports replicas, the collector counts its own targets; GPU errors are no metric of our pages.
    left_out = {METRICS["replica_count_by_status"].name, "gpu_error_rate", "gpu_last_error"}
    expressions = {name: asked for name, asked in figures().items() if name not in left_out}
    for at_ms in moments:
        theirs = ask(frozen.prometheus, expressions, at_ms, WINDOW)
        readings = WindowReadings(frozen.windows, at_ms=at_ms, window_ms=WINDOW_MS)
        for name, (expression, by) in expressions.items():
            ours = _by_group(derived[at_ms], FIGURES[name])
            comparison.compare(name, at_ms, ours, theirs[name], flipped_values(expression, readings, by))

    comparison.report("figures of the collector")
    assert comparison.values > ENOUGH / 2


def _by_group(derived: Figures, figure: Figure) -> Vector:
    """One figure of all deployments, by its labels, from keys such as `name{label="value"}`."""
    found: Vector = {}
    for deployment, values in derived.items():
        for key, value in values.items():
            name, _, labels = key.partition("{")
            if name == figure.name:
                pairs = [pair.split("=", 1) for pair in labels.removesuffix("}").split(",") if pair]
                own = [(label, quoted.strip('"')) for label, quoted in pairs]
                found[make_labels((*deployment.labels(), *own))] = value
    return found


def test_other_expressions_and_windows_are_what_prometheus_computes(frozen: Frozen) -> None:
    """What the figures do not use of the algebra agrees as well, and so does a window shorter or longer than usual."""
    comparison = Comparison()
    expressions = {**figures(), **BEYOND_FIGURES}
    for at_ms in instants(frozen, WINDOW_MS)[::5]:
        for window, window_ms in {**OTHER_WINDOWS, WINDOW: WINDOW_MS}.items():
            compare_at(comparison, frozen, expressions, at_ms, window, window_ms)

    comparison.report("other expressions and windows")
    assert comparison.values > ENOUGH
    assert [name for name in BEYOND_FIGURES if name not in comparison.present] == ["no such edge"]


def test_recorded_figures_are_what_servescope_derives(frozen: Frozen) -> None:
    """What the generated rules wrote, second by second, equals servescope's figures, where all scrapes were stored."""
    comparison = Comparison()
    recorded = {figure.record(WINDOW): name for name, figure in FIGURES.items()}
    written: dict[int, dict[str, Vector]] = {}
    for found in frozen.recorded:
        name, group = recorded[label(found, "__name__")], without(found.labels, "__name__")
        for moment, value in zip(found.times, found.values, strict=True):
            written.setdefault(moment, {}).setdefault(name, {})[group] = value
    # The end of Prometheus may have cut the last evaluation short.
    del written[max(written)]
    for at_ms, theirs in written.items():
        quiet = {job for job, spans in frozen.busy.items() if not _is_within(at_ms, spans)}
        readings = WindowReadings(frozen.windows, at_ms=at_ms, window_ms=WINDOW_MS)
        for name, (expression, by) in figures().items():
            ours = _only(compute(expression, readings, by), quiet)
            flipped = flipped_values(expression, readings, by)
            comparison.compare(name, at_ms, ours, _only(theirs.get(name, {}), quiet), flipped)

    comparison.report("recorded figures")
    assert comparison.values > ENOUGH / 20


def _is_within(at_ms: int, spans: NDArray[np.int64]) -> bool:
    return bool(((spans[:, 0] <= at_ms) & (at_ms <= spans[:, 1])).any())


def _only(vector: Vector, stacks: set[str]) -> Vector:
    return {group: value for group, value in vector.items() if dict(group)["inference_stack"] in stacks}


@pytest.fixture(scope="module")
def frozen_3(frozen: Frozen, prometheus_3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frozen]:
    """The same data under a Prometheus 3."""
    folder = tmp_path_factory.mktemp("prometheus-3")
    shutil.copytree(frozen.folder / "data", folder / "data", ignore=shutil.ignore_patterns("lock", "queries.active"))
    with running(prometheus_3, folder, {}) as server:
        yield replace(frozen, prometheus=server)


def test_left_open_figures_are_what_prometheus_3_computes(frozen_3: Frozen) -> None:
    """All figures and the rest of the algebra, with ranges that leave out the sample on their left edge."""
    comparison = Comparison()
    expressions = {**figures(), **BEYOND_FIGURES}
    for at_ms in instants(frozen_3, WINDOW_MS)[::3]:
        compare_at(comparison, frozen_3, expressions, at_ms, WINDOW, WINDOW_MS, "left-open")

    comparison.report("figures over left-open ranges")
    assert comparison.values > ENOUGH


def test_every_series_is_prometheus_to_the_bit(frozen: Frozen) -> None:
    """Before anything is summed there is no rounding to differ in: rates from the recent scrapes, series by series."""
    _compare_series(frozen, "closed")


def test_every_left_open_series_is_prometheus_3_to_the_bit(frozen_3: Frozen) -> None:
    """The same with ranges that leave out the sample on their left edge."""
    _compare_series(frozen_3, "left-open")


def _compare_series(frozen: Frozen, bounds: WindowBounds) -> None:
    recents = [_recent(window) for window in frozen.windows]
    names = sorted({series.name for window in frozen.windows for series in window.series if _is_counter(series)})
    # A rate has no name: a label keeps them apart, so that one query is enough for all.
    asked = " or ".join(f'label_replace(rate({name}[{WINDOW}]), "metric", "{name}", "", "")' for name in names)
    compared, differences = 0, []
    for at_ms in instants(frozen, WINDOW_MS)[::2]:
        within = TimeRange(at_ms, WINDOW_MS, bounds)
        rates = read_recent(recents, within).changes.rates(within).tolist()
        rows = [series for recent in recents for series in recent.rows]
        ours = {
            series: rate
            for series, rate in zip(rows, rates, strict=True)
            if series is not None and rate == rate and _is_counter(series)
        }
        theirs = {}
        for point in frozen.prometheus.query(asked, at_ms=at_ms):
            labels = without(point.labels, "metric", "instance", "job")
            theirs[Series(dict(point.labels)["metric"], labels)] = point.value
        compared += len(ours.keys() | theirs.keys())
        differences += [
            f"{series} at {at_ms}: {ours.get(series)!r}, in Prometheus {theirs.get(series)!r}"
            for series in ours.keys() | theirs.keys()
            if ours.get(series) != theirs.get(series)
        ]

    print(f"\n{bounds}: the rates of {compared} series compared, all bits of each")
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences[:12])
    assert compared > 10 * ENOUGH


def _recent(window: Window) -> RecentScrapes:
    """The window's scrapes, one after the other."""
    recent = RecentScrapes(WINDOW_MS, WINDOW_MS)
    for time_ms, column in zip(window.times.tolist(), window.values.T, strict=True):
        rows = np.flatnonzero(~np.isnan(column))
        series = tuple(window.series[row] for row in rows.tolist())
        recent.append(time_ms, Snapshot(series, column[rows]) if series else None)
    return recent


def _is_counter(series: Series) -> bool:
    return series.name.endswith(("_total", "_count", "_sum", "_bucket"))


def test_a_gauge_is_held_for_five_minutes(frozen: Frozen) -> None:
    """A target that is scraped no more keeps its last value for as long as in Prometheus, to the millisecond."""
    comparison = Comparison()
    gauges: Named = {
        name: (figure.expression, ("replica",))
        for name, figure in FIGURES.items()
        if isinstance(figure.expression, Level)
    }
    for last in {int(window.times[-1]) for window in frozen.windows}:
        for beside in (-1, 0, 1):
            compare_at(comparison, frozen, gauges, last + LOOKBACK_MS + beside, WINDOW, WINDOW_MS)

    comparison.report("held gauges")
    assert comparison.values > ENOUGH / 50


def test_evaluate_is_the_same_as_computing_over_shared_readings(frozen: Frozen) -> None:
    """The two doors to a figure's value agree: alone, or with others at the same instant."""
    at_ms = (frozen.start_ms + frozen.end_ms) // 2
    readings = WindowReadings(frozen.windows, at_ms=at_ms, window_ms=WINDOW_MS)

    for expression, by in figures().values():
        alone = evaluate(expression, frozen.windows, at_ms=at_ms, window_ms=WINDOW_MS, by=by)
        assert alone == compute(expression, readings, by)


def test_the_scenario_took_place(frozen: Frozen) -> None:
    """The samples hold what the comparison is about: it would prove little over an untroubled hour."""
    failed = sum(int(np.isnan(window.values).all(axis=0).sum()) for window in frozen.windows)
    gaps = sum(int((np.diff(window.times) > 3 * LONGEST_INTERVAL_MS).sum()) for window in frozen.windows)
    resets = sum(_resets(window) for window in frozen.windows)
    late = sum(int(np.isnan(window.values[:, :20]).all(axis=1).sum()) for window in frozen.windows)
    idle = [at_ms for at_ms in range(frozen.start_ms, frozen.end_ms, 500) if _is_idle(frozen, at_ms)]
    groups = {
        dict(group)["inference_stack"] + dict(group).get("rollout_phase", "")
        for group in (without(found.labels, "__name__") for found in frozen.recorded)
    }

    print(
        f"\n{failed} failed scrapes, {gaps} absences of a target, {resets} counter resets, {late} series that came late"
    )
    assert failed > 40
    assert gaps >= 1
    assert resets > 500
    assert late > 50
    assert len(idle) > 5
    assert groups == {"v1", "v2promoting", "v2stable"}


def _is_idle(frozen: Frozen, at_ms: int) -> bool:
    """Whether v1 is there and did nothing: a rate of 0, and no share of it."""
    readings = WindowReadings(frozen.windows, at_ms=at_ms, window_ms=WINDOW_MS)
    rates = compute(FIGURES["request_rate"].expression, readings, ("inference_stack",))
    shares = compute(FIGURES["client_abort_share"].expression, readings, ("inference_stack",))
    v1 = (("inference_stack", "v1"),)
    return rates.get(v1) == 0.0 and v1 not in shares


def _resets(window: Window) -> int:
    counters = [
        row for row, series in enumerate(window.series) if series.name.endswith(("_total", "_count", "_bucket"))
    ]
    resets = 0
    for row in window.values[counters]:
        present = row[~np.isnan(row)]
        resets += int((np.diff(present) < 0).sum())
    return resets
