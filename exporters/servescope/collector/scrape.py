"""One scrape: fetch a target's text within bounds, recognise its source, translate it into the contract.

Whatever a target does costs only its own scrape: every failure is a ScrapeError that names target, line and cause.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Protocol

import numpy as np

from servescope.catalog import METRICS, PROCESS_RATIOS, SAMPLE_FAMILIES
from servescope.collector.parse import Exposition, ParseError, parse_exposition
from servescope.collector.targets import Target
from servescope.errors import ServescopeError
from servescope.samples import Labels, Sample, Series, Snapshot
from servescope.sources import LAYERS, SUPPLIED, Source, identify, load_sources
from servescope.translate import Coverage, translate

_logger = logging.getLogger(__name__)

OUTCOMES = (
    "ok", "unreachable", "timeout", "status", "redirect", "truncated", "too_large", "malformed", "too_many_series",
    "unknown_source", "credentials", "clock", "internal", "dns", "tls", "proxy", "protocol", "rate_limited",
)  # fmt: skip
"""How a scrape can end."""


class ScrapeError(ServescopeError):
    """A scrape that brought nothing; `outcome` is one of `OUTCOMES`.

    `retry_after_seconds` is how long the server asks to be left alone, None where it does not.
    """

    def __init__(self, outcome: str, message: str, *, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.outcome = outcome
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True, slots=True)
class Limits:
    """What one scrape may cost: seconds, bytes after decompression, native samples."""

    timeout_seconds: float
    max_body_bytes: int
    max_series: int


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one scrape brought; `snapshot` is None when it failed, and `error` then says why."""

    time_ms: int
    duration_seconds: float
    outcome: str
    snapshot: Snapshot | None = None
    error: str | None = None
    native_samples: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    retry_after_seconds: float | None = None


class Fetch(Protocol):
    """Gets the text of a target; raises ScrapeError."""

    async def __call__(self, target: Target, limits: Limits, /) -> bytes:
        """The body of the target's answer."""


Outer = Callable[[int, frozenset[str]], Mapping[str, str]]
"""Which of the metrics other targets of the deployment supply from further out than a depth, with those targets."""

_ALL_METRICS = frozenset(METRICS)


def _depth(source: Source, role: str, metric: str) -> int:
    """How far inside its deployment a target sees a metric from: the layer's place, outermost first.

    What an engine's own instruments say of its cache is further in than what those of the router before it say, and
    further out than the engine's page.
    """
    depth = 2 * LAYERS.index(source.layer)
    within = source.layer == "process" and METRICS[metric].component == "router" and role != "router"
    return depth + 1 if within else depth


class Reader:
    """How one target's texts are understood: its source, kept from its first success, and what it covers.

    A metric that another target of the deployment supplies from further out (`outer`) is left to that one, never added
    to it: a frontend and the workers behind it see the same requests.

    When a metric that was observed is observed no more, the source is identified anew: the target may have been
    upgraded to a release with other names. A source pinned in the configuration stays.
    """

    def __init__(self, target: Target, outer: Outer = lambda _depth, _metrics: {}) -> None:
        self._target = target
        self._outer = outer
        self._source: Source | None = None
        self._ever_supplied: frozenset[str] = frozenset()
        self._supplied_at: dict[int, frozenset[str]] = {}
        self._observed: frozenset[str] = frozenset()
        self._coverage: Mapping[str, Coverage] = {}
        self.versions = ""
        # Kept from scrape to scrape while it stays the same, which it nearly always does.
        self.coverage: dict[str, dict[str, str | None]] = {}
        self._admitted = _Admission()

    @property
    def source(self) -> str | None:
        """The name of the source, None until the first success."""
        return self._source.name if self._source else None

    def supplies_outside(self, depth: int, metrics: frozenset[str]) -> frozenset[str]:
        """Which of the metrics this target has ever supplied and sees from further out than that depth.

        Once taken from here a metric is never handed back: a figure must not jump when this target fails.
        """
        further_out = (names for own_depth, names in self._supplied_at.items() if own_depth < depth)
        return frozenset().union(*(names & metrics for names in further_out))

    def read(self, body: bytes, max_series: int) -> tuple[Snapshot, int, Mapping[str, int]]:
        """The contract samples of a text, how many native ones it had, and how many were dropped by reason.

        Raises ScrapeError.
        """
        exposition = self._parse(body, max_series)
        source = self._source or self._identify(exposition)
        translation = translate(exposition, source, self._target.identity)
        observed = _observed(translation.coverage)
        if not self._observed <= observed:
            again = self._identify(exposition)
            if again is not source:
                source, translation = again, translate(exposition, again, self._target.identity)
                observed = _observed(translation.coverage)
        self._note_supplied(source, observed)
        self._source, self._observed = source, observed
        elsewhere = self._taken_from_others()
        self._keep_coverage(_hand_over(translation.coverage, elsewhere))
        taken = [sample for sample in translation.samples if SAMPLE_FAMILIES.get(sample.name) not in elsewhere]
        snapshot, dropped = self._admitted.admit(taken)
        dropped["not_finite"] += exposition.dropped
        return snapshot, len(exposition.samples) + exposition.dropped, dropped

    def _note_supplied(self, source: Source, observed: frozenset[str]) -> None:
        if source is self._source and observed <= self._ever_supplied:
            return
        self._ever_supplied |= observed
        self._supplied_at = {}
        for name in self._ever_supplied:
            depth = _depth(source, self._target.identity.role, name)
            self._supplied_at[depth] = self._supplied_at.get(depth, frozenset()) | {name}

    def _taken_from_others(self) -> dict[str, str]:
        """The metrics that other targets supply from further out, with those targets' names."""
        elsewhere: dict[str, str] = {}
        for place, (depth, names) in enumerate(sorted(self._supplied_at.items())):
            # What this target does not supply is told of as well, once.
            elsewhere |= self._outer(depth, names if place else _ALL_METRICS)
        return elsewhere

    def _keep_coverage(self, coverage: Mapping[str, Coverage]) -> None:
        if coverage != self._coverage:
            self._coverage = coverage
            self.coverage = {name: asdict(each) for name, each in coverage.items()}

    def _parse(self, body: bytes, max_series: int) -> Exposition:
        try:
            exposition = parse_exposition(body)
        except ParseError as error:
            raise ScrapeError("malformed", f"line {error.line}: {error.cause} in {_shortened(error.text)}") from error
        if len(exposition.samples) > max_series:
            count = len(exposition.samples)
            raise ScrapeError("too_many_series", f"{count} samples, above the limit of {max_series} (max_series)")
        return exposition

    def _identify(self, exposition: Exposition) -> Source:
        if self._target.source is not None:
            source = load_sources()[self._target.source]
            self.versions = source.tell_versions(exposition)
            return source
        found = identify(exposition)
        if found.source is None:
            near = f"; the nearest is {found.nearest!r}" if found.nearest else ""
            raise ScrapeError("unknown_source", f"no known source: {found.reason}{near}")
        self.versions = found.versions
        return found.source


