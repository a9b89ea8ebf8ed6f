"""A collector under churning targets for as long as one likes: does anything of it grow?

`python -m tests.soak --minutes 60` runs `servescope collect` on targets that come and go, change their series, restart
and fail, samples the resources of the process, and fails when they grow. `--speed` lets the collector's clock run
faster, so that an hour holds as many scrapes, evaluations and targets as many hours do.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

from servescope.cli import main as servescope
from servescope.collector.collector import Collector
from tests.support.prometheus import free_port
from tests.support.stepped_collector import CONFIGURATION

SETTINGS = """
scrape_interval = "15s"
scrape_timeout = "2s"
evaluation_interval = "15s"
discovery_interval = "5s"
window = "2m"
retention = "6m"
"""
ROOT = Path(__file__).parent.parent
REPORT = ROOT / "docs" / "soak.md"
LAST_RUN = "## The last run"
TARGETS = 40
# Of the collector's clock: how long a target lives, and how often all of them get another environment, which makes
# other deployments of them.
LIFETIME_SECONDS = (60.0, 600.0)
ENVIRONMENT_SECONDS = 600.0
FAULTS = ("500", "closed", "garbage", "cut", "empty", "slow")
FAULTY_SHARE = 0.15
RESTART_SHARE = 0.02
# The first third of a run fills recent scrapes, caches and store. Over the rest each quantity may grow by this share of
# its mean, or by this amount.
BOUNDS: Mapping[str, tuple[float, float]] = {
    "resident memory (MB)": (0.05, 4.0),
    "open files": (0.1, 4.0),
    "threads": (0.1, 3.0),
    "tasks": (0.1, 5.0),
    "series in memory": (0.25, 0.0),
    "store (MB)": (0.15, 1.0),
}


@dataclass(slots=True)
class Life:
    """One target: until when it lives, what it counted, and which series it has now."""

    name: str
    ends: float
    count: float = 0.0
    engines: int = 1


@dataclass
class Herd:
    """The targets that are alive, by name, and what happened to all of them; seconds are of the collector's clock."""

    folder: Path
    speed: float
    random: random.Random = field(default_factory=lambda: random.Random(4))
    alive: dict[str, Life] = field(default_factory=dict)
    happened: Counter[str] = field(default_factory=Counter)
    _began: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> float:
        return (time.monotonic() - self._began) * self.speed

    def churn(self, address: str) -> None:
        """Replace the targets whose life is over by others, and write the list."""
        now = self.now()
        with self._lock:
            for name in [name for name, life in self.alive.items() if life.ends <= now]:
                del self.alive[name]
            while len(self.alive) < TARGETS:
                name = f"r{self.happened['targets']}"
                self.happened["targets"] += 1
                self.alive[name] = Life(name, now + self.random.uniform(*LIFETIME_SECONDS))
            environment = f"e{int(now / ENVIRONMENT_SECONDS)}"
            groups = [
                {
                    "targets": [address],
                    "labels": {"replica": name, "__metrics_path__": f"/{name}", "environment": environment},
                }
                for name in self.alive
            ]
        (self.folder / "fresh").write_text(json.dumps(groups))
        (self.folder / "fresh").replace(self.folder / "targets.json")

    def answer(self, name: str) -> tuple[str, str]:
        """The outcome of a scrape, `ok` or one of `FAULTS`, and the page."""
        with self._lock:
            life = self.alive.get(name)
            if life is None:
                return "500", ""
            fault = self.random.choice(FAULTS) if self.random.random() < FAULTY_SHARE else "ok"
            self.happened[fault] += 1
            if self.random.random() < RESTART_SHARE:
                self.happened["restart"] += 1
                life.count, life.engines = 0.0, self.random.randrange(1, 20)
            life.count += self.random.randrange(100)
            return fault, _page(life, self.random)


