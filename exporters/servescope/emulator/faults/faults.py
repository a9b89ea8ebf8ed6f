"""Faults on demand: named, switched on and off while the emulated stack runs, several at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar
from weakref import WeakKeyDictionary

from servescope.emulator.effects import (
    DeploymentEffects,
    EngineEffects,
    ExpositionEffects,
    RouterEffects,
    TrafficEffects,
)
from servescope.emulator.faults.composition import Effects, compose
from servescope.emulator.faults.kinds import DRAFT, KV_ROUTER, KV_TRANSFER, SCALES_BY_TOKENS, FaultKind, find_kind
from servescope.errors import UsageError
from servescope.migration.scaling import TokenScaling
from servescope.settings.tables import REQUIRED, Setting, Table, located

if TYPE_CHECKING:
    from servescope.emulator.deployment.deployment import EmulatedDeployment, EmulatedTarget
    from servescope.emulator.deployment.plan import DeploymentPlan
    from servescope.emulator.deployment.replica import Replica
    from servescope.emulator.deployment.stack import EmulatedStack

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

FAULT_SETTINGS: Final = (
    Setting("kind", REQUIRED),
    Setting("intensity", ""),
    Setting("deployment", ""),
    Setting("replica", ""),
    Setting("start", "0s"),
    Setting("end", ""),
)
"""The keys of one `[[faults]]` table of a scenario."""

_WORDS = re.compile(
    r"(?P<kind>[^:@/]+)(?::(?P<intensity>[^:@/]+))?(?:@(?P<deployment>[^@/]+)(?:/(?P<replica>[^@/]+))?)?"
)
_FOLLOW_SECONDS = 1.0
_FORM = "KIND[:INTENSITY][@DEPLOYMENT[/REPLICA]]"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: its kind, its intensity, and its place: a deployment ("": all) or one replica of it ("": all).

    In a schedule it is on from `start_seconds` to `end_seconds` of the stack's clock, to the end of all when None.
    """

    kind: FaultKind
    intensity: float
    deployment: str = ""
    replica: str = ""
    start_seconds: float = 0.0
    end_seconds: float | None = None

    @property
    def effects(self) -> Effects:
        """What it does."""
        return self.kind.effects(self.intensity)

    def covers(self, deployment: str) -> bool:
        """Whether it is in this deployment."""
        return self.deployment in ("", deployment)

    def as_json(self) -> dict[str, object]:
        """For machines, with the truths it creates."""
        return {
            "kind": self.kind.name,
            "intensity": None if self.kind.intensity is None else self.intensity,
            "deployment": self.deployment or None,
            "replica": self.replica or None,
            "summary": self.kind.summary,
            "truths": [truth.as_json() for truth in self.kind.truths(self.intensity)],
            "shows_after_seconds": self.kind.shows_after_seconds,
        }


def make_fault(
    kind: str,
    intensity: object = None,
    *,
    deployment: str = "",
    replica: str = "",
    start_seconds: float = 0.0,
    end_seconds: float | None = None,
) -> Fault:
    """A fault of the kind of this name, with its default intensity for None.

    Raises UsageError for an unknown kind, an intensity it does not take, a place it cannot be in, and an end that is
    not after the start.
    """
    found = find_kind(kind)
    if replica and not deployment:
        raise UsageError(f"fault {kind!r} names replica {replica!r} and no deployment, expected both")
    scope = "replica" if replica else "deployment" if deployment else "stack"
    if scope not in found.scopes:
        raise UsageError(f"fault {kind!r} cannot be in one {scope}, supported: {_name_scopes(found)}")
    if end_seconds is not None and end_seconds <= start_seconds:
        raise UsageError(
            f"fault {kind!r} ends at {end_seconds:g} s, expected a time after its start, {start_seconds:g} s"
        )
    return Fault(found, found.choose_intensity(intensity), deployment, replica, start_seconds, end_seconds)


