"""A Prometheus as the console's past: the same questions as to a store, the same figures."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import yaml

from alerts.recording import recording_rule
from servescope.collector.figures.derive import Derivation, count_targets, derive_figures
from servescope.collector.scrapes.recent_scrapes import RecentScrapes
from servescope.contract.expressions import Level
from servescope.contract.figures import FIGURES
from servescope.contract.identity import Deployment, Identity
from servescope.contract.own_metrics import FILLED_SERIES
from servescope.contract.samples import Sample, Snapshot, Window, make_labels
from servescope.sources.reader import Reader
from servescope.store.prometheus.client import Prometheus
from servescope.store.prometheus.history import PrometheusHistory
from servescope.store.prometheus.targets import TARGET_UP
from servescope.store.records import FigureTable
from tests.support.console_pages import html
from tests.support.fake_targets import FakeTarget, Incident, render
from tests.support.past import INTERVAL_MS, Scraped, remembering, write_blocks
from tests.support.prometheus import free_port

if TYPE_CHECKING:
    from streamlit.testing.v1 import AppTest

pytestmark = pytest.mark.slow

COUNT = 60
COLLECTED = Deployment("llama-70b", "chat", "v2", "production", "promoting")
BARE = Deployment("llama-70b", "bare", "v2")
RECORDED = Deployment("llama-70b", "recorded", "v2")
_GONE_AT_MS = 45 * INTERVAL_MS


def _fakes(deployment: Deployment, seed: int) -> list[FakeTarget]:
    labels = dict(deployment.labels())
    return [
        FakeTarget("r0", Identity(**labels, replica="r0"), seed, (Incident(300, 301, restart=True),)),
        FakeTarget("r1", Identity(**labels, replica="r1"), seed + 1, (Incident(800, 2_000, answer="500"),)),
        FakeTarget("router", Identity(**labels, replica="x", role="router"), seed + 2),
    ]


@dataclass(frozen=True)
class Past:
    """A Prometheus with three deployments, and their figures as we derive them."""

    url: str
    start_ms: int
    end_ms: int
    derived: Mapping[Deployment, Mapping[int, Derivation]]
    windows: Sequence[Window]

    @property
    def history(self) -> PrometheusHistory:
        """The past as if it were the end of it now."""
        return PrometheusHistory(Prometheus(self.url), clock=lambda: self.end_ms / 1000)


@pytest.fixture(scope="module")
def past(prometheus: Path, promtool: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Past]:
    """A quarter of an hour of a deployment behind two collectors, one without any, and one that has rules alone.

    Pages with targets and samples but no figures are scraped beside the first and the last.
    """
    # Up to now, and on multiples of the steps asked for, so that instants are those of scrapes.
    start_ms = (time.time_ns() // 1_000_000 // INTERVAL_MS - COUNT + 1) * INTERVAL_MS
    scrapes: list[Scraped] = []
    derived: dict[Deployment, dict[int, Derivation]] = {}
    windows: Sequence[Window] = ()
    for number, deployment in enumerate((COLLECTED, BARE, RECORDED)):
        fakes = _fakes(deployment, 10 * number)
        recents = [RecentScrapes(300_000, 10**9) for _ in fakes]
        readers = [Reader(fake.identity) for fake in fakes]
        derived[deployment] = {}
        for time_ms in range(start_ms, start_ms + COUNT * INTERVAL_MS, INTERVAL_MS):
            elapsed = (time_ms - start_ms) / 1000
            texts = [None if fake.failure(elapsed) else fake.exposition(elapsed) for fake in fakes]
            snapshots = [
                None if text is None else reader.read(text.encode()).snapshot
                for reader, text in zip(readers, texts, strict=True)
            ]
            for recent, snapshot in zip(recents, snapshots, strict=True):
                recent.append(time_ms, snapshot)
            counted = count_targets(deployment, [snapshot is not None for snapshot in snapshots[:2]])
            figures = derive_figures(
                [recent.window() for recent in recents], at_ms=time_ms, window_ms=300_000,
                counted=counted if deployment is COLLECTED else (),
            )  # fmt: skip
            derived[deployment][time_ms] = figures
            if deployment is not BARE:
                share = _page(fakes[:1], snapshots[:1], Derivation({}, [], ()))
                scrapes.append(Scraped(time_ms, {"job": "others", "instance": "0:9900"}, share))
            if deployment is COLLECTED:
                page = _page(fakes, snapshots, figures)
                # The first collector ends; the second, which watched the same all along, goes on.
                if time_ms < start_ms + _GONE_AT_MS:
                    scrapes.append(Scraped(time_ms, {"job": "servescope", "instance": "a:9900"}, page))
                scrapes.append(Scraped(time_ms, {"job": "servescope", "instance": "b:9900"}, page))
            elif deployment is BARE:
                scrapes += [
                    Scraped(time_ms, {"job": "engines", "instance": f"{fake.name}:8000"}, text)
                    for fake, text in zip(fakes, texts, strict=True)
                ]
            else:
                scrapes.append(Scraped(time_ms, {}, render(_recorded(figures, deployment))))
        windows = [recent.window() for recent in recents] if deployment is COLLECTED else windows
    folder = tmp_path_factory.mktemp("past")
    write_blocks(scrapes, promtool, folder)
    with remembering(prometheus, folder) as running:
        end_ms = start_ms + (COUNT - 1) * INTERVAL_MS
        yield Past(f"http://127.0.0.1:{running.port}", start_ms, end_ms, derived, windows)


def _page(fakes: Sequence[FakeTarget], snapshots: Sequence[Snapshot | None], figures: Derivation) -> str:
    """What a collector exposes."""
    health = [
        Sample(name, fake.identity.labels(), value)
        for fake, snapshot in zip(fakes, snapshots, strict=True)
        for name, value in (
            (TARGET_UP, float(snapshot is not None)),
            ("servescope_target_samples", float(len(snapshot.series) if snapshot else 0)),
            ("servescope_target_scrape_duration_seconds", 0.25),
        )
    ]
    scraped = [sample for snapshot in snapshots if snapshot for sample in snapshot.samples()]
    labels = make_labels((*fakes[0].identity.deployment().labels(), ("window", "5m")))
    filled = [] if figures.filled is None else [Sample(FILLED_SERIES, labels, figures.filled)]
    return render([*health, *scraped, *figures.counted, *figures.exposed, *filled])


def _recorded(figures: Derivation, deployment: Deployment) -> list[Sample]:
    """The figures as the recording rules name them."""
    samples = []
    for key, value in figures.figures.items():
        name, _, block = key.partition("{")
        label, _, text = block.removesuffix('"}').partition('="')
        labels = make_labels((*deployment.labels(), *([(label, text)] if label else [])))
        samples.append(Sample(str(recording_rule(FIGURES[name], "5m")["record"]), labels, value))
    return samples


def assert_same(table: FigureTable, past: Past, deployment: Deployment, *, gauges: bool = True) -> int:
    """Compare a table with what we derive; returns how many values."""
    compared = 0
    for column, time_ms in enumerate(table.times.tolist()):
        ours = past.derived[deployment][time_ms].figures
        for key, values in table.values.items():
            if key == FILLED_SERIES:
                continue
            figure = FIGURES[key.partition("{")[0]]
            if not gauges and isinstance(figure.expression, Level):
                continue  # the blocks have no stale markers, behind which a gauge would end
            value = float(values[column])
            if value == value or key in ours:
                assert math.isclose(ours[key], value, rel_tol=1e-9, abs_tol=1e-12), (key, time_ms)
                compared += 1
    return compared


def test_deployments_are_those_with_series_from_whomever(past: Past) -> None:
    """Behind a collector, scraped without one, or known by recording rules alone."""
    assert past.history.deployments() == sorted([COLLECTED, BARE, RECORDED])


def test_figures_of_collectors_are_read_as_they_are(past: Past) -> None:
    """At every step the collector's figures, and the sums of the gauges it shows; two collectors count once."""
    table = past.history.read_figures(COLLECTED, past.start_ms, past.end_ms)
    assert table.times.tolist() == list(range(past.start_ms, past.end_ms + 1, INTERVAL_MS))
    assert assert_same(table, past, COLLECTED, gauges=False) > 1_000
    queued = table.values["concurrent_requests"]
    ours = [past.derived[COLLECTED][time_ms].figures["concurrent_requests"] for time_ms in table.times.tolist()]
    assert queued[:50].tolist() == pytest.approx(ours[:50])


