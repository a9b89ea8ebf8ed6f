"""Alerting inside the collector: evaluate after the figures, keep the state in the store, notify receivers."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from servescope.alerting.alerts import ALERTS, make_alerts
from servescope.alerting.rules.evaluation import Active, duration_ms, is_evaluated_by_collector
from servescope.alerting.rules.records import Alert, Extreme, FigureRef, SelfMetric, Subquery, Total
from servescope.collector.figures.derive import Derivation
from servescope.collector.paging.annotations import annotate, list_others
from servescope.collector.paging.notifier import Batch, LastSent, Notifier, Post
from servescope.collector.paging.payloads import AlertPayload
from servescope.collector.paging.requirements import requirements_of
from servescope.collector.paging.settings import AlertingSettings
from servescope.collector.paging.states import AlertInstance, AlertStates, Key, State
from servescope.collector.paging.view import CollectorView, span_ms_of
from servescope.collector.telemetry import Telemetry
from servescope.contract.events import Event
from servescope.contract.expressions import Vector
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import ENGINE_ROLES, Deployment
from servescope.contract.own_metrics import SCRAPE_AGE_SERIES
from servescope.contract.samples import Labels, Snapshot, make_labels
from servescope.increments.extrapolation import WindowBounds
from servescope.store.embedded import Store
from servescope.store.records import KeptAlert
from servescope.store.writer import WriteBatch

_logger = logging.getLogger(__name__)

# Alertmanager resolves a firing alert that was not sent again within this many intervals, as with Prometheus, or within
# the time that a restart takes at most.
_VALID_FOR: Final = 4
_LEAST_VALID_MS: Final = 20 * 60_000
# Alert states are written when they change and at this interval, so that a new store file has them too.
_WRITTEN_EVERY_MS: Final = 60_000
_RESTORED_EVERY_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class AlertShown:
    """An alert as the API shows it: labels, annotations, state, and times in milliseconds."""

    name: str
    state: State
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    value: float
    since_ms: int
    fired_ms: int | None
    resolved_ms: int | None
    is_kept: bool


class AlertManager:
    """Evaluates a collector's alerts and notifies receivers. Belongs to one event loop; not thread safe."""

    def __init__(
        self,
        settings: AlertingSettings,
        *,
        window_ms: int,
        bounds: WindowBounds,
        telemetry: Telemetry,
        post: Post | None,
        submit: Callable[[WriteBatch], None],
        on_fault: Callable[[str], None],
    ) -> None:
        self._submit, self._on_fault = submit, on_fault
        self._settings, self._telemetry = settings, telemetry
        # Kept for every alert, so that one that a reload enables finds its past.
        self.choices = settings.choices
        self._alerts = make_alerts(settings.choices)
        self._evaluable = {name: alert for name, alert in self._alerts.items() if is_evaluated_by_collector(alert)}
        self.view = CollectorView(requirements_of(self._evaluable.values(), window_ms), bounds)
        self.states = AlertStates(self._chosen(), on_fault)
        self.notifier = Notifier(settings, post, telemetry, self._on_sent)
        self._known_until_ms = 0
        self._begun = False
        self._beginning = asyncio.Lock()
        self._instances: list[AlertInstance] = []
        self._firing: frozenset[tuple[Key, int | None]] = frozenset()
        self._written: tuple[KeptAlert, ...] | None = None
        self._written_ms = 0

    def apply(self, settings: AlertingSettings) -> None:
        """Apply other settings from the next evaluation on, but for choices: what is counted depends on them."""
        self._settings = settings
        self.states.apply(self._chosen())
        self.notifier.apply(settings)

    def _chosen(self) -> list[Alert]:
        return [self._evaluable[name] for name in self._settings.names() if name in self._evaluable]

    @property
    def shown(self) -> list[AlertShown]:
        """Every alert that is pending, firing, or was resolved lately, by name and labels."""
        return [self._show(each) for each in self._instances]

    @property
    def evaluated(self) -> list[str]:
        """The alerts that are evaluated."""
        return [alert.name for alert in self._chosen()]

    @property
    def known_until_ms(self) -> int:
        """The time up to which scrapes were counted before a restart, 0 without a restart."""
        return self._known_until_ms

    def counts(self) -> list[tuple[Labels, float]]:
        """The number of alerts by name and state, without resolved ones."""
        found = Counter((each.alert, each.state) for each in self._instances if each.state != "resolved")
        return [
            ((("alertname", name), ("alertstate", state)), float(count))
            for (name, state), count in sorted(found.items())
        ]

    async def close(self) -> None:
        """Stop notifying receivers."""
        await self.notifier.close()

    # --- Scrapes ------------------------------------------------------------------------------------------------------

    def count(self, target_id: str, deployment: Deployment, snapshot: Snapshot, *, is_known: bool = False) -> None:
        """Add a scrape's counters to the error budgets; with `is_known` it was counted before a restart."""
        try:
            self.view.budgets.count(target_id, deployment, snapshot, is_known=is_known)
        except Exception:
            # An error in the budgets must not lose the scrape.
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
        """Evaluate every alert at an evaluation's instant, notify receivers and store what changed.

        The figures of the `unknown` deployments could not be derived: their alerts keep their state.
        """
        started = time.perf_counter()
        self._begun = True
        self.view.update(at_ms, deployments, own)
        self.states.evaluate(self.view, at_ms, owed=self.notifier.owed(), unknown=unknown)
        self._telemetry.count_left_out(self.states.left_out)
        instances = sorted(self.states.instances(), key=lambda each: each.key)
        self._instances = instances
        self._log_changes(instances)
        valid_for_ms = max(_VALID_FOR * max(self._settings.resend_ms, interval_ms), _LEAST_VALID_MS)
        fired = tuple(each for each in instances if each.active.fired_ms is not None)
        self.notifier.send(Batch(at_ms, at_ms + valid_for_ms, fired, self._payload))
        self._store(at_ms, deployments, targets)
        self._telemetry.alerting_seconds.observe(time.perf_counter() - started)

    def _show(self, instance: AlertInstance) -> AlertShown:
        alert, active = self._alerts[instance.alert], instance.active
        listed = self.view.listed(alert.lists, dict(instance.labels)) if alert.lists else ()
        labels = {
            **dict(self._settings.external_labels), **dict(instance.labels), **alert.labels, "alertname": alert.name
        }  # fmt: skip
        return AlertShown(
            alert.name,
            instance.state,
            labels,
            {
                **annotate(alert, dict(instance.labels), active.value, self._settings.links, listed),
                **list_others(alert, dict(instance.labels), self._instances),
            },
            active.value,
            active.since_ms,
            active.fired_ms,
            instance.resolved_ms,
            active.kept_ms is not None,
        )

    def _payload(self, instance: AlertInstance) -> AlertPayload:
        shown = self._show(instance)
        # Alertmanager refuses an alert that starts after it ends, as one that fired before the clock was set back.
        ends_ms = self.view.at_ms if instance.resolved_ms is None else instance.resolved_ms
        starts_ms = min(instance.active.fired_ms or 0, ends_ms)
        source = f"{self._settings.external_url}/api/v1/alerts" if self._settings.external_url else ""
        return AlertPayload(instance.key, shown.labels, shown.annotations, starts_ms, instance.resolved_ms, source)

    def _log_changes(self, instances: Iterable[AlertInstance]) -> None:
        firing, at_ms = _firing(instances), self.view.at_ms
        events = []
        for (name, labels), fired_ms in sorted(firing - self._firing):
            _logger.warning("alert %s fires: %s", name, _describe(self._alerts[name], labels))
            time_ms = at_ms if fired_ms is None else fired_ms
            events.append(Event(time_ms, "alert_fired", _event_labels(name, labels), f"{name} fires"))
        for (name, labels), _ in sorted(self._firing - firing):
            _logger.info("alert %s is over: %s", name, _describe(self._alerts[name], labels))
            events.append(Event(at_ms, "alert_resolved", _event_labels(name, labels), f"{name} is resolved"))
        if events:
            self._submit(WriteBatch(events=events))
        self._firing = firing

    def forget_after(self, time_ms: int, by_ms: int) -> None:
        """Have no alert be of later than an instant, to which the clock was set back by so much; they go on."""
        self.states.forget_after(time_ms, by_ms)
        self.notifier.forget_after(time_ms)
        self._instances = sorted(self.states.instances(), key=lambda each: each.key)
        self._firing = _firing(self._instances)

    # --- Over a restart -----------------------------------------------------------------------------------------------

    def _store(self, at_ms: int, deployments: Mapping[Deployment, Derivation], targets: Collection[str]) -> None:
        budgets = self.view.budgets
        budgets.keep_targets(targets)
        sums = budgets.keep(at_ms)
        if sums is not None:
            self._submit(WriteBatch(sums=(at_ms, sums), forgotten_sums=budgets.thin(at_ms, deployments.keys()) or ()))
        self._store_alerts(always=not 0 <= at_ms - self._written_ms < _WRITTEN_EVERY_MS)

    def _on_sent(self) -> None:
        self._store_alerts(always=False)

    def _store_alerts(self, *, always: bool) -> None:
        """Store alert states and what was sent, where that differs from what was stored last."""
        last_sent = self.notifier.last_sent()
        alerts = tuple(
            _kept(each, {name: known.get(each.key) for name, known in last_sent.items()}) for each in self._instances
        )
        if always or alerts != self._written:
            self._written, self._written_ms = alerts, self.view.at_ms
            self._submit(WriteBatch(alerts=alerts))

    async def begin(self, history: Store, now_ms: int, settle_ms: int) -> None:
        """Restore alerts, budgets and past figures from the store, once; raises StoreError."""
        async with self._beginning:
            if self._begun:
                return
            self._begun = True
            await asyncio.to_thread(self._restore, history, now_ms, settle_ms)

    def _restore(self, history: Store, now_ms: int, settle_ms: int) -> None:
        down_ms = self.view.budgets.restore(history.read_sums(until_ms=now_ms))
        # First, and also when all else has a time in the future (after a clock was set back): an unreadable past of
        # figures must not notify anybody twice.
        self._restore_instances(
            history.read_alerts(), down_ms=now_ms if down_ms is None else down_ms, at_ms=now_ms, settle_ms=settle_ms
        )
        if down_ms is None:
            return
        self._known_until_ms = down_ms
        pasts = self.view.requirements.pasts
        longest_ms = max(pasts.values(), default=0)
        keys = _keys(pasts)
        self.view.restore({
            deployment: history.read_figures(deployment, now_ms - longest_ms, now_ms, names=keys)
            for deployment in history.deployments()
        })  # fmt: skip
        self._restore_samples(history, now_ms)

    def _restore_samples(self, history: Store, now_ms: int) -> None:
        """Restore what conditions have sampled: an alert on what is gone must not be resolved by a restart."""
        for lately in self.view.requirements.lately:
            figure = _witness(lately)
            if figure:
                span_ms = span_ms_of(lately)
                # Closer than the samples: the last instants of a deployment that left have no value.
                points = span_ms // min(duration_ms(lately.every), _RESTORED_EVERY_MS)
                tables = {
                    deployment: history.read_figures(
                        deployment, now_ms - span_ms, now_ms, names=[figure], max_points=points
                    )
                    for deployment in history.deployments()
                }  # fmt: skip
                self.view.restore_samples(lately, figure, tables)

    def _restore_instances(self, stored: Iterable[KeptAlert], *, down_ms: int, at_ms: int, settle_ms: int) -> None:
        # Another release may have stored alerts that do not exist here.
        kept = [each for each in stored if each.alert in self._evaluable]
        instances = [_instance(each) for each in kept]
        self.states.restore(instances, down_ms=down_ms, at_ms=at_ms, settle_ms=settle_ms)
        last_sent: dict[str, dict[Key, LastSent]] = {}
        for each in kept:
            for name, (starts_ms, state, sent_ms) in each.sent.items():
                last_sent.setdefault(name, {})[each.alert, each.labels] = LastSent(
                    starts_ms, "firing" if state == "firing" else "resolved", sent_ms
                )
        self.notifier.restore(last_sent)
        self._firing = _firing(instances)


