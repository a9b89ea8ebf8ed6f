"""The committed dashboards are those of the catalog, and sound whatever shows them."""

from __future__ import annotations

import re
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest

from dashboards.__main__ import GENERATED, render
from dashboards.board import stamp
from dashboards.options import DEFAULTS, seconds
from dashboards.panels.colors import NEW_COLOR, OLD_COLOR, SERIES_COLORS, STATUS_COLORS, TUNING_COLORS
from dashboards.panels.layout import COLUMNS
from dashboards.panels.panels import HARM_AXIS, LIMIT
from dashboards.panels.queries import ALERTS, ALERTS_SINCE, PROGRAMS
from servescope.alerting.alerts import ALERTS as ALERTS_BY_NAME
from servescope.alerting.rules.links import CUSTOMERS, HEALTH, OF_MONITORING, VARIABLES, causes_of, panel_title
from servescope.alerting.rules.promql import alert_promql
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.metrics import METRICS, REPLICA_STATUSES, SAMPLE_FAMILIES
from servescope.contract.objectives import BURN_WINDOWS, OBJECTIVES
from servescope.contract.own_metrics import OWN_METRICS, own_family
from tests.support.boards import NAMES, elements, expressions, panels, read_board, selectors, variable_queries

LEGACY = {
    "rows", "__inputs", "gnetId", "hideControls", "sharedCrosshair", "style", "cacheTimeout", "editable", "error",
    "span", "minSpan", "height", "hideTimeOverride", "intervalFactor", "step", "metric",
}  # fmt: skip
TYPES = {"row", "timeseries", "stat", "gauge", "table", "heatmap", "state-timeline"}
RECORDED = {figure.record() for figure in FIGURES.values()} | {
    objective.record(window) for objective in OBJECTIVES.values() for row in BURN_WINDOWS
    for window in (row.short, row.long)
}  # fmt: skip
RECORDED |= {record_buckets(name) for name in RECORDED_HISTOGRAMS}
OF_DEPLOYMENTS = [name for name in NAMES if name not in OF_MONITORING]
LOOKED_BACK = {
    window for alert in ALERTS_BY_NAME.values()
    for window in re.findall(r"\[([^\]]+)\]", alert_promql(alert))
}  # fmt: skip
"""How far alerts look back, which the panels that show them do too."""
VARIABLE_LABELS = {name: label for label, name in VARIABLES.items()}
# Of a promise of thirty days, and of a share of the hour.
LATELY = {"1h:1m"}
"""What the replicas that are drawn are chosen by."""
OVER_TIME = {
    "Error budgets": {"30d:10m", "3d:10m"}, "Time at the replica limit": {"1h:15s"},
    "Requests in total": {"2m:1m"}, "Queued in total": {"2m:1m"},
    "Scale down loses cache": LOOKED_BACK,
}  # fmt: skip
WATCHED_TITLES = {
    panel_title(each) for alert in ALERTS_BY_NAME.values() for each in (alert, *causes_of(alert).values())
}

HARM = {
    "New stack errors more",
    "Failed or rejected",
    "Failed or rejected by replica",
    "Aborted by clients",
    "Failed requests by stack",
}

each_board = pytest.mark.parametrize("name", NAMES)
each_of_deployments = pytest.mark.parametrize("name", OF_DEPLOYMENTS)


def test_there_is_a_file_for_every_dashboard_and_no_other() -> None:
    """Nothing is left of a dashboard that is gone."""
    assert [f"{name}.json" for name in NAMES] == sorted(render())


@each_board
def test_a_dashboard_says_who_wrote_it(name: str) -> None:
    """With the version and the catalog, and that it is not to be edited."""
    board = read_board(name)

    assert board["description"].endswith(stamp())
    assert re.search(r"servescope \d.*, catalog [0-9a-f]{12}\); do not edit\.$", board["description"])
    assert board["editable"] is True


