"""Which objectives engines can be held to, and at which latencies: an objective takes the edges of their histograms.

A share of requests within a latency is exact only at an edge of the histogram. Where engines have different edges, each
is held to its next one from the promised latency upwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

from servescope.contract.objectives import INSTEAD_OF, OBJECTIVES, latency_objective
from servescope.contract.types import Objective
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED, MetricMap, Source

LATENCIES: Final = tuple(name for name, objective in OBJECTIVES.items() if objective.edges_seconds)
"""The objectives of latencies, by name."""

Edges = Mapping[str, tuple[tuple[float, ...], ...]]
"""By source, the edges of its histogram above 0 in each of its releases, ascending."""


@cache
def objectives_of(sources: tuple[str, ...] = ()) -> Mapping[str, Objective]:
    """The objectives that these sources, or targets beside them, can be held to; those of all sources without any.

    A latency that none of them shows, or counts as far as its edge, has none.
    """
    found = {
        name: promise(name, objective.goal, edges_of(name, sources), objective.edges_seconds[0])
        if name in LATENCIES
        else objective
        for name, objective in OBJECTIVES.items()
    }
    return MappingProxyType({name: objective for name, objective in found.items() if objective is not None})


def promise(name: str, goal: float, edges: Edges, seconds: float) -> Objective | None:
    """The objective of a latency at each source's next edge from `seconds` upwards; None where none has one."""
    above = ([edge for edge in each if edge >= seconds] for releases in edges.values() for each in releases)
    taken = sorted({each[0] for each in above if each})
    return latency_objective(name, goal, tuple(taken)) if taken else None


def counts_edge_of(objective: Objective, sources: tuple[str, ...]) -> bool:
    """Whether one of the sources has an edge of the objective; true of an objective of no latency."""
    if objective.name not in LATENCIES:
        return True
    counted = {edge for releases in edges_of(objective.name, sources).values() for each in releases for edge in each}
    return any(not counted.isdisjoint(each.edges_seconds) for each in (objective, *objective.others))


def edges_of(name: str, sources: Iterable[str] = ()) -> Edges:
    """The edges of a latency's histogram, by source; empty where none of the sources shows it.

    Where another target beside a source shows it, those of every source that does. A source whose edges are not known
    or that has no other ones than a source that shows more, is left out, as no edge can be promised for it.
    """
    metric, other = f"{name}_seconds", INSTEAD_OF.get(name, "")
    known = load_sources()
    chosen = {source: known[source] for source in sources} or dict(known)
    held = {source: each for source, each in chosen.items() if not _shows(each, other)}
    if any(each.metrics[metric].status == "elsewhere" for each in held.values()):
        beside = {source: each for source, each in known.items() if not _shows(each, other)}
        held = {source: each for source, each in held.items() if _shows(each, metric)} or beside
    # Where a source shows the other metric, the objective must not find its edge.
    foreign = {
        edge for each in chosen.values() if other and _shows(each, other) for edge in _all_edges(each.metrics[metric])
    }
    found = {
        source: tuple(
            kept
            for edges in _releases(each.metrics[metric])
            if (kept := tuple(edge for edge in edges if edge > 0 and edge not in foreign))
        )
        for source, each in held.items()
        if _shows(each, metric)
    }
    return MappingProxyType({source: releases for source, releases in found.items() if releases})


def _shows(source: Source, metric: str) -> bool:
    return bool(metric) and (bool(source.metrics[metric].alternatives) or source.metrics[metric].status in SUPPLIED)


def _releases(metric: MetricMap) -> tuple[tuple[float, ...], ...]:
    return (metric.edges, metric.edges_before) if metric.edges_before else (metric.edges,)


def _all_edges(metric: MetricMap) -> tuple[float, ...]:
    return (*metric.edges, *metric.edges_before)


def list_edges(edges: Edges) -> str:
    """The edges of each source as text, sources that have the same ones together."""
    by_edges: dict[tuple[tuple[float, ...], ...], list[str]] = {}
    for source, releases in edges.items():
        by_edges.setdefault(releases, []).append(source)
    texts = [
        f"{' and '.join(names)} {'have' if len(names) > 1 else 'has'} "
        + ", ".join(f"{edge:g}" for edge in sorted({edge for each in releases for edge in each}))
        for releases, names in by_edges.items()
    ]
    return "; ".join(texts)
