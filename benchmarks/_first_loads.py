"""First loads of the console's pages and of a judge on a real Prometheus, beside what that itself needs for them.

Each load is that of a new process, which has asked for nothing yet. It keeps what it asks; the same queries are then
sent by a client that reads the answers and does nothing with them, one after the other, as Prometheus needs that long
for them whoever asks.
"""

from __future__ import annotations

import gc
import http.client
import json
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import wraps
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from benchmarks._scraped_fleet import FORMS, SCRAPE_MS, write_fleet
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.plan.files import preset_metrics
from servescope.cutover.plan.plan import Arm, CutoverPlan, Stage
from servescope.increments.blocks import BLOCK_MS
from servescope.judge.case import freeze_plan, judge_case
from servescope.settings.clock import CLOCK_VARIABLE, EmulatedTime
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.prometheus.options import PROMETHEUS_VARIABLE
from servescope.store.prometheus.steps import AT_ONCE
from tests.support.busy import LOOPS_PER_CORE, keeping_busy
from tests.support.markers import Markers
from tests.support.prometheus import running

PAGE: Final = Path(__file__).parent.parent / "docs" / "history.md"
MARKERS: Final = Markers(
    "<!-- first loads: written by `python -m benchmarks history --past-write`, do not edit -->",
    "<!-- end of first loads -->",
)

_CONSOLE: Final = Path(__file__).parent.parent / "app" / "console.py"
_OPTIONS: Final = ("--web.enable-remote-write-receiver", "--storage.tsdb.retention.time=100y")
_ROUNDS: Final = 3
# Short loads are repeated until all of them took so long, as what else a machine does shows in them most.
_MEASURED_SECONDS, _MOST_ROUNDS = 20.0, 9
_HOUR_MS: Final = 3_600_000
# After the last scrape, when it is settled.
_LATER_MS: Final = 40_000
_LONGEST_SECONDS: Final = 300


class Asked(NamedTuple):
    """One request to the API."""

    path: str
    parameters: tuple[tuple[str, str], ...]
    method: str


@dataclass(frozen=True, slots=True)
class Load:
    """A first load: seconds until it was done, those of them in which the past was read, and what it asked."""

    seconds: float
    reading_seconds: float
    asked: Sequence[Asked]


@dataclass(frozen=True, slots=True)
class Measured:
    """Medians: the seconds of a load, of its reading, and of the same queries sent bare, with the bytes answered."""

    form: str
    read: str
    busy: bool
    requests: int
    answered_bytes: int
    bare_seconds: float
    reading_seconds: float
    seconds: float


def measure(binary: Path, forms: Sequence[str], targets: int, hours: float) -> Iterator[Measured]:
    """Measure each form and each read, on the machine as it is and while loops keep every core busy."""
    for form in forms:
        end_ms = int(time.time() * 1000) // BLOCK_MS * BLOCK_MS
        with (
            tempfile.TemporaryDirectory(prefix="servescope-first-loads-") as name,
            running(binary, Path(name), {}, options=_OPTIONS) as server,
        ):
            start_ms = end_ms - round(hours * _HOUR_MS / SCRAPE_MS) * SCRAPE_MS
            write_fleet(FORMS[form], targets, server.port, start_ms=start_ms, end_ms=end_ms)
            for busy in (False, True):
                with keeping_busy() if busy else nullcontext():
                    for read in _READS:
                        yield _measure(form, read, server.port, end_ms + _LATER_MS, Path(name), busy=busy)


def _measure(form: str, read: str, port: int, now_ms: int, folder: Path, *, busy: bool) -> Measured:
    loads: list[Load] = []
    bare: list[tuple[float, int]] = []
    while len(loads) < _ROUNDS or (
        len(loads) < _MOST_ROUNDS and sum(each.seconds for each in loads) < _MEASURED_SECONDS
    ):
        loads.append(_load(read, port, now_ms, folder))
        bare.append(_send_bare(loads[-1].asked, port))
    return Measured(
        form, read, busy, len(loads[-1].asked), bare[-1][1], statistics.median(seconds for seconds, _ in bare),
        statistics.median(load.reading_seconds for load in loads), statistics.median(load.seconds for load in loads),
    )  # fmt: skip


