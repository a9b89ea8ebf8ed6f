"""What an operator may choose about the alerts: the numbers they compare with, and what they call the stacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from servescope.contract.figures import FIGURES
from servescope.contract.identity import NEW_STACK, OLD_STACK
from servescope.contract.objectives import OBJECTIVES
from servescope.contract.own_metrics import COLLECTOR_JOB
from servescope.contract.types import Band, Bound, Objective


@dataclass(frozen=True, slots=True)
class Choices:
    """The catalog's numbers, and in their place those that are chosen: bands by figure, bounds by name."""

    bands: Mapping[str, Band] = field(default_factory=lambda: MappingProxyType({}))
    bounds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    objectives: Mapping[str, Objective] = field(default_factory=lambda: OBJECTIVES)
    old_stack: str = OLD_STACK
    new_stack: str = NEW_STACK
    collector_job: str = COLLECTOR_JOB

    def band(self, figure: str) -> Band:
        """The band of a figure that has one."""
        band = self.bands.get(figure) or FIGURES[figure].band
        if band is None:
            raise KeyError(figure)
        return band

    def value(self, bound: Bound) -> float:
        """The number of a bound."""
        return self.bounds.get(bound.name, bound.value)


CATALOG_CHOICES = Choices()
"""The catalog's own numbers."""


def share(value: float) -> str:
    """A share as a person reads it: 0.4 is `40%`."""
    return f"{value * 100:.6g}%"


def signed_share(value: float) -> str:
    """A share with its sign: 0.3 is `+30%`."""
    return f"{value * 100:+.6g}%"
