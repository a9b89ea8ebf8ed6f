"""A past made up from evidence: what a store or a Prometheus would answer to a judge, up to a time that is set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np

from servescope.contract.events import Event
from servescope.contract.identity import Deployment, Identity
from servescope.contract.metrics import SAMPLE_FAMILIES
from servescope.contract.samples import Window
from servescope.cutover.evidence.evidence import Evidence
from servescope.errors import ServescopeError
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import current_run
from servescope.judge.watching import Watcher
from servescope.settings.clock import ProgramClock
from servescope.store.history import History
from servescope.store.records import FigureTable, RecordedSettings, TargetStatus
from tests.support.cutover_evidence import INTERVAL_MS, Story, evidence_of


class MadePast(History):
    """The past of evidence, as it is at `now_ms`; reading `fails` with an error while there is one.

    `reads` are what increments were asked for: deployment, start and end.
    """

    def __init__(self, evidence: Evidence, now_ms: int | None = None) -> None:
        self.evidence = evidence
        self.now_ms = evidence.observed_until_ms if now_ms is None else now_ms
        self.fails = ""
        self.events: list[Event] = []
        self.reads: list[tuple[str, int, int]] = []

    def deployments(self) -> list[Deployment]:
        self._check()
        return sorted({target.identity.deployment() for target in self.evidence.targets})

    def targets(self) -> list[TargetStatus]:
        self._check()
        last = self.now_ms - self.now_ms % INTERVAL_MS
        return [
            TargetStatus(
                each.target_id, "", each.identity, healthy=True,
                last_success_ms=min(last, self.evidence.last_scrape_ms.get(each.target_id, last)),
            )
            for each in self.evidence.targets
            if each.blocks[0] < self.now_ms
        ]  # fmt: skip

    def read_increments(
        self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int
    ) -> list[TargetIncrements]:
        self._check()
        self.reads.append((deployment.deployment_id, start_ms, end_ms))
        until_ms = min(end_ms, self.now_ms)
        return [
            read
            for each in self.evidence.targets
            if each.identity.deployment() == deployment
            if (read := _read(each, names, start_ms, until_ms)).blocks.size
        ]

    def read_events(self, start_ms: int, end_ms: int) -> list[Event]:
        self._check()
        return [event for event in self.events if start_ms <= event.time_ms <= min(end_ms, self.now_ms)]

    @property
    def settle_ms(self) -> int:
        return 0

    def scrape_intervals(self) -> dict[Identity, int]:
        return {}

    def remarks(self) -> tuple[str, ...]:
        return ("a warning",)

    def settings_at(self, time_ms: int) -> RecordedSettings | None:
        return RecordedSettings(300_000, 15_000, self.evidence.scrape_interval_ms, "2.42")

    def latest_figures(self) -> dict[Deployment, tuple[int, dict[str, float]]]:
        return {}

    def read_figures(self, *_: Any, **__: Any) -> FigureTable:
        return FigureTable(np.array([], dtype=np.int64), {})

    def time_range(self) -> tuple[int, int] | None:
        return None

    def read_samples(self, *_: Any) -> list[Window]:
        return []

    def _check(self) -> None:
        if self.fails:
            raise ServescopeError(self.fails)


def _read(target: TargetIncrements, names: Sequence[str], start_ms: int, end_ms: int) -> TargetIncrements:
    kept = (target.blocks >= start_ms) & (target.blocks + BLOCK_MS <= end_ms)
    rows = [row for row, series in enumerate(target.series) if SAMPLE_FAMILIES[series.name] in names]
    gauges = [row for row, series in enumerate(target.gauges) if series.name in names]
    return replace(
        target,
        series=tuple(target.series[row] for row in rows),
        gains=target.gains[rows],
        gauges=tuple(target.gauges[row] for row in gauges),
        levels=target.levels[gauges],
        above=target.above[gauges],
    ).at(kept)


def made_past(story: Story) -> MadePast:
    """The past of a story, at its end."""
    evidence = evidence_of(story)
    return MadePast(replace(evidence, last_scrape_ms={}), story.end_ms)


@contextmanager
def given(past: MadePast) -> Iterator[MadePast]:
    """Every verb reads this past, at its time, whatever store it is given."""

    @contextmanager
    def open_history(_: object) -> Iterator[MadePast]:
        yield past

    class _Clock:
        speed = 1.0

        def now_ms(self) -> int:
            return past.now_ms

    with (
        patch("servescope.judge.verbs.open_history", open_history),
        patch("servescope.judge.verifying.open_history", open_history),
        patch("servescope.store.opening.program_clock", _Clock),
    ):
        yield past


class PastClock(ProgramClock):
    """The time of a past that is made up."""

    def __init__(self, past: MadePast) -> None:
        super().__init__()
        self._past = past

    def now_ms(self) -> int:
        return self._past.now_ms


def watcher_of(past: MadePast, journal: CutoverJournal) -> Watcher:
    """A judge that begins to watch the run of a journal."""
    run = current_run(journal, "chat")
    assert run is not None
    return Watcher(past, journal, run, PastClock(past))