def _firing(instances: Iterable[AlertInstance]) -> frozenset[tuple[Key, int | None]]:
    """The firing alerts to log: all but the Watchdog, which always fires."""
    return frozenset(
        (each.key, each.active.fired_ms)
        for each in instances
        if each.state == "firing" and ALERTS[each.alert].severity != "none"
    )


def _witness(lately: Subquery) -> str:
    """The figure whose stored past says what was sampled, "" where none does."""
    match lately.of:
        case Total(shown):
            return figure_key(shown.figure, {label: values[0] for label, values in shown.where})
        case Extreme(_, SelfMetric(name, _, where)) if name == SCRAPE_AGE_SERIES and where == (("role", ENGINE_ROLES),):
            # Which deployments had engines among the targets; of targets themselves only the present is stored.
            return "concurrent_requests"
        case Extreme("max", SelfMetric("servescope_target_up", _, where), by) if (
            where == (("role", ENGINE_ROLES),) and "replica" not in by
        ):
            # Of which deployments an engine was up.
            return figure_key("replica_count_by_status", {"status": "active"})
        case _:
            return ""


def _keys(pasts: Iterable[FigureRef]) -> list[str] | None:
    """The keys of these figures, None where a figure is read without all labels of its keys."""
    keys = {figure_key(each.figure, {label: values[0] for label, values in each.where}): None for each in pasts}
    is_plain = all(set(FIGURES[each.figure].by) == {label for label, _ in each.where} for each in pasts)
    return list(keys) if is_plain else None


def _kept(instance: AlertInstance, last_sent: Mapping[str, LastSent | None]) -> KeptAlert:
    active = instance.active
    times = (active.since_ms, active.fired_ms, active.kept_ms, instance.resolved_ms)
    by_receiver = {
        name: (sent.starts_ms, sent.state, sent.at_ms) for name, sent in last_sent.items() if sent is not None
    }
    return KeptAlert(instance.alert, instance.labels, *times, by_receiver, active.value)


def _instance(kept: KeptAlert) -> AlertInstance:
    active = Active(kept.value, kept.since_ms, kept.fired_ms, kept.kept_ms)
    return AlertInstance(kept.alert, kept.labels, active, kept.resolved_ms)


def _event_labels(name: str, labels: Labels) -> Labels:
    return make_labels((*labels, ("alertname", name)))


def _describe(alert: Alert, labels: Iterable[tuple[str, str]]) -> str:
    pairs = ", ".join(f'{label}="{value}"' for label, value in labels)
    return f"{alert.summary}" + (f" ({pairs})" if pairs else "")
