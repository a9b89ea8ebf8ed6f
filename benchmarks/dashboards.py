"""Opening each dashboard over a day of two hundred replicas, on a real Prometheus: samples read, and time taken.

Beside it the same dashboards with `figures = "raw"`: every figure computed over the raw series, as dashboards without
recording rules do. The files themselves are timed as well, and what evaluating the rules costs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import quote

from benchmarks import _first_paint
from benchmarks._fleet_history import Fleet, write_history
from benchmarks._rule_costs import print_rules
from dashboards.__main__ import render
from dashboards.options import DEFAULTS
from tests import tools
from tests.support.prometheus import Prometheus, running

_REPLICAS = 200
_SCRAPE_SECONDS = 60
_USUAL_SCRAPE_SECONDS = 15
_START_SECONDS = 1_700_006_400
_GENERATORS = ("alerts", "dashboards", "docs.generate")
_MOST_SECONDS = 3.0
_END_SECONDS = _START_SECONDS + _first_paint.RANGE_SECONDS
_OPTIONS = ("--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=100y")


@dataclass(frozen=True, slots=True)
class Cost:
    """What one query read and held at once, in samples, and how long it took; None for what was refused."""

    panel: str
    samples: int | None
    peak: int
    seconds: float
    estimated: int


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this benchmark."""
    group = parser.add_argument_group("dashboards")
    group.add_argument("--replicas", type=int, default=_REPLICAS, metavar="N", help="default: %(default)s")
    group.add_argument(
        "--scrape-seconds", type=int, default=_SCRAPE_SECONDS, metavar="S",
        help="between two samples of a series; %(default)s by default, which writes a quarter of what 15 does",
    )  # fmt: skip
    group.add_argument("--panels", action="store_true", help="print every panel, not only the dearest of a dashboard")


def run(arguments: argparse.Namespace) -> None:
    """Print what opening each dashboard costs, and how long the files take to write."""
    _time_generators()
    binary = tools.prometheus_binary()
    if binary is None:
        print("prometheus is not there: not measured; `python -m tests.tools` prepares it")
        return
    fleet = Fleet(arguments.replicas)
    with (
        tempfile.TemporaryDirectory(prefix="servescope-dashboards-") as name,
        running(binary, Path(name), {}, options=_OPTIONS) as server,
    ):
        _fill(server, fleet, arguments.scrape_seconds)
        ours = dict(_measure(server, fleet, arguments.scrape_seconds, "recorded"))
        raw = dict(_measure(server, fleet, arguments.scrape_seconds, "raw"))
        print_rules(server, fleet, scrape_seconds=arguments.scrape_seconds, at_seconds=_END_SECONDS)
    _print(ours, raw, fleet, arguments)


def _time_generators() -> None:
    print("writing all that is generated, a fresh process each, best of 3; what takes CPU is not waiting for others:")
    took = {module: min(_run_generator(module) for _ in range(3)) for module in _GENERATORS}
    for module, (cpu, wall) in took.items():
        print(f"  python -m {module:<14} {cpu:5.2f} s of CPU, {wall:5.2f} s")
    total = sum(cpu for cpu, _ in took.values())
    print(f"  together {total:.2f} s of CPU, {'within' if total <= _MOST_SECONDS else 'BEYOND'} {_MOST_SECONDS:g} s")


def _run_generator(module: str) -> tuple[float, float]:
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([sys.executable, "-m", module, "--check"], check=True, capture_output=True)
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, wall


def _fill(server: Prometheus, fleet: Fleet, scrape_seconds: int) -> None:
    started = time.perf_counter()
    written = write_history(
        fleet,
        server.port,
        end_seconds=_END_SECONDS,
        range_seconds=_first_paint.RANGE_SECONDS,
        scrape_seconds=scrape_seconds,
    )
    print(
        f"{fleet.replicas} replicas in 4 deployments, {sum(each.count for each in fleet.series)} series, 24 h every "
        f"{scrape_seconds} s: {written / 1e6:.0f} million samples in {time.perf_counter() - started:.0f} s"
    )


