"""The alerts that are pending, firing or were resolved lately, wherever they are evaluated; no widgets here."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.promql import alert_promql, term_promql
from servescope.alerting.rules.records import Alert
from servescope.alerting.sections import Section, runbook_sections
from servescope.collector.paging.annotations import render
from servescope.contract.types import DEFAULT_WINDOW
from servescope.store.history import History
from servescope.store.prometheus.history import ALERT_RULES
from servescope.store.records import KeptAlert

AlarmState = Literal["firing", "pending", "resolved"]
STATES: Final[tuple[AlarmState, ...]] = ("firing", "pending", "resolved")
# Of an alert without a severity, as a watchdog: it fires as long as alerts are evaluated.
_WATCHDOG_WORDS: Final[Mapping[AlarmState, str]] = {"firing": "working", "pending": "starting", "resolved": "stopped"}
SEVERITIES: Final = ("critical", "warning", "info", "none")
_CONTRACT_LABELS: Final = ("deployment_id", "inference_stack", "replica", "target_id")


@dataclass(frozen=True, slots=True)
class Alarm:
    """One alert for one set of labels: since when it has its state, and what it says."""

    name: str
    state: AlarmState
    severity: str
    labels: Mapping[str, str]
    since_ms: int
    text: str

    @property
    def place(self) -> str:
        """What it is about, in a few words."""
        return " · ".join(self.labels[label] for label in _CONTRACT_LABELS if self.labels.get(label))

    @property
    def word(self) -> str:
        """Its state, as it is shown."""
        return _WATCHDOG_WORDS[self.state] if self.severity == "none" else self.state


def read_alarms(store: History) -> list[Alarm]:
    """The alerts that are not quiet: those that need action first, of them firing ones, and then critical ones."""
    return sorted(map(_alarm, store.read_alerts()), key=_place)


def unevaluated(store: History) -> str:
    """Why nothing is known of the alerts of this past; empty where they are evaluated."""
    if ALERT_RULES not in store.missing_rules():
        return ""
    return (
        f"The Prometheus at {store.prometheus_url} does not evaluate our alerts: load `alerts/generated/{ALERT_RULES}` "
        "in its `rule_files`, or in vmalert, or in the ruler of Mimir or Thanos."
    )


def needing_action(found: Iterable[Alarm]) -> list[Alarm]:
    """Those with a severity: one without, as a watchdog that fires all the time, needs nobody."""
    return [each for each in found if each.severity != "none"]


def are_quiet(urgent: Iterable[Alarm]) -> bool:
    """Whether none of the alerts that need action is firing or pending."""
    return all(each.state == "resolved" for each in urgent)


def _place(alarm: Alarm) -> tuple[bool, int, int, str, str]:
    return (
        alarm.severity == "none", STATES.index(alarm.state), _rank(alarm.severity), alarm.name, alarm.place
    )  # fmt: skip


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def _alarm(kept: KeptAlert) -> Alarm:
    state: AlarmState = "resolved" if kept.resolved_ms is not None else "pending" if kept.fired_ms is None else "firing"
    since_ms = {"resolved": kept.resolved_ms, "firing": kept.fired_ms}.get(state) or kept.since_ms
    labels, known = dict(kept.labels), ALERTS.get(kept.alert)
    if known is None:
        return Alarm(kept.alert, state, labels.get("severity", "none"), labels, since_ms, "")
    text = known.summary if math.isnan(kept.value) else render(known.description, labels, kept.value)
    return Alarm(kept.alert, state, known.severity, labels, since_ms, text)


def sections_of(alert: Alert) -> tuple[Section, ...]:
    """The runbook of an alert, with its queries and its rule."""
    return runbook_sections(alert, alert_promql(alert, DEFAULT_WINDOW), lambda term: term_promql(term, DEFAULT_WINDOW))
