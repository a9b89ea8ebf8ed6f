"""One target: how its pages are read, its recent scrapes, its health, and what is logged of it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field, replace

from servescope.collector.scrapes.lapses import Lapses
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.collector.scrapes.scrape import Limits, Scrape
from servescope.collector.targets.target import Target
from servescope.contract.identity import Deployment, Identity
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Labels
from servescope.settings.clock import not_after
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED
from servescope.sources.reader import NOT_UNDERSTOOD, Reader
from servescope.sources.zeros import Coverages, ZeroExplainer
from servescope.store.records import TargetStatus

_logger = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class TargetState:
    """One target; used in one event loop only.

    `listed` is it as it was discovered, where `target` has the model that its pages name. While it is `unnamed` nothing
    of it is kept: its model is not configured, and no page has named one so far.
    """

    target: Target
    reader: Reader
    recent: RecentScrapes
    listed: Target
    unnamed: bool = False
    status: TargetStatus = field(init=False)
    limits: Limits = field(init=False)
    # The identity labels of its series, made once: every evaluation reads those of all targets.
    labels: Labels = field(init=False)
    # Scrapes that were all too old at a time, by which the clock may have been ahead, and that time.
    former: tuple[int, RecentScrapes] | None = None
    task: asyncio.Task[None] | None = None
    # True while the task only waits for its next scrape, and may be cancelled.
    resting: bool = False
    next_scrape_ms: int | None = None
    held_until_ms: int = 0
    refusals: int = 0
    # Which of its failures, and of its missing metrics, were logged.
    lapses: Lapses = field(default_factory=Lapses)
    missed: Lapses = field(default_factory=Lapses)
    zeros: ZeroExplainer = field(default_factory=ZeroExplainer)

    def __post_init__(self) -> None:
        target = self.target
        self.status = TargetStatus(
            target.target_id, target.url, target.identity, target.source or "", select=target.part.describe()
        )
        self.limits = _limits(target)
        self.labels = target.identity.labels()

    @property
    def deployment(self) -> Deployment:
        """The deployment the target belongs to."""
        return self.target.identity.deployment()

    @property
    def is_hidden(self) -> bool:
        """Whether it answers and its model is still looked for: nobody is shown a deployment that will not last."""
        return self.unnamed and self.status.healthy

    def may_stay_unnamed(self, scrape: Scrape) -> bool:
        """Whether its samples are to be kept without a model, as its pages do not seem to name one.

        Not at the first page, as other targets of the deployment may name it soon, nor while there is nothing of an
        engine on it: a frontend without workers has no model yet.
        """
        shows_engine = any(each["status"] in SUPPLIED and each["native"] for name, each in self.reader.coverage.items()
                           if METRICS[name].component == "engine")  # fmt: skip
        return scrape.snapshot is not None and self.status.healthy and shows_engine

    def rename(self, identity: Identity, recent: RecentScrapes) -> None:
        """Go on under another identity, with a new memory."""
        self.target = replace(self.target, identity=identity)
        self.labels, self.recent, self.former = identity.labels(), recent, None
        self.status = replace(self.status, target_id=identity.target_id, identity=identity)

    def change(self, listed: Target) -> None:
        """Use another address or interval from the next scrape on."""
        has_other_interval = listed.scraping != self.target.scraping
        self.listed, self.target = listed, replace(listed, identity=self.target.identity)
        self.limits = _limits(listed)
        self.status = replace(self.status, url=listed.url, select=listed.part.describe())
        if has_other_interval and self.resting:
            # A scrape in progress is not cancelled: the one after it is at the new interval anyway.
            self.stop()

    def set_aside(self, recent: RecentScrapes, now_ms: int) -> None:
        """Have a new memory in place of one of which all is too old; for an hour, the clock may be set right."""
        self.former, self.recent = (now_ms, self.recent), recent

    def forget_after(self, time_ms: int, by_ms: int) -> None:
        """Forget what is later than an instant, to which the clock was set back by so much."""
        self.recent.forget_after(time_ms)
        if self.recent.last_ms is None and self.former is not None:
            (_, self.recent), self.former = self.former, None
            self.recent.forget_after(time_ms)
        self.held_until_ms -= by_ms
        # It was scraped all the same, and before now.
        self.status = replace(
            self.status,
            last_scrape_ms=not_after(time_ms, self.status.last_scrape_ms),
            last_success_ms=not_after(time_ms, self.status.last_success_ms),
            starting_since_ms=not_after(time_ms, self.status.starting_since_ms),
        )

    def stop(self) -> None:
        """End the task that scrapes it."""
        if self.task is not None:
            self.task.cancel()
            self.task = None

    def report(self, scrape: Scrape) -> None:
        """Report a booked scrape in the status and in the log."""
        self._log_change(scrape)
        former, healthy = self.status, scrape.snapshot is not None
        not_understood = scrape.outcome == NOT_UNDERSTOOD
        since_ms = scrape.time_ms if former.last_scrape_ms is None else former.starting_since_ms
        self.status = replace(
            former,
            source=self.reader.source or former.source,
            versions=self.reader.versions,
            layer=self.reader.layer or former.layer,
            healthy=healthy,
            not_understood=not_understood,
            last_scrape_ms=scrape.time_ms,
            last_success_ms=scrape.time_ms if healthy else former.last_success_ms,
            duration_seconds=scrape.duration_seconds,
            samples=len(scrape.snapshot.series) if scrape.snapshot is not None else 0,
            error=scrape.error,
            coverage=self._coverage(scrape) or former.coverage,
            warnings=self._warnings() if healthy else [],
            missing_metrics=self.reader.missing,
            starting_since_ms=None if healthy or not_understood else since_ms,
        )

    def _coverage(self, scrape: Scrape) -> Coverages:
        """How the contract is covered, and why what is 0 is; empty when the scrape failed."""
        if scrape.snapshot is None:
            return {}
        return self.zeros.explain(self.reader.coverage, scrape.snapshot, self.reader.facts)

    def _warnings(self) -> list[str]:
        left_out = self.recent.left_out
        warnings = [self.target.access.conceal(each) for each in self.reader.warnings]
        source = load_sources()[self.reader.source] if self.reader.source else None
        if haste := source.explain_haste(self.target.scraping.interval_ms) if source is not None else "":
            warnings.append(f"scrape_interval: {haste}")
        if not left_out:
            return warnings
        limited = (
            f"{left_out} new series are left out, as {len(self.recent)} are held already, "
            f"which is max_held_series; there is room again when old ones have left the window"
        )
        return [*warnings, limited]

    def _log_change(self, scrape: Scrape) -> None:
        """Log that the target fails and that it recovers; less and less often when it flaps."""
        name, now_ms = self.target.target_id, scrape.time_ms
        if report := self.lapses.note("scrape", now_ms, is_wrong=scrape.error is not None):
            if report.is_wrong:
                _logger.warning("%s: %s%s", name, scrape.error, report.counted("failed "))
            else:
                _logger.info("%s answers again%s", name, report.counted("failed "))
        if scrape.snapshot is not None:
            left_out = scrape.dropped.get("series_limit", 0)
            if report := self.lapses.note("series", now_ms, is_wrong=bool(left_out)):
                held = (
                    f"{left_out} new series are left out (max_held_series)"
                    if left_out
                    else "all its series are held again"
                )
                _logger.warning("%s: %s%s", name, held, report.counted("left out "))
        self._log_missing(now_ms)

    def _log_missing(self, now_ms: int) -> None:
        missing = self.reader.missing
        if not missing and not self.missed:
            return
        gone, back = [], []
        for name in {**missing, **dict.fromkeys(self.missed)}:
            report = self.missed.note(name, now_ms, is_wrong=name in missing)
            if report and report.is_wrong:
                gone.append(f"{name} (was {missing[name]}{report.counted('missing ')})")
            elif report:
                counted = report.counted("missing ").removeprefix("; ")
                back.append(f"{name} ({counted})" if counted else name)
        if gone:
            listed = ", ".join(gone)
            _logger.warning("%s: metrics that were exposed are missing: %s", self.target.target_id, listed)
        if back:
            _logger.info("%s: metrics are there again: %s", self.target.target_id, ", ".join(back))


def _limits(target: Target) -> Limits:
    scraping = target.scraping
    return Limits(scraping.timeout_ms / 1000, scraping.max_body_bytes, **scraping.by_name())
