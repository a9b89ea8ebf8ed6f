"""How notifications are grouped: one message for each severity and deployment, whichever alerts fire there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from servescope.contract.identity import GROUP_LABELS

# An alert of no deployment is on a model, on a cutover between several deployments, or on a part of the monitoring.
GROUP_LABELS_OF_NONE: Final = ("component", "model_name", "environment", "plan")
"""The labels by which alerts of no deployment are grouped."""


def group_labels(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels of an alert by which it is grouped, without empty ones; one of no severity is a group of its own."""
    if labels["severity"] == "none":
        return {"alertname": labels["alertname"]}
    names = GROUP_LABELS if labels.get("deployment_id") else GROUP_LABELS_OF_NONE
    return {name: labels[name] for name in names if labels.get(name)}
