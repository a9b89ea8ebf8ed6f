"""All alerts: on a deployment, on a cutover that is judged, on their telemetry, and on servescope itself.

Every number that a value is compared with is the catalog's. What users notice is critical; a cause, or what users will
notice later, is a warning; what only needs tuning is information and notifies nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from servescope.alerting.fleet.autoscaling import AUTOSCALING_ALERTS
from servescope.alerting.fleet.balance import BALANCE_ALERTS
from servescope.alerting.fleet.cache import CACHE_ALERTS
from servescope.alerting.fleet.cutover import CUTOVER_ALERTS
from servescope.alerting.fleet.memory import MEMORY_ALERTS
from servescope.alerting.fleet.phases import PHASE_ALERTS
from servescope.alerting.fleet.replicas import REPLICA_ALERTS
from servescope.alerting.fleet.speculation import SPECULATION_ALERTS
from servescope.alerting.fleet.traffic import TRAFFIC_ALERTS
from servescope.alerting.headlines import headline
from servescope.alerting.monitoring.blindness import BLINDNESS_ALERTS
from servescope.alerting.monitoring.clocks import CLOCK_ALERTS
from servescope.alerting.monitoring.exporting import EXPORT_ALERTS
from servescope.alerting.monitoring.judging import JUDGE_ALERTS
from servescope.alerting.monitoring.monitoring import MONITORING_ALERTS
from servescope.alerting.monitoring.telemetry import TELEMETRY_ALERTS
from servescope.alerting.monitoring.translating import TRANSLATE_ALERTS
from servescope.alerting.requests.answers import ANSWERS_ALERTS
from servescope.alerting.requests.exposure import EXPOSURE_ALERTS
from servescope.alerting.requests.objectives import objective_alerts
from servescope.alerting.requests.serving import SERVING_ALERTS
from servescope.alerting.requests.unanswered import UNANSWERED_ALERTS
from servescope.alerting.rules.choices import CATALOG_CHOICES, Choices, resolve
from servescope.alerting.rules.records import Alert


def make_alerts(choices: Choices = CATALOG_CHOICES) -> Mapping[str, Alert]:
    """Every alert by name, with the chosen values."""
    return ALERTS if choices == CATALOG_CHOICES else _made(choices)


def _made(choices: Choices) -> Mapping[str, Alert]:
    alerts: tuple[Alert, ...] = (
        *SPECULATION_ALERTS, *CACHE_ALERTS, *AUTOSCALING_ALERTS, *REPLICA_ALERTS, *SERVING_ALERTS, *MEMORY_ALERTS,
        *PHASE_ALERTS, *TRAFFIC_ALERTS, *UNANSWERED_ALERTS, *ANSWERS_ALERTS, *BALANCE_ALERTS,
        *objective_alerts(choices), *CUTOVER_ALERTS, *JUDGE_ALERTS, *EXPORT_ALERTS,
        *TELEMETRY_ALERTS, *EXPOSURE_ALERTS, *BLINDNESS_ALERTS, *TRANSLATE_ALERTS, *CLOCK_ALERTS,
        *MONITORING_ALERTS,
    )  # fmt: skip
    chosen = (
        replace(alert, for_=choices.waits.get(alert.name, alert.for_), headline=headline(alert.name))
        for alert in alerts
    )
    return MappingProxyType({alert.name: resolve(alert, choices, alert.for_) for alert in chosen})


ALERTS: Final = _made(CATALOG_CHOICES)
"""Every alert by name, with the catalog's values."""
