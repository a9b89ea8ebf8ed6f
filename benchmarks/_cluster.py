"""What a system uses to scrape a simulated fleet: the CPU and memory of each part, bytes, lag, the first paint."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from app import queries
from app.selection import TimeRange
from app.tables import SPARK_FIGURE
from benchmarks import _fleet
from benchmarks._processes import Measured, collecting
from servescope.store.history import History
from tests.live.stack import Program
from tests.support.past_one_machine import TARGETS_JOB, PastOneMachine, past_one_machine
from tests.support.prometheus import Prometheus

_EVALUATION_SECONDS = 15
_POLL_SECONDS = 0.25
_PAINTED_SECONDS = 3600
_PAINTS = 3
# Targets whose samples are waited for, one in so many.
_FOLLOWED_EVERY = 97


@dataclass(frozen=True, slots=True)
class Span:
    """Seconds between scrapes, seconds before what is measured, and seconds measured."""

    interval: int
    warm_up: int
    seconds: int


@dataclass(frozen=True, slots=True)
class Part:
    """What one kind of program used: CPU seconds of all of them together within the span, and memory at its end."""

    name: str
    programs: int
    cpu_seconds: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class System:
    """One system in a span: `samples` of the contract became queryable, of `series` different ones.

    `wire` and `disk` are bytes a sample by what they are, `lag_seconds` from scrapes until their samples could be
    queried, `paint_seconds` the queries of the console's page of the fleet.
    """

    name: str
    parts: Sequence[Part]
    samples: float
    series: float
    wire: Mapping[str, float]
    disk: Mapping[str, float]
    lag_seconds: Sequence[float]
    paint_seconds: float

    def cpu_per_sample(self, part: Part) -> float:
        """Seconds of CPU that a part used for each sample."""
        return part.cpu_seconds / self.samples


def measure_collector(fleet: _fleet.Fleet, folder: Path, span: Span) -> System:
    """One collector with its store."""
    folder.mkdir()
    settings = {
        "scrape_interval": f"{span.interval}s",
        "evaluation_interval": f"{_EVALUATION_SECONDS}s",
        "scrape_timeout": f"{min(10, span.interval)}s",
    }
    configuration, port = _fleet.write_configuration(fleet, folder, settings)
    with collecting(configuration, port) as collector:
        time.sleep(span.warm_up)
        before = _series_of(collector.url)
        (part,), _ = _used([("collector", [collector])], lambda: time.sleep(span.seconds))
        after = _series_of(collector.url)
        held = sum(status["samples"] for status in json.loads(collector.read("/api/v1/targets"))["targets"])
        scrapes = _gained(before, after, "servescope_scrape_duration_seconds_count")
        lag = _gained(before, after, "servescope_scrape_duration_seconds_sum") / scrapes
        with queries.open_store(folder / "servescope.db") as store:
            paint = _paint(store)
        stored = sum(path.stat().st_size for path in folder.glob("servescope.db*"))
    rounds = after["servescope_scrape_duration_seconds_count"] / fleet.targets
    samples = scrapes / fleet.targets * held
    return System("one collector", [part], samples, held, {}, {"store": stored / (rounds * held)}, [lag], paint)


def measure_agents(fleet: _fleet.Fleet, folder: Path, span: Span, *, prometheus: Path, alertmanager: Path) -> System:
    """Prometheus agents with a translator each, and the Prometheus that they write to."""
    with past_one_machine(
        folder,
        list(_groups(fleet)),
        prometheus=prometheus,
        alertmanager=alertmanager,
        scrape_interval=f"{span.interval}s",
    ) as running:
        time.sleep(span.warm_up)
        urls = [_url(agent) for agent in running.agents]
        before = [_series_of(url) for url in urls]
        programs = [
            ("translators", list(map(_measured, running.translators))),
            ("agents", list(map(_measured, running.agents))),
            ("receiver", [_measured(running.receiver)]),
        ]
        followed = "|".join(f"engine-{number}" for number in range(0, fleet.targets, _FOLLOWED_EVERY))
        selector = f'concurrent_requests{{replica=~"{followed}"}}'
        parts, lags = _used(programs, lambda: follow(running.prometheus, selector, span.seconds))
        after = [_series_of(url) for url in urls]
        sent = sum(map(_gained, before, after, ["prometheus_remote_storage_samples_total"] * len(urls)))
        size = sum(map(_gained, before, after, ["prometheus_remote_storage_bytes_total"] * len(urls)))
        held = _sum(running.prometheus, f'sum(scrape_samples_scraped{{job="{TARGETS_JOB}"}})')
        appended = _series_of(_url(running.receiver))["prometheus_tsdb_head_samples_appended_total"]
        wal = sum(path.stat().st_size for path in (folder / "receiver").rglob("*") if path.is_file())
        paint = _paint(queries.open_prometheus(_url(running.receiver), {}))
        page = _probed(running, fleet)
    samples = held * span.seconds / span.interval
    wire = {"page to translator": page.native / page.samples, "translator to agent": page.gzip / page.samples}
    return System(
        "three agents, one receiver", parts, samples, held, {**wire, "agent to receiver": size / sent},
        {"receiver's write-ahead log": wal / appended}, lags, paint,
    )  # fmt: skip


def follow(prometheus: Prometheus, selector: str, seconds: float) -> list[float]:
    """How long after each scrape its samples could be queried, in seconds, for the series selected, over so long."""
    newest: dict[object, float] = {}
    lags = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        now = time.time()
        for point in prometheus.query(f"timestamp({selector})", at_ms=round(now * 1000)):
            known = newest.setdefault(point.labels, point.value)
            if point.value > known:
                newest[point.labels] = point.value
                lags.append(now - point.value)
        time.sleep(_POLL_SECONDS)
    return lags


def _used(programs: Sequence[tuple[str, Sequence[Measured]]], wait: Callable[[], Any]) -> tuple[list[Part], Any]:
    """What the programs use while something is waited for, and its result."""
    before = [sum(each.cpu_seconds() for each in alike) for _, alike in programs]
    result = wait()
    parts = [
        Part(
            name,
            len(alike),
            sum(each.cpu_seconds() for each in alike) - used,
            sum(each.resident_bytes() for each in alike),
        )
        for (name, alike), used in zip(programs, before, strict=True)
    ]
    return parts, result


def _groups(fleet: _fleet.Fleet) -> Iterator[dict[str, Any]]:
    """The fleet's lists, with the labels that a collector's configuration gives its deployments."""
    for number, path in enumerate(fleet.lists):
        labels = {
            "deployment_id": f"chat-{number}",
            "model_name": _fleet.model_of(number),
            "inference_stack": "vllm",
            "__param_source": "vllm",
        }
        for group in json.loads(path.read_text(encoding="utf-8")):
            yield {"targets": group["targets"], "labels": {**labels, **group["labels"]}}


@dataclass(frozen=True, slots=True)
class _Page:
    native: int
    gzip: int
    samples: int


def _probed(running: PastOneMachine, fleet: _fleet.Fleet) -> _Page:
    """One target's page, and what a translator makes of it, as it is sent."""
    target = json.loads(fleet.lists[0].read_text(encoding="utf-8"))[0]["targets"][0]
    with urlopen(f"http://{target}/metrics", timeout=30) as answer:
        native = len(answer.read())
    with urlopen(f"{_url(running.translators[0])}/probe?target={target}&source=vllm", timeout=30) as answer:
        translated = answer.read()
    lines = [line for line in translated.splitlines() if line and not line.startswith(b"#")]
    return _Page(native, len(gzip.compress(translated, 6)), len(lines))


