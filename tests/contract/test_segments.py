"""Every figure of the contract is the same, whether the requests are kept apart by segment or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, Identity
from servescope.contract.metrics import METRICS, SEGMENT
from servescope.contract.samples import Labels, Snapshot, Window
from servescope.increments.readings import evaluate
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.testing import FakeClock

T0 = 1_800_000_000_000


def scraped(segments: Sequence[str | None]) -> Window:
    """Twenty scrapes of an engine whose requests are of these segments in turn."""
    clock = FakeClock()
    engine = EngineInstruments(Identity("m", "chat", "v2", replica="r0"), clock=clock)
    engine.begin_at(T0 / 1000 - 60)
    snapshots: list[Snapshot] = []
    for number in range(100):
        request = engine.start_request(100 + number, segment=segments[number % len(segments)])
        clock.advance(0.1 + 0.01 * (number % 7))
        request.first_token()
        clock.advance(0.5 + 0.1 * (number % 5))
        request.finish("error" if number % 9 == 0 else "ok", output_tokens=10 + number % 4)
        # Each segment is there from the first scrape on: of a series seen later, a window lacks what it had by then.
        if number >= 10 and number % 5 == 0:
            snapshots.append(Snapshot.of(engine.samples()))
    series = tuple(dict.fromkeys(each for snapshot in snapshots for each in snapshot.series))
    values = np.full((len(series), len(snapshots)), np.nan)
    for column, snapshot in enumerate(snapshots):
        at = dict(zip(snapshot.series, snapshot.values.tolist(), strict=True))
        values[:, column] = [at.get(each, np.nan) for each in series]
    return Window(series, T0 + 15_000 * np.arange(len(snapshots), dtype=np.int64), values)


def figures(window: Window) -> dict[str, dict[Labels, float]]:
    """Each figure by its own labels, without those that have no value."""
    at_ms = int(window.times[-1])
    found = {
        name: evaluate(figure.expression, [window], at_ms=at_ms, window_ms=300_000, by=(*DEPLOYMENT_LABELS, *figure.by))
        for name, figure in FIGURES.items()
    }
    return {name: each for name, each in found.items() if each}


def test_figures_are_the_same_with_segments() -> None:
    plain, kept_apart = figures(scraped([None])), figures(scraped(["a", "b", None]))

    assert plain.keys() == kept_apart.keys()
    assert {"time_to_first_token_p95", "request_error_share", "tps_per_request", "request_rate"} <= plain.keys()
    for name, values in plain.items():
        # A rate is extrapolated to the edges of its window series by series, but not below 0.
        assert kept_apart[name] == pytest.approx(values, rel=0.01), name


def test_no_figure_is_by_segment_and_the_label_is_no_other() -> None:
    """It is optional of every metric that has it."""
    assert not any(SEGMENT in figure.by for figure in FIGURES.values())
    assert not any(SEGMENT in metric.labels for metric in METRICS.values())
