"""Events of the past, deduced from the series of a Prometheus: to within a minute, and without deploys.

Alerts are those that Prometheus evaluated, and the names of those that collectors evaluate themselves. A target is gone
when the page that exposed it is there without it, or, where Prometheus scraped it itself, while it scrapes others. What
happened while a collector, or Prometheus, was down is not known, and is no event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from servescope.contract.events import Event
from servescope.contract.identity import IDENTITY_LABELS, Identity
from servescope.contract.metrics import REPLICA_START_TIME
from servescope.contract.samples import Labels, make_labels, pick_labels
from servescope.errors import IdentityError
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.places import PLACE_LABELS, key_of
from servescope.store.prometheus.steps import read_steps
from servescope.store.prometheus.targets import TARGET_INFO, UP

STEP_MS: Final = 60_000
"""How exactly the times of events are known."""

_FIRING = 'alertstate="firing",severity!="none"'
# Of other alerts of the same Prometheus nothing says that they have to do with a deployment.
_ALERTS = f'ALERTS{{{_FIRING},inference_stack!=""}} or ALERTS{{{_FIRING},alertname=~"Servescope.+"}}'
_COUNTED, _SHARES, _BUILD = "servescope_alerts", "servescope_configured_traffic_ratio", "servescope_build_info"
_COLLECTED_ALERTS = f'{_COUNTED}{{alertstate="firing",alertname!="ServescopeWatchdog"}} > 0'
_PAGES = f"group by ({', '.join(PLACE_LABELS)}) ({_BUILD})"
_STARTS = f"group by ({', '.join(IDENTITY_LABELS)}, job, instance) ({REPLICA_START_TIME})"

Flags = NDArray[np.bool_]
_ABOUT = ("source", "version", "layer")


def read_events(prometheus: Prometheus, start_ms: int, end_ms: int) -> list[Event]:
    """The events after start up to end, in the order of their time. Raises PrometheusError."""
    if end_ms <= start_ms:
        return []
    steps = _Steps(prometheus, start_ms, end_ms)
    scraping = steps.anything(f"group({UP})")
    pages = steps.presence(_PAGES, lambda labels: key_of(labels)[1])
    collecting = np.logical_or.reduce([*pages.values(), steps.nowhere()])
    found = [*_alerts(steps, scraping, collecting), *_targets(steps, scraping, pages), *_splits(steps, collecting)]
    return sorted(
        (event for event in found if start_ms < event.time_ms <= end_ms),
        key=lambda event: (event.time_ms, event.kind, event.labels),
    )


class _Steps:
    """The instants at which a Prometheus is asked: one before the time of interest, and every step up to its end."""

    def __init__(self, prometheus: Prometheus, start_ms: int, end_ms: int) -> None:
        self._prometheus = prometheus
        self.times = np.arange(start_ms // STEP_MS * STEP_MS, end_ms + 1, STEP_MS, dtype=np.int64)

    def ask(self, expression: str) -> Iterator[tuple[Labels, NDArray[np.intp], NDArray[np.float64]]]:
        """Each series with the numbers of the steps at which it is there, and its values; in parts."""
        first_ms, last_ms = int(self.times[0]), int(self.times[-1])
        for track in read_steps(self._prometheus, expression, first_ms, last_ms, STEP_MS):
            yield track.labels, (track.times - first_ms) // STEP_MS, track.values

    def presence(self, expression: str, name: Callable[[Labels], Labels]) -> dict[Labels, Flags]:
        """Where any series was there, by a name that is made of its labels."""
        found: dict[Labels, Flags] = {}
        for labels, at, _ in self.ask(expression):
            found.setdefault(name(labels), self.nowhere())[at] = True
        return found

    def anything(self, expression: str) -> Flags:
        return self.presence(expression, lambda _: ()).get((), self.nowhere())

    def nowhere(self) -> Flags:
        return np.zeros(len(self.times), dtype=bool)

    def turns(self, present: Flags, known: Flags) -> Iterator[tuple[int, bool]]:
        """When something came (True) or went, where it is known whether it was there; that it is there is known."""
        at = np.flatnonzero(known | present)
        there = present[at]
        for turn in np.flatnonzero(there[1:] != there[:-1]) + 1:
            yield int(self.times[at[turn]]), bool(there[turn])


# --- Alerts -----------------------------------------------------------------------------------------------------------


def _alerts(steps: _Steps, scraping: Flags, collecting: Flags) -> Iterator[Event]:
    evaluated = steps.presence(_ALERTS, lambda labels: _without(labels, "__name__", "alertstate"))
    names = {dict(labels)["alertname"] for labels in evaluated}
    collected = {
        labels: present
        for labels, present in steps.presence(
            _COLLECTED_ALERTS, lambda labels: pick_labels(labels, ("alertname",))
        ).items()
        if dict(labels).get("alertname", "") not in names
    }
    for found, known in ((evaluated, scraping), (collected, collecting)):
        for labels, present in found.items():
            name = dict(labels)["alertname"]
            for time_ms, came in steps.turns(present, known):
                kind: Literal["alert_fired", "alert_resolved"] = "alert_fired" if came else "alert_resolved"
                yield Event(time_ms, kind, labels, f"{name} {'fires' if came else 'is resolved'}")


def _without(labels: Labels, *names: str) -> Labels:
    return tuple(pair for pair in labels if pair[0] not in names)


# --- Targets ----------------------------------------------------------------------------------------------------------


def _targets(steps: _Steps, scraping: Flags, pages: Mapping[Labels, Flags]) -> Iterator[Event]:
    """Targets that came, went or changed: those of collectors, and our instruments that Prometheus scraped itself."""
    kinds: dict[Labels, NDArray[np.intp]] = {}
    known: dict[Labels, Flags] = {}
    infos: list[Labels] = []
    for labels, at, _ in sorted(steps.ask(TARGET_INFO), key=lambda part: int(part[1][0])):
        identity, place = key_of(labels)
        infos.append(labels)
        # Of two that overlap, the one that began later.
        kinds.setdefault(identity, np.full(len(steps.times), -1))[at] = len(infos) - 1
        known.setdefault(identity, steps.nowhere())[:] |= pages.get(place, steps.nowhere())
    for identity, found in kinds.items():
        yield from _turns_of(steps, identity, found >= 0, known[identity])
        yield from _changes_of(steps, identity, found, infos)
    for identity, present in steps.presence(_STARTS, lambda labels: key_of(labels)[0]).items():
        if identity not in kinds:
            yield from _turns_of(steps, identity, present, scraping)


def _turns_of(steps: _Steps, labels: Labels, present: Flags, known: Flags) -> Iterator[Event]:
    named = _named(labels)
    for time_ms, came in steps.turns(present, known):
        kind: Literal["target_appeared", "target_gone"] = "target_appeared" if came else "target_gone"
        yield Event(time_ms, kind, named, f"{_title(labels)} {'appeared' if came else 'is gone'}")


def _changes_of(steps: _Steps, labels: Labels, kinds: NDArray[np.intp], infos: list[Labels]) -> Iterator[Event]:
    at = np.flatnonzero(kinds >= 0)
    for before, after in pairwise(at.tolist()):
        if kinds[before] == kinds[after]:
            continue
        former, new = (dict(pick_labels(infos[kinds[step]], _ABOUT)) for step in (before, after))
        changed = [name for name in _ABOUT if former.get(name) != new.get(name)]
        # A target that had not been identified yet did not change.
        if changed and former.get("source"):
            detail = {name: new.get(name, "") for name in changed}
            detail |= {f"former_{name}": former.get(name, "") for name in changed}
            said = ", ".join(f"{name} {former.get(name, 'none')} → {new.get(name, 'none')}" for name in changed)
            time_ms = int(steps.times[after])
            yield Event(time_ms, "target_changed", _named(labels), f"{_title(labels)}: {said}", make_labels(detail))


def _named(labels: Labels) -> Labels:
    try:
        return make_labels((*labels, ("target_id", Identity(**dict(labels)).target_id)))
    except (IdentityError, TypeError):
        return labels  # an identity that is none; reading its increments reports it


def _title(labels: Labels) -> str:
    values = dict(labels)
    return "/".join(value for name in ("deployment_id", "role", "replica") if (value := values.get(name)))


# --- Shares -----------------------------------------------------------------------------------------------------------


def _splits(steps: _Steps, collecting: Flags) -> Iterator[Event]:
    """Configured shares that were set, changed, or removed."""
    shares: dict[Labels, NDArray[np.float64]] = {}
    for labels, at, values in steps.ask(_SHARES):
        # Of two collectors either has it.
        model = pick_labels(labels, ("model_name", "environment", "inference_stack"))
        shares.setdefault(model, np.full(len(steps.times), np.nan))[at] = values
    for labels, ratios in shares.items():
        at = np.flatnonzero(~np.isnan(ratios) | collecting)
        for before, after in pairwise(at.tolist()):
            former, new = (_share(ratios[step]) for step in (before, after))
            if former != new:
                detail = make_labels({"former_ratio": former, "ratio": new})
                stack = dict(labels).get("inference_stack", "")
                text = f"configured share of {stack}: {former or 'none'} → {new or 'none'}"
                yield Event(int(steps.times[after]), "traffic_split", labels, text, detail)


def _share(ratio: float) -> str:
    return "" if ratio != ratio else f"{ratio:g}"
