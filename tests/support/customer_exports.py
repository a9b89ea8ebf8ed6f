"""The export to many customers as an operator finds it: their configuration, and a file of cursors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from servescope.contract.identity import Deployment
from servescope.customers.lanes.cursors import Acknowledgement, Cursor, CursorFile, Delivery, Gap, LaneId
from servescope.customers.points.reading import FleetState

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
TOKEN = "the-token-of-a-backend"
QUERY_TOKEN = "token-in-a-query"

DEPLOYMENT = """
[[deployments]]
deployment_id = "{id}"
model_name = "{model}"
inference_stack = "{stack}"
environment = "{environment}"
fixed_labels = true
targets = [{{ url = "http://127.0.0.1:9/metrics" }}]
"""
CUSTOMER = """
[[customers]]
name = "{name}"
metrics = ["engine"]
figures = ["latency"]
labels = ["deployment_id", "outcome"]
replica_key_file = ""

[[customers.deployments]]
deployment_id = "{id}"
model_name = "{model}"
inference_stack = "{stack}"
environment = "{environment}"

[[customers.push]]
name = "primary"
protocol = "otlp-http"
url = "https://{name}.example:4318/v1/metrics?key={query}"
bearer_token_file = "backend.token"
"""


def write_customers(folder: Path, deployments: Sequence[Deployment]) -> Path:
    """A customer for each deployment, `customer-00` onwards; returns the configuration."""
    named = [
        {"id": each.deployment_id, "model": each.model_name, "stack": each.inference_stack,
         "environment": each.environment}
        for each in deployments
    ]  # fmt: skip
    (folder / "backend.token").write_text(TOKEN, encoding="utf-8")
    collected = "".join(DEPLOYMENT.format(**each) for each in named)
    (folder / "servescope.toml").write_text(collected, encoding="utf-8")
    path = folder / "customers.toml"
    tables = "".join(
        CUSTOMER.format(**each, name=f"customer-{place:02}", query=QUERY_TOKEN) for place, each in enumerate(named)
    )
    path.write_text(f'collector = "servescope.toml"\n{tables}', encoding="utf-8")
    return path


def write_exports(folder: Path, deployments: Sequence[Deployment]) -> list[str]:
    """A customer for each deployment, delivered to until now; returns the words that the console needs for its page."""
    config = write_customers(folder, deployments)
    cursors = write_cursors(folder / "customers.cursors.db", len(deployments), time.time_ns() // 1_000_000)
    return ["--customers", str(config), "--cursors", str(cursors)]


def write_cursors(path: Path, count: int, now_ms: int) -> Path:
    """What was delivered to so many customers in the last six hours.

    Every tenth fails and is late, every ninth caught up after an outage and has a gap, and one has received nothing.
    """
    with CursorFile(path, deliver=True) as cursors:
        for place in range(count):
            lane = LaneId(f"customer-{place:02}", "primary")
            if place == count - 1:
                cursors.set_problem(lane, now_ms - MINUTE_MS, "credentials: 401 Unauthorized")
                continue
            behind_ms = 47 * MINUTE_MS if place % 10 == 3 else MINUTE_MS // 2
            _deliver(cursors, lane, now_ms - behind_ms)
            if place % 10 == 3:
                cursors.set_problem(lane, now_ms - 20_000, "unavailable: 503 Service Unavailable: <b>try</b> later")
            elif place % 9 == 5:
                cursors.add_gap(lane, Gap(now_ms - 40 * MINUTE_MS, now_ms - 25 * MINUTE_MS, "age", 1_200))
                cursors.set_problem(lane, now_ms - 26 * MINUTE_MS, "timeout: no answer within 10 s")
    return path


def _deliver(cursors: CursorFile, lane: LaneId, until_ms: int) -> None:
    """Deliveries of the last six hours, and the cursor at their end."""
    until_ms -= until_ms % MINUTE_MS
    cursors.begin(lane, until_ms - 6 * HOUR_MS)
    hour_ms = (until_ms - 1) // HOUR_MS * HOUR_MS
    for start_ms in range(hour_ms - 5 * HOUR_MS, until_ms, HOUR_MS):
        last_ms = min(start_ms + HOUR_MS - MINUTE_MS, until_ms)
        edges = (last_ms - start_ms) // MINUTE_MS + 1
        delivery = Delivery(start_ms - MINUTE_MS, last_ms, edges, edges * 40, 0, edges)
        cursors.hold(lane, Acknowledgement(Cursor(FleetState(last_ms, {}), "{}"), delivery))
        cursors.write_held(lane)
