"""Incidents as the scrapes of a fleet: counters and gauges by stretches of time, through the rules of promtool."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alerts.objectives import objective_group
from alerts.recording import recording_rule
from alerts.rules import alert_groups
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.records import BadRatio, FigureRef, conditions_of, terms
from servescope.contract.figures import FIGURES
from tests.support.alert_stories import TARGET, series
from tests.support.promtool import Suite, check_firing, failures

Stretches = Sequence[tuple[int, float | None]]
"""Minutes and a value: the level of a gauge, or the increase of a counter per second; None while it is not exposed."""


def of_replica(name: str, replica: str = "r0", **labels: str) -> str:
    """A series of one replica of a deployment."""
    return series(name, {**TARGET, "replica": replica, **labels})


@dataclass(frozen=True, slots=True)
class Incidents:
    """Incidents through promtool in a folder, scraped every so many seconds; rules are evaluated less often."""

    promtool: Path
    folder: Path
    scrape_seconds: int
    every: str = "2m"

    def firing(
        self, given: Mapping[str, Stretches], checks: Mapping[str, Mapping[int, bool]], *, count: int = 1
    ) -> dict[str, str]:
        """What promtool finds otherwise than whether alerts fire at minutes; empty for nothing.

        Of each alert, `count` of its label sets fire.
        """
        found = [
            check_firing(name, minute, fires * count)
            for name, minutes in checks.items()
            for minute, fires in minutes.items()
        ]
        suite = Suite([self._test(given, found)], rule_groups(checks, self.every), interval=self.every)
        return failures(self.promtool, self.folder, {"incident": suite})

    def fired(
        self,
        given: Mapping[str, Stretches],
        minutes: int,
        *,
        since: int = 0,
        severities: Collection[str] = ("critical", "warning"),
    ) -> dict[str, str]:
        """What promtool finds of alerts of these severities on deployments and targets that fired; empty for none.

        Those that fire after the minute `since` count. Those on objectives are left out, as are those on the
        monitoring.
        """
        names = on_deployments(severities)
        chosen = f'severity=~"{"|".join(severities)}"'
        found_in = f'ALERTS{{alertstate="firing",{chosen}}}[{minutes - since}m]'
        found = {
            "expr": f"count by (alertname) (count_over_time({found_in}))",
            "eval_time": f"{minutes - 1}m",
            "exp_samples": [],
        }
        suite = Suite([self._test(given, [found])], rule_groups(names, self.every), interval=self.every)
        return failures(self.promtool, self.folder, {"life": suite})

    def _test(self, given: Mapping[str, Stretches], checks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        values = {key: _values(key, each, self.scrape_seconds) for key, each in given.items()}
        return {
            "interval": f"{self.scrape_seconds}s",
            "input_series": [{"series": key, "values": each} for key, each in values.items()],
            "promql_expr_test": checks,
        }


def on_deployments(severities: Collection[str] = ("critical", "warning")) -> list[str]:
    """The alerts of these severities on deployments and targets, but for those on objectives."""
    return [
        alert.name
        for alert in ALERTS.values()
        if alert.severity in severities and alert.component != "slo" and alert.family != "servescope"
    ]


def rule_groups(names: Iterable[str], every: str) -> list[dict[str, Any]]:
    """These alerts, and before them the rules of the figures and objectives that they read."""
    alerts = [ALERTS[name] for name in names]
    read = [term for alert in alerts for condition in conditions_of(alert) for term in terms(condition)]
    figures = dict.fromkeys(term.figure for term in read if isinstance(term, FigureRef))
    rules = [recording_rule(FIGURES[figure], "5m") for figure in figures]
    objectives = [objective_group(interval=every)] if any(isinstance(term, BadRatio) for term in read) else []
    return [
        {"name": "figures", "rules": rules},
        *objectives,
        *({**group, "interval": every} for group in alert_groups(alerts)),
    ]


def _values(key: str, stretches: Stretches, scrape_seconds: int) -> str:
    """A series as promtool takes it, a value a scrape; a counter begins anew where it was not exposed."""
    is_counter = key.split("{")[0].endswith(("_total", "_sum", "_count", "_bucket"))
    words, total, begins = [], 0.0, 0
    for minutes, value in stretches:
        ends = begins + minutes
        count = ends * 60 // scrape_seconds - begins * 60 // scrape_seconds
        begins = ends
        if not count:
            continue
        if value is None:
            words.append("stale" if count == 1 else f"stale _x{count - 1}")
            total = 0.0
        elif is_counter:
            words.append(f"{total!r}+{value * scrape_seconds!r}x{count - 1}")
            total += value * scrape_seconds * count
        else:
            words.append(f"{value!r}x{count - 1}")
    return " ".join(words)