def test_figures_without_a_collector_are_computed_from_the_samples(past: Past) -> None:
    """Where our instruments were scraped without one, the figures' PromQL gives them."""
    table = past.history.read_figures(BARE, past.start_ms, past.end_ms)
    assert assert_same(table, past, BARE, gauges=False) > 1_000


def test_recorded_figures_are_taken_where_there_is_nothing_else(past: Past) -> None:
    """The recording rules' names are figures as well."""
    table = past.history.read_figures(RECORDED, past.start_ms, past.end_ms)
    assert assert_same(table, past, RECORDED) > 1_000


@pytest.mark.parametrize("deployment", [COLLECTED, BARE, RECORDED], ids=lambda one: one.deployment_id)
def test_a_window_that_is_filling_is_known(past: Past, deployment: Deployment) -> None:
    """From whomever the figures are: how much of the window there was in the first five minutes, then nothing of it."""
    table = past.history.read_figures(deployment, past.start_ms, past.end_ms)
    filled = dict(zip((table.times - past.start_ms).tolist(), table.values[FILLED_SERIES].tolist(), strict=True))
    assert {each: value for each, value in filled.items() if each < 285_000} == {
        each: pytest.approx(each / 300_000) for each in range(0, 285_000, INTERVAL_MS)
    }
    assert all(math.isnan(value) for each, value in filled.items() if each >= 285_000)
    assert past.derived[deployment][past.start_ms + 60_000].filled == pytest.approx(0.2)
    assert FILLED_SERIES not in past.history.latest_figures()[deployment][1]


