"""The colors: of harm, of tuning, of states and of stacks. One color means one thing on every dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servescope.contract.identity import NEW_STACK, OLD_STACK
from servescope.contract.metrics import INDEX_STATES, OUTCOMES, REPLICA_STATUSES
from servescope.contract.types import Status

STATUS_COLORS: Mapping[Status, str] = MappingProxyType({"good": "green", "warning": "orange", "critical": "red"})
"""The colors of harm: red is for what users notice."""

TUNING_COLORS: Mapping[Status, str] = MappingProxyType({"good": "green", "warning": "yellow", "critical": "orange"})
"""The colors of a figure's band, all of which are about tuning: a step quieter than harm."""

NEUTRAL, PLAIN = "#8e9aa6", "#2f9c9c"
"""The color of states that are neither good nor bad, and that of series that have none of their own."""

MARK, ALARM = "rgba(128, 138, 150, 0.55)", "rgba(224, 47, 68, 0.5)"
"""The colors of annotations, quieter than data: of what somebody changed, and of alerts."""

# A state has the same colour on every dashboard, and none has that of a stack.
SERIES_COLORS: Mapping[str, str] = MappingProxyType(
    {
        **dict(zip(OUTCOMES, ("green", "yellow", NEUTRAL, "orange", "red"), strict=True)),
        **dict(zip(REPLICA_STATUSES, ("yellow", "green", NEUTRAL, "orange", "red"), strict=True)),
        **dict(zip(INDEX_STATES, ("green", "orange", "yellow"), strict=True)),
        "p50": "#86b5b5",
        "p95": "#3fa3a3",
        "p99": "#008c8c",
    }
)

STACK_COLORS: Mapping[str, str] = MappingProxyType({OLD_STACK: "blue", NEW_STACK: "purple"})
"""Of series that are named after their stack, alone or with their deployment's name; deployments have its shades."""
