"""What our instruments are to expose."""

from __future__ import annotations

from servescope.contract.metrics import METRICS
from servescope.sources.map_files import metric_map


def metrics_of(component: str) -> set[str]:
    """The metrics of a component and of processes, and their own, but for those that their source map gives a reason
    for not having."""
    mapped = {name: metric_map("servescope", name) for name in METRICS}
    missing = {name for name, found in mapped.items() if found is not None and not found.alternatives}
    every = {name for name, metric in METRICS.items() if metric.component in (component, "process")}
    return every - missing | {"servescope_instrument_errors_total"}
