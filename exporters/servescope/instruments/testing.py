"""For the tests of those who embed the instruments: a clock to advance by hand, and a reader of what was recorded."""

from __future__ import annotations

import difflib
from typing import Protocol

from servescope.contract.metrics import METRICS
from servescope.contract.samples import Sample, format_edge, format_series
from servescope.errors import UsageError

__all__ = ["FakeClock", "value"]


class FakeClock:
    """A clock whose time changes only by `advance`; pass it as `clock=`."""

    def __init__(self, seconds: float = 1000.0) -> None:
        self.seconds = seconds

    def __call__(self) -> float:
        """The time, in seconds."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass; raises UsageError when they are negative."""
        if not seconds >= 0:
            raise UsageError(f"cannot advance a clock by {seconds!r} seconds, expected 0 or more")
        self.seconds += seconds


class Readable(Protocol):
    """Any instruments object."""

    def samples(self) -> list[Sample]:
        """Every sample there is now."""


def value(instruments: Readable, name: str, **labels: object) -> float | None:
    """The value of the one sample of that name whose labels include `labels`; None when it is absent.

    A label that is "" is one that the sample does not have: `segment=""` is what has none.
    A histogram is read through `<name>_count`, `<name>_sum` and `<name>_bucket` with `le=0.5`. Raises UsageError when
    no metric has that name, or when several samples match.
    """
    _require_name(name)
    wanted = {label: _label_text(label, given) for label, given in labels.items()}
    found = [
        sample
        for sample in instruments.samples()
        if sample.name == name and wanted.items() <= {**dict.fromkeys(wanted, ""), **dict(sample.labels)}.items()
    ]
    if len(found) > 1:
        series = "; ".join(format_series(sample.name, sample.labels) for sample in found[:5])
        raise UsageError(f"{len(found)} samples match {name!r}, name a label: {series}")
    return found[0].value if found else None


def _label_text(label: str, given: object) -> str:
    if label == "le" and isinstance(given, int | float):
        return format_edge(float(given))
    return str(given)


def _require_name(name: str) -> None:
    names = {
        f"{metric.name}{suffix}"
        for metric in METRICS.values()
        for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
    }
    if name in names or name.startswith("servescope_"):
        return
    near = ", ".join(difflib.get_close_matches(name, sorted(names), n=3)) or "see servescope.contract.metrics.METRICS"
    raise UsageError(f"unknown sample name {name!r}, nearest: {near}")