@pytest.mark.parametrize("deployment", [COLLECTED, BARE, RECORDED], ids=lambda one: one.deployment_id)
def test_latest_figures_are_of_now(past: Past, deployment: Deployment) -> None:
    """All deployments at once, each with the time of its samples."""
    time_ms, figures = past.history.latest_figures()[deployment]
    assert time_ms == past.end_ms
    ours = past.derived[deployment][time_ms].figures
    for key, value in figures.items():
        if not isinstance(FIGURES[key.partition("{")[0]].expression, Level):
            assert math.isclose(ours[key], value, rel_tol=1e-9, abs_tol=1e-12), key
    rates = {key for key in ours if not isinstance(FIGURES[key.partition("{")[0]].expression, Level)}
    assert rates <= figures.keys()


def test_named_figures_and_few_points(past: Past) -> None:
    """Only what is asked for, at so many instants; the last is the newest."""
    table = past.history.read_figures(
        COLLECTED, past.start_ms, past.end_ms, names=["request_rate", "no_such"], max_points=7
    )
    assert set(table.values) == {"request_rate", "no_such"}
    assert np.isnan(table.values["no_such"]).all()
    assert len(table.times) <= 8
    assert table.times[-1] == past.end_ms
    assert table.values["request_rate"][-1] == pytest.approx(
        past.derived[COLLECTED][past.end_ms].figures["request_rate"], rel=1e-9
    )


