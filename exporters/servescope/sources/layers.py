"""Which target of a deployment each metric is taken from: the one that sees the deployment from furthest out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from servescope.contract.metrics import METRICS
from servescope.sources.maps import LAYERS, Source

ByDepth = Mapping[int, frozenset[str]]
"""Metrics by how far inside its deployment a target sees them from, 0 outermost. Never changed, only replaced."""


def tell_depth(source: Source, role: str, metric: str) -> int:
    """How far inside its deployment a target sees a metric from: the layer's place, outermost first.

    What an engine's own instruments say of its cache is further in than what those of the router before it say, and
    further out than the engine's page.
    """
    depth = 2 * LAYERS.index(source.layer)
    within = source.layer == "process" and METRICS[metric].component == "router" and role != "router"
    return depth + 1 if within else depth


class Supply:
    """What the targets of one deployment supply, and from how far out; shared by their readers.

    `version` is another one whenever an answer of `outside` may be. Not thread safe.
    """

    def __init__(self) -> None:
        self.version = 0
        self._by_target: dict[str, ByDepth] = {}
        self._outermost: dict[str, tuple[int, str]] = {}

    def note(self, target_id: str, supplied: ByDepth) -> None:
        """Take up what a target supplies; nothing is done for the object that it gave last."""
        former = self._by_target.get(target_id)
        if former is supplied:
            return
        self._by_target[target_id] = supplied
        if former is None or all(names <= supplied.get(depth, frozenset()) for depth, names in former.items()):
            self._add(target_id, supplied)
        else:
            self._begin_anew()

    def keep(self, target_ids: Collection[str]) -> None:
        """Forget all targets but these."""
        gone = [target_id for target_id in self._by_target if target_id not in target_ids]
        for target_id in gone:
            del self._by_target[target_id]
        if gone:
            self._begin_anew()

    def outside(self, depth: int, metrics: frozenset[str]) -> dict[str, str]:
        """Which of the metrics are supplied from further out than a depth, with the outermost target of each."""
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

    def _begin_anew(self) -> None:
        self.version += 1
        self._outermost = {}
        for target_id, supplied in self._by_target.items():
            self._add(target_id, supplied)
