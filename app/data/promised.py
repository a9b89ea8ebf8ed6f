"""What users are promised of a deployment, and which stacks a cutover is between: as in the rules that alert on it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from servescope.alerting.chosen import read_choices_file
from servescope.alerting.rules.choices import CATALOG_CHOICES, Choices
from servescope.console import RULES_VARIABLE
from servescope.contract.expressions import FractionAbove
from servescope.contract.identity import GROUP_LABELS, Group
from servescope.contract.objectives import latency_objective
from servescope.contract.types import Objective
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED
from servescope.store.records import TargetStatus

Promises = Mapping[str, Objective]
"""The objectives of a deployment, by name."""

_Release = tuple[str, str]


def choices() -> Choices:
    """What the rules' options say, or the catalog's values without any."""
    return _read(os.environ.get(RULES_VARIABLE, ""))


@cache
def _read(path: str) -> Choices:
    return read_choices_file(Path(path)) if path else CATALOG_CHOICES


def promises_of(targets: Iterable[TargetStatus]) -> Promises:
    """What a deployment of these targets is held to: latencies at the edge that their engines count.

    All of a latency's edges while no target's source is known; none of a latency that no target counts so.
    """
    targets = tuple(targets)
    releases = frozenset((each.source, each.versions) for each in targets if each.source in load_sources())
    group = targets[0].identity.deployment().group if targets else ()
    return _promises(releases, group, os.environ.get(RULES_VARIABLE, ""))


@cache
def _promises(releases: frozenset[_Release], group: Group, path: str) -> Promises:
    labels = dict(zip(GROUP_LABELS, group, strict=False))
    known = {name: objective.of(labels) for name, objective in _read(path).objectives.items()}
    if not releases:
        return known
    held = {name: _held(objective, releases) for name, objective in known.items()}
    return MappingProxyType({name: objective for name, objective in held.items() if objective is not None})


def _held(objective: Objective, releases: frozenset[_Release]) -> Objective | None:
    """The objective at the first of its edges that one of the releases counts, as the rules look for it."""
    if not isinstance(objective.bad, FractionAbove):
        return objective
    counted = {edge for release in releases for edge in _edges(objective.bad.histogram, *release)}
    found = next((edge for edge in objective.edges_seconds if edge in counted), None)
    if found is None:
        return None
    alone = latency_objective(objective.name, objective.goal, (found,))
    return replace(objective, bad=alone.bad, promise=alone.promise)


def _edges(histogram: str, source: str, versions: str) -> tuple[float, ...]:
    known = load_sources()[source]
    metric = known.metrics[histogram]
    if not metric.alternatives and metric.status not in SUPPLIED:
        return ()
    is_oldest = bool(metric.edges_before) and versions == known.versions[-1].versions
    return metric.edges_before if is_oldest else metric.edges
