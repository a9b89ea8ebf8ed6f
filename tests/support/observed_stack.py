"""An emulated stack as a collector sees it, on the virtual clock: scraped and derived without a second's wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from servescope.collector.collector import Collector
from servescope.collector.config import read_configuration
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target as ScrapedTarget
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.deployment.stack import V2, EmulatedStack
from servescope.emulator.faces.faces import make_pages
from servescope.emulator.faults.exposition_faults import distort
from servescope.emulator.faults.faults import Fault, Faults
from servescope.emulator.faults.truths import DUPLICATES, TARGETS_UP, Truth
from servescope.emulator.server.server import format_configuration, format_file_sd
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.store.embedded import Store
from servescope.web.connections import FetchError

# The wall-clock time at the emulated time 0. A quarter of an hour begins 15 s later, at the first evaluation of who
# evaluates as often: what Prometheus samples at quarters of hours is then known to it as soon as to a collector.
START_SECONDS = 1_800_000_000.0 - 15.0
SCRAPE_SECONDS = 5.0
# Without bursts, so that what moves is moved by the fault.
STEADY = Mix(requests_per_second=4.0, burst_factor=1.0, day_amplitude=0.0)

Seen = Mapping[str, float]
"""Figures by their key, those of `OBSERVATIONS` included."""


class ObservedStack:
    """A stack, its faults, and a collector that scrapes it with its faces every five seconds of the emulated time."""

    def __init__(self, stack: EmulatedStack, folder: Path, faces: Sequence[str] = ()) -> None:
        self.stack = stack
        self._pages = make_pages(faces, stack.deployments)
        self.faults = Faults(stack)
        self._folder = folder
        self._listed = -1
        (folder / "targets").mkdir()
        (folder / "servescope.toml").write_text(format_configuration(stack.deployments))
        self._list_targets()
        configuration = read_configuration(folder / "servescope.toml")
        self._timeout_seconds = configuration.collector.scrape_timeout_ms / 1000
        store = Store(folder / "servescope.db")
        history = Store(folder / "servescope.db", read_only=True)
        self.collector = Collector(configuration, store, history, self._fetch, clock=self._read_clock)
        self._duplicates: dict[str, float] = {}

    def __enter__(self) -> ObservedStack:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.collector.close()

    def run(self, seconds: float) -> None:
        """Let so much time pass, scraping all the while."""
        asyncio.run(self._run(seconds))

    def see(self, deployment_id: str, fault: Fault | None = None) -> Seen:
        """Let a minute pass: the deployment's figures over it as means, those absent at its end left out."""
        seen: list[Seen] = []
        for _ in range(int(60 / SCRAPE_SECONDS)):
            self.run(SCRAPE_SECONDS)
            seen.append(self._look(deployment_id, fault))
        values = {key: [each[key] for each in seen if key in each] for key in seen[-1]}
        return {key: sum(found) / len(found) for key, found in values.items()}

    def _look(self, deployment_id: str, fault: Fault | None) -> dict[str, float]:
        """The deployment's figures now, and how scraping goes of those targets that the fault is in, else of all."""
        evaluation = self.collector.evaluating.evaluate(self.collector.clock.now_ms)
        figures = next(
            dict(derivation.figures)
            for deployment, derivation in evaluation.deployments.items()
            if deployment.deployment_id == deployment_id
        )
        watched = [
            each
            for each in self.collector.fleet.watched
            if each.deployment.deployment_id == deployment_id
            and (fault is None or fault.replica in ("", each.target.identity.replica))
        ]
        up = [self.collector.fleet.health(each) == "up" for each in watched]
        figures[TARGETS_UP] = sum(up) / len(up)
        figures[DUPLICATES] = sum(self._duplicates.get(each.target.target_id, 0.0) for each in watched)
        return figures

    def _read_clock(self) -> float:
        return START_SECONDS + self.stack.clock.now

    async def _run(self, seconds: float) -> None:
        end = self.stack.clock.now + seconds
        while self.stack.clock.now < end:
            self.stack.clock.run_until(min(self.stack.clock.now + SCRAPE_SECONDS, end))
            self._list_targets()
            await self.collector.discovering.discover()
            for watched in self.collector.fleet.watched:
                scrape = await self.collector.scraping.scrape(watched)
                self._duplicates[watched.target.target_id] = scrape.dropped.get("duplicate", 0)

    def _list_targets(self) -> None:
        if self.stack.generation == self._listed:
            return
        self._listed = self.stack.generation
        for deployment in self.stack.deployments:
            path = self._folder / "targets" / f"{deployment.plan.identity.deployment_id}.json"
            fresh = path.with_suffix(".new")
            listed = [target for target in deployment.targets() if self._pages.lists(target)]
            fresh.write_text(format_file_sd(listed, "127.0.0.1:9"))
            fresh.replace(path)

    async def _fetch(self, scraped: ScrapedTarget, _: Limits, /) -> bytes:
        """What a scrape gets, and how it fails, as `Control` answers it over HTTP."""
        path = urlsplit(scraped.url).path
        target = next((each for each in self.stack.targets() if each.path == path), None)
        if target is None:
            raise FetchError("http_error", "HTTP 410")
        effects = self.faults.exposition(target)
        if effects.unreachable:
            raise FetchError("unreachable", "server disconnected")
        if effects.delay_seconds > self._timeout_seconds:
            raise FetchError("timeout", "no answer in time")
        if effects.kept_share < 1:
            raise FetchError("unreachable", "the connection ended within the body")
        return distort(self._pages.render(target), effects, now_seconds=self._read_clock())


def list_broken(truths: tuple[Truth, ...], seen: Seen, before: Seen) -> list[str]:
    """The truths that do not hold, each with the value there is; for a test's message."""
    return [
        f"{truth.describe()}: {seen.get(truth.key)} (before: {before.get(truth.key)})"
        for truth in truths
        if not truth.holds(seen.get(truth.key), before=before.get(truth.key))
    ]


@contextmanager
def observed(
    folder: Path, mix: Mix = STEADY, *plans: DeploymentPlan, seed: int = 1, faces: Sequence[str] = ()
) -> Iterator[ObservedStack]:
    """Deployments under steady traffic with equal shares, the demo's v2 when none are given."""
    shared = [(plan, 1.0) for plan in plans or (V2,)]
    with ObservedStack(EmulatedStack.of(shared, traffic=GeneratedTraffic(mix), seed=seed), folder, faces) as stack:
        yield stack
