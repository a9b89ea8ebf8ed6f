"""Where panels are on a dashboard: from left to right and top to bottom, every line filled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Final

from dashboards.panels.panels import Panel, Row

COLUMNS: Final = 24

Place = tuple[int, int, int, int]
"""Of a row or a panel: x, y, width and height."""

_FEW: Final = 2


def place(rows: tuple[Row, ...]) -> Iterator[tuple[Row, Place, list[tuple[Panel, Place]]]]:
    """Each row, top to bottom, with its panels from left to right; a row begins below a collapsed one's heading."""
    top = 0
    for row in rows:
        placed, bottom = _place_panels(row.panels, top + 1)
        yield row, (0, top, COLUMNS, 1), placed
        top = top + 1 if row.collapsed else bottom


def _place_panels(panels: Sequence[Panel], top: int) -> tuple[list[tuple[Panel, Place]], int]:
    """The panels of a row that begins at `top`, and where it ends."""
    placed: list[tuple[Panel, Place]] = []
    for line in _lines(panels):
        x, height = 0, max(panel.height for panel in line)
        for panel, width in zip(line, _justify([panel.width for panel in line]), strict=True):
            placed.append((panel, (x, top, width, height)))
            x += width
        top += height
    return placed, top


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