def parse_fault(text: str) -> Fault:
    """The fault that `KIND[:INTENSITY][@DEPLOYMENT[/REPLICA]]` says; raises UsageError."""
    match = _WORDS.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"fault {text!r} is not understood, expected {_FORM}")
    intensity: object = match["intensity"]
    if intensity is not None:
        try:
            intensity = float(match["intensity"])
        except ValueError:
            raise UsageError(f"intensity {intensity!r} in fault {text!r} is not a number, expected {_FORM}") from None
    return make_fault(match["kind"], intensity, deployment=match["deployment"] or "", replica=match["replica"] or "")


def parse_faults(tables: Sequence[Table]) -> list[Fault]:
    """The faults of a scenario's `[[faults]]` tables, read with `FAULT_SETTINGS`; raises ConfigurationError."""
    return [_parse_table(table) for table in tables]


def _parse_table(table: Table) -> Fault:
    kind = table.string("kind", None)
    # A duration of the configuration is above 0, and the start of all is not.
    at_once = table.values.get("start", "0s") in ("0s", "0m", "0ms")
    start_ms = 0 if at_once else table.duration("start", 1)
    end_ms = table.duration("end", 1) if "end" in table.values else None
    with located(f"{table.origin}: {table.path}"):
        return make_fault(
            kind,
            table.values.get("intensity"),
            deployment=table.string("deployment", ""),
            replica=table.string("replica", ""),
            start_seconds=start_ms / 1000,
            end_seconds=None if end_ms is None else end_ms / 1000,
        )


def _name_scopes(kind: FaultKind) -> str:
    words = {"stack": "the whole stack", "deployment": "one deployment", "replica": "one replica"}
    return ", ".join(words[scope] for scope in kind.scopes)


@dataclass(slots=True)
class ActiveFault:
    """A fault that is on: its number, since when by the stack's clock, and the replica of each deployment it chose."""

    number: int
    fault: Fault
    since_seconds: float
    chosen: dict[str, str] = field(default_factory=dict)

    def as_json(self, now_seconds: float) -> dict[str, object]:
        """For machines."""
        affected = sorted(f"{deployment}/{replica}" for deployment, replica in self.chosen.items())
        return {
            "id": self.number,
            **self.fault.as_json(),
            "since_seconds": self.since_seconds,
            "on_for_seconds": now_seconds - self.since_seconds,
            **({"affects": affected} if self.fault.kind.one_replica else {}),
        }


class EffectTarget(Protocol[T_contra]):
    """What effects can be given to."""

    def apply_effects(self, effects: T_contra, /) -> None:
        """Apply these effects from now on."""