class _Admission:
    """Lets through what may be stored: finite values, each series once, no ratio of a single process."""

    def __init__(self) -> None:
        self._series: tuple[Series, ...] = ()

    def admit(self, samples: list[Sample]) -> tuple[Snapshot, Counter[str]]:
        snapshot = Snapshot.of(samples)
        if snapshot.series == self._series and np.isfinite(snapshot.values).all():
            return Snapshot(self._series, snapshot.values), Counter()
        kept: dict[tuple[str, Labels], Sample] = {}
        dropped: Counter[str] = Counter()
        for sample in samples:
            if sample.name in PROCESS_RATIOS:
                continue
            if not math.isfinite(sample.value):
                dropped["not_finite"] += 1
            elif (sample.name, sample.labels) in kept:
                dropped["duplicate"] += 1
            else:
                kept[sample.name, sample.labels] = sample
        admitted = Snapshot.of(list(kept.values()))
        if admitted.series != self._series:
            self._series = admitted.series
        return Snapshot(self._series, admitted.values), dropped


async def scrape_target(
    target: Target, reader: Reader, fetch: Fetch, limits: Limits, *, clock: Callable[[], float]
) -> Scrape:
    """One scrape of a target, stamped with the wall clock at its start; never raises ScrapeError."""
    time_ms, started = round(clock() * 1000), time.perf_counter()
    try:
        body = await fetch(target, limits)
        snapshot, native, dropped = reader.read(body, limits.max_series)
    except ScrapeError as error:
        duration, message = time.perf_counter() - started, f"{target.url}: {error}"
        retry = error.retry_after_seconds
        return Scrape(time_ms, duration, error.outcome, error=message, retry_after_seconds=retry)
    except Exception as error:
        # A mistake of ours on one target's text must not stop the others.
        _logger.exception("%s: %s: scrape failed inside the collector", target.target_id, target.url)
        message = f"{target.url}: a fault in the collector: {type(error).__name__}: {error}"
        return Scrape(time_ms, time.perf_counter() - started, "internal", error=message)
    return Scrape(time_ms, time.perf_counter() - started, "ok", snapshot, None, native, dropped)


def _hand_over(coverage: Mapping[str, Coverage], elsewhere: Mapping[str, str]) -> Mapping[str, Coverage]:
    """The coverage of a target whose metrics in `elsewhere` are taken from the targets named there."""
    return {
        name: Coverage(
            "elsewhere", each.native, f"taken from {elsewhere[name]}, which sees the deployment from outside"
        )
        if name in elsewhere and each.status in SUPPLIED
        else each
        for name, each in coverage.items()
    }


def _observed(coverage: Mapping[str, Coverage]) -> frozenset[str]:
    return frozenset(name for name, each in coverage.items() if each.status in SUPPLIED)


def _shortened(text: str, limit: int = 80) -> str:
    return repr(text if len(text) <= limit else text[:limit] + "…")