@each_board
def test_every_metric_is_of_the_catalog(name: str) -> None:
    """Queries name contract metrics, what rules record, series about the monitoring, and Prometheus' own alerts."""
    board = read_board(name)
    queries = [*expressions(board), *variable_queries(board)]

    for where, expression in queries:
        for metric, _ in selectors(expression):
            known = (
                metric in SAMPLE_FAMILIES
                or metric in RECORDED
                or metric in (ALERTS, ALERTS_SINCE)
                or own_family(metric) is not None
            )
            assert known, f"{where}: {metric}"


@each_board
def test_a_dashboard_is_of_the_modern_classic_form(name: str) -> None:
    """Schema 41, no key of an older model, no null but the base of thresholds, and no panel type of Angular."""
    board = read_board(name)

    assert board["schemaVersion"] == 41
    assert {panel["type"] for panel in elements(board)} <= TYPES
    assert not LEGACY & (_keys(board) - {"editable"})
    assert not LEGACY & {key for panel in elements(board) for key in _keys(panel)}
    assert _nulls(board) == [path for path in _nulls(board) if path.endswith("steps.0.value")]


def _keys(part: Any) -> set[str]:
    if isinstance(part, list):
        return set().union(*map(_keys, part))
    if not isinstance(part, dict):
        return set()
    # A transformation's keys are names of columns.
    own = {key: value for key, value in part.items() if key != "transformations"}
    return {*own, *set().union(*map(_keys, own.values()))}


def _nulls(part: Any, path: str = "") -> list[str]:
    if part is None:
        return [path]
    parts = part.items() if isinstance(part, dict) else enumerate(part) if isinstance(part, list) else ()
    return [found for key, value in parts for found in _nulls(value, f"{path}.{key}")]


def test_addresses_stay_and_are_unique() -> None:
    """A uid is made of the file's name and short enough; panels have ids of their own in every dashboard."""
    boards = [read_board(name) for name in NAMES]

    assert [board["uid"] for board in boards] == [f"servescope-{name}" for name in NAMES]
    assert all(len(board["uid"]) <= 40 for board in boards)
    for board in boards:
        ids = [panel["id"] for panel in elements(board)]
        assert len(set(ids)) == len(ids), board["uid"]


@each_board
def test_panels_lie_in_the_grid_without_overlap(name: str) -> None:
    """No wider than 24 columns, and none upon another."""
    places = [panel["gridPos"] for panel in read_board(name)["panels"]]

    assert all(place["x"] + place["w"] <= COLUMNS for place in places)
    for one, other in combinations(places, 2):
        apart = (
            one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
            or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        )  # fmt: skip
        assert apart, (one, other)


@each_board
def test_the_data_source_is_chosen_by_a_variable(name: str) -> None:
    """Every panel, query, variable and annotation refers to it as an object; there is no literal uid."""
    board = read_board(name)
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    (variable,) = [each for each in board["templating"]["list"] if each["type"] == "datasource"]

    assert (variable["name"], variable["label"]) == ("datasource", "Data source")
    for panel in panels(board):
        assert panel["datasource"] == chosen
        assert all(target["datasource"] == chosen for target in panel["targets"])
    assert all(each["datasource"] == chosen for each in board["templating"]["list"] if each["type"] == "query")
    assert all(each["datasource"] == chosen for each in board["annotations"]["list"] if not each.get("builtIn"))


@each_of_deployments
def test_variables_chain_and_follow_the_time(name: str) -> None:
    """Each asks for a label of a metric among what those before it choose, again whenever the time changes."""
    board = read_board(name)
    before: list[str] = []
    for variable in board["templating"]["list"]:
        if variable["type"] != "query":
            continue
        query = variable["query"]["query"]
        assert re.fullmatch(r"label_values\([a-z_]+(\{.+\})?, [a-z_]+\)", query)
        assert re.findall(r"\$(\w+)", query) == before
        assert (variable["refresh"], variable["includeAll"], variable["multi"]) == (2, True, True)
        before.append(variable["name"])

    assert before[:4] == ["environment", "model", "stack", "deployment"]


