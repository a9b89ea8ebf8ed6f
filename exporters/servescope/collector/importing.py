"""`servescope import`: what to take from which Prometheus into which store, and what came of it."""

from __future__ import annotations

import argparse
import re
import sys
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from servescope.collector.config import DEFAULT_FILE, CollectorSettings, Configuration, read_configuration
from servescope.collector.deployments import DeploymentSettings
from servescope.contract.identity import DEPLOYMENT_LABELS, ROLES, Deployment, Identity
from servescope.errors import ConfigurationError, UsageError
from servescope.settings.tables import REQUIRED, Setting, Table
from servescope.store.embedded import Store
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.options import configure as configure_access
from servescope.store.prometheus.options import open_prometheus
from servescope.store.prometheus.targets import ScrapedTarget, find_contract_targets, find_engines
from servescope.store.spans import format_instant, read_span

if TYPE_CHECKING:
    from servescope.collector.past import Import, Progress

IMPORT_SETTINGS: Final = (
    Setting("match", REQUIRED),
    Setting("deployment_id", REQUIRED),
    *(Setting(name, "") for name in DEPLOYMENT_LABELS if name != "deployment_id"),
    Setting("role", '"aggregated"'),
    Setting("replica_label", '"instance"'),
    Setting("source", ""),
)
"""The keys of `[[import]]`."""
_DEFAULT_SPAN = "7d"
_PROGRESS_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """Engines that a Prometheus scraped itself: which series are theirs, and whose they are."""

    match: str
    deployment: Deployment
    role: str = "aggregated"
    replica_label: str = "instance"
    source: str | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope import`."""
    parser.add_argument("--from", dest="url", required=True, metavar="URL", help="base URL of the Prometheus")
    parser.add_argument("--store", type=Path, metavar="FILE", help="the store (default: the configuration's)")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"the collector's configuration, for its settings and [[import]] tables (default: {DEFAULT_FILE} if here)",
    )
    parser.add_argument("--match", metavar="SELECTOR", help="take these series only, such as '{job=\"vllm\"}'")
    parser.add_argument(
        "--deployment", metavar="NAME", help="the matched targets are engines of this deployment, by their own names"
    )
    parser.add_argument("--model-name", metavar="NAME", help="its model (default: default)")
    parser.add_argument("--inference-stack", metavar="NAME", help="its stack (default: NAME of the deployment)")
    parser.add_argument("--environment", metavar="NAME", help="its environment (default: none)")
    parser.add_argument("--role", choices=ROLES, help="role of the matched engines (default: aggregated)")
    parser.add_argument("--replica-label", metavar="LABEL", help="label that names a replica (default: instance)")
    parser.add_argument("--source", metavar="NAME", help="source map of the matched engines (default: identified)")
    parser.add_argument(
        "--start", default=_DEFAULT_SPAN, metavar="TIME",
        help=f"from when: 2026-11-20T14:00:00Z, or how long before the end such as 12h (default: {_DEFAULT_SPAN})",
    )  # fmt: skip
    parser.add_argument("--end", metavar="TIME", help="until when (default: now)")
    configure_access(parser)


def run(arguments: argparse.Namespace) -> int:
    """Import, and say what was taken."""
    if find_spec("aiohttp") is None:
        raise UsageError("extra 'collector' is not installed: pip install 'servescope[collector]'")
    from servescope.collector.past import Import

    # As the collector takes it: figures of the past shall be over its window.
    path = arguments.config or Path(DEFAULT_FILE)
    configuration = read_configuration(path) if arguments.config or path.exists() else None
    wanted = _read_wanted(arguments, configuration)
    settings = configuration.collector if configuration else CollectorSettings()
    start_ms, end_ms = read_span(arguments.start, arguments.end, round(time.time() * 1000))
    prometheus = open_prometheus(arguments.url, arguments)
    targets, problems = _find(prometheus, wanted, arguments.match or "", start_ms, end_ms)
    if not targets:
        raise UsageError(_nothing_found(prometheus, wanted, problems))
    # Only now: a Prometheus that has nothing leaves no empty store behind.
    with Store(arguments.store or settings.store) as store:
        work = Import(prometheus, store, targets, settings)
        work.run(start_ms, end_ms, _Teller(start_ms, end_ms))
    _report(work, problems)
    return 0


def _find(
    prometheus: Prometheus, wanted: Sequence[Wanted], match: str, start_ms: int, end_ms: int
) -> tuple[list[ScrapedTarget], list[str]]:
    if not wanted:
        return find_contract_targets(prometheus, match, start_ms=start_ms, end_ms=end_ms)
    targets: dict[ScrapedTarget, None] = {}
    problems = []
    for each in wanted:
        found = find_engines(
            prometheus, each.match, each.deployment, role=each.role, replica_label=each.replica_label,
            source=each.source, start_ms=start_ms, end_ms=end_ms,
        )  # fmt: skip
        targets |= dict.fromkeys(found)
        if not found:
            problems.append(f"no target matches {each.match!r} of deployment {each.deployment.deployment_id!r}")
    return list(targets), problems


def _nothing_found(prometheus: Prometheus, wanted: Sequence[Wanted], problems: Sequence[str]) -> str:
    if wanted:
        return f"{prometheus.url} holds nothing of what was asked for: {'; '.join(problems)}"
    told = f" ({'; '.join(problems)})" if problems else ""
    return (
        f"{prometheus.url} holds no series of the contract within that time{told}; where it scraped engines, "
        "name them: --deployment NAME --match '{job=\"vllm\"}', or [[import]] tables in a --config"
    )


def _read_wanted(arguments: argparse.Namespace, configuration: Configuration | None) -> list[Wanted]:
    if arguments.deployment is None:
        for option in ("model_name", "inference_stack", "environment", "role", "replica_label", "source"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option.replace('_', '-')} goes with --deployment")
        return read_import_tables(configuration) if configuration and not arguments.match else []
    if not arguments.match:
        raise UsageError("--deployment goes with --match, such as --match '{job=\"vllm\"}'")
    identity = Identity(
        model_name=arguments.model_name or "default",
        deployment_id=arguments.deployment,
        inference_stack=arguments.inference_stack or arguments.deployment,
        environment=arguments.environment or "",
    )
    role, label = arguments.role or "aggregated", arguments.replica_label or "instance"
    return [Wanted(_check_match(arguments.match), identity.deployment(), role, label, _check_source(arguments.source))]


def _check_match(match: str) -> str:
    if not re.fullmatch(r"\s*\{.+\}\s*", match, re.DOTALL):
        raise UsageError(f"{match!r} is no selector of labels, expected one such as '{{job=\"vllm\"}}'")
    return match.strip()


def _check_source(source: str | None) -> str | None:
    from servescope.sources.map_files import load_sources

    if source is not None and source not in load_sources():
        raise UsageError(f"unknown source {source!r}, supported: {', '.join(load_sources())}")
    return source


def read_import_tables(configuration: Configuration) -> list[Wanted]:
    """The `[[import]]` tables of a configuration's file; raises ConfigurationError naming table, key and value."""
    text = Path(configuration.origin).read_text(encoding="utf-8")
    root = Table(tomllib.loads(text), configuration.origin, "")
    return [_read_import(table, configuration.deployments) for table in root.tables("import", IMPORT_SETTINGS)]


def _read_import(table: Table, listed: Sequence[DeploymentSettings]) -> Wanted:
    try:
        match = _check_match(table.string("match", None))
        source = _check_source(table.string("source", "") or None)
    except UsageError as error:
        raise ConfigurationError(f"{table.origin}: {table.path}: {error}") from None
    return Wanted(
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


class _Teller:
    """Says on stderr how far an import is, every few seconds."""

    def __init__(self, start_ms: int, end_ms: int) -> None:
        self._start_ms, self._end_ms = start_ms, end_ms
        self._told = time.monotonic()

    def __call__(self, progress: Progress) -> None:
        done = progress.until_ms >= self._end_ms
        if not done and time.monotonic() - self._told < _PROGRESS_SECONDS:
            return
        self._told = time.monotonic()
        share = (progress.until_ms - self._start_ms) / (self._end_ms - self._start_ms)
        print(
            f"servescope: {format_instant(progress.until_ms)}, {share:.0%}: {progress.scrapes} scrapes with "
            f"{progress.samples} samples, {progress.figures} evaluations",
            file=sys.stderr,
            flush=True,
        )


def _report(work: Import, problems: Sequence[str]) -> None:
    for target_id, tally in sorted(work.tallies.items()):
        print(
            f"{target_id}: {tally.scrapes} scrapes taken ({tally.failed} failed), {tally.samples} samples; "
            f"{tally.already_there} scrapes were there already"
        )
        if tally.strays:
            print(f"  {tally.strays} samples at instants of no successful scrape, left out")
        for problem, count in tally.problems.most_common(5):
            print(f"  {count} times: {problem}")
    for target_id, names in sorted(work.not_understood().items()):
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        print(f"{target_id}: no source map reads {shown}")
    for problem in problems:
        print(f"not understood: {problem}")