def _paint(store: History) -> float:
    """Seconds that the queries of the console's page of the fleet take, the best of several."""
    seconds = []
    for _ in range(_PAINTS):
        began = time.perf_counter()
        now_ms = round(time.time() * 1000)
        span = TimeRange(now_ms - _PAINTED_SECONDS * 1000, now_ms, live=True)
        shown = list(queries.list_deployments(store).values())
        queries.read_fleet(store, shown, span)
        queries.targets_by_deployment(store)
        queries.read_trends(store, shown, span, SPARK_FIGURE)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _series_of(url: str) -> Mapping[str, float]:
    """What a program exposes of itself, without labels; series of several labels add up."""
    with urlopen(f"{url}/metrics", timeout=120) as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(("servescope_", "prom"))]
    found: dict[str, float] = {}
    for family in text_string_to_metric_families("\n".join(lines) + "\n"):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def _gained(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    return after[name] - before.get(name, 0.0)


def _sum(prometheus: Prometheus, expression: str) -> float:
    (point,) = prometheus.query(expression, at_ms=round(time.time() * 1000))
    return point.value


def _measured(program: Program) -> Measured:
    assert program.process is not None
    return Measured(program.process.pid, _url(program))


def _url(program: Program) -> str:
    return program.ready_url.removesuffix("/-/ready")


def quantiles(lags: Sequence[float]) -> tuple[float, float]:
    """The median and the 99th percentile."""
    median, most = np.quantile(np.array(lags), [0.5, 0.99])
    return float(median), float(most)
