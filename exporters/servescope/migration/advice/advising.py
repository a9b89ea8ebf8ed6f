"""All advice on the traffic of a deployment: from metrics, and from a trace where there is one."""

from __future__ import annotations

from collections.abc import Iterator

from servescope.migration.advice.advice import Advice
from servescope.migration.advice.disaggregation_advice import advise_disaggregation
from servescope.migration.advice.routing_advice import RoutingTrial, advise_routing, advise_routing_of
from servescope.migration.advice.speculation_advice import advise_speculation
from servescope.migration.traffic.traffic import ServedTraffic


def advise(
    traffic: ServedTraffic | None, trial: RoutingTrial | None, first_token_target_seconds: float | None = None
) -> Iterator[Advice]:
    """Whether KV-aware routing, disaggregated serving and speculation pay, as far as there is traffic to say so.

    What a trial of both routers says of routing goes before what metrics say. The target is what 95 % of first tokens
    have to keep.
    """
    if trial is not None:
        yield advise_routing(trial)
    elif traffic is not None:
        yield advise_routing_of(traffic)
    if traffic is not None:
        yield advise_disaggregation(traffic, first_token_target_seconds)
        yield advise_speculation(traffic)
