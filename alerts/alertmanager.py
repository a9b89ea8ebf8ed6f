"""Alertmanager's configuration: routes, groups, inhibition rules and time intervals."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import yaml

from alerts.options import DEFAULTS, SECRETS, Options, Span
from alerts.receivers import RECEIVERS
from alerts.recording import HEADER
from servescope.contract.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS

__all__ = ["MIGRATION_WINDOW", "RECEIVERS", "SECRETS", "configuration", "inhibitions", "render_alertmanager"]

MIGRATION_WINDOW = "migration"
# Alertmanager requires at least one interval; without a planned migration this one never occurs.
_NEVER = {"days_of_month": ["31"], "months": ["february"]}


def render_alertmanager(secrets: str = "", options: Options = DEFAULTS) -> str:
    """The configuration file; `secrets`, where given, is the folder in place of the options'."""
    return HEADER + yaml.safe_dump(configuration(secrets, options), sort_keys=False, width=120)


def configuration(secrets: str = "", options: Options = DEFAULTS) -> dict[str, Any]:
    """The configuration as a document."""
    options = replace(options, secrets=secrets) if secrets else options
    group_by = ["alertname", *(options.label(label) for label in ("environment", "model_name", "deployment_id"))]
    return {
        "templates": [f"{options.templates}/*.tmpl"],
        "route": {
            "receiver": "ticket",
            "group_by": group_by,
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "4h",
            "routes": [
                {
                    "receiver": "watchdog",
                    "matchers": ['severity="none"'],
                    "group_wait": "0s",
                    "group_interval": "1m",
                    "repeat_interval": "1m",
                },
                {"receiver": "page", "matchers": ['severity="critical"'], "repeat_interval": "1h"},
                {
                    "receiver": "ticket",
                    "matchers": ['severity="warning"', f'{options.label("rollout_phase")}="promoting"'],
                    # Warnings that a planned migration is expected to cause are muted; pages are sent.
                    "mute_time_intervals": [MIGRATION_WINDOW],
                },
                {"receiver": "ticket", "matchers": ['severity="warning"'], "repeat_interval": "12h"},
                {"receiver": "chat", "matchers": ['severity="info"'], "repeat_interval": "24h"},
            ],
        },
        "time_intervals": [
            {
                "name": MIGRATION_WINDOW,
                "time_intervals": [piece for span in options.migration_windows for piece in _pieces(span)] or [_NEVER],
            }
        ],
        "inhibit_rules": inhibitions(options),
        "receivers": [options.receivers[name].configuration(options.secrets) for name in RECEIVERS.values()],
    }


def _pieces(span: Span) -> list[dict[str, Any]]:
    """A span as Alertmanager's intervals, which cannot cross midnight: one for each day."""
    pieces = []
    start = span.start
    while start < span.end:
        midnight = datetime.combine(start.date() + timedelta(days=1), datetime.min.time(), start.tzinfo)
        end = min(span.end, midnight)
        pieces.append(
            {
                "times": [{"start_time": f"{start:%H:%M}", "end_time": "24:00" if end == midnight else f"{end:%H:%M}"}],
                "days_of_month": [str(start.day)],
                "months": [str(start.month)],
                "years": [str(start.year)],
            }
        )
        start = end
    return pieces


def inhibitions(options: Options = DEFAULTS) -> list[dict[str, Any]]:
    """The inhibition rules. Labels that neither side has count as equal, so both sides have all labels of `equal`.

    Except for the environment, which is optional: two deployments that share all other labels then count as one.
    """
    # The rollout phase does not identify a deployment.
    deployment = [options.label(label) for label in DEPLOYMENT_LABELS if label != "rollout_phase"]
    return [
        {
            "source_matchers": ['severity="critical"', 'family!="servescope"'],
            "target_matchers": ['severity=~"warning|info"'],
            "equal": ["family", *deployment],
        },
        {
            # Latency, queues and failures of the same deployment follow from it.
            "source_matchers": ['alertname="ServescopeNoActiveReplica"'],
            "target_matchers": ['alertname!="ServescopeNoActiveReplica"', 'component=~"engine|router|autoscaler|slo"'],
            "equal": deployment,
        },
        {
            # Without an active replica no engine answers: one page is enough.
            "source_matchers": ['alertname="ServescopeNoActiveReplica"'],
            "target_matchers": ['alertname="ServescopeDeploymentDown"'],
            "equal": deployment,
        },
        {
            # A target that cannot be scraped exposes no metrics either.
            "source_matchers": ['alertname="ServescopeTargetDown"'],
            "target_matchers": ['alertname="ServescopeMetricsMissing"'],
            "equal": [*deployment, *(options.label(label) for label in IDENTITY_LABELS[-2:])],
        },
    ]
