"""A flood of reruns: the console answers its health check during it, and a reader right after it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from tests import pictures
from tests.app.support.console_flood import flood, probe_health, read_page
from tests.support.console_store import write_day

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a console on a day of twenty deployments."""
    store = tmp_path_factory.mktemp("flood") / "day.db"
    write_day(store, hours=24, count=20)
    with pictures.serve_console(store) as address:
        yield address


@pytest.mark.parametrize("page", ["fleet", "compare"])
async def test_a_flood_of_reruns_leaves_the_console_alive(console: str, page: str, tmp_path: Path) -> None:
    """Sixty sessions ask for a page each second for half a minute and leave: nobody waits for what they asked."""
    probing = asyncio.create_task(probe_health(console))
    await flood(console, page, sessions=60, seconds=30)
    await read_page(console, page)
    probing.cancel()
    assert await probing > 3
