"""Queries of panels that a query frontend divides by time and caches: each part is what the whole would be there."""

from __future__ import annotations

import re

import pytest

from dashboards.__main__ import GENERATED
from tests.support.boards import expressions, read_board

BOARDS = sorted(path.stem for path in GENERATED.glob("*.json"))


@pytest.mark.parametrize("name", BOARDS)
def test_panels_may_be_divided_by_time(name: str) -> None:
    """The one `@` is `@ end()`, which frontends replace before they divide; nothing reads the future."""
    for where, expression in expressions(read_board(name)):
        assert set(re.findall(r"@\s*[^\s)]+\)?", expression)) <= {"@ end()"}, where
        assert not re.search(r"offset\s+-", expression), where


@pytest.mark.parametrize("name", BOARDS)
def test_rates_follow_the_step(name: str) -> None:
    """A range of scraped series is `$__rate_interval`, or one that the catalog or an alert names; no `$__range`."""
    for where, expression in expressions(read_board(name)):
        assert not re.search(r"\$__(?:range|interval)\b|\$__(?:from|to)\b", expression), where
        for window in re.findall(r"\brate\([^\[\]]*\[([^\]]+)\]", expression):
            assert window == "$__rate_interval" or re.fullmatch(r"\d+[mhd]", window), where
