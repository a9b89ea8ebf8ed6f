"""How a router keeps its index current: it applies the workers' events, closes gaps, and recovers after a restart."""

from __future__ import annotations

import random
from functools import partial

from servescope.emulator.clock import VirtualClock
from servescope.emulator.effects import RouterEffects
from servescope.emulator.router.configuration import Recovery
from servescope.emulator.router.events import BlockEvent, WorkerLink
from servescope.emulator.router.index import BlockIndex
from servescope.emulator.router.snapshots import IndexSnapshot, SnapshotFile, WorkerSnapshot
from servescope.instruments.router import RouterInstruments


class _Followed:
    """One worker as the router follows it.

    `complete_to` is the last event before which none is missing, None while none is; `asked` holds while its answer is
    under way, or about to be asked for. While it is `catching_up` after a restart what it missed is no gap.
    `arrives_at` is when the last event that is under way arrives.
    """

    __slots__ = ("arrives_at", "asked", "catching_up", "complete_to", "link")

    def __init__(self, link: WorkerLink | None, now: float) -> None:
        self.link = link
        self.complete_to: int | None = None
        self.asked = False
        self.catching_up = False
        self.arrives_at = now


class IndexFollower:
    """An index that follows the events of its workers, and says in which state it is.

    `exact`: nothing is missing, as far as sequence numbers show. `degraded`: events are missing. `recovering`: workers
    are being asked for what is missing, or the process has just started. A gap is mended by the events after it, when
    the worker can send them again, else by the list of all it has cached.
    """

    def __init__(
        self,
        recovery: Recovery,
        *,
        clock: VirtualClock,
        instruments: RouterInstruments,
        seed: str,
        snapshots: SnapshotFile | None = None,
    ) -> None:
        self.index = BlockIndex()
        self._recovery = recovery
        self._clock = clock
        self._instruments = instruments
        self._snapshots = snapshots
        # Its own, so that lost events do not change what else is drawn.
        self._random = random.Random(f"{seed}-events")
        self._effects = RouterEffects()
        self._followed: dict[str, _Followed] = {}
        self._asking = 0
        self._up = True
        self._show(instruments)
        if snapshots is not None:
            clock.every(recovery.snapshot_seconds, self._write_snapshot)

    @property
    def state(self) -> str:
        """The state of the index, one of the contract's."""
        if not self._up or self._asking:
            return "recovering"
        if any(followed.complete_to is not None for followed in self._followed.values()):
            return "degraded"
        return "exact"

    @property
    def is_empty_for_now(self) -> bool:
        """Whether the process has just started and knows nothing yet."""
        return self.state == "recovering" and self.index.is_empty

    def apply_effects(self, effects: RouterEffects) -> None:
        """Replace the effects of faults on events and on gaps."""
        self._effects = effects
        if effects.recovers:
            for worker, followed in self._followed.items():
                self._ask_soon(worker, followed)

    def add_worker(self, worker: str, link: WorkerLink | None) -> None:
        """Follow a worker, whose cache is empty and whose next event is its first."""
        self.remove_worker(worker)
        self.index.add_worker(worker)
        self._followed[worker] = _Followed(link, self._clock.now)

    def remove_worker(self, worker: str) -> None:
        """Forget a worker and all it had cached; without effect on one that is unknown."""
        if self._followed.pop(worker, None) is not None:
            self.index.remove_worker(worker)
            self._show_state()

    def receive(self, worker: str, event: BlockEvent) -> None:
        """Receive an event over the network, which may lose or delay it."""
        followed = self._followed.get(worker)
        if followed is None:
            return
        effects = self._effects
        if effects.event_loss_share and self._random.random() < effects.event_loss_share:
            return
        now = self._clock.now
        # One connection for each worker: what was sent later never arrives earlier, however the delay changes.
        arrives_at = max(now + effects.event_delay_seconds, followed.arrives_at)
        if arrives_at <= now:
            self._follow(worker, followed, event)
            return
        followed.arrives_at = arrives_at
        self._clock.schedule(arrives_at - now, partial(self._follow, worker, followed, event))

    def restart(self, instruments: RouterInstruments) -> None:
        """Lose the index, and the events until `recover` is called, as the process died; counters begin at zero."""
        self._instruments = instruments
        self._up = False
        self.index = BlockIndex()
        for worker, followed in self._followed.items():
            self.index.add_worker(worker)
            # The answers of workers that were being asked go to a process that is gone.
            self._followed[worker] = _Followed(followed.link, followed.arrives_at)
        self._asking = 0
        self._show(instruments)

    def recover(self) -> None:
        """Begin again with the snapshot, if there is one, and ask the workers for the rest."""
        self._up = True
        known = self._read_snapshot()
        for worker, followed in self._followed.items():
            followed.complete_to = 0
            snapshot = known.get(worker)
            # The cache of another process under that name is not this one's.
            if snapshot is not None and followed.link is not None and snapshot.stream == followed.link.stream:
                self.index.replace(worker, snapshot.block_ids, sequence=snapshot.sequence)
                followed.complete_to = snapshot.sequence
            if followed.link is not None:
                followed.asked = followed.catching_up = True
                self._ask(worker, followed)
        self._show_state()

    # --- events -------------------------------------------------------------------------------------------------------

    def _follow(self, worker: str, followed: _Followed, event: BlockEvent) -> None:
        # A worker that came back under its name sends other events; a router that is down gets none.
        if self._followed.get(worker) is not followed or not self._up:
            return
        known = self.index.sequence(worker)
        missing = self.index.apply(worker, event)
        if missing > 0 and not followed.catching_up:
            self._instruments.count_event_gaps(missing)
            if followed.complete_to is None:
                followed.complete_to = known
            self._ask_soon(worker, followed)
            self._show_state()

    def _ask_soon(self, worker: str, followed: _Followed) -> None:
        """Ask the worker for what is missing, a little later: one gap seldom comes alone."""
        if followed.complete_to is None or followed.asked or followed.link is None or not self._effects.recovers:
            return
        followed.asked = True
        self._clock.schedule(self._recovery.gap_seconds, partial(self._ask, worker, followed))

    def _ask(self, worker: str, followed: _Followed) -> None:
        if self._followed.get(worker) is not followed:
            return
        self._asking += 1
        self._show_state()
        self._clock.schedule(self._recovery.answer_seconds, partial(self._take_answer, worker, followed, self.index))

    def _take_answer(self, worker: str, followed: _Followed, index: BlockIndex) -> None:
        if index is not self.index:
            return
        self._asking -= 1
        if self._followed.get(worker) is followed:
            followed.asked = followed.catching_up = False
            if self._effects.recovers:
                self._mend(worker, followed)
        self._show_state()

    def _mend(self, worker: str, followed: _Followed) -> None:
        if followed.link is None or followed.complete_to is None:
            return
        events = followed.link.events_after(followed.complete_to)
        if events is not None:
            self._instruments.count_recovery("events")
            for event in events:
                self.index.apply_again(worker, event)
        else:
            self._instruments.count_recovery("inventory")
            inventory = followed.link.inventory()
            self.index.replace(worker, inventory.block_ids, sequence=inventory.sequence)
        followed.complete_to = None

    # --- snapshots ----------------------------------------------------------------------------------------------------

    def _write_snapshot(self) -> None:
        # An index with holes is not kept: its sequence numbers would say that nothing is missing.
        if self._snapshots is None or self.state != "exact":
            return
        cached = self.index.cached_by_worker()
        links = {worker: followed.link for worker, followed in self._followed.items() if followed.link is not None}
        self._snapshots.write(
            IndexSnapshot(
                {
                    worker: WorkerSnapshot(link.stream, self.index.sequence(worker), cached[worker])
                    for worker, link in links.items()
                }
            )
        )

    def _read_snapshot(self) -> dict[str, WorkerSnapshot]:
        snapshot = self._snapshots.read() if self._snapshots is not None else None
        self._instruments.count_recovery("nothing" if snapshot is None else "snapshot")
        return {} if snapshot is None else dict(snapshot.workers)

    def _show(self, instruments: RouterInstruments) -> None:
        instruments.count_event_gaps(0)
        for source in ("events", "inventory"):
            instruments.count_recovery(source, 0)
        self._show_state()

    def _show_state(self) -> None:
        self._instruments.set_index_state(self.state)
