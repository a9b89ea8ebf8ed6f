"""The ring of recent scrapes, and the figures derived from it."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from servescope.catalog import FIGURES, METRICS, Metric
from servescope.collector.derive import count_targets, derive_figures
from servescope.collector.ring import Ring
from servescope.expressions import evaluate
from servescope.identity import DEPLOYMENT_LABELS, Identity
from servescope.samples import Labels, Sample, Series, Snapshot, Window, make_labels

NOW = 1_800_000_000_000
WINDOW_MS = 300_000
INTERVAL_MS = 15_000
IDENTITY = Identity("llama", "chat", "v1", environment="test", replica="r0")


def sample(name: str, value: float, identity: Identity = IDENTITY, **extra: str) -> Sample:
    return Sample(name, make_labels((*identity.labels(), *extra.items())), value)


def columns(window: Window) -> dict[int, dict[Series, float]]:
    """The window by time and series, without what was absent."""
    return {
        time: {series: value for series, value in zip(window.series, column, strict=True) if not math.isnan(value)}
        for time, column in zip(window.times.tolist(), window.values.T.tolist(), strict=True)
    }


def test_ring_holds_what_was_appended() -> None:
    """Scrapes come back in order, failed ones as nothing, series that come later as absent before."""
    ring = Ring(WINDOW_MS, INTERVAL_MS)
    ring.append(NOW, Snapshot.of([Sample("a", (), 1.0)]))
    ring.append(NOW + 1, None)
    ring.append(NOW + 2, Snapshot.of([Sample("b", (), 2.0), Sample("a", (), 3.0)]))

    assert columns(ring.window()) == {
        NOW: {Series("a", ()): 1.0},
        NOW + 1: {},
        NOW + 2: {Series("a", ()): 3.0, Series("b", ()): 2.0},
    }
    assert len(ring) == 2


def test_ring_equals_a_plain_list_over_any_history() -> None:
    """Whatever series come and go, over many times the ring's length, it holds exactly the last scrapes."""
    chance = random.Random(7)
    ring = Ring(WINDOW_MS, INTERVAL_MS)
    hold_ms = WINDOW_MS + INTERVAL_MS
    history: dict[int, dict[Series, float]] = {}
    time_ms = NOW
    for step in range(2000):
        time_ms += chance.choice([INTERVAL_MS, INTERVAL_MS, 1, 1000, 200_000])
        present = [number for number in range(200) if chance.random() < 0.3 and abs(number - step / 10) < 60]
        chance.shuffle(present)
        samples = [Sample(f"s{number}", (("n", str(number)),), chance.random()) for number in present]
        failed = chance.random() < 0.1
        ring.append(time_ms, None if failed else Snapshot.of(samples))
        history[time_ms] = {} if failed else {Series(each.name, each.labels): each.value for each in samples}
        history = {time: each for time, each in history.items() if time >= time_ms - hold_ms}

        assert columns(ring.window()) == history


def test_ring_forgets_series_and_stays_small() -> None:
    """A target whose series change all the time costs no more than those within the window."""
    ring = Ring(WINDOW_MS, INTERVAL_MS)
    for step in range(3000):
        ring.append(
            NOW + step * INTERVAL_MS, Snapshot.of([Sample("a", (("step", str(step)),), 1.0), Sample("b", (), 1.0)])
        )

    assert len(ring) < 100
    assert ring.nbytes < 40_000


def test_ring_shows_its_last_scrape() -> None:
    """The list of series is the scrape's own while it repeats; a failed scrape shows nothing; the values are a copy."""
    ring = Ring(WINDOW_MS, INTERVAL_MS)
    nothing = ring.latest()[0]
    ring.append(NOW, Snapshot.of([Sample("a", (), 1.0), Sample("b", (), 2.0)]))
    snapshot = Snapshot.of([Sample("b", (), 3.0)])
    ring.append(NOW + 1, snapshot)
    series, values = ring.latest()
    ring.append(NOW + 2, None)
    failed = ring.latest()[0]
    ring.append(NOW + 3, Snapshot(snapshot.series, np.array([4.0])))

    assert nothing == failed == ()
    assert series is ring.latest()[0] is snapshot.series
    np.testing.assert_array_equal(values, [3.0])
    np.testing.assert_array_equal(ring.latest()[1], [4.0])


def test_ring_refuses_time_that_stands_still() -> None:
    """Scrapes come one after the other."""
    ring = Ring(WINDOW_MS, INTERVAL_MS)
    ring.append(NOW, None)
    with pytest.raises(ValueError, match="is not after the last one"):
        ring.append(NOW, None)


def test_ring_is_spent_when_nothing_is_left_in_the_window() -> None:
    """A target that left may be forgotten once its last scrape matters no more."""
    ring = Ring(WINDOW_MS, INTERVAL_MS)
    empty = ring.is_spent(NOW)
    ring.append(NOW, None)

    assert (empty, ring.is_spent(NOW + WINDOW_MS), ring.is_spent(NOW + WINDOW_MS + INTERVAL_MS + 1)) == (
        True,
        False,
        True,
    )


