"""The committed dashboards as tests read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from dashboards.__main__ import GENERATED
from dashboards.panels.queries import HISTOGRAMS, SCOPE

NAMES = sorted(path.stem for path in GENERATED.glob("*.json"))

_SELECTOR = re.compile(r"([a-zA-Z_:][\w:]*)\{([^{}]*)\}")


def read_board(name: str) -> Any:
    """One dashboard as JSON."""
    return json.loads((GENERATED / f"{name}.json").read_text(encoding="utf-8"))


def panels(board: Any) -> list[Any]:
    """Its panels without the rows, those of collapsed rows too."""
    return [panel for panel in elements(board) if panel["type"] != "row"]


def elements(board: Any) -> list[Any]:
    """Its rows and panels, each of a collapsed row behind it."""
    return [found for each in board["panels"] for found in (each, *each.get("panels", ()))]


def expressions(board: Any) -> Iterator[tuple[str, str]]:
    """Every query with the place it is in, annotations included."""
    for panel in panels(board):
        for target in panel["targets"]:
            yield f"{board['uid']}: {panel['title']}", target["expr"]
    for annotation in board["annotations"]["list"]:
        if "target" in annotation:
            yield f"{board['uid']}: {annotation['name']}", annotation["target"]["expr"]


def find_panel(name: str, title: str) -> Any:
    """The panel of a dashboard by its title."""
    (found,) = [each for each in panels(read_board(name)) if each["title"] == title]
    return found


def variable_queries(board: Any) -> Iterator[tuple[str, str]]:
    """The variables that are asked of Prometheus, with their queries."""
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["name"], variable["query"]["query"]


def selectors(expression: str) -> list[tuple[str, str]]:
    """The metrics an expression names, each with its matchers."""
    return _SELECTOR.findall(expression)


def substitute(expression: str, **chosen: str) -> str:
    """The expression as Grafana sends it, everything chosen but what is given."""
    every = {variable.name: variable.every for variable in SCOPE} | {
        "replica": ".*",
        "__rate_interval": "1m",
        HISTOGRAMS: "1",
    }
    # What a pattern has matched is no variable, as `$1`.
    return re.sub(r"\$([a-z_]\w*)", lambda found: {**every, **chosen}[found[1]], expression)
