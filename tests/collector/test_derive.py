"""The figures derived from recent scrapes and from windows."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from servescope.collector.figures.derive import Derivation, Deriver, Members, count_targets, derive_figures
from servescope.collector.figures.grouping import Assembly, Layout
from servescope.collector.figures.rates import read_recent
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.contract.expressions import Difference, Expression, FractionAbove, Quantile, increase, level, rate
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, Identity
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Labels, Sample, Snapshot, make_labels
from servescope.contract.types import Metric
from servescope.increments.extrapolation import Range, WindowBounds
from servescope.increments.program import Program, bucket_quantiles
from servescope.increments.readings import bucket_quantile, evaluate

NOW = 1_800_000_000_000
WINDOW_MS = 300_000
INTERVAL_MS = 15_000
IDENTITY = Identity("llama", "chat", "v1", environment="test", replica="r0")


def sample(name: str, value: float, identity: Identity = IDENTITY, **extra: str) -> Sample:
    return Sample(name, make_labels((*identity.labels(), *extra.items())), value)


Values = dict[tuple[str, Labels], float]


def label_sets(metric: Metric) -> list[dict[str, str]]:
    """Every combination of the metric's own labels; they are closed sets, or "x"."""
    closed = [metric.label_values.get(label, ("x",)) for label in metric.labels]
    return [dict(zip(metric.labels, values, strict=True)) for values in product(*closed)]


def grow(values: Values, metric: Metric, extra: dict[str, str], identity: Identity, chance: random.Random) -> None:
    """One more scrape's worth of a metric."""
    if metric.kind == "histogram":
        parts: tuple[tuple[str, dict[str, str], int], ...]
        parts = (("_bucket", {"le": "1.0"}, 3), ("_bucket", {"le": "+Inf"}, 5), ("_sum", {}, 9), ("_count", {}, 5))
        for suffix, labels, amount in parts:
            key = sample(f"{metric.name}{suffix}", 0.0, identity, **extra, **labels)[:2]
            values[key] = values.get(key, 0.0) + amount * chance.randrange(1, 3)
    else:
        key = sample(metric.name, 0.0, identity, **extra)[:2]
        values[key] = chance.random() + (values.get(key, 0.0) if metric.kind == "counter" else 0.0)


def filled_recent(identity: Identity, *, seed: int = 1) -> RecentScrapes:
    """Forty scrapes of every metric of the contract, with a restart and a failed scrape among them."""
    chance = random.Random(seed)
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS)
    values: Values = {}
    for step in range(40):
        if step == 30:
            values.clear()
        for metric in METRICS.values():
            for extra in label_sets(metric):
                grow(values, metric, extra, identity, chance)
        scrape = [Sample(name, labels, value) for (name, labels), value in values.items()]
        recent.append(NOW + step * INTERVAL_MS, None if step == 35 else Snapshot.of(scrape))
    return recent


def test_every_figure_is_the_evaluated_expression() -> None:
    """All figures of the catalog are derived, per value of their extra labels, exactly as `evaluate` has them."""
    windows = [
        filled_recent(IDENTITY).window(),
        filled_recent(Identity("llama", "chat", "v1", "test", replica="r1"), seed=2).window(),
    ]
    at_ms = NOW + 39 * INTERVAL_MS + 7
    figures = derive_figures(windows, at_ms=at_ms, window_ms=WINDOW_MS).figures

    for figure in FIGURES.values():
        by = (*DEPLOYMENT_LABELS, *figure.by)
        expected = evaluate(figure.expression, windows, at_ms=at_ms, window_ms=WINDOW_MS, by=by)
        keys = [key for key in figures if key.partition("{")[0] == figure.name]
        assert sorted(figures[key] for key in keys) == sorted(expected.values())
    assert {key.partition("{")[0] for key in figures} == set(FIGURES)
    assert 'replica_count_by_status{status="starting"}' in figures


def test_exposed_figures_bear_the_deployment_and_the_window() -> None:
    """On /metrics a figure has its exposed name, the deployment's labels, its own, and the window."""
    derivation = derive_figures([filled_recent(IDENTITY).window()], at_ms=NOW + 39 * INTERVAL_MS, window_ms=WINDOW_MS)
    exposed = {(each.name, each.labels): each.value for each in derivation.exposed}
    labels = (*IDENTITY.deployment().labels(), ("window", "5m"))

    assert exposed["kv_cache_hit_rate", make_labels(labels)] == derivation.figures["kv_cache_hit_rate"]
    key = ("spec_decode_accepted_tokens_per_second", make_labels((*labels, ("position", "x"))))
    assert exposed[key] == derivation.figures['spec_decode_accepted_tokens_per_second{position="x"}']
    assert {each.name for each in derivation.exposed} == {each.exposed for each in FIGURES.values() if each.exposed}


