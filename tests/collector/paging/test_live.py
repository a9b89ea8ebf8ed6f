"""The collector, replaying what a real Prometheus scraped, finds the states of alerts that this Prometheus found."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest
import yaml

from alerts.options import DEFAULTS
from alerts.recording import recording_group
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.evaluation import is_evaluated_by_collector
from servescope.alerting.rules.promises import objectives_of
from servescope.alerting.rules.promql import alert_promql
from servescope.alerting.rules.records import Alert, SelfMetric, terms
from servescope.collector.collector import Collector
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.objectives import BURN_WINDOWS, ENDED, record_ended
from servescope.contract.samples import Labels, Series, Window, make_labels
from tests.collector.support.replay import replay
from tests.support.answering import Handler, answering
from tests.support.prometheus import Prometheus, Range, running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.proof
SECONDS = 24.0
WINDOW, WINDOW_MS = "5s", 5_000
INTERVAL_MS = 500
# A rule is evaluated at its time, while a scrape of just before may still be on its way into the store.
APART_MS = 120
# No engine: where those report no replicas the collector counts them itself, which no rule of Prometheus does.
IDENTITY = 'model_name="llama",deployment_id="chat",inference_stack="v1",replica="r0",role="router"'
_FIVE_MINUTES = re.compile(r"(\d+)m")

AlertStates = dict[tuple[str, Labels], str]


def _hastened(alert: Alert) -> Alert:
    """One that waits, and is kept, a second for every five minutes."""

    def seconds(duration: str) -> str:
        return _FIVE_MINUTES.sub(lambda found: f"{max(1, int(found[1]) // 5)}s", duration)

    return replace(alert, for_=seconds(alert.for_), keep_firing_for=seconds(alert.keep_firing_for))


HASTENED: Mapping[str, Alert] = MappingProxyType({name: _hastened(alert) for name, alert in ALERTS.items()})
COMPARED = [
    alert
    for alert in HASTENED.values()
    if is_evaluated_by_collector(alert) and not any(isinstance(term, SelfMetric) for term in terms(alert.condition))
]


class Target:
    """One engine, router and autoscaler whose numbers follow the scrapes since `begin`, one for each interval."""

    address: str

    def __init__(self) -> None:
        self._has_begun = False
        self.seconds = 0.0
        self._counted: dict[str, float] = {}

    def answer(self, request: Handler) -> None:
        text = self.page()
        request.reply(200 if text else 500, text, Content_Type="text/plain")

    def begin(self) -> None:
        self._has_begun = True

    def page(self) -> bytes:
        """What a scrape gets now; nothing while the target fails."""
        now = self.seconds
        self.seconds += INTERVAL_MS / 1000 if self._has_begun else 0.0

        def between(start: float, end: float) -> bool:
            return start <= now < end

        if between(10, 10.5) or not self._counted:
            # It starts again, and counts from nothing.
            self._counted = dict.fromkeys(self._counted, 0.0)
        if between(18, 19.6):
            return b""
        levels = {
            'replica_count_by_status{status="active"': 0 if between(13, 16) else 2,
            'replica_count_by_status{status="failed"': 1 if between(3, 5) or between(6, 8) else 0,
            'router_index_state{state="degraded"': 1 if between(4, 9) else 0,
            'autoscaler_desired_scale{x=""': 4 if between(2, 7) or between(11, 12.2) else 2,
            'autoscaler_rounded_desired_scale{x=""': 2,
            'concurrent_requests{x=""': 3,
            'queued_requests{x=""': 0,
        }
        steps = {
            'spec_decode_num_draft_tokens_total{x=""': 100,
            'spec_decode_num_accepted_tokens_total{x=""': 20 if between(4, 9) else 90,
            'kv_cache_eligible_tokens_total{x=""': 1000,
            'kv_cache_predicted_tokens_total{x=""': 900 if between(7, 12) else 550,
            'kv_cache_reused_tokens_total{x=""': 500,
            'kv_cache_best_tokens_total{x=""': 520,
            'router_index_event_gaps_total{x=""': 1 if between(5, 8) else 0,
            'requests_total{outcome="ok"': 50,
            'requests_total{outcome="error"': 9 if between(12, 15) else 0,
            'output_tokens_total{x=""': 0 if between(19, 24) else 500,
            'input_tokens_total{x=""': 0 if between(19, 24) else 800,
        }
        for key, step in steps.items():
            self._counted[key] = self._counted.get(key, 0.0) + step
        return "".join(f"{key},{IDENTITY}}} {value}\n" for key, value in {**levels, **self._counted}.items()).encode()


@pytest.fixture
def target() -> Iterator[Target]:
    """The target, on a free port."""
    found = Target()
    with answering(found.answer) as url:
        found.address = url.removeprefix("http://")
        yield found


def test_alerts_have_the_states_of_a_prometheus_that_evaluates_them(
    prometheus: Path, tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pending, firing, kept firing and resolved at the same evaluations: failing scrapes, a restart."""
    config = {
        "rule_files": [str(tmp_path / "rules.yml")],
        "scrape_configs": [{
            "job_name": "engine", "scrape_interval": f"{INTERVAL_MS}ms", "scrape_timeout": "400ms",
            "static_configs": [{"targets": [target.address]}],
        }],
    }  # fmt: skip
    for number in count():
        _write_rules(tmp_path / "rules.yml", f"alerts {number}")
        with running(prometheus, tmp_path / str(number), config) as server:
            if not _is_apart(server):
                assert number < 20, "scrapes and rules are always at the same instant"
                continue
            target.begin()
            wait_for(lambda: target.seconds >= SECONDS, "the scrapes of the scenario")
            window, theirs = _read(server)
            break

    seen: list[AlertStates] = []

    def see(collector: Collector) -> None:
        names = {alert.name for alert in COMPARED}
        instances = collector.alerts.states.instances()
        seen.append({(each.alert, each.labels): each.state for each in instances
                     if each.resolved_ms is None and each.alert in names})  # fmt: skip

    monkeypatch.setattr("servescope.collector.paging.manager.make_alerts", lambda _: HASTENED)
    replay([window], list(theirs), tmp_path, window_ms=WINDOW_MS, see=see)
    differ = [
        f"at {at_ms - int(window.times[0])} ms: {ours}, in Prometheus {expected}"
        for (at_ms, expected), ours in zip(theirs.items(), seen, strict=True)
        if ours != expected
    ]
    fired = {name for states in theirs.values() for (name, _), state in states.items() if state == "firing"}
    print(f"\n{sum(map(len, theirs.values()))} states at {len(theirs)} evaluations; fired: {', '.join(sorted(fired))}")
    assert not differ, f"{len(differ)} differ:\n" + "\n".join(differ[:12])
    assert len(fired) >= 8


