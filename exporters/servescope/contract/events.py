"""What happened around the figures: alerts, targets that came, went or changed, shares, deploys, imports, the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from servescope.contract.samples import Labels

EventKind = Literal[
    "alert_fired", "alert_resolved", "target_appeared", "target_gone", "target_changed", "traffic_split", "deploy",
    "import", "clock_set_back",
]  # fmt: skip

EVENT_KINDS: Final[tuple[EventKind, ...]] = (
    "alert_fired", "alert_resolved", "target_appeared", "target_gone", "target_changed", "traffic_split", "deploy",
    "import", "clock_set_back",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Event:
    """One entry of the event log; `time_ms` is when it happened, `labels` what it is about.

    The labels of a target are those of its identity, beside `target_id`; those of an alert its own, beside `alertname`.
    `text` is what a person reads. `detail` are the values that changed, `former_…` beside `…` (`source`, `version`,
    `layer`, `ratio`); a deploy has who reported it as `by`, and the hash of what
    it is configured with as `configuration` where that was reported; an import has the span of its past as `from_ms`
    and `to_ms`; where the clock was set back, it was from `from_ms` to `to_ms`, and `scrapes`, `figures` (evaluations)
    and `increments` (blocks) are how many were dropped, as they were later; the first scrape of them was of
    `first_ms`, and from `missing_from_ms` until `to_ms` scrapes are missing.
    """

    time_ms: int
    kind: EventKind
    labels: Labels
    text: str
    detail: Labels = ()
