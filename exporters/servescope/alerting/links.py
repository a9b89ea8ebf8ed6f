"""Where an alert leads in Grafana: to the panel that shows it, with the dashboard's variables set to what it tells of.

Dashboards give each panel an id made of its title, so the address is known without them.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from servescope.alerting.records import Alert, All, Any, Badness, Compare, Condition, Except, Shown, Term, labels_of
from servescope.contract.figures import FIGURES

DASHBOARD_PREFIX: Final = "servescope"
"""What the uid of every dashboard begins with, unless the dashboards' options say otherwise."""

HEALTH: Final = "health"
CUTOVER: Final = "cutover"

VARIABLES: Mapping[str, str] = MappingProxyType(
    {
        "environment": "environment",
        "model_name": "model",
        "inference_stack": "stack",
        "deployment_id": "deployment",
        "replica": "replica",
    }
)
"""The dashboards' variable for each label that has one."""


def dashboard_path(alert: Alert, prefix: str = DASHBOARD_PREFIX) -> str:
    """What follows Grafana's `/d/`, as a template of Prometheus: the labels of the alert are its `$labels`.

    The time is left to the dashboard. A label that is empty, as an environment nobody named, chooses what has none.
    """
    chosen = [f"&var-{name}={{{{ $labels.{label} | urlquery }}}}" for label, name in _variables(alert).items()]
    return f"{prefix}-{alert.dashboard}?viewPanel=panel-{panel_id(panel_title(alert))}{''.join(chosen)}"


def _variables(alert: Alert) -> dict[str, str]:
    labels = labels_of(alert.condition)
    if alert.dashboard == HEALTH:
        kept: tuple[str, ...] = ("deployment_id",)
    elif alert.dashboard == CUTOVER:
        # The alert is the new stack's; what it is compared with belongs on the screen too.
        kept = ("environment", "model_name")
    else:
        kept = tuple(VARIABLES)
    return {label: name for label, name in VARIABLES.items() if label in labels and label in kept}


def panel_id(title: str) -> int:
    """The id of a dashboard's panel, made of its title, so that links survive another panel before it."""
    return 1 + zlib.crc32(title.encode()) % 1_000_000


def panel_title(alert: Alert) -> str:
    """The title of the panel that shows an alert.

    That is its figure's where it compares a figure as it is, the objective's where a budget burns, its own otherwise.
    """
    if alert.panel:
        return alert.panel
    match compared(alert.condition):
        case Shown(figure, ()):
            return FIGURES[figure].title
        case Badness(objective, _):
            return f"{objective.title}: bad share"
        case _:
            words = re.findall(r"[A-Z][a-z]+", alert.name)[1:]
            return " ".join(words).capitalize()


def compared(condition: Condition) -> Term | None:
    """What a condition compares first, and whose value is told; None where it compares nothing."""
    match condition:
        case Compare(left, _, _):
            return left
        case All((first, *_)) | Any((first, *_)) | Except(first, _):
            return compared(first)
        case _:
            return None
