"""Plans of cutovers, frozen ones and the least file."""

from __future__ import annotations

from servescope.cutover.plan.plan import Arm, CutoverPlan, FrozenPlan, MetricPlan, Noise, Stage
from tests.support.judgements import START_MS

LEAST_PLAN = """\
[arms]
v1 = { deployment_id = "chat-v1" }
v2 = { deployment_id = "chat-v2" }

[[stages]]
share = 0.25
"""


def cutover_plan(margin: float = 0.1, shares: tuple[float, ...] = (0.05, 0.25, 0.5, 0.95)) -> CutoverPlan:
    """A plan of two required metrics and a band, called `chat`."""
    return CutoverPlan(
        name="chat",
        v1=Arm("v1", ({"deployment_id": "chat-v1"},)),
        v2=Arm("v2", ({"deployment_id": "chat-v2"},)),
        stages=tuple(Stage(share, 1.0) for share in shares),
        metrics=(
            MetricPlan("time_to_first_token_seconds", "mean", "lower", margin=margin, floor=0.02),
            MetricPlan("request_error_share", "events", "lower", margin=1.0, floor=0.0),
            MetricPlan("in_flight_tokens_per_worker", "band", None, required=False, low=50_000.0, high=150_000.0),
        ),
    )


def frozen_plan(plan: CutoverPlan | None = None, started_ms: int = START_MS) -> FrozenPlan:
    """The plan as it is frozen at a time, with noise made up."""
    noise = {"time_to_first_token_seconds": Noise(0.005, 0.0004, 0.6, 1800.0, 576, True)}
    return FrozenPlan(plan or cutover_plan(), started_ms, noise)
