"""Deployments in a Prometheus whose labels others have as well: who scraped what where, and what rules made of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Final

from hypothesis import strategies as st

from servescope.collector.targets.claims import Claim, ScrapedAt
from servescope.contract.figures import FIGURES
from servescope.contract.identity import Deployment
from servescope.contract.samples import format_series, make_labels
from servescope.increments.extrapolation import LOOKBACK_MS
from servescope.settings.addresses import read_address, read_pattern

SCRAPE_MS: Final = 15_000
MINUTES: Final = 40
RECORDED: Final = "queued_requests"
"""The figure that a rule records; the others are computed."""

_INSTANCES: Final = (
    "10.0.1.7:8000",
    "10.0.1.8:8000",
    "10.0.2.7:8000",
    "[fd00::7]:8000",
    "engine.chat.svc:8000",
    "pod-0",
)
_PATTERNS: Final = ("10.0.1.0/24:8000", "10.0.1.7:8000", "[fd00::/8]:*", "*.chat.svc:8000")
_JOBS: Final = ("engines", "others", "")
_NAMESPACES: Final = ("chat", "evil", "")
_CLUSTERS: Final = ("eu", "us", "")
PLACES: Final = tuple(
    dict(zip(("instance", "job", "namespace", "cluster"), each, strict=True))
    for each in product(_INSTANCES, _JOBS, _NAMESPACES, _CLUSTERS)
)


@dataclass(frozen=True, slots=True)
class Target:
    """One target: where it is scraped, what it calls itself, between which minutes, and what it counts a scrape."""

    place: Mapping[str, str]
    replica: str
    first: int
    last: int
    amount: int

    def values(self, start_ms: int) -> Iterator[tuple[int, float, float]]:
        """Times, its requests and how many are queued."""
        for number in range(MINUTES * 60_000 // SCRAPE_MS):
            time_ms = start_ms + number * SCRAPE_MS
            if self.first * 60_000 <= time_ms - start_ms <= self.last * 60_000:
                yield time_ms, float(self.amount * number), float(self.amount)


@dataclass(frozen=True, slots=True)
class Story:
    """A deployment: its allow-list, the targets that fit it, and others that claim it; whether a rule records of it."""

    claim: Claim
    own: tuple[Target, ...]
    strangers: tuple[Target, ...]
    is_recorded: bool


def fits(claim: Claim, place: Mapping[str, str]) -> bool:
    """Whether a place fits an allow-list, by what the documentation says."""
    restricted = (("job", claim.jobs), ("namespace", claim.namespaces), ("cluster", claim.clusters))
    if any(allowed and place[name] not in allowed for name, allowed in restricted):
        return False
    if not claim.targets:
        return True
    return ":" in place["instance"] and claim.names(read_address(place["instance"]))


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Any allow-list that some places fit, and any targets."""

    def some(values: Sequence[str]) -> frozenset[str]:
        return frozenset(draw(st.sets(st.sampled_from([each for each in values if each]), max_size=2)))

    patterns = draw(st.sets(st.sampled_from(_PATTERNS), max_size=2))
    claim = Claim(
        tuple(map(read_pattern, sorted(patterns))), (), some(_JOBS), some(_NAMESPACES), some(_CLUSTERS)
    )  # fmt: skip
    if claim == Claim():
        claim = Claim(jobs=frozenset({"engines"}))
    fitting = [place for place in PLACES if fits(claim, place)]
    others = [place for place in PLACES if not fits(claim, place)]
    own = tuple(
        Target(place, f"r{number}", 0, MINUTES, number + 1)
        for number, place in enumerate(draw(st.lists(st.sampled_from(fitting), min_size=1, max_size=2, unique_by=str)))
    )
    strangers = tuple(
        Target(place, draw(st.sampled_from(["r0", "r1", "s"])), first, first + draw(st.integers(0, 12)), 1_000 + number)
        for number, (place, first) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.sampled_from(others), st.integers(0, 30)),
                    max_size=3,
                    unique_by=lambda each: str(each[0]),
                )
            )
        )
    )
    return Story(claim, own, strangers, draw(st.booleans()))


def deployment_of(number: int, *, mixed: bool) -> Deployment:
    """The deployment of a story, with its strangers or without."""
    return Deployment("llama", f"{'mixed' if mixed else 'alone'}-{number}", "v2")


def write_past(told: Sequence[Story], start_ms: int, path: Path) -> None:
    """What a Prometheus holds of all stories, twice each: with the strangers, and without."""
    with path.open("w", encoding="utf-8") as file:
        for number, story in enumerate(told):
            for mixed in (True, False):
                deployment = deployment_of(number, mixed=mixed)
                there = (*story.own, *(story.strangers if mixed else ()))
                for target in there:
                    file.writelines(_samples(deployment, target, start_ms))
                if story.is_recorded:
                    file.writelines(_recorded(deployment, there, start_ms))
        file.write("# EOF\n")


def _samples(deployment: Deployment, target: Target, start_ms: int) -> Iterator[str]:
    own = {**dict(deployment.labels()), "replica": target.replica, "role": "aggregated"}
    labels = make_labels({**own, **target.place})
    for time_ms, requests, queued in target.values(start_ms):
        for name, value in (("up", 1.0), ("queued_requests", queued)):
            yield f"{format_series(name, labels)} {value} {time_ms / 1000:.3f}\n"
        series = format_series("requests_total", make_labels((*labels, ("outcome", "ok"))))
        yield f"{series} {requests} {time_ms / 1000:.3f}\n"


def _recorded(deployment: Deployment, targets: Sequence[Target], start_ms: int) -> Iterator[str]:
    """What a rule records of the last samples of five minutes, without looking whose they are."""
    series = format_series(FIGURES[RECORDED].record(), deployment.labels())
    samples = [{time_ms: queued for time_ms, _, queued in target.values(start_ms)} for target in targets]
    for number in range(MINUTES * 60_000 // SCRAPE_MS):
        at_ms = start_ms + number * SCRAPE_MS
        last = [
            queued
            for each in samples
            if each and (time_ms := max((t for t in each if t <= at_ms), default=-LOOKBACK_MS)) > at_ms - LOOKBACK_MS
            for queued in [each[time_ms]]
        ]
        yield f"{series} {sum(last)} {at_ms / 1000:.3f}\n"


def scraped_at(place: Mapping[str, str]) -> ScrapedAt:
    """The place as an allow-list is asked for it."""
    address = read_address(place["instance"]) if ":" in place["instance"] else None
    return ScrapedAt(address, place["job"], place["namespace"], place["cluster"])
