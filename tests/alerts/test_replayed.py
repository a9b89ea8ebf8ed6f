"""Hours of emulated traffic in a real Prometheus: well, then failing, then none; what the rules record and tell.

Each alert's condition is evaluated over all of it by the minute, as Prometheus does, and fires when it has held for as
long as its `for` says.
"""

from __future__ import annotations

import math
import re
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from alerts.__main__ import GENERATED
from alerts.runbooks import queries_of
from servescope.alerting.alerts import ALERTS
from servescope.alerting.records import Own, condition_promql, terms
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Labels
from servescope.emulator.faults import Faults, parse_fault
from servescope.emulator.stack import V1, V2, EmulatedStack
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.exposition.rendering import render
from tests.alerts.test_recording import RECORDING_FILES, RULES
from tests.support.alert_proofs import minutes
from tests.support.prometheus import Prometheus, running

pytestmark = pytest.mark.slow

START_SECONDS = 1_700_000_000
SCRAPE_SECONDS = 60
WELL_MINUTES, FAILING_MINUTES, IDLE_MINUTES = 150, 20, 15
WARM_MINUTES = 10
"""Until then replicas start and caches fill: what is told then is of the start."""
END_MINUTES = WELL_MINUTES + FAILING_MINUTES + IDLE_MINUTES
INCIDENT = "error-burst:0.2@chat-v2"
PAGE = "ServescopeRequestsBudgetBurnsFast"
PAGED_WITHIN_MINUTES = 10
DEPLOYMENTS = 2

_TRAFFIC = GeneratedTraffic(Mix(requests_per_second=2.0))
_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]*)((?:\{.*\})?) (\S+)$", re.MULTILINE)
_FOREVER = ("--storage.tsdb.retention.time=100y",)
_OF_THE_DEPLOYMENTS = [
    alert for alert in ALERTS.values() if not any(isinstance(term, Own) for term in terms(alert.condition))
]
"""Those that read what is replayed; the collector's own series are not."""


