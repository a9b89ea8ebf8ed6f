"""One collector, and the systems past it, on the same simulated fleet: CPU and bytes a sample, lag, first paint.

What a sample costs each part is then multiplied: what 10 000 and 100 000 targets take, in `docs/scale.md`.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import _cluster, _cluster_page, _fleet
from servescope.errors import UsageError
from tests import tools

_TARGETS = 2000
_LEAST_TARGETS = _cluster.VICTORIA_PART * _fleet.REPLICAS
"""A deployment in the smallest part of the fleet."""
_INTERVAL_SECONDS = 30
_WARM_UP_SECONDS, _SECONDS = 45, 60


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    group = parser.add_argument_group("cluster")
    group.add_argument(
        "--cluster-targets", type=int, default=_TARGETS, metavar="N", help="engines (default: %(default)s)"
    )
    group.add_argument(
        "--cluster-interval", type=int, default=_INTERVAL_SECONDS, metavar="S",
        help="seconds between scrapes; fewer need more than two cores (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--cluster-seconds", type=int, default=_SECONDS, metavar="S", help="measured (default: %(default)s)"
    )
    group.add_argument("--cluster-write", action="store_true", help="write the tables into docs/scale.md")


def run(arguments: argparse.Namespace) -> None:
    """Print what each system uses for the fleet, and what more targets would take."""
    if arguments.cluster_targets < _LEAST_TARGETS:
        raise UsageError(f"--cluster-targets is {arguments.cluster_targets}, expected {_LEAST_TARGETS} or more")
    span = _cluster.Span(arguments.cluster_interval, _WARM_UP_SECONDS, arguments.cluster_seconds)
    with (
        tempfile.TemporaryDirectory(prefix="servescope-cluster-") as name,
        _fleet.serving(arguments.cluster_targets, Path(name) / "targets") as fleet,
    ):
        text = _cluster_page.render(span, list(_measure(fleet, Path(name), span)))
    print(text)
    if arguments.cluster_write:
        _cluster_page.MARKERS.write(_cluster_page.PAGE, text)


def _measure(fleet: _fleet.Fleet, folder: Path, span: _cluster.Span) -> Iterator[_cluster.System]:
    yield _cluster.measure_collector(fleet, folder / "collector", span)
    prometheus, alertmanager = tools.prometheus_binary(), tools.alertmanager_binary()
    if prometheus is None or alertmanager is None:
        print("prometheus or alertmanager is not there: not measured; `python -m tests.tools` prepares them")
        return
    yield _cluster.measure_agents(
        fleet, folder / "agents", span, prometheus=prometheus, receiver=tools.prometheus_3_binary(),
        alertmanager=alertmanager,
    )  # fmt: skip
    if tools.victoria_metrics_binary() is None:
        print("VictoriaMetrics is not there: not measured; `python -m tests.tools` prepares it")
        return
    yield _cluster.measure_victoria(fleet, folder / "victoria", span, alertmanager=alertmanager)
