"""Which processes there are now, and how they are, as far as a Prometheus holds it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from servescope.contract.identity import IDENTITY_LABELS, Deployment, Identity
from servescope.contract.own_metrics import TARGET_UNDERSTOOD
from servescope.contract.samples import Labels, pick_labels
from servescope.errors import IdentityError
from servescope.store.prometheus.client import Point, Prometheus
from servescope.store.prometheus.places import FAR_LABELS, far_of, page_of, place_of
from servescope.store.prometheus.steps import at_once
from servescope.store.prometheus.targets import PROBE_SUCCESS, TARGET_INFO, TARGET_UP, UP, find_contract_targets
from servescope.store.records import TargetStatus

_LISTED_MS = 3_600_000
_MOST_PROBLEMS = 20
# Since when a target is down that was listed within the hour; of one that was there before, it is not known.
_STARTING = (
    f"min_over_time(timestamp({TARGET_UP} == 0)[1h:1m]) "
    f"unless (max_over_time({TARGET_UP}[1h]) > 0 or {TARGET_UP} offset 1h)"
)

_PROCESS_LABELS = frozenset((*IDENTITY_LABELS, *FAR_LABELS))

Process = tuple[Identity, Labels]
"""A target's identity, and which cluster, namespace and tenant it is of."""


class SeenProcesses(NamedTuple):
    """The latest status of each, and the problems of series that have a deployment and no identity."""

    statuses: Mapping[Process, TargetStatus]
    problems: tuple[str, ...]


def read_processes(prometheus: Prometheus, now_ms: int, unwatched: Collection[Deployment]) -> SeenProcesses:
    """The processes with a health by a collector or a rule, and those without one of the `unwatched` deployments.

    The latter are what a Prometheus scrapes itself. Raises PrometheusError.
    """
    reading = _Reading(prometheus, now_ms)
    found = reading.collected()
    known = {identity.deployment() for identity, _ in found}
    if any(one not in known for one in unwatched):
        found |= {process: status for process, status in reading.bare().items() if process[0].deployment() not in known}
    return SeenProcesses(found, tuple(reading.problems)[:_MOST_PROBLEMS])


class _Reading:
    """What is read at one time, and what of it had no identity."""

    def __init__(self, prometheus: Prometheus, now_ms: int) -> None:
        self._prometheus, self._now_ms = prometheus, now_ms
        self.problems: dict[str, None] = {}
        self._processes: dict[Labels, Process | None] = {}

    def collected(self) -> dict[Process, TargetStatus]:
        queries = (
            TARGET_UP,
            f"timestamp({TARGET_UP})",
            "servescope_target_scrape_duration_seconds",
            "servescope_target_samples",
            TARGET_UNDERSTOOD,
            _STARTING,
            TARGET_INFO,
        )
        *answers, about = at_once(lambda query: self._prometheus.query(query, at_ms=self._now_ms), queries)
        series, infos = [self._by_process(points) for points in answers], self._infos(about)
        found: dict[Process, TargetStatus] = {}
        for process, pages in series[1].items():
            # Of two collectors that watch it, the one that was scraped last.
            newest = max(pages, key=lambda page: pages[page])
            up, seconds, duration, samples, understood, since = (each.get(process, {}).get(newest) for each in series)
            # A collector of before that series was there says nothing of it.
            read = understood != 0.0
            status = _status(process[0], bool(up) and read, seconds, duration, samples, not_understood=not read)
            if since is not None:
                status = replace(status, starting_since_ms=round(since * 1000))
            found[process] = _with_info(status, infos.get(process, {}))
        return found

    def bare(self) -> dict[Process, TargetStatus]:
        """The targets that a Prometheus scrapes itself."""
        start_ms = self._now_ms - _LISTED_MS
        found, problems = find_contract_targets(self._prometheus, start_ms=start_ms, end_ms=self._now_ms)
        self.problems |= dict.fromkeys(problems)
        ups: dict[Labels, float] = {}
        for name in (UP, PROBE_SUCCESS):
            # A translator that is up may not reach the target.
            points = self._prometheus.query(name, at_ms=self._now_ms)
            ups |= {place_of(point.labels): point.value for point in points}
        statuses: dict[Process, TargetStatus] = {}
        for target in found:
            place = place_of(target.attached)
            process = target.process, far_of(place)
            status = _status(target.process, ups.get(place, 0.0) > 0, self._now_ms / 1000 if place in ups else None)
            other = statuses.get(process)
            # Of a pair that scrapes it, one that reaches it suffices.
            statuses[process] = other if other is not None and other.healthy else status
        # One that moved to another cluster is no longer in the former.
        there = {identity for (identity, _), status in statuses.items() if status.last_scrape_ms is not None}
        return {
            process: status
            for process, status in statuses.items()
            if status.last_scrape_ms is not None or process[0] not in there
        }

    def _infos(self, points: Iterable[Point]) -> dict[Process, Mapping[str, str]]:
        """What collectors found each target to be, as labels."""
        return {process: dict(point.labels) for point in points if (process := self._process_of(point.labels))}

    def _by_process(self, points: Iterable[Point]) -> dict[Process, dict[Labels, float]]:
        """The values of each target by the collector's page they are from."""
        found: dict[Process, dict[Labels, float]] = {}
        for point in points:
            process = self._process_of(point.labels)
            if process is not None:
                found.setdefault(process, {})[page_of(point.labels)] = point.value
        return found

    def _process_of(self, labels: Labels) -> Process | None:
        """Whose series it is; None where its labels are no identity."""
        own = pick_labels(labels, _PROCESS_LABELS)
        if own not in self._processes:
            self._processes[own] = self._identify(labels)
        return self._processes[own]

    def _identify(self, labels: Labels) -> Process | None:
        values = dict(labels)
        try:
            return Identity(**{name: values.get(name, "") for name in IDENTITY_LABELS}), far_of(labels)
        except IdentityError as error:
            if values.get("deployment_id"):
                self.problems[f"target {values.get('replica') or values.get('instance', '')!r}: {error}"] = None
            return None


def _with_info(status: TargetStatus, info: Mapping[str, str]) -> TargetStatus:
    source, versions, layer = (info.get(label, "") for label in ("source", "version", "layer"))
    return replace(status, source=source, versions=versions, layer=layer)


def _status(
    identity: Identity,
    healthy: bool,
    scraped_seconds: float | None,
    duration_seconds: float | None = None,
    samples: float | None = None,
    *,
    not_understood: bool = False,
) -> TargetStatus:
    scraped_ms = None if scraped_seconds is None else round(scraped_seconds * 1000)
    return TargetStatus(
        target_id=identity.target_id,
        url="",
        identity=identity,
        healthy=healthy,
        last_scrape_ms=scraped_ms,
        last_success_ms=scraped_ms if healthy else None,
        duration_seconds=duration_seconds,
        samples=None if samples is None else round(samples),
        not_understood=not_understood,
    )