def _page(life: Life, chance: random.Random) -> str:
    """Counters, gauges and histograms of some engines, each with its labels."""
    lines = []
    for engine in range(life.engines):
        label = f'deployment_id="x",engine="{life.name}-{engine}"'
        lines += [
            f'requests_total{{{label},outcome="ok"}} {life.count}',
            f"output_tokens_total{{{label}}} {life.count * 9}",
        ]
        lines += [f"queued_requests{{{label}}} {chance.randrange(9)}"]
        for edge in ("0.1", "0.5", "1.0", "+Inf"):
            lines.append(f'time_to_first_token_seconds_bucket{{{label},le="{edge}"}} {life.count}')
        lines.append(f"time_to_first_token_seconds_sum{{{label}}} {life.count * 0.3}")
        lines.append(f"time_to_first_token_seconds_count{{{label}}} {life.count}")
    return "\n".join(lines) + "\n"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    herd: Herd

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a scraper that hung up is part of the play."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        fault, text = self.server.herd.answer(self.path.removeprefix("/"))
        if fault == "slow":
            time.sleep(2.5)
        if fault == "500":
            self.send_error(500)
            return
        body = {"garbage": b"<html>", "empty": b"", "closed": b""}.get(fault, text.encode())
        if fault == "closed":
            self.close_connection = True
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


# --- The run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """What was sampled, each with its time in seconds, and what happened meanwhile."""

    seconds: list[float]
    samples: dict[str, list[float]]
    happened: Mapping[str, int]
    scrapes: float
    evaluations: float
    log: str


def soak(folder: Path, *, seconds: float, speed: float) -> Run:
    """Run a collector in a process of its own for so long, and end it."""
    herd = Herd(folder, speed)
    server = _Server(("127.0.0.1", 0), _Handler)
    server.herd = herd
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    address = f"127.0.0.1:{server.server_address[1]}"
    herd.churn(address)
    port = free_port()
    (folder / "servescope.toml").write_text(CONFIGURATION.format(settings=SETTINGS).replace(":0", f":{port}"))
    with (folder / "collect.log").open("wb") as log:
        command = [sys.executable, "-m", "tests.soak", "--collect", "--speed", str(speed)]
        # The collector runs where its store is, and finds this module all the same.
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path}
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
        try:
            times, samples, page = _watch(process, herd, address, port, seconds)
            process.send_signal(signal.SIGTERM)
            if process.wait(20) != 0:
                raise RuntimeError(f"the collector ended with code {process.returncode}")
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            server.shutdown()
            server.server_close()
            thread.join()
    scrapes = sum(_read_all(page, "servescope_scrapes_total"))
    evaluations = sum(_read_all(page, "servescope_evaluation_duration_seconds_count"))
    return Run(times, samples, herd.happened, scrapes, evaluations, (folder / "collect.log").read_text())


def _watch(
    process: subprocess.Popen[bytes], herd: Herd, address: str, port: int, seconds: float
) -> tuple[list[float], dict[str, list[float]], str]:
    """Churn, and sample as often as makes some hundred samples; the last `/metrics` too."""
    times: list[float] = []
    samples: dict[str, list[float]] = {name: [] for name in BOUNDS}
    _wait_until_ready(process, port)
    page, began = "", time.monotonic()
    every = max(0.2, seconds / 600)
    due = began + 2
    while (now := time.monotonic()) < began + seconds:
        if process.poll() is not None:
            raise RuntimeError(f"the collector ended with code {process.returncode}")
        herd.churn(address)
        if now >= due:
            due = now + every
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
                page = answer.read().decode()
            times.append(now - began)
            for name, value in _sample(process.pid, herd.folder, page).items():
                samples[name].append(value)
        time.sleep(min(0.1, 5 / herd.speed))
    return times, samples, page