@each_of_deployments
def test_every_selector_is_within_the_scope(name: str) -> None:
    """Environment, model, stack and deployment narrow every query, and no variable is declared in vain."""
    board = read_board(name)
    declared = [variable["name"] for variable in board["templating"]["list"] if variable["type"] == "query"]
    used: set[str] = set()

    for where, expression in expressions(board):
        found = selectors(expression)
        assert found or where.endswith(": Configuration reloaded"), where
        for metric, matchers in found:
            if where.endswith(": Configuration reloaded"):
                continue
            chosen = re.findall(r"\$(\w+)", matchers)
            record = own_family(metric)
            wanted = [name for name in declared[:4] if record is None or VARIABLE_LABELS[name] in record.labels]
            if record is not None and record.program == "judge":
                # It is about both stacks.
                wanted = ["environment", "model"]
            if metric in (ALERTS, ALERTS_SINCE) and 'deployment_id=""' in matchers:
                wanted.remove("deployment")
            assert set(wanted) <= set(chosen), f"{where}: {metric}"
            used |= set(chosen)

    assert used == set(declared)


def test_what_monitors_is_chosen_by_its_address() -> None:
    """Each series of a collector, a Prometheus or an Alertmanager is narrowed by the variable of its program."""
    board = read_board(HEALTH)
    variables = dict(variable_queries(board))
    used: set[str] = set()

    assert list(variables) == ["collector", "translator", "deployment", "prometheus", "alertmanager"]
    assert all("$" not in query for query in variables.values())
    for where, expression in expressions(board):
        for metric, matchers in selectors(expression):
            if metric in (ALERTS, ALERTS_SINCE):
                continue
            record = own_family(metric)
            if record is None:
                assert 'deployment_id=~"$deployment"' in matchers, f"{where}: {metric}"
                continue
            program = PROGRAMS.get(record.program)
            wanted = [f'instance=~"${program.name}"'] if program else []
            wanted += ['deployment_id=~"$deployment"'] if "deployment_id" in record.labels else []
            assert all(each in matchers for each in wanted), f"{where}: {metric}"
            used |= set(re.findall(r"\$(\w+)", matchers))
    assert used == set(variables)


def test_what_is_exported_is_chosen_by_customer_and_destination() -> None:
    """Every series that has these labels is narrowed by them."""
    board = read_board(CUSTOMERS)
    variables = dict(variable_queries(board))

    assert list(variables) == ["customer", "destination"]
    for where, expression in expressions(board):
        for metric, matchers in selectors(expression):
            record = own_family(metric)
            labels = () if record is None else record.labels
            wanted = [f'{label}=~"${label}"' for label in variables if label in labels]
            assert metric == ALERTS or all(each in matchers for each in wanted), f"{where}: {metric}"


@each_board
def test_every_panel_is_explained(name: str) -> None:
    """What it means, what is normal, what to do first, and what its emptiness means."""
    for panel in panels(read_board(name)):
        assert panel["title"]
        meaning, *rest = panel["description"].split("\n\n")
        assert meaning.endswith("."), panel["title"]
        headings = [re.match(r"\*\*(.+?):\*\* \S", part) for part in rest]
        assert [found and found[1] for found in headings] == ["Normal", "What to check", "No data"], panel["title"]
        assert panel["fieldConfig"]["defaults"]["noValue"].startswith("No data: ")


@each_board
def test_shares_are_shown_in_percent_from_0_to_1(name: str) -> None:
    """Their axis reaches from 0 to 1 at least, but where a flat line would be all that is seen; nothing is clamped."""
    for panel in panels(read_board(name)):
        defaults = panel["fieldConfig"]["defaults"]
        if panel["type"] == "timeseries" and defaults["unit"] == "percentunit":
            low, high = defaults["custom"]["axisSoftMin"], defaults["custom"]["axisSoftMax"]
            judged = [step["value"] for step in defaults["thresholds"]["steps"] if step["value"] is not None]
            if panel["title"] in HARM:
                assert (low, high) == HARM_AXIS, panel["title"]
            elif panel["title"] == "Ratio of each metric":
                assert (low, high) == (0.5, 1.5)
            elif panel["title"].endswith(": attainment"):
                assert (low, high) == (pytest.approx(1 - 10 * (1 - judged[0])), 1), panel["title"]
            else:
                near_zero = low == 0 and judged and max(judged) < 0.5 and high == 2 * max(judged)
                assert (low, high) == (0, 1) or low < 0 < high or near_zero, panel["title"]
            assert "max" not in defaults