def test_no_data_gives_no_figure() -> None:
    """One scrape has no rate, none has nothing; absent is not zero."""
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS)
    nothing = derive_figures([recent.window()], at_ms=NOW, window_ms=WINDOW_MS)
    recent.append(NOW, Snapshot.of([sample("requests_total", 5.0, outcome="ok"), sample("queued_requests", 0.0)]))
    one = derive_figures([recent.window()], at_ms=NOW, window_ms=WINDOW_MS)

    assert (nothing.figures, nothing.exposed) == ({}, [])
    assert one.figures == {"queued_requests": 0.0}


def test_what_overflows_is_absent() -> None:
    """One target's absurd numbers are no figure: an infinite one could be neither stored nor exposed."""
    recent = RecentScrapes(WINDOW_MS, 30_000)
    for step, count in enumerate((0.0, 1.7e308)):
        recent.append(
            1 + step * 15_000,
            Snapshot.of(
                [
                    sample("output_tokens_total", count),
                    sample("input_tokens_total", count / 1e300),
                    *(sample("queued_requests", 1.7e308, engine=engine) for engine in ("0", "1")),
                ]
            ),
        )
    derivation = derive_figures([recent.window()], at_ms=30_000, window_ms=WINDOW_MS)

    assert "input_tokens_per_second" in derivation.figures
    assert "queued_requests" not in derivation.figures
    assert all(map(math.isfinite, derivation.figures.values()))
    assert all(math.isfinite(each.value) for each in derivation.exposed)


def test_targets_are_counted_where_nobody_counts_replicas() -> None:
    """Scraped is active, failing is unhealthy, marked as derived; a reported count is never replaced."""
    counted = count_targets(IDENTITY.deployment(), [True, True, False])
    recent = RecentScrapes(WINDOW_MS, INTERVAL_MS)
    recent.append(NOW, Snapshot.of([sample("queued_requests", 1.0)]))
    stood_in = derive_figures([recent.window()], at_ms=NOW, window_ms=WINDOW_MS, counted=counted)
    recent.append(NOW + 1, Snapshot.of([sample("replica_count_by_status", 4.0, status="active")]))
    reported = derive_figures([recent.window()], at_ms=NOW + 1, window_ms=WINDOW_MS, counted=counted)

    assert stood_in.figures == {
        "queued_requests": 1.0,
        'replica_count_by_status{status="active"}': 2.0,
        'replica_count_by_status{status="unhealthy"}': 1.0,
    }
    assert all(dict(each.labels)["derived"] == "true" for each in stood_in.counted)
    assert reported.figures == {'replica_count_by_status{status="active"}': 4.0}
    assert reported.counted == ()


