"""A clock that was ahead, as the console's reader meets it: what it left is not shown, and that it was is said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from streamlit.testing.v1 import AppTest

from app import selection
from app.charts import tables
from app.data import queries
from app.elements import display
from servescope.contract.identity import Identity
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus
from tests.support.console_pages import charts, html, open_view, read

pytestmark = pytest.mark.slow

NOW_MS = 1_790_000_100_000
MINUTE = 60_000
IDENTITY = Identity("llama", "chat", "v1", replica="r0")
CHAT = IDENTITY.deployment()
PAGES = ("fleet", "deployment", "sources")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A collector wrote it until a minute ago, and then, its clock nine minutes ahead, for a minute."""
    path = tmp_path / "ahead.db"
    with Store(path) as written:
        for seconds in (*range(-1800, -60, 15), *range(480, 541, 15)):
            at_ms = NOW_MS + seconds * 1000
            written.set_target(TargetStatus(IDENTITY.target_id, "http://r0", IDENTITY, "vllm", "1", True, at_ms, at_ms))
            written.append_scrape(IDENTITY.target_id, at_ms, None)
            written.append_figures(CHAT, at_ms, {"request_rate": 777.0 if seconds > 0 else 3.0})
    return path


@pytest.fixture
def open_page(store: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], AppTest]:
    monkeypatch.setattr(selection, "now_ms", lambda: NOW_MS)
    monkeypatch.setattr(queries, "program_clock", lambda: SimpleNamespace(now_ms=lambda: NOW_MS))
    monkeypatch.setenv("SERVESCOPE_STORE", str(store))

    def open_(name: str) -> AppTest:
        return open_view(name)

    return open_


@pytest.mark.parametrize("name", PAGES)
def test_what_is_later_than_now_is_on_no_page(open_page: Callable[[str], AppTest], name: str) -> None:
    """Neither as a value, nor as something that was written now; a target's status names it."""
    page = open_page(name)
    shown = html(page) + str(charts(page) if name == "deployment" else "")
    assert "777" not in shown
    assert not page.warning
    if name == "fleet":
        assert ">75 s<" in shown
        assert "the collector has written nothing newer" in shown
    elif name == "sources":
        assert "later than now: the clock was set back" in shown
        assert "last success now" not in shown


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_that_the_clock_was_set_back(open_page: Callable[[str], AppTest], store: Path, name: str) -> None:
    """With what was dropped, as the event log has it."""
    with Store(store, now_ms=lambda: NOW_MS) as written:
        assert written.drop_future() is not None
    (warning,) = open_page(name).warning
    assert "the clock was set back from 2026-09-21T14:24:00Z to 2026-09-21T14:15:00Z: what was stored as later is " in (
        read(warning.value)
    )
    assert read(warning.value).endswith("dropped, 5 scrapes and 5 evaluations.")
    if name == "deployment":
        assert "clock set back (1)" in html(open_page(name))


def test_an_age_below_nothing_is_not_fresh() -> None:
    """Whatever gives such a time, nothing reads as `now` for minutes; seconds are no matter between two clocks."""
    assert [display.format_age(age) for age in (-540.0, -6.0, -4.0, 0.0)] == ["–", "–", "now", "now"]
    assert [tables.is_current(NOW_MS + ahead, NOW_MS) for ahead in (9 * MINUTE, 4_000, -MINUTE, -6 * MINUTE)] == [
        False, True, True, False,
    ]  # fmt: skip
    cell = tables._freshness(float(NOW_MS + 9 * MINUTE), NOW_MS)
    assert "its time is later than now: a clock was ahead" in cell
    assert "warning" in cell
