"""`servescope rules` writes rules, runbooks and Alertmanager's configuration, as `python -m alerts` in a checkout."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Literal, get_args

from servescope.generating.packages import load

Format = Literal["prometheus", "prometheusrule", "mimir", "thanos", "victoriametrics", "vmrule"]


def configure(parser: argparse.ArgumentParser, folder: Path | None = None) -> None:
    """Add the options; without a default `folder` the output or a format has to be named."""
    parser.add_argument("--check", action="store_true", help="write nothing; fail when a file is out of date")
    parser.add_argument(
        "--options", type=Path, metavar="FILE.toml", help="labels, thresholds, links, receivers, windows"
    )
    where = parser.add_mutually_exclusive_group(required=folder is None)
    where.add_argument(
        "--output", type=Path, metavar="FOLDER",
        help="where the files are written" if folder is None else f"default: {folder}",
    )  # fmt: skip
    where.add_argument(
        "--format", choices=get_args(Format),
        help="write all rules as one document of this format to standard output instead of files",
    )  # fmt: skip
    parser.add_argument(
        "--pages-only", action="store_true", help="only the alerts that page somebody, and the rules that they read"
    )
    parser.add_argument(
        "--source-tenants", metavar="A,B", help="with --format mimir: the tenants whose series the rules read together"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write the files, or check them: 1 when one differs; raises UsageError for wrong options."""
    code: int = load("alerts").run(arguments)
    return code