def _wait_until_ready(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urlopen(f"http://127.0.0.1:{port}/-/healthy", timeout=20):
                return
        except URLError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def sample_process(pid: int) -> dict[str, float]:
    """Those quantities of `BOUNDS` that any process has."""
    status = Path(f"/proc/{pid}/status").read_text()
    (resident,), (threads,) = re.findall(r"VmRSS:\s+(\d+)", status), re.findall(r"Threads:\s+(\d+)", status)
    return {
        "resident memory (MB)": int(resident) / 1024,
        "open files": len(list(Path(f"/proc/{pid}/fd").iterdir())),
        "threads": int(threads),
    }


def _sample(pid: int, folder: Path, page: str) -> dict[str, float]:
    return {
        **sample_process(pid),
        "tasks": sum(_read_all(page, "servescope_tasks")),
        "series in memory": sum(_read_all(page, "servescope_series")),
        "store (MB)": sum(path.stat().st_size for path in folder.glob("servescope.db*")) / 1e6,
    }


def _read_all(page: str, name: str) -> list[float]:
    return [float(value) for value in re.findall(rf"^{name}(?:\{{[^\n]*\}})? (\S+)$", page, re.MULTILINE)]


# --- The verdict ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trend:
    """One quantity in the last two thirds of a run: its mean, its peak, and the growth of a line through it."""

    name: str
    mean: float
    peak: float
    growth: float
    allowed: float

    @property
    def flat(self) -> bool:
        return self.growth <= self.allowed


def find_trends(seconds: Sequence[float], samples: Mapping[str, Sequence[float]]) -> list[Trend]:
    """The trend of each quantity that was sampled over the last two thirds of the time."""
    trends = []
    for name, (share, amount) in BOUNDS.items():
        if name not in samples:
            continue
        rest = len(seconds) // 3
        times, values = np.array(seconds[rest:]), np.array(samples[name][rest:])
        slope = float(np.polyfit(times, values, 1)[0])
        mean = float(values.mean())
        growth = slope * float(times[-1] - times[0])
        trends.append(Trend(name, mean, float(values.max()), growth, max(share * mean, amount)))
    return trends


def render(run: Run, trends: Sequence[Trend], command: str, *, speed: float) -> str:
    """The report: what happened, and a row per quantity."""
    minutes = (run.seconds[-1] if run.seconds else 0) / 60
    faults = sum(run.happened[name] for name in FAULTS)
    rows = [
        f"| {each.name} | {each.mean:.1f} | {each.peak:.1f} | {each.growth:+.2f} | {each.allowed:.2f} | "
        f"{'flat' if each.flat else '**grows**'} |"
        for each in trends
    ]
    return "\n".join(
        [
            f"`{command}`: {minutes:.0f} minutes, {minutes * speed / 60:.1f} hours by the collector's clock.",
            f"{run.happened['targets']} targets came, {TARGETS} at a time; {run.happened['restart']} restarts, "
            f"{faults} answers that were wrong, late or none; {run.scrapes:.0f} scrapes, "
            f"{run.evaluations:.0f} evaluations.",
            "",
            "| in the last two thirds | mean | peak | growth | allowed | |",
            "|---|---|---|---|---|---|",
            *rows,
        ]
    )


# --- The command ------------------------------------------------------------------------------------------------------


def _collect(speed: float) -> int:
    """`servescope collect` whose clock runs faster; requests take their real time."""
    if speed != 1:
        began = time.time()

        def clock() -> float:
            return began + (time.time() - began) * speed

        def sleep(seconds: float) -> Awaitable[None]:
            return asyncio.sleep(seconds / speed)

        defaults = dict(Collector.__init__.__kwdefaults__ or {})
        Collector.__init__.__kwdefaults__ = {**defaults, "clock": clock, "sleep": sleep}
    return servescope(["collect"])


def main() -> int:
    """0 when all stayed flat."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--speed", type=float, default=10.0, help="of the collector's clock (default: 10)")
    parser.add_argument("--write", action="store_true", help=f"put the report into {REPORT.relative_to(ROOT)}")
    parser.add_argument("--collect", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.collect:
        return _collect(arguments.speed)
    with tempfile.TemporaryDirectory(prefix="servescope-soak-") as folder:
        run = soak(Path(folder), seconds=arguments.minutes * 60, speed=arguments.speed)
    trends = find_trends(run.seconds, run.samples)
    command = f"python -m tests.soak --minutes {arguments.minutes:g} --speed {arguments.speed:g}"
    report = render(run, trends, command, speed=arguments.speed)
    print(report)
    if arguments.write:
        text = REPORT.read_text(encoding="utf-8")
        REPORT.write_text(f"{text[: text.index(LAST_RUN)]}{LAST_RUN}\n\n{report}\n", encoding="utf-8")
    return 0 if all(trend.flat for trend in trends) else 1


if __name__ == "__main__":
    sys.exit(main())