def test_what_is_not_measured_any_more_is_not_drawn_on(past: Past) -> None:
    """Prometheus shows a last sample for five minutes; a history ends where the samples do."""
    later = PrometheusHistory(Prometheus(past.url), clock=lambda: past.end_ms / 1000 + 200)
    for deployment in (COLLECTED, RECORDED):
        table = later.read_figures(deployment, past.start_ms, past.end_ms + 200_000)
        assert table.times[-1] == past.end_ms
        assert later.latest_figures()[deployment][0] == past.end_ms


def test_the_time_there_are_figures_of(past: Past) -> None:
    """To within a minute."""
    held = past.history.time_range()
    assert held is not None
    assert abs(held[0] - past.start_ms) <= 60_000
    assert held[1] == past.end_ms


def test_targets_have_their_health_and_nothing_made_up(past: Past) -> None:
    """From `servescope_target_up`, or `up` without a collector; what a Prometheus does not hold is empty."""
    targets = {(one.identity.deployment_id, one.identity.replica): one for one in past.history.targets()}
    assert {key: target.healthy for key, target in targets.items()} == {
        ("chat", "r0"): True, ("chat", "r1"): False, ("chat", "x"): True,
        ("bare", "r0"): True, ("bare", "r1"): False, ("bare", "x"): True, ("recorded", "r0"): True,
    }  # fmt: skip
    assert all(
        (one.url, one.source, one.versions, one.error, one.coverage) == ("", "", "", None, {})
        for one in targets.values()
    )
    chat = targets["chat", "r0"]
    assert (chat.last_scrape_ms, chat.duration_seconds) == (past.end_ms, 0.25)
    assert chat.samples is not None
    assert chat.samples > 100
    assert targets["chat", "r1"].last_success_ms is None


def test_samples_are_those_a_collector_would_hold(past: Past) -> None:
    """Native series, before any sum, scrape by scrape; for those who judge."""
    names = ["output_tokens_total", "time_to_first_token_seconds"]
    windows = past.history.read_samples(COLLECTED, names, past.start_ms, past.end_ms)
    parts = ("_bucket", "_sum", "_count")
    wanted = {"output_tokens_total", *(f"time_to_first_token_seconds{part}" for part in parts)}
    theirs = {
        (series, time_ms): value
        for window in windows
        for series, row in zip(window.series, window.values.tolist(), strict=True)
        for time_ms, value in zip(window.times.tolist(), row, strict=True)
        if value == value
    }
    ours = {
        (series, time_ms): value
        for window in past.windows
        for series, row in zip(window.series, window.values.tolist(), strict=True)
        for time_ms, value in zip(window.times.tolist(), row, strict=True)
        if value == value and series.name in wanted
    }
    assert theirs == ours


def test_a_page_asks_few_questions(past: Past) -> None:
    """The trends of all deployments, and a table's figures, are one query for each kind of figures."""
    history = past.history
    deployments = history.deployments()
    asked = _count_queries(history)
    for one in deployments:
        history.read_figures(one, past.start_ms, past.end_ms, names=["request_rate"], max_points=60)
    history.latest_figures()
    assert len(asked) <= 9
    for one in deployments:
        history.read_figures(one, past.start_ms, past.end_ms, names=["request_rate"], max_points=60)
    assert len(asked) <= 9


def _count_queries(history: PrometheusHistory) -> list[str]:
    asked: list[str] = []
    client = history.prometheus
    query, query_range = client.query, client.query_range

    def counted(expression: str, *, at_ms: int) -> object:
        asked.append(expression)
        return query(expression, at_ms=at_ms)

    def counted_range(expression: str, *, start_ms: int, end_ms: int, step_ms: int) -> object:
        asked.append(expression)
        return query_range(expression, start_ms=start_ms, end_ms=end_ms, step_ms=step_ms)

    client.query, client.query_range = counted, counted_range  # type: ignore[method-assign, assignment]
    return asked


