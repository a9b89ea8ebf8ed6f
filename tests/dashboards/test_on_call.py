"""What somebody on call finds on the dashboards: harm before tuning, the replica, the objective, the runbook."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dashboards.__main__ import render
from dashboards.options import DEFAULTS, make_options
from dashboards.panels.colors import (
    DASHES,
    METRIC_COLORS,
    NEW_COLOR,
    OLD_COLOR,
    PLAIN,
    SERIES_COLORS,
    STATUS_COLORS,
    TUNING_COLORS,
)
from servescope.alerting.rules.links import HEALTH
from servescope.alerting.rules.promises import objectives_of
from servescope.contract.identity import NEW_STACK, OLD_STACK
from servescope.contract.judged import JUDGED
from servescope.contract.metrics import INDEX_STATES, OUTCOMES
from servescope.contract.objectives import BURN_WINDOWS
from tests.support.boards import NAMES, elements, find_panel, panels, read_board

STACK_COLORS = {OLD_STACK: OLD_COLOR, NEW_STACK: NEW_COLOR}

each_board = pytest.mark.parametrize("name", NAMES)


def steps(shown: Any) -> list[tuple[float | None, str]]:
    """The values and colours of a panel's thresholds."""
    return [(step["value"], step["color"]) for step in shown["fieldConfig"]["defaults"]["thresholds"]["steps"]]


@pytest.mark.parametrize("title", ["Requests", "Failed or rejected", "In flight", "Queued"])
def test_harm_requests_and_queue_are_shown_by_replica(title: str) -> None:
    """So that one bad replica among many good ones is found."""
    for target in find_panel("requests", f"{title} by replica")["targets"]:
        assert re.search(r"by \([^)]*\breplica\b", target["expr"])
        assert target["legendFormat"].endswith("{{environment}} {{replica}}")


@each_board
def test_no_graph_draws_every_replica(name: str) -> None:
    """Of two hundred the worst ten of the last hour are drawn, at every moment, and the legend has the worst first."""
    for each in panels(read_board(name)):
        if "by replica" not in each["title"]:
            continue
        for target in each["targets"]:
            rank = re.search(
                r"\) and (topk|bottomk)\(10, (?:max|min)_over_time\(.+\[1h:1m\] @ end\(\)\)\)$", target["expr"]
            )
            assert rank is not None, each["title"]
            assert each["options"]["legend"]["sortDesc"] == (rank[1] == "topk"), each["title"]
        legend = each["options"]["legend"]
        assert (legend["displayMode"], legend["placement"]) == ("table", "right"), each["title"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != HEALTH])
def test_a_deployment_is_named_with_its_environment(name: str) -> None:
    """Two environments have deployments of the same name: they are two lines with two names."""
    for each in panels(read_board(name)):
        if each["type"] == "table":
            continue
        for target in each["targets"]:
            if "{{deployment_id}}" in target["legendFormat"]:
                assert "{{environment}}" in target["legendFormat"], each["title"]


@each_board
def test_numbers_of_thresholds_can_be_read(name: str) -> None:
    """The next number above 0 is not the least that a computer knows."""
    for each in panels(read_board(name)):
        assert all(value is None or value == 0 or abs(value) >= 1e-9 for value, _ in steps(each)), each["title"]


@pytest.mark.parametrize("objective", ["time_to_first_token", "time_per_output_token"])
def test_a_latency_has_the_line_of_its_objective(objective: str) -> None:
    """From the edge on it is not green, and the axis reaches beyond it."""
    promised = objectives_of()[objective]
    shown = find_panel("requests", promised.title)

    assert steps(shown) == [(None, "green"), *((pytest.approx(edge), "orange") for edge in promised.edges_seconds)]
    assert shown["fieldConfig"]["defaults"]["custom"]["thresholdsStyle"]["mode"] == "dashed"
    assert shown["fieldConfig"]["defaults"]["custom"]["axisSoftMax"] > promised.edges_seconds[0]


@pytest.mark.parametrize(
    ("board", "title"),
    [
        ("fleet", "Harm in total"),
        ("fleet", "Failed or rejected"),
        ("requests", "Failed or rejected"),
        ("requests", "Failed or rejected by replica"),
    ],
)
def test_harm_has_the_colours_of_its_objective(board: str, title: str) -> None:
    """Rejections are harm like errors: beyond the budget it is orange, and red where it burns fast enough to page."""
    budget = objectives_of()["requests"].budget
    shown = find_panel(board, title)

    assert steps(shown) == [
        (None, "green"), (pytest.approx(budget), "orange"), (pytest.approx(BURN_WINDOWS[0].factor * budget), "red"),
    ]  # fmt: skip
    assert all(re.search(r"error\|rejected|requests_objective_bad", each["expr"]) for each in shown["targets"])


