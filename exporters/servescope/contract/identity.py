"""The identity labels that every series of the contract carries."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import Literal, get_args
from unicodedata import category

from servescope.contract.samples import Labels, make_labels
from servescope.errors import IdentityError

Role = Literal["aggregated", "prefill", "decode", "router", "autoscaler", "auxiliary"]

DEPLOYMENT_LABELS = ("model_name", "deployment_id", "inference_stack", "environment", "rollout_phase")
GROUP_LABELS = ("model_name", "deployment_id", "inference_stack", "environment")
"""The labels of one deployment by which notifications are grouped: its rollout phase changes while it is the same."""
Group = tuple[str, ...]
"""The values of `GROUP_LABELS`: a deployment in whatever phase of a rollout."""
IDENTITY_LABELS = (*DEPLOYMENT_LABELS, "replica", "role")
SCRAPE_LABELS = ("job", "instance", "cluster", "namespace")
"""Labels by which a scraper says where it scraped a series."""
ATTACHED_LABELS = frozenset((*IDENTITY_LABELS, *SCRAPE_LABELS))
"""Labels that whoever scrapes a target gives its series; what the target itself calls so becomes `exported_<label>`."""
ROLES: tuple[str, ...] = get_args(Role)
ENGINE_ROLES = ("aggregated", "prefill", "decode")
"""The roles whose processes run the model."""
AUXILIARY = "auxiliary"
"""The role of what measures a deployment and is no process of it: whether it answers is no evidence of any."""
ROLLOUT_PHASES = ("", "promoting", "stable")
MOST_LABEL_BYTES = 1024
"""How long the value of an identity label may be: it is repeated on every series and in every URL of the API."""

UNKNOWN_MODEL, SEVERAL_MODELS = "unknown", "several"
"""The `model_name` where none is configured: while no page names the model, and where one names several."""

OLD_STACK, NEW_STACK = "v1", "v2"
"""The `inference_stack` of the two stacks of a cutover."""


@dataclass(frozen=True, slots=True, order=True)
class Deployment:
    """The labels that all replicas of a deployment share; figures are derived per deployment."""

    model_name: str
    deployment_id: str
    inference_stack: str
    environment: str = ""
    rollout_phase: str = ""

    def labels(self) -> Labels:
        """The labels of the deployment's figures, empty ones left out."""
        return make_labels((name, getattr(self, name)) for name in DEPLOYMENT_LABELS)

    @property
    def group(self) -> Group:
        """What is the same in every phase of a rollout."""
        return tuple(getattr(self, name) for name in GROUP_LABELS)


def describe_group(group: Group) -> str:
    """The labels of a deployment as text, empty ones left out."""
    return ", ".join(f"{name}={value!r}" for name, value in zip(GROUP_LABELS, group, strict=True) if value)


@dataclass(frozen=True, slots=True, order=True)
class Identity:
    """The labels of one process of a deployment.

    `model_name`, `deployment_id` and `inference_stack` are required; `role` is one of `ROLES`, `rollout_phase` one of
    `ROLLOUT_PHASES`. Values have at most `MOST_LABEL_BYTES` bytes, and no control characters. Raises IdentityError.
    """

    model_name: str
    deployment_id: str
    inference_stack: str
    environment: str = ""
    rollout_phase: str = ""
    replica: str = ""
    role: str = "aggregated"

    def __post_init__(self) -> None:
        for name in IDENTITY_LABELS:
            _check_text(name, getattr(self, name))
        for name in ("model_name", "deployment_id", "inference_stack"):
            if not getattr(self, name):
                raise IdentityError(f"identity label {name!r} is empty, expected a name")
        if self.role not in ROLES:
            raise IdentityError(f"unknown role {self.role!r}, supported: {', '.join(ROLES)}")
        if self.rollout_phase not in ROLLOUT_PHASES:
            phases = ", ".join(repr(phase) for phase in ROLLOUT_PHASES)
            raise IdentityError(f"unknown rollout_phase {self.rollout_phase!r}, supported: {phases}")

    def labels(self) -> Labels:
        """The labels of this process's series, empty ones left out."""
        return make_labels((name, getattr(self, name)) for name in IDENTITY_LABELS)

    @property
    def target_id(self) -> str:
        """The name of the process's target in the store: derived from the identity, so the same after a restart."""
        digest = hashlib.blake2b(repr(self.labels()).encode(), digest_size=4).hexdigest()
        return f"{self.deployment_id}/{self.role}/{self.replica}#{digest}"

    def deployment(self) -> Deployment:
        """The deployment this process belongs to."""
        return Deployment(*(getattr(self, name) for name in DEPLOYMENT_LABELS))


def replica_of(target_id: str) -> str:
    """The replica of a target by its name (`Identity.target_id`); the whole name where it has none."""
    found = re.fullmatch(rf".+/(?:{'|'.join(ROLES)})/(.+)#[0-9a-f]+", target_id)
    return found[1] if found else target_id


def _check_text(name: str, value: object) -> None:
    wrong = explain_label_value(value)
    if wrong:
        raise IdentityError(f"identity label {name!r} is {shorten(value)}{wrong}")


def explain_label_value(value: object) -> str:
    """What is wrong with the value of a label, to be written behind it; "" where nothing is."""
    if not isinstance(value, str):
        return ", expected a string"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        # JSON and command lines can carry half a character, which no exposition and no store can.
        return ", expected text that UTF-8 can hold"
    if size > MOST_LABEL_BYTES:
        return f" of {size} bytes, expected at most {MOST_LABEL_BYTES}"
    if not value.isprintable() and any(category(character) == "Cc" for character in value):
        return ", expected text without control characters"
    return ""


def shorten(value: object) -> str:
    """The value as an error shows it, in at most 60 characters."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
