"""Collectors that are killed at any moment lose at most the scrape in flight; `tests.kills` has the whole of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kills import kill_collectors


@pytest.mark.slow
def test_a_killed_collector_loses_at_most_the_scrape_in_flight(tmp_path: Path) -> None:
    """Every other answer is in the store, once and in order; the file is sound, and figures go on."""
    found = kill_collectors(tmp_path, 26, parallel=2, seed=26)

    assert found.lost == []
    assert (found.kills, found.answers >= 26, found.runs > 0) == (26, True, True)