def test_the_overview_tells_harm_before_tuning() -> None:
    """The table has the most harmed deployment first; tuning is never red, and nothing is green."""
    shown = find_panel("fleet", "Deployments")
    names, sort = (
        next(step["options"] for step in shown["transformations"] if step["id"] == kind)
        for kind in ("organize", "sortBy")
    )
    colors = {
        override["matcher"]["options"]: {step["color"] for step in each["value"]["steps"]}
        for override in shown["fieldConfig"]["overrides"]
        for each in override["properties"]
        if each["id"] == "thresholds"
    }

    assert names["renameByName"][sort["sort"][0]["field"]] == "Failed or rejected"
    assert sort["sort"][0]["desc"] is True
    assert {title for title, used in colors.items() if STATUS_COLORS["critical"] in used} == {"Failed or rejected"}
    assert not any("green" in used for used in colors.values())
    assert {"Time to first token, p95", "Time per output token, p95", "Speculation rate"} <= colors.keys()


def _overrides(title: str) -> dict[str, Any]:
    shown = find_panel("fleet", "Firing alerts")
    (found,) = [each for each in shown["fieldConfig"]["overrides"] if each["matcher"]["options"] == title]
    return {each["id"]: each["value"] for each in found["properties"]}


def test_firing_alerts_are_coloured_by_severity_and_sorted() -> None:
    """The worst first, each with the time since which it holds."""
    shown = find_panel("fleet", "Firing alerts")
    sorts = [step["options"]["sort"] for step in shown["transformations"] if step["id"] == "sortBy"]
    (mapping,) = _overrides("Severity")["mappings"]

    assert {number: (each["text"], each["color"]) for number, each in mapping["options"].items()}["3"] == (
        "critical", "red",
    )  # fmt: skip
    assert {each["text"] for each in mapping["options"].values()} == {"critical", "warning", "info"}
    # Of two steps the second decides, and leaves the order of the first among equals.
    assert sorts == [[{"field": "Value #B", "desc": True}], [{"field": "Value #A", "desc": True}]]
    assert _overrides("Since")["unit"] == "dateTimeAsIsoNoDateIfToday"


def test_a_firing_alert_leads_to_its_runbook() -> None:
    """To the address that the rule's annotation has, in the console or wherever the options say."""
    (link,) = _overrides("Alert")["links"]

    assert link["url"] == "http://localhost:8501/alerts?alert=${__value.raw}"
    books = render(make_options({"runbooks": "https://books.example/llm/"}, origin="a test"))["fleet.json"]
    assert '"https://books.example/llm/${__value.raw}.md"' in books
    assert DEFAULTS.runbook_url("ServescopeTargetDown") == "http://localhost:8501/alerts?alert=ServescopeTargetDown"


def test_the_state_of_an_index_is_a_lane_for_each_deployment() -> None:
    """Not a line between 0 and 100 % for each of its states."""
    shown = find_panel("cache", "Index state")
    (mapping,) = shown["fieldConfig"]["defaults"]["mappings"]

    assert shown["type"] == "state-timeline"
    assert [(each["text"], each["color"]) for _, each in sorted(mapping["options"].items())] == [
        ("exact", "green"), ("recovering", "yellow"), ("degraded", "orange"),
    ]  # fmt: skip
    assert len(shown["targets"]) == 1


def test_verdicts_are_lanes_and_each_metric_is_a_row() -> None:
    """One lane for a plan, one for each metric, and the interval and margin of each metric now."""
    for title, legend in (("Verdict", "{{plan}}"), ("Metrics by verdict", "{{plan}} {{metric}}")):
        shown = find_panel("cutover", title)
        assert (shown["type"], shown["targets"][0]["legendFormat"]) == ("state-timeline", legend)
    (names,) = [
        step["options"]["renameByName"].values()
        for step in find_panel("cutover", "Metrics of the cutover")["transformations"]
        if step["id"] == "organize"
    ]
    assert {"Metric", "Verdict", "v2 / v1", "Interval from", "Interval to", "Margin", "Information"} <= {*names}