def contract_scrape(chance: random.Random, values: Values, identity: Identity, step: int) -> Snapshot | None:
    """A scrape of the whole contract, or of what is left of it on a bad day."""
    if chance.random() < 0.05:
        return None
    if chance.random() < 0.05:
        values.clear()
    for metric in METRICS.values():
        for extra in label_sets(metric):
            if chance.random() < 0.9:
                grow(values, metric, {**extra, "engine": str(step // 9)}, identity, chance)
    missing = chance.choice((0.0, 0.0, 0.02, 0.3))
    shown = [Sample(name, labels, value) for (name, labels), value in values.items() if chance.random() >= missing]
    return Snapshot.of(shown)


@pytest.mark.slow
@pytest.mark.parametrize("bounds", ["closed", "left-open"])
def test_figures_of_all_deployments_are_those_of_each_one_s_windows(bounds: WindowBounds) -> None:
    """Evaluation by evaluation, while series come and go, targets leave, and deployments come."""
    chance, deriver = random.Random(9), Deriver(WINDOW_MS, bounds)
    identities = [Identity("llama", f"chat-{number % 3}", "v1", replica=f"r{number}") for number in range(7)]
    recents = {identity: RecentScrapes(WINDOW_MS, INTERVAL_MS) for identity in identities}
    values: dict[Identity, Values] = {identity: {} for identity in identities}
    compared = 0
    for step in range(45):
        at_ms = NOW + step * INTERVAL_MS
        listed = [identity for number, identity in enumerate(identities) if number != step // 5 and number < 4 + step]
        for number, identity in enumerate(identities):
            recents[identity].append(at_ms + number, contract_scrape(chance, values[identity], identity, step))
            if chance.random() < 0.5:
                deriver.look_up(identity.deployment(), recents[identity])
        members = {
            deployment: Members(
                [recents[identity] for identity in listed if identity.deployment() == deployment],
                count_targets(deployment, [True]) if step % 2 else (),
            )
            for deployment in {identity.deployment(): None for identity in listed}
        }
        derived = deriver.derive(members, at_ms + 100)
        assert list(derived) == list(members)
        for deployment, own in members.items():
            found = derived[deployment]
            assert isinstance(found, Derivation), found
            expected = derive_figures(
                [recent.window() for recent in own.recents],
                at_ms=at_ms + 100, window_ms=WINDOW_MS, bounds=bounds, counted=own.counted,
            )  # fmt: skip
            assert found.figures == pytest.approx(expected.figures, rel=1e-12, abs=1e-12)
            assert {each[:2]: each.value for each in found.exposed} == pytest.approx(
                {each[:2]: each.value for each in expected.exposed}, rel=1e-12, abs=1e-12
            )
            assert found.counted == expected.counted
            assert found.filled == expected.filled
            compared += len(found.figures)
    assert compared > 3_000


def test_no_deployment_has_no_figures() -> None:
    """As when the last target has left."""
    deriver = Deriver(WINDOW_MS)
    deriver.derive({IDENTITY.deployment(): Members([filled_recent(IDENTITY)])}, NOW)

    assert deriver.derive({}, NOW) == {}


def test_no_figure_takes_the_rate_of_a_gauge() -> None:
    """Rings write down where counters begin anew, and let gauges fall as they like."""
    counted = {leaf.name for leaf in Program(FIGURES.values()).leaves if leaf.kind in ("rate", "increase", "buckets")}

    assert not [name for name in counted if name in METRICS and METRICS[name].kind == "gauge"]


def test_what_cannot_be_derived_costs_only_its_own_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is given in place of its figures; the others have theirs in the same evaluation."""
    recents = [filled_recent(Identity("llama", name, "v1", replica="r0")) for name in ("whole", "broken")]
    members = {
        Identity("llama", name, "v1").deployment(): Members([recent])
        for name, recent in zip(("whole", "broken"), recents, strict=True)
    }
    deriver, at_ms = Deriver(WINDOW_MS), NOW + 39 * INTERVAL_MS

    def fail(_: object) -> None:
        raise RuntimeError("a mistake")

    with monkeypatch.context() as broken:
        broken.setattr(recents[1], "stretch", fail)
        whole, failed = deriver.derive(members, at_ms).values()
    again = deriver.derive(members, at_ms)

    assert isinstance(whole, Derivation)
    assert isinstance(failed, RuntimeError)
    assert {each.partition("{")[0] for each in whole.figures} == set(FIGURES)
    assert [
        isinstance(each, Derivation) and each.figures.keys() == whole.figures.keys() for each in again.values()
    ] == [True, True]


def test_a_histogram_that_loses_an_edge_has_the_quantile_of_the_others() -> None:
    """Edges it had before do not replace absent buckets, nor hide the deployment beside it."""
    deriver = Deriver(WINDOW_MS)
    identities = [Identity("llama", name, "v1", replica="r0") for name in ("whole", "torn")]
    recents = {identity: RecentScrapes(WINDOW_MS, INTERVAL_MS) for identity in identities}
    members = {identity.deployment(): Members([recent]) for identity, recent in recents.items()}
    medians = []
    for step in range(60):
        for identity, recent in recents.items():
            edges = {"1.0": 2.0, "2.0": 6.0, "4.0": 8.0, "+Inf": 8.0}
            if identity.deployment_id == "torn" and step >= 20:
                del edges["2.0"]
            name = "time_to_first_token_seconds_bucket"
            samples = [sample(name, count * step, identity, le=edge) for edge, count in edges.items()]
            recent.append(NOW + step * INTERVAL_MS, Snapshot.of(samples))
        found = deriver.derive(members, NOW + step * INTERVAL_MS).values()
        medians.append([each.figures.get("time_to_first_token_p50") for each in found if isinstance(each, Derivation)])

    assert medians[19] == [pytest.approx(1.5), pytest.approx(1.5)]
    assert medians[59] == [pytest.approx(1.5), pytest.approx(1 + 3 * 2 / 6)]


@pytest.mark.slow
def test_labels_that_always_have_new_values_do_not_pile_up() -> None:
    """What is kept of groups and sums is bounded by the series held, not by all there ever were."""
    program = Program(FIGURES.values())
    recent, layout = RecentScrapes(WINDOW_MS, INTERVAL_MS), Layout(program, "5m")
    # Beside many targets that share what they are added up to.
    others = [filled_recent(Identity("llama", "chat", "v1", replica=f"r{number}")) for number in range(30)]
    name = "spec_decode_num_accepted_tokens_per_pos_total"
    kept = []
    for step in range(120):
        flood = [sample(name, float(step), position=str(each)) for each in range(step * 300, step * 300 + 300)]
        recent.append(NOW + step * INTERVAL_MS, Snapshot.of(flood))
        layout.update([recent, *others])
        kept.append(sum(map(len, layout.groups.values())))

    assert len(recent) < 7_000
    assert max(kept) == max(kept[:90]) < 3 * len(recent)
    anew = Layout(program, "5m")
    anew.update([recent, *others])
    within = Range(NOW + 39 * INTERVAL_MS, WINDOW_MS), Range(NOW + 119 * INTERVAL_MS, WINDOW_MS)
    for each in within:
        assert figures_of(program, layout, each) == pytest.approx(figures_of(program, anew, each))


def figures_of(program: Program, layout: Layout, within: Range) -> dict[tuple[str, Labels], float]:
    assembly = Assembly(program, [layout])
    values = program.run(assembly.add_up(read_recent(assembly.recents, within), within))
    return {
        (figure.name, named.labels): value
        for figure, names, column in zip(program.figures, assembly.names, values, strict=True)
        for (_, named), value in zip(names, column.tolist(), strict=False)
        if value == value
    }


@given(
    st.floats(0, 1),
    st.lists(st.integers(-2, 50).map(float), min_size=0, max_size=8, unique=True).map(sorted),
    st.data(),
)
def test_quantiles_of_many_histograms_are_those_of_each(
    quantile: float, edges: list[float], data: st.DataObject
) -> None:
    """For any counts, rising or not, empty ones too, and any edges, with or without the infinite one."""
    edges = [*edges, *data.draw(st.sampled_from(([math.inf], [])))]
    counts = st.lists(st.integers(0, 30).map(float), min_size=len(edges), max_size=len(edges))
    histograms = data.draw(st.lists(counts, min_size=1, max_size=4))
    found = bucket_quantiles(quantile, np.array(edges), np.array(histograms).reshape(len(histograms), len(edges)))
    expected = [bucket_quantile(quantile, dict(zip(edges, each, strict=True))) for each in histograms]

    assert [None if value != value else value for value in found.tolist()] == expected


def test_an_algebra_of_everything_runs_as_a_program() -> None:
    """What no figure of the catalog uses is compiled as well: increases, averages, the highest, shares above."""
    recent = filled_recent(IDENTITY)
    at_ms = NOW + 39 * INTERVAL_MS
    expressions: list[Expression] = [
        increase("requests_total", outcome=("ok", "error")),
        level("queued_requests", "avg"),
        level("queued_requests", "max"),
        FractionAbove(1.0, "time_to_first_token_seconds"),
        FractionAbove(1.5, "time_to_first_token_seconds"),
        Difference(level("queued_requests"), rate("requests_total")),
        Quantile(0.5, "no_such_histogram"),
    ]
    figures = [replace(FIGURES["request_rate"], expression=expression) for expression in expressions]
    program = Program(figures)
    layout = Layout(program, "5m")
    layout.update([recent])
    assembly, within = Assembly(program, [layout]), Range(at_ms, WINDOW_MS)
    found = program.run(assembly.add_up(read_recent([recent], within), within))
    expected = [
        evaluate(figure.expression, [recent.window()], at_ms=at_ms, window_ms=WINDOW_MS, by=DEPLOYMENT_LABELS)
        for figure in figures
    ]

    assert [[value for value in values.tolist() if value == value] for values in found] == [
        pytest.approx(list(each.values()), rel=1e-12) for each in expected
    ]
    assert [len(each) for each in expected] == [1, 1, 1, 1, 0, 1, 0]
