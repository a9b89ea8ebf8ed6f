"""Events that the series of a real Prometheus show: alerts, targets that came, went or changed, configured shares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servescope.contract.events import Event
from servescope.contract.identity import Identity
from servescope.contract.samples import Labels, format_series, make_labels
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from tests.support.past import INTERVAL_MS, Scraped, a_day_ago, remembering, write_blocks

pytestmark = pytest.mark.slow

MINUTE_MS = 60_000
R0 = Identity("llama", "chat-v2", "v2", replica="r0")
R1 = Identity("llama", "chat-v2", "v2", replica="r1")
BARE = Identity("llama", "bare", "v1", replica="b")
DOWN = range(20, 30)
"""The minutes in which Prometheus could not scrape the collector."""
# Blocks that promtool made have no stale markers: a series ends five minutes after its last sample.
_LOOKBACK = 5


def _line(name: str, value: float, **labels: str) -> str:
    return f"{format_series(name, make_labels(labels))} {value}\n"


def _info(identity: Identity, version: str) -> str:
    about = {**dict(identity.labels()), "source": "vllm", "version": version, "layer": "engine"}
    return _line("servescope_target_info", 1, **about)


def _page(minute: int) -> str:
    lines = [
        _line("servescope_build_info", 1, version="1"),
        _info(R0, "0.32" if minute < 10 else "0.33"),
        _line(
            "servescope_configured_traffic_ratio", 0.05 if minute < 35 else 0.25,
            model_name="llama", inference_stack="v2",
        ),
        _line("servescope_alerts", 1, alertname="ServescopeWatchdog", alertstate="firing"),
    ]  # fmt: skip
    if 12 <= minute < 40:
        lines.append(_info(R1, "0.33"))
    if 45 <= minute < 50:
        lines.append(_line("servescope_alerts", 2, alertname="RequestErrorsHigh", alertstate="firing"))
    return "".join(lines)


def _rules(minute: int) -> str:
    """What Prometheus writes of the alerts that it evaluates itself."""
    firing = [("ServescopeWatchdog", "none", "")]
    if 15 <= minute < 18:
        firing.append(("EngineKvCacheSaturated", "critical", "chat-v2"))
    if 14 <= minute < 50:
        firing.append(("SomebodysDiskFull", "critical", ""))
    return "".join(
        _line("ALERTS", 1, alertname=name, severity=severity, alertstate="firing", deployment_id=deployment,
              inference_stack="v2" if deployment else "")
        for name, severity, deployment in firing
    )  # fmt: skip


def _scrapes(start_ms: int) -> Iterator[Scraped]:
    for time_ms in range(start_ms, start_ms + 60 * MINUTE_MS, INTERVAL_MS):
        minute = (time_ms - start_ms) // MINUTE_MS
        page = None if minute in DOWN else _page(minute)
        yield Scraped(time_ms, {"job": "servescope", "instance": "a:9900"}, page)
        bare = _line("replica_start_time_seconds", 1.7e9, **dict(BARE.labels())) if minute < 33 else None
        yield Scraped(time_ms, {"job": "engines", "instance": "b:8000"}, bare)
        yield Scraped(time_ms, {"job": "rules"}, _rules(minute))


@pytest.fixture(scope="module")
def events(prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, Event]]:
    """The events of an hour, each with its minute."""
    folder = tmp_path_factory.mktemp("past")
    start_ms = a_day_ago() // MINUTE_MS * MINUTE_MS
    write_blocks(list(_scrapes(start_ms)), promtool, folder)
    with remembering(prometheus, folder) as running:
        history = PrometheusHistory(Prometheus(f"http://127.0.0.1:{running.port}"))
        found = history.read_events(start_ms, start_ms + 60 * MINUTE_MS)
        late = history.read_events(start_ms + 34 * MINUTE_MS, start_ms + 36 * MINUTE_MS)
    assert [event for event in found if start_ms + 34 * MINUTE_MS < event.time_ms <= start_ms + 36 * MINUTE_MS] == late
    return [((event.time_ms - start_ms) // MINUTE_MS, event) for event in found]


def _of(events: list[tuple[int, Event]], kind: str) -> list[tuple[int, Labels, str]]:
    return [(minute, event.labels, event.text) for minute, event in events if event.kind == kind]


def test_alerts_begin_and_end(events: list[tuple[int, Event]]) -> None:
    """Those of a deployment, with their labels; of those that a collector evaluates the name is known."""
    fired, resolved = _of(events, "alert_fired"), _of(events, "alert_resolved")
    assert [(minute, dict(labels)["alertname"]) for minute, labels, _ in fired] == [
        (15, "EngineKvCacheSaturated"), (45, "RequestErrorsHigh"),
    ]  # fmt: skip
    assert dict(fired[0][1])["deployment_id"] == "chat-v2"
    assert fired[0][2] == "EngineKvCacheSaturated fires"
    assert [(minute, text) for minute, _, text in resolved] == [
        (18 + _LOOKBACK, "EngineKvCacheSaturated is resolved"), (50 + _LOOKBACK, "RequestErrorsHigh is resolved"),
    ]  # fmt: skip


def test_targets_come_and_go(events: list[tuple[int, Event]]) -> None:
    """Of a collector and of Prometheus itself; a collector that could not be scraped is no target that went."""
    appeared, gone = _of(events, "target_appeared"), _of(events, "target_gone")
    assert [(minute, text) for minute, _, text in appeared] == [(12, "chat-v2/aggregated/r1 appeared")]
    assert [(minute, text) for minute, _, text in gone] == [
        (33 + _LOOKBACK, "bare/aggregated/b is gone"), (40 + _LOOKBACK, "chat-v2/aggregated/r1 is gone"),
    ]  # fmt: skip
    assert dict(appeared[0][1])["target_id"] == R1.target_id


def test_a_target_changes_its_version(events: list[tuple[int, Event]]) -> None:
    """With the former one."""
    ((minute, event),) = [(minute, event) for minute, event in events if event.kind == "target_changed"]
    assert (minute, event.text) == (10, "chat-v2/aggregated/r0: version 0.32 → 0.33")
    assert event.detail == (("former_version", "0.32"), ("version", "0.33"))
    assert dict(event.labels)["replica"] == "r0"


def test_configured_shares_change(events: list[tuple[int, Event]]) -> None:
    """A share that stays the same over a time without a collector has not changed."""
    ((minute, event),) = [(minute, event) for minute, event in events if event.kind == "traffic_split"]
    assert (minute, event.text) == (35, "configured share of v2: 0.05 → 0.25")
    assert event.detail == (("former_ratio", "0.05"), ("ratio", "0.25"))


def test_what_a_prometheus_does_not_hold_is_said() -> None:
    """Deploys are in a collector's store alone; whether our alerts are evaluated may not be known."""
    remark, problem = PrometheusHistory(Prometheus("http://127.0.0.1:1")).remarks()
    assert "deploys" in remark
    assert "Connection refused" in problem
