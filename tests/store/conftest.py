"""A store that is empty, for those that write into one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from servescope.store.embedded import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the store is."""
    return tmp_path / "servescope.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    """The store, open."""
    with Store(path) as opened:
        yield opened
