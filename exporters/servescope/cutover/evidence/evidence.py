"""What a judgement is made from: the increments of both arms, what happened meanwhile, and what people decided."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from servescope.contract.events import Event
from servescope.increments.blocks import TargetIncrements

DecisionKind = Literal["start", "advance", "hold", "rollback", "acknowledge", "exclude"]
DECISION_KINDS: Final[tuple[DecisionKind, ...]] = ("start", "advance", "hold", "rollback", "acknowledge", "exclude")


@dataclass(frozen=True, slots=True)
class Evidence:
    """The past that a judgement is made from.

    `targets` are those of both arms, from before the cutover on, as far back as noise is calibrated. Scrapes have been
    read up to `observed_until_ms`: blocks that end later are not closed. `last_scrape_ms` are by target id the times of
    the last scrapes that succeeded. `warnings` are what a source of the past said about its answers; `problems` are
    what kept it from answering, each of which leaves no metric judged.
    """

    targets: tuple[TargetIncrements, ...]
    observed_until_ms: int
    scrape_interval_ms: int
    last_scrape_ms: dict[str, int] = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    warnings: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """One entry of the journal of a run, by a person or at the start.

    `stage` is the index of the stage that an `advance` begins, and 0 of a `start`; `start_ms` and `end_ms` bound the
    span that an `exclude` leaves out. `by` and `reason` are never empty but at a start.
    """

    kind: DecisionKind
    at_ms: int
    by: str = ""
    reason: str = ""
    stage: int | None = None
    start_ms: int | None = None
    end_ms: int | None = None
