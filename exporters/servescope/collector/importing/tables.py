"""The `[[import]]` tables of a configuration: which engines of a Prometheus belong to which deployment."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from servescope.collector.config import Configuration
from servescope.collector.targets.deployments import DeploymentSettings
from servescope.contract.identity import DEPLOYMENT_LABELS, ROLES, Deployment
from servescope.errors import ConfigurationError, UsageError
from servescope.settings.tables import REQUIRED, Setting, Table, located, read_document

IMPORT_SETTINGS: Final = (
    Setting("match", REQUIRED),
    Setting("deployment_id", REQUIRED),
    *(Setting(name, "") for name in DEPLOYMENT_LABELS if name != "deployment_id"),
    Setting("role", '"aggregated"'),
    Setting("replica_label", '"instance"'),
    Setting("source", ""),
)
"""The keys of `[[import]]`."""


@dataclass(frozen=True, slots=True)
class EngineMatch:
    """Engines that a Prometheus scraped itself: the selector of their series, and their deployment."""

    match: str
    deployment: Deployment
    role: str = "aggregated"
    replica_label: str = "instance"
    source: str | None = None


def read_import_tables(configuration: Configuration) -> list[EngineMatch]:
    """The `[[import]]` tables of a configuration's file; raises ConfigurationError naming table, key and value."""
    root = Table(read_document(Path(configuration.origin), "configuration"), configuration.origin, "")
    return [_read_import(table, configuration.deployments) for table in root.tables("import", IMPORT_SETTINGS)]


def _read_import(table: Table, listed: Sequence[DeploymentSettings]) -> EngineMatch:
    with located(f"{table.origin}: {table.path}"):
        match = check_match(table.string("match", None))
        source = check_source(table.string("source", "") or None)
    return EngineMatch(
        match,
        _pick_deployment(table, listed),
        role=table.choice("role", ROLES, "aggregated"),
        replica_label=table.string("replica_label", "instance"),
        source=source,
    )


def _pick_deployment(table: Table, listed: Sequence[DeploymentSettings]) -> Deployment:
    """The configuration's deployment with the labels given."""
    labels = {name: table.string(name, "") for name in DEPLOYMENT_LABELS if name in table.values}
    fitting = [
        each.deployment
        for each in listed
        if all(getattr(each.deployment, name) == value for name, value in labels.items())
    ]
    if len(fitting) != 1:
        known = ", ".join(repr(each.deployment.deployment_id) for each in listed)
        given = ", ".join(f"{name} {value!r}" for name, value in labels.items())
        raise ConfigurationError(
            f"{table.origin}: {table.path}: {given} fits {len(fitting)} of the [[deployments]], expected one of {known}"
        )
    return fitting[0]


def check_match(match: str) -> str:
    """A selector without spaces around it; raises UsageError when it is none."""
    if not re.fullmatch(r"\s*\{.+\}\s*", match, re.DOTALL):
        raise UsageError(f"{match!r} is not a selector of labels, expected one such as '{{job=\"vllm\"}}'")
    return match.strip()


def check_source(source: str | None) -> str | None:
    """The name of a source map; raises UsageError when there is none of that name."""
    from servescope.sources.map_files import load_sources

    if source is not None and source not in load_sources():
        raise UsageError(f"unknown source {source!r}, supported: {', '.join(load_sources())}")
    return source
