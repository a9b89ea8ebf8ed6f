"""What goes into the store and comes out of it, apart from samples: statuses of targets, figures, settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from servescope.contract.identity import Identity
from servescope.contract.samples import Labels, make_labels
from servescope.errors import ServescopeError, UsageError
from servescope.settings.clock import not_after
from servescope.settings.values import format_instant


class StoreError(ServescopeError):
    """The store cannot be opened, read or written; the text names the file.

    `damaged` means that SQLite cannot use the file as it is, `retryable` that the disk is full or failing, so that the
    same may succeed later.
    """

    def __init__(self, message: str, *, damaged: bool = False, retryable: bool = False) -> None:
        super().__init__(message)
        self.damaged, self.retryable = damaged, retryable


class StorePathError(StoreError, UsageError):
    """The path is not that of a store: nothing is there to read, a directory, or a file of something else."""


class RefusedError(StoreError):
    """What was to be stored can be in no store, however often it is tried: a value that is not finite, for one."""


class UntimelyError(RefusedError):
    """What was to be stored is of a time later than the clock shows, or before what is stored of the same owner.

    `numbers` is how many samples that are.
    """

    def __init__(self, message: str, numbers: int) -> None:
        super().__init__(message)
        self.numbers = numbers


class AheadError(StoreError):
    """So much is stored as later than the clock shows that the clock may be wrong: it is not dropped at once."""


class TooLargeError(StoreError):
    """What was asked for holds more numbers than are read at once; a shorter time can be read."""


Health = Literal["up", "down", "not_understood", "unknown"]
"""How the last scrape of a target ended: `not_understood` when it answered with metrics that no source map reads.

It is `unknown` before the first one, and when it was too long ago.
"""


@dataclass(frozen=True, slots=True)
class TargetStatus:
    """The latest health of one target; times in milliseconds, None before there is one.

    `source`, `versions` and `layer` are "" until it is identified; `scrape_interval_ms` is how often it is scraped, as
    far as its host's limit allows. `healthy` is whether the last scrape brought samples; where it did not,
    `not_understood` is whether the target answered with metrics that no source map reads, which `error` explains.
    `samples` is None in a Prometheus where nothing counted them. `coverage` says per
    contract metric its `status`, `native` name and `reason`, None where there is none, and as `zero` why nothing was
    counted since its process started, where that is so. `warnings` say what is wrong
    with a text that could be read; `missing_metrics` are those that were there before, with the native series that fed
    them. `select` is the labels of the series that are read, where the page measures several deployments.
    `starting_since_ms` is when it was first scraped, of one that has not answered since.
    """

    target_id: str
    url: str
    identity: Identity
    source: str = ""
    versions: str = ""
    healthy: bool = False
    last_scrape_ms: int | None = None
    last_success_ms: int | None = None
    duration_seconds: float | None = None
    samples: int | None = 0
    error: str | None = None
    coverage: Mapping[str, Mapping[str, str | None]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    missing_metrics: dict[str, str] = field(default_factory=dict)
    layer: str = ""
    scrape_interval_ms: int = 15_000
    not_understood: bool = False
    select: str = ""
    starting_since_ms: int | None = None

    @property
    def state(self) -> Health:
        """How its last scrape ended, however long ago."""
        if self.last_scrape_ms is None:
            return "unknown"
        return "up" if self.healthy else "not_understood" if self.not_understood else "down"

    @property
    def last_answer_ms(self) -> int | None:
        """When it answered with metrics last, understood or not; in the latter case only while it is so."""
        return self.last_scrape_ms if self.state == "not_understood" else self.last_success_ms

    def is_later_than(self, time_ms: int) -> bool:
        """Whether it is of a later time than an instant."""
        return max(self.last_scrape_ms or 0, self.last_success_ms or 0) > time_ms

    def known_at(self, time_ms: int, last_scrape_ms: int | None) -> TargetStatus:
        """It as of an instant, where it is of a later time; `last_scrape_ms` is the last scrape known of until then."""
        if not self.is_later_than(time_ms):
            return self
        success_ms = self.last_success_ms
        later = format_instant(max(self.last_scrape_ms or 0, success_ms or 0))
        return replace(
            self,
            healthy=False,
            not_understood=False,
            last_scrape_ms=last_scrape_ms,
            last_success_ms=None if success_ms is None or success_ms > time_ms else success_ms,
            starting_since_ms=None,
            error=f"its last scrape is of {later}, later than now: the clock was set back",
        )

    def info_labels(self) -> Labels:
        """The labels of its `servescope_target_info`."""
        about = (("source", self.source), ("version", self.versions), ("layer", self.layer))
        return make_labels((*self.identity.labels(), *about))


@dataclass(frozen=True, slots=True, eq=False)
class FigureTable:
    """Figures over time: `times` in milliseconds, ascending; one array per figure key, NaN where it was absent."""

    times: NDArray[np.int64]
    values: dict[str, NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class KeptAlert:
    """The state of an alert of one set of labels, times in milliseconds: see `alerting.rules.evaluation.Active`.

    `resolved_ms` is None while it is pending or firing. `sent` is by receiver what it was sent last: the start of the
    alert, `firing` or `resolved`, and the time. `value` is not compared.
    """

    alert: str
    labels: Labels
    since_ms: int
    fired_ms: int | None
    kept_ms: int | None
    resolved_ms: int | None
    sent: Mapping[str, tuple[int, str, int]] = field(default_factory=dict)
    value: float = field(default=0.0, compare=False)

    def known_at(self, time_ms: int) -> KeptAlert:
        """It with no time later than an instant."""
        return replace(
            self,
            since_ms=min(self.since_ms, time_ms),
            fired_ms=not_after(time_ms, self.fired_ms),
            kept_ms=not_after(time_ms, self.kept_ms),
            resolved_ms=not_after(time_ms, self.resolved_ms),
            sent={
                name: (min(began_ms, time_ms), state, min(sent_ms, time_ms))
                for name, (began_ms, state, sent_ms) in self.sent.items()
            },
        )


@dataclass(frozen=True, slots=True)
class RecordedSettings:
    """How the figures from a time on were derived: the window and the intervals in milliseconds.

    `window_bounds` says which ends of the window count, as the configuration names it.
    """

    window_ms: int
    evaluation_interval_ms: int
    scrape_interval_ms: int
    window_bounds: str