@each_board
def test_thresholds_have_a_base_and_ascend(name: str) -> None:
    """The base is null, nothing of Grafana's own 80 remains, and red means critical alone."""
    for panel in panels(read_board(name)):
        for thresholds in _thresholds(panel):
            values = [step["value"] for step in thresholds["steps"]]
            assert values[0] is None
            assert all(low < high for low, high in pairwise(values[1:]))
            assert 80 not in values
            known = {*STATUS_COLORS.values(), *TUNING_COLORS.values(), "text"}
            assert {step["color"] for step in thresholds["steps"]} <= known


def _thresholds(part: Any) -> list[Any]:
    if isinstance(part, list):
        return [found for each in part for found in _thresholds(each)]
    if not isinstance(part, dict):
        return []
    if "steps" in part and "mode" in part and isinstance(part["steps"], list):
        return [part]
    return [found for each in part.values() for found in _thresholds(each)]


@each_board
def test_rates_are_of_the_screen_and_come_before_sums(name: str) -> None:
    """`$__rate_interval` in every rate but an alert's own, no counter raw, no rate of a sum; divisible by time."""
    counters = {metric.name for metric in METRICS.values() if metric.kind == "counter"}
    counters |= {metric.name for metric in OWN_METRICS.values() if metric.kind == "counter"}
    for where, expression in expressions(read_board(name)):
        assert not re.search(r"\$__(?:interval|range|from|to)\b", expression), where
        # A query frontend replaces `@ end()` before it divides a query by time; nothing reads the future.
        assert set(re.findall(r"@\s*[^\s)]+\)?", expression)) <= {"@ end()"}, where
        assert not re.search(r"offset\s+-", expression), where
        windows = set(re.findall(r"\[([^\]]+)\]", expression))
        title = where.split(": ", 1)[1]
        watched = LOOKED_BACK if title in WATCHED_TITLES else OVER_TIME.get(title, set())
        watched = watched | LATELY if " @ end())" in expression else watched
        # A long past is sampled there.
        assert {window.removesuffix(":5m") for window in windows} <= {"$__rate_interval"} | watched, where
        assert not re.search(r"rate\((?![a-z_]+\{)", expression), where
        for metric, _ in selectors(expression):
            if metric in counters or metric.endswith(("_bucket", "_sum", "_count")):
                assert f"rate({metric}{{" in expression or f"increase({metric}{{" in expression, where


def test_links_lead_to_dashboards_there_are_and_keep_time_and_variables() -> None:
    """A menu of all of them; the link of a table's cell sets a variable its target has."""
    boards = {board["uid"]: board for board in map(read_board, NAMES)}
    for uid, board in boards.items():
        (links,) = board["links"]
        assert (links["type"], links["asDropdown"], links["tags"]) == ("dashboards", True, board["tags"]), uid
        assert links["keepTime"]
        assert links["includeVars"]
        for url in _urls(elements(board)):
            if url == DEFAULTS.runbook_url("${__value.raw}"):
                continue
            target, query = re.fullmatch(r"/d/([\w-]+\?|\$\{__value\.raw\}&)(.+)", url).groups()  # type: ignore[union-attr]
            if target.startswith("$"):
                names = {"deployment"}
            else:
                names = {variable["name"] for variable in boards[target[:-1]]["templating"]["list"]}
            assert set(re.findall(r"var-(\w+)=", query)) <= names
            assert "${__url_time_range}" in query
            assert "${datasource:queryparam}" in query


def _urls(part: Any) -> list[str]:
    if isinstance(part, list):
        return [found for each in part for found in _urls(each)]
    if not isinstance(part, dict):
        return []
    found = [part["url"]] if "url" in part else []
    return found + [url for each in part.values() for url in _urls(each)]


