"""Which figures share a chart: readings of one thing (p50, p95, mean), and the values of a figure's extra label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from app.charts.charts import Dash, Line
from app.data.promised import Promises
from app.data.queries import DRAWN, Shown, figure_columns, filling_of, label_order
from app.data.readings import objective_line
from app.elements import display
from app.elements.colors import REPLICA_COLORS
from servescope.contract.expressions import leaves
from servescope.contract.figures import GROUPS
from servescope.contract.metrics import METRICS
from servescope.contract.types import Band, Figure

# One hue is one stack: what else shares a chart is distinguished by its dash, the first drawn full.
_READING_DASHES: Sequence[Dash] = ((1, 0), (6, 3), (2, 2), (9, 3, 2, 3))
# Of a number, such as a draft's position: the later, the shorter.
_NUMBER_DASHES: Sequence[Dash] = ((1, 0), (10, 3), (7, 3), (5, 3), (3, 3), (2, 3), (1, 3), (1, 5))


@dataclass(frozen=True, slots=True)
class Family:
    """The figures of one chart; `columns` are the history's columns that hold values, by what the legend calls them,
    `absent` the figures without any. Of what users are promised `objective` is where the promise ends, with its name.
    """

    title: str
    unit: str
    band: Band | None
    objective: tuple[float, str] | None
    columns: dict[str, str]
    absent: list[Figure]


def by_group(history: pd.DataFrame, promised: Promises) -> dict[str, list[Family]]:
    """Every figure of the catalog, in families, under its group's heading."""
    return {group: _families(group, history, promised) for group in GROUPS}


def _families(group: str, history: pd.DataFrame, promised: Promises) -> list[Family]:
    members: dict[tuple[str, str], list[Figure]] = {}
    for figure in DRAWN.values():
        if figure.group == group:
            members.setdefault((display.short_title(figure)[0], figure.unit), []).append(figure)
    return [_family(base, figures, history, promised) for (base, _), figures in members.items()]


def _family(base: str, figures: list[Figure], history: pd.DataFrame, promised: Promises) -> Family:
    columns: dict[str, str] = {}
    for figure in figures:
        for label, key in sorted(figure_columns(history, figure).items(), key=lambda pair: label_order(pair[0])):
            reading = display.short_title(figure)[1]
            columns[label or reading or (figure.title if len(figures) > 1 else "")] = key
    absent = [figure for figure in figures if not figure_columns(history, figure)]
    title = base if len(figures) > 1 else figures[0].title
    objective = next((line for figure in figures if (line := objective_line(figure, promised)) is not None), None)
    return Family(title, figures[0].unit, figures[0].band, objective, columns, absent)


def lines(family: Family, history: pd.DataFrame, one: Shown) -> list[Line]:
    """The lines of a family's chart for a deployment: in its stack's hue, one dash per reading, named in the legend."""
    return [_line(label, history, key, place, one) for place, (label, key) in enumerate(family.columns.items())]


def _line(label: str, history: pd.DataFrame, key: str, place: int, one: Shown) -> Line:
    if label in REPLICA_COLORS:
        return draw_key(label, history, key, REPLICA_COLORS[label])
    dashes = _NUMBER_DASHES if label.isdecimal() else _READING_DASHES
    return draw_key(label or one.name, history, key, one.color, dashes[place % len(dashes)])


def draw_key(label: str, history: pd.DataFrame, key: str, color: str, dash: Dash = (1, 0)) -> Line:
    """The line of a figure key of a history, of which it is known where the window was filling."""
    return Line(label, history[key], color, dash, filling_of(history, key))


def is_closed(figure: Figure) -> bool:
    """Whether the values of the figure's extra labels are a closed set, few enough to draw a chart of each."""
    metrics = [METRICS[name] for name in leaves(figure.expression) if name in METRICS]
    return all(any(label in metric.label_values for metric in metrics) for label in figure.by)
