"""Where in a deployment a metric is measured, and which of two targets measures it further out."""

from __future__ import annotations

from typing import Final

from servescope.contract.metrics import METRICS

MEASURED_LAYERS: Final = ("frontend", "router process", "process", "engine", "around")
"""Where in a deployment a metric is measured, outermost first. Of two that supply it the outer one is used: what a
frontend measures is what users experience, and our own instruments are more exact than an engine's page. What a
router's own process measures of its caches is further out than what the engines behind it measure of theirs. What is
measured around them, by a cluster's or a machine's exporter, is used where none of them supplies it."""


def layer_order(layer: str, role: str, metric: str) -> int:
    """The index in `MEASURED_LAYERS` at which a target measures a metric, by the layer of its source.

    Bare instruments, whose layer is "" as it is not known, are a process.
    """
    if layer in {"frontend", "engine", "around"}:
        return MEASURED_LAYERS.index(layer)
    routed = METRICS[metric].component == "router" and role == "router"
    return MEASURED_LAYERS.index("router process" if routed else "process")
