"""Every query of every dashboard is executed by a real Prometheus over an emulated stack, and answers as declared."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dashboards.__main__ import BOARDS
from dashboards.options import DEFAULTS
from dashboards.panels.panels import LIMIT, Panel
from dashboards.panels.queries import ALERTS, HISTOGRAMS, compile_expression, compile_figure
from servescope.alerting.alerts import ALERTS as ALERTS_BY_NAME
from servescope.alerting.rules.links import CUTOVER, OF_MONITORING, causes_of, panel_title
from servescope.contract.bounds import PROMPT_TRAFFIC
from servescope.contract.expressions import Quantile
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.objectives import OBJECTIVES
from servescope.contract.own_metrics import COVERAGE_SERIES
from tests.support.boards import NAMES, expressions, panels, read_board, substitute, variable_queries
from tests.support.filled_prometheus import END_MS, PLAIN, SECONDS, SINCE_SECONDS, UNEVEN, holding, make_samples
from tests.support.prometheus import Prometheus

pytestmark = pytest.mark.slow

DECLARED = {
    (board.name, panel.title): panel
    for board in (make(DEFAULTS) for make in BOARDS)
    for row in board.rows
    for panel in row.panels
}

# What ten healthy minutes of the emulated stack do not have.
NEVER_HERE = {

    "CPU", "Memory", "Routing decisions without the index", "Cache events dropped", "Up but not serving",
    "Autoscaler inactive", "GPU errors", "Last GPU error",
}  # fmt: skip

WHILE_IT_HOLDS = {"Scale down loses cache"}
"""Panels of conditions, each of which is shown while it holds."""

OF_DEPLOYMENTS = [name for name in NAMES if name not in OF_MONITORING]
each_board = pytest.mark.parametrize("name", OF_DEPLOYMENTS)

# Of a deployment that neither speculates, nor keeps an index of caches, nor scales on tokens, nor has phases.
OFF_WHEN_PLAIN = {
    "Speculation rate now", "Speculation rate", "Accepted by draft position", "Drafted and accepted",
    "Mean acceptance length", "Time at the replica limit", "Hit rate by replica", "Hit rate spread",
    "Speculation rate by replica", "Hit rate skew", "Routing efficiency", "Best possible hit rate", "Index state",
    "Cache event gaps", "Routing decision time", "Queued at the router", "Index recoveries", "Desired scale, sent",
    "Desired scale, raw",
    "Desired scale, after policy", "Healthy workers, average", "Tokens in flight", "Tokens in flight, average",
    "Requests in flight, average", "Router index degraded", "Autoscaler frozen",
    *(panel_title(each) for each in causes_of(ALERTS_BY_NAME["ServescopeNewStackWorse"]).values()),
}  # fmt: skip


@pytest.fixture(scope="module", params=["prometheus", pytest.param("prometheus_3", marks=pytest.mark.proof)])
def filled(
    request: pytest.FixtureRequest, promtool: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    """Prometheus 2, and 3 where it can be had, over the emulated stack."""
    binary: Path = request.getfixturevalue(request.param)
    with holding(binary, promtool, tmp_path_factory.mktemp("filled"), make_samples()) as server:
        yield server


def ask(server: Prometheus, expression: str) -> list[Any]:
    """What Prometheus finds at the end of the data; an error or a warning is a failure."""
    answer = server.answer("/api/v1/query", query=expression, time=str(END_MS / 1000))
    assert answer["status"] == "success", f"{expression}: {answer}"
    assert not answer.get("warnings"), f"{expression}: {answer['warnings']}"
    assert not answer.get("infos"), f"{expression}: {answer['infos']}"
    found: list[Any] = answer["data"]["result"]
    assert all(element["value"][1] not in ("NaN", "+Inf", "-Inf") for element in found), expression
    return found


def is_silent(expression: str) -> bool:
    """Whether a query finds nothing in these data: of native histograms, or of what was before the data begin.

    Nor is there an objective between tokens, since the emulated engines are held to the time per output token, and
    nothing is recorded of targets.
    """
    never = (
        f"${HISTOGRAMS} * -",
        OBJECTIVES["inter_token_latency"].record(""),
        COVERAGE_SERIES,
        "servescope_targets{",
    )
    return any(each in expression for each in never) or looks_beyond(expression)


def looks_beyond(expression: str) -> bool:
    """Whether a query asks for what was before the data begin."""
    return any(
        {"m": 60, "h": 3600}[unit] * int(number) >= SECONDS
        for number, unit in re.findall(r"offset (\d+)([mh])", expression)
    )


@each_board
def test_every_panel_shows_the_emulated_stack(filled: Prometheus, name: str) -> None:
    """No query fails, warns or is empty, but those of what ten healthy minutes do not have."""
    for panel in panels(read_board(name)):
        for target in panel["targets"]:
            found = ask(filled, substitute(target["expr"]))
            if panel["title"] in WHILE_IT_HOLDS:
                continue
            absent = panel["title"] in NEVER_HERE or is_silent(target["expr"])
            assert bool(found) != absent, f"{panel['title']}: {target['expr']}"


@each_board
def test_every_panel_draws_a_line(filled: Prometheus, name: str) -> None:
    """A graph's query gives several points when it is asked for over a range, as Grafana asks."""
    for panel in panels(read_board(name)):
        for target in panel["targets"]:
            if target["instant"] or panel["title"] in {*NEVER_HERE, *WHILE_IT_HOLDS} or is_silent(target["expr"]):
                continue
            lines = filled.query_range(
                substitute(target["expr"]), start_ms=END_MS - 240_000, end_ms=END_MS, step_ms=15_000
            )
            assert max(len(line.times) for line in lines) > 10, panel["title"]


