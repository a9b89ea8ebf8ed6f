"""The command: what to import from which Prometheus into which store, and the report of what was imported."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from servescope.collector.config import DEFAULT_FILE, CollectorSettings, Configuration, read_configuration
from servescope.collector.importing.tables import EngineMatch, check_match, check_source, read_import_tables
from servescope.collector.targets.claims import Claims, read_scraped_at
from servescope.collector.targets.rights import Rights
from servescope.contract.identity import (
    ROLES,
    SEVERAL_MODELS,
    UNKNOWN_MODEL,
    Deployment,
    Identity,
    describe_group,
)
from servescope.errors import UsageError, require_extra
from servescope.settings.clock import AHEAD_MS, program_clock
from servescope.settings.values import format_instant, format_percent
from servescope.sources.map_files import load_sources
from servescope.sources.reader import ModelNames
from servescope.store.embedded import Store
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.options import configure as configure_access
from servescope.store.prometheus.options import open_prometheus
from servescope.store.prometheus.places import place_of
from servescope.store.prometheus.selectors import selector
from servescope.store.prometheus.targets import ScrapedTarget, find_contract_targets, find_engines
from servescope.store.spans import read_span

if TYPE_CHECKING:
    from servescope.collector.importing.importer import Import, ImportProgress

_DEFAULT_SPAN = "7d"
_PROGRESS_SECONDS = 5.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope import`."""
    parser.add_argument("--from", dest="url", required=True, metavar="URL", help="base URL of the Prometheus")
    parser.add_argument("--store", type=Path, metavar="PATH", help="the store (default: the configuration's)")
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help=f"the collector's configuration, for its settings and [[import]] tables (default: {DEFAULT_FILE} if here)",
    )
    parser.add_argument("--match", metavar="SELECTOR", help="import these series only, such as '{job=\"vllm\"}'")
    parser.add_argument(
        "--deployment", metavar="ID", help="the matched targets are engines of this deployment, by their own names"
    )
    parser.add_argument("--model-name", metavar="NAME", help="its model (default: what its series name)")
    parser.add_argument("--inference-stack", metavar="NAME", help="its stack (default: ID of the deployment)")
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
    """Import, and print what was imported."""
    require_extra("collector", "aiohttp")
    from servescope.collector.importing.importer import Import

    # Found as the collector finds it: figures of the past are derived over the same window.
    path = arguments.config or Path(DEFAULT_FILE)
    configuration = read_configuration(path) if arguments.config or path.exists() else None
    wanted = _read_wanted(arguments, configuration)
    settings = configuration.collector if configuration else CollectorSettings()
    clock = program_clock()
    start_ms, end_ms = read_span(arguments.start, arguments.end, now_ms := clock.now_ms())
    if end_ms > now_ms + AHEAD_MS:
        raise UsageError(f"--end {arguments.end!r} is later than now, {format_instant(now_ms)}")
    prometheus = open_prometheus(arguments.url, arguments)
    targets, problems = _find(prometheus, wanted, arguments.match or "", start_ms, end_ms)
    if not wanted and configuration is not None:
        targets, withheld = _keep_claimed(targets, Rights.of(configuration.deployments).claims)
        problems = [*problems, *withheld]
    if not targets:
        raise UsageError(_nothing_found(prometheus, wanted, problems))
    # Opened last, so that a Prometheus without anything leaves no empty store behind.
    with Store(arguments.store or settings.store, now_ms=clock.now_ms) as store:
        if (event := store.drop_future()) is not None:
            print(f"servescope: {event.text}", file=sys.stderr)
        work = Import(prometheus, store, targets, settings)
        work.run(start_ms, end_ms, _ProgressPrinter(start_ms, end_ms))
    _report(work, problems)
    return 0


def _find(
    prometheus: Prometheus, wanted: Sequence[EngineMatch], match: str, start_ms: int, end_ms: int
) -> tuple[list[ScrapedTarget], list[str]]:
    if not wanted:
        return find_contract_targets(prometheus, match, start_ms=start_ms, end_ms=end_ms)
    targets: dict[ScrapedTarget, None] = {}
    problems = []
    for each in wanted:
        deployment = name_model(prometheus, each, start_ms, end_ms)
        found = find_engines(
            prometheus, each.match, deployment, role=each.role, replica_label=each.replica_label,
            source=each.source, start_ms=start_ms, end_ms=end_ms,
        )  # fmt: skip
        targets |= dict.fromkeys(found)
        if not found:
            problems.append(f"no target matches {each.match!r} of deployment {each.deployment.deployment_id!r}")
    return list(targets), problems


