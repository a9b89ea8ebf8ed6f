"""What is read of the past to freeze a plan."""

from __future__ import annotations

from collections.abc import Sequence

from servescope.contract.events import Event
from servescope.contract.identity import Deployment
from servescope.cutover.plan.files import preset_metrics
from servescope.cutover.plan.plan import Arm, CutoverPlan, Stage
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.judge.case import read_calibration
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.records import TargetStatus

STARTED_MS = 1_800_000_000_000
CHAT = Deployment("llama", "chat", "v1")


class _Asked(PrometheusHistory):
    """A past with one deployment and nothing in it, which keeps the times it is asked for."""

    def __init__(self) -> None:
        super().__init__(Prometheus("http://127.0.0.1:1"))
        self.increments: list[tuple[int, int]] = []
        self.events: list[tuple[int, int]] = []

    def targets(self) -> list[TargetStatus]:
        return []

    def deployments(self) -> list[Deployment]:
        return [CHAT]

    def read_increments(
        self, deployment: Deployment, names: Sequence[str], start_ms: int, end_ms: int
    ) -> list[TargetIncrements]:
        self.increments.append((start_ms, end_ms))
        return []

    def read_events(self, start_ms: int, end_ms: int) -> list[Event]:
        self.events.append((start_ms, end_ms))
        return []

    def remarks(self) -> tuple[str, ...]:
        return ()


def test_two_days_of_events_are_not_read_to_freeze_a_plan() -> None:
    """Noise is calibrated from increments alone: of events none is asked for."""
    past = _Asked()
    v1, v2 = (Arm(stack, ({"inference_stack": stack},)) for stack in ("v1", "v2"))
    read_calibration(past, CutoverPlan("chat", v1, v2, (Stage(0.5),), preset_metrics()), STARTED_MS)
    assert past.increments == [(STARTED_MS - 48 * 3_600_000, STARTED_MS + BLOCK_MS)]
    assert past.events == [(STARTED_MS, STARTED_MS)]
