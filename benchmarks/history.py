"""What reading a large fleet from a Prometheus takes: the console's pages, a judge's increments, a customer's edges.

First the server is made up and answers at once, so that the time is that of the reader: its requests, and the CPU and
memory that it takes to read the answers and to compute from them. Then first loads on a real Prometheus are measured,
beside what that needs for the same queries.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import time
from collections.abc import Callable
from urllib.request import urlopen

from benchmarks import _first_loads
from benchmarks._query_api import serving
from benchmarks._scraped_fleet import FORMS
from servescope.contract.identity import Deployment
from servescope.contract.metrics import METRICS
from servescope.customers.points.reading import IntervalReader
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from tests import tools

_REPLICAS = 10_000
_MINUTE_MS = 60_000
_TARGETS, _HOURS = 300, 3.0
_JUDGED = (
    "requests_total", "output_tokens_total", "input_tokens_total", "time_to_first_token_seconds",
    "request_duration_seconds", "queued_requests", "kv_cache_usage", "concurrent_requests",
)  # fmt: skip
_EXPORTED = ("requests_total", "output_tokens_total", "time_to_first_token_seconds", "queued_requests")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    group = parser.add_argument_group("history")
    group.add_argument(
        "--past-replicas", type=int, default=_REPLICAS, metavar="N",
        help="of all deployments, 0 to leave these out (default: %(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--past-targets", type=int, default=_TARGETS, metavar="N", help="of first loads (default: %(default)s)"
    )
    group.add_argument(
        "--past-hours", type=float, default=_HOURS, metavar="H", help="that they may read (default: %(default)s)"
    )
    group.add_argument(
        "--past-forms", nargs="*", choices=FORMS, default=["translated"], metavar="FORM",
        help=f"how they came into the Prometheus: {', '.join(FORMS)}; none to leave these out (default: translated)",
    )  # fmt: skip
    group.add_argument("--past-write", action="store_true", help="write the first loads into docs/history.md")


def run(arguments: argparse.Namespace) -> None:
    """Print what each reader takes of a fleet of four deployments, and what first loads take."""
    if arguments.past_replicas:
        _read_made_up(arguments.past_replicas)
    if arguments.past_forms:
        _load_first(arguments)


def _read_made_up(replicas: int) -> None:
    print(f"\n## {replicas:,} replicas in four deployments, read from a Prometheus\n")
    print("| what | requests | MB answered | largest MB | CPU s | MiB at most |\n|---|---|---|---|---|---|", flush=True)
    with serving(replicas) as url:
        for name in _READERS:
            # Each in a process of its own, so that its memory is its own.
            reader = multiprocessing.get_context("spawn").Process(target=_measure, args=(name, url))
            reader.start()
            reader.join()


def _load_first(arguments: argparse.Namespace) -> None:
    binary = tools.prometheus_binary()
    if binary is None:
        print("prometheus is not there: first loads not measured; `python -m tests.tools` prepares it")
        return
    found = []
    for each in _first_loads.measure(binary, arguments.past_forms, arguments.past_targets, arguments.past_hours):
        print(f"{each.form}, {each.read}{', busy' * each.busy}: {each.reading_seconds:.2f} s", flush=True)
        found.append(each)
    text = _first_loads.render(found, arguments.past_targets, arguments.past_hours)
    print(f"\n## First loads\n\n{text}")
    if arguments.past_write:
        _first_loads.MARKERS.write(_first_loads.PAGE, text)


def _measure(name: str, url: str) -> None:
    _counted(url)
    history = PrometheusHistory(Prometheus(url).only_whole())
    deployment = next(each for each in history.deployments() if each.deployment_id == "chat-v1")
    _counted(url)
    before = time.process_time()
    what = _READERS[name](history, deployment)
    seconds = time.process_time() - before
    requests, size, largest = _counted(url)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"| {name}: {what} | {requests} | {size / 1e6:.1f} | {largest / 1e6:.1f} | {seconds:.1f} | {most:.0f} |",
        flush=True,
    )


def _counted(url: str) -> tuple[int, int, int]:
    with urlopen(f"{url}/counted") as answer:
        requests, size, largest = json.loads(answer.read())
    return requests, size, largest


def _fleet_page(history: PrometheusHistory, _: Deployment) -> str:
    now = time.time_ns() // 1_000_000
    shown = history.latest_figures()
    for each in history.listed_deployments():
        history.read_figures(each, now - 86_400_000, now, names=["request_rate"], max_points=60)
    return f"{len(shown)} rows, {len(history.targets()):,} targets"


def _increments(history: PrometheusHistory, deployment: Deployment) -> str:
    now = time.time_ns() // 1_000_000
    found = history.read_increments(deployment, _JUDGED, now - 60 * _MINUTE_MS, now - _MINUTE_MS)
    return f"{len(found):,} targets, {sum(each.gains.size for each in found):,} gains"


def _edges(history: PrometheusHistory, deployment: Deployment) -> str:
    edge = time.time_ns() // 1_000_000 // _MINUTE_MS * _MINUTE_MS - 2 * _MINUTE_MS
    reader = IntervalReader(history, [deployment], [name for name in METRICS if name in _EXPORTED], ())
    ((_, state),) = reader.read(None, [edge])
    ((found, _),) = reader.read(state, [edge + _MINUTE_MS])
    return f"{len(found.targets):,} targets, {sum(len(each.series) for each in found.targets):,} series, twice"


_READERS: dict[str, Callable[[PrometheusHistory, Deployment], str]] = {
    "the console's Fleet page": _fleet_page,
    "an hour of a deployment for the judge": _increments,
    "a minute of a deployment for a customer": _edges,
}
