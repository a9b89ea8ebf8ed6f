"""Ordinary life of a deployment as the scrapes of a fleet: a load that changes, upgrades, restarts, starts and a night.

A replica starts for some minutes, serves, and leaves the list when its process ends; a minute is a scrape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import groupby
from typing import Final

from tests.alerts.support.incidents import Stretches, of_replica
from tests.support.alert_stories import DEPLOYMENT, ROUTER, series

PIECE: Final = 5
"""Minutes in which the load stays the same."""
_TOKENS_IN, _TOKENS_OUT, _SECONDS = 800.0, 200.0, 4.0
"""Of a request: its tokens, and how long it is in flight."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a replica, by minutes: listed from `begins` on, it serves from `ready` until it `ends`."""

    replica: str
    begins: int
    ready: int
    ends: int


@dataclass(frozen=True)
class Life:
    """So many `minutes` of `processes` under `load`, which is requests a second by the minute, of `wanted` replicas."""

    minutes: int
    processes: Sequence[Process]
    load: Callable[[int], float]
    wanted: Callable[[int], int]

    @cached_property
    def serving(self) -> Sequence[int]:
        """How many replicas serve, by the minute."""
        changes = [0] * (self.minutes + 1)
        for process in self.processes:
            changes[min(process.ready, self.minutes)] += 1
            changes[min(process.ends, self.minutes)] -= 1
        return _summed(changes)[: self.minutes]

    @cached_property
    def starting(self) -> Sequence[int]:
        """How many replicas start, by the minute."""
        changes = [0] * (self.minutes + 1)
        for process in self.processes:
            changes[min(process.begins, self.minutes)] += 1
            changes[min(process.ready, self.minutes)] -= 1
        return _summed(changes)[: self.minutes]

    def series(self) -> dict[str, Stretches]:
        """All there is to scrape: of each replica, of the autoscaler, and of a router."""
        by_replica: dict[str, list[Process]] = {}
        for process in self.processes:
            by_replica.setdefault(process.replica, []).append(process)
        given: dict[str, Stretches] = {}
        for replica, processes in by_replica.items():
            given |= self._replica(replica, sorted(processes, key=lambda each: each.begins))
        return {**given, **self._deployment()}

    def _replica(self, replica: str, processes: Sequence[Process]) -> Mapping[str, Stretches]:
        states: list[tuple[bool | None, int]] = [(None, 0)] * self.minutes
        for process in processes:
            for minute in range(process.begins, min(process.ends, self.minutes)):
                states[minute] = (minute >= process.ready, process.begins)

        def of(value: Callable[[int], float], *, listed: Callable[[int], float] | None = None) -> Stretches:
            """By the minute: while it serves, while it is listed, and None otherwise."""
            return _stretches(
                value(minute) if is_ready else listed(minute) if is_ready is not None and listed else None
                for minute, (is_ready, _) in enumerate(states)
            )

        def here(minute: int) -> float:
            return self.load(minute // PIECE * PIECE) / max(1, self.serving[minute // PIECE * PIECE])

        counters = {
            of_replica("requests_total", replica, outcome="ok"): 1.0,
            of_replica("input_tokens_total", replica): _TOKENS_IN,
            of_replica("output_tokens_total", replica): _TOKENS_OUT,
            of_replica("output_tokens_per_request_sum", replica): _TOKENS_OUT,
            of_replica("output_tokens_per_request_count", replica): 1.0,
            of_replica("request_duration_seconds_sum", replica): _SECONDS,
            of_replica("request_duration_seconds_count", replica): 1.0,
            of_replica("time_per_output_token_seconds_sum", replica): _SECONDS / _TOKENS_OUT,
            of_replica("time_per_output_token_seconds_count", replica): 1.0,
        }
        return {
            **{name: of(partial(_product, here, each)) for name, each in counters.items()},
            of_replica("concurrent_requests", replica): of(lambda minute: here(minute) * _SECONDS),
            of_replica("queued_requests", replica): of(lambda minute: here(minute) * _SECONDS / 20),
            of_replica("replica_start_time_seconds", replica): of(lambda minute: states[minute][1] * 60.0),
            of_replica("servescope_target_up", replica): of(lambda _: 1.0, listed=lambda _: 0.0),
            of_replica("servescope_target_scrape_age_seconds", replica): of(lambda _: 15.0, listed=lambda _: 15.0),
        }

    def _deployment(self) -> Mapping[str, Stretches]:
        def of(value: Callable[[int], float]) -> Stretches:
            return _stretches(float(value(minute)) for minute in range(self.minutes))

        autoscaler = {**DEPLOYMENT, "replica": "autoscaler", "role": "autoscaler"}

        def status(name: str) -> str:
            return series("replica_count_by_status", {**autoscaler, "status": name})

        return {
            status("active"): of(lambda minute: self.serving[minute]),
            status("starting"): of(lambda minute: self.starting[minute]),
            status("failed"): of(lambda _: 0.0),
            series("autoscaler_desired_scale", autoscaler): of(lambda minute: self.wanted(minute) - 0.5),
            series("autoscaler_rounded_desired_scale", autoscaler): of(self.wanted),
            series("autoscaler_in_flight_tokens", autoscaler): of(lambda minute: 1000 + minute % 7),
            series("servescope_target_up", ROUTER): of(lambda _: 1.0),
            series("servescope_target_scrape_age_seconds", ROUTER): of(lambda _: 15.0),
            series("servescope_targets", {**DEPLOYMENT, "health": "up"}): of(lambda minute: 1 + self.serving[minute]),
            series("servescope_targets", {**DEPLOYMENT, "health": "down"}): of(lambda minute: self.starting[minute]),
            "servescope_build_info{}": of(lambda _: 1.0),
        }


def _product(value: Callable[[int], float], factor: float, minute: int) -> float:
    return value(minute) * factor


def _summed(changes: Sequence[int]) -> list[int]:
    sums, total = [], 0
    for change in changes:
        total += change
        sums.append(total)
    return sums


def _stretches(values: Iterator[float | None]) -> Stretches:
    """Values by the minute as stretches of the same value."""
    return [(len([*group]), value) for value, group in groupby(values)]
