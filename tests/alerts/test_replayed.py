"""Emulated traffic in a real Prometheus, well, then failing, then none: what rules record and which alerts fire."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from alerts.runbooks import queries_of
from servescope.alerting.alerts import ALERTS
from servescope.alerting.rules.promql import alert_promql
from servescope.alerting.rules.records import SelfMetric, terms
from servescope.contract.figures import FIGURES
from servescope.contract.identity import DEPLOYMENT_LABELS, Identity
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.samples import Labels, Sample, format_series
from servescope.emulator.deployment.stack import V1, V2, EmulatedStack
from servescope.emulator.faces.faces import make_pages
from servescope.emulator.faults.faults import Faults, parse_fault
from servescope.emulator.workload.mixes import Mix
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.sources.reader import Reader
from tests.support.alert_stories import minutes
from tests.support.boards import find_panel, substitute
from tests.support.filled_prometheus import RETENTION, START_SECONDS, fill
from tests.support.prometheus import Prometheus, running
from tests.support.recording_rules import RULES

pytestmark = pytest.mark.slow

SCRAPE_SECONDS = 60
FAILING_MINUTES, IDLE_MINUTES = 12, 15
WARM_MINUTES = 10
"""Until then replicas start and caches fill: alerts are of the start."""
INCIDENT = "error-burst:0.2@chat-v2"
PAGE = "ServescopeRequestsBudgetBurnsFast"
PAGED_WITHIN_MINUTES = 10
DEPLOYMENTS = 2

SHOWN = (
    ("requests", "In flight"), ("requests", "Queued"), ("requests", "Time to first token"),
    ("requests", "Time per output token"), ("requests", "Request duration"), ("requests", "Requests by outcome"),
    ("requests", "Tokens per second per request"), ("requests", "Input tokens"), ("requests", "Output tokens"),
    ("cache", "KV cache in use"), ("cache", "Preemptions"),
)  # fmt: skip
"""Panels that are of no router and no autoscaler."""

_TRAFFIC = GeneratedTraffic(Mix(requests_per_second=1.0))
_OF_THE_DEPLOYMENTS = [
    alert for alert in ALERTS.values() if not any(isinstance(term, SelfMetric) for term in terms(alert.condition))
]
"""Those that read what is replayed; the collector's own series are not."""


@dataclass(frozen=True)
class Replayed:
    """A Prometheus that holds the scrapes of a stack that is well, then fails, then idles."""

    server: Prometheus
    well_minutes: int
    is_of_engines_alone: bool

    @property
    def busy_minutes(self) -> int:
        """Minutes until traffic ends."""
        return self.well_minutes + FAILING_MINUTES

    @property
    def end_ms(self) -> int:
        """The last scrape's time."""
        return (START_SECONDS + (self.busy_minutes + IDLE_MINUTES) * 60) * 1000


# Two hours and a half have every window of every objective but the longest full; of a cutover from one engine to
# another each deployment is read in its engine's names.
@pytest.fixture(
    scope="module",
    params=[
        (25, ()),
        pytest.param((150, ()), marks=pytest.mark.proof),
        pytest.param((25, ("chat-v1=vllm", "chat-v2=sglang")), marks=pytest.mark.proof),
    ],
    ids=["minutes", "hours", "engines"],
)
def filled(
    request: pytest.FixtureRequest, prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, int, bool]:
    """The folder of a Prometheus with the scrapes and what the recording rules make of them; its well minutes, and
    whether engines alone were scraped."""
    folder, (well, faces) = tmp_path_factory.mktemp("replayed"), request.param
    seconds = (well + FAILING_MINUTES + IDLE_MINUTES) * 60
    fill(prometheus, promtool, folder, _scrapes(well, faces), seconds=seconds, interval=f"{SCRAPE_SECONDS}s")
    return folder, well, bool(faces)


@pytest.fixture(scope="module", params=["prometheus", pytest.param("prometheus_3", marks=pytest.mark.proof)])
def replayed(request: pytest.FixtureRequest, filled: tuple[Path, int, bool]) -> Iterator[Replayed]:
    """A Prometheus of each version over it."""
    folder, well, is_of_engines_alone = filled
    with running(request.getfixturevalue(request.param), folder, {}, options=RETENTION) as server:
        yield Replayed(server, well, is_of_engines_alone)


def _scrapes(well_minutes: int, faces: Sequence[str]) -> Iterator[bytes]:
    read = {name for rule in RULES.values() for name in _read_names(rule.expression)}
    read |= {name for alert in ALERTS.values() for name in METRICS if name in alert_promql(alert)}
    # Two in a thousand fail in the emulator by default, which is more than the objective bears.
    plans = [(replace(plan, engine=replace(plan.engine, error_share=0.0)), 0.5) for plan in (V1, V2)]
    stack = EmulatedStack.of(plans, traffic=_TRAFFIC)
    faults, pages = Faults(stack), make_pages(faces, stack.deployments)
    readers: dict[Identity, Reader] = {}
    shown: list[Sample] = []
    busy_minutes = well_minutes + FAILING_MINUTES
    for minute in range(1, busy_minutes + IDLE_MINUTES + 1):
        if minute <= busy_minutes:
            if minute == well_minutes + 1:
                faults.switch_on(parse_fault(INCIDENT))
            stack.clock.run_until(float(minute * 60))
            targets = [target for target in stack.targets() if pages.lists(target)]
            shown = [
                sample
                for target in targets
                for sample in readers.setdefault(target.identity, Reader(target.identity))
                .read(pages.render(target))
                .snapshot.samples()
                if SAMPLE_FAMILIES[sample.name] in read
            ]
        # With no traffic any more, the last page is shown again and again.
        timestamp = START_SECONDS + minute * 60
        lines = (f"{format_series(name, labels)} {value!r} {timestamp}\n" for name, labels, value in shown)
        yield "".join(lines).encode()


