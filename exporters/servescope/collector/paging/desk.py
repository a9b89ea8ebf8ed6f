"""The alerting of a collector as one thing: evaluated after its figures, remembered in its store, told to receivers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from servescope.alerting.alerts import ALERTS
from servescope.alerting.evaluation import Active, is_told_here
from servescope.alerting.records import Alert, Shown
from servescope.collector.derive import Derivation
from servescope.collector.paging.annotations import annotate
from servescope.collector.paging.needs import needs_of
from servescope.collector.paging.notices import Notice
from servescope.collector.paging.sending import Bulletin, Post, Sender, Word
from servescope.collector.paging.settings import AlertingSettings
from servescope.collector.paging.states import Key, Standing, State, States
from servescope.collector.paging.view import CollectorView
from servescope.collector.telemetry import Telemetry
from servescope.contract.expressions import Vector
from servescope.contract.extrapolation import Bounds
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import Deployment
from servescope.contract.samples import Labels, Snapshot
from servescope.store.embedded import Store
from servescope.store.records import KeptAlert
from servescope.store.writer import Round

_logger = logging.getLogger(__name__)

# An alert that fires counts as over when nothing was heard of it for so many times the interval, as by Prometheus.
_VALID_FOR: Final = 4
# How alerts stand is written when it changes, and now and then, so that a store begun anew has it too.
_WRITTEN_EVERY_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class AlertShown:
    """An alert as it is shown: its labels and annotations, and since when it is in its state, in milliseconds."""

    name: str
    state: State
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    value: float
    since_ms: int
    fired_ms: int | None
    resolved_ms: int | None
    is_kept: bool


class AlertDesk:
    """Evaluates the alerts of a collector, and has receivers told. Of one event loop; not thread safe."""

    def __init__(
        self,
        settings: AlertingSettings,
        *,
        window_ms: int,
        bounds: Bounds,
        telemetry: Telemetry,
        post: Post | None,
        submit: Callable[[Round], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._submit, self._on_fault = submit, on_fault
        self._settings, self._telemetry = settings, telemetry
        # What any alert may need is kept, so that a reload finds the past of those it adds.
        self._told_here = {name: alert for name, alert in ALERTS.items() if is_told_here(alert)}
        self.view = CollectorView(needs_of(self._told_here.values(), window_ms), bounds)
        self.states = States(self._chosen(), on_fault)
        self.sender = Sender(settings, post, telemetry, self._on_told)
        self._known_until_ms = 0
        self._begun = False
        self._beginning = asyncio.Lock()
        self._standings: list[Standing] = []
        self._firing: frozenset[tuple[Key, int | None]] = frozenset()
        self._written: tuple[KeptAlert, ...] | None = None
        self._written_ms = 0

    def go_by(self, settings: AlertingSettings) -> None:
        """Go by other settings from the next evaluation on."""
        self._settings = settings
        self.states.go_by(self._chosen())
        self.sender.go_by(settings)

    def _chosen(self) -> list[Alert]:
        return [self._told_here[name] for name in self._settings.names() if name in self._told_here]

    @property
    def shown(self) -> list[AlertShown]:
        """Every alert that is pending, firing, or was resolved lately, by name and labels."""
        return [self._show(each) for each in self._standings]

    @property
    def evaluated(self) -> list[str]:
        """The alerts that are evaluated."""
        return [alert.name for alert in self._chosen()]

    @property
    def known_until_ms(self) -> int:
        """Until when scrapes were counted before a restart, 0 when nothing is known of before."""
        return self._known_until_ms

    def counts(self) -> list[tuple[Labels, float]]:
        """How many alerts there are of each name and state, those resolved left out."""
        found = Counter((each.alert, each.state) for each in self._standings if each.state != "resolved")
        return [
            ((("alertname", name), ("alertstate", state)), float(count))
            for (name, state), count in sorted(found.items())
        ]

    async def close(self) -> None:
        """Tell receivers nothing more."""
        await self.sender.close()

    # --- Scrapes ------------------------------------------------------------------------------------------------------

    def count(self, target_id: str, deployment: Deployment, time_ms: int, snapshot: Snapshot) -> None:
        """Add what a scrape counted to the budgets, unless that was done before a restart."""
        try:
            self.view.budgets.count(target_id, deployment, snapshot, is_known=time_ms <= self._known_until_ms)
        except Exception:
            # A mistake of ours in a budget must not cost the scrape.
            self._on_fault(f"{target_id}: a scrape was not added to the budgets")

    # --- Evaluations --------------------------------------------------------------------------------------------------

    def evaluate(
        self,
        at_ms: int,
        deployments: Mapping[Deployment, Derivation],
        own: Mapping[str, Vector],
        *,
        interval_ms: int,
        targets: Collection[str],
        unknown: Collection[Deployment] = (),
    ) -> None:
        """Evaluate every alert at an evaluation's instant, have receivers told and what is new stored.

        The figures of the `unknown` deployments could not be derived: what held of them is taken to hold.
        """
        started = time.perf_counter()
        self._begun = True
        self.view.take(at_ms, deployments, own)
        self.states.evaluate(self.view, at_ms, owed=self.sender.owed(), unknown=unknown)
        self._telemetry.count_left_out(self.states.left_out)
        standings = sorted(self.states.standings(), key=lambda each: each.key)
        self._standings = standings
        self._log_changes(standings)
        valid_for_ms = _VALID_FOR * max(self._settings.resend_ms, interval_ms)
        fired = tuple(each for each in standings if each.active.fired_ms is not None)
        self.sender.tell(Bulletin(at_ms, at_ms + valid_for_ms, fired, self._notice))
        self._store(at_ms, deployments, targets)
        self._telemetry.alerting_seconds.observe(time.perf_counter() - started)

    def _show(self, standing: Standing) -> AlertShown:
        alert, active = ALERTS[standing.alert], standing.active
        labels = {
            **dict(self._settings.external_labels), **dict(standing.labels), **alert.labels, "alertname": alert.name
        }  # fmt: skip
        return AlertShown(
            alert.name,
            standing.state,
            labels,
            annotate(alert, dict(standing.labels), active.value, self._settings.links),
            active.value,
            active.since_ms,
            active.fired_ms,
            standing.resolved_ms,
            active.kept_ms is not None,
        )

    def _notice(self, standing: Standing) -> Notice:
        shown = self._show(standing)
        # One that fired before the clock was set back must not begin after it ends: no Alertmanager takes that.
        ends_ms = self.view.at_ms if standing.resolved_ms is None else standing.resolved_ms
        starts_ms = min(standing.active.fired_ms or 0, ends_ms)
        source = f"{self._settings.external_url}/api/v1/alerts" if self._settings.external_url else ""
        return Notice(standing.key, shown.labels, shown.annotations, starts_ms, standing.resolved_ms, source)

    def _log_changes(self, standings: Iterable[Standing]) -> None:
        firing = _firing(standings)
        for (name, labels), _ in sorted(firing - self._firing):
            _logger.warning("alert %s fires: %s", name, _told(name, labels))
        for (name, labels), _ in sorted(self._firing - firing):
            _logger.info("alert %s is over: %s", name, _told(name, labels))
        self._firing = firing

    # --- Over a restart -----------------------------------------------------------------------------------------------

    def _store(self, at_ms: int, deployments: Mapping[Deployment, Derivation], targets: Collection[str]) -> None:
        budgets = self.view.budgets
        budgets.keep_targets(targets)
        sums = budgets.keep(at_ms)
        if sums is not None:
            self._submit(Round(sums=(at_ms, sums), forgotten_sums=budgets.thin(at_ms, deployments.keys()) or ()))
        self._store_alerts(anew=not 0 <= at_ms - self._written_ms < _WRITTEN_EVERY_MS)

    def _on_told(self) -> None:
        self._store_alerts(anew=False)

    def _store_alerts(self, *, anew: bool) -> None:
        """Have written how alerts stand and who knows, where that is not what was written last."""
        words = self.sender.words()
        alerts = tuple(
            _kept(each, {name: known.get(each.key) for name, known in words.items()}) for each in self._standings
        )
        if anew or alerts != self._written:
            self._written, self._written_ms = alerts, self.view.at_ms
            self._submit(Round(alerts=alerts))

    async def begin(self, history: Store, now_ms: int, settle_ms: int) -> None:
        """Take up what is stored of alerts, budgets and past figures, once; raises StoreError."""
        async with self._beginning:
            if self._begun:
                return
            self._begun = True
            await asyncio.to_thread(self._recall, history, now_ms, settle_ms)

    def _recall(self, history: Store, now_ms: int, settle_ms: int) -> None:
        down_ms = self.view.budgets.recall(history.read_sums(until_ms=now_ms))
        # How alerts stand is of use also where all else is of a time that lies ahead, as after a clock was set back;
        # and it comes first, so that nobody is called twice since the past of a figure cannot be read.
        self._recall_standings(
            history.read_alerts(), down_ms=now_ms if down_ms is None else down_ms, at_ms=now_ms, settle_ms=settle_ms
        )
        if down_ms is None:
            return
        self._known_until_ms = down_ms
        needs = self.view.needs
        longest_ms = max(needs.pasts.values(), default=0)
        keys = _keys(needs.pasts)
        self.view.recall({
            deployment: history.read_figures(deployment, now_ms - longest_ms, now_ms, names=keys)
            for deployment in history.deployments()
        })  # fmt: skip

    def _recall_standings(self, stored: Iterable[KeptAlert], *, down_ms: int, at_ms: int, settle_ms: int) -> None:
        # Another release may have had alerts that this one knows nothing of.
        kept = [each for each in stored if each.alert in self._told_here]
        standings = [_standing(each) for each in kept]
        self.states.recall(standings, down_ms=down_ms, at_ms=at_ms, settle_ms=settle_ms)
        words: dict[str, dict[Key, Word]] = {}
        for each in kept:
            for name, (starts_ms, told, told_ms) in each.told.items():
                words.setdefault(name, {})[each.alert, each.labels] = Word(
                    starts_ms, "firing" if told == "firing" else "resolved", told_ms
                )
        self.sender.recall(words)
        self._firing = _firing(standings)


def _firing(standings: Iterable[Standing]) -> frozenset[tuple[Key, int | None]]:
    """What fires and is worth a line in the log, which the alert that always fires is not."""
    return frozenset(
        (each.key, each.active.fired_ms)
        for each in standings
        if each.state == "firing" and ALERTS[each.alert].severity != "none"
    )


def _keys(pasts: Iterable[Shown]) -> list[str] | None:
    """The keys of these figures, None where a figure is asked for without the labels that its keys have."""
    keys = {figure_key(each.figure, {label: values[0] for label, values in each.where}): None for each in pasts}
    is_plain = all(set(FIGURES[each.figure].by) == {label for label, _ in each.where} for each in pasts)
    return list(keys) if is_plain else None


def _kept(standing: Standing, words: Mapping[str, Word | None]) -> KeptAlert:
    active = standing.active
    times = (active.since_ms, active.fired_ms, active.kept_ms, standing.resolved_ms)
    told = {name: (word.starts_ms, word.told, word.at_ms) for name, word in words.items() if word is not None}
    return KeptAlert(standing.alert, standing.labels, *times, told, active.value)


def _standing(kept: KeptAlert) -> Standing:
    active = Active(kept.value, kept.since_ms, kept.fired_ms, kept.kept_ms)
    return Standing(kept.alert, kept.labels, active, kept.resolved_ms)


def _told(name: str, labels: Iterable[tuple[str, str]]) -> str:
    pairs = ", ".join(f'{label}="{value}"' for label, value in labels)
    return f"{ALERTS[name].summary}" + (f" ({pairs})" if pairs else "")