def _measure(server: Prometheus, fleet: Fleet, scrape_seconds: int, figures: str) -> Iterator[tuple[str, list[Cost]]]:
    for file, text in render(replace(DEFAULTS, figures=figures)).items():
        board = json.loads(text)
        costs = [
            _ask(server, asked, _first_paint.estimate_samples(asked, fleet, scrape_seconds=scrape_seconds))
            for asked in _first_paint.list_queries(board, scrape_seconds=scrape_seconds)
        ]
        costs += [_ask_values(server, label, selector) for label, selector in _first_paint.list_variable_queries(board)]
        yield file.removesuffix(".json"), costs


def _ask(server: Prometheus, asked: _first_paint.Asked, estimated: int) -> Cost:
    times = (
        {"start": str(_START_SECONDS), "end": str(_END_SECONDS), "step": str(asked.step_seconds)}
        if asked.step_seconds
        else {"time": str(_END_SECONDS)}
    )
    path = "/api/v1/query_range" if asked.step_seconds else "/api/v1/query"
    started = time.perf_counter()
    answer = server.answer(path, query=asked.expression, stats="all", **times)
    took = time.perf_counter() - started
    if answer["status"] != "success":
        # More samples at once than Prometheus grants by default, or more time.
        return Cost(asked.panel, None, 0, took, estimated)
    samples = answer["data"]["stats"]["samples"]
    return Cost(asked.panel, samples["totalQueryableSamples"], samples["peakSamples"], took, estimated)


def _ask_values(server: Prometheus, label: str, selector: str) -> Cost:
    times = {"start": str(_START_SECONDS), "end": str(_END_SECONDS)}
    started = time.perf_counter()
    answer = server.answer(f"/api/v1/label/{quote(label)}/values", **{"match[]": selector}, **times)
    assert answer["status"] == "success", answer
    return Cost(f"variable: {label}", 0, 0, time.perf_counter() - started, 0)


def _print(
    ours: Mapping[str, Sequence[Cost]], raw: Mapping[str, Sequence[Cost]], fleet: Fleet, arguments: argparse.Namespace
) -> None:
    print(f"opened over 24 h, queries one after the other; a budget is for scrapes every {_USUAL_SCRAPE_SECONDS} s")
    print("samples in millions; read: counted by Prometheus, computed: from the queries; raw: times ours")
    print("dashboard    queries     read computed  at 15 s  budget            at once  seconds  raw: samples  seconds")
    for name, costs in ours.items():
        usual = sum(_estimate_usual(name, fleet))
        budget = _first_paint.MOST_SAMPLES.get(name, _first_paint.MOST_SAMPLES_OTHERWISE)
        print(
            f"{name:<12} {len(costs):7} {_samples(costs) / 1e6:8.2f} {_estimated(costs) / 1e6:8.2f} {usual / 1e6:8.1f} "
            f"{budget / 1e6:7.0f}, {'within' if usual <= budget else 'BEYOND'} "
            f"{max(each.peak for each in costs) / 1e6:9.1f} {_seconds(costs):8.1f} "
            f"{_samples(raw[name]) / _samples(costs):13.1f} {_seconds(raw[name]) / _seconds(costs):8.1f}"
        )
        shown = sorted(costs, key=lambda each: each.samples or 0, reverse=True)
        for each in shown if arguments.panels else shown[:2]:
            read = "refused" if each.samples is None else f"{each.samples / 1e6:.2f} million"
            print(f"  {each.panel:<44} {read:>15}, {each.seconds:.2f} s")
        refused = [each.panel for each in raw[name] if each.samples is None]
        if refused:
            print(f"  raw, refused by Prometheus: {', '.join(dict.fromkeys(refused))}")


def _estimate_usual(name: str, fleet: Fleet) -> Iterator[int]:
    """The samples of each query of a dashboard at the usual scrape interval."""
    for asked in _first_paint.list_queries(json.loads(render()[f"{name}.json"]), scrape_seconds=_USUAL_SCRAPE_SECONDS):
        yield _first_paint.estimate_samples(asked, fleet, scrape_seconds=_USUAL_SCRAPE_SECONDS)


def _samples(costs: Sequence[Cost]) -> int:
    return sum(each.samples or 0 for each in costs)


def _estimated(costs: Sequence[Cost]) -> int:
    return sum(each.estimated for each in costs)


def _seconds(costs: Sequence[Cost]) -> float:
    return sum(each.seconds for each in costs)
