"""Which target of a deployment each metric is taken from: the one that is furthest out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from servescope.contract.metrics import METRICS
from servescope.sources.maps import LAYERS, Layer, Source

ByDepth = Mapping[int, frozenset[str]]
"""The metrics that a target supplies, by their depth in its deployment, 0 outermost. Replaced, never changed."""


def depth_of(source: Source, role: str, metric: str) -> int:
    """How deep in its deployment a target measures a metric: by the layer of its source, outermost first.

    What an engine's own instruments measure of its cache is deeper than what the instruments of the router before it
    measure, and less deep than the engine's page.
    """
    return depth_in(source.layer, role, metric)


def depth_in(layer: Layer, role: str, metric: str) -> int:
    """As `depth_of`, of a source of this layer."""
    depth = 2 * LAYERS.index(layer)
    within = layer == "process" and METRICS[metric].component == "router" and role != "router"
    return depth + 1 if within else depth


class Supply:
    """The metrics that the targets of one deployment supply, and how deep; shared by their readers.

    `version` changes whenever an answer of `further_out` may. Not thread safe.
    """

    def __init__(self) -> None:
        self.version = 0
        self._by_target: dict[str, ByDepth] = {}
        self._outermost: dict[str, tuple[int, str]] = {}

    def update(self, target_id: str, supplied: ByDepth) -> None:
        """Set what a target supplies; the same object as last time is no change."""
        former = self._by_target.get(target_id)
        if former is supplied:
            return
        self._by_target[target_id] = supplied
        if former is None or all(names <= supplied.get(depth, frozenset()) for depth, names in former.items()):
            self._add(target_id, supplied)
        else:
            self._rebuild()

    def retain(self, target_ids: Collection[str]) -> None:
        """Drop all targets but these."""
        gone = [target_id for target_id in self._by_target if target_id not in target_ids]
        for target_id in gone:
            del self._by_target[target_id]
        if gone:
            self._rebuild()

    def further_out(self, depth: int, metrics: frozenset[str]) -> dict[str, str]:
        """Those of the metrics that are supplied from less deep, with the outermost target of each."""
        return {
            name: target_id for name, (own, target_id) in self._outermost.items() if own < depth and name in metrics
        }

    def _add(self, target_id: str, supplied: ByDepth) -> None:
        for depth, names in supplied.items():
            for name in names:
                known = self._outermost.get(name)
                if known is None or depth < known[0]:
                    self._outermost[name] = depth, target_id
                    self.version += 1

    def _rebuild(self) -> None:
        self.version += 1
        self._outermost = {}
        for target_id, supplied in self._by_target.items():
            self._add(target_id, supplied)
