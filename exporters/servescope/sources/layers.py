"""Which target of a deployment each metric is taken from: the one that is furthest out."""

from __future__ import annotations

from collections.abc import Collection, Mapping

ByLayer = Mapping[int, frozenset[str]]
"""The metrics that a target supplies, by the order of their layer, 0 outermost. Replaced, never changed."""


class Supply:
    """The metrics that the targets of one deployment supply, and at which layers; shared by their readers.

    `version` changes whenever an answer of `further_out` may. Not thread safe.
    """

    def __init__(self) -> None:
        self.version = 0
        self._by_target: dict[str, ByLayer] = {}
        self._outermost: dict[str, tuple[int, str]] = {}

    def update(self, target_id: str, supplied: ByLayer) -> None:
        """Set what a target supplies; the same object as last time is no change."""
        former = self._by_target.get(target_id)
        if former is supplied:
            return
        self._by_target[target_id] = supplied
        if former is None or all(names <= supplied.get(layer, frozenset()) for layer, names in former.items()):
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

    def further_out(self, layer: int, metrics: frozenset[str]) -> dict[str, str]:
        """Those of the metrics that are supplied from further out, with the outermost target of each."""
        return {
            name: target_id for name, (own, target_id) in self._outermost.items() if own < layer and name in metrics
        }

    def _add(self, target_id: str, supplied: ByLayer) -> None:
        for layer, names in supplied.items():
            for name in names:
                known = self._outermost.get(name)
                if known is None or layer < known[0]:
                    self._outermost[name] = layer, target_id
                    self.version += 1

    def _rebuild(self) -> None:
        self.version += 1
        self._outermost = {}
        for target_id, supplied in self._by_target.items():
            self._add(target_id, supplied)
