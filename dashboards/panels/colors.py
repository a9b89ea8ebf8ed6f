"""The colors: of harm, of tuning, of states and of stacks. One color means one thing on every dashboard."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from servescope.contract.judged import JUDGED
from servescope.contract.metrics import INDEX_STATES, OUTCOMES, REPLICA_STATUSES
from servescope.contract.types import Status

STATUS_COLORS: Mapping[Status, str] = MappingProxyType({"good": "green", "warning": "orange", "critical": "red"})
"""The colors of harm: red is for what users notice."""

TUNING_COLORS: Mapping[Status, str] = MappingProxyType({"good": "green", "warning": "yellow", "critical": "orange"})
"""The colors of a figure's band, all of which are about tuning: a step quieter than harm."""

NEUTRAL, PLAIN = "#8e9aa6", "#2f9c9c"
"""The color of states that are neither good nor bad, and that of series that have none of their own."""

MARK, ALARM = "rgba(128, 138, 150, 0.55)", "rgba(224, 47, 68, 0.5)"
DEPLOYMENT_MARK, PHASE_MARK = "rgba(47, 156, 156, 0.6)", "rgba(111, 127, 208, 0.6)"
VERDICT_MARK, STAGE_MARK = "rgba(201, 86, 138, 0.6)", "rgba(160, 113, 74, 0.6)"
"""The colors of annotations, quieter than data: of what somebody changed, of alerts, and of each step of a cutover."""

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

OLD_COLOR, NEW_COLOR = "blue", "purple"
"""Of series that are named after a stack of a cutover, alone or with their deployment; deployments have its shades."""

# Four that nobody takes for one another, nor for a stack or a state.
_HUES = (PLAIN, "#a0714a", "#c9568a", "#6f7fd0")

METRIC_COLORS: Mapping[str, str] = MappingProxyType(
    {name: _HUES[place % len(_HUES)] for place, name in enumerate(JUDGED)}
)
"""The judged metrics; those that share a color differ in their dashes."""

ALERT_COLORS: Mapping[str, str] = MappingProxyType(
    {"firing": "orange", "pending": "yellow", "unprocessed": "yellow", "suppressed": NEUTRAL}
)
"""The states of alerts in the collector and in Alertmanager, whose `active` is not that of a replica."""

_DASHES = ((1, 0), (6, 3), (2, 3), (9, 3, 2, 3), (14, 4), (9, 3, 2, 3, 2, 3))
_READINGS = {
    **dict.fromkeys(("p99", "1h", "prefill", "drafted", "inventory"), _DASHES[1]),
    **dict.fromkeys(("p50", "6h", "1d", "3d"), _DASHES[2]),
    **{f"position {place}": (max(11 - 2 * place, 1), 3) for place in range(1, 8)},
}

DASHES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {**_READINGS, **{name: _DASHES[place // len(_HUES)] for place, name in enumerate(JUDGED) if place >= len(_HUES)}}
)
"""The dashes of the series whose names end with these words, in pixels: what shares the hue of a stack differs."""
