"""An eventful hour of an emulated stack in a real Prometheus: a cutover under way, faults, and their alerts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Final

from alerts.__main__ import GENERATED as RULES
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import Active, advance
from servescope.contract.expressions import Vector
from servescope.contract.samples import Labels
from servescope.emulator.deployment.stack import V1, V2, V2_DISAGGREGATED, EmulatedStack
from servescope.emulator.faults.faults import Faults, make_fault
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from tests.dashboards.support.beside_the_emulator import beside_the_emulator
from tests.support.documents import read_yaml
from tests.support.filled_prometheus import EVERY_RULE, RETENTION, START_SECONDS, add_samples, fill, scrape
from tests.support.prometheus import Prometheus, running

WARM_SECONDS: Final = 600
"""What passes before the hour begins, so that no rule looks back to before the first scrape."""

SECONDS: Final = WARM_SECONDS + 3600
END_SECONDS: Final = START_SECONDS + SECONDS

_EVALUATION_SECONDS: Final = 15
_NEW: Final = "chat-v2"
_APPEARS_MINUTE: Final = 5
# Minutes of the hour at which the new deployment gets another share of the new conversations.
_SHARES: Final = {_APPEARS_MINUTE: 0.10, 15: 0.25, 35: 0.45}
# What is wrong from which minute of the hour to which, and where.
_FAULTS: Final = (
    ("draft-misaligned", 0.5, _NEW, 10, 33),
    ("cache-churn", 0.1, "agents-v2", 20, 36),
    ("error-burst", 0.05, "search-v1", 30, 36),
    ("router-losing-events", 0.2, _NEW, 40, 46),
    ("traffic-surge", 2.0, "", 44, 52),
)


def make_stack() -> EmulatedStack:
    """A v1 from which a v2 takes over, a v2 in phases, and a v1 without speculation, and what befalls them."""
    search = replace(
        V1, identity=replace(V1.identity, deployment_id="search-v1"), engine=replace(V1.engine, speculation=None)
    )
    agents = replace(V2_DISAGGREGATED, identity=replace(V2.identity, deployment_id="agents-v2", rollout_phase="stable"))
    stack = EmulatedStack.of(
        [(V1, 0.6), (V2, 0.0), (agents, 0.2), (search, 0.2)], traffic=GeneratedTraffic(Mix(abort_share=0.03))
    )
    for minute, share in _SHARES.items():
        stack.clock.schedule(_second(minute), partial(stack.traffic.split.set_share, _NEW, share))
    Faults(
        stack,
        [
            make_fault(kind, intensity, deployment=place, start_seconds=_second(first), end_seconds=_second(last))
            for kind, intensity, place, first, last in _FAULTS
        ],
    )
    return stack


@contextmanager
def serving_hour(prometheus: Path, promtool: Path, folder: Path, *options: str) -> Iterator[Prometheus]:
    """A Prometheus with more command-line options where given, over the hour, its recorded figures and its alerts."""
    scraped = scrape(make_stack(), SECONDS, {_NEW: _second(_APPEARS_MINUTE)})
    fill(
        prometheus, promtool, folder, chain(map(_began_before, scraped), beside_the_emulator(SECONDS, _second)),
        seconds=SECONDS, times=EVERY_RULE,
    )  # fmt: skip
    with running(prometheus, folder, {}, options=RETENTION) as server:
        alerts = list(_alerts(server))
    add_samples(promtool, folder, alerts)
    with running(prometheus, folder, {}, options=(*RETENTION, *options)) as server:
        yield server


def _began_before(page: bytes) -> bytes:
    """A page whose processes began when the hour did, and not when it is emulated."""
    return _BEGAN.sub(rb"\1 %d" % START_SECONDS, page)


_BEGAN = re.compile(rb"(?m)^(replica_start_time_seconds\{[^}]*\}) [^ \n]+")


def _second(minute: int) -> int:
    return WARM_SECONDS + 60 * minute


def _alerts(server: Prometheus) -> Iterator[bytes]:
    """Prometheus' own series of alerts, as its rules would have written them; only those of a deployment are shown."""
    groups = read_yaml((RULES / "alerting.rules.yml").read_text(encoding="utf-8"))["groups"]
    for rule in (rule for group in groups for rule in group["rules"]):
        for labels, active, at_seconds in _states(server, rule):
            state = "pending" if active.fired_ms is None else "firing"
            shown = {**dict(labels), **rule["labels"], "alertname": rule["alert"], "alertstate": state}
            text = ",".join(f'{label}="{value}"' for label, value in shown.items())
            yield f"ALERTS{{{text}}} 1 {at_seconds}\n".encode()
            since = ",".join(f'{label}="{value}"' for label, value in shown.items() if label != "alertstate")
            yield f"ALERTS_FOR_STATE{{{since}}} {active.since_ms // 1000} {at_seconds}\n".encode()


def _states(server: Prometheus, rule: dict[str, str]) -> Iterator[tuple[Labels, Active, int]]:
    """What is pending or firing of a rule at every evaluation."""
    alert, states = ALERTS[rule["alert"]], dict[Labels, Active]()
    held: dict[int, Vector] = {}
    lines = server.query_range(
        rule["expr"], start_ms=START_SECONDS * 1000, end_ms=END_SECONDS * 1000, step_ms=_EVALUATION_SECONDS * 1000
    )
    for line in lines:
        labels = tuple(pair for pair in line.labels if pair[0] != "__name__")
        if "deployment_id" in dict(labels):
            for time_ms, value in zip(line.times, line.values, strict=True):
                held.setdefault(time_ms, {})[labels] = value
    for at_seconds in range(START_SECONDS, END_SECONDS + 1, _EVALUATION_SECONDS):
        states = advance(alert, states, held.get(at_seconds * 1000, {}), at_seconds * 1000)
        for labels, active in states.items():
            yield labels, active, at_seconds
