"""Targets that answer a scrape with the contract's metrics, and everything that goes wrong with targets."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from pathlib import Path
from typing import Literal

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, REPLICA_START_TIME
from servescope.contract.samples import Sample, format_edge, format_series, format_value, make_labels
from servescope.contract.types import Metric

Answer = Literal["slow", "500", "closed", "cut", "garbage"]
"""How a scrape fails: answered too late, with an error, not at all, in part, or with what is no exposition."""

SLOW_SECONDS = 0.6
_OPEN_VALUES: Mapping[str, tuple[str, ...]] = {
    "position": ("0", "1", "2", "3"),
    "gpu": ("0", "1"),
}
# What no instrument of ours exposes, but exporters of GPUs do.
_OF_EXPORTERS = {"gpu_errors_total", "gpu_last_error"}
_FIRST_START = 1_000_000_000.0
_ROLE_COMPONENTS = {"router": "router", "autoscaler": "autoscaler"}


@dataclass(frozen=True, slots=True)
class Incident:
    """What happens to a target from `start` to `end`, in seconds.

    A scrape fails in the way of `answer`, in `share` of all cases; series whose name matches `missing` are left out,
    again in `share` of all cases, each for itself; `idle` stops everything that counts. At `start` a `restart` sets all
    series back to nothing, and a `rollout_phase` changes the identity from there on, whatever `end` is.
    """

    start: float
    end: float = 0.0
    answer: Answer | None = None
    missing: str = ""
    share: float = 1.0
    idle: bool = False
    restart: bool = False
    rollout_phase: str | None = None


@dataclass(slots=True)
class FakeTarget:
    """One target: its name on the server, its identity, what happens to it, and when discovery knows of it.

    With `gpu_errors` it also exposes what only exporters of GPUs count, which no page of our instruments has.
    """

    name: str
    identity: Identity
    seed: int
    incidents: tuple[Incident, ...] = ()
    known: tuple[tuple[float, float], ...] = ((0.0, 1e9),)
    gpu_errors: bool = False
    _series: dict[str, float] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _random: random.Random = field(init=False)
    _previous: float = -1.0

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def failure(self, elapsed: float) -> Answer | None:
        """How the scrape at this moment fails; None when it succeeds."""
        with self._lock:
            for incident in self._active(elapsed):
                if incident.answer and self._random.random() < incident.share:
                    return incident.answer
        return None

    def exposition(self, elapsed: float) -> str:
        """The text of a scrape, after one step of the walk."""
        with self._lock:
            self._begin_incidents(elapsed)
            active = self._active(elapsed)
            self._step(idle=any(incident.idle for incident in active))
            shown = list(self._series.items())
            for incident in active:
                if incident.missing:
                    shown = [
                        (series, value) for series, value in shown
                        if not (fnmatch(_name(series), incident.missing) and self._random.random() < incident.share)
                    ]  # fmt: skip
            return "".join(f"{series} {format_value(value)}\n" for series, value in shown)

    def is_known(self, elapsed: float) -> bool:
        """Whether discovery has this target now."""
        return any(start <= elapsed < end for start, end in self.known)

    def _active(self, elapsed: float) -> list[Incident]:
        return [incident for incident in self.incidents if incident.start <= elapsed < incident.end]

    def _begin_incidents(self, elapsed: float) -> None:
        begun = [incident for incident in self.incidents if self._previous < incident.start <= elapsed]
        for incident in begun:
            if incident.restart:
                self._series.clear()
            if incident.rollout_phase is not None:
                self.identity = replace(self.identity, rollout_phase=incident.rollout_phase)
                self._series.clear()
        self._previous = elapsed

    def _step(self, *, idle: bool) -> None:
        for metric, several in _walked(self.identity, gpu_errors=self.gpu_errors):
            if metric.name == REPLICA_START_TIME:
                # Of one process, as long as it lives.
                self._series.setdefault(several[0].series[0], _FIRST_START + self._previous)
            else:
                for walked in several:
                    _WALKS[metric.kind](self, metric, walked, 0 if idle else self._random.randrange(6))

    def _walk_counter(self, metric: Metric, walked: _Walked, events: int) -> None:
        # A labelled counter exists from its first event on, and each value of its label is rarer than the one before.
        if metric.labels and self._random.random() > walked.likelihood:
            return
        amount = events * self._random.random() if metric.unit == "seconds" else events * self._random.randrange(1, 200)
        self._add(walked.series[0], amount)

    def _walk_histogram(self, metric: Metric, walked: _Walked, observations: int) -> None:
        assert metric.edges is not None
        low = self._random.randrange(max(1, len(metric.edges) // 3))
        likely = metric.edges[low : low + 8]
        values = [self._random.choice(likely) * self._random.uniform(0.5, 1.1) for _ in range(observations)]
        if metric.unit in ("tokens", "workers"):
            values = [max(1.0, float(round(value))) for value in values]
        counts = [0] * (len(metric.edges) + 1)
        for value in values:
            counts[bisect_left(metric.edges, value)] += 1
        for series, amount in zip(walked.series, (*accumulate(counts), sum(values), len(values)), strict=True):
            self._add(series, amount)

    def _walk_gauge(self, metric: Metric, walked: _Walked, events: int) -> None:
        value = self._random.random() if metric.unit == "ratio" else self._random.uniform(0, 40) * events
        self._series[walked.series[0]] = float(round(value)) if metric.unit == "replicas" else value

    def _add(self, series: str, amount: float) -> None:
        self._series[series] = self._series.get(series, 0.0) + amount


@dataclass(frozen=True, slots=True)
class _Walked:
    """The series of a metric with one set of labels, as they are written, and how likely these are at all."""

    series: tuple[str, ...]
    likelihood: float


_WALKS: Mapping[str, Callable[[FakeTarget, Metric, _Walked, int], None]] = {
    "counter": FakeTarget._walk_counter,
    "histogram": FakeTarget._walk_histogram,
    "gauge": FakeTarget._walk_gauge,
}


# A past of targets asks for the same few hundred series at each of its scrapes.
@cache
def _walked(identity: Identity, *, gpu_errors: bool) -> tuple[tuple[Metric, tuple[_Walked, ...]], ...]:
    """The metrics of a target with their series, by each set of labels."""
    components = {_ROLE_COMPONENTS.get(identity.role, "engine"), "process"}
    return tuple(
        (metric, tuple(_walked_with(metric, identity, extra) for extra in _label_sets(metric)))
        for metric in METRICS.values()
        if metric.name == REPLICA_START_TIME
        or (metric.component in components and (gpu_errors or metric.name not in _OF_EXPORTERS))
    )


def _walked_with(metric: Metric, identity: Identity, extra: Mapping[str, str]) -> _Walked:
    labels = make_labels({**dict(identity.labels()), **extra})
    likelihood = min((0.5 ** _values(metric, label).index(value) for label, value in extra.items()), default=1.0)
    if metric.edges is None:
        return _Walked((format_series(metric.name, labels),), likelihood)
    buckets = (
        format_series(f"{metric.name}_bucket", make_labels((*labels, ("le", format_edge(edge)))))
        for edge in (*metric.edges, float("inf"))
    )
    ends = (format_series(f"{metric.name}_{end}", labels) for end in ("sum", "count"))
    return _Walked((*buckets, *ends), likelihood)


def _label_sets(metric: Metric) -> list[dict[str, str]]:
    sets: list[dict[str, str]] = [{}]
    for label in metric.labels:
        sets = [{**rest, label: value} for rest in sets for value in _values(metric, label)]
    return sets


def _name(series: str) -> str:
    return series.partition("{")[0]


_series_text = cache(format_series)


def _values(metric: Metric, label: str) -> tuple[str, ...]:
    return metric.label_values.get(label) or _OPEN_VALUES.get(label, ("saturated", "stale index"))


def render(samples: Iterable[Sample]) -> str:
    """The samples as Prometheus text, without types, which Prometheus 2 does not need."""
    return "".join(f"{_series_text(name, labels)} {format_value(value)}\n" for name, labels, value in samples)


class FakeTargets:
    """An HTTP server on loopback that answers for all targets, and the discovery file that names those known now."""

    def __init__(self, targets: Sequence[FakeTarget], discovery_file: Path) -> None:
        self._targets = {f"/{target.name}": target for target in targets}
        self._discovery_file = discovery_file
        self._began: float | None = None
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.answer = self._answer
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        self._thread.start()

    def elapsed(self) -> float:
        """Seconds since the first scrape; 0 before it."""
        return 0.0 if self._began is None else time.monotonic() - self._began

    def write_discovery(self) -> None:
        """Write the file for Prometheus' `file_sd`, whole or not at all."""
        known = [path for path, target in self._targets.items() if target.is_known(self.elapsed())]
        address = f"127.0.0.1:{self._server.server_address[1]}"
        groups = [
            {"targets": [address], "labels": {"__metrics_path__": path, "instance": path.removeprefix("/")}}
            for path in known
        ]
        text = json.dumps(groups)
        if not self._discovery_file.exists() or self._discovery_file.read_text(encoding="utf-8") != text:
            fresh = self._discovery_file.with_suffix(".new")
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(self._discovery_file)

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: _Handler) -> None:
        if self._began is None:
            self._began = time.monotonic()
        target = self._targets[handler.path]
        failure = target.failure(self.elapsed())
        if failure == "slow":
            time.sleep(SLOW_SECONDS)
        if failure == "500":
            handler.send_error(500)
        elif failure == "closed":
            handler.connection.shutdown(socket.SHUT_RDWR)
            handler.close_connection = True
        elif failure == "garbage":
            # The bad line comes first: Prometheus 2.42 ends no series of a page it read up to a bad line further down.
            handler.reply("<html>not an exposition</html>\n" + target.exposition(self.elapsed()))
        else:
            handler.reply(target.exposition(self.elapsed()), cut_short=failure == "cut")


@contextmanager
def serving(targets: Sequence[FakeTarget], discovery_file: Path) -> Iterator[FakeTargets]:
    """The targets served for the length of the block."""
    server = FakeTargets(targets, discovery_file)
    try:
        server.write_discovery()
        yield server
    finally:
        server.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    answer: Callable[[_Handler], None]

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a scraper that hung up after its timeout is part of the play."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        self.server.answer(self)

    def reply(self, text: str, *, cut_short: bool = False) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut_short else body)
        self.close_connection = cut_short

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""
