"""Which figures share a chart: readings of one thing (p50, p95, mean), and the values of a figure's extra label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from app import display
from app.charts import Line
from app.queries import figure_columns, label_order
from servescope.contract.expressions import leaves
from servescope.contract.figures import FIGURES, GROUPS
from servescope.contract.metrics import METRICS
from servescope.contract.types import Band, Figure

# The first reading is drawn full, the others step back.
# A dash and, as the last two digits of the colour, an opacity.
_READING_LOOKS: Sequence[tuple[tuple[int, int], str]] = (((1, 0), ""), ((6, 3), "e6"), ((2, 2), "cc"), ((1, 0), "66"))


@dataclass(frozen=True, slots=True)
class Family:
    """The figures of one chart; `columns` are the history's columns that hold values, by what the legend calls them,
    `absent` the figures without any.
    """

    title: str
    unit: str
    band: Band | None
    columns: dict[str, str]
    absent: list[Figure]


def by_group(history: pd.DataFrame) -> dict[str, list[Family]]:
    """Every figure of the catalog, in families, under its group's heading."""
    return {group: _families(group, history) for group in GROUPS}


def _families(group: str, history: pd.DataFrame) -> list[Family]:
    members: dict[tuple[str, str], list[Figure]] = {}
    for figure in FIGURES.values():
        if figure.group == group:
            members.setdefault((display.short_title(figure)[0], figure.unit), []).append(figure)
    return [_family(base, figures, history) for (base, _), figures in members.items()]


def _family(base: str, figures: list[Figure], history: pd.DataFrame) -> Family:
    columns: dict[str, str] = {}
    for figure in figures:
        for label, key in sorted(figure_columns(history, figure).items(), key=lambda pair: label_order(pair[0])):
            columns[label or display.short_title(figure)[1] or figure.title] = key
    absent = [figure for figure in figures if not figure_columns(history, figure)]
    title = base if len(figures) > 1 else figures[0].title
    return Family(title, figures[0].unit, figures[0].band, columns, absent)


def lines(family: Family, history: pd.DataFrame, index: int) -> list[Line]:
    """The lines of a family's chart for the deployment of this index: its colour, one look per reading."""
    return [_line(label, history[key], place, index) for place, (label, key) in enumerate(family.columns.items())]


def _line(label: str, values: pd.Series[float], place: int, index: int) -> Line:
    if label in display.REPLICA_COLORS:
        return Line(label, values, display.REPLICA_COLORS[label])
    if label.isdecimal():
        return Line(label, values, display.PALETTE[place % len(display.PALETTE)])
    dash, opacity = _READING_LOOKS[place % len(_READING_LOOKS)]
    return Line(label, values, display.series_style(index)[0] + opacity, dash)


def is_closed(figure: Figure) -> bool:
    """Whether the values of the figure's extra labels are a closed set, few enough to draw a chart of each."""
    metrics = [METRICS[name] for name in leaves(figure.expression) if name in METRICS]
    return all(any(label in metric.label_values for metric in metrics) for label in figure.by)
