"""The truths of a fault: figures that move past a bound while it is on, so that alerts can be proven on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from servescope.contract.figures import FIGURES, figure_key
from servescope.errors import UsageError

TARGETS_UP: Final = "servescope_targets_up_share"
"""Share of the targets in the fault's scope whose last scrape succeeded."""

DUPLICATES: Final = "servescope_dropped_samples"
"""Samples of the last scrapes of those targets that were dropped because their series was there twice."""

OBSERVATIONS: Final[Mapping[str, str]] = {
    TARGETS_UP: "share of the scope's targets whose last scrape succeeded",
    DUPLICATES: "samples dropped as duplicates in the last scrapes of the scope's targets",
}
"""Figures of truths beside the catalog's figures: how scraping itself goes, from `/api/v1/targets` and the
collector's own counters.
"""


@dataclass(frozen=True, slots=True)
class Truth:
    """A statement about one figure of a deployment while a fault is on, that does not hold while all is well.

    It is about the figure's mean over the last minute: a gauge of one moment says little.

    `figure` is one of the catalog's (with `labels` where it has one for each), or one of `OBSERVATIONS`. `above` and
    `below` are bounds of its value, `above_times` and `below_times` of its value ÷ the one before the fault; all that
    are given hold. `absent` says that it has no value. With `unmoved` the bounds may hold before the fault too: the
    statement is that this figure does not leave them.
    """

    figure: str
    labels: Mapping[str, str] = field(default_factory=dict)
    above: float | None = None
    below: float | None = None
    above_times: float | None = None
    below_times: float | None = None
    absent: bool = False
    unmoved: bool = False

    def __post_init__(self) -> None:
        if self.figure not in FIGURES and self.figure not in OBSERVATIONS:
            raise UsageError(
                f"unknown figure {self.figure!r}, expected one of the catalog or {', '.join(OBSERVATIONS)}"
            )
        if self.absent == any(bound is not None for _, bound in self._bounds()):
            raise UsageError(f"the truth about {self.figure} has either bounds or is that it is absent")

    @property
    def key(self) -> str:
        """The figure with its labels, as collectors name it."""
        return figure_key(self.figure, self.labels)

    def holds(self, value: float | None, *, before: float | None) -> bool:
        """Whether it is true of a value now, given the one before the fault; None is absent."""
        if self.absent:
            return value is None
        if value is None:
            return False
        if self.above_times is not None and not (before is not None and value > self.above_times * before):
            return False
        if self.below_times is not None and not (before is not None and value < self.below_times * before):
            return False
        return (self.above is None or value > self.above) and (self.below is None or value < self.below)

    def describe(self) -> str:
        """In words, for people: `speculation_rate below 0.40`."""
        return f"{self.key} {self.describe_bounds()}"

    def describe_bounds(self, write: Callable[[float], str] = "{:.4g}".format) -> str:
        """The statement about the figure, values written by `write`: `below 0.4`, or on a console `below 40 %`."""
        if self.absent:
            return "absent"
        words = [
            f"{name.removesuffix('_times')} {f'{bound:.3g} × before' if name.endswith('_times') else write(bound)}"
            for name, bound in self._bounds()
            if bound is not None
        ]
        return f"{'stays ' if self.unmoved else ''}{' and '.join(words)}"

    def as_json(self) -> dict[str, object]:
        """For programs: the figure and its bounds, and nothing else."""
        statement: dict[str, object] = {"figure": self.figure}
        if self.labels:
            statement["labels"] = dict(self.labels)
        statement |= {name: bound for name, bound in self._bounds() if bound is not None}
        statement |= {name: True for name in ("absent", "unmoved") if getattr(self, name)}
        return statement

    def _bounds(self) -> Iterator[tuple[str, float | None]]:
        for name in ("above", "below", "above_times", "below_times"):
            yield name, getattr(self, name)
