"""Which alerts are pending, firing and resolved, from evaluation to evaluation and over a restart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from servescope.alerting.rules.evaluation import (
    Active,
    CompiledAlert,
    Instant,
    View,
    advance,
    compile_alert,
    duration_ms,
)
from servescope.alerting.rules.records import Alert
from servescope.contract.expressions import Vector
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.samples import Labels

State = Literal["pending", "firing", "resolved"]

MOST_ACTIVE: Final = 2_000
"""The most alerts that are pending or firing; more are left out and counted. Also the most resolved ones kept."""

KEPT_FREE: Final = 500
"""Reserved for critical alerts: a warning per target must not leave out the page they add up to."""

RESOLVED_KEPT_MS: Final = 15 * 60_000
"""A resolved alert is sent for this long, as by Prometheus."""

RESOLVED_OWED_MS: Final = 24 * 3_600_000
"""A resolved alert is kept for this long while a receiver was only sent that it fires."""

OUTAGE_TOLERATED_MS: Final = 60 * 60_000
"""A pending alert stays pending over an outage of at most this, as in Prometheus."""

GRACE_MS: Final = 10 * 60_000
"""A pending alert fires at the earliest this long after an outage, unless its `for` is shorter, as in Prometheus."""

Key = tuple[str, Labels]
"""An alert's name and the labels of its condition."""


@dataclass(frozen=True, slots=True)
class AlertInstance:
    """The state of an alert for one set of labels; `resolved_ms` is None while it is pending or firing."""

    alert: str
    labels: Labels
    active: Active
    resolved_ms: int | None = None

    @property
    def key(self) -> Key:
        """The alert's name and labels."""
        return self.alert, self.labels

    @property
    def state(self) -> State:
        """Pending, firing or resolved."""
        if self.resolved_ms is not None:
            return "resolved"
        return "pending" if self.active.fired_ms is None else "firing"