@pytest.fixture(scope="module")
def replayed(prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a Prometheus that holds the scrapes, and what the recording rules make of them."""
    folder = tmp_path_factory.mktemp("replayed")
    text = folder / "scrapes.om"
    text.write_bytes(b"".join((*_scrapes(), b"# EOF\n")))
    _run([str(promtool), "tsdb", "create-blocks-from", "openmetrics", str(text), str(folder / "data")])
    with running(prometheus, folder, {}, options=_FOREVER) as server:
        _run(
            [
                str(promtool), "tsdb", "create-blocks-from", "rules", f"--start={START_SECONDS}",
                f"--end={START_SECONDS + END_MINUTES * 60}", f"--eval-interval={SCRAPE_SECONDS}s",
                f"--output-dir={folder / 'recorded'}", f"--url=http://127.0.0.1:{server.port}",
                *(str(GENERATED / name) for name in RECORDING_FILES),
            ]
        )  # fmt: skip
    for block in (folder / "recorded").iterdir():
        block.rename(folder / "data" / block.name)
    return folder


@pytest.fixture(scope="module", params=["prometheus", "prometheus_3"])
def server(request: pytest.FixtureRequest, replayed: Path) -> Iterator[Prometheus]:
    """A Prometheus of each version over it."""
    with running(request.getfixturevalue(request.param), replayed, {}, options=_FOREVER) as found:
        yield found


def _scrapes() -> Iterator[bytes]:
    read = {name for rule in RULES.values() for name in _read_names(rule.expression)}
    read |= {name for alert in ALERTS.values() for name in METRICS if name in condition_promql(alert.condition)}
    # Two in a thousand fail in the emulator by default, which is more than the objective bears.
    plans = [(replace(plan, engine=replace(plan.engine, error_share=0.0)), 0.5) for plan in (V1, V2)]
    stack = EmulatedStack.of(plans, traffic=_TRAFFIC)
    faults = Faults(stack)
    pages: list[list[tuple[bytes, bytes]]] = []
    for minute in range(1, END_MINUTES + 1):
        if minute <= WELL_MINUTES + FAILING_MINUTES:
            if minute == WELL_MINUTES + 1:
                faults.switch_on(parse_fault(INCIDENT))
            stack.clock.run_until(float(minute * 60))
            pages = [
                [(name + labels, value) for name, labels, value in _SAMPLE.findall(render(target.instruments))
                 if re.sub(r"_(bucket|sum|count)$", "", name.decode()) in read]
                for target in stack.targets()
            ]  # fmt: skip
        # With no traffic any more, the last page is shown again and again.
        timestamp = str(START_SECONDS + minute * 60).encode()
        yield b"".join(b"%s %s %s\n" % (series, value, timestamp) for page in pages for series, value in page)


def _read_names(expression: object) -> set[str]:
    return {name for name in METRICS if name in repr(expression)}


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@dataclass(frozen=True)
class Fired:
    """An alert that fired, of which deployment, and the minute it did."""

    name: str
    labels: Labels
    minute: int


def _firing(server: Prometheus) -> list[Fired]:
    """Every alert each time that its condition has held for as long as it waits."""
    found = []
    for alert in _OF_THE_DEPLOYMENTS:
        start_ms, end_ms = START_SECONDS * 1000, (START_SECONDS + END_MINUTES * 60) * 1000
        waits_ms = minutes(alert.wait) * 60_000
        expression = condition_promql(alert.condition)
        for series in server.query_range(expression, start_ms=start_ms, end_ms=end_ms, step_ms=60_000):
            since, last, is_firing = None, None, False
            for at in series.times:
                if last is None or at - last > 60_000:
                    since, is_firing = at, False
                last = at
                assert since is not None
                if at - since >= waits_ms and not is_firing:
                    found.append(Fired(alert.name, series.labels, (at - start_ms) // 60_000))
                    is_firing = True
    return found


def test_healthy_traffic_calls_nobody_and_an_incident_does_in_time(server: Prometheus) -> None:
    """No page and no ticket in two hours of what is well; the page for failing requests within ten minutes."""
    # What is shown again and again afterwards has requests in flight that never end.
    fired = [each for each in _firing(server) if WARM_MINUTES < each.minute <= WELL_MINUTES + FAILING_MINUTES]
    well = [each for each in fired if each.minute <= WELL_MINUTES and ALERTS[each.name].severity != "info"]
    pages = {each.name: each for each in fired if ALERTS[each.name].severity == "critical"}

    assert well == []
    assert pages.keys() == {PAGE}
    assert dict(pages[PAGE].labels)["deployment_id"] == "chat-v2"
    assert pages[PAGE].minute <= WELL_MINUTES + PAGED_WITHIN_MINUTES


def test_nothing_recorded_is_ever_not_a_number(server: Prometheus) -> None:
    """Neither under traffic nor without: a NaN would poison every sum it enters."""
    end_ms = (START_SECONDS + END_MINUTES * 60) * 1000
    series = server.query_range(
        '{__name__=~"deployment:.+"}', start_ms=START_SECONDS * 1000, end_ms=end_ms, step_ms=60_000
    )

    assert {dict(each.labels)["__name__"] for each in series} >= {
        FIGURES[name].record() for name in ("request_rate", "kv_cache_hit_rate", "time_to_first_token_p95")
    }
    assert [each.labels for each in series if not all(math.isfinite(value) for value in each.values)] == []


def test_without_traffic_figures_are_0_or_absent(server: Prometheus) -> None:
    """Each expression of a rule, evaluated at the end, as the catalog has its figure when idle."""
    end_ms = (START_SECONDS + END_MINUTES * 60) * 1000
    for figure in FIGURES.values():
        values = [point.value for point in server.query(figure.record(), at_ms=end_ms)]
        if figure.idle == "absent":
            assert values == [], figure.name
        assert all(math.isfinite(value) for value in values), figure.name


def test_a_rules_series_have_the_labels_of_its_level(server: Prometheus) -> None:
    """Those of a deployment, but for the empty ones, and the figure's own; and no more series than those allow."""
    at_ms = (START_SECONDS + (WELL_MINUTES + FAILING_MINUTES) * 60) * 1000
    known = {"model_name", "deployment_id", "inference_stack", "environment"}
    read = 0
    for rule in RULES.values():
        points = server.query(rule.name, at_ms=at_ms)
        read += bool(points)
        for point in points:
            labels = {label for label, _ in point.labels} - {"__name__"}
            assert known | set(rule.by) <= labels <= {*DEPLOYMENT_LABELS, *rule.by}, rule.name
        values = {label: {dict(point.labels)[label] for point in points} for label in rule.by}
        assert len(points) <= DEPLOYMENTS * math.prod(map(len, values.values())), rule.name

    assert read > len(RULES) / 2


def test_every_query_of_every_runbook_is_answered(server: Prometheus) -> None:
    """On data, without an error, a warning, or a hint that a query means something else than it says."""
    at = str(START_SECONDS + (WELL_MINUTES + FAILING_MINUTES) * 60)
    queries = {query for alert in ALERTS.values() for query in (*queries_of(alert), condition_promql(alert.condition))}

    answers = {query: server.answer("/api/v1/query", query=query, time=at) for query in sorted(queries)}

    assert {query for query, answer in answers.items() if answer["status"] != "success"} == set()
    told = {query: (answer.get("warnings"), answer.get("infos")) for query, answer in answers.items()}
    assert {query: each for query, each in told.items() if any(each)} == {}
