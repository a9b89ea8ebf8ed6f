"""Grafana's own code shows the units and colours that are meant."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dashboards.panels.colors import TUNING_COLORS
from dashboards.panels.panels import UNITS
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS
from servescope.contract.types import Figure
from tests.support.boards import NAMES, panels, read_board
from tests.support.waiting import deadline_seconds

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("display.cjs")
BANDED = [figure for figure in FIGURES.values() if figure.band]


@pytest.fixture(scope="module")
def modules(grafana_schema: Path) -> Path:
    """Where npm's `@grafana/data` is."""
    return grafana_schema.parent / "node_modules" / "@grafana" / "data" / "dist" / "cjs"


def show(modules: Path, **wanted: Any) -> Any:
    """What Grafana makes of units, values and thresholds."""
    question = json.dumps({"units": [], "values": [], "thresholds": [], **wanted})
    done = subprocess.run(
        ["node", str(SCRIPT), str(modules)], input=question, capture_output=True, text=True, timeout=deadline_seconds()
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_unit_is_one_grafana_knows(modules: Path) -> None:
    """In its registry, or written with a prefix that it reads."""
    used = {unit for name in NAMES for unit in _units(panels(read_board(name)))}

    known = show(modules, units=sorted(used))["known"]

    assert {unit for unit in used if not unit.startswith(("suffix:", "count:"))} == set(known)
    assert used <= {*UNITS.values(), "none", "short", "dateTimeAsIsoNoDateIfToday"}


def _units(part: Any) -> set[str]:
    if isinstance(part, list):
        return set().union(*map(_units, part))
    if not isinstance(part, dict):
        return set()
    own = {part["unit"]} if "unit" in part else {part["value"]} if part.get("id") == "unit" else set()
    return own.union(*map(_units, part.values()))


def test_every_unit_of_the_catalog_is_shown() -> None:
    """No metric and no figure has a unit without one of Grafana's."""
    assert {metric.unit for metric in METRICS.values()} | {figure.unit for figure in FIGURES.values()} <= UNITS.keys()


def test_values_read_as_people_write_them(modules: Path) -> None:
    """Shares in percent, seconds as milliseconds where they are short, thousands of tokens short."""
    texts = show(modules, units=list(UNITS.values()), values=[0.4, 12_345.0])["texts"]

    assert texts[UNITS["ratio"]][0] == "40%"
    assert texts[UNITS["seconds"]][0] == "400 ms"
    assert texts[UNITS["tokens/s"]][1] == "12.3K tokens/s"
    assert texts[UNITS["requests/s"]][0] == "0.400 req/s"
    assert texts[UNITS["cores"]][0] == "0.400 cores"


@pytest.mark.parametrize("figure", BANDED, ids=lambda figure: figure.name)
def test_colours_are_the_bands(modules: Path, figure: Figure) -> None:
    """Just below, at and just above every edge, on every panel of the figure."""
    assert figure.band
    shown = [
        panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
        for name in NAMES
        for panel in panels(read_board(name))
        if panel["type"] != "table" and any(target["expr"].startswith(figure.record()) for target in panel["targets"])
    ]
    values = [step.start + beside for step in figure.band.steps for beside in (-1e-9, 0.0, 1e-9)]

    colors = show(modules, thresholds=[{"steps": steps, "value": value} for steps in shown for value in values])[
        "colors"
    ]

    assert shown
    assert colors == [TUNING_COLORS[figure.band.judge(value).status] for value in values] * len(shown)
