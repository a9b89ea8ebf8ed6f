"""The two versions of promtool that alerts and rules are proven with."""

from __future__ import annotations

from pathlib import Path

import pytest


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
