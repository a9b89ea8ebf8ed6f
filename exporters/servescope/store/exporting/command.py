"""The command: which part of which store, in which format, to which file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from servescope.contract.figures import FIGURES
from servescope.contract.identity import Deployment
from servescope.contract.metrics import METRICS
from servescope.errors import UsageError, require_extra, suggest
from servescope.settings.clock import program_clock
from servescope.store.embedded import Store
from servescope.store.exporting.openmetrics import write_openmetrics
from servescope.store.exporting.parquet import write_figures, write_samples
from servescope.store.exporting.selection import Selection
from servescope.store.spans import read_span

FORMATS = ("parquet", "openmetrics")
TABLES = ("samples", "figures")
# Figures begin up to a window behind the first scrape.
_MARGIN_MS = 3_600_000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope export`."""
    parser.add_argument(
        "--store",
        type=Path,
        default=Path("servescope.db"),
        metavar="PATH",
        help="the store to read (default: servescope.db)",
    )
    parser.add_argument("--format", choices=FORMATS, required=True, help="what to write")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument(
        "--table", choices=TABLES, default="samples",
        help="native contract samples, or figures (Parquet only) (default: samples)",
    )  # fmt: skip
    parser.add_argument(
        "--deployment", action="append", default=[], metavar="ID", help="only this deployment_id; may be repeated"
    )
    parser.add_argument(
        "--metric", action="append", default=[], metavar="NAME",
        help="only this metric of the contract, or this figure; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--start", metavar="TIME", help="from when: 2026-11-20T14:00:00Z, or 12h before the end (default: all)"
    )
    parser.add_argument("--end", metavar="TIME", help="until when (default: all)")


def run(arguments: argparse.Namespace) -> int:
    """Export, and say what was written."""
    if arguments.format == "parquet":
        require_extra("export", "pyarrow")
    if arguments.format == "openmetrics" and arguments.table == "figures":
        raise UsageError("figures are not written as OpenMetrics: a Prometheus derives them with the recording rules")
    with Store(arguments.store, read_only=True, now_ms=program_clock().now_ms) as store:
        selection = _select(store, arguments)
        if arguments.format == "openmetrics":
            written = write_openmetrics(store, selection, arguments.out)
        elif arguments.table == "figures":
            written = write_figures(store, selection, arguments.out)
        else:
            written = write_samples(store, selection, arguments.out)
    size = arguments.out.stat().st_size
    print(f"servescope: {written} {arguments.table} in {arguments.out}, {size} bytes", file=sys.stderr)
    return 0


def _select(store: Store, arguments: argparse.Namespace) -> Selection:
    deployments = tuple(_pick_deployments(store, arguments.deployment))
    known: Mapping[str, object] = FIGURES if arguments.table == "figures" else METRICS
    for name in arguments.metric:
        if name not in known:
            what = "figure" if arguments.table == "figures" else "metric of the contract"
            raise UsageError(f"unknown {what} {name!r}; {suggest(name, known) or 'known: ' + ', '.join(known)}")
    held = store.held_range() or (0, 0)
    start_ms, end_ms = held[0] - _MARGIN_MS, held[1] + _MARGIN_MS
    if arguments.end is not None or arguments.start is not None:
        now_ms = end_ms if arguments.end is None else program_clock().now_ms()
        asked = read_span(arguments.start, arguments.end, now_ms)
        start_ms, end_ms = max(start_ms, asked[0]), min(end_ms, asked[1])
    return Selection(deployments, tuple(arguments.metric or known), start_ms, end_ms)


def _pick_deployments(store: Store, wanted: Sequence[str]) -> Iterator[Deployment]:
    known = store.deployments()
    names = {deployment.deployment_id for deployment in known}
    for name in wanted:
        if name not in names:
            hint = suggest(name, names) or f"in the store: {', '.join(sorted(names)) or 'none'}"
            raise UsageError(f"unknown deployment {name!r}; {hint}")
    yield from (deployment for deployment in known if not wanted or deployment.deployment_id in wanted)
