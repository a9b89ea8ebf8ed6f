"""A real Alertmanager with our configuration: who mutes whom, and who does not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from alerts.alertmanager import render_alertmanager
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.records import labels_of
from tests.support.alertmanager import running_alertmanager
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.slow


def _deployment(name: str, **labels: str) -> dict[str, str]:
    return {
        "model_name": "m", "deployment_id": name, "inference_stack": "v2", "replica": "r0", "role": "aggregated",
        **labels,
    }  # fmt: skip


Sent = Mapping[str, tuple[str, Mapping[str, str], bool]]
"""By case, an alert without the product's name, its labels, and whether it is muted."""
_D, _E = _deployment("d"), _deployment("e")
_NEW = {"plan": "chat", **_deployment("new", model_name="o")}
_DEAD = {"plan": "dead", **_deployment("dead", model_name="n")}
_STAGING, _PRODUCTION = (_deployment("d", environment=each) for each in ("staging", "production"))
_PART = {"instance": "a:1", "job": "x"}
# Of which one mutes the other, sent after all else: when that shows, Alertmanager has seen everything.
_LAST: Sent = {
    "last": ("NoActiveReplica", _deployment("last"), False),
    "last, muted": ("ReplicasFailed", _deployment("last"), True),
}  # fmt: skip
CASES: Mapping[str, Sent] = {
    # By family and by root cause; what is of another deployment and of servescope itself goes through.
    "what users feel mutes its own causes": {
        "no replica": ("NoActiveReplica", _D, False), "failed there": ("ReplicasFailed", _D, True),
        "queue there": ("QueueGrowing", _D, True), "budget there": ("RequestsBudgetBurnsFast", _D, True),
        "failed elsewhere": ("ReplicasFailed", _E, False), "target there": ("TargetDown", _D, False),
        "metrics there": ("MetricsMissing", _D, True), "collector": ("CollectorGone", {}, False),
        "compared there": ("NewStackWorse", _D, True), "missed": ("RuleEvaluationFails", {}, False),
        "watchdog": ("Watchdog", {}, False),
    },
    # Not why it burns, nor the split.
    "a budget that burns fast mutes symptoms": {
        "fast": ("RequestsBudgetBurnsFast", _D, False), "slow": ("RequestsBudgetBurns", _D, True),
        "other objective": ("TimeToFirstTokenBudgetBurns", _D, True),
        "third objective, fast": ("TimePerOutputTokenBudgetBurnsFast", _D, False),
        "queue": ("QueueGrowing", _D, True), "aborts": ("ClientAbortsHigh", _D, True),
        "compared": ("NewStackWorse", _D, True), "split": ("TrafficSplitNotAsConfigured", _D, False),
        "failed": ("ReplicasFailed", _D, False), "cache": ("CacheHitRateDropped", _D, False),
        "slow elsewhere": ("RequestsBudgetBurns", _E, False), "queue elsewhere": ("QueueGrowing", _E, False),
    },
    "a collector that is gone mutes that each is down": {
        "gone": ("CollectorGone", {}, False),
        "down": ("CollectorDown", {"instance": "collector:9400", "job": "servescope"}, True),
        "prometheus": ("RuleEvaluationFails", {}, False), "watchdog": ("Watchdog", {}, False),
    },
    # Replicas are counted as not active where nobody else counts them.
    "an outage of most deployments mutes each of them": {
        "most": ("MostDeploymentsDown", {}, False), "here": ("DeploymentDown", _D, True),
        "there": ("DeploymentDown", _E, True), "no replica": ("NoActiveReplica", _E, True),
        "target": ("TargetDown", _E, True), "collector": ("InternalErrors", {}, False),
    },
    # In place of tickets on parts, targets and lists, and of the page on collectors; not of what is known to be down.
    "a fleet of which too little is seen": {
        "unseen": ("FleetUnseen", {}, False),
        **{part: (f"{part}Down", _PART, True) for part in ("Agent", "Translator", "Collector")},
        "probes": ("ProbesFail", {"instance": "a:1"}, True), "no collector": ("CollectorGone", {}, True),
        "target": ("TargetDown", _D, True),
        "target stale": ("TelemetryStale", _D, True), "deployment gone": ("DeploymentGone", _D, True),
        "deployment": ("DeploymentDown", _D, False), "router": ("RouterDown", _D, False),
        "lists": ("MostDeploymentsGone", {}, False), "refused": ("ProbesRefused", {"instance": "a:1"}, False),
        "users": ("RequestsBudgetBurnsFast", _D, False), "rules": ("RuleEvaluationFails", {}, False),
        "watchdog": ("Watchdog", {}, False),
    },
    "most deployments that are down explain what is not seen": {
        "most": ("MostDeploymentsDown", {}, False), "unseen": ("FleetUnseen", {}, True),
    },
    # Without an active replica both are in the message, whichever came first.
    "a deployment that is down mutes its targets": {
        "no replica": ("NoActiveReplica", _D, False), "down": ("DeploymentDown", _D, False),
        "target there": ("TargetDown", _D, True), "other down": ("DeploymentDown", _E, False),
        "target of other": ("TargetDown", _E, True), "split": ("TrafficSplitNotAsConfigured", _D, False),
        "prometheus": ("RuleEvaluationFails", {}, False),
    },
    # Proven harm mutes the comparisons of v2; a stack that does not serve that there is nothing to judge.
    "a cutover that is judged": {
        "degraded": ("CutoverDegraded", _NEW, False), "no data": ("CutoverNoData", _NEW, False),
        "judge": ("JudgeGone", _NEW, False), "compared": ("NewStackWorse", _NEW, True),
        "split": ("TrafficSplitNotAsConfigured", _NEW, False),
        "compared elsewhere": ("NewStackWorse", _deployment("other", model_name="o"), False),
        "old stack is down": ("DeploymentDown", _deployment("old", model_name="n", inference_stack="v1"), False),
        "nothing to judge": ("CutoverNoData", _DEAD, True), "judge there": ("JudgeGone", _DEAD, False),
    },
    "a deployment of the same name in staging": {
        "staging": ("NoActiveReplica", _STAGING, False),
        "staging's budget": ("RequestsBudgetBurnsFast", _STAGING, True),
        "budget": ("RequestsBudgetBurnsFast", _PRODUCTION, False), "failed": ("ReplicasFailed", _PRODUCTION, False),
        "down": ("DeploymentDown", _PRODUCTION, False),
    },
}  # fmt: skip


