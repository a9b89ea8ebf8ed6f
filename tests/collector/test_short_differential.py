"""Every derived figure beside a real Prometheus, over a few targets with a restart, a gap and a reset."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from servescope.contract.figures import FIGURES
from servescope.contract.identity import Identity
from servescope.contract.samples import Window
from tests.support.differential import Comparison, Frozen, Scenario, compare_at, figures, instants, play, read
from tests.support.fake_targets import FakeTarget, Incident
from tests.support.prometheus import running

pytestmark = pytest.mark.slow

WINDOW, WINDOW_MS = "4s", 4_000


def _target(name: str, role: str, seed: int, *incidents: Incident) -> FakeTarget:
    identity = Identity("llama-70b", "chat", "v1", replica=name, role=role)
    return FakeTarget(name, identity, seed, incidents, gpu_errors=True)


def _scenario() -> Scenario:
    targets = [
        _target("engine-0", "aggregated", 10, Incident(5, restart=True), Incident(7, 7.6, missing="*", share=0.2)),
        _target("engine-1", "aggregated", 11, Incident(4, 6, answer="500"), Incident(9, 9.5, answer="closed")),
        _target("engine-2", "aggregated", 12, Incident(5, 8, answer="closed"), Incident(8, restart=True)),
        _target("router", "router", 13, Incident(6, restart=True)),
        _target("autoscaler", "autoscaler", 14, Incident(8, 9, answer="500")),
    ]
    return Scenario({"chat": targets}, {"chat": ("250ms", "200ms")}, 13.0, WINDOW)


@pytest.fixture(scope="module")
def frozen(prometheus: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Frozen]:
    """The scenario played to a Prometheus, which is then started again over its data with nothing to scrape."""
    folder = tmp_path_factory.mktemp("prometheus")
    play(prometheus, folder, _scenario())
    with running(prometheus, folder, {}) as server:
        yield read(server, folder)


def test_every_figure_is_what_prometheus_computes(frozen: Frozen) -> None:
    """Same groups, same values within 1e-9, at every instant; each figure has values to compare."""
    comparison = Comparison()
    for at_ms in instants(frozen, WINDOW_MS, samples=8, others=20):
        compare_at(comparison, frozen, figures(), at_ms, WINDOW, WINDOW_MS)

    comparison.report("figures")
    assert not [name for name in FIGURES if name not in comparison.present], "never present"


def test_the_scenario_took_place(frozen: Frozen) -> None:
    """Scrapes failed one after the other, and counters were reset."""
    assert sum(int(np.isnan(window.values).all(axis=0).sum()) for window in frozen.windows) > 8
    assert sum(map(_resets, frozen.windows)) > 50


def _resets(window: Window) -> int:
    counters = [row for row, series in enumerate(window.series) if series.name.endswith(("_total", "_count"))]
    return sum(int((np.diff(row[~np.isnan(row)]) < 0).sum()) for row in window.values[counters])
