"""The workers of a deployment as an orchestrator runs them: started, checked, restarted, drained, removed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from servescope.contract.identity import Identity
from servescope.contract.metrics import REPLICA_STATUSES
from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.disaggregation import WorkerRole
from servescope.emulator.deployment.replica import BackOff, ColdStart, HealthCheck, Replica, Start, Status
from servescope.emulator.effects import DeploymentEffects
from servescope.emulator.engine.engine import Engine
from servescope.errors import UsageError

# The status of a unit: the first of these that one of its workers has.
_WORST_FIRST: tuple[Status, ...] = ("draining", "failed", "unhealthy", "starting", "active")
# The unit that serves least is stopped first.
_STOPPED_FIRST: tuple[Status, ...] = ("failed", "starting", "unhealthy", "active")
_STEMS: dict[WorkerRole, str] = {"aggregated": "engine", "prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetHooks:
    """Called by a fleet when something happens to a worker, with that worker.

    `build` makes the engine of a worker's n-th process; `created`: it has a new engine; `joined`: it
    serves from now on; `draining`: it gets nothing new; `died`: its process has ended with all it had; `left`: it is no
    worker any more, after `died` if it did. `changed`: the workers, or the status of one, have changed.
    """

    build: Callable[[Identity, int], Engine]
    created: Callable[[Replica], None]
    joined: Callable[[Replica], None]
    draining: Callable[[Replica], None]
    died: Callable[[Replica], None]
    left: Callable[[Replica], None]
    changed: Callable[[], None]


class ReplicaFleet:
    """Workers in replication units of the given `roles`, each unit scaled as a whole.

    `replicas` are the workers that exist, by name, oldest first. A worker that fails keeps its name and its unit, and
    is started again after its back-off.
    """

    def __init__(
        self,
        identify: Callable[[str, WorkerRole], Identity],
        *,
        roles: tuple[WorkerRole, ...],
        clock: VirtualClock,
        cold_start: ColdStart,
        health_check: HealthCheck,
        back_off: BackOff,
        drain_seconds: float,
        hooks: FleetHooks,
    ) -> None:
        self.replicas: dict[str, Replica] = {}
        self._identify = identify
        self._roles = roles
        self._clock = clock
        self._cold_start = cold_start
        self._health_check = health_check
        self._back_off = back_off
        self._drain_seconds = drain_seconds
        self._hooks = hooks
        self._effects = DeploymentEffects()
        self._born: Counter[str] = Counter()
        self._units = 0
        clock.every(health_check.period_seconds, self._check_health)

    # --- what there is ------------------------------------------------------------------------------------------------

    def find(self, name: str) -> Replica:
        """The worker of that name; raises UsageError, which names those there are."""
        if name not in self.replicas:
            raise UsageError(f"unknown replica {name!r}, known: {', '.join(self.replicas)}")
        return self.replicas[name]

    def was_there(self, name: str) -> bool:
        """Whether there was a worker of that name, and is none now."""
        found = re.fullmatch(r"([a-z]+)-(\d{1,9})", name)
        return found is not None and int(found[2]) < self._born[found[1]] and name not in self.replicas

    def active(self, *roles: WorkerRole) -> list[str]:
        """The names of the workers that serve requests in one of these roles."""
        return [
            name
            for name, replica in self.replicas.items()
            if replica.status == "active" and replica.identity.role in roles
        ]

    def count_workers(self) -> dict[str, int]:
        """How many workers there are in each status."""
        counts = dict.fromkeys(REPLICA_STATUSES, 0)
        for replica in self.replicas.values():
            counts[replica.status] += 1
        return counts

    def count_units(self) -> dict[str, int]:
        """How many replication units there are in each status; one is active when all its workers are."""
        counts = dict.fromkeys(REPLICA_STATUSES, 0)
        for status in self._unit_statuses().values():
            counts[status] += 1
        return counts

    def _unit_statuses(self) -> dict[int, Status]:
        statuses: dict[int, set[Status]] = {}
        for replica in self.replicas.values():
            statuses.setdefault(replica.unit, set()).add(replica.status)
        return {unit: next(status for status in _WORST_FIRST if status in had) for unit, had in statuses.items()}

    # --- scaling ------------------------------------------------------------------------------------------------------

    def open(self, units: int) -> None:
        """Create so many units that serve from the start."""
        for _ in range(units):
            for replica in self._create_unit():
                self._activate(replica)

    def scale_to(self, units: int) -> None:
        """Start or stop units until there are so many, draining ones not counted.

        As an orchestrator does: what has failed is started again, not replaced, so it counts.
        """
        statuses = self._unit_statuses()
        change = units - sum(status != "draining" for status in statuses.values())
        for _ in range(change):
            for replica in self._create_unit():
                self._begin_start(replica, image_present=False)
        youngest_first = sorted(statuses, reverse=True)
        least_first = [unit for status in _STOPPED_FIRST for unit in youngest_first if statuses[unit] == status]
        for unit in least_first[: max(-change, 0)]:
            for replica in [replica for replica in self.replicas.values() if replica.unit == unit]:
                self._give_up(replica)
        if change:
            self._hooks.changed()

    def discard_if_drained(self, replica: Replica) -> None:
        """Stop a draining worker that has nothing left."""
        if replica.status == "draining" and replica.requests == 0 and self.replicas.get(replica.name) is replica:
            self._hooks.died(replica)
            self._hooks.left(replica)
            self._discard(replica)

    def _create_unit(self) -> list[Replica]:
        created = []
        for role in self._roles:
            stem = _STEMS[role]
            identity = self._identify(f"{stem}-{self._born[stem]}", role)
            self._born[stem] += 1
            replica = Replica(identity, self._hooks.build(identity, 1), unit=self._units)
            self.replicas[replica.name] = replica
            created.append(replica)
        self._units += 1
        for replica in created:
            self._hooks.created(replica)
        return created

    def _give_up(self, replica: Replica) -> None:
        if replica.status == "active":
            replica.status = "draining"
            self._hooks.draining(replica)
            self._clock.schedule(self._drain_seconds, lambda: self._end_drain(replica))
            self.discard_if_drained(replica)
            return
        if replica.status != "failed":
            self._hooks.died(replica)
        self._discard(replica)

    def _end_drain(self, replica: Replica) -> None:
        if self.replicas.get(replica.name) is replica and replica.status == "draining":
            self._fail(replica)

    def _discard(self, replica: Replica) -> None:
        del self.replicas[replica.name]
        if replica.start is not None:
            replica.start.cancel()
        self._hooks.changed()

    # --- starting and failing -----------------------------------------------------------------------------------------

    def restart(self, name: str) -> None:
        """Replace the process of a worker by a new one at once; without effect where there is no process."""
        replica = self.find(name)
        if not replica.serves_metrics:
            return
        was_draining = replica.status == "draining"
        self._kill(replica)
        if was_draining:
            self._discard(replica)
        else:
            self._renew(replica)
            self._activate(replica)

    def fail(self, name: str) -> None:
        """Let the process of a worker die; it is started again after its back-off. Without effect as `restart` is."""
        replica = self.find(name)
        if replica.serves_metrics:
            self._fail(replica)

    def apply_effects(self, effects: DeploymentEffects) -> None:
        """Apply the effects to starts under way, and to replicas that are to crash."""
        self._effects = effects
        for replica in self.replicas.values():
            if replica.start is not None:
                replica.start.set_factor(effects.cold_start_factor)
        self._doom()

    def _begin_start(self, replica: Replica, *, image_present: bool) -> None:
        replica.status = "starting"
        replica.start = Start(
            self._cold_start.phases(image_present=image_present),
            clock=self._clock,
            factor=self._effects.cold_start_factor,
            ready=lambda: self._activate(replica),
        )

    def _activate(self, replica: Replica) -> None:
        replica.start = None
        replica.active_since = replica.progressed_at = self._clock.now
        self._join(replica)
        self._doom()

    def _join(self, replica: Replica) -> None:
        replica.status = "active"
        replica.bad_checks = 0
        self._hooks.joined(replica)
        self._hooks.changed()

    def _renew(self, replica: Replica) -> None:
        replica.processes += 1
        replica.events = None
        replica.engine = self._hooks.build(replica.identity, replica.processes)
        self._hooks.created(replica)

    def _kill(self, replica: Replica) -> None:
        known = replica.status in ("active", "draining")
        self._hooks.died(replica)
        if known:
            self._hooks.left(replica)

    def _fail(self, replica: Replica) -> None:
        was_draining = replica.status == "draining"
        self._kill(replica)
        if was_draining:
            self._discard(replica)
            return
        if self._clock.now - replica.active_since >= self._back_off.forgiven_after_seconds:
            replica.failures = 0
        replica.failures += 1
        replica.status = "failed"
        self._clock.schedule(self._back_off.seconds(replica.failures), lambda: self._start_again(replica))
        self._hooks.changed()

    def _start_again(self, replica: Replica) -> None:
        if self.replicas.get(replica.name) is replica:
            self._renew(replica)
            self._begin_start(replica, image_present=True)
            self._hooks.changed()

    def _crashing(self) -> list[Replica]:
        return [*self.replicas.values()][: self._effects.crashing_replicas]

    def _doom(self) -> None:
        """Schedule the crash of every worker that is to crash."""
        for replica in self._crashing():
            if replica.status == "active":
                due = replica.active_since + self._effects.crash_after_seconds
                self._clock.schedule(due - self._clock.now, partial(self._crash, replica, replica.active_since))

    def _crash(self, replica: Replica, active_since: float) -> None:
        """It crashes, unless it has restarted since, or the effects have changed."""
        due = active_since + self._effects.crash_after_seconds
        is_due = due <= self._clock.now or math.isclose(due, self._clock.now)
        same_life = replica.status == "active" and replica.active_since == active_since
        if same_life and is_due and replica in self._crashing():
            self._fail(replica)

    # --- health -------------------------------------------------------------------------------------------------------

    def _check_health(self) -> None:
        for replica in [*self.replicas.values()]:
            if replica.status in ("active", "unhealthy"):
                self._check(replica)

    def _check(self, replica: Replica) -> None:
        check, now = self._health_check, self._clock.now
        well = check.stalled_seconds is None or not replica.is_stalled(now, check.stalled_seconds)
        replica.bad_checks = 0 if well else replica.bad_checks + 1
        if replica.status == "active" and replica.bad_checks >= check.failures:
            replica.status = "unhealthy"
            replica.unhealthy_since = now
            self._hooks.left(replica)
            self._hooks.changed()
        elif replica.status == "unhealthy" and well:
            self._join(replica)
        elif replica.status == "unhealthy" and now - replica.unhealthy_since >= check.restart_after_seconds:
            self._fail(replica)
