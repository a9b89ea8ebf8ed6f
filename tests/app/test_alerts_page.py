"""The alerts page: what fires, what is about to, and the runbook of each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from streamlit.testing.v1 import AppTest

from app.data import alarms
from servescope.alerting.alerts import ALERTS
from servescope.contract.samples import make_labels
from servescope.store.embedded import Store
from servescope.store.records import KeptAlert
from tests.support.console_pages import html, open_view

pytestmark = pytest.mark.slow

NOW_MS = 1_800_000_000_000
Open = Callable[..., AppTest]


def _kept(name: str, fired_ms: int | None, resolved_ms: int | None = None) -> KeptAlert:
    labels = make_labels({"deployment_id": "chat-v2", "model_name": "m", "inference_stack": "v2"})
    return KeptAlert(name, labels, NOW_MS - 900_000, fired_ms, None, resolved_ms, value=0.031)


@pytest.fixture
def names() -> list[str]:
    """A critical alert, a warning and another one, as the catalog has them."""
    by_severity = sorted(ALERTS.values(), key=lambda each: alarms.SEVERITIES.index(each.severity))
    return [by_severity[0].name, *(each.name for each in by_severity if each.severity == "warning")][:3]


@pytest.fixture
def open_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens the page on a store with these alerts."""

    def open_(*kept: KeptAlert, **parameters: str) -> AppTest:
        with Store(tmp_path / "alerts.db") as store:
            store.write_alerts(kept)
        monkeypatch.setenv("SERVESCOPE_STORE", str(tmp_path / "alerts.db"))
        return open_view("alerts", **parameters)

    return open_


def test_firing_leads_with_what_it_says(open_page: Open, names: list[str]) -> None:
    """Firing alerts come before pending and resolved ones, each with its deployment and its text filled in."""
    text = html(open_page(_kept(names[1], None), _kept(names[2], NOW_MS, NOW_MS + 1), _kept(names[0], NOW_MS)))
    places = [text.index(f">{name}<") for name in (names[0], names[1], names[2])]

    assert places == sorted(places)
    assert "▲ firing" in text
    assert "chat-v2" in text
    assert "{{" not in text


def test_quiet_store_says_so(open_page: Open, names: list[str]) -> None:
    """While no alert is firing or pending no runbook is open; each can be chosen, and the choice be taken back."""
    page = open_page(_kept(names[0], NOW_MS, NOW_MS + 1))
    quiet = [each.value for each in page.markdown]
    page.selectbox(key="choose_alert").set_value(names[1]).run()
    chosen = " ".join(each.value for each in page.markdown)
    page.selectbox(key="choose_alert").set_value("").run()

    assert page.info[0].value == "No alert is firing or pending."
    assert quiet == [each.value for each in page.markdown] == []
    assert "Do now" in chosen


def test_a_watchdog_is_no_trouble(open_page: Open, names: list[str]) -> None:
    """It fires all the time and has no severity: it works, in no colour, last, counted in no tile, its runbook shut."""
    watchdog = "ServescopeWatchdog"
    page = open_page(_kept(watchdog, NOW_MS))
    text = html(page)
    with_another = html(open_page(_kept(watchdog, NOW_MS), _kept(names[1], None)))

    assert ALERTS[watchdog].severity == "none"
    assert ">working<" in text
    assert "firing<" not in text
    assert "▲" not in text
    assert f">{watchdog}<" in text
    assert page.info[0].value == "No alert is firing or pending."
    assert not page.markdown
    assert with_another.index(f">{names[1]}<") < with_another.index(f">{watchdog}<")
    assert "◷ 1" in with_another


def test_link_opens_a_runbook(open_page: Open, names: list[str]) -> None:
    """A link names the alert whose runbook is shown, with its query; every alert has all sections."""
    page = open_page(alert=names[2])
    shown = " ".join(each.value for each in page.markdown)

    assert ALERTS[names[2]].runbook.mitigation in shown
    assert [each.value for each in page.code] == [
        each.query for each in alarms.sections_of(ALERTS[names[2]]) if each.query
    ]
    for alert in ALERTS.values():
        assert all(section.text for section in alarms.sections_of(alert))


def test_a_cause_is_code_in_its_heading(open_page: Open) -> None:
    """As in the text below it: without backticks that are read as such."""
    page = open_page(alert="ServescopeUpButNotServing")

    assert any(each.value.startswith("**Where the cause is `unanswered`**") for each in page.markdown)


def test_runbook_of_what_fires_is_open(open_page: Open, names: list[str]) -> None:
    """Unless another is chosen, the runbook shown is that of the alert that leads."""
    page = open_page(_kept(names[0], NOW_MS))

    assert page.selectbox(key="choose_alert").value == names[0]
