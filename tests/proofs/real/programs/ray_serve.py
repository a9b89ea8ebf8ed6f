"""Ray Serve with a small deployment of two replicas, in a network namespace of its own."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from servescope.sources.parse import parse_exposition
from tests.proofs.real.claims import ABSENT, Ledger, Range, exactly
from tests.proofs.real.client import Counts, send_all
from tests.proofs.real.engines import START_SECONDS, Engine, Target
from tests.proofs.real.environments import RAY, RAY_VERSION, ensure_environment
from tests.proofs.real.processes import pick_ports, read, running, wait_until
from tests.proofs.real.programs.network import own_network
from tests.proofs.real.programs.program import Program, Running
from tests.proofs.real.traffic import COMPLETIONS, Job

REPLICAS = 2
OF_CLIENTS = (400, 404, 422)
REPLACED_SECONDS = 120.0
REFRESH_SECONDS = 12.0
"""Processes report to the agent every ten seconds."""

LAST_WORDS = Job("dying", COMPLETIONS, b'{"model": "tiny", "prompt": "die", "max_tokens": 0}')


@contextmanager
def run(environments: Path, logs: Path) -> Iterator[Running]:
    """The deployment and all of Ray's processes, ready."""
    environment = ensure_environment(environments.resolve(), RAY)
    port, metrics = pick_ports(2)
    script = Path(__file__).with_name("ray_application.py")
    # The paths of Ray's sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        command = [str(environment / "bin" / "python"), str(script), str(port), str(metrics), folder]
        with running("ray-serve", command, logs, environment={"RAY_USAGE_STATS_ENABLED": "0"}) as started:
            seconds = wait_until(
                lambda: b"\nserving\n" in started.log.read_bytes(),
                "ray-serve", seconds=START_SECONDS, processes=[started],
            )  # fmt: skip
            base = f"http://127.0.0.1:{port}"
            target = Target(f"http://127.0.0.1:{metrics}/metrics", "router", "node-0")
            engine = Engine("ray-serve", RAY_VERSION, base, (target,), seconds, ("ray-serve",))
            yield Running(engine, kill=partial(_kill_a_replica, engine))


def _kill_a_replica(engine: Engine) -> Counts:
    """Ask for what no replica survives, and wait for the one that Ray starts in its place."""
    page = engine.targets[0].url
    known = _healthy(page)
    counts = asyncio.run(send_all(engine.base_url, [LAST_WORDS], concurrency=1))
    wait_until(lambda: len(_healthy(page) - known) == 1, "another replica", seconds=REPLACED_SECONDS)
    return counts


def _healthy(page: str) -> set[str]:
    """The names of the replicas that the page shows as healthy."""
    samples = parse_exposition(read(page) or b"").samples
    return {
        dict(sample.labels)["replica"]
        for sample in samples
        if sample.name == "ray_serve_deployment_replica_healthy" and sample.value
    }


def claim(ledger: Ledger, counts: Counts) -> dict[str, Range]:
    """Answers by status are exact; an answer that begins well counts as one that ends well."""
    begun = len(counts.with_status(200))
    return {
        'requests_total{outcome="ok"}': exactly(
            begun, "began with 200: streams that broke or were left are among them"
        ),
        'requests_total{outcome="client_abort"}': exactly(len(ledger.left_waiting), "left before an answer began"),
        'requests_total{outcome="client_error"}': exactly(len(counts.with_status(*OF_CLIENTS)), "answered 4xx"),
        'requests_total{outcome="rejected"}': exactly(len(ledger.rejected), "answered 503: no room at any replica"),
        'requests_total{outcome="error"}': exactly(len(counts.with_status(500)), "answered 500"),
        "requests_started_total": ABSENT,
        "request_duration_seconds_count": exactly(begun, "one for each that is ok"),
        "request_duration_seconds_sum": ABSENT,
        "concurrent_requests": exactly(0, "all have ended"),
        "queued_requests": exactly(0, "all have ended"),
        'replica_count_by_status{status="active"}': exactly(REPLICAS, "one that died was started again"),
        "autoscaler_rounded_desired_scale": exactly(REPLICAS, "as configured"),
        "input_tokens_total": ABSENT,
        "time_to_first_token_seconds_count": ABSENT,
    }


SHOWN = (
    "ray_serve_num_http", "ray_serve_http_request", "ray_serve_deployment_queued", "ray_serve_num_ongoing",
    "ray_serve_deployment_replica_healthy", "ray_serve_autoscaling_target", "ray_serve_event_loop_monitoring",
    "ray_serve_deployment_error",
)  # fmt: skip
PROGRAMS = (
    Program(
        "ray-serve", run, claim, refresh_seconds=REFRESH_SECONDS, page=f"ray-serve-{RAY_VERSION}-1",
        page_families=SHOWN, network=own_network,
    ),
)  # fmt: skip