def _write_rules(path: Path, group: str) -> None:
    """All rules in one group, so that an alert sees what was recorded at the very same instant."""
    rules = [*recording_group(WINDOW, "1s")["rules"], *_whole_windows()]
    for alert in COMPARED:
        rule = {"alert": alert.name, "expr": alert_promql(alert, WINDOW), "labels": {"of": "rule"}}
        rule |= {"for": alert.for_} if alert.for_ else {}
        rule |= {"keep_firing_for": alert.keep_firing_for} if alert.keep_firing_for else {}
        rules.append(rule)
    document = {"groups": [{"name": group, "interval": f"{INTERVAL_MS}ms", "rules": rules}]}
    path.write_text(yaml.safe_dump(document), encoding="utf-8")


def _whole_windows() -> Iterator[dict[str, str]]:
    """The objectives over whole windows: of seconds of a past, what is summed over five minutes would show little."""
    windows = dict.fromkeys(window for row in BURN_WINDOWS for window in (row.short, row.long))
    for window in windows:
        for objective in objectives_of().values():
            expression = DEFAULTS.compile(objective.bad, window=window, by=DEPLOYMENT_LABELS)
            yield {"record": objective.record(window), "expr": expression}
        yield {"record": record_ended(window), "expr": DEFAULTS.compile(ENDED, window=window, by=DEPLOYMENT_LABELS)}


def _is_apart(server: Prometheus) -> bool:
    """Whether rules are evaluated at other instants than scrapes begin, which hashes of their names decide."""

    def begun() -> tuple[list[Range], list[Range]] | None:
        now_ms = int(time.time() * 1000)
        ups = server.read_samples('up{job="engine"}', end_ms=now_ms, range_ms=1_900)
        watchdogs = server.read_samples('ALERTS{alertname="ServescopeWatchdog"}', end_ms=now_ms, range_ms=1_900)
        return (ups, watchdogs) if ups and watchdogs else None

    ups, watchdogs = wait_for(begun, "the first scrape and evaluation of Prometheus")
    after = (watchdogs[0].times[-1] - ups[0].times[-1]) % INTERVAL_MS
    return APART_MS <= after <= INTERVAL_MS - APART_MS


def _read(server: Prometheus) -> tuple[Window, dict[int, AlertStates]]:
    """What Prometheus scraped, failed scrapes included, and how its alerts stood at each of its evaluations."""
    now_ms = int(time.time() * 1000)
    everything = server.read_samples('{__name__!=""}', end_ms=now_ms, range_ms=3_600_000)
    (up,) = [found for found in everything if _name(found) == "up"]
    alerts = [found for found in everything if _name(found) == "ALERTS"]
    shown = [
        found for found in everything if dict(found.labels).get("job") == "engine" and not _is_of_scrape(_name(found))
    ]
    times = np.array(up.times, dtype=np.int64)
    values = np.full((len(shown), len(times)), np.nan)
    for row, found in enumerate(shown):
        values[row, np.searchsorted(times, found.times)] = found.values
    series = tuple(Series(_name(found), _without(found.labels, "__name__", "instance", "job")) for found in shown)
    (watchdog,) = [found for found in alerts if dict(found.labels)["alertname"] == "ServescopeWatchdog"]
    # The last one may still be under way.
    theirs: dict[int, AlertStates] = {at_ms: {} for at_ms in watchdog.times[:-1]}
    for found in alerts:
        labels = dict(found.labels)
        key = (labels["alertname"], _without(found.labels, "__name__", "alertname", "alertstate", "of"))
        for at_ms in found.times:
            if at_ms in theirs:
                theirs[at_ms][key] = labels["alertstate"]
    return Window(series, times, values), theirs


def _name(found: Range) -> str:
    return dict(found.labels)["__name__"]


def _is_of_scrape(name: str) -> bool:
    return name == "up" or name.startswith("scrape_")


def _without(labels: Labels, *names: str) -> Labels:
    return make_labels([pair for pair in labels if pair[0] not in names])
