"""The instruments of a token-based autoscaler: each evaluation's figures, and the replicas it sees.

autoscaler = AutoscalerInstruments(Identity("llama-70b", "chat-v2", "v2", role="autoscaler"))
autoscaler.evaluated(in_flight_tokens=81_000, ..., rounded_desired_scale=2)
autoscaler.set_replicas({"active": 2, "starting": 1})
autoscaler.set_bounds(min_replicas=1, max_replicas=8)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from servescope.contract.metrics import METRICS, PHASES, REPLICA_STATUSES
from servescope.instruments.instrument import Instruments
from servescope.instruments.values import finite, member, whole

if TYPE_CHECKING:
    from servescope.contract.identity import Identity

_MOST = 1e15


class AutoscalerInstruments(Instruments):
    """What one autoscaler process exposes; nothing of what has not been evaluated, counted or set.

    Any thread may call any method. No method raises: invalid values are counted in `servescope_instrument_errors_total`
    and logged once per kind; the last valid ones are kept. The constructor raises UsageError.
    """

    roles = ("autoscaler",)

    def __init__(self, identity: Identity, *, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(identity, clock=clock)
        scalar = self._ledger.scalar
        statuses = METRICS["replica_count_by_status"]
        self._replica_series = [scalar(statuses, status=status) for status in REPLICA_STATUSES]
        self._evaluation_series = [
            scalar(METRICS["autoscaler_in_flight_tokens"]),
            scalar(METRICS["autoscaler_avg_in_flight_tokens"]),
            scalar(METRICS["autoscaler_avg_num_requests"]),
            scalar(METRICS["autoscaler_avg_num_workers"]),
            scalar(METRICS["autoscaler_desired_scale"]),
            scalar(METRICS["autoscaler_policy_desired_scale"]),
            scalar(METRICS["autoscaler_rounded_desired_scale"]),
        ]
        self._phase_series = [
            scalar(METRICS[name], phase=phase)
            for name in ("autoscaler_phase_in_flight_tokens", "autoscaler_phase_desired_scale")
            for phase in PHASES
        ]
        self._bound_series = [scalar(METRICS[f"autoscaler_{bound}_replicas"]) for bound in ("min", "max")]
        self._show_refusals()
        # Replaced as a whole, so that a reading never mixes two evaluations.
        self._evaluation: tuple[float, ...] | None = None
        self._phases: tuple[float, ...] | None = None
        self._replicas: tuple[int, ...] | None = None
        self._bounds: tuple[int, ...] | None = None

    def _start_over(self, identity: Identity) -> None:
        AutoscalerInstruments.__init__(self, identity, clock=self._clock)

    def evaluated(
        self,
        *,
        in_flight_tokens: float,
        avg_in_flight_tokens: float,
        avg_num_requests: float,
        avg_num_workers: float,
        desired_scale: float,
        policy_desired_scale: float,
        rounded_desired_scale: int,
    ) -> None:
        """An evaluation ended with these figures, none negative; they are 0 for an idle deployment.

        `avg_…` are sliding-window averages, of healthy workers only; `desired_scale` is in replicas: raw, then after
        the policy's bounds, delay and half-life, then rounded up as sent to the orchestrator.
        """
        try:
            self._evaluation = (
                finite("in_flight_tokens", in_flight_tokens, _MOST),
                finite("avg_in_flight_tokens", avg_in_flight_tokens, _MOST),
                finite("avg_num_requests", avg_num_requests, _MOST),
                finite("avg_num_workers", avg_num_workers, _MOST),
                finite("desired_scale", desired_scale, _MOST),
                finite("policy_desired_scale", policy_desired_scale, _MOST),
                whole("rounded_desired_scale", rounded_desired_scale),
            )
        except Exception as error:
            self._refuse_error(error)

    def set_phases(self, *, in_flight_tokens: Mapping[str, float], desired_scale: Mapping[str, float]) -> None:
        """Set, for each of `metrics.PHASES`, its tokens in flight now and the replication units it needs, raw."""
        try:
            for phase in (*in_flight_tokens, *desired_scale):
                member("phase", phase, PHASES)
            self._phases = tuple(
                finite(f"{phase} {what}", given[phase], _MOST)
                for what, given in (("in_flight_tokens", in_flight_tokens), ("desired_scale", desired_scale))
                for phase in PHASES
            )
        except Exception as error:
            self._refuse_error(error)

    def set_replicas(self, replicas: Mapping[str, int]) -> None:
        """Set how many replicas there are by status, of `metrics.REPLICA_STATUSES`; a status left out has none."""
        try:
            for status in replicas:
                member("replica status", status, REPLICA_STATUSES)
            self._replicas = tuple(whole(f"{status} replicas", replicas.get(status, 0)) for status in REPLICA_STATUSES)
        except Exception as error:
            self._refuse_error(error)

    def set_bounds(self, *, min_replicas: int, max_replicas: int) -> None:
        """Set the fewest and the most replicas that the autoscaler may request."""
        try:
            self._bounds = (whole("min_replicas", min_replicas), whole("max_replicas", max_replicas))
        except Exception as error:
            self._refuse_error(error)

    def _before_reading(self) -> None:
        for series, values in (
            (self._evaluation_series, self._evaluation),
            (self._phase_series, self._phases),
            (self._replica_series, self._replicas),
            (self._bound_series, self._bounds),
        ):
            if values is not None:
                for one, value in zip(series, values, strict=True):
                    one.value = value
