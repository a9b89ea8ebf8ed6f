"""A real Alertmanager with our configuration: who mutes whom, and who does not."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from alerts.alertmanager import render_alertmanager
from servescope.alerting.alerts import ALERTS
from servescope.alerting.records import labels_of
from tests.support.alertmanager import running_alertmanager
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.slow
# Of which one mutes the other, sent after all else: when that shows, Alertmanager has seen everything.
_LAST = {
    "last": ("ServescopeNoActiveReplica", "last"),
    "last, muted": ("ServescopeReplicasFailed", "last"),
}


@pytest.fixture
def url(alertmanager: Path, tmp_path: Path) -> Iterator[str]:
    """The address of a running Alertmanager."""
    with running_alertmanager(alertmanager, tmp_path, render_alertmanager(str(tmp_path))) as address:
        yield f"http://{address}"


def test_what_users_feel_mutes_its_own_causes_and_nothing_else(url: str) -> None:
    """Of the same deployment, by family and by root cause; another deployment's and servescope's own go through."""
    down, other = _deployment("down"), _deployment("other")
    _send(
        url,
        {
            "no replica": ("ServescopeNoActiveReplica", down),
            "failed there": ("ServescopeReplicasFailed", down),
            "queue there": ("ServescopeQueueGrowing", down),
            "budget there": ("ServescopeRequestsBudgetBurnsFast", down),
            "failed elsewhere": ("ServescopeReplicasFailed", other),
            "target there": ("ServescopeTargetDown", down),
            "metrics there": ("ServescopeMetricsMissing", down),
            "collector": ("ServescopeCollectorGone", {}),
            "compared there": ("ServescopeNewStackErrorsMore", down),
            "missed": ("ServescopeRuleEvaluationMissed", {}),
            "watchdog": ("ServescopeWatchdog", {}),
        },
    )

    assert _muted(url) == {
        "no replica": False, "failed there": True, "queue there": True, "budget there": True,
        "failed elsewhere": False, "target there": False, "metrics there": True, "compared there": True,
        "collector": False, "missed": False, "watchdog": False,
    }  # fmt: skip


def test_a_budget_that_burns_fast_mutes_symptoms_and_no_cause(url: str) -> None:
    """Of the same deployment: slow burns, the queue, and what compares the stacks; not why it burns, nor the split."""
    here, elsewhere = _deployment("d"), _deployment("e")
    _send(
        url,
        {
            "fast": ("ServescopeRequestsBudgetBurnsFast", here),
            "slow": ("ServescopeRequestsBudgetBurns", here),
            "other objective": ("ServescopeTimeToFirstTokenBudgetBurns", here),
            "third objective, fast": ("ServescopeTimePerOutputTokenBudgetBurnsFast", here),
            "queue": ("ServescopeQueueGrowing", here),
            "aborts": ("ServescopeClientAbortsHigh", here),
            "compared": ("ServescopeNewStackErrorsMore", here),
            "split": ("ServescopeTrafficSplitNotAsConfigured", here),
            "failed": ("ServescopeReplicasFailed", here),
            "cache": ("ServescopeCacheHitRateDropped", here),
            "slow elsewhere": ("ServescopeRequestsBudgetBurns", elsewhere),
            "queue elsewhere": ("ServescopeQueueGrowing", elsewhere),
        },
    )

    assert _muted(url) == {
        "fast": False, "slow": True, "other objective": True, "third objective, fast": False, "queue": True,
        "aborts": True, "compared": True, "split": False, "failed": False, "cache": False, "slow elsewhere": False,
        "queue elsewhere": False,
    }  # fmt: skip


def test_a_collector_that_is_gone_notifies_once(url: str) -> None:
    """That each collector is down follows from it; Prometheus and Alertmanager are others."""
    _send(
        url,
        {
            "gone": ("ServescopeCollectorGone", {}),
            "down": ("ServescopeCollectorDown", {"instance": "collector:9400", "job": "servescope"}),
            "prometheus": ("ServescopeRuleEvaluationFails", {}),
            "watchdog": ("ServescopeWatchdog", {}),
        },
    )

    assert _muted(url) == {"gone": False, "down": True, "prometheus": False, "watchdog": False}


def test_an_outage_of_most_deployments_notifies_once(url: str) -> None:
    """Each of them is down, and its replicas are counted as not active where nobody else counts them."""
    here, there = _deployment("d"), _deployment("e")
    _send(
        url,
        {
            "most": ("ServescopeMostDeploymentsDown", {}),
            "here": ("ServescopeDeploymentDown", here),
            "there": ("ServescopeDeploymentDown", there),
            "no replica": ("ServescopeNoActiveReplica", there),
            "target": ("ServescopeTargetDown", there),
            "collector": ("ServescopeInternalErrors", {}),
        },
    )

    assert _muted(url) == {
        "most": False, "here": True, "there": True, "no replica": True, "target": True, "collector": False,
    }  # fmt: skip


def test_a_fleet_of_which_too_little_is_seen_notifies_once(url: str) -> None:
    """In place of tickets on parts, targets and lists, and of the page on collectors; not of what is known to be down.

    Of most deployments that are down it is known why the others are not seen.
    """
    here = _deployment("d")
    _send(
        url,
        {
            "unseen": ("ServescopeFleetUnseen", {}),
            **{
                part: (f"Servescope{part}Down", {"instance": "a:1", "job": "x"})
                for part in ("Agent", "Translator", "Collector")
            },
            "probes": ("ServescopeProbesFail", {"instance": "a:1"}),
            "no collector": ("ServescopeCollectorGone", {}),
            "target": ("ServescopeTargetDown", here),
            "target gone": ("ServescopeTargetGone", here),
            "target stale": ("ServescopeTelemetryStale", here),
            "deployment gone": ("ServescopeDeploymentGone", here),
            "deployment": ("ServescopeDeploymentDown", here),
            "router": ("ServescopeRouterDown", here),
            "lists": ("ServescopeMostDeploymentsGone", {}),
            "refused": ("ServescopeProbesRefused", {"instance": "a:1"}),
            "users": ("ServescopeRequestsBudgetBurnsFast", here),
            "rules": ("ServescopeRuleEvaluationFails", {}),
            "watchdog": ("ServescopeWatchdog", {}),
        },
    )

    assert {case for case, is_muted in _muted(url).items() if is_muted} == {
        "Agent", "Translator", "Collector", "probes", "no collector", "target", "target gone", "target stale",
        "deployment gone",
    }  # fmt: skip


def test_most_deployments_that_are_down_explain_what_is_not_seen(url: str) -> None:
    """One page, of the two."""
    _send(
        url,
        {"most": ("ServescopeMostDeploymentsDown", {}), "unseen": ("ServescopeFleetUnseen", {})},
    )

    assert _muted(url) == {"most": False, "unseen": True}


def test_a_deployment_that_is_down_notifies_once(url: str) -> None:
    """Its targets follow from it; without an active replica both are in the message, whichever came first."""
    down, other = _deployment("down"), _deployment("other")
    _send(
        url,
        {
            "no replica": ("ServescopeNoActiveReplica", down),
            "down": ("ServescopeDeploymentDown", down),
            "target there": ("ServescopeTargetDown", down),
            "other down": ("ServescopeDeploymentDown", other),
            "target of other": ("ServescopeTargetDown", other),
            "split": ("ServescopeTrafficSplitNotAsConfigured", down),
            "prometheus": ("ServescopeRuleEvaluationFails", {}),
        },
    )

    assert _muted(url) == {
        "no replica": False, "down": False, "target there": True, "other down": False, "target of other": True,
        "split": False, "prometheus": False,
    }  # fmt: skip


def test_what_is_known_of_a_cutover_that_is_judged_notifies_once(url: str) -> None:
    """Proven harm mutes the comparisons of v2; a stack that does not serve that there is nothing to judge."""
    new = {"plan": "chat", **_deployment("new", model_name="o")}
    dead = {"plan": "dead", **_deployment("dead", model_name="n")}
    _send(
        url,
        {
            "degraded": ("ServescopeCutoverDegraded", new),
            "no data": ("ServescopeCutoverNoData", new),
            "judge": ("ServescopeJudgementStale", new),
            "compared": ("ServescopeNewStackErrorsMore", new),
            "split": ("ServescopeTrafficSplitNotAsConfigured", new),
            "compared elsewhere": ("ServescopeNewStackErrorsMore", _deployment("other", model_name="o")),
            "old stack is down": ("ServescopeDeploymentDown", _deployment("old", model_name="n", inference_stack="v1")),
            "nothing to judge": ("ServescopeCutoverNoData", dead),
            "judge there": ("ServescopeJudgementStale", dead),
        },
    )

    assert _muted(url) == {
        "degraded": False, "no data": False, "judge": False, "compared": True, "split": False,
        "compared elsewhere": False, "old stack is down": False, "nothing to judge": True, "judge there": False,
    }  # fmt: skip


def test_an_environment_mutes_nothing_in_another(url: str) -> None:
    """A deployment of the same name in staging may be down while production pages."""
    staging = _deployment("d", environment="staging")
    production = _deployment("d", environment="production")
    _send(
        url,
        {
            "staging": ("ServescopeNoActiveReplica", staging),
            "staging's budget": ("ServescopeRequestsBudgetBurnsFast", staging),
            "budget": ("ServescopeRequestsBudgetBurnsFast", production),
            "failed": ("ServescopeReplicasFailed", production),
            "down": ("ServescopeDeploymentDown", production),
        },
    )

    assert _muted(url) == {
        "staging": False, "staging's budget": True, "budget": False, "failed": False, "down": False,
    }  # fmt: skip


def _deployment(name: str, **labels: str) -> dict[str, str]:
    return {
        "model_name": "m", "deployment_id": name, "inference_stack": "v2", "replica": "r0", "role": "aggregated",
        **labels,
    }  # fmt: skip


def _send(url: str, alerts: Mapping[str, tuple[str, Mapping[str, str]]]) -> None:
    last = {case: (name, _deployment(deployment)) for case, (name, deployment) in _LAST.items()}
    body = [
        {
            "labels": {
                "alertname": name,
                "case": case,
                **ALERTS[name].labels,
                **{key: value for key, value in labels.items() if key in labels_of(ALERTS[name].condition)},
            }
        }
        for case, (name, labels) in {**alerts, **last}.items()
    ]
    request = Request(
        f"{url}/api/v2/alerts", data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urlopen(request, timeout=deadline_seconds()) as answer:
        assert answer.status == 200


def _muted(url: str) -> dict[str, bool]:
    """By case, whether an alert is inhibited."""

    def look() -> dict[str, bool] | None:
        with urlopen(f"{url}/api/v2/alerts", timeout=deadline_seconds()) as answer:
            alerts = json.load(answer)
        found = {alert["labels"]["case"]: bool(alert["status"]["inhibitedBy"]) for alert in alerts}
        return found if found.get("last, muted") else None

    return {
        case: is_muted for case, is_muted in wait_for(look, "Alertmanager's inhibitions").items() if case not in _LAST
    }
