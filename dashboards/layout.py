"""Where panels are on a dashboard: from left to right and top to bottom, every line filled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import accumulate, pairwise
from typing import Final

from dashboards.panels import Panel, Row

COLUMNS: Final = 24

_FEW: Final = 2


def place(rows: tuple[Row, ...]) -> list[tuple[Row | Panel, tuple[int, int, int, int]]]:
    """Rows and panels from left to right and top to bottom, each with x, y, width and height."""
    return reduce(_place_row, rows, [])


def _place_row(
    placed: list[tuple[Row | Panel, tuple[int, int, int, int]]], row: Row
) -> list[tuple[Row | Panel, tuple[int, int, int, int]]]:
    top = max((y + height for _, (_, y, _, height) in placed), default=0)
    placed.append((row, (0, top, COLUMNS, 1)))
    y = top + 1
    for line in _lines(row.panels):
        x, height = 0, max(panel.height for panel in line)
        for panel, width in zip(line, _justify([panel.width for panel in line]), strict=True):
            placed.append((panel, (x, y, width, height)))
            x += width
        y += height
    return placed


def _lines(panels: Sequence[Panel]) -> list[list[Panel]]:
    """The panels of each line: as many as fit, and none alone below several of its width."""
    lines: list[list[Panel]] = []
    for panel in panels:
        if lines and sum(each.width for each in lines[-1]) + panel.width <= COLUMNS:
            lines[-1].append(panel)
        else:
            lines.append([panel])
    for line, following in pairwise(lines):
        if len(following) == 1 and len(line) > _FEW and following[0].width < COLUMNS:
            following.insert(0, line.pop())
    return lines


def _justify(widths: Sequence[int]) -> list[int]:
    """The widths of a line's panels, made wider in proportion until they fill it."""
    edges = [round(COLUMNS * upto / sum(widths)) for upto in accumulate(widths, initial=0)]
    return [right - left for left, right in pairwise(edges)]