def test_every_figure_can_be_asked_of_one_deployment(past: Past) -> None:
    """Each figure's PromQL with the deployment's matchers is valid in Prometheus, and returns only that deployment."""
    client = Prometheus(past.url)
    from servescope.store.prometheus.figure_queries import compute_query, matchers

    for figure in FIGURES.values():
        for point in client.query(compute_query(figure, matchers(BARE)), at_ms=past.end_ms):
            assert dict(point.labels)["deployment_id"] == "bare"


def test_a_prometheus_without_the_contract_has_no_deployments(prometheus: Path, tmp_path: Path) -> None:
    """Nothing is an answer, not an error."""
    with remembering(prometheus, tmp_path) as running:
        history = PrometheusHistory(Prometheus(f"http://127.0.0.1:{running.port}"))
        assert history.deployments() == []
        assert history.targets() == []
        assert history.time_range() is None
        assert history.latest_figures() == {}
        assert not len(history.read_figures(COLLECTED, 0, 1_000_000).times)


def test_the_fleet_shows_what_a_prometheus_holds(past: Past, open_on_prometheus: Callable[..., AppTest]) -> None:
    """Every deployment in a row, with the figures of now."""
    shown = html(open_on_prometheus("fleet", past.url))
    rows = {name: row for name in ("chat", "bare", "recorded") for row in shown.split("<tr") if f">{name}<" in row}
    assert rows.keys() == {"chat", "bare", "recorded"}
    from app.elements.display import format_bare

    for deployment in (COLLECTED, RECORDED):
        rate = past.derived[deployment][past.end_ms].figures["request_rate"]
        assert f">{format_bare(rate, 'requests/s')}<" in rows[deployment.deployment_id]


@pytest.mark.parametrize(("name", "parameters"), [
    ("deployment", {"deployment": "chat"}), ("deployment", {"deployment": "bare"}),
    ("compare", {"left": "chat", "right": "bare"}),
])  # fmt: skip
def test_pages_over_time_are_drawn(
    past: Past, open_on_prometheus: Callable[..., AppTest], name: str, parameters: dict[str, str]
) -> None:
    """Charts and numbers, as from a store."""
    page = open_on_prometheus(name, past.url, range="15m", **parameters)
    charts = [*page.get("vega_lite_chart"), *page.get("arrow_vega_lite_chart")]
    assert len(charts) > 5


def test_what_a_prometheus_does_not_hold_is_said(past: Past, open_on_prometheus: Callable[..., AppTest]) -> None:
    """Targets show their health; the page says that a Prometheus does not hold how they are read."""
    page = open_on_prometheus("sources", past.url)
    shown = html(page)
    assert "failing" in shown
    assert "not identified" not in shown
    assert "last success not known" in shown
    assert " samples<" not in next(row for row in shown.split("<tr") if ">bare " in row)
    assert any("does not store a target's address" in caption.value for caption in page.caption)
    target = next(one.target_id for one in past.history.targets())
    coverage = open_on_prometheus("sources", past.url, view="coverage", target=target)
    assert "collector's store" in coverage.info[0].value


def test_an_empty_prometheus_is_reported_with_what_to_scrape(
    prometheus: Path, tmp_path: Path, open_on_prometheus: Callable[..., AppTest]
) -> None:
    """Without series of the contract the page says so, with the text to paste into prometheus.yml."""
    with remembering(prometheus, tmp_path) as running:
        for name in ("fleet", "sources"):
            page = open_on_prometheus(name, f"http://127.0.0.1:{running.port}")
            assert "holds no series of the contract" in page.info[0].value
            assert yaml.safe_load(page.code[0].value)["scrape_configs"][0]["job_name"] == "servescope"


def test_a_prometheus_that_is_away_is_named(open_on_prometheus: Callable[..., AppTest]) -> None:
    """The page shows the URL and the cause, and no traceback."""
    page = open_on_prometheus("fleet", f"http://127.0.0.1:{free_port()}")
    assert "Connection refused" in page.error[0].value