@pytest.mark.parametrize(
    ("title", "change"),
    [
        ("Failed requests by stack", "* 1.0 + 0.01"),
        ("Time to first token by stack, p95", "* 1.2 + 0.0"),
        ("Time per output token by stack, p95", "* 1.2 + 0.0"),
        ("Tokens per second per request by stack", "* 0.8 + 0.0"),
    ],
)
def test_a_cutover_shows_where_the_new_stack_is_worse(title: str, change: str) -> None:
    """A dashed line at what the alerts on a cutover compare with: the old stack's value and the margin."""
    shown = find_panel("cutover", title)
    (limit,) = [each["expr"] for each in shown["targets"] if each["legendFormat"] == "v1 limit"]

    assert limit.endswith(change)
    assert limit.count('inference_stack="v1"') == limit.count('inference_stack=~"$stack"')
    assert any(each["matcher"]["options"] == "/(^| )limit$/" for each in shown["fieldConfig"]["overrides"])


def test_every_condition_of_a_scale_down_alert_is_shown() -> None:
    """Fewer replicas, a lower hit rate and enough prompts: what is missing is seen at a glance."""
    shown = find_panel("cache", "Scale down loses cache")

    assert [each["legendFormat"].partition("}} ")[2].rpartition("}} ")[2] for each in shown["targets"]] == [
        "fewer replicas than before", "hit rate dropped", "enough prompts",
    ]  # fmt: skip


@each_board
def test_annotations_are_quieter_than_data(name: str) -> None:
    """Translucent, marks of a moment rather than bands, and alerts that page nobody are switched off."""
    for annotation in read_board(name)["annotations"]["list"]:
        if "target" not in annotation:
            continue
        *_, alpha = map(float, re.findall(r"[\d.]+", annotation["iconColor"]))
        assert alpha <= 0.6, annotation["name"]
        assert "$__rate_interval" in annotation["target"]["expr"], annotation["name"]
        if 'severity=~"warning|info"' in annotation["target"]["expr"]:
            assert not annotation["enable"]


@each_board
def test_every_line_of_panels_is_full(name: str) -> None:
    """No panel is alone beside an empty two thirds."""
    board = read_board(name)
    for row in (board, *[each for each in board["panels"] if each.get("collapsed")]):
        widths: dict[int, int] = {}
        for each in row["panels"]:
            widths[each["gridPos"]["y"]] = widths.get(each["gridPos"]["y"], 0) + each["gridPos"]["w"]

        assert set(widths.values()) == {24}


def test_deployments_have_colours_of_their_own_and_in_a_cutover_their_stack_s() -> None:
    """On every graph by deployment; what has neither has shades of a colour that no stack and no state has."""
    for name in NAMES:
        for each in panels(read_board(name)):
            if each["type"] != "timeseries":
                continue
            color = each["fieldConfig"]["defaults"]["color"]
            by_deployment = any("{{deployment_id}}" in target["legendFormat"] for target in each["targets"])
            if by_deployment and name != "cutover":
                assert color == {"mode": "palette-classic-by-name"}, each["title"]
                continue
            assert color == {"mode": "shades", "fixedColor": PLAIN}, each["title"]
            if name == "cutover" and any("{{inference_stack}}" in each["legendFormat"] for each in each["targets"]):
                found = {
                    over["matcher"]["options"]: found["value"]["fixedColor"]
                    for over in each["fieldConfig"]["overrides"]
                    for found in over["properties"]
                    if found["id"] == "color"
                }
                assert {f"/(^| ){stack}( |$)/": color for stack, color in STACK_COLORS.items()}.items() <= found.items()
    assert not {*STACK_COLORS.values(), PLAIN} & {
        *STATUS_COLORS.values(), *TUNING_COLORS.values(), *(SERIES_COLORS[each] for each in (*OUTCOMES, *INDEX_STATES)),
    }  # fmt: skip


def test_groups_of_rules_are_named_without_the_path_of_their_file() -> None:
    """Where Prometheus keeps the file is not what is to be compared, and would fill the legend."""
    shown = find_panel(HEALTH, "Rule evaluation time")

    assert shown["transformations"] == [{"id": "renameByRegex", "options": {"regex": r"/\S*;/", "renamePattern": ""}}]
    assert re.sub(r"\S*;", "", "127.0.0.1:9090 /etc/rules/alerting.yml;servescope-alerts") == (
        "127.0.0.1:9090 servescope-alerts"
    )  # fmt: skip


def _looks(shown: Any, identifier: str) -> dict[str, Any]:
    """What overrides say of a property, by the ending of the names that they are for."""
    return {
        over["matcher"]["options"].removeprefix("/(^| )").removesuffix("$/"): found["value"]
        for over in shown["fieldConfig"]["overrides"]
        for found in over["properties"]
        if found["id"] == identifier
    }


