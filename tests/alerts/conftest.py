"""The two versions of promtool that alerts and rules are proven with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.alerts.support.incidents import Incidents


@pytest.fixture(params=["promtool", "promtool_3"])
def both_promtools(request: pytest.FixtureRequest) -> Path:
    """Promtool of Prometheus 2 and 3, one after the other."""
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture(params=["promtool", pytest.param("promtool_3", marks=pytest.mark.proof)])
def each_promtool(request: pytest.FixtureRequest) -> Path:
    """The same where the fact does not depend on which end of a range is open: `make proofs` has the other version."""
    found: Path = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def is_left_open(request: pytest.FixtureRequest) -> bool:
    """Whether ranges are open to the left, as those of Prometheus 3 are."""
    return "promtool_3" in request.node.name


@pytest.fixture(params=[30, pytest.param(15, marks=pytest.mark.proof), pytest.param(60, marks=pytest.mark.proof)])
def scrape_seconds(request: pytest.FixtureRequest) -> int:
    """The usual intervals of scrapes: `make proofs` has the others."""
    seconds: int = request.param
    return seconds


@pytest.fixture
def incidents(promtool: Path, tmp_path: Path, scrape_seconds: int) -> Incidents:
    """Incidents scraped at this interval."""
    return Incidents(promtool, tmp_path, scrape_seconds)


@pytest.fixture
def by_the_minute(incidents: Incidents) -> Incidents:
    """The same where a minute matters: what fires, or is no longer true, for a few of them."""
    return replace(incidents, every="1m")
