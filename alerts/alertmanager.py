"""Alertmanager's configuration: routes, groups, inhibition rules and time intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from alerts.options import DEFAULTS, SECRETS, Options, Span
from alerts.receivers import RECEIVERS
from alerts.recording import HEADER, write_yaml
from servescope.alerting.grouping import GROUP_LABELS_OF_NONE
from servescope.contract.identity import GROUP_LABELS, IDENTITY_LABELS

__all__ = [
    "MIGRATION_WINDOW",
    "RECEIVERS",
    "RESOLVED_AFTER",
    "SECRETS",
    "configuration",
    "inhibitions",
    "render_alertmanager",
]

MIGRATION_WINDOW = "migration"
RESOLVED_AFTER = "20m"
"""After so long without news of it an alert resolves: longer than a restart takes, and what fires after it."""
# Alertmanager requires at least one interval; without a planned migration this one never occurs.
_NEVER = {"days_of_month": ["31"], "months": ["february"]}

_NOT_SERVING = "Servescope(RouterDown|DeploymentDown|NoActiveReplica)"
_UNSEEN = "Servescope(AgentDown|TranslatorDown|CollectorDown|ProbesFail|TargetDown|TelemetryStale|DeploymentGone)"
_NO_PAGE = 'severity=~"warning|info"'
# What is no page can wait until it is known whether a page mutes it, and what else has the same cause.
_PATIENT = {"group_wait": "5m", "group_interval": "15m"}


def render_alertmanager(secrets: str = "", options: Options = DEFAULTS) -> str:
    """The configuration file; `secrets`, where given, is the folder in place of the options'."""
    return HEADER + write_yaml(configuration(secrets, options), width=120)


def configuration(secrets: str = "", options: Options = DEFAULTS) -> dict[str, Any]:
    """The configuration as a document."""
    options = replace(options, secrets=secrets) if secrets else options
    return {
        # Of alerts that are sent without their end; Prometheus, vmalert and the collector send one as late.
        "global": {"resolve_timeout": RESOLVED_AFTER},
        "templates": [f"{options.templates}/*.tmpl"],
        "route": {
            "receiver": "ticket",
            "group_by": _names(options, *GROUP_LABELS),
            "group_wait": "30s",
            "group_interval": "5m",
            "repeat_interval": "4h",
            "routes": [
                {
                    "receiver": "watchdog",
                    "matchers": ['severity="none"'],
                    "group_by": ["alertname"],
                    "group_wait": "0s",
                    "group_interval": "1m",
                    "repeat_interval": "1m",
                },
                _route(options, "page", 'severity="critical"', repeat_interval="1h"),
                _route(
                    options, "ticket", 'severity="warning"', f'{options.label("rollout_phase")}="promoting"',
                    # What compares the stacks is about the migration itself.
                    'component!="cutover"',
                    # Warnings that a planned migration is expected to cause are muted; pages are sent.
                    mute_time_intervals=[MIGRATION_WINDOW], repeat_interval="12h", **_PATIENT,
                ),
                _route(options, "ticket", 'severity="warning"', repeat_interval="12h", **_PATIENT),
                _route(options, "chat", 'severity="info"', repeat_interval="24h", **_PATIENT),
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
    }  # fmt: skip


def _route(options: Options, receiver: str, *matchers: str, **timing: Any) -> dict[str, Any]:
    """The route of one severity: one message per deployment, and per part of the monitoring or model without one."""
    of_none = {"matchers": [f'{options.label("deployment_id")}=""'], "group_by": _names(options, *GROUP_LABELS_OF_NONE)}
    return {"receiver": receiver, "matchers": [*matchers], **timing, "routes": [of_none]}


def _names(options: Options, *labels: str) -> list[str]:
    """The labels as the rules write them, with the extra ones."""
    return [*options.common.group(labels)]


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

    Except for the environment, which is optional: two deployments that share all other labels then count as one. Only
    a page inhibits a page.
    """
    deployment = _names(options, *GROUP_LABELS)
    target = [options.label(label) for label in IDENTITY_LABELS[-2:]]
    page = 'severity="critical"'
    of_one = f'{options.label("deployment_id")}!=""'
    no_replica = 'alertname="ServescopeNoActiveReplica"'
    return [
        _inhibition((page, 'family!="servescope"', of_one), (_NO_PAGE,), ["family", *deployment]),
        # What users notice has these symptoms too; the alerts on causes are sent.
        _inhibition((page, 'component="slo"'), (_NO_PAGE, 'family=~"cutover|serving|slo-.+"'), deployment),
        # Latency, queues and failures of the same deployment follow from it. That no engine can be scraped joins its
        # message: which of the two fires first depends on who counts the replicas.
        _inhibition(
            (page, no_replica),
            ('alertname!="ServescopeNoActiveReplica"', 'component=~"engine|router|autoscaler|slo|cutover"'),
            deployment,
        ),
        # Behind a deployment without router or engines no request is served: the page about it names the cause.
        _inhibition(
            (page, f'alertname=~"{_NOT_SERVING}"'), ('alertname=~"ServescopeTraffic(Gone|Stopped)"',),
            _names(options, "model_name", "environment"),
        ),
        # Nor is there anything to judge, whichever of the stacks is not serving.
        _inhibition(
            (page, f'alertname=~"{_NOT_SERVING}|ServescopeTrafficGone"'),
            (_NO_PAGE, 'alertname="ServescopeCutoverNoData"'), _names(options, "model_name", "environment"),
        ),
        # One page in place of a ticket for each deployment.
        _inhibition(
            (page, 'alertname="ServescopeMostDeploymentsGone"'),
            (_NO_PAGE, 'alertname="ServescopeDeploymentGone"'), _names(options),
        ),
        # One page in place of a page for each deployment; longer than these stay active. Where no autoscaler is
        # scraped, a replica that cannot be scraped is counted as not active.
        _inhibition(
            (page, 'alertname="ServescopeMostDeploymentsDown"'),
            ('alertname=~"Servescope(DeploymentDown|NoActiveReplica|RouterDown|PhaseDown|TargetDown)"',),
            _names(options),
        ),
        # One page, which lists the parts that are down, in place of a ticket for each of them, for each target and each
        # deployment; and of the page on collectors, whose targets are unseen. Deployments that are known to be down
        # keep their pages.
        _inhibition(
            (page, 'alertname="ServescopeFleetUnseen"'), (_NO_PAGE, f'alertname=~"{_UNSEEN}"'), _names(options)
        ),
        _inhibition(
            (page, 'alertname="ServescopeFleetUnseen"'), ('alertname="ServescopeCollectorGone"',), _names(options)
        ),
        # Where most deployments are down, the others need not be seen.
        _inhibition(
            (page, 'alertname="ServescopeMostDeploymentsDown"'), ('alertname="ServescopeFleetUnseen"',),
            _names(options),
        ),
        # Without any collector, each of them is down.
        _inhibition(
            (page, 'alertname="ServescopeCollectorGone"'), (_NO_PAGE, 'component="collector"'), _names(options)
        ),
        # A target that cannot be scraped exposes no metrics either.
        _inhibition(
            ('alertname="ServescopeTargetDown"',), (_NO_PAGE, 'alertname="ServescopeMetricsMissing"'),
            [*deployment, *target],
        ),
    ]  # fmt: skip


def _inhibition(sources: Sequence[str], targets: Sequence[str], equal: Sequence[str]) -> dict[str, Any]:
    rule = {"source_matchers": [*sources], "target_matchers": [*targets]}
    return {**rule, "equal": [*equal]} if equal else rule
