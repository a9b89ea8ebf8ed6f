"""Every dashboard of deployments has its pictures, as `make pictures` takes them, which says whether they are right."""

from __future__ import annotations

import re

import pytest

from tests.dashboards.pictures import MOST_BYTES, picture_path
from tests.pictures import PICTURES, THEMES
from tests.support.boards import NAMES


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("name", NAMES)
def test_every_dashboard_has_a_picture(name: str, theme: str) -> None:
    """Of a size that a page of text can bear."""
    picture = picture_path(PICTURES, name, theme)

    assert picture.is_file(), f"no {picture}: run `make pictures`"
    assert picture.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert picture.stat().st_size < MOST_BYTES


def test_no_picture_is_of_a_dashboard_that_is_gone() -> None:
    """A dashboard that was renamed leaves none of its own behind."""
    shown = {re.sub(r"dashboard-(.+)-\w+", r"\1", path.stem) for path in PICTURES.glob("dashboard-*.png")}

    assert shown == set(NAMES)
