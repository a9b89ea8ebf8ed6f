"""Alertmanager's configuration: who gets which alert, what is grouped, what one alert mutes of others, and when."""

from __future__ import annotations

from typing import Any

import yaml

from alerts.recording import HEADER
from servescope.identity import DEPLOYMENT_LABELS, IDENTITY_LABELS

RECEIVERS = {"critical": "page", "warning": "ticket", "info": "chat", "none": "watchdog"}
"""The receiver of each severity; information calls nobody and goes to a channel one may read."""

SECRETS = "/etc/alertmanager/secrets"
"""Where the tokens of the receivers are, one file each: none stands in the configuration."""

MIGRATION_WINDOW = "migration"


def render_alertmanager(secrets: str = SECRETS) -> str:
    """The configuration file."""
    return HEADER + yaml.safe_dump(configuration(secrets), sort_keys=False, width=120)


def configuration(secrets: str = SECRETS) -> dict[str, Any]:
    """The configuration as a document."""
    return {
        "route": {
            "receiver": "ticket",
            "group_by": ["alertname", "environment", "model_name", "deployment_id"],
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
                    "matchers": ['severity="warning"', 'rollout_phase="promoting"'],
                    # What a planned migration is expected to bring opens no ticket; pages go on.
                    "mute_time_intervals": [MIGRATION_WINDOW],
                },
                {"receiver": "ticket", "matchers": ['severity="warning"'], "repeat_interval": "12h"},
                {"receiver": "chat", "matchers": ['severity="info"'], "repeat_interval": "24h"},
            ],
        },
        "time_intervals": [
            # No time at all until a migration is planned: the 31st of February.
            {"name": MIGRATION_WINDOW, "time_intervals": [{"days_of_month": ["31"], "months": ["february"]}]},
        ],
        "inhibit_rules": inhibitions(),
        "receivers": [_receiver(name, secrets) for name in RECEIVERS.values()],
    }


def _receiver(name: str, secrets: str) -> dict[str, Any]:
    """A receiver, which is told who it is that calls by a token in a file of its own."""
    authorization = {"type": "Bearer", "credentials_file": f"{secrets}/{name}_token"}
    return {
        "name": name,
        "webhook_configs": [
            {
                "url": f"http://127.0.0.1:9095/{name}",
                "send_resolved": name != "watchdog",
                "http_config": {"authorization": authorization},
            }
        ],
    }


def inhibitions() -> list[dict[str, Any]]:
    """What mutes what; labels that neither side has are equal too, so both sides have all that are named."""
    deployment = list(DEPLOYMENT_LABELS[:3])
    return [
        {
            "source_matchers": ['severity="critical"', 'family!="servescope"'],
            "target_matchers": ['severity=~"warning|info"'],
            "equal": ["family", *deployment],
        },
        {
            # Nothing serves: late tokens, queues and failures of the same deployment follow from it.
            "source_matchers": ['alertname="ServescopeNoActiveReplica"'],
            "target_matchers": ['alertname!="ServescopeNoActiveReplica"', 'component=~"engine|router|autoscaler|slo"'],
            "equal": deployment,
        },
        {
            # A target that cannot be scraped shows no metrics either.
            "source_matchers": ['alertname="ServescopeTargetDown"'],
            "target_matchers": ['alertname="ServescopeMetricsMissing"'],
            "equal": [*deployment, *IDENTITY_LABELS[-2:]],
        },
    ]
