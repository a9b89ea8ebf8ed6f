"""A deployment: replicas behind one router, their number kept by an autoscaler, their health by an orchestrator."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from servescope.contract.identity import Identity
from servescope.emulator.clock import VirtualClock
from servescope.emulator.deployment.autoscaler import Load
from servescope.emulator.deployment.disaggregation import KvNetwork, Transfer, WorkerRole
from servescope.emulator.deployment.plan import AUTOSCALER, DeploymentPlan, build_autoscaler, build_engine, build_router
from servescope.emulator.deployment.replica import Replica
from servescope.emulator.deployment.workers import FleetHooks, ReplicaFleet
from servescope.emulator.effects import DeploymentEffects
from servescope.emulator.engine.cache import CacheChanges
from servescope.emulator.engine.engine import Engine
from servescope.emulator.engine.serving import Serving
from servescope.emulator.router.configuration import WorkerCapacity
from servescope.emulator.router.events import BlockEvent, EventPublisher
from servescope.emulator.router.placement import Placement
from servescope.emulator.workload.requests import Cancel, Finished, WorkloadRequest
from servescope.errors import UsageError
from servescope.instruments.instrument import Instruments

_EVALUATION_SECONDS = 5.0


class EmulatedTarget(NamedTuple):
    """One process of a deployment that a scraper can read: its identity, its instruments, and the engine that it is."""

    identity: Identity
    instruments: Instruments
    engine: Engine | None = None

    @property
    def path(self) -> str:
        """The path of its exposition."""
        return f"/{self.identity.deployment_id}/{self.identity.replica}/metrics"


class RequestInFlight:
    """One request on its way through a deployment, until it has ended in one outcome.

    `replicas` are the workers it needs to end well. Between prefill and decode its KV is at `sender`, and waits for its
    `transfer` to `receiver` or is on its way.
    """

    __slots__ = (
        "finished", "placement", "receiver", "replicas", "request", "sender", "serving", "take_back", "transfer",
    )  # fmt: skip

    def __init__(self, request: WorkloadRequest, finished: Finished) -> None:
        self.request = request
        self.finished: Finished | None = finished
        self.take_back: Cancel = lambda: None
        self.placement: Placement | None = None
        self.replicas: list[Replica] = []
        self.serving: tuple[Engine, Serving] | None = None
        self.sender: Replica | None = None
        self.transfer: Transfer | None = None
        self.receiver: Replica | None = None


class EmulatedDeployment:
    """Replicas behind one router, their number kept by an autoscaler.

    `generation` goes up whenever the targets change. `outcomes` counts the requests that have ended, by how they ended,
    over all processes there ever were.
    """

    def __init__(self, plan: DeploymentPlan, *, clock: VirtualClock, seed: int) -> None:
        self.plan = plan
        self.generation = 0
        self.outcomes: Counter[str] = Counter()
        self.effects = DeploymentEffects()
        self._clock = clock
        self._streams = 0
        self._seed = f"{plan.identity.deployment_id}-{seed}"
        self._flights: dict[RequestInFlight, None] = {}
        self._watchers: list[Callable[[Replica], None]] = []
        self._network = KvNetwork(clock=clock)
        self._unreceived: dict[RequestInFlight, None] = {}
        self.router = build_router(plan, clock=clock, seed=f"router-{self._seed}")
        self.autoscaler = build_autoscaler(plan, clock=clock)
        self.fleet = self._build_fleet()
        self._is_open = False
        if plan.opens_seconds > clock.now:
            clock.schedule_at(plan.opens_seconds, lambda: self._open(self.fleet.scale_to))
        else:
            self._open(self.fleet.open)

    # --- requests -----------------------------------------------------------------------------------------------------

    def send(self, request: WorkloadRequest, finished: Finished) -> Cancel:
        """Serve one request; `finished` is called with its outcome. What is returned hangs up.

        Without an active replica it waits in the router; what the router does not take either is rejected, which only
        its own figures show. What cannot reach the router fails at once.
        """
        flight = RequestInFlight(request, finished)
        self._flights[flight] = None
        if self.effects.unreachable:
            self._clock.schedule(0.0, partial(self._end, flight, "error"))
            return lambda: self._hang_up(flight)
        flight.take_back = self.router.submit(request, lambda placement: self._serve(flight, placement))
        if request.patience_seconds is not None:
            self._clock.schedule(request.patience_seconds, lambda: self._hang_up(flight))
        return lambda: self._hang_up(flight)

    @property
    def in_flight(self) -> int:
        """Requests that were sent and have not ended."""
        return len(self._flights)

    def _serve(self, flight: RequestInFlight, placement: Placement | None) -> None:
        if placement is None:
            self._turn_away(flight)
            return
        replica = self.replicas[placement.worker]
        flight.placement = placement
        self._attach(flight, replica)
        engine = replica.engine
        serving = engine.submit(
            flight.request,
            first_token=placement.report,
            finished=lambda outcome: self._end(flight, outcome),
            handed_over=(lambda serving: self._hand_over(flight, serving)) if engine.role == "prefill" else None,
        )
        # What it handed over at once may be elsewhere already.
        if flight.serving is None:
            flight.serving = engine, serving

    def _turn_away(self, flight: RequestInFlight) -> None:
        attempt = self.router.instruments.route(
            eligible_tokens=flight.request.input_tokens,
            predicted_tokens=None,
            best_tokens=None,
            candidates=0,
            fallback_reason="no_worker",
        )
        attempt.abandon()
        self._end(flight, "rejected")

    def _hang_up(self, flight: RequestInFlight) -> None:
        if flight.finished is None:
            return
        if flight.serving is not None:
            engine, serving = flight.serving
            engine.abort(serving)
        else:
            flight.take_back()
            self._end(flight, "client_abort")

    def _end(self, flight: RequestInFlight, outcome: str) -> None:
        finished, flight.finished = flight.finished, None
        if finished is None:
            return
        del self._flights[flight]
        self._unreceived.pop(flight, None)
        self.outcomes[outcome] += 1
        if flight.placement is not None:
            flight.placement.end()
        if flight.transfer is not None:
            self._network.cancel(flight.transfer)
        self._sent(flight)
        for replica in [*flight.replicas]:
            self._detach(flight, replica)
        finished(outcome)

    def _attach(self, flight: RequestInFlight, replica: Replica) -> None:
        flight.replicas.append(replica)
        replica.requests += 1

    def _detach(self, flight: RequestInFlight, replica: Replica) -> None:
        flight.replicas.remove(replica)
        replica.requests -= 1
        # Not at once: the engine is in the middle of the step that ended the request.
        if replica.status == "draining":
            self._clock.schedule(0.0, partial(self.fleet.discard_if_drained, replica))

    # --- from prefill to decode ---------------------------------------------------------------------------------------

    def _hand_over(self, flight: RequestInFlight, serving: Serving) -> None:
        """Send the KV of a prompt that is computed."""
        sender = flight.replicas[0]
        flight.serving = sender.engine, serving
        flight.sender = sender
        sender.sending += 1
        sender.engine.instruments.set_pending_kv_transfers(sender.sending)
        # The router has done its part: what the worker is busy with from now on is not the request's prompt.
        if flight.placement is not None:
            flight.placement.end()
        self._send_kv(flight)

    def _send_kv(self, flight: RequestInFlight) -> None:
        decoding = self.fleet.active("decode")
        if not decoding:
            self._unreceived[flight] = None
            return
        receiver = min((self.replicas[name] for name in decoding), key=lambda replica: replica.requests)
        self._attach(flight, receiver)
        flight.receiver = receiver
        assert flight.serving is not None and flight.sender is not None  # noqa: S101,PT018 - it was handed over
        tokens = 0 if self.effects.transfers_skipped else flight.serving[1].computed
        cost = self.plan.kv_transfer
        size_bytes = round(tokens * cost.bytes_per_token)
        flight.transfer = self._network.send(
            flight.sender.name,
            receiver.name,
            cost.seconds(tokens),
            lambda waited, took: self._receive(flight, waited, took, size_bytes),
        )

    def _receive(self, flight: RequestInFlight, waited: float, took: float, size_bytes: int) -> None:
        sender, receiver = flight.replicas
        assert flight.serving is not None  # noqa: S101 - it was handed over by an engine
        engine, serving = flight.serving
        if size_bytes:
            receiver.engine.instruments.record_kv_transfer(took, waited_seconds=waited, size_bytes=size_bytes)
        flight.transfer = None
        self._sent(flight)
        prefilled = engine.release(serving)
        self._detach(flight, sender)
        going_on = receiver.engine.submit_prefilled(
            prefilled, finished=lambda outcome: self._end(flight, outcome), arrived=size_bytes > 0
        )
        flight.serving = receiver.engine, going_on

    def _sent(self, flight: RequestInFlight) -> None:
        """The worker that prefilled it no longer holds its KV."""
        sender, flight.sender = flight.sender, None
        if sender is not None:
            sender.sending -= 1
            sender.engine.instruments.set_pending_kv_transfers(sender.sending)

    # --- processes ----------------------------------------------------------------------------------------------------

    @property
    def replicas(self) -> dict[str, Replica]:
        """The workers that exist, by name, oldest first."""
        return self.fleet.replicas

    def targets(self) -> list[EmulatedTarget]:
        """Every process that serves metrics now: of a replica from when it is active until it has failed or is gone."""
        if not self._is_open:
            return []
        engines = [
            EmulatedTarget(replica.identity, replica.engine.instruments, replica.engine)
            for replica in self.replicas.values()
            if replica.serves_metrics
        ]
        return [
            *engines,
            *(
                EmulatedTarget(self.plan.identify(name, "router"), shown)
                for name, shown in self.router.processes.items()
            ),
            EmulatedTarget(self.plan.identify(AUTOSCALER, "autoscaler"), self.autoscaler.instruments),
        ]

    def is_gone(self, path: str) -> bool:
        """Whether the path is of a replica that no longer exists."""
        found = re.fullmatch(rf"/{re.escape(self.plan.identity.deployment_id)}/([a-z0-9-]+)/metrics", path)
        return found is not None and self.fleet.was_there(found[1])

    def count_replicas(self) -> dict[str, int]:
        """How many replicas there are in each status."""
        return self.fleet.count_units()

    def watch_engines(self, watch: Callable[[Replica], None]) -> None:
        """Have `watch` called with each replica from now on whose engine is a new one, before it serves."""
        self._watchers.append(watch)

    # --- what can be wrong --------------------------------------------------------------------------------------------

    def apply_effects(self, effects: DeploymentEffects) -> None:
        """Replace the effects of faults on the replicas. Raises UsageError for values out of range."""
        _check_effects(effects)
        self.effects = effects
        self.autoscaler.most_replicas = effects.max_replica
        self._network.set_factor(effects.transfer_factor)
        self.fleet.apply_effects(effects)

    def restart(self, name: str) -> None:
        """Replace the process of a replica by a new one at once; a router's is back a little later.

        A replica's requests end as `error`, its cache is empty, its counters begin at zero and its events at 1. Without
        effect on a replica that has no process. Requests wait for a router; it recovers its index and begins its
        counters at zero. Raises UsageError for a name that does not exist.
        """
        if name in self.router.processes:
            self.router.restart(name)
            self.generation += 1
        else:
            self.fleet.restart(name)

    def fail(self, name: str) -> None:
        """Let the process of a replica die; it is started again after its back-off. Otherwise as `restart`."""
        self.fleet.fail(name)

    # --- hooks of the fleet -------------------------------------------------------------------------------------------

    def _created(self, replica: Replica) -> None:
        for watch in self._watchers:
            watch(replica)

    def _joined(self, replica: Replica) -> None:
        if replica.identity.role == "decode":
            self._send_unreceived()
            return
        engine, parameters = replica.engine, self.plan.engine
        capacity = WorkerCapacity(requests=parameters.max_batch_size, blocks=parameters.cache_blocks)
        self._streams += 1
        replica.events = EventPublisher(f"{replica.name}/{self._streams}", engine.cache.cached_blocks)
        self.router.add_worker(replica.name, capacity=capacity, link=replica.events)
        # A worker that was only unhealthy has a cache: the router gets all of it again, in one event.
        cached = tuple(sorted(engine.cache.cached_blocks()))
        if cached:
            self._publish(replica.name, engine, CacheChanges(stored=cached, removed=()))

    def _draining(self, replica: Replica) -> None:
        self.router.pause_worker(replica.name)

    def _died(self, replica: Replica) -> None:
        replica.engine.fail()
        # What is left needs the worker without being served by it: KV transfers to it.
        for flight in [flight for flight in self._flights if flight.receiver is replica and flight.transfer]:
            self._give_back(flight)

    def _give_back(self, flight: RequestInFlight) -> None:
        """Send the KV to another worker, as the receiver is gone before it came."""
        assert flight.transfer is not None  # noqa: S101 - asked by the caller
        assert flight.receiver is not None  # noqa: S101 - it has a transfer
        transfer, flight.transfer = flight.transfer, None
        self._network.cancel(transfer)
        self._detach(flight, flight.receiver)
        flight.receiver = None
        # Later, when the worker that is gone counts no more among those that serve.
        self._unreceived[flight] = None
        self._clock.schedule(0.0, self._send_unreceived)

    def _send_unreceived(self) -> None:
        waiting, self._unreceived = self._unreceived, {}
        for flight in waiting:
            self._send_kv(flight)

    def _left(self, replica: Replica) -> None:
        self.router.remove_worker(replica.name)

    def _changed(self) -> None:
        self.generation += 1
        self.autoscaler.instruments.set_replicas(self.count_replicas())

    def _publish(self, name: str, engine: Engine, changes: CacheChanges) -> None:
        replica = self.replicas.get(name)
        # The last step of a process that died is not published; a process that starts is not known yet.
        if replica is not None and replica.engine is engine and replica.events is not None:
            events = replica.events
            event = events.publish(changes)
            self._clock.schedule(self.plan.event_seconds, lambda: self._deliver(replica, events, event))

    def _deliver(self, replica: Replica, events: EventPublisher, event: BlockEvent) -> None:
        # What was on its way when the router forgot the worker is of a stream it no longer follows.
        if replica.events is events and replica.status in ("active", "draining"):
            self.router.apply(replica.name, event)

    # --- scaling ------------------------------------------------------------------------------------------------------

    def _open(self, create: Callable[[int], None]) -> None:
        """Bring the deployment into being with its first replicas."""
        self._is_open = True
        create(self.autoscaler.initial_replicas)
        self.generation += 1
        self._evaluate()
        self._clock.every(_EVALUATION_SECONDS, self._evaluate)

    def _evaluate(self) -> None:
        if self.effects.autoscaler_frozen:
            return
        decode_tokens = sum(engine.in_flight_tokens for engine in self._engines("decode"))
        # Weighed where they will decode: what is computed and not there yet.
        decode_tokens += sum(engine.in_flight_tokens_by_phase().handed_over for engine in self._engines("prefill"))
        prefill_tokens = sum(engine.in_flight_tokens for engine in self._engines("prefill", "aggregated"))
        load = Load(
            in_flight_tokens=prefill_tokens + decode_tokens + self.router.queued_tokens,
            requests=self.in_flight,
            workers=self.fleet.count_workers()["active"],
            decode_tokens=decode_tokens,
        )
        ordered = self.autoscaler.evaluate(self._clock.now, load)
        if not self.effects.scaling_ignored:
            self.fleet.scale_to(ordered)

    def _engines(self, *roles: WorkerRole) -> list[Engine]:
        return [
            replica.engine
            for replica in self.replicas.values()
            if replica.serves_metrics and replica.identity.role in roles
        ]

    # --- building -----------------------------------------------------------------------------------------------------

    def _build_fleet(self) -> ReplicaFleet:
        plan = self.plan
        return ReplicaFleet(
            self.plan.identify,
            roles=plan.roles,
            clock=self._clock,
            cold_start=plan.cold_start,
            health_check=plan.health_check,
            back_off=plan.back_off,
            drain_seconds=plan.drain_seconds,
            hooks=FleetHooks(
                build=self._build_engine,
                created=self._created,
                joined=self._joined,
                draining=self._draining,
                died=self._died,
                left=self._left,
                changed=self._changed,
            ),
        )

    def _build_engine(self, identity: Identity, process: int) -> Engine:
        life = "" if process == 1 else f"-{process}"
        return build_engine(
            self.plan,
            identity,
            clock=self._clock,
            seed=f"{identity.replica}{life}-{self._seed}",
            pace_seed=f"{identity.replica}-{self._seed}",
            publish=lambda engine, changes: self._publish(identity.replica, engine, changes),
        )


def _check_effects(effects: DeploymentEffects) -> None:
    for name in ("cold_start_factor", "transfer_factor"):
        if not 0 < getattr(effects, name) < math.inf:
            raise UsageError(f"{name} is {getattr(effects, name)!r}, expected a number above 0")
    if effects.crashing_replicas < 0:
        raise UsageError(f"crashing_replicas is {effects.crashing_replicas!r}, expected 0 or more")
    if not 0 <= effects.crash_after_seconds < math.inf:
        raise UsageError(f"crash_after_seconds is {effects.crash_after_seconds!r}, expected 0 or more")
    if effects.max_replica is not None and effects.max_replica < 1:
        raise UsageError(f"max_replica is {effects.max_replica!r}, expected 1 or more")
