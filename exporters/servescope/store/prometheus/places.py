"""Where a series was scraped: the labels that a Prometheus, its pair, a cluster's agent or a tenant's query adds.

A process is scraped at several places where collectors, or Prometheus servers, come in pairs. Its series at each place
are read by themselves, and counted once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from servescope.contract.identity import IDENTITY_LABELS, Identity
from servescope.contract.samples import Labels, pick_labels

PAIR_LABELS: Final = ("prometheus_replica", "receive_replica", "rule_replica", "__replica__")
"""Labels in which the series of Prometheus servers differ that scrape the same targets, for availability."""
FAR_LABELS: Final = ("cluster", "namespace", "__tenant_id__")
"""Labels in which series of different processes may differ although they have the same identity."""
PAGE_LABELS: Final = ("job", "instance", *FAR_LABELS)
"""Labels by which the pages of collectors differ."""
PLACE_LABELS: Final = (*PAGE_LABELS, *PAIR_LABELS)

_IDENTITY, _PLACE = frozenset(IDENTITY_LABELS), frozenset(PLACE_LABELS)

Key = tuple[Labels, Labels]
"""The identity labels of a target's series, and the place that they were scraped at."""


def place_of(labels: Labels) -> Labels:
    """Where a series was scraped."""
    return pick_labels(labels, _PLACE)


def page_of(labels: Labels) -> Labels:
    """Which collector's page a series is from; the same from each of a pair of Prometheus servers."""
    return pick_labels(labels, PAGE_LABELS)


def key_of(labels: Labels) -> Key:
    """Whose series it is."""
    return pick_labels(labels, _IDENTITY), place_of(labels)


def far_of(labels: Labels) -> Labels:
    """Which cluster, namespace and tenant a series is of."""
    return pick_labels(labels, FAR_LABELS)


def name_at(identity: Identity, far: Labels) -> Identity:
    """What a process is called where others have its identity: with its cluster, namespace and tenant."""
    return replace(identity, replica="@".join((identity.replica, *(value for _, value in far))))


def names_apart(processes: Iterable[tuple[Identity, Labels]]) -> dict[tuple[Identity, Labels], Identity]:
    """What each process is called, by its identity and `far_of` its series; each once, in their order."""
    found = sorted(set(processes))
    several = Counter(identity for identity, _ in found)
    return {(identity, far): name_at(identity, far) if several[identity] > 1 else identity for identity, far in found}


def describe_places(places: Sequence[Labels]) -> list[str]:
    """Each of several places by the labels in which they differ."""
    shared = set.intersection(*map(set, places))
    return [
        ", ".join(f"{name}={value}" for name, value in place if (name, value) not in shared)
        or "a place without these labels"
        for place in places
    ]
