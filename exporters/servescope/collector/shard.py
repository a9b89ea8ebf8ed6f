"""A collector that scrapes its share of the targets, and relays what it scraped to whoever gathers the shards."""

from __future__ import annotations

import asyncio
import json
import logging
import operator
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Unpack

from servescope.collector.collector import Collector, Options
from servescope.collector.config import Configuration
from servescope.collector.layers import ByDepth, Supply
from servescope.collector.membership import MemberClient, Membership
from servescope.collector.relay import PAGE_VALUES, Layouts, Relayed, RelayError, RelayLog, Told, write_page
from servescope.collector.scrape import Fetch, ScrapeError
from servescope.collector.store import Store
from servescope.collector.targets import Target
from servescope.collector.watched import Watched
from servescope.errors import ConfigurationError
from servescope.identity import DEPLOYMENT_LABELS, Deployment
from servescope.samples import Snapshot

_logger = logging.getLogger(__name__)

# Scrapes are written at once; when the store fails they wait, and so do those here.
_WRITTEN_MS, _UNWRITTEN_MS = 60_000, 3_600_000
_BEHIND_SECONDS = 5.0

Stored = dict[tuple[int, str], Relayed]
Read = Callable[[Callable[[], Stored]], Awaitable[Stored]]

Supplied = Mapping[Deployment, Mapping[str, ByDepth]]
"""Per deployment the targets from which metrics are to be taken, with those metrics by depth."""


@dataclass(frozen=True, slots=True)
class _Word:
    """What another shard last said of itself; `settled` once it scraped all its targets since it began."""

    owned: frozenset[str]
    supplied: Supplied
    settled: bool


