"""What an operator may choose about the alerts: the numbers they compare with, and the names of stacks and jobs.

The alerts are written with the catalog's values as `Number` and `Name`, which remember where they come from and leave a
placeholder in a text they are formatted into. `resolve` puts the chosen values in place of both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from types import MappingProxyType
from typing import Any, Final

from servescope.alerting.rules.promises import objectives_of
from servescope.contract.bounds import BOUNDS
from servescope.contract.expressions import Pattern
from servescope.contract.figures import FIGURES
from servescope.contract.identity import NEW_STACK, OLD_STACK
from servescope.contract.own_metrics import COLLECTOR_JOB
from servescope.contract.types import Band, Bound, Objective
from servescope.settings.values import format_duration, parse_duration

_PLACEHOLDER: Final = re.compile(r"⟨([^|⟩]+)\|([^⟩]*)⟩")


@dataclass(frozen=True, slots=True)
class Choices:
    """The operator's values in place of the catalog's: bands by figure, bounds and objectives by name, waits by alert.

    A wait is a Prometheus duration of one unit.
    """

    bands: Mapping[str, Band] = field(default_factory=lambda: MappingProxyType({}))
    bounds: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    objectives: Mapping[str, Objective] = field(default_factory=objectives_of)
    waits: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    old_stack: str = OLD_STACK
    new_stack: str = NEW_STACK
    collector_job: str = COLLECTOR_JOB

    def number(self, key: str) -> float:
        """The value of a bound's name, or of `FIGURE/STEP`, the start of a step of a figure's band."""
        figure, _, step = key.partition("/")
        if not step:
            return self.bounds.get(key, BOUNDS[key].value)
        band = self.bands.get(figure) or FIGURES[figure].band
        if band is None:
            raise KeyError(figure)
        return band.steps[int(step)].start

    def name(self, key: str) -> str:
        """The value of `old_stack`, `new_stack` or `collector_job`."""
        names = {"old_stack": self.old_stack, "new_stack": self.new_stack, "collector_job": self.collector_job}
        return names[key]


CATALOG_CHOICES = Choices()
"""The catalog's own values."""


class Number(float):
    """A number of the catalog that an operator may choose; formatted into a text it is a placeholder.

    The format `%` is a share as in `40 %`, `+%` a share with its sign, anything else that of a float.
    """

    key: str
    sign: int

    def __new__(cls, key: str, sign: int = 1) -> Number:
        """The catalog's value of a key of `Choices.number`."""
        number = super().__new__(cls, sign * CATALOG_CHOICES.number(key))
        number.key, number.sign = key, sign
        return number

    def __neg__(self) -> Number:
        return Number(self.key, -self.sign)

    def __format__(self, spec: str) -> str:
        return f"⟨{'-' if self.sign < 0 else ''}{self.key}|{spec}⟩"


class Name(str):
    """A name that an operator may choose; formatted into a text it is a placeholder."""

    key: str

    def __new__(cls, key: str) -> Name:
        """The catalog's value of a key of `Choices.name`."""
        name = super().__new__(cls, CATALOG_CHOICES.name(key))
        name.key = key
        return name

    def __format__(self, _: str) -> str:
        return f"⟨{self.key}|s⟩"


def bound(value: Bound) -> Number:
    """A bound of the catalog."""
    return Number(value.name)


def band_start(figure: str, step: int) -> Number:
    """Where a step of a figure's band starts."""
    return Number(f"{figure}/{step}")


def in_words(duration: str) -> str:
    """A duration as a text has it."""
    return _in_words(parse_duration(duration))


def waited(before: str = "0s") -> str:
    """A placeholder for how long an alert waits, after a window `before` that its condition looks back."""
    return f"⟨wait|{before}⟩"


def resolve(value: Any, choices: Choices, wait: str = "") -> Any:
    """A record with the chosen values in place of every `Number`, `Name` and placeholder within it.

    `wait` is that of the alert that it is or is part of.
    """
    if isinstance(value, Number):
        return value.sign * choices.number(value.key)
    if isinstance(value, Name):
        return choices.name(value.key)
    if isinstance(value, Pattern):
        return value
    if isinstance(value, str):
        return _PLACEHOLDER.sub(lambda found: _shown(found[1], found[2], choices, wait), value)
    if isinstance(value, tuple):
        return tuple(resolve(each, choices, wait) for each in value)
    if is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(resolve(getattr(value, each.name), choices, wait) for each in fields(value)))
    return value


def _shown(key: str, spec: str, choices: Choices, wait: str) -> str:
    if key == "wait":
        return _in_words(parse_duration(spec) + parse_duration(wait or "0s"))
    if spec == "s":
        return choices.name(key)
    number = -choices.number(key[1:]) if key.startswith("-") else choices.number(key)
    return f"{number * 100:{spec[:-1]}.6g} %" if spec.endswith("%") else f"{number:{spec}}"


_UNITS: Final = {"s": "second", "m": "minute", "h": "hour", "d": "day"}


def _in_words(milliseconds: int) -> str:
    shortest = format_duration(milliseconds)
    number, unit = int(shortest[:-1]), _UNITS[shortest[-1]]
    return f"{number} {unit}{'' if number == 1 else 's'}"
