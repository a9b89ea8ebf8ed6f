"""The loop that evaluates: figures and alerts, at every multiple of the evaluation interval."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from servescope.collector.clock import Clock
from servescope.collector.figures.derive import Derivation, Deriver, Members, count_targets
from servescope.collector.fleet import TargetRegistry
from servescope.collector.own_series import OwnSeries
from servescope.collector.paging.manager import AlertManager
from servescope.collector.recording.recorder import Recorder
from servescope.collector.scrapes.pacing import next_due_ms
from servescope.collector.scrapes.target_state import TargetState
from servescope.collector.telemetry import Telemetry
from servescope.contract.identity import ENGINE_ROLES, Deployment
from servescope.contract.samples import Sample


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All figures at one instant, in milliseconds."""

    at_ms: int = 0
    deployments: dict[Deployment, Derivation] = field(default_factory=dict)


class EvaluationLoop:
    """Derives the figures of every deployment, and evaluates the alerts; `last` is None before the first evaluation."""

    def __init__(
        self,
        fleet: TargetRegistry,
        deriver: Deriver,
        alerts: AlertManager,
        recorder: Recorder,
        own: OwnSeries,
        clock: Clock,
        telemetry: Telemetry,
        problems: Callable[[], Collection[str]],
    ) -> None:
        self.last: Evaluation | None = None
        self._fleet, self._deriver, self._alerts, self._recorder = fleet, deriver, alerts, recorder
        self._own, self._clock, self._telemetry = own, clock, telemetry
        self._problems = problems

    async def run(self) -> None:
        """Evaluate regularly, until cancelled."""
        due = 0
        while True:
            due = next_due_ms(self._clock.now_ms, self._fleet.settings.evaluation_interval_ms, 0, after_ms=due)
            await self._clock.sleep_until(due)
            if self._clock.is_ahead(due):
                # It was set back meanwhile: another instant is due.
                continue
            try:
                self.evaluate(due)
            except Exception:
                # A bug of ours in one evaluation must not end scraping, nor the evaluations after it.
                self._telemetry.report_fault("evaluate", "no figures of any deployment for this evaluation")

    def evaluate(self, at_ms: int) -> Evaluation:
        """Derive the figures of every deployment at an instant, show them and hand them to the store."""
        started, fleet = time.perf_counter(), self._fleet
        fleet.follow_clock()
        by_deployment = fleet.by_deployment()
        derived, failed = self._derive(by_deployment, at_ms)
        self.last = Evaluation(at_ms, derived)
        self._telemetry.evaluation_seconds.observe(time.perf_counter() - started)
        series = sum(len(watched.recent) for watches in by_deployment.values() for watched in watches)
        self._telemetry.set_state(series=series, problems=len(self._problems()))
        fleet.resize_cache(series)
        self._recorder.record_figures(
            at_ms, derived, fleet.shown, fleet.leaving, fleet.settings, self._own.traffic_split
        )
        self._evaluate_alerts(self.last, failed)
        return self.last

    def _derive(
        self, by_deployment: dict[Deployment, list[TargetState]], at_ms: int
    ) -> tuple[dict[Deployment, Derivation], list[Deployment]]:
        """The figures by deployment, and the deployments whose derivation raised."""
        members = {
            deployment: Members([watched.recent for watched in watches], self._count(deployment, watches))
            for deployment, watches in by_deployment.items()
        }
        derived: dict[Deployment, Derivation] = {}
        failed: list[Deployment] = []
        for deployment, found in self._deriver.derive(members, at_ms).items():
            if isinstance(found, Exception):
                message = f"{deployment.deployment_id}: no figures for this evaluation"
                self._telemetry.report_fault("evaluate", message, found)
                failed.append(deployment)
            else:
                derived[deployment] = found
        return derived, failed

    def _count(self, deployment: Deployment, members: Iterable[TargetState]) -> list[Sample]:
        """The replicas by status, by the collector's own scrapes; none where it has scraped no replica.

        What answers and is not understood is not known to be a replica, and is counted neither as active nor unhealthy.
        """
        states = [
            self._fleet.health(watched)
            for watched in members
            if watched.target.target_id in self._fleet.listed and watched.target.identity.role in ENGINE_ROLES
        ]
        healthy = [state == "up" for state in states if state in ("up", "down")]
        return count_targets(deployment, healthy) if healthy else []

    def _evaluate_alerts(self, evaluation: Evaluation, failed: Collection[Deployment]) -> None:
        fleet = self._fleet
        try:
            requirements = self._alerts.view.requirements
            self._alerts.evaluate(
                evaluation.at_ms,
                evaluation.deployments,
                self._own.read({*requirements.own, *requirements.counters}),
                interval_ms=fleet.settings.evaluation_interval_ms,
                targets={*fleet.listed, *fleet.leaving},
                unknown=failed,
            )
        except Exception:
            # A bug of ours in alerting must not end the derivation of figures.
            self._telemetry.report_fault("alert", "no alert was evaluated")