@pytest.mark.parametrize("sent", CASES.values(), ids=CASES)
def test_alerts_are_muted_by_what_explains_them_and_by_nothing_else(
    alertmanager: Path, tmp_path: Path, sent: Sent
) -> None:
    """One incident notifies once; what is of another deployment, environment or cause goes through."""
    with running_alertmanager(alertmanager, tmp_path, render_alertmanager(str(tmp_path))) as address:
        _send(f"http://{address}/api/v2/alerts", {**sent, **_LAST})

        def look() -> dict[str, bool] | None:
            with urlopen(f"http://{address}/api/v2/alerts", timeout=deadline_seconds()) as answer:
                alerts = json.load(answer)
            found = {alert["labels"]["case"]: bool(alert["status"]["inhibitedBy"]) for alert in alerts}
            return found if found.get("last, muted") else None

        muted = wait_for(look, "Alertmanager's inhibitions")

    assert {case: muted[case] for case in sent} == {case: is_muted for case, (_, _, is_muted) in sent.items()}


def _send(url: str, sent: Sent) -> None:
    body = []
    for case, (ending, labels, _) in sent.items():
        alert = ALERTS[f"Servescope{ending}"]
        known = {key: value for key, value in labels.items() if key in labels_of(alert.condition)}
        body.append({"labels": {"alertname": alert.name, "case": case, **alert.labels, **known}})
    request = Request(url, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"})
    with urlopen(request, timeout=deadline_seconds()) as answer:
        assert answer.status == 200
