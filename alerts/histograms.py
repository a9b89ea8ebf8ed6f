"""The recording rules of histograms: the rate of each bucket of a deployment, over all its replicas.

A percentile over several deployments cannot be computed from theirs, and from the raw buckets of two hundred replicas a
day needs thirty million samples. From these rules it needs a few thousand, for the same result.
"""

from __future__ import annotations

from typing import Any

from alerts.options import DEFAULTS, Options
from servescope.contract.expressions import Rate
from servescope.contract.figures import RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.identity import DEPLOYMENT_LABELS


def histogram_group(options: Options = DEFAULTS) -> dict[str, Any]:
    """The group of the buckets' rates."""
    window = options.common.window
    rules = [
        {
            "record": record_buckets(name, window),
            "expr": options.compile(Rate(f"{name}_bucket"), window=window, by=(*DEPLOYMENT_LABELS, "le")),
        }
        for name in RECORDED_HISTOGRAMS
    ]
    return {"name": "servescope-histograms", "interval": options.evaluation_interval, "rules": rules}
