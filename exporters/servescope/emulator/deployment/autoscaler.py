"""Autoscalers: v2's, which counts tokens in flight, and v1's, which counts requests."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from servescope.emulator.deployment.disaggregation import Disaggregation
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.migration.scaling import (
    ConcurrencyPolicy,
    ConcurrencyScaling,
    SlidingWindow,
    TokenPolicy,
    TokenScaling,
)


class Load(NamedTuple):
    """What a deployment carries at one moment.

    Of all `in_flight_tokens`, `decode_tokens` are those of decode workers, when it is disaggregated. `workers` are the
    healthy ones.
    """

    in_flight_tokens: int
    requests: int
    workers: int
    decode_tokens: int = 0


class Autoscaler(Protocol):
    """What a deployment asks of its autoscaler; `most_replicas` replaces its upper bound while it is not None."""

    instruments: AutoscalerInstruments
    initial_replicas: int
    most_replicas: int | None

    def evaluate(self, now: float, load: Load) -> int:
        """How many replicas there should be; called at even intervals."""


class TokenAutoscaler:
    """Wants as many replicas as the average tokens in flight are targets.

    Disaggregated, a replica is a unit of prefill and decode workers, each phase has its own tokens and its own need of
    units, and the larger need counts. `TokenPolicy` makes replicas of the need.
    """

    def __init__(
        self,
        scaling: TokenScaling,
        *,
        instruments: AutoscalerInstruments,
        disaggregation: Disaggregation | None = None,
    ) -> None:
        self.instruments = instruments
        self._disaggregation = disaggregation
        self.initial_replicas = scaling.initial_replicas
        self.most_replicas: int | None = None
        self._scaling = scaling
        self._tokens = SlidingWindow(scaling.autoscaling_window)
        self._decode_tokens = SlidingWindow(scaling.autoscaling_window)
        self._requests = SlidingWindow(scaling.autoscaling_window)
        self._workers = SlidingWindow(scaling.autoscaling_window)
        self._policy = TokenPolicy(scaling)

    def evaluate(self, now: float, load: Load) -> int:
        """How many replicas there should be; called at even intervals."""
        self._tokens.add(now, load.in_flight_tokens)
        self._requests.add(now, load.requests)
        self._workers.add(now, load.workers)
        self._decode_tokens.add(now, load.decode_tokens)
        desired = self._desire(load)
        decision = self._policy.decide(now, desired, self.most_replicas)
        self.instruments.evaluated(
            in_flight_tokens=load.in_flight_tokens,
            avg_in_flight_tokens=self._tokens.mean(),
            avg_num_requests=self._requests.mean(),
            avg_num_workers=self._workers.mean(),
            desired_scale=desired,
            policy_desired_scale=decision.policy,
            rounded_desired_scale=decision.replicas,
        )
        self.instruments.set_bounds(min_replicas=self._scaling.min_replica, max_replicas=self._scaling.max_replica)
        return decision.replicas

    def _desire(self, load: Load) -> float:
        target = self._scaling.target_in_flight_tokens
        if self._disaggregation is None:
            return self._tokens.mean() / target
        decode = self._decode_tokens.mean()
        needs = {
            "prefill": (self._tokens.mean() - decode)
            / (self._scaling.prefill_target_in_flight_tokens or target)
            / self._disaggregation.prefill_workers_per_replica,
            "decode": decode / target / self._disaggregation.decode_workers_per_replica,
        }
        self.instruments.set_phases(
            in_flight_tokens={
                "prefill": load.in_flight_tokens - load.decode_tokens,
                "decode": load.decode_tokens,
            },
            desired_scale=needs,
        )
        return max(needs.values())


class ConcurrencyAutoscaler:
    """Follows `ConcurrencyPolicy`. It counts no tokens, so it shows none."""

    def __init__(self, scaling: ConcurrencyScaling, *, instruments: AutoscalerInstruments) -> None:
        self.instruments = instruments
        self.initial_replicas = scaling.initial_replicas
        self.most_replicas: int | None = None
        self._policy = ConcurrencyPolicy(scaling)

    def evaluate(self, now: float, load: Load) -> int:
        """How many replicas there should be; called at even intervals."""
        return self._policy.decide(now, load.requests, self.most_replicas)