@each_board
def test_no_data_means_what_is_declared(filled: Prometheus, name: str) -> None:
    """Where a feature is off its panels are empty, with no false zero; a panel that must never be empty is not."""
    for panel in panels(read_board(name)):
        declared: Panel = DECLARED[name, panel["title"]]
        if panel["title"] in {*NEVER_HERE, *WHILE_IT_HOLDS, "Deployments"}:
            continue
        for target in panel["targets"]:
            found = ask(filled, substitute(target["expr"], deployment=PLAIN))
            if target["legendFormat"].endswith(f" {LIMIT}") or is_silent(target["expr"]):
                # What an alert compares with, as another stack's latency: not the panel's own.
                continue
            desired = target["legendFormat"].endswith(("desired", "min", "max"))
            off = name == "phases" or panel["title"] in OFF_WHEN_PLAIN or desired
            assert bool(found) != off, f"{panel['title']}: {found}"
            assert found or declared.no_data.absence != "broken", panel["title"]


@each_board
def test_every_annotation_is_executed(filled: Prometheus, name: str) -> None:
    """Deployments that appear, phases and firing alerts are found; nothing appears in the last five minutes."""
    found = {
        annotation["name"]: ask(filled, substitute(annotation["target"]["expr"]))
        for annotation in read_board(name)["annotations"]["list"]
        if "target" in annotation
    }

    assert found.keys() == {
        "Deployment appears", "Rollout phase begins", "Critical alert fires", "Other alert fires",
        "Desired scale changes", "Configuration reloaded",
        *(("Verdict", "Stage begins") if name == CUTOVER else ()),
    }  # fmt: skip
    assert not found.get("Verdict")
    assert not found.get("Stage begins")
    assert not found["Deployment appears"]
    assert not found["Rollout phase begins"]
    assert _named(found["Critical alert fires"]) == {"ServescopeCollectorDown"}
    assert _named(found["Other alert fires"]) == {"SpeculationRateLow", "ServescopeTrafficSplitNotAsConfigured"}


def test_alerts_of_no_single_deployment_fire_on_the_overview(filled: Prometheus) -> None:
    """Those of a model and of the monitoring too, whichever deployment is chosen; not other programs' alerts."""
    (panel,) = [panel for panel in panels(read_board("fleet")) if panel["title"] == "Firing alerts"]
    firing, since = panel["targets"]

    def fires(**chosen: str) -> set[str]:
        found = ask(filled, substitute(firing["expr"], **chosen))
        began = ask(filled, substitute(since["expr"], **chosen))
        assert {each["value"][1] for each in began} == {f"{1000 * SINCE_SECONDS}"}
        assert _named(began) == _named(found)
        return _named(found)

    wider = {"ServescopeTrafficSplitNotAsConfigured", "ServescopeCollectorDown"}
    assert fires() == {"SpeculationRateLow", *wider}
    assert fires(deployment="chat-v1") == {"SpeculationRateLow", *wider}
    assert fires(deployment="(chat-v2|plain)") == wider
    assert fires(model="another") == {"ServescopeCollectorDown"}