class Faults:
    """The switches of an emulated stack: any number of faults on at once, each in its place, new replicas included.

    For the thread that runs the stack's clock. `active` holds the faults that are on, `scheduled` those that will be.
    At every change each part gets the effects of all its faults as one (`composition.compose`).
    """

    def __init__(self, stack: EmulatedStack, faults: Iterable[Fault] = ()) -> None:
        self.active: dict[int, ActiveFault] = {}
        self.scheduled: list[Fault] = []
        self._stack = stack
        self._switched = 0
        self._applied: WeakKeyDictionary[object, object] = WeakKeyDictionary()
        self._traffic: tuple[TrafficEffects, dict[str, TrafficEffects]] = TrafficEffects(), {}
        # By deployment: seconds from one restart to the next, of all replicas and of each, None while there are none.
        self._paces: dict[str, tuple[float | None, float | None]] = {}
        # How often each of these has changed, so that actions planned before can be recognised.
        self._rounds: dict[str, int] = {}
        for deployment in stack.deployments:
            deployment.watch_engines(partial(self._apply_to_engine, deployment))
        stack.clock.every(_FOLLOW_SECONDS, self._follow_replicas)
        for fault in faults:
            self.schedule(fault)

    def switch_on(self, fault: Fault, *, seconds: float | None = None) -> ActiveFault:
        """Switch a fault on, for so long or until it is switched off.

        Raises UsageError when there is nothing it could be in.
        """
        self._check_place(fault, replicas=True)
        active = self._begin(fault)
        if seconds is not None:
            self._stack.clock.schedule(seconds, lambda: self._end_by_itself(active.number))
        return active

    def switch_off(self, number: int) -> ActiveFault:
        """End a fault by its number; raises UsageError when none of that number is on."""
        ended = self.active.pop(number, None)
        if ended is None:
            on = ", ".join(map(str, self.active)) or "none"
            raise UsageError(f"no fault {number!r} is on; on: {on}")
        self._apply()
        return ended

    def switch_all_off(self) -> list[ActiveFault]:
        """End every fault that is on; scheduled ones come all the same."""
        ended = list(self.active.values())
        self.active.clear()
        self._apply()
        return ended

    def schedule(self, fault: Fault) -> None:
        """Have a fault at its time; raises UsageError when its deployment is not there."""
        self._check_place(fault, replicas=False)
        if fault.end_seconds is not None and fault.end_seconds <= self._stack.clock.now:
            return
        self.scheduled.append(fault)
        wait = fault.start_seconds - self._stack.clock.now
        if wait <= 0:
            self._start_scheduled(fault)
        else:
            self._stack.clock.schedule(wait, lambda: self._start_scheduled(fault))

    def exposition(self, target: EmulatedTarget) -> ExpositionEffects:
        """What is wrong with the `/metrics` of a target now."""
        deployment, name = target.identity.deployment_id, target.identity.replica
        return compose(
            each.fault.effects
            for each in self._in(deployment, name)
            if each.fault.kind.role in ("", target.identity.role)
        ).exposition

    # --- what is on ---------------------------------------------------------------------------------------------------

    def _start_scheduled(self, fault: Fault) -> None:
        self.scheduled.remove(fault)
        active = self._begin(fault)
        if fault.end_seconds is not None:
            wait = fault.end_seconds - self._stack.clock.now
            self._stack.clock.schedule(wait, lambda: self._end_by_itself(active.number))

    def _end_by_itself(self, number: int) -> None:
        # It may have been switched off before.
        if number in self.active:
            self.switch_off(number)

    def _begin(self, fault: Fault) -> ActiveFault:
        self._switched += 1
        active = ActiveFault(self._switched, fault, self._stack.clock.now)
        self.active[active.number] = active
        self._apply()
        return active

    def _in(self, deployment: str, replica: str | None = None) -> Iterator[ActiveFault]:
        """The faults in a deployment, or those in one of its processes, in the order they were switched on."""
        for each in self.active.values():
            if not each.fault.covers(deployment):
                continue
            if replica is None or self._reaches(each, deployment, replica):
                yield each

    @staticmethod
    def _reaches(active: ActiveFault, deployment: str, replica: str) -> bool:
        if active.fault.replica:
            return active.fault.replica == replica
        return not active.fault.kind.one_replica or active.chosen.get(deployment) == replica

    # --- the parts ----------------------------------------------------------------------------------------------------

    def _apply(self) -> None:
        """Give every part the effects of the faults that are on now."""
        traffic: dict[str, TrafficEffects] = {}
        for deployment in self._stack.deployments:
            self._choose_replicas(deployment)
            name = deployment.plan.identity.deployment_id
            whole = compose(each.fault.effects for each in self._in(name))
            traffic[name] = whole.traffic
            self._apply_to(deployment, whole.deployment, DeploymentEffects())
            self._apply_to(deployment.router, whole.router, RouterEffects())
            # A list: applying may end a replica.
            for replica in list(deployment.replicas.values()):
                self._apply_to_engine(deployment, replica)
            self._pace_restarts(deployment, whole)
        of_all = compose(each.fault.effects for each in self.active.values() if not each.fault.deployment).traffic
        own = {name: effects for name, effects in traffic.items() if effects != of_all}
        if self._traffic != (of_all, own):
            self._traffic = of_all, own
            self._stack.traffic.apply_effects(of_all, own)

    def _apply_to(self, part: EffectTarget[T], effects: T, usual: T) -> None:
        """Apply effects to a part, unless it has them already."""
        if self._applied.get(part, usual) != effects:
            self._applied[part] = effects
            part.apply_effects(effects)

    def _apply_to_engine(self, deployment: EmulatedDeployment, replica: Replica) -> None:
        name = deployment.plan.identity.deployment_id
        effects = compose(each.fault.effects for each in self._in(name, replica.name))
        self._apply_to(replica.engine, effects.engine, EngineEffects())

    def _choose_replicas(self, deployment: EmulatedDeployment) -> None:
        """Have each fault that is in one replica only in one that exists: the oldest active one."""
        name = deployment.plan.identity.deployment_id
        for each in self._in(name):
            if not each.fault.kind.one_replica or each.fault.replica:
                continue
            if each.chosen.get(name) not in deployment.replicas:
                active = [replica.name for replica in deployment.replicas.values() if replica.status == "active"]
                if active:
                    each.chosen[name] = active[0]
                else:
                    each.chosen.pop(name, None)

    def _follow_replicas(self) -> None:
        """Move a fault of one replica on when that replica is gone, or when there was none."""
        for deployment in self._stack.deployments:
            name = deployment.plan.identity.deployment_id
            for each in self._in(name):
                in_one = each.fault.kind.one_replica and not each.fault.replica
                if in_one and each.chosen.get(name) not in deployment.replicas:
                    self._apply()
                    return

    # --- restarts -----------------------------------------------------------------------------------------------------

    def _pace_restarts(self, deployment: EmulatedDeployment, whole: Effects) -> None:
        name = deployment.plan.identity.deployment_id
        pace = whole.restart_seconds, whole.restart_each_seconds
        if self._paces.get(name, (None, None)) == pace:
            return
        self._paces[name] = pace
        self._rounds[name] = self._rounds.get(name, 0) + 1
        if pace != (None, None):
            # Not at once: the parts are still getting their effects.
            self._stack.clock.schedule(0.0, partial(self._restart_next, deployment, self._rounds[name], 0))

    def _restart_next(self, deployment: EmulatedDeployment, number: int, turn: int) -> None:
        """One restart of a round, and the next one when it is due; nothing once another round has begun."""
        name = deployment.plan.identity.deployment_id
        if self._rounds[name] != number or self._paces[name] == (None, None):
            return
        of_all, of_each = self._paces[name]
        due = [replica for replica in deployment.replicas.values() if self._is_restarted(name, replica)]
        if due:
            deployment.restart(due[turn % len(due)].name)
        paces = [of_all, of_each and of_each / max(len(due), 1)]
        pace_seconds = min(pace for pace in paces if pace is not None)
        self._stack.clock.schedule(pace_seconds, partial(self._restart_next, deployment, number, turn + 1))

    def _is_restarted(self, deployment: str, replica: Replica) -> bool:
        effects = compose(each.fault.effects for each in self._in(deployment, replica.name))
        paces = effects.restart_seconds, effects.restart_each_seconds
        return replica.status == "active" and paces != (None, None)

    # --- places -------------------------------------------------------------------------------------------------------

    def _check_place(self, fault: Fault, *, replicas: bool) -> None:
        deployments = {each.plan.identity.deployment_id: each for each in self._stack.deployments}
        if fault.deployment and fault.deployment not in deployments:
            known = ", ".join(deployments)
            raise UsageError(f"fault {fault.kind.name!r}: unknown deployment {fault.deployment!r}, known: {known}")
        covered = [each for name, each in deployments.items() if fault.covers(name)]
        part = fault.kind.part
        if part and not any(part in parts_of(each.plan) for each in covered):
            place = f"deployment {fault.deployment!r}" if fault.deployment else "any deployment"
            raise UsageError(f"fault {fault.kind.name!r}: there is no {part} in {place}")
        if replicas and fault.replica:
            self._check_replica(fault, covered[0])

    @staticmethod
    def _check_replica(fault: Fault, deployment: EmulatedDeployment) -> None:
        names = list(deployment.replicas)
        if fault.effects.exposition != ExpositionEffects():
            names = [target.identity.replica for target in deployment.targets()]
        if fault.replica not in names:
            raise UsageError(
                f"fault {fault.kind.name!r}: unknown replica {fault.replica!r} in {fault.deployment!r}, "
                f"known: {', '.join(names)}"
            )


def parts_of(plan: DeploymentPlan) -> set[str]:
    """The parts of a deployment that only some have, as kinds of faults name them."""
    has = {
        DRAFT: plan.engine.speculation is not None,
        KV_ROUTER: plan.routing is not None,
        SCALES_BY_TOKENS: isinstance(plan.scaling, TokenScaling),
        KV_TRANSFER: plan.disaggregation is not None,
    }
    return {part for part, there in has.items() if there}