def name_model(prometheus: Prometheus, wanted: EngineMatch, start_ms: int, end_ms: int) -> Deployment:
    """The deployment of the engines that are wanted, with the model that their series name where it has none."""
    if wanted.deployment.model_name != UNKNOWN_MODEL:
        return wanted.deployment
    labels = sorted({source.model_label for source in load_sources().values() if source.model_label})
    series = [selector(extra=wanted.match)]
    models = ModelNames()
    named = {
        models.write(name)
        for label in labels
        for name in prometheus.label_values(label, series, start_ms=start_ms, end_ms=end_ms)
    }
    return replace(wanted.deployment, model_name=models.only or (SEVERAL_MODELS if named else UNKNOWN_MODEL))


def _keep_claimed(targets: Sequence[ScrapedTarget], claims: Claims) -> tuple[list[ScrapedTarget], list[str]]:
    """The targets that may claim the deployment whose labels they have, and what is to be said of the others."""
    kept: list[ScrapedTarget] = []
    withheld = []
    for target in targets:
        group, place = target.identity.deployment().group, dict(place_of(target.attached))
        if not claims.of(group) or claims.admits_series(group, read_scraped_at(place)):
            kept.append(target)
        else:
            shown = ", ".join(f"{name}={value!r}" for name, value in place.items())
            withheld.append(f"target {shown}: not in the claims of {describe_group(group)}, whose labels it has")
    return kept, withheld


def _nothing_found(prometheus: Prometheus, wanted: Sequence[EngineMatch], problems: Sequence[str]) -> str:
    if wanted:
        return f"{prometheus.url} has no series that match: {'; '.join(problems)}"
    reasons = f" ({'; '.join(problems)})" if problems else ""
    return (
        f"{prometheus.url} holds no series of the contract within that time{reasons}; where it scraped engines, "
        "name them: --deployment ID --match '{job=\"vllm\"}', or [[import]] tables in a --config"
    )


def _read_wanted(arguments: argparse.Namespace, configuration: Configuration | None) -> list[EngineMatch]:
    if arguments.deployment is None:
        for option in ("model_name", "inference_stack", "environment", "role", "replica_label", "source"):
            if getattr(arguments, option) is not None:
                raise UsageError(f"--{option.replace('_', '-')} goes with --deployment")
        return read_import_tables(configuration) if configuration and not arguments.match else []
    if not arguments.match:
        raise UsageError("--deployment goes with --match, such as --match '{job=\"vllm\"}'")
    identity = Identity(
        model_name=arguments.model_name or UNKNOWN_MODEL,
        deployment_id=arguments.deployment,
        inference_stack=arguments.inference_stack or arguments.deployment,
        environment=arguments.environment or "",
    )
    role, label = arguments.role or "aggregated", arguments.replica_label or "instance"
    return [
        EngineMatch(check_match(arguments.match), identity.deployment(), role, label, check_source(arguments.source))
    ]


class _ProgressPrinter:
    """Prints to stderr how far an import is, every few seconds."""

    def __init__(self, start_ms: int, end_ms: int) -> None:
        self._start_ms, self._end_ms = start_ms, end_ms
        self._printed = time.monotonic()

    def __call__(self, progress: ImportProgress) -> None:
        done = progress.until_ms >= self._end_ms
        if not done and time.monotonic() - self._printed < _PROGRESS_SECONDS:
            return
        self._printed = time.monotonic()
        share = (progress.until_ms - self._start_ms) / (self._end_ms - self._start_ms)
        print(
            f"servescope: {format_instant(progress.until_ms)}, {format_percent(share)}: {progress.scrapes} scrapes "
            f"with {progress.samples} samples, {progress.figures} evaluations",
            file=sys.stderr,
            flush=True,
        )


def _report(work: Import, problems: Sequence[str]) -> None:
    for target_id, tally in sorted(work.tallies.items()):
        print(
            f"{target_id}: {tally.scrapes} scrapes imported ({tally.failed} failed), {tally.samples} samples; "
            f"{tally.already_there} scrapes were in the store already"
        )
        if tally.strays:
            print(f"  {tally.strays} samples left out, as no scrape succeeded at their instants")
        for problem, count in tally.problems.most_common(5):
            print(f"  {count} times: {problem}")
    for target_id, names in sorted(work.not_understood().items()):
        shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
        print(f"{target_id}: no source map reads {shown}")
    for problem in problems:
        print(f"left out: {problem}")
