"""Collectors that are killed at any moment lose at most the scrape in flight; `tests.kills` has the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kills import kill_collectors


@pytest.mark.slow
@pytest.mark.parametrize("kills", [4, pytest.param(26, marks=pytest.mark.proof)])
def test_a_killed_collector_loses_at_most_the_scrape_in_flight(tmp_path: Path, kills: int) -> None:
    """Every other answer is in the store, once and in order; the file is sound, and figures go on."""
    found = kill_collectors(tmp_path, kills, parallel=1 + (kills > 4), seed=26)

    assert found.lost == []
    assert (found.kills, found.answers >= kills, found.runs > 0 or kills < 26) == (kills, True, True)