def _read_names(expression: object) -> set[str]:
    return {name for name in METRICS if name in repr(expression)}


@dataclass(frozen=True)
class Fired:
    """An alert that fired, of which deployment, and the minute it did."""

    name: str
    labels: Labels
    minute: int


def _firing(replayed: Replayed) -> list[Fired]:
    """Every alert each time that its condition has held for as long as it waits."""
    found = []
    for alert in _OF_THE_DEPLOYMENTS:
        start_ms = START_SECONDS * 1000
        waits_ms = minutes(alert.for_) * 60_000
        expression = alert_promql(alert)
        for series in replayed.server.query_range(
            expression, start_ms=start_ms, end_ms=replayed.end_ms, step_ms=60_000
        ):
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


def test_healthy_traffic_calls_nobody_and_an_incident_does_in_time(replayed: Replayed) -> None:
    """No page and no ticket while all is well; the page for failing requests within ten minutes."""
    # What is shown again and again afterwards has requests in flight that never end.
    fired = [each for each in _firing(replayed) if WARM_MINUTES < each.minute <= replayed.busy_minutes]
    well = [each for each in fired if each.minute <= replayed.well_minutes and ALERTS[each.name].severity != "info"]
    pages = {each.name: each for each in fired if ALERTS[each.name].severity == "critical"}

    assert well == []
    assert pages.keys() == {PAGE}
    assert dict(pages[PAGE].labels)["deployment_id"] == "chat-v2"
    assert pages[PAGE].minute <= replayed.well_minutes + PAGED_WITHIN_MINUTES


def test_boards_show_what_any_engine_reports(replayed: Replayed) -> None:
    """In our own names and in those of two engines, each deployment by itself."""
    at_ms = (START_SECONDS + replayed.busy_minutes * 60) * 1000
    empty = []
    for deployment in ("chat-v1", "chat-v2"):
        chosen = {"deployment": deployment, "__rate_interval": "5m"}
        for board, title in SHOWN:
            queries = [substitute(target["expr"], **chosen) for target in find_panel(board, title)["targets"]]
            if not any(replayed.server.query(query, at_ms=at_ms) for query in queries):
                empty.append((deployment, title))

    assert empty == []


def test_nothing_recorded_is_ever_not_a_number(replayed: Replayed) -> None:
    """Neither under traffic nor without: a NaN would poison every sum it enters."""
    series = replayed.server.query_range(
        '{__name__=~"deployment:.+"}', start_ms=START_SECONDS * 1000, end_ms=replayed.end_ms, step_ms=60_000
    )

    assert {dict(each.labels)["__name__"] for each in series} >= {
        FIGURES[name].record() for name in ("request_rate", "kv_cache_hit_rate", "time_to_first_token_p95")
    }
    assert [each.labels for each in series if not all(math.isfinite(value) for value in each.values)] == []


def test_without_traffic_figures_are_0_or_absent(replayed: Replayed) -> None:
    """Each expression of a rule, evaluated at the end, as the catalog has its figure when idle."""
    for figure in FIGURES.values():
        values = [point.value for point in replayed.server.query(figure.record(), at_ms=replayed.end_ms)]
        if figure.idle == "absent":
            assert values == [], figure.name
        assert all(math.isfinite(value) for value in values), figure.name


def test_a_rules_series_have_the_labels_of_its_level(replayed: Replayed) -> None:
    """Those of a deployment, but for the empty ones, and the figure's own; and no more series than those allow."""
    at_ms = (START_SECONDS + replayed.busy_minutes * 60) * 1000
    known = {"model_name", "deployment_id", "inference_stack", "environment"}
    read = 0
    for rule in RULES.values():
        points = replayed.server.query(rule.name, at_ms=at_ms)
        read += bool(points)
        for point in points:
            labels = {label for label, _ in point.labels} - {"__name__"}
            assert known | set(rule.by) <= labels <= {*DEPLOYMENT_LABELS, *rule.by}, rule.name
        values = {label: {dict(point.labels)[label] for point in points} for label in rule.by}
        assert len(points) <= DEPLOYMENTS * math.prod(map(len, values.values())), rule.name

    assert read > len(RULES) / (3 if replayed.is_of_engines_alone else 2)


def test_every_query_of_every_runbook_is_answered(replayed: Replayed) -> None:
    """On data, without an error, a warning, or a hint that a query means something else than it says."""
    at = str(START_SECONDS + replayed.busy_minutes * 60)
    queries = {query for alert in ALERTS.values() for query in (*queries_of(alert), alert_promql(alert))}

    answers = {query: replayed.server.answer("/api/v1/query", query=query, time=at) for query in sorted(queries)}

    assert {query for query, answer in answers.items() if answer["status"] != "success"} == set()
    remarks = {query: (answer.get("warnings"), answer.get("infos")) for query, answer in answers.items()}
    assert {query: each for query, each in remarks.items() if any(each)} == {}