@each_board
def test_series_have_names_and_graphs_share_a_crosshair(name: str) -> None:
    """No legend of raw label sets; refreshed no more often than scraped."""
    board = read_board(name)

    assert board["graphTooltip"] == 1
    assert board["timezone"] in ("browser", "utc")
    assert seconds(board["refresh"]) >= seconds(DEFAULTS.scrape_interval)
    for panel in panels(board):
        assert all(target["legendFormat"] for target in panel["targets"] if panel["type"] != "table")


@each_board
def test_values_of_now_are_asked_for_once(name: str) -> None:
    """Numbers, gauges and tables send instant queries; graphs and heatmaps ask over the screen's range."""
    for panel in panels(read_board(name)):
        has_past = panel.get("options", {}).get("graphMode") == "area"
        now = panel["type"] in ("stat", "gauge", "table") and not has_past
        assert all((target["instant"], target["range"]) == (now, not now) for target in panel["targets"]), panel[
            "title"
        ]


def test_replicas_of_each_deployment_are_stacked_under_the_scale_that_was_sent() -> None:
    """A panel for each deployment: by status, each in its colour; the desired scale and its bounds are lines across."""
    (panel,) = [panel for panel in panels(read_board("scale")) if panel["title"] == "Replicas of $deployment"]
    overrides = {each["matcher"]["options"]: each["properties"] for each in panel["fieldConfig"]["overrides"]}
    assert (panel["repeat"], panel["repeatDirection"], panel["maxPerRow"]) == ("deployment", "h", 2)
    lines = [overrides.pop(f"/(^| ){word}$/") for word in ("desired", "min", "max")]
    colors = {name: properties[0]["value"]["fixedColor"] for name, properties in overrides.items()}

    assert panel["fieldConfig"]["defaults"]["custom"]["stacking"]["mode"] == "normal"
    assert colors == {f"/(^| ){status}$/": SERIES_COLORS[status] for status in REPLICA_STATUSES}
    assert [name for name, color in colors.items() if color == "red"] == ["/(^| )failed$/"]
    assert all({"id": "custom.stacking", "value": {"mode": "none", "group": "A"}} in line for line in lines)
    legends = [target["legendFormat"].split()[-1] for target in panel["targets"]]
    assert legends == ["{{status}}", "desired", "min", "max"]


@each_board
def test_stacked_areas_have_no_lines(name: str) -> None:
    """The line of a series at 0 would lie on the edge of the area below it and give it another colour."""
    for panel in panels(read_board(name)):
        custom = panel["fieldConfig"]["defaults"].get("custom", {})
        if custom.get("stacking", {}).get("mode") == "normal":
            assert (custom["lineWidth"], custom["fillOpacity"] > 0) == (0, True), panel["title"]


@each_board
def test_what_a_panel_says_when_it_is_empty_is_not_in_its_cells(name: str) -> None:
    """Grafana writes `noValue` into every empty cell: each column has an empty one of its own."""
    for panel in panels(read_board(name)):
        for override in panel["fieldConfig"]["overrides"] if panel["type"] == "table" else ():
            assert {"id": "noValue", "value": ""} in override["properties"], override["matcher"]


def test_stacks_have_their_colours_in_a_cutover() -> None:
    """The same in every panel that compares them, and red for neither."""
    for panel in panels(read_board("cutover")):
        if any(target["legendFormat"].endswith("{{inference_stack}}") for target in panel["targets"]) and not any(
            "deployment_id" in target["legendFormat"] for target in panel["targets"]
        ):
            overrides = {each["matcher"]["options"]: each["properties"] for each in panel["fieldConfig"]["overrides"]}
            overrides.pop(f"/(^| ){LIMIT}$/", None)
            assert {name: properties[0]["value"]["fixedColor"] for name, properties in overrides.items()} == {
                f"/(^| ){stack}( |$)/": color for stack, color in (("v1", OLD_COLOR), ("v2", NEW_COLOR))
            }, panel["title"]  # fmt: skip


def test_grafanalib_stands_behind_one_module() -> None:
    """No dashboard imports it."""
    folder = Path(GENERATED).parent
    importing = {
        path.name for path in folder.rglob("*.py") if re.search(r"^(from|import) grafanalib", path.read_text(), re.M)
    }

    assert importing == {"grafana.py"}
