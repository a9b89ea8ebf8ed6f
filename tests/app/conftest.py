"""What every test of the console's pages leaves as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from servescope.store.embedded import Store

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(autouse=True)
def _forget_what_pages_hold() -> Iterator[None]:
    """Forget stores and journals that pages opened."""
    yield
    if streamlit := sys.modules.get("streamlit"):
        streamlit.cache_resource.clear()


@pytest.fixture
def empty_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store without anything in it, which the pages read."""
    Store(tmp_path / "empty.db").close()
    monkeypatch.setenv("SERVESCOPE_STORE", str(tmp_path / "empty.db"))
    return tmp_path / "empty.db"


@pytest.fixture(scope="module")
def browser(chromium: Path) -> Iterator[Browser]:
    """A headless Chromium."""
    from tests import pictures

    with pictures.open_browser(chromium) as opened:
        yield opened