class Shard(Collector):
    """Scrapes the targets that are its own by hash, and tells the other shards and a parent what it has.

    A target that becomes another member's is scraped on until that one says it has scraped it: scraped twice for a
    moment rather than not at all. Which metrics a deployment's targets supply is told among the shards, since what a
    frontend counts here must not be added to what a worker counts there. It derives no figures: it has only a share.
    """

    derives_figures = False

    def __init__(
        self,
        configuration: Configuration,
        store: Store,
        history: Store,
        fetch: Fetch,
        **options: Unpack[Options],
    ) -> None:
        shards = configuration.shards
        if shards is None or shards.own is None:
            raise ConfigurationError(
                f"{configuration.origin}: shards: no 'self', expected the member this collector is"
            )
        self.own = shards.own
        self._membership = Membership(shards)
        super().__init__(configuration, store, history, fetch, **options)
        settings = self.settings
        seconds = min(settings.scrape_timeout_ms, settings.discovery_interval_ms) / 1000
        self._others = MemberClient(fetch, shards, seconds)
        self._words: dict[str, _Word] = {}
        # What the others said at the last look, and why some did not.
        self._answered: frozenset[str] = frozenset()
        self._silent: dict[str, str] = {}
        self._handed_over: dict[str, str] = {}
        self._began = False
        self._log = RelayLog()
        self._layouts = Layouts()

    @property
    def problems(self) -> list[str]:
        """What is wrong with the lists of targets and of shards now."""
        members = self._membership.members
        stranger = f"this shard, {self.own!r}, is none of the members: {', '.join(members)}"
        return [
            *super().problems,
            *self._membership.problems,
            *([] if self.own in members else [stranger]),
            *(f"shard {member!r} does not answer: {error}" for member, error in self._silent.items()),
        ]

    # --- Ownership ----------------------------------------------------------------------------------------------------

    async def discover(self) -> None:
        """Hear the other shards, then take up the targets that are one's own now and let go of those that are not."""
        self._membership.refresh()
        await self._hear_others()
        await super().discover()
        # The others may have said something new of what their targets supply.
        self._settle_supplies()
        self._began = True
        known = frozenset(target.target_id for target in self.discovery.targets)
        self._membership.forget_others(known)
        self._layouts.forget_others([*self._watched, *self._leaving])

    def _listed(self) -> tuple[Target, ...]:
        """The targets that belong here, and those whose new owner has not scraped them yet."""
        kept: list[Target] = []
        self._handed_over = {}
        for target in super()._listed():
            owner = self._membership.find_owner(target.target_id)
            if owner == self.own or (target.target_id in self._watched and not self._has(owner, target.target_id)):
                kept.append(target)
            else:
                self._handed_over[target.target_id] = owner
        # Targets are compared by identity: they come from lists that keep theirs while they say the same.
        former = self._gone_by
        same = former is not None and len(former) == len(kept) and all(map(operator.is_, former, kept))
        return former if former is not None and same else tuple(kept)

    def _has(self, member: str, target_id: str) -> bool:
        return member in self._answered and target_id in self._words[member].owned

    def _let_go(self, target_id: str) -> None:
        owner = self._handed_over.get(target_id)
        if owner is None:
            super()._let_go(target_id)
            return
        # Its series go on there, so that nothing ends here.
        self._part_with(target_id)
        _logger.info("%s is scraped by %s now", target_id, owner)

    async def _hear_others(self) -> None:
        others = [member for member in self._membership.members if member != self.own]
        answers = await asyncio.gather(*(self._hear(member) for member in others), return_exceptions=True)
        silent: dict[str, str] = {}
        for member, answer in zip(others, answers, strict=True):
            if isinstance(answer, _Word):
                self._words[member] = _merge(self._words.get(member), answer)
            elif isinstance(answer, (ScrapeError, LookupError, TypeError, ValueError, AttributeError)):
                silent[member] = (
                    f"{type(answer).__name__}: {answer}" if not isinstance(answer, ScrapeError) else str(answer)
                )
            else:
                raise answer
        for member in silent.keys() - self._silent.keys():
            _logger.warning("shard %s does not answer: %s", member, silent[member])
        self._words = {member: word for member, word in self._words.items() if member in others}
        self._answered, self._silent = frozenset(others) - silent.keys(), silent

    async def _hear(self, member: str) -> _Word:
        document = json.loads(await self._others.ask(member, "/api/v1/shard"))
        return _Word(
            owned=frozenset(str(each) for each in document["owned"]),
            supplied={
                Deployment(**each["deployment"]): _group_by_target(each["metrics"]) for each in document["supplied"]
            },
            settled=document["settled"] is True,
        )

    def tell(self) -> dict[str, object]:
        """What the other shards ask: the targets that are this one's own and were scraped, and what targets supply."""
        scraped = [each for each in self._watched.values() if each.status.last_scrape_ms is not None]
        by_deployment: dict[Deployment, list[str]] = {}
        for watched in scraped:
            by_deployment.setdefault(watched.deployment, []).append(watched.target.target_id)
        return {
            "self": self.own,
            "members": list(self._membership.members),
            "settled": self._began and len(scraped) == len(self._watched),
            "owned": sorted(each.target.target_id for each in scraped if self._owns(each)),
            "supplied": [
                {
                    "deployment": {name: getattr(deployment, name) for name in DEPLOYMENT_LABELS},
                    "metrics": self._supplies[deployment].outermost_of(target_ids),
                }
                for deployment, target_ids in by_deployment.items()
            ],
        }

    def _owns(self, watched: Watched) -> bool:
        return self._membership.find_owner(watched.target.target_id) == self.own

    def _note_others(self, deployment: Deployment, supply: Supply) -> Collection[str]:
        noted: set[str] = set()
        for word in self._words.values():
            for target_id, by_depth in word.supplied.get(deployment, {}).items():
                # What is scraped here too, on its way from one shard to the other, is known at first hand.
                if target_id not in self._watched and target_id not in noted:
                    supply.note(target_id, by_depth)
                    noted.add(target_id)
        return noted

    # --- Relaying -----------------------------------------------------------------------------------------------------

    def _store_scrape(self, watched: Watched, time_ms: int, snapshot: Snapshot | None) -> None:
        super()._store_scrape(watched, time_ms, snapshot)
        scrape = Relayed(watched.target.target_id, time_ms, snapshot)
        self._log.append(scrape, now_ms=self.now_ms, hold_ms=self._hold_ms())

    def _hold_ms(self) -> int:
        """How long a scrape is kept to hand: until it surely is in the store, from which older ones are read."""
        return _UNWRITTEN_MS if self._writer.age_seconds() > _BEHIND_SECONDS else _WRITTEN_MS

    async def first_page(self, *, gap: bool = False) -> bytes:
        """A page without scrapes: all targets, and the cursor from which to follow."""
        return await self._write([], self._log.cursor, complete=True, told=self.watched, gap=gap)

    async def page_after(self, cursor: str) -> bytes:
        """The page of what came after a cursor; a first page with a gap when it cannot be followed."""
        try:
            scrapes, cursor, complete = self._log.after(cursor)
        except RelayError:
            return await self.first_page(gap=True)
        return await self._write(scrapes, cursor, complete=complete)

    async def past_page(self, since_ms: int, until_ms: int, *, read: Read = asyncio.to_thread) -> bytes:
        """The page of what began after `since_ms`, for as much of the time as fits; raises StoreError.

        `read` calls what reads the store, in another thread, and says how many may at once.
        """
        scrapes, covered_ms = await self._read_past(since_ms, until_ms, read)
        return await self._write(scrapes, self._log.cursor, complete=covered_ms >= until_ms, until_ms=covered_ms)

    def layouts(self, digests: Iterable[str]) -> dict[str, object]:
        """The layouts of these digests; those no longer known are left out."""
        return self._layouts.find(digests)

    async def _write(
        self,
        scrapes: Sequence[Relayed],
        cursor: str,
        *,
        complete: bool,
        told: Sequence[Watched] | None = None,
        until_ms: int | None = None,
        gap: bool = False,
    ) -> bytes:
        known = {**self._leaving, **self._watched}
        scrapes = [scrape for scrape in scrapes if scrape.target_id in known]
        if told is None:
            told = [known[name] for name in dict.fromkeys(scrape.target_id for scrape in scrapes)]
        targets = [
            Told(each.status, self._pacer.interval_ms(each.target), each.target.scraping.timeout_ms) for each in told
        ]
        digested = [
            (
                scrape,
                None if scrape.snapshot is None else self._layouts.digest(scrape.target_id, scrape.snapshot.series),
            )
            for scrape in scrapes
        ]
        listed = list(self._watched)
        return await asyncio.to_thread(
            write_page,
            cursor=cursor,
            complete=complete,
            now_ms=self.now_ms,
            listed=listed,
            targets=targets,
            scrapes=digested,
            until_ms=until_ms,
            gap=gap,
        )

    async def _read_past(self, since_ms: int, until_ms: int, read: Read) -> tuple[list[Relayed], int]:
        """The scrapes of the first stretch of the past in which there are any, and where it ends."""
        known = {**self._leaving, **self._watched}
        values = sum(each.status.samples for each in known.values()) or 1
        stretch_ms = max(1, self.settings.scrape_interval_ms * PAGE_VALUES // values)
        while True:
            end_ms = min(until_ms, since_ms + stretch_ms)
            found = await self._read_stretch(list(known), since_ms, end_ms, read)
            size = sum(len(scrape.snapshot.series) for scrape in found if scrape.snapshot is not None)
            if size > 2 * PAGE_VALUES and stretch_ms > 1:
                stretch_ms //= 2
            elif found or end_ms >= until_ms:
                return found, end_ms
            else:
                since_ms, stretch_ms = end_ms, 2 * stretch_ms

    async def _read_stretch(self, target_ids: Sequence[str], since_ms: int, until_ms: int, read: Read) -> list[Relayed]:
        """What the store has, and what is not written yet, in the order of time."""

        def read_stored() -> Stored:
            return {
                (time_ms, name): Relayed(name, time_ms, snapshot)
                for name in target_ids
                for time_ms, snapshot in self.history.read_scrapes(name, since_ms + 1, until_ms)
            }

        stored = await read(read_stored)
        held = {(scrape.time_ms, scrape.target_id): scrape for scrape in self._log.between(since_ms, until_ms)}
        return [scrape for _, scrape in sorted({**stored, **held}.items(), key=lambda item: item[0])]


def _merge(former: _Word | None, word: _Word) -> _Word:
    """What a shard says, and while it begins anew also what it said before of what its targets supply."""
    if former is None:
        return word
    supplied: dict[Deployment, dict[str, ByDepth]] = {}
    for deployment in word.supplied.keys() | (former.supplied.keys() if not word.settled else set()):
        before, now = former.supplied.get(deployment, {}), word.supplied.get(deployment, {})
        # Equal to the former is the same object, so that nobody looks at it again.
        same = {
            target_id: before[target_id] if before.get(target_id) == each else each for target_id, each in now.items()
        }
        supplied[deployment] = same if word.settled else {**before, **same}
    return _Word(word.owned, supplied, word.settled)


def _group_by_target(metrics: Mapping[str, tuple[int, str]]) -> dict[str, ByDepth]:
    grouped: dict[str, dict[int, set[str]]] = {}
    for name, (depth, target_id) in metrics.items():
        grouped.setdefault(str(target_id), {}).setdefault(int(depth), set()).add(str(name))
    return {
        target_id: {depth: frozenset(names) for depth, names in by_depth.items()}
        for target_id, by_depth in grouped.items()
    }
