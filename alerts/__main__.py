"""`python -m alerts` writes `alerts/generated/`; with `--check` it only lists the files that are out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from alerts.alertmanager import render_alertmanager
from alerts.options import DEFAULTS, Options, read_options
from alerts.rules import RECORDING, render_alert_rules, render_bundle, render_recording
from alerts.runbooks import render_index, render_runbook
from alerts.templates import TEMPLATES_FILE, render_templates
from dashboards.packaging import is_current
from servescope.errors import ServescopeError, UsageError
from servescope.generating.rules import configure
from servescope.settings.command_line import CommandParser, report_error

GENERATED = Path(__file__).parent / "generated"
DEPLOY = Path(__file__).parents[1] / "deploy"
DEPLOYED = DEPLOY / "alertmanager.yml"
"""The configuration of the Alertmanager that Compose starts, made by `alerts.toml` beside it."""

KUBERNETES = DEPLOY / "kubernetes" / "rules" / "rules.yaml"
"""All rules as the resource that an operator gives its Prometheus."""
KUBERNETES_VICTORIA = DEPLOY / "kubernetes" / "rules-victoria-metrics" / "rules.yaml"
"""All rules as the resource that an operator gives its vmalert."""
VICTORIAMETRICS = DEPLOY / "victoriametrics" / "servescope.rules.yml"
"""All rules for vmalert."""

FILES: Mapping[str, Callable[[Options], str]] = MappingProxyType(
    {
        **{name: partial(render_recording, name) for name in RECORDING},
        "alerting.rules.yml": render_alert_rules,
    }
)
"""The rule files by name."""

RUNBOOKS = "runbooks"


def render(options: Options = DEFAULTS) -> Mapping[str, str]:
    """Every file by its name."""
    alerts = options.alerts().values()
    return {
        **{name: write(options) for name, write in FILES.items()},
        "alertmanager.yml": render_alertmanager(options=options),
        TEMPLATES_FILE: render_templates(options),
        f"{RUNBOOKS}/README.md": render_index(alerts),
        **{f"{RUNBOOKS}/{alert.name}.md": render_runbook(alert, options) for alert in alerts},
    }


def render_deployed() -> str:
    """The file of Compose's Alertmanager."""
    return render_alertmanager(options=read_options(DEPLOY / "alerts.toml"))


def main() -> int:
    """`run` for a checkout, by default on all that is committed: 1 when a file differs, 2 for wrong options."""
    parser = CommandParser(prog="python -m alerts", description="Write the rules compiled from the catalog.")
    configure(parser, GENERATED)
    arguments = parser.parse_args()
    try:
        if arguments.format or arguments.output:
            return run(arguments)
        if arguments.options or arguments.pages_only:
            given = "--options" if arguments.options else "--pages-only"
            raise UsageError(f"{given} requires --output or --format: the default folder is for the default options")
        return _act_on_committed(_check if arguments.check else _write)
    except ServescopeError as error:
        return report_error(error)


def run(arguments: argparse.Namespace) -> int:
    """Write the files, or check them: 1 when one differs; raises UsageError for what is wrong or cannot be written."""
    tenants = [each.strip() for each in (arguments.source_tenants or "").split(",") if each.strip()]
    if arguments.source_tenants is not None and (arguments.format != "mimir" or not tenants):
        raise UsageError("--source-tenants requires --format mimir, and names such as 'team-a,team-b'")
    if arguments.check and arguments.format:
        raise UsageError("--check requires --output: a document of a --format is written to no file")
    options = read_options(arguments.options) if arguments.options else DEFAULTS
    options = replace(options, pages_only=arguments.pages_only)
    if arguments.format:
        sys.stdout.write(render_bundle(arguments.format, options, tenants))
        return 0
    try:
        return (_check if arguments.check else _write)(arguments.output, render(options))
    except OSError as error:
        raise UsageError(f"--output {str(arguments.output)!r} cannot be written: {error.strerror}") from error


def _act_on_committed(act: Callable[[Path, Mapping[str, str]], int]) -> int:
    return max(
        act(GENERATED, render()),
        act(DEPLOY, {DEPLOYED.name: render_deployed()}),
        act(KUBERNETES.parent, {KUBERNETES.name: render_bundle("prometheusrule")}),
        act(KUBERNETES_VICTORIA.parent, {KUBERNETES_VICTORIA.name: render_bundle("vmrule")}),
        act(VICTORIAMETRICS.parent, {VICTORIAMETRICS.name: render_bundle("victoriametrics")}),
    )


def _check(folder: Path, files: Mapping[str, str]) -> int:
    wrong = [folder / name for name, text in files.items() if not is_current(folder / name, text)]
    wrong += _strangers(folder, files)
    for path in wrong:
        sys.stderr.write(f"{path} is out of date: run this without --check\n")
    return 1 if wrong else 0


def _write(folder: Path, files: Mapping[str, str]) -> int:
    for name, text in files.items():
        path = folder / name
        if not is_current(path, text):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in _strangers(folder, files):
        path.unlink()
    return 0


def _strangers(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Runbooks of alerts that no longer exist."""
    ours = (path for path in sorted((folder / RUNBOOKS).glob("Servescope*.md")))
    return [path for path in ours if f"{RUNBOOKS}/{path.name}" not in files]


if __name__ == "__main__":
    sys.exit(main())