class AlertStates:
    """The states of all alerts. `on_fault(message)` is called for one whose evaluation fails. Not thread safe."""

    def __init__(self, alerts: Iterable[Alert], on_fault: Callable[[str], None]) -> None:
        self._on_fault = on_fault
        self._alerts: dict[str, Alert] = {}
        self._compiled: dict[str, CompiledAlert] = {}
        self._active: dict[str, dict[Labels, Active]] = {}
        self._resolved: dict[Key, AlertInstance] = {}
        # Active before a restart, assumed to hold until targets can have been scraped twice.
        self._trusted: dict[str, set[Labels]] = {}
        self._trusted_until_ms = 0
        self._unknown: set[Labels] = set()
        self.left_out = 0
        self.apply(alerts)

    def apply(self, alerts: Iterable[Alert]) -> None:
        """Evaluate these from now on; active ones of others resolve at the next evaluation."""
        self._alerts = {alert.name: alert for alert in alerts}
        self._compiled = {name: compile_alert(alert) for name, alert in self._alerts.items()}

    def instances(self) -> list[AlertInstance]:
        """Every alert that is pending, firing or recently resolved."""
        active = [
            AlertInstance(name, labels, each)
            for name, by_labels in self._active.items()
            for labels, each in by_labels.items()
        ]
        return [*active, *(each for key, each in self._resolved.items() if not self._fires(*key))]

    def _fires(self, name: str, labels: Labels) -> bool:
        active = self._active.get(name, {}).get(labels)
        return active is not None and active.fired_ms is not None

    def evaluate(
        self, view: View, at_ms: int, *, owed: Collection[Key] = (), unknown: Collection[Deployment] = ()
    ) -> None:
        """Evaluate every alert and update its state.

        Resolved alerts of `owed` are kept for longer, as a receiver was not sent their end yet. Conditions of
        deployments that are `unknown` now keep holding if they held.
        """
        at, self.left_out = Instant(view), 0
        self._unknown = {deployment.labels() for deployment in unknown}
        for name in self._active.keys() - self._alerts.keys():
            self._settle(name, {}, at_ms)
        for name, alert in self._alerts.items():
            try:
                before = self._active.get(name, {})
                held = self._bounded(alert, self._believed(name, self._compiled[name].active(before, at), at_ms))
                if held or before:
                    self._settle(name, advance(alert, before, held, at_ms), at_ms)
            except Exception:
                # An error in one alert must not silence the others; it keeps its state.
                self._on_fault(f"alert {name}: not evaluated")
        self._forget_resolved(at_ms, owed)
        if at_ms >= self._trusted_until_ms:
            self._trusted = {}

    def _forget_resolved(self, at_ms: int, owed: Collection[Key]) -> None:
        kept = [
            # One that resolved while the clock was ahead is resolved now.
            replace(each, resolved_ms=min(_ended(each), at_ms))
            for key, each in self._resolved.items()
            if at_ms - _ended(each) <= (RESOLVED_OWED_MS if key in owed else RESOLVED_KEPT_MS)
        ]
        if len(kept) > MOST_ACTIVE:
            kept = sorted(kept, key=_ended)[-MOST_ACTIVE:]
        self._resolved = {each.key: each for each in kept}

    def _believed(self, name: str, held: Vector, at_ms: int) -> Vector:
        """What holds, with what held before for unknown deployments and right after a restart."""
        if self._unknown:
            held = {**self._held_unknown(name), **held}
        if at_ms >= self._trusted_until_ms:
            return held
        before = self._active.get(name, {})
        trusted = self._trusted.get(name, set())
        # Once it was seen to hold it is treated as any other.
        trusted.difference_update(held)
        return {**{labels: before[labels].value for labels in trusted if labels in before}, **held}

    def _held_unknown(self, name: str) -> Vector:
        """What held for the deployments that are unknown now."""
        return {
            labels: each.value
            for labels, each in self._active.get(name, {}).items()
            if each.kept_ms is None and tuple(pair for pair in labels if pair[0] in DEPLOYMENT_LABELS) in self._unknown
        }

    def _bounded(self, alert: Alert, held: Vector) -> Vector:
        if not held:
            return held
        before = self._active.get(alert.name, {})
        most = MOST_ACTIVE - (KEPT_FREE if alert.severity in ("warning", "info") else 0)
        room = most - sum(map(len, self._active.values()))
        new = [labels for labels in held if labels not in before]
        if len(new) <= room:
            return held
        left_out = set(sorted(new)[max(room, 0) :])
        self.left_out += len(left_out)
        return {labels: value for labels, value in held.items() if labels not in left_out}

    def _settle(self, name: str, after: dict[Labels, Active], at_ms: int) -> None:
        for labels, former in self._active.get(name, {}).items():
            if labels not in after and former.fired_ms is not None:
                self._resolved[name, labels] = AlertInstance(name, labels, former, at_ms)
        for labels, active in after.items():
            if active.fired_ms == at_ms:
                self._resolved.pop((name, labels), None)
        if after:
            self._active[name] = after
        else:
            self._active.pop(name, None)

    def forget_after(self, time_ms: int, by_ms: int) -> None:
        """Have no state be of later than an instant, to which the clock was set back by so much."""
        self._active = {
            name: {labels: active.known_at(time_ms) for labels, active in by_labels.items()}
            for name, by_labels in self._active.items()
        }
        self._resolved = {
            key: replace(each, active=each.active.known_at(time_ms), resolved_ms=min(_ended(each), time_ms))
            for key, each in self._resolved.items()
        }
        self._trusted_until_ms -= by_ms

    # --- Over a restart -----------------------------------------------------------------------------------------------

    def restore(self, instances: Iterable[AlertInstance], *, down_ms: int, at_ms: int, settle_ms: int) -> None:
        """Restore the states of `down_ms`, when the collector last evaluated.

        For `settle_ms` what held then is assumed to hold, since rates need two scrapes of every target.
        """
        for each in instances:
            alert = self._alerts.get(each.alert)
            if each.resolved_ms is not None:
                self._resolved[each.key] = each
                continue
            if each.active.fired_ms is None:
                active = None if alert is None else _shifted(alert, each.active, down_ms=down_ms, at_ms=at_ms)
                if active is None:
                    continue
                each = replace(each, active=active)
            self._active.setdefault(each.alert, {})[each.labels] = each.active
            if each.active.kept_ms is None:
                self._trusted.setdefault(each.alert, set()).add(each.labels)
        self._trusted_until_ms = at_ms + settle_ms


def _ended(instance: AlertInstance) -> int:
    return instance.resolved_ms or 0


def _shifted(alert: Alert, active: Active, *, down_ms: int, at_ms: int) -> Active | None:
    """A pending alert without the time of the outage; None after an outage that was too long.

    As Prometheus restores it: at least the grace is left to wait; an alert with a shorter `for` starts over.
    """
    waits_ms = duration_ms(alert.for_)
    if not 0 <= at_ms - down_ms <= OUTAGE_TOLERATED_MS or waits_ms < GRACE_MS:
        return None
    left_ms = waits_ms - (down_ms - active.since_ms)
    if left_ms <= 0:
        return active
    if left_ms < GRACE_MS:
        return replace(active, since_ms=at_ms + GRACE_MS - waits_ms)
    return replace(active, since_ms=active.since_ms + at_ms - down_ms)
