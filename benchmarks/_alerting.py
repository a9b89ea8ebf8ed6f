"""What evaluating all alerts costs beside deriving the figures they read: milliseconds an evaluation, in one run.

Fifty deployments of four replicas are well, as fleets are for nearly all of the time; then one in ten has a failed
replica.
"""

from __future__ import annotations

import logging
import time

import numpy as np
from numpy.typing import NDArray

from benchmarks._deriving import Fleet, Shape, contract_size
from servescope.collector.exposition import TARGET_GAUGES
from servescope.collector.figures.derive import Derivation, Deriver
from servescope.collector.paging.manager import AlertManager
from servescope.collector.paging.settings import AlertingSettings
from servescope.collector.telemetry import Telemetry
from servescope.contract.expressions import Vector
from servescope.contract.identity import Identity
from servescope.contract.samples import Series, Snapshot, make_labels

_DEPLOYMENTS, _REPLICAS = 50, 4
_WINDOW_MS, _INTERVAL_MS = 300_000, 15_000
_EVALUATIONS, _WARM = 160, 100
_MOST_SHARE = 0.5
_LEVELS = {"autoscaler_desired_scale": 4.0, "autoscaler_rounded_desired_scale": 4.0, "queued_requests": 0.0}
_STEPS = {
    "router_index_event_gaps_total": 0.0, "preemptions_total": 0.0, "spec_decode_num_draft_tokens_total": 40.0,
    "spec_decode_num_accepted_tokens_total": 36.0, "spec_decode_num_accepted_tokens_per_pos_total": 9.0,
    "kv_cache_eligible_tokens_total": 1000.0, "kv_cache_predicted_tokens_total": 600.0,
    "kv_cache_reused_tokens_total": 500.0, "kv_cache_best_tokens_total": 510.0,
}  # fmt: skip


class _WellFleet(Fleet):
    """A healthy fleet, until `failed` is set for one deployment in ten."""

    failed = False

    def _counted(self, number: int) -> NDArray[np.float64]:
        former, series = self._values[number], self._series[number]
        wanted = np.array([_shown(each, value) for each, value in zip(series, former.tolist(), strict=True)])
        if self.failed and number % 10 == 0:
            is_failed = [dict(each.labels).get("status") == "failed" for each in series]
            wanted[np.array(is_failed)] = 1.0
        return wanted


def _shown(series: Series, former: float) -> float:
    """What a series shows next: all replicas are active, every request is answered in time."""
    labels = dict(series.labels)
    if series.name == "replica_start_time_seconds":
        return former
    if series.name == "replica_count_by_status":
        return float(labels["status"] == "active")
    if series.name == "router_index_state":
        return float(labels["state"] == "exact")
    if labels.get("outcome") in ("error", "rejected"):
        return 0.0
    if series.name.startswith("autoscaler_in_flight"):
        return (former + 1.0) % 7.0
    return _LEVELS.get(series.name, former + _STEPS.get(series.name, 5.0))


def run() -> None:
    """Print what both take while all is well, and with alerts that fire."""
    logging.disable(logging.WARNING)
    targets = _DEPLOYMENTS * _REPLICAS
    fleet = _WellFleet(Shape(targets, _DEPLOYMENTS), targets * contract_size())
    telemetry = Telemetry()
    alerts = AlertManager(
        AlertingSettings(), window_ms=_WINDOW_MS, bounds="closed", telemetry=telemetry, post=None,
        submit=lambda _: None, on_fault=_raise,
    )  # fmt: skip
    deriver, members = Deriver(_WINDOW_MS, asked=alerts.view.requirements.asked), fleet.members()
    own = _own(fleet)
    names = {*alerts.view.requirements.own, *alerts.view.requirements.counters}
    took: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
    print(f"evaluating all alerts of {_DEPLOYMENTS} deployments of {_REPLICAS} replicas, milliseconds an evaluation")
    targets_by_id = [str(number) for number in range(targets)]
    for step in range(_EVALUATIONS):
        fleet.failed = step > (_EVALUATIONS + _WARM) // 2
        fleet.scrape()
        for number, target in enumerate(targets_by_id):
            snapshot = Snapshot(fleet._series[number], fleet._values[number])
            alerts.count(target, fleet._deployments[number], snapshot)
        began = time.perf_counter()
        derived = deriver.derive(members, fleet.now_ms)
        between = time.perf_counter()
        figures = {each: found for each, found in derived.items() if isinstance(found, Derivation)}
        alerts.evaluate(
            fleet.now_ms, figures, {**telemetry.read(names), **own}, interval_ms=_INTERVAL_MS,
            targets=set(targets_by_id),
        )  # fmt: skip
        if step >= _WARM:
            took[fleet.failed].append(((between - began) * 1e3, (time.perf_counter() - between) * 1e3))
    for failed, name in ((False, "all is well"), (True, "one deployment in ten has failed replicas")):
        deriving, alerting = (min(each) for each in zip(*took[failed], strict=True))
        share = alerting / deriving
        target = "" if share < _MOST_SHARE else f"  above the {_MOST_SHARE} it may be"
        print(f"  {name:<46} {alerting:7.2f} ms  {share:.2f} of deriving the figures ({deriving:.2f} ms){target}")
    print(f"  {sum(count for _, count in alerts.counts()):.0f} alerts at the end")


def _own(fleet: Fleet) -> dict[str, Vector]:
    """What the collector shows of each target: scraped a moment ago, and nothing missing."""
    identities = [
        Identity(each.model_name, each.deployment_id, each.inference_stack, replica=f"r{number}").labels()
        for number, each in enumerate(fleet._deployments)
    ]
    gauges: dict[str, Vector] = {name: dict.fromkeys(identities, 0.0) for name in TARGET_GAUGES}
    gauges["servescope_target_understood"] = gauges["servescope_target_up"] = dict.fromkeys(identities, 1.0)
    gauges["servescope_target_scrape_age_seconds"] = dict.fromkeys(identities, 3.0)
    return {**gauges, "servescope_configuration_reload_success": {make_labels(()): 1.0}}


def _raise(message: str) -> None:
    raise AssertionError(message)
