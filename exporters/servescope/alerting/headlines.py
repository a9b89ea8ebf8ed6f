"""What a telephone shows of each alert behind where it is: what is wrong, in at most `MOST_CHARACTERS`.

Of a message, a telephone shows the first 60 characters. `[…]` holds a value, and is left out where none is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from servescope.alerting.rules.records import LISTED, by_cause

MOST_CHARACTERS: Final = 27
"""So many beside a name of 22 characters and the number of the other alerts, but for what lists names."""

_SHARE: Final = '{{ $value | printf "%.2g" | humanizePercentage | reReplaceAll "%" " %" }}'
_NUMBER: Final = '{{ $value | printf "%.3g" | humanize }}'
_TIME: Final = "{{ $value | humanizeDuration }}"
_VALUE: Final = re.compile(r"\[([^\[\]]*)\]")

_FIRST_TOKENS: Final = f"[{_SHARE} of ]first tokens late"
_OUTPUT_TOKENS: Final = f"[{_SHARE} of ]answers too slow"
_GAPS: Final = f"[{_SHARE} of ]tokens late"
_REQUESTS: Final = f"[{_SHARE} of ]requests fail"

_HEADLINES: Mapping[str, str] = MappingProxyType(
    {
        "AgentDown": "agent is down",
        "AlertingConfigurationRefused": by_cause(
            {"prometheus": "Prometheus config refused", "alertmanager": "Alertmanager config refused"}
        ),
        "AnswerLengthChanged": by_cause({"short": f"answers shrink[ to {_NUMBER}]", "long": "answers do not end"}),
        "AutoscalerInactive": by_cause({"silent": "autoscaler is silent", "frozen": "autoscaler's load is frozen"}),
        "AutoscalerPinned": "autoscaler at its maximum",
        "CacheChurn": "cached blocks evicted early",
        "CacheEventsMissed": by_cause(
            {
                "hits": "router misses cache events",
                "gaps": "router lacks cache events",
                "degraded": "router cache index degraded",
            }
        ),
        "CacheHitRateDropped": f"cache hits fell[ to {_SHARE}]",
        "ClientAbortsHigh": f"[{_SHARE} of ]clients hang up",
        "ClientErrorsHigh": f"[{_SHARE} of ]requests invalid",
        "ClockOff": f"clock is off[ by {_TIME}]",
        "ColdStartSlow": "replicas start too slowly",
        "CollectorDown": "collector is down",
        "CollectorGone": "no collector is running",
        "ConfigurationRefused": "collector config refused",
        "CustomerExportFails": by_cause({"refused": "backend accepts no metrics", "late": "metrics arrive late"}),
        "CustomerExportGap": "metrics are lost for good",
        "CustomerGetsNothing": "no series is exported",
        "CustomersExportGone": "export to customers is gone",
        "CutoverDegraded": "cutover is DEGRADED",
        "CutoverNoData": "cutover lacks data",
        "DeploymentDown": "no engine answers",
        "DeploymentGone": "no engine is listed",
        "DiscoveryFails": "a list of targets fails",
        "EventLoopLags": f"event loop lags[ {_TIME}]",
        "FleetUnseen": f"only [{_SHARE} of ]targets seen",
        "GpuGone": "a replica lost a GPU",
        "InterTokenLatencyBudgetBurns": _GAPS,
        "InterTokenLatencyBudgetBurnsFast": _GAPS,
        "InternalErrors": "internal errors",
        "JudgeGone": by_cause({"late": "judgement is out of date", "gone": "judge of cutover is gone"}),
        "KvCacheFull": by_cause({"preempted": "requests are preempted", "waiting": "KV cache is full"}),
        "KvTransfersDegraded": by_cause({"slow": "KV transfers are slow", "none": "no KV is transferred"}),
        "KvTransfersStuck": "KV transfers are stuck",
        "MetricsMissing": f"lacks {LISTED}",
        "MostDeploymentsDown": f"[{_SHARE} of ]deployments down",
        "MostDeploymentsGone": f"[{_SHARE} of ]deployments gone",
        "NewStackWorse": by_cause(
            {
                "first token": "first tokens got slower",
                "tokens": "tokens got slower",
                "errors": "more errors than before",
                "speed": "answers got slower",
            }
        ),
        "NoActiveReplica": "no active replica",
        "NotificationsFail": by_cause({"alertmanager": "notifications fail", "prometheus": "alerts are not sent"}),
        "PhaseDown": "all {{ $labels.role }} workers down",
        "ProbesFail": f"[{_SHARE} of ]probes fail",
        "ProbesRefused": "probes are refused",
        "QueueGrowing": f"queue[ of {_NUMBER}] grows",
        "ReplicaDiffers": by_cause(
            {
                "slow": "a replica is slow",
                "idle": "a replica gets no requests",
                "holding": "a replica holds requests",
                "restarting": "a replica restarts",
                "cut": "a replica's answers do not end",
            }
        ),
        "ReplicasBelowDesired": f"too few replicas[: {_NUMBER}]",
        "ReplicasFailed": f"[{_NUMBER} ]replicas failed",
        "RequestsBudgetBurns": _REQUESTS,
        "RequestsBudgetBurnsFast": _REQUESTS,
        "RequestsHang": "requests do not end",
        "RequestsNotExposed": "requests no longer exposed",
        "RouterDown": "no router answers",
        "RouterHotSpot": "one replica gets the load",
        "RoutingInefficient": "router misses cache hits",
        "RuleEvaluationFails": by_cause({"errors": "rules fail", "missed": "rule evaluations are missed"}),
        "SamplesDropped": "samples are dropped",
        "SpeculationBelowBreakEven": "speculation costs speed",
        "StoreBehind": "scrapes wait for the store",
        "TargetDown": "a target does not answer",
        "TelemetryStale": "a target is not scraped",
        "TimePerOutputTokenBudgetBurns": _OUTPUT_TOKENS,
        "TimePerOutputTokenBudgetBurnsFast": _OUTPUT_TOKENS,
        "TimeToFirstTokenBudgetBurns": _FIRST_TOKENS,
        "TimeToFirstTokenBudgetBurnsFast": _FIRST_TOKENS,
        "TrafficGone": "no requests any more",
        "TrafficSplitNotAsConfigured": f"traffic split is off[: {_SHARE}]",
        "TrafficStopped": "no requests any more",
        "TranslatorDown": "translator is down",
        "UpButNotServing": by_cause(
            {"hung": f"[{_NUMBER} ]requests hang, no token", "unanswered": "no request is answered"}
        ),
        "Watchdog": "alerts are sent",
    }
)

WORST_FIRST: Final = (
    ("CollectorGone", "FleetUnseen", "MostDeploymentsDown", "MostDeploymentsGone"),
    ("NoActiveReplica", "DeploymentDown", "RouterDown", "PhaseDown"),
    ("RequestsBudgetBurnsFast", "RequestsBudgetBurns"),
    ("TimeToFirstTokenBudgetBurnsFast", "TimeToFirstTokenBudgetBurns"),
    (
        "TimePerOutputTokenBudgetBurnsFast", "InterTokenLatencyBudgetBurnsFast", "TimePerOutputTokenBudgetBurns",
        "InterTokenLatencyBudgetBurns",
    ),
    ("UpButNotServing", "KvTransfersStuck", "AnswerLengthChanged", "RouterHotSpot"),
)  # fmt: skip
"""Which alert of a message is its headline: what stops all, then what users notice, then the others by their names."""


def headline(name: str) -> str:
    """The headline of an alert as a template, "" for one without."""
    return _HEADLINES.get(name.removeprefix("Servescope"), "")


def with_value(text: str) -> str:
    """A headline whose value is known."""
    return _VALUE.sub(r"\1", text)


def with_known_value(text: str) -> str:
    """A headline as a template of Prometheus, for an alert whose value is -Inf where it is not known."""
    return _VALUE.sub(r"{{ if gt $value -1e9 }}\1{{ end }}", text)