Values = dict[tuple[str, Labels], float]


def label_sets(metric: Metric) -> list[dict[str, str]]:
    """Every combination of the metric's own labels; they are closed sets, or "x"."""
    if not metric.labels:
        return [{}]
    (label,) = metric.labels
    return [{label: value} for value in metric.label_values.get(label, ("x",))]


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


def filled_ring(identity: Identity, *, seed: int = 1) -> Ring:
    """Forty scrapes of every metric of the contract, with a restart and a failed scrape among them."""
    chance = random.Random(seed)
    ring = Ring(WINDOW_MS, INTERVAL_MS)
    values: Values = {}
    for step in range(40):
        if step == 30:
            values.clear()
        for metric in METRICS.values():
            for extra in label_sets(metric):
                grow(values, metric, extra, identity, chance)
        scrape = [Sample(name, labels, value) for (name, labels), value in values.items()]
        ring.append(NOW + step * INTERVAL_MS, None if step == 35 else Snapshot.of(scrape))
    return ring


def test_every_figure_is_the_evaluated_expression() -> None:
    """All figures of the catalog are derived, per value of their extra labels, exactly as `evaluate` has them."""
    windows = [
        filled_ring(IDENTITY).window(),
        filled_ring(Identity("llama", "chat", "v1", "test", replica="r1"), seed=2).window(),
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
    derivation = derive_figures([filled_ring(IDENTITY).window()], at_ms=NOW + 39 * INTERVAL_MS, window_ms=WINDOW_MS)
    exposed = {(each.name, each.labels): each.value for each in derivation.exposed}
    labels = (*IDENTITY.deployment().labels(), ("window", "5m"))

    assert exposed["kv_cache_hit_rate", make_labels(labels)] == derivation.figures["kv_cache_hit_rate"]
    key = ("spec_decode_accepted_tokens_per_second", make_labels((*labels, ("position", "x"))))
    assert exposed[key] == derivation.figures['spec_decode_accepted_tokens_per_second{position="x"}']
    assert {each.name for each in derivation.exposed} == {each.exposed for each in FIGURES.values() if each.exposed}


def test_no_data_gives_no_figure() -> None:
    """One scrape has no rate, none has nothing; absent is not zero."""
    ring = Ring(WINDOW_MS, INTERVAL_MS)
    nothing = derive_figures([ring.window()], at_ms=NOW, window_ms=WINDOW_MS)
    ring.append(NOW, Snapshot.of([sample("requests_total", 5.0, outcome="ok"), sample("queued_requests", 0.0)]))
    one = derive_figures([ring.window()], at_ms=NOW, window_ms=WINDOW_MS)

    assert (nothing.figures, nothing.exposed) == ({}, [])
    assert one.figures == {"queued_requests": 0.0}


def test_what_overflows_is_absent() -> None:
    """One target's absurd numbers are no figure: an infinite one could be neither stored nor exposed."""
    ring = Ring(WINDOW_MS, 30_000)
    for step, count in enumerate((0.0, 1.7e308)):
        ring.append(
            1 + step * 15_000,
            Snapshot.of(
                [
                    sample("output_tokens_total", count),
                    sample("input_tokens_total", count / 1e300),
                    *(sample("queued_requests", 1.7e308, engine=engine) for engine in ("0", "1")),
                ]
            ),
        )
    derivation = derive_figures([ring.window()], at_ms=30_000, window_ms=WINDOW_MS)

    assert "input_tokens_per_second" in derivation.figures
    assert "queued_requests" not in derivation.figures
    assert all(map(math.isfinite, derivation.figures.values()))
    assert all(math.isfinite(each.value) for each in derivation.exposed)


def test_targets_are_counted_where_nobody_counts_replicas() -> None:
    """Scraped is active, failing is unhealthy, marked as derived; a reported count is never replaced."""
    counted = count_targets(IDENTITY.deployment(), [True, True, False])
    ring = Ring(WINDOW_MS, INTERVAL_MS)
    ring.append(NOW, Snapshot.of([sample("queued_requests", 1.0)]))
    stood_in = derive_figures([ring.window()], at_ms=NOW, window_ms=WINDOW_MS, counted=counted)
    ring.append(NOW + 1, Snapshot.of([sample("replica_count_by_status", 4.0, status="active")]))
    reported = derive_figures([ring.window()], at_ms=NOW + 1, window_ms=WINDOW_MS, counted=counted)

    assert stood_in.figures == {
        "queued_requests": 1.0,
        'replica_count_by_status{status="active"}': 2.0,
        'replica_count_by_status{status="unhealthy"}': 1.0,
    }
    assert all(dict(each.labels)["derived"] == "true" for each in stood_in.counted)
    assert reported.figures == {'replica_count_by_status{status="active"}': 4.0}
    assert reported.counted == ()
