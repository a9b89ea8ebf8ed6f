"""`servescope dashboards` writes the Grafana dashboards; `python -m dashboards` in a checkout does the same."""

from __future__ import annotations

import argparse
from pathlib import Path

from servescope.generating.packages import load

FORMATS = ("json", "configmap", "grafana-operator")


def configure(parser: argparse.ArgumentParser, folder: Path | None = None) -> None:
    """Add the options; without a default `folder` the output has to be named."""
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    parser.add_argument("--options", type=Path, metavar="FILE.toml", help="labels, windows, thresholds, data source")
    parser.add_argument(
        "--output", type=Path, default=folder, required=folder is None, metavar="FOLDER",
        help="where the files are written" if folder is None else "default: %(default)s",
    )  # fmt: skip
    parser.add_argument("--format", choices=FORMATS, default="json", help="default: %(default)s")


def run(arguments: argparse.Namespace) -> int:
    """Write the files, or check them: 1 when one differs; raises ServescopeError for wrong options."""
    code: int = load("dashboards").run(arguments)
    return code
