"""The same scrapes once more, through the whole collector: every window's columns as pages, in the order of time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from servescope.collector.collector import Collector
from servescope.collector.config import CollectorSettings, Configuration
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.scrapes.target_state import TargetState
from servescope.collector.targets.deployments import DeploymentSettings, TargetSettings
from servescope.collector.targets.target import Target
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.samples import Sample, Window
from servescope.store.embedded import Store
from servescope.web.connections import FetchError
from tests.support.fake_targets import render

Figures = Mapping[Deployment, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class _Member:
    """One target as the collector knows it: its deployment, its place in it, and its scrapes."""

    deployment: Deployment
    settings: TargetSettings
    window: Window


def replay(
    windows: Sequence[Window],
    instants: Sequence[int],
    folder: Path,
    *,
    window_ms: int,
    see: Callable[[Collector], None] = lambda _: None,
) -> dict[int, Figures]:
    """The figures a collector derives at each instant, after the scrapes up to then, failed ones included.

    `see` is called after each instant.
    """
    members = [member for number, window in enumerate(windows) for member in _members(number, window)]
    return asyncio.run(_replay(members, instants, folder, window_ms, see))


async def _replay(
    members: Sequence[_Member], instants: Sequence[int], folder: Path, window_ms: int, see: Callable[[Collector], None]
) -> dict[int, Figures]:
    by_url = {member.settings.url: member for member in members}
    now_ms = 0

    async def fetch(target: Target, _: Limits, /) -> bytes:
        samples = list(_samples(by_url[target.url].window, now_ms))
        if not samples:
            raise FetchError("unreachable", "the scrape failed")
        return render(samples).encode()

    configuration = _configuration(members, folder / "servescope.db", window_ms)
    store = Store(configuration.collector.store)
    history = Store(configuration.collector.store, read_only=True)
    collector = Collector(configuration, store, history, fetch, clock=lambda: now_ms / 1000)
    figures: dict[int, Figures] = {}
    try:
        await collector.discovering.discover()
        for moment, watched in _events(collector.fleet.watched, by_url, instants):
            now_ms = moment
            if watched is not None:
                await collector.scraping.scrape(watched)
            else:
                evaluation = collector.evaluating.evaluate(moment)
                figures[moment] = {deployment: each.figures for deployment, each in evaluation.deployments.items()}
                see(collector)
    finally:
        await asyncio.to_thread(collector.close)
    return figures


def _events(
    watched: Sequence[TargetState], by_url: Mapping[str, _Member], instants: Sequence[int]
) -> list[tuple[int, TargetState | None]]:
    """Scrapes and evaluations in the order of time; at the same time, the scrapes come first."""
    scrapes = [(time, each) for each in watched for time in by_url[each.target.url].window.times.tolist()]
    return sorted([*scrapes, *((time, None) for time in instants)], key=lambda event: (event[0], event[1] is None))


def _members(number: int, window: Window) -> Iterator[_Member]:
    """A target whose identity changed is two to the collector, each failing where the other answers."""
    rows_by_identity: dict[tuple[str, ...], list[int]] = {}
    for row, series in enumerate(window.series):
        labels = dict(series.labels)
        identity = tuple(labels.get(name, "") for name in (*DEPLOYMENT_LABELS, "replica", "role"))
        rows_by_identity.setdefault(identity, []).append(row)
    for identity, rows in rows_by_identity.items():
        deployment, (replica, role) = Deployment(*identity[:-2]), identity[-2:]
        url = f"http://target-{number}/{deployment.rollout_phase or 'none'}/metrics"
        yield _Member(
            deployment,
            TargetSettings(url, replica=replica, role=role, source="servescope"),
            Window(tuple(window.series[row] for row in rows), window.times, window.values[rows]),
        )


def _configuration(members: Sequence[_Member], store: Path, window_ms: int) -> Configuration:
    targets: dict[Deployment, list[TargetSettings]] = {}
    for member in members:
        targets.setdefault(member.deployment, []).append(member.settings)
    return Configuration(
        CollectorSettings(store=store, scrape_interval_ms=250, evaluation_interval_ms=250, window_ms=window_ms),
        tuple(DeploymentSettings(deployment, tuple(each)) for deployment, each in targets.items()),
        "the replay",
    )


def _samples(window: Window, time_ms: int) -> Iterator[Sample]:
    column = window.values[:, int(np.searchsorted(window.times, time_ms))]
    for (name, labels), value in zip(window.series, column.tolist(), strict=True):
        if not math.isnan(value):
            yield Sample(name, labels, value)
