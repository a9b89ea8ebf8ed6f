"""What several faults together do to one part: factors multiply, shares combine, of a setting the last one counts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import TypeVar

from servescope.emulator.effects import (
    DeploymentEffects,
    EngineEffects,
    ExpositionEffects,
    RouterEffects,
    TrafficEffects,
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Effects:
    """What one fault, or several together, do to every kind of part.

    Every `restart_seconds` one of the replicas is restarted, in turn, or each of them every `restart_each_seconds`;
    none is while both are None.
    """

    engine: EngineEffects = field(default_factory=EngineEffects)
    router: RouterEffects = field(default_factory=RouterEffects)
    deployment: DeploymentEffects = field(default_factory=DeploymentEffects)
    traffic: TrafficEffects = field(default_factory=TrafficEffects)
    exposition: ExpositionEffects = field(default_factory=ExpositionEffects)
    restart_seconds: float | None = None
    restart_each_seconds: float | None = None


def compose(effects: Iterable[Effects]) -> Effects:
    """The effects of all at once, in the order they were switched on; without any, no effects.

    Factors multiply and delays add. Shares combine as chances that know nothing of each other: of what one spares, the
    next takes its share. Of the crashes the soonest counts, of the bounds the lowest, and of a setting that is replaced
    the last.
    """
    return reduce(_both, effects, Effects())


def _both(first: Effects, second: Effects) -> Effects:
    return Effects(
        engine=_engine(first.engine, second.engine),
        router=_router(first.router, second.router),
        deployment=_deployment(first.deployment, second.deployment),
        traffic=_traffic(first.traffic, second.traffic),
        exposition=_exposition(first.exposition, second.exposition),
        restart_seconds=_either(min, first.restart_seconds, second.restart_seconds),
        restart_each_seconds=_either(min, first.restart_each_seconds, second.restart_each_seconds),
    )


def _engine(first: EngineEffects, second: EngineEffects) -> EngineEffects:
    return EngineEffects(
        prefill_factor=first.prefill_factor * second.prefill_factor,
        decode_factor=first.decode_factor * second.decode_factor,
        batch_factor=first.batch_factor * second.batch_factor,
        acceptance_factors=_positions(first.acceptance_factors, second.acceptance_factors),
        error_share=_shares(first.error_share, second.error_share),
        hang_share=_shares(first.hang_share, second.hang_share),
        frozen=first.frozen or second.frozen,
        churn_share=_shares(first.churn_share, second.churn_share),
        removals_lost=first.removals_lost or second.removals_lost,
        gpu_lost=first.gpu_lost or second.gpu_lost,
        gpu_factor=first.gpu_factor * second.gpu_factor,
        client_error_share=_shares(first.client_error_share, second.client_error_share),
        answer_factor=first.answer_factor * second.answer_factor,
        truncated_share=_shares(first.truncated_share, second.truncated_share),
        cut_share=_shares(first.cut_share, second.cut_share),
        lost_share=_shares(first.lost_share, second.lost_share),
        slow_share=_shares(first.slow_share, second.slow_share),
        leak_per_hour=first.leak_per_hour + second.leak_per_hour,
        tenant_wait_seconds=first.tenant_wait_seconds + second.tenant_wait_seconds,
    )


def _router(first: RouterEffects, second: RouterEffects) -> RouterEffects:
    return RouterEffects(
        event_loss_share=_shares(first.event_loss_share, second.event_loss_share),
        event_delay_seconds=first.event_delay_seconds + second.event_delay_seconds,
        overlap_score_weight=_last(first.overlap_score_weight, second.overlap_score_weight),
        temperature=_last(first.temperature, second.temperature),
        recovers=first.recovers and second.recovers,
        hot_share=_shares(first.hot_share, second.hot_share),
    )


def _deployment(first: DeploymentEffects, second: DeploymentEffects) -> DeploymentEffects:
    crashing = [each for each in (first, second) if each.crashing_replicas]
    return DeploymentEffects(
        cold_start_factor=first.cold_start_factor * second.cold_start_factor,
        crashing_replicas=first.crashing_replicas + second.crashing_replicas,
        crash_after_seconds=min((each.crash_after_seconds for each in crashing), default=second.crash_after_seconds),
        max_replica=_either(min, first.max_replica, second.max_replica),
        autoscaler_frozen=first.autoscaler_frozen or second.autoscaler_frozen,
        scaling_ignored=first.scaling_ignored or second.scaling_ignored,
        transfer_factor=first.transfer_factor * second.transfer_factor,
        transfers_skipped=first.transfers_skipped or second.transfers_skipped,
        unreachable=first.unreachable or second.unreachable,
    )


def _traffic(first: TrafficEffects, second: TrafficEffects) -> TrafficEffects:
    return TrafficEffects(
        rate_factor=first.rate_factor * second.rate_factor,
        abort_share=_either(_shares, first.abort_share, second.abort_share),
        preset=_last(first.preset, second.preset),
    )


def _exposition(first: ExpositionEffects, second: ExpositionEffects) -> ExpositionEffects:
    return ExpositionEffects(
        unreachable=first.unreachable or second.unreachable,
        delay_seconds=first.delay_seconds + second.delay_seconds,
        kept_share=first.kept_share * second.kept_share,
        renamed={**first.renamed, **second.renamed},
        clock_offset_seconds=_either(add, first.clock_offset_seconds, second.clock_offset_seconds),
        duplicated=first.duplicated or second.duplicated,
    )


def _shares(first: float, second: float) -> float:
    return 1 - (1 - first) * (1 - second)


def _positions(first: tuple[float, ...], second: tuple[float, ...]) -> tuple[float, ...]:
    """Factors of each position multiplied; the last of the shorter holds for all positions after it."""
    if not first or not second:
        return first or second
    length = max(len(first), len(second))
    return tuple(first[min(at, len(first) - 1)] * second[min(at, len(second) - 1)] for at in range(length))


def _last(first: T | None, second: T | None) -> T | None:
    return first if second is None else second


def _either(join: Callable[[T, T], T], first: T | None, second: T | None) -> T | None:
    if first is None or second is None:
        return _last(first, second)
    return join(first, second)
