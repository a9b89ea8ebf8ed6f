"""What a dashboard asks when it is opened, and how many samples that reads: Grafana's arithmetic, and Prometheus'."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

from benchmarks._fleet_history import Fleet, Series
from dashboards.panels.layout import COLUMNS
from tests.support.promql import Node, Selector, Subquery, parse, parts, walk

SCREEN_PIXELS = 1920
RANGE_SECONDS = 86_400
_ANNOTATION_STEP_SECONDS = 60

# What Grafana rounds a step to, in seconds, each up to the edge before it: `rangeUtil.roundInterval` of @grafana/data.
_STEPS = ((12.5, 10), (17.5, 15), (25, 20), (45, 30), (90, 60), (210, 120), (450, 300), (750, 600), (1050, 900))

_DURATION_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}

MOST_SAMPLES: Mapping[str, float] = MappingProxyType(
    {
        "fleet": 2e6, "cutover": 35e6, "requests": 100e6, "health": 75e6, "speculation": 10e6, "cache": 10e6,
        "scale": 10e6, "phases": 12e6,
    }
)  # fmt: skip
"""What opening a dashboard may read: samples over a day of 200 replicas that are scraped every 15 s."""

MOST_SAMPLES_OTHERWISE = 20e6
"""The same for a dashboard that is not named there."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One query of a first paint; `step_seconds` is 0 for one that asks for now alone."""

    panel: str
    expression: str
    step_seconds: int

    @property
    def moments(self) -> int:
        """How many moments it is evaluated at."""
        return RANGE_SECONDS // self.step_seconds + 1 if self.step_seconds else 1


def list_queries(board: Any, *, scrape_seconds: int) -> list[Asked]:
    """Every query of a dashboard's JSON as it is sent first, over a day, with everything chosen."""
    every = _chosen_first(board)
    return list(_queries(board, every, scrape_seconds))


def _queries(board: Any, every: Mapping[str, str], scrape_seconds: int) -> Iterator[Asked]:
    for panel in board["panels"]:
        step = tell_step(panel["gridPos"]["w"], scrape_seconds=scrape_seconds)
        if "interval" in panel:
            step = max(step, int(_seconds(panel["interval"])))
        for target in panel.get("targets", ()):
            text = substitute(target["expr"], every, tell_rate_window(step, scrape_seconds=scrape_seconds))
            yield Asked(panel["title"], text, 0 if target["instant"] else step)
    for annotation in board["annotations"]["list"]:
        if "target" in annotation:
            window = tell_rate_window(_ANNOTATION_STEP_SECONDS, scrape_seconds=scrape_seconds)
            text = substitute(annotation["target"]["expr"], every, window)
            yield Asked(f"annotation: {annotation['name']}", text, _ANNOTATION_STEP_SECONDS)


def list_variable_queries(board: Any) -> list[tuple[str, str]]:
    """The label and the selector of each variable's values, everything chosen of those before it."""
    every = _chosen_first(board)
    found = []
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"]["query"])
            if asked is None:
                raise ValueError(f"variable {variable['name']!r} asks {variable['query']['query']!r}")
            found.append((asked[2], substitute(asked[1], every, 0)))
    return found


def _chosen_first(board: Any) -> Mapping[str, str]:
    """The value of each variable when a dashboard is opened: all values, or the first of a few choices."""
    variables = [each for each in board["templating"]["list"] if each["type"] in ("query", "custom")]
    return {each["name"]: each["allValue"] if "allValue" in each else each["current"]["value"] for each in variables}


def substitute(expression: str, every: Mapping[str, str], rate_window: int) -> str:
    """The expression as it is sent: variables are All, and `$__rate_interval` is so many seconds."""
    known = {**every, "__rate_interval": f"{rate_window}s"}
    # What a pattern has matched is no variable, as `$1`.
    return re.sub(r"\$([a-z_]\w*)", lambda found: known[found[1]], expression)


def tell_step(columns: int, *, scrape_seconds: int) -> int:
    """The seconds between two points of a graph so many columns wide: at most one a pixel, in a round number."""
    pixels = SCREEN_PIXELS * columns / COLUMNS
    step = RANGE_SECONDS / pixels
    rounded = next((round_ for edge, round_ in _STEPS if step < edge), 1800)
    return max(rounded, scrape_seconds)


def tell_rate_window(step_seconds: int, *, scrape_seconds: int) -> int:
    """What `$__rate_interval` is, in seconds."""
    return max(step_seconds + scrape_seconds, 4 * scrape_seconds)


def estimate_samples(asked: Asked, fleet: Fleet, *, scrape_seconds: int) -> int:
    """The samples that Prometheus 2 reads for a query, over each series and at each moment, as it counts them itself.

    A range holds both its edges, the samples lie on the moments asked for, and there are some of as long ago as is
    looked at. Raises LookupError for a series that the fleet knows nothing of.
    """
    return asked.moments * _read(parse(asked.expression), fleet, scrape_seconds)


def _read(node: Node, fleet: Fleet, scrape_seconds: int) -> int:
    match node:
        case Selector(name, _, window) if ":" in window:
            over, every = map(_seconds, window.split(":"))
            return _count(node, fleet) * (over // every + 1)
        case Selector(name, _, window):
            interval = fleet.interval_seconds(name, scrape_seconds)
            return _count(node, fleet) * (_seconds(window) // interval + 1 if window else 1)
        case Subquery(at_end=True):
            # Evaluated at one moment of them all: too little to count.
            return 0
        case Subquery(inner, window):
            # What it gives counts, not what it reads: it is evaluated once for all moments.
            over, every = map(_seconds, window.split(":"))
            most = max(_count(each, fleet) for each in walk(inner) if isinstance(each, Selector))
            return most * (over // every + 1)
        case _:
            return sum(_read(each, fleet, scrape_seconds) for each in parts(node))


def _count(selector: Selector, fleet: Fleet) -> int:
    return fleet.count(selector.name, partial(_agrees, selector.matchers))


def _agrees(matchers: tuple[tuple[str, str, str], ...], series: Series) -> bool:
    for label, operator, value in matchers:
        own = series.labels.get(label, "")
        # Replicas are not distinguished here; no query of a first paint selects one.
        matches = own == value if operator in ("=", "!=") else re.fullmatch(value, own) is not None
        if label != "replica" and matches == operator.startswith("!"):
            return False
    return True


def _seconds(duration: str) -> int:
    return int(duration[:-1]) * _DURATION_SECONDS[duration[-1]]
