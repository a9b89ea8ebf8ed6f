"""What can be wrong with a part of the emulated stack, as plain values; by default nothing is.

A fault (`faults.py`) is a name, an intensity and the effects it has. Each part gets its effects whole, at any moment,
and applies them from then on; it knows nothing of faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SLOW_FACTOR = 5.0
"""Times as long as the others a slow request takes."""


@dataclass(frozen=True, slots=True)
class EngineEffects:
    """What is wrong with one engine.

    `prefill_factor` and `decode_factor` stretch those parts of a step, `batch_factor` (above 0, at most 1) shrinks the
    largest batch. `acceptance_factors` (0 to 1) lower the chance of each draft position, the last of them that of all
    positions after it. `error_share` of the requests fail beside those that do anyway. `hang_share` of those that
    arrive are accepted and never queued; their clients hang up when it is 0 again. While `frozen` no step begins:
    requests are accepted and none progresses, and the engine exposes the same values all the time. `churn_share` of the
    idle cached blocks are lost each second. With `removals_lost` its events report no block that left its cache, to
    nobody who follows them. The requests of `SMALL_TENANT` wait for `tenant_wait_seconds` before they
    are queued. With `gpu_lost` nothing reads a GPU; else as many are read as ever times
    `gpu_factor`, a whole number, each as busy as one is.

    Of the requests that arrive, `client_error_share` are refused at once. Answers have `answer_factor` (above 0, at
    most 1) times the tokens asked for, and `truncated_share` of them end at a random token as at a limit of their
    length, and are ok. `cut_share` are cut off at a random token, as if their client had hung up; of `lost_share`,
    which leave at a random token too, the end is not counted. `slow_share` take `SLOW_FACTOR` times as long for the
    first token and for each after it.

    `leak_per_hour` is the share of the whole cache that is lost each hour until the process ends; it may be above 1.
    """

    prefill_factor: float = 1.0
    decode_factor: float = 1.0
    batch_factor: float = 1.0
    acceptance_factors: tuple[float, ...] = ()
    error_share: float = 0.0
    hang_share: float = 0.0
    frozen: bool = False
    churn_share: float = 0.0
    removals_lost: bool = False
    gpu_lost: bool = False
    gpu_factor: int = 1
    client_error_share: float = 0.0
    answer_factor: float = 1.0
    truncated_share: float = 0.0
    cut_share: float = 0.0
    lost_share: float = 0.0
    slow_share: float = 0.0
    leak_per_hour: float = 0.0
    tenant_wait_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RouterEffects:
    """What is wrong with a router.

    `event_loss_share` of the workers' events never arrive (1: it is deaf), the others `event_delay_seconds` later.
    `overlap_score_weight` and `temperature` replace the configured ones where they are given. Without `recovers` it
    does not resynchronise after a gap. `hot_share` of the requests go to the worker that it has known for longest,
    whatever its load.
    """

    event_loss_share: float = 0.0
    event_delay_seconds: float = 0.0
    overlap_score_weight: float | None = None
    temperature: float | None = None
    recovers: bool = True
    hot_share: float = 0.0


@dataclass(frozen=True, slots=True)
class DeploymentEffects:
    """What is wrong with a deployment's replicas and what keeps their number.

    `cold_start_factor` stretches a start. Of `crashing_replicas` replicas, each fails `crash_after_seconds` after it
    became active, and is started again. `max_replica` replaces the configured bound. While `autoscaler_frozen`, it
    reads no load and orders nothing new; while `scaling_ignored`, replicas are neither started nor stopped,
    whatever it orders. `transfer_factor` stretches the transfer of KV between phases; with `transfers_skipped` none is
    sent, and decode workers compute the prompts again. While `unreachable`, requests fail before they arrive, and no
    part of the deployment knows of them.
    """

    cold_start_factor: float = 1.0
    crashing_replicas: int = 0
    crash_after_seconds: float = 20.0
    max_replica: int | None = None
    autoscaler_frozen: bool = False
    scaling_ignored: bool = False
    transfer_factor: float = 1.0
    transfers_skipped: bool = False
    unreachable: bool = False


@dataclass(frozen=True, slots=True)
class TrafficEffects:
    """What is unusual about the traffic.

    `rate_factor` multiplies the arrivals; `abort_share` and `preset` replace the mix's share of clients that hang up,
    and the whole mix, for requests from now on.
    """

    rate_factor: float = 1.0
    abort_share: float | None = None
    preset: str | None = None


@dataclass(frozen=True, slots=True)
class ExpositionEffects:
    """What is wrong with one target's `/metrics`, whatever it counts.

    `unreachable` closes the connection without an answer; `delay_seconds` are of the wall clock; `kept_share` of the
    text arrives before the connection ends; `renamed` maps metric names, which an engine's prefix may precede;
    `clock_offset_seconds` adds timestamps to samples, that far from now; `duplicated` repeats series within the text.
    """

    unreachable: bool = False
    delay_seconds: float = 0.0
    kept_share: float = 1.0
    renamed: Mapping[str, str] = field(default_factory=dict)
    clock_offset_seconds: float | None = None
    duplicated: bool = False