@pytest.mark.parametrize("title", ["Ratio of each metric", "Information"])
def test_every_judged_metric_looks_different(title: str) -> None:
    """By its colour or its dashes; none has the colour of a stack or of a state."""
    shown = find_panel("cutover", title)
    colors, dashes = _looks(shown, "color"), _looks(shown, "custom.lineStyle")
    looks = {(colors[name]["fixedColor"], str(dashes.get(name))) for name in JUDGED}

    assert len(looks) == len(JUDGED)
    assert len({*METRIC_COLORS.values()}) >= 4
    assert not {*METRIC_COLORS.values()} & {*STACK_COLORS.values(), *STATUS_COLORS.values(), *TUNING_COLORS.values()}


@pytest.mark.parametrize(
    ("board", "title", "words"),
    [
        ("requests", "Time to first token", {"p50", "p99"}),
        ("requests", "Requests: bad share", {"1h", "6h", "1d", "3d"}),
        ("phases", "In flight by role", {"prefill"}),
        ("phases", "Tokens in flight by phase", {"prefill"}),
        ("speculation", "Drafted and accepted", {"drafted"}),
        ("speculation", "Accepted by draft position", {"position 1", "position 2"}),
        ("requests", "Queued by replica", set()),
    ],
)  # fmt: skip
def test_what_shares_the_hue_of_a_stack_has_dashes(board: str, title: str, words: set[str]) -> None:
    """Two phases, two windows or two percentiles are not distinguished by a shade alone."""
    found = _looks(find_panel(board, title), "custom.lineStyle").keys()

    assert words <= found <= {*DASHES}
    assert bool(words) == bool(found)


@pytest.mark.slow
def test_stacks_have_the_names_that_the_rules_have() -> None:
    """Colours, comparisons and words are of the old and the new stack of [alerts], whatever they are called."""
    names = {"old_stack": "vllm-0.32", "new_stack": "trt/llm"}
    boards = render(make_options({"alerts": names}, origin="a test"))
    shown = elements(json.loads(boards["cutover.json"]))
    (queued,) = [each for each in shown if each["title"] == "Queued by stack"]

    assert {text: each["fixedColor"] for text, each in _stack_colors(queued).items()} == {
        r"/(^| )vllm-0\.32( |$)/": OLD_COLOR, r"/(^| )trt\/llm( |$)/": NEW_COLOR,
    }  # fmt: skip
    cutover = boards["cutover.json"]
    assert 'inference_stack=\\"vllm-0.32\\"' in cutover
    assert "Share of trt/llm" in cutover
    assert not re.search(r"\bv[12]\b", cutover)


def _stack_colors(shown: Any) -> dict[str, Any]:
    return {
        over["matcher"]["options"]: each["value"]
        for over in shown["fieldConfig"]["overrides"]
        for each in over["properties"]
        if each["id"] == "color" and over["matcher"]["options"].endswith("( |$)/")
    }


@pytest.mark.slow
def test_lines_are_where_the_rules_compare() -> None:
    """A chosen bound and a chosen objective move the lines of the panels with the conditions of the alerts."""
    chosen = {
        "bounds": {"queue_floor": 25.0}, "objectives": {"time_to_first_token": {"seconds": 1.0}},
        "sources": ["vllm"],
    }  # fmt: skip
    boards = render(make_options({"alerts": chosen}, origin="a test"))
    shown = {each["title"]: each for each in elements(json.loads(boards["requests.json"]))}

    assert (25.0, "orange") in steps(shown["Queued"])
    assert steps(shown["Time to first token"]) == [(None, "green"), (pytest.approx(1.0), "orange")]


def test_a_list_of_kinds_shows_those_that_happened() -> None:
    """Of fourteen outcomes of a scrape a legend shows no twelve that are at 0."""
    for title in ("Scrapes by outcome", "API requests refused", "Notifications"):
        (target,) = find_panel(HEALTH, title)["targets"]
        assert re.search(r" and max_over_time\(.+\[1h:1m\] @ end\(\)\) > 0$", target["expr"]), title


@pytest.mark.parametrize("title", ["Target down", "Telemetry stale", "Metrics missing", "Rule evaluation fails"])
def test_a_condition_of_hundreds_of_series_shows_the_worst(title: str) -> None:
    """At most ten lines, with the worst first in the legend; of a target that is up or down, those that were down."""
    shown = find_panel(HEALTH, title)
    (target,) = shown["targets"]

    assert f" and {'bottomk' if title == 'Target down' else 'topk'}(10, " in target["expr"]
    assert shown["options"]["legend"]["displayMode"] == "table"
