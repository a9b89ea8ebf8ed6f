"""The colours of what is drawn: one hue is one stack, on every page; harm is louder than tuning; states have their own.

All are mid-tones with a contrast of at least 3 : 1 on the light and on the dark background alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from servescope.contract.identity import NEW_STACK, OLD_STACK
from servescope.contract.metrics import REPLICA_STATUSES
from servescope.contract.types import Status

V1: Final = "#2f7ed8"
V2: Final = "#b04fd0"
NEUTRAL: Final = "#7b8794"
"""What is neither a stack nor good or bad: plans, decisions, pointers."""
ROLLOUT: Final = "#12958a"
"""What somebody changed: deploys and configured shares."""
_OTHERS: Final = ("#a0714a", "#1a93b8", "#c9568a", "#6f7fd0")

HARM_COLORS: Final[Mapping[Status, str]] = MappingProxyType(
    {"good": "#1f9457", "warning": "#c56a00", "critical": "#d9434e"}
)
"""Of what users notice: red is for that alone."""
TUNING_COLORS: Final[Mapping[Status, str]] = MappingProxyType(
    {"good": "#1f9457", "warning": "#8f8a12", "critical": "#c56a00"}
)
"""Of a figure's band, all of which are about tuning: a step quieter than harm."""
REPLICA_COLORS: Final[Mapping[str, str]] = MappingProxyType(
    dict(zip(REPLICA_STATUSES, ("#8f8a12", "#1f9457", NEUTRAL, "#c56a00", "#d9434e"), strict=True))
)


def color_stacks(stacks: Iterable[str], old: str = OLD_STACK, new: str = NEW_STACK) -> dict[str, str]:
    """A hue for each stack: its own for the two of a cutover, and for the others, in alphabetical order, the rest."""
    own = {old: V1, new: V2}
    others = sorted(set(stacks) - set(own))
    return own | {stack: _OTHERS[place % len(_OTHERS)] for place, stack in enumerate(others)}
