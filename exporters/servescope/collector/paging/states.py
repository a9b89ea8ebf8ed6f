"""Which alerts are pending, firing and resolved, from evaluation to evaluation and over a restart."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from servescope.alerting.evaluation import Active, View, advance, duration_ms, holding
from servescope.alerting.records import Alert
from servescope.contract.expressions import Vector
from servescope.contract.identity import DEPLOYMENT_LABELS, Deployment
from servescope.contract.samples import Labels

State = Literal["pending", "firing", "resolved"]

MOST_ACTIVE: Final = 2_000
"""So many alerts are pending or firing at a time; more are left out, and counted. So many that are over are kept."""

KEPT_FREE: Final = 500
"""So many of these are for pages only: a warning per target must not leave out the page they add up to."""

RESOLVED_KEPT_MS: Final = 15 * 60_000
"""For so long it is told that an alert is resolved, as by Prometheus."""

RESOLVED_OWED_MS: Final = 24 * 3_600_000
"""For so long it is remembered that an alert is resolved where somebody still takes it to fire."""

OUTAGE_TOLERATED_MS: Final = 60 * 60_000
"""An alert that was pending goes on waiting after an outage of at most this, as in Prometheus."""

GRACE_MS: Final = 10 * 60_000
"""Right after an outage nothing fires sooner than this that was pending, but for what waits less, as in Prometheus."""

Key = tuple[str, Labels]
"""An alert's name and the labels of its condition."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How an alert of one set of labels stands; `resolved_ms` is when it was over, None while it is not."""

    alert: str
    labels: Labels
    active: Active
    resolved_ms: int | None = None

    @property
    def key(self) -> Key:
        """By what it is known."""
        return self.alert, self.labels

    @property
    def state(self) -> State:
        """Whether it waits, fires, or is over."""
        if self.resolved_ms is not None:
            return "resolved"
        return "pending" if self.active.fired_ms is None else "firing"


class States:
    """How all alerts stand. `on_fault(message)` is called for one that cannot be evaluated. Not thread safe."""

    def __init__(self, alerts: Iterable[Alert], on_fault: Callable[[str], None]) -> None:
        self._on_fault = on_fault
        self._alerts: dict[str, Alert] = {}
        self._active: dict[str, dict[Labels, Active]] = {}
        self._resolved: dict[Key, Standing] = {}
        # Those of before a restart, until scrapes can have told again what holds.
        self._trusted: dict[str, set[Labels]] = {}
        self._trusted_until_ms = 0
        self._unknown: set[Labels] = set()
        self.left_out = 0
        self.go_by(alerts)

    def go_by(self, alerts: Iterable[Alert]) -> None:
        """Evaluate these from now on; what is active of others is over at the next evaluation."""
        self._alerts = {alert.name: alert for alert in alerts}

    def standings(self) -> list[Standing]:
        """Every alert that is pending, firing, or was resolved lately."""
        active = [
            Standing(name, labels, each)
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
        """Find out what holds at an evaluation, and what becomes of every alert.

        The end of those that are `owed` is remembered for longer, as somebody was not told of it yet. Of deployments
        that are `unknown` now, what held is taken to hold.
        """
        self.left_out = 0
        self._unknown = {deployment.labels() for deployment in unknown}
        for name in self._active.keys() - self._alerts.keys():
            self._settle(name, {}, at_ms)
        for name, alert in self._alerts.items():
            try:
                before = self._active.get(name, {})
                held = self._bounded(alert, self._believed(name, holding(alert.condition, view), at_ms))
                if held or before:
                    self._settle(name, advance(alert, before, held, at_ms), at_ms)
            except Exception:
                # A mistake of ours on one alert must not silence the others; it stays as it was.
                self._on_fault(f"alert {name}: not evaluated")
        self._forget_resolved(at_ms, owed)
        if at_ms >= self._trusted_until_ms:
            self._trusted = {}

    def _forget_resolved(self, at_ms: int, owed: Collection[Key]) -> None:
        kept = [
            # One that ended while the clock was ahead ends now.
            replace(each, resolved_ms=min(_ended(each), at_ms))
            for key, each in self._resolved.items()
            if at_ms - _ended(each) <= (RESOLVED_OWED_MS if key in owed else RESOLVED_KEPT_MS)
        ]
        if len(kept) > MOST_ACTIVE:
            kept = sorted(kept, key=_ended)[-MOST_ACTIVE:]
        self._resolved = {each.key: each for each in kept}

    def _believed(self, name: str, held: Vector, at_ms: int) -> Vector:
        """What holds; of what nothing can be said now, what held before; and so right after a restart."""
        if self._unknown:
            held = {**self._unsaid(name), **held}
        if at_ms >= self._trusted_until_ms:
            return held
        before = self._active.get(name, {})
        trusted = self._trusted.get(name, set())
        # Once it is seen to hold it is told of as any other.
        trusted.difference_update(held)
        return {**{labels: before[labels].value for labels in trusted if labels in before}, **held}

    def _unsaid(self, name: str) -> Vector:
        """What held of the deployments that are unknown."""
        return {
            labels: each.value
            for labels, each in self._active.get(name, {}).items()
            if each.kept_ms is None and tuple(pair for pair in labels if pair[0] in DEPLOYMENT_LABELS) in self._unknown
        }

    def _bounded(self, alert: Alert, held: Vector) -> Vector:
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
                self._resolved[name, labels] = Standing(name, labels, former, at_ms)
        for labels, active in after.items():
            if active.fired_ms == at_ms:
                self._resolved.pop((name, labels), None)
        if after:
            self._active[name] = after
        else:
            self._active.pop(name, None)

    # --- Over a restart -----------------------------------------------------------------------------------------------

    def recall(self, standings: Iterable[Standing], *, down_ms: int, at_ms: int, settle_ms: int) -> None:
        """Go on from how alerts stood at `down_ms`, when the collector was last there.

        For `settle_ms` what held then is taken to hold, since nothing can be said before targets were scraped twice.
        """
        for each in standings:
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


def _ended(standing: Standing) -> int:
    return standing.resolved_ms or 0


def _shifted(alert: Alert, active: Active, *, down_ms: int, at_ms: int) -> Active | None:
    """An alert that was pending, as if the time of the outage had not been; None where that was too long.

    As Prometheus restores it: what is left to wait is at least the grace, unless the alert waits less than that, and
    then it begins anew.
    """
    waits_ms = duration_ms(alert.wait)
    if not 0 <= at_ms - down_ms <= OUTAGE_TOLERATED_MS or waits_ms < GRACE_MS:
        return None
    left_ms = waits_ms - (down_ms - active.since_ms)
    if left_ms <= 0:
        return active
    if left_ms < GRACE_MS:
        return replace(active, since_ms=at_ms + GRACE_MS - waits_ms)
    return replace(active, since_ms=active.since_ms + at_ms - down_ms)