def _send_bare(asked: Sequence[Asked], port: int) -> tuple[float, int]:
    """Seconds until all answers were read, as they were sent, and their bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LONGEST_SECONDS)
    headers = {"Accept-Encoding": "gzip", "Content-Type": "application/x-www-form-urlencoded"}
    size, started = 0, time.perf_counter()
    for each in asked:
        path, encoded = f"/api/v1/{each.path}", urlencode(each.parameters)
        if each.method == "GET":
            connection.request("GET", f"{path}?{encoded}", headers=headers)
        else:
            connection.request("POST", path, encoded, headers)
        size += len(connection.getresponse().read())
    return time.perf_counter() - started, size


# --- A load, in a process of its own ----------------------------------------------------------------------------------


def _load(read: str, port: int, now_ms: int, folder: Path) -> Load:
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("spawn").Process(target=_load_here, args=(read, port, now_ms, folder, theirs))
    child.start()
    theirs.close()
    try:
        load: Load = ours.recv()
    finally:
        child.join()
    return load


def _load_here(read: str, port: int, now_ms: int, folder: Path, parent: Connection) -> None:
    logging.disable(logging.WARNING)
    url = f"http://127.0.0.1:{port}"
    clock = folder / "clock"
    # The clock stands still until then.
    EmulatedTime(time.time() + 1e6, now_ms / 1000, 1.0).write(clock)
    os.environ |= {CLOCK_VARIABLE: str(clock), PROMETHEUS_VARIABLE: json.dumps({"url": url})}
    recording, stopwatch = _Recording(url), _Stopwatch()
    stopwatch.time_methods(PrometheusHistory)
    begin = _READS[read](PrometheusHistory(recording, clock=lambda: now_ms / 1000), now_ms)
    # What was loaded is no part of what is measured.
    gc.collect()
    started = time.perf_counter()
    begin()
    parent.send(Load(time.perf_counter() - started, stopwatch.seconds, tuple(recording.asked)))


class _Recording(Prometheus):
    """The API, which keeps what it is asked."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.asked: list[Asked] = []

    def _request(self, path: str, parameters: Sequence[tuple[str, str]], method: str) -> tuple[int, bytes]:
        self.asked.append(Asked(path, tuple(parameters), method))
        return super()._request(path, parameters, method)


class _Stopwatch:
    """The seconds spent in the methods of a class, in one thread at a time."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._runs = False

    def time_methods(self, kind: type) -> None:
        """Count the public methods of a class from now on."""
        for name, method in list(vars(kind).items()):
            if callable(method) and not name.startswith("_"):
                setattr(kind, name, self._timed(method))

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def timed(*positional: Any, **named: Any) -> Any:
            if self._runs:
                return method(*positional, **named)
            self._runs, started = True, time.perf_counter()
            try:
                return method(*positional, **named)
            finally:
                self._runs = False
                self.seconds += time.perf_counter() - started

        return timed


def _open_page(name: str) -> Callable[[PrometheusHistory, int], Callable[[], object]]:
    def prepare(past: PrometheusHistory, _: int) -> Callable[[], object]:
        from streamlit.testing.v1 import AppTest

        from app import frame  # noqa: F401  what a page loads is there in a console
        from app.cutovers import comparison, verdicts  # noqa: F401  what a page loads is there in a console
        from app.data import queries

        queries.open_prometheus = lambda *_: past
        page = AppTest.from_file(str(_CONSOLE), default_timeout=_LONGEST_SECONDS)
        page.switch_page(f"views/{name}.py")

        def run() -> None:
            page.run()
            shown = [*page.exception, *page.error]
            if shown:
                raise RuntimeError(f"the page {name!r} shows {shown[0].value}")

        return run

    return prepare


def _judge(past: PrometheusHistory, now_ms: int) -> Callable[[], object]:
    """What `servescope judge run --since 1h` does."""
    v1, v2 = (Arm(stack, ({"deployment_id": f"chat-{stack}"},)) for stack in ("v1", "v2"))
    plan = CutoverPlan("first-load", v1, v2, (Stage(0.5),), preset_metrics())
    since_ms = now_ms - _HOUR_MS

    def run() -> object:
        frozen = freeze_plan(past, plan, since_ms)
        return judge_case(past, frozen, (Decision("start", since_ms, stage=0),), now_ms)

    return run


_READS: Final[Mapping[str, Callable[[PrometheusHistory, int], Callable[[], object]]]] = {
    "the Fleet page": _open_page("fleet"),
    "the Compare page": _open_page("compare"),
    "`servescope judge run --since 1h`": _judge,
}


# --- The tables -------------------------------------------------------------------------------------------------------


def render(found: Sequence[Measured], targets: int, hours: float) -> str:
    """What was measured, a table for each form."""
    cores = os.cpu_count() or 1
    lines = [
        f"Measured on {time.strftime('%Y-%m-%d', time.gmtime())}, on {cores} cores shared with much else: "
        f"{targets} targets in four deployments, {hours:g} hours scraped every {SCRAPE_MS // 1000} s, in a Prometheus "
        "on the same machine.",
        f"A reader asks {AT_ONCE} queries at the same time where none needs the answer of another.",
        f"Busy is the same while {LOOPS_PER_CORE} endless loops keep each core busy.",
        f"All are medians of {_ROUNDS} to {_MOST_ROUNDS} loads.",
    ]
    for form in dict.fromkeys(each.form for each in found):
        lines += ["", f"{_TITLES[form]}:", "", *_table([each for each in found if each.form == form])]
    return "\n".join(lines) + "\n"


_TITLES: Final = {
    "translated": "Scraped through translators, with all rules",
    "collected": "On the page of a collector",
    "bare": "Our instruments, without collector and rules",
}


def _table(found: Sequence[Measured]) -> Iterator[str]:
    yield "| first load of | requests | MB gzipped | Prometheus alone | read | ratio | done |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for each in found:
        name = f"{each.read}, busy" if each.busy else each.read
        yield (
            f"| {name} | {each.requests} | {each.answered_bytes / 1e6:.1f} | {each.bare_seconds:.2f} s "
            f"| {each.reading_seconds:.2f} s | {each.reading_seconds / each.bare_seconds:.2f} | {each.seconds:.2f} s |"
        )
