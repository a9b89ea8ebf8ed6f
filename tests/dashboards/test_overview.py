"""What a reader of the dashboards counts on beyond single panels: one screen for users, one colour for a series."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from dashboards.__main__ import render
from dashboards.boards.fleet import MOST_LINES
from dashboards.panels.colors import STATUS_COLORS
from tests.support.boards import NAMES, find_panel, panels, read_board

# What a screen of 1080 lines shows below Grafana's own bars, in units of 38 pixels.
SCREEN_ROWS = 24
BROKEN = {"failed", "error", "down", "DEGRADED", "critical"}


def test_the_overview_is_one_screen() -> None:
    """Whether users are fine, every deployment and the worst of them, without scrolling; few lines in each graph."""
    shown = panels(read_board("fleet"))

    assert max(each["gridPos"]["y"] + each["gridPos"]["h"] for each in shown) <= SCREEN_ROWS
    for each in shown:
        if each["type"] == "timeseries":
            assert all(target["expr"].startswith(f"topk({MOST_LINES}, ") for target in each["targets"]), each["title"]


def test_red_is_for_what_is_broken() -> None:
    """Of series and states with a colour of their own only failures; a threshold is red where a page is due."""
    red = {
        name
        for board in NAMES
        for each in panels(read_board(board))
        for name, color in _fixed_colors(each).items()
        if color == STATUS_COLORS["critical"]
    }

    assert red == BROKEN


def test_a_series_has_the_same_colour_everywhere() -> None:
    """Outcomes, statuses and percentiles: whichever panel and dashboard they are on."""
    found: dict[str, set[str]] = {}
    for board in NAMES:
        for each in panels(read_board(board)):
            for name, color in _fixed_colors(each).items():
                found.setdefault(name, set()).add(color)

    assert {name: colors for name, colors in found.items() if len(colors) > 1} == {}


def _fixed_colors(shown: Any) -> dict[str, str]:
    config = shown["fieldConfig"]
    mappings = [
        *config["defaults"].get("mappings", ()),
        *(each for over in config.get("overrides", ()) for found in over["properties"]
          if found["id"] == "mappings" for each in found["value"]),
    ]  # fmt: skip
    states = {
        state["text"]: state["color"]
        for each in mappings if each["type"] == "value" for state in each["options"].values()
    }  # fmt: skip
    return states | {
        re.sub(r"^/\(\^\| \)(.+)\$/$", r"\1", over["matcher"]["options"]): each["value"]["fixedColor"]
        for over in shown["fieldConfig"].get("overrides", ())
        for each in over["properties"]
        if each["id"] == "color"
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_file_is_imported_as_it_is(name: str) -> None:
    """By hand in Grafana too: it has an address and no number of another Grafana, and asks for no input first."""
    board = json.loads(render()[f"{name}.json"])

    assert {"uid", "title", "panels", "templating", "schemaVersion"} <= board.keys()
    assert not {"id", "__inputs", "__requires", "__elements"} & board.keys()
    assert "${DS_" not in json.dumps(board)
    (source,) = [each for each in board["templating"]["list"] if each["type"] == "datasource"]
    # Without a choice Grafana takes the first Prometheus it has.
    assert "current" not in source


def test_formulas_stand_in_the_panels_of_shares() -> None:
    """What is divided by what, in the words of the catalog or as a formula."""
    for board, title in (
        ("speculation", "Speculation rate"), ("speculation", "Mean acceptance length"), ("cache", "KV cache hit rate"),
        ("cache", "Hit rate skew"), ("cache", "Routing efficiency"), ("cache", "Hit rate by replica"),
        ("cache", "Hit rate spread"), ("fleet", "Harm in total"),
    ):  # fmt: skip
        meaning = find_panel(board, title)["description"].split("\n\n")[0]
        assert re.search(r" / |as a share of", meaning), title


def test_latency_is_shown_as_percentiles_and_as_promises_kept() -> None:
    """Of first tokens, tokens and whole requests; of the promises what was kept and what is left of the budget."""
    shown = {each["title"]: each for each in panels(read_board("requests"))}

    for title in ("Time to first token", "Time per output token", "Request duration"):
        assert {target["legendFormat"] for target in shown[title]["targets"]} == {"p50", "p95", "p99"}
    for title in ("Time to first token", "Time per output token", "Requests"):
        assert len(shown[f"{title}: attainment"]["targets"]) == 2
        assert "30d" in str(shown["Error budgets"]["targets"])
    assert not [title for title in shown if title.endswith(", mean")]


def test_a_number_in_a_legend_says_what_it_counts() -> None:
    """As the position of a draft's token, which is a bare digit."""
    legends = {
        target["legendFormat"]
        for name in NAMES
        for each in panels(read_board(name))
        for target in each["targets"]
        if "{{position}}" in target["legendFormat"]
    }

    assert legends == {"{{deployment_id}} {{inference_stack}} {{environment}} position {{position}}"}
