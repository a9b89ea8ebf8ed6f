"""Which panels have data for the chosen engines, by their source maps."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from dashboards.board import Board
from dashboards.options import Options
from dashboards.panels.panels import LIMIT, Panel
from servescope.alerting.rules.promises import counts_edge_of
from servescope.contract.expressions import leaves
from servescope.contract.figures import FIGURES, RECORDED_HISTOGRAMS, record_buckets
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.contract.objectives import BURN_WINDOWS, OBJECTIVES
from servescope.sources.map_files import load_sources
from servescope.sources.maps import SUPPLIED

_SERIES = re.compile(r"([a-zA-Z_:][\w:]*)\{")
# What an objective reads that none of the engines is held to.
_NOTHING = ""
# The collector counts its own targets if nothing reports replicas.
_BY_THE_COLLECTOR = {METRICS["replica_count_by_status"].name}


def keep_filled(board: Board, options: Options) -> Board:
    """The dashboard without the panels that none of the engines can fill, and without rows that have none left."""
    if not options.engines:
        return board
    supplied, recorded = _supplied(options.engines), _recorded(options)
    rows = (
        replace(row, panels=tuple(panel for panel in row.panels if _is_filled(panel, supplied, recorded)))
        for row in board.rows
    )
    return replace(board, rows=tuple(row for row in rows if row.panels))


def _supplied(engines: tuple[str, ...]) -> set[str]:
    """The metrics of the contract that one of the engines, or another target beside it, exposes.

    The same rule as in `alerts.feeding`, so that an alert that is kept links to a panel that is kept.
    """
    sources = [load_sources()[engine] for engine in engines]
    return _BY_THE_COLLECTOR | {
        name
        for source in sources
        for name, given in source.metrics.items()
        if given.alternatives or given.status in (*SUPPLIED, "elsewhere")
    }


def _is_filled(panel: Panel, supplied: set[str], recorded: Mapping[str, set[str]]) -> bool:
    """Whether one of its queries reads only supplied metrics; series that an alert compares with do not count."""
    own = [query.expression for query in panel.queries if not query.legend.endswith(f" {LIMIT}")]
    return any(_metrics(expression, recorded) <= supplied for expression in own)


def _metrics(expression: str, recorded: Mapping[str, set[str]]) -> set[str]:
    # What follows `unless` may be missing.
    names = set(_SERIES.findall(expression.partition(" unless ")[0]))
    raw = {SAMPLE_FAMILIES[name] for name in names if name in SAMPLE_FAMILIES}
    return raw.union(*(recorded[name] for name in names if name in recorded))


def _recorded(options: Options) -> dict[str, set[str]]:
    """The contract's metrics that each recorded series is computed from."""
    expressions = {figure.record(options.window): figure.expression for figure in FIGURES.values()}
    windows = {window for row in BURN_WINDOWS for window in (row.short, row.long)}
    expressions |= {each.record(window): each.bad for each in OBJECTIVES.values() for window in windows}
    buckets = {record_buckets(name, options.window): {name} for name in RECORDED_HISTOGRAMS}
    read = {name: {SAMPLE_FAMILIES[leaf] for leaf in leaves(each)} for name, each in expressions.items()}
    held = {each.name for each in options.objectives.values() if counts_edge_of(each, options.engines)}
    unshown = {each.record(window) for each in OBJECTIVES.values() if each.name not in held for window in windows}
    return buckets | read | {name: {_NOTHING} for name in unshown}