def _named(found: list[Any]) -> set[str]:
    return {each["metric"]["alertname"] for each in found}


def test_a_firing_alert_leads_to_its_panel_and_the_worst_is_told(filled: Prometheus) -> None:
    """The path of the panel that shows the condition, with the deployment where there is one; and a severity's rank."""
    (panel,) = [panel for panel in panels(read_board("fleet")) if panel["title"] == "Firing alerts"]

    found = {
        each["metric"]["alertname"]: (each["metric"].get("panel", ""), float(each["value"][1]))
        for each in ask(filled, substitute(panel["targets"][0]["expr"]))
    }

    for name, (path, _) in found.items():
        if path:
            board, number = re.fullmatch(r"servescope-(\w+)\?viewPanel=panel-(\d+)", path).groups()  # type: ignore[union-attr]
            (shown,) = [each["title"] for each in panels(read_board(board)) if each["id"] == int(number)]
            assert shown == panel_title(ALERTS_BY_NAME[name])
    assert found["SpeculationRateLow"] == ("", 2.0)
    assert found["ServescopeCollectorDown"][1] == 3.0
    assert [name for name, (path, _) in found.items() if path] == [name for name in found if name in ALERTS_BY_NAME]


def test_marks_are_not_lost_when_a_week_is_on_the_screen() -> None:
    """What begins is looked for over a stretch that grows with Grafana's step, which nothing in the file fixes."""
    for name in NAMES:
        for annotation in read_board(name)["annotations"]["list"]:
            if "target" in annotation:
                assert "$__rate_interval" in annotation["target"]["expr"], annotation["name"]
                assert "interval" not in annotation["target"]


@each_board
def test_every_variable_offers_values(filled: Prometheus, name: str) -> None:
    """Each is asked as Grafana asks; the choice of one narrows those after it."""
    for variable, query in variable_queries(read_board(name)):
        match, label = re.fullmatch(r"label_values\((.+), (\w+)\)", query).groups()  # type: ignore[union-attr]
        times = {"start": str(END_MS / 1000 - 300), "end": str(END_MS / 1000)}
        everything, narrowed = (
            filled.answer(f"/api/v1/label/{label}/values", **{"match[]": substitute(match, **chosen)}, **times)
            for chosen in ({}, {"stack": "v1"})
        )
        assert everything["status"] == narrowed["status"] == "success"
        assert not everything.get("warnings")
        assert everything["data"], variable
        if variable == "deployment":
            assert everything["data"] == ["chat-v1", "chat-v2", "chat-v2-phases", "plain"]
            assert narrowed["data"] == ["chat-v1", "plain"]


@pytest.mark.parametrize(
    "figure", [figure for figure in FIGURES.values() if figure.band], ids=lambda figure: figure.name
)
def test_recorded_and_raw_figures_agree(filled: Prometheus, figure: Any) -> None:
    """A panel over the recording rule shows what the same expression over the raw series gives."""
    recorded = compile_figure(figure.name, DEFAULTS)
    raw = substitute(compile_figure(figure.name, replace(DEFAULTS, figures="raw")), __rate_interval="5m")
    moments = {each["value"][1] for each in ask(filled, substitute(f"timestamp({recorded})"))}

    (moment,) = moments
    assert _by_deployment(ask(filled, substitute(recorded))) == pytest.approx(
        _by_deployment(filled.answer("/api/v1/query", query=raw, time=moment)["data"]["result"])
    )


@pytest.mark.parametrize("histogram", RECORDED_HISTOGRAMS)
def test_percentiles_of_recorded_buckets_are_those_of_the_raw_ones(filled: Prometheus, histogram: str) -> None:
    """Over all deployments together, which no percentile of each could give, and of each stack."""
    (moment,) = {each["value"][1] for each in ask(filled, f"max(timestamp({record_buckets(histogram)}))")}
    for by in ((), ("inference_stack",)):
        shown = substitute(compile_expression(Quantile(0.95, histogram), DEFAULTS, by=by))
        raw = compile_expression(Quantile(0.95, histogram), replace(DEFAULTS, figures="raw"), by=by)
        expected = filled.answer("/api/v1/query", query=substitute(raw, __rate_interval="5m"), time=moment)
        assert record_buckets(histogram) in shown
        assert expected["data"]["result"]
        assert _by_stack(ask(filled, shown)) == pytest.approx(_by_stack(expected["data"]["result"]))


