"""The recording rules of histograms: how fast each bucket of a deployment fills, over all its replicas.

A percentile over several deployments cannot be had from theirs, and over the raw buckets of two hundred replicas a day
of one costs thirty million samples. Over these it costs a few thousand, and is the same number.
"""

from __future__ import annotations

from typing import Any

from alerts.options import DEFAULTS, Options
from alerts.recording import render_group
from servescope.contract.expressions import Rate, promql
from servescope.contract.figures import RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.identity import DEPLOYMENT_LABELS


def render_histogram_rules(options: Options = DEFAULTS) -> str:
    """The rule file that records the buckets."""
    return render_group(histogram_group(options))


def histogram_group(options: Options = DEFAULTS) -> dict[str, Any]:
    """The group of the buckets' rates."""
    window = options.common.window
    rules = [
        {
            "record": record_buckets(name, window),
            "expr": options.expression(
                promql(Rate(f"{name}_bucket"), window=window, by=(*DEPLOYMENT_LABELS, "le"), scope=options.scope)
            ),
        }
        for name in RECORDED_HISTOGRAMS
    ]
    return {"name": "servescope-histograms", "interval": options.evaluation_interval, "rules": rules}
