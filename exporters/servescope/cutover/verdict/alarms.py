"""The alerts that page somebody and fire on an arm: they are said with the verdict, whatever the metrics show."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from servescope.alerting.alerts import ALERTS
from servescope.contract.events import Event
from servescope.contract.samples import Labels
from servescope.cutover.judgement import FiringAlert
from servescope.cutover.plan.plan import Arm, CutoverPlan

_PAGES = frozenset({"critical", "page"})
"""The severities that page: that of the alerts here, and a usual one of other rules."""


def firing_pages(plan: CutoverPlan, events: Iterable[Event], at_ms: int) -> tuple[FiringAlert, ...]:
    """Those of both arms that fire at a time, by the event log, the oldest first; none where there is no event log."""
    fired: dict[Labels, Event] = {}
    for event in sorted(events, key=lambda each: each.time_ms):
        if event.time_ms > at_ms:
            break
        if event.kind == "alert_fired":
            fired.setdefault(event.labels, event)
        elif event.kind == "alert_resolved":
            fired.pop(event.labels, None)
    return tuple(each for event in fired.values() for each in _alerts(plan, event))


def _alerts(plan: CutoverPlan, event: Event) -> Iterator[FiringAlert]:
    labels = dict(event.labels)
    name = labels.get("alertname", "")
    known = ALERTS.get(name)
    severity = labels.get("severity") or (known.severity if known else "")
    if severity not in _PAGES:
        return
    summary = known.summary if known else event.text
    for arm in (plan.v1, plan.v2):
        if _is_of(arm, labels):
            yield FiringAlert(name, "v1" if arm is plan.v1 else "v2", event.time_ms, summary, labels.get("replica", ""))


def _is_of(arm: Arm, labels: dict[str, str]) -> bool:
    """Whether an alert's labels are of an arm: none of its selectors' labels is another one, and one is the same."""
    for selector in arm.selectors:
        shared = selector.keys() & labels.keys()
        if shared and all(labels[label] == selector[label] for label in shared):
            return True
    return False
