"""How a router keeps its index true: it follows the workers' events."""

from __future__ import annotations

import random
from functools import partial

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import RouterEffects
from servescope.emulator.router.events import BlockEvent, WorkerLink
from servescope.emulator.router.index import BlockIndex
from servescope.router import RouterInstruments


class IndexFollower:
    """An index that follows the events of its workers, and says in which state it is."""

    def __init__(self, *, clock: VirtualClock, instruments: RouterInstruments, seed: str) -> None:
        self.index = BlockIndex()
        self._clock = clock
        self._instruments = instruments
        # Its own, so that lost events do not change what else is drawn.
        self._random = random.Random(f"{seed}-events")
        self._effects = RouterEffects()
        self._links: dict[str, WorkerLink | None] = {}
        self._arrives_at: dict[str, float] = {}
        instruments.set_index_state("exact")
        instruments.count_event_gaps(0)

    def apply_effects(self, effects: RouterEffects) -> None:
        """What happens to events from now on."""
        self._effects = effects

    def add_worker(self, worker: str, link: WorkerLink | None) -> None:
        """Follow a worker, whose cache is empty and whose next event is its first."""
        self.index.add_worker(worker)
        self._links[worker] = link
        self._arrives_at[worker] = self._clock.now

    def remove_worker(self, worker: str) -> None:
        """Forget a worker and all it had cached."""
        self.index.remove_worker(worker)
        del self._links[worker]
        del self._arrives_at[worker]

    def receive(self, worker: str, event: BlockEvent) -> None:
        """Take an event from the network, which may lose or delay it."""
        if worker not in self._links:
            return
        effects = self._effects
        if effects.event_loss_share and self._random.random() < effects.event_loss_share:
            return
        if effects.removals_lost:
            event = event._replace(changes=event.changes._replace(removed=()))
        now = self._clock.now
        # One connection for each worker: what was sent later never arrives earlier, however the delay changes.
        arrives_at = max(now + effects.event_delay_seconds, self._arrives_at[worker])
        if arrives_at <= now:
            self._follow(worker, event)
            return
        self._arrives_at[worker] = arrives_at
        self._clock.schedule(arrives_at - now, partial(self._follow, worker, event))

    def _follow(self, worker: str, event: BlockEvent) -> None:
        missing = self.index.apply(worker, event)
        if missing > 0:
            self._instruments.count_event_gaps(missing)
            self._instruments.set_index_state("degraded")
