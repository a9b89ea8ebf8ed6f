"""`python -m alerts` writes `alerts/generated/`; with `--check` it writes nothing and says what is out of date."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from alerts.alerting import LINKS, Links, render_alert_rules, render_bundle, render_objective_rules
from alerts.alertmanager import render_alertmanager
from alerts.recording import render_recording_rules
from alerts.runbooks import render_index, render_runbook
from servescope.alerts import ALERTS

GENERATED = Path(__file__).parent / "generated"
FILES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "recording.rules.yml": render_recording_rules,
        "objectives.rules.yml": render_objective_rules,
        "alerting.rules.yml": render_alert_rules,
    }
)
"""The rule files by name."""

OTHER_FILES: Mapping[str, Callable[[], str]] = MappingProxyType(
    {
        "alertmanager.yml": render_alertmanager,
        "runbooks/README.md": partial(render_index, ALERTS.values()),
        **{f"runbooks/{alert.name}.md": partial(render_runbook, alert) for alert in ALERTS.values()},
    }
)
"""What is written beside them."""


def main() -> int:
    """Write the files, or check them: 1 when one differs from what the catalog says."""
    parser = argparse.ArgumentParser(prog="python -m alerts", description="Write the rules compiled from the catalog.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    parser.add_argument(
        "--format",
        choices=("prometheus", "prometheusrule", "mimir"),
        help="write all rules as one document of this form to the standard output, and no file",
    )
    parser.add_argument("--runbooks", metavar="URL", help="with --format: the folder that runbook_url leads to")
    parser.add_argument("--grafana", metavar="URL", help="with --format: the Grafana that dashboard_url leads to")
    parser.add_argument("--dashboards", metavar="PREFIX", help="with --format: the prefix of the dashboards' options")
    arguments = parser.parse_args()
    if arguments.format:
        links = Links(
            arguments.runbooks or LINKS.runbooks,
            arguments.grafana or LINKS.grafana,
            arguments.dashboards or LINKS.dashboards,
        )
        sys.stdout.write(render_bundle(arguments.format, links))
        return 0
    if arguments.runbooks or arguments.grafana or arguments.dashboards:
        parser.error(
            "--runbooks, --grafana and --dashboards go with --format: the files are written with their defaults"
        )
    check = arguments.check
    files = {**FILES, **OTHER_FILES}
    stale = [name for name, render in files.items() if not _is_current(GENERATED / name, render())]
    unknown = sorted(path for path in (GENERATED / "runbooks").glob("*") if f"runbooks/{path.name}" not in files)
    if check:
        for path in (*(GENERATED / name for name in stale), *unknown):
            sys.stderr.write(f"{path} is out of date: run `python -m alerts`\n")
        return 1 if stale or unknown else 0
    (GENERATED / "runbooks").mkdir(parents=True, exist_ok=True)
    for name in stale:
        (GENERATED / name).write_text(files[name](), encoding="utf-8")
    for path in unknown:
        path.unlink()
    return 0


def _is_current(path: Path, text: str) -> bool:
    return path.is_file() and path.read_text(encoding="utf-8") == text


if __name__ == "__main__":
    sys.exit(main())