def _by_stack(found: list[Any]) -> dict[str, float]:
    return {each["metric"].get("inference_stack", ""): float(each["value"][1]) for each in found}


def _by_deployment(found: list[Any]) -> dict[str, float]:
    return {each["metric"]["deployment_id"]: float(each["value"][1]) for each in found}


def test_the_numbers_are_those_the_stack_counted(filled: Prometheus) -> None:
    """The overview's headline of harmed requests equals the engines' own counts, by plain arithmetic."""
    (panel,) = [panel for panel in panels(read_board("fleet")) if panel["title"] == "Harm in total"]

    (shown,) = ask(filled, substitute(panel["targets"][0]["expr"], __rate_interval="5m"))
    now, before = (_outcomes(ask(filled, expression)) for expression in ("requests_total", "requests_total offset 5m"))
    ended = {outcome: now[outcome] - before[outcome] for outcome in now}

    assert ended["ok"] > 500
    assert float(shown["value"][1]) == pytest.approx(
        (ended["error"] + ended["rejected"]) / sum(ended.values()), abs=0.005
    )


def test_replicas_apart_are_weighted_with_their_traffic(filled: Prometheus) -> None:
    """The spread is the weighted standard deviation of the replicas' hit rates, by plain arithmetic."""
    enough = [(reused / eligible, eligible) for reused, eligible in UNEVEN.values() if eligible >= PROMPT_TRAFFIC.value]
    total = sum(weight for _, weight in enough)
    mean = sum(share * weight for share, weight in enough) / total
    spread = math.sqrt(sum(weight * (share - mean) ** 2 for share, weight in enough) / total)
    (panel,) = [panel for panel in panels(read_board("cache")) if panel["title"] == "Hit rate spread"]

    shown = _by_deployment(ask(filled, substitute(panel["targets"][0]["expr"])))

    assert spread == pytest.approx(0.12)
    # The others have one router each, which reports on all their replicas.
    assert shown == {"uneven": pytest.approx(spread)}
    (panel,) = [panel for panel in panels(read_board("cache")) if panel["title"] == "Hit rate by replica"]
    found = ask(filled, substitute(panel["targets"][0]["expr"]))
    assert {(each["metric"]["deployment_id"], each["metric"]["replica"]) for each in found} == {
        ("uneven", "r0"), ("uneven", "r1"),
    }  # fmt: skip


def test_a_draft_brings_one_token_and_those_accepted(filled: Prometheus) -> None:
    """The mean acceptance length by plain arithmetic: of drafts as long as there are positions."""
    (panel,) = [panel for panel in panels(read_board("speculation")) if panel["title"] == "Mean acceptance length"]

    shown = _by_deployment(ask(filled, substitute(panel["targets"][0]["expr"])))
    shares = _by_deployment(ask(filled, substitute(compile_figure("speculation_rate", DEFAULTS))))
    positions: dict[str, set[str]] = defaultdict(set)
    for each in ask(filled, "spec_decode_num_accepted_tokens_per_pos_total"):
        positions[each["metric"]["deployment_id"]].add(each["metric"]["position"])

    assert shown
    assert shown == pytest.approx({name: 1 + share * len(positions[name]) for name, share in shares.items()})


def _outcomes(found: list[Any]) -> dict[str, float]:
    counts: dict[str, float] = defaultdict(float)
    for each in found:
        counts[each["metric"]["outcome"]] += float(each["value"][1])
    return counts


def test_the_data_hold_a_firing_alert(filled: Prometheus) -> None:
    """So that what shows alerts is not empty for want of them."""
    assert {each["metric"]["alertstate"] for each in ask(filled, ALERTS)} == {"firing"}


def test_expressions_are_read_from_every_dashboard() -> None:
    """The tests above look at what is committed, all of it."""
    assert all(list(expressions(read_board(name))) for name in NAMES)
