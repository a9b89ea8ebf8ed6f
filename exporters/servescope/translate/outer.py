"""Which metrics of a target are taken from another one, further out in its deployment (ADR 2).

The collector learns this from what the other targets supply. A probe knows one target only, so the scraper names what
is in front of it, and the source maps say what that supplies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from servescope.contract.measured_layers import layer_order
from servescope.contract.metrics import METRICS
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED, Source

_KINDS_IN_FRONT = ("frontend", "router", "instruments")

_BEHIND_IT = "aggregated"  # the role of a target with something in front of it: an engine


class Outer(NamedTuple):
    """What is in front of a target: its name, and how deep in the deployment it measures the metrics it supplies."""

    name: str
    layers: Mapping[str, int]

    def taken_from(self, source: Source) -> dict[str, str]:
        """The metrics that a target of this source leaves to what is in front of it, with the name of that."""
        return {
            metric: self.name
            for metric, order in self.layers.items()
            if order < layer_order(source.layer, _BEHIND_IT, metric)
        }


NOTHING = Outer("", {})


def names_in_front() -> tuple[str, ...]:
    """What is known to be in front of targets.

    A frontend with a KV router in it, without that router; a router, the frontend's together with `frontend` or else
    one with our instruments; an engine's own instruments, such as a plugin's; and whatever a source map of the layer
    `frontend` reads, by the map's name.
    """
    return (*_KINDS_IN_FRONT, *_frontends())


def read_outer(text: str, configured: Mapping[str, frozenset[str]]) -> Outer:
    """What a `behind` names, several with commas between; `configured` are metrics by a name of somebody's own.

    Raises ValueError with the first name that is none.
    """
    names = sorted({name.strip() for name in text.split(",")} - {""})
    layers: dict[str, int] = {}
    for name in names:
        if name not in names_in_front() and name not in configured:
            raise ValueError(name)
        for metric, layer in _layers(name, names, configured).items():
            layers[metric] = min(layer, layers.get(metric, layer))
    return Outer(",".join(names), layers)


def _layers(name: str, names: list[str], configured: Mapping[str, frozenset[str]]) -> dict[str, int]:
    if name in configured:
        return {metric: layer_order("frontend", "router", metric) for metric in configured[name]}
    if name in _frontends():
        own = _supplied(_frontends()[name]) & (_of("engine") | _of("router"))
        return {metric: layer_order("frontend", "router", metric) for metric in own}
    if name == "frontend":
        return {metric: layer_order("frontend", "router", metric) for metric in _of("engine") & _of_frontends()}
    if name == "router" and "frontend" in names:
        return {metric: layer_order("frontend", "router", metric) for metric in _of("router") & _of_frontends()}
    if name == "router":
        return {metric: layer_order("process", "router", metric) for metric in _of("router")}
    return {metric: layer_order("process", _BEHIND_IT, metric) for metric in _of("engine") | _of("router")}


def _of(component: str) -> set[str]:
    return {name for name, metric in METRICS.items() if metric.component == component}


def _of_frontends() -> set[str]:
    """What every frontend with a KV router in it supplies: which of them is in front, the word does not say."""
    supplied = [each for each in map(_supplied, _frontends().values()) if "kv_cache_predicted_tokens_total" in each]
    return set.intersection(*supplied) if supplied else set()


def _frontends() -> dict[str, Source]:
    return {name: each for name, each in load_sources().items() if each.layer == "frontend"}


def _supplied(source: Source) -> set[str]:
    return {
        name
        for name, each in source.metrics.items()
        if any(alternative.status in SUPPLIED for alternative in each.alternatives)
    }
