"""One worker of a deployment: how it starts, whether it is healthy, how it fails and restarts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from servescope.contract.identity import Identity
from servescope.emulator.clock import VirtualClock
from servescope.emulator.engine.engine import Engine
from servescope.emulator.router.events import EventPublisher
from servescope.errors import UsageError

Status = Literal["starting", "active", "draining", "unhealthy", "failed"]
Phase = Literal["image_pull", "weights_load", "engine_start", "warm_up"]


def _require_seconds(parameters: object, *names: str) -> None:
    for name in names:
        value = getattr(parameters, name)
        if not 0 <= value < math.inf:
            raise UsageError(f"{name} is {value!r}, expected a number of seconds, 0 or more")


class PhaseOfStart(NamedTuple):
    """One part of a cold start and how long it takes, in seconds."""

    name: Phase
    seconds: float


@dataclass(frozen=True, slots=True)
class ColdStart:
    """How long each phase takes before a replica serves, in seconds.

    The sum is short for 70 billion parameters, so that a newcomer sees a start end: in production each phase is
    minutes. A process that is started again on the same node has its image already.
    """

    image_pull_seconds: float = 8.0
    weights_load_seconds: float = 22.0
    engine_start_seconds: float = 10.0
    warm_up_seconds: float = 5.0

    def __post_init__(self) -> None:
        _require_seconds(self, "image_pull_seconds", "weights_load_seconds", "engine_start_seconds", "warm_up_seconds")

    def phases(self, *, image_present: bool) -> tuple[PhaseOfStart, ...]:
        """The phases in their order."""
        pull = PhaseOfStart("image_pull", self.image_pull_seconds)
        rest = (
            PhaseOfStart("weights_load", self.weights_load_seconds),
            PhaseOfStart("engine_start", self.engine_start_seconds),
            PhaseOfStart("warm_up", self.warm_up_seconds),
        )
        return rest if image_present else (pull, *rest)


@dataclass(frozen=True, slots=True)
class HealthCheck:
    """How the orchestrator checks the health of a replica; times in seconds.

    It asks each `period_seconds`, and `failures` bad answers in a row make a replica unhealthy. An engine that answers
    is well, whatever it does, unless `stalled_seconds` are given: then one that has requests and has ended no step for
    that long is not. What stays unhealthy for `restart_after_seconds` is killed and started again.
    """

    period_seconds: float = 10.0
    failures: int = 3
    stalled_seconds: float | None = None
    restart_after_seconds: float = 60.0

    def __post_init__(self) -> None:
        if not 0 < self.period_seconds < math.inf:
            raise UsageError(f"period_seconds is {self.period_seconds!r}, expected a number above 0")
        if self.failures < 1:
            raise UsageError(f"failures is {self.failures!r}, expected 1 or more")
        if self.stalled_seconds is not None:
            _require_seconds(self, "stalled_seconds")
        _require_seconds(self, "restart_after_seconds")


@dataclass(frozen=True, slots=True)
class BackOff:
    """How long a failed replica waits before it is started again, as Kubernetes lets containers wait; in seconds.

    `first_seconds` after the first failure, twice as long after each further one, at most `most_seconds`. A replica
    that has served for `forgiven_after_seconds` begins with the first wait again.
    """

    first_seconds: float = 10.0
    most_seconds: float = 300.0
    forgiven_after_seconds: float = 600.0

    def __post_init__(self) -> None:
        _require_seconds(self, "first_seconds", "most_seconds", "forgiven_after_seconds")

    def seconds(self, failures: int) -> float:
        """The wait after so many failures in a row, the first of them being 1."""
        # Beyond 64 doublings nothing is below the longest wait, and a float could overflow.
        return min(self.first_seconds * 2.0 ** min(failures - 1, 64), self.most_seconds)


class Start:
    """The way of one replica through the phases of its start; `ready` is called at its end.

    The pace can change on the way: `factor` stretches what is left.
    """

    def __init__(
        self, phases: Sequence[PhaseOfStart], *, clock: VirtualClock, factor: float, ready: Callable[[], None]
    ) -> None:
        self._phases = list(phases)
        self._clock = clock
        self._factor = factor
        self._ready = ready
        self._left = 0.0
        self._since = clock.now
        self._timers = 0
        self.phase: Phase | None = None
        self._next_phase()

    def set_factor(self, factor: float) -> None:
        """Make it take `factor` times as long as planned from now on; above 0."""
        if self.phase is not None:
            self._left -= (self._clock.now - self._since) / self._factor
            self._factor = factor
            self._set_timer()

    def cancel(self) -> None:
        """Cancel the start."""
        self._timers += 1
        self.phase = None

    def _next_phase(self) -> None:
        if not self._phases:
            self.phase = None
            self._ready()
            return
        self.phase, self._left = self._phases.pop(0)
        self._set_timer()

    def _set_timer(self) -> None:
        self._timers += 1
        timer = self._timers
        self._since = self._clock.now

        def ring() -> None:
            # A later timer has taken its place when the pace has changed.
            if timer == self._timers:
                self._next_phase()

        self._clock.schedule(self._left * self._factor, ring)


class Replica:
    """One worker, which keeps its name over all the processes it has been.

    `engine` is that of its present process, or of its last one while it has `failed`. `unit` numbers the replication
    unit it belongs to. `requests` are those that need it to end well, `sending` those whose KV it has
    still to send; `events` publishes its cache, once the router knows it. `failures` counts those in a row. Written by
    the fleet and the deployment it belongs to; others read.
    """

    __slots__ = (
        "active_since", "bad_checks", "engine", "events", "failures", "identity", "processes", "progress",
        "progressed_at", "requests", "sending", "start", "status", "unhealthy_since", "unit",
    )  # fmt: skip

    def __init__(self, identity: Identity, engine: Engine, *, unit: int) -> None:
        self.identity = identity
        self.engine = engine
        self.unit = unit
        self.status: Status = "starting"
        self.start: Start | None = None
        self.requests = 0
        self.sending = 0
        self.events: EventPublisher | None = None
        self.processes = 1
        self.failures = 0
        self.active_since = 0.0
        self.unhealthy_since = 0.0
        self.bad_checks = 0
        self.progress = 0
        self.progressed_at = 0.0

    @property
    def name(self) -> str:
        """Its name at the router."""
        return self.identity.replica

    @property
    def serves_metrics(self) -> bool:
        """Whether there is a process that a scraper can read."""
        return self.status not in ("starting", "failed")

    def is_stalled(self, now: float, seconds: float) -> bool:
        """Whether it has something to compute, and has ended no step in the last `seconds`."""
        # Those whose KV only waits to be sent have no tokens in flight.
        if self.engine.steps != self.progress or self.engine.in_flight_tokens == 0:
            self.progress = self.engine.steps
            self.progressed_at = now
        return now - self.progressed_at >= seconds
