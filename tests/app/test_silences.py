"""Silences on the alerts page: read from configured Alertmanagers, and never in the page's way."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from streamlit.testing.v1 import AppTest

from app.data import silences
from servescope.cli import main
from servescope.console import ALERTMANAGERS_VARIABLE
from servescope.contract.samples import make_labels
from servescope.store.embedded import Store
from servescope.store.records import KeptAlert
from tests.support.answering import Handler, answering
from tests.support.console_pages import html, make_view, read
from tests.support.waiting import deadline_seconds, wait_for

pytestmark = pytest.mark.slow

NOW_MS = 1_800_000_000_000
LABELS = {"deployment_id": "chat-v2", "model_name": "m", "inference_stack": "v2"}


def silence(state: str = "active", **matchers: str) -> dict[str, object]:
    """One silence as Alertmanager's API writes it; a value that begins with ~ is a regular expression."""
    return {
        "id": "7d1f", "status": {"state": state}, "startsAt": "2027-01-15T07:00:00.000Z",
        "endsAt": "2027-01-15T09:30:00.123Z", "createdBy": "anna", "comment": "weights <are> replaced",
        "matchers": [
            {"name": name, "value": value.removeprefix("~"), "isRegex": value.startswith("~"), "isEqual": True}
            for name, value in matchers.items()
        ],
    }  # fmt: skip


@contextmanager
def alertmanager(answer: object, held: threading.Event | None = None, status: int = 200) -> Iterator[str]:
    """A server that answers every request with this, once `held` is set; gives its address."""

    def reply(handler: Handler) -> None:
        if held is not None:
            held.wait(deadline_seconds())
        handler.reply(status, answer if isinstance(answer, bytes) else json.dumps(answer))

    with answering(reply) as address:
        yield address
        if held is not None:
            held.set()


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """The path of a configuration."""
    return tmp_path / "servescope.toml"


def name_alertmanagers(configuration: Path, *urls: str) -> None:
    """Write a configuration with these Alertmanagers."""
    configuration.write_text("".join(f'[[alerting.alertmanagers]]\nurl = "{url}"\n' for url in urls), encoding="utf-8")


@pytest.fixture
def page(tmp_path: Path, configuration: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    """The alerts page, not yet run, of a store with one alert that fires."""
    with Store(tmp_path / "alerts.db") as store:
        firing = KeptAlert(
            "ServescopeQueueGrowing", make_labels(LABELS), NOW_MS - 900_000, NOW_MS, None, None, value=40.0
        )
        store.write_alerts([firing])
    monkeypatch.setenv("SERVESCOPE_STORE", str(tmp_path / "alerts.db"))
    monkeypatch.setenv(ALERTMANAGERS_VARIABLE, str(configuration))
    monkeypatch.setattr(silences, "FIRST_SECONDS", deadline_seconds())
    return make_view("alerts")


def text_of(page: AppTest) -> str:
    """Everything the page shows."""
    assert not page.exception, page.exception[0].message
    return "\n".join([html(page), *(read(each.value) for each in [*page.markdown, *page.caption])])


def test_silences_are_shown_and_mark_what_they_hold_back(page: AppTest, configuration: Path) -> None:
    """What is silenced, until when, by whom and why, with a link; the alert it holds back is marked."""
    listed = [silence(alertname="~Servescope.*Growing", deployment_id="chat-v2"), silence("expired", a="long ago")]
    with alertmanager(listed) as url:
        name_alertmanagers(configuration, url)
        text = text_of(page.run())

    assert "alertname=~&quot;Servescope.*Growing&quot;, deployment_id=&quot;chat-v2&quot;" in text
    assert "anna" in text
    assert "weights &lt;are&gt; replaced" in text
    assert f'href="{url}/#/silences/7d1f"' in text
    assert ">silenced</span>" in text
    assert "long ago" not in text


@pytest.mark.parametrize(
    ("state", "matchers"), [("active", {"deployment_id": "chat-v1"}), ("pending", {"deployment_id": "chat-v2"})]
)
def test_a_silence_of_others_marks_nothing(
    page: AppTest, configuration: Path, state: str, matchers: dict[str, str]
) -> None:
    """A silence of another deployment, or one that has not begun, is listed and holds nothing back."""
    with alertmanager([silence(state, **matchers)]) as url:
        name_alertmanagers(configuration, url)
        text = text_of(page.run())

    assert "deployment_id=&quot;" in text
    assert ">silenced</span>" not in text


def test_without_an_alertmanager_there_is_no_such_part(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that knows no Alertmanager says nothing of silences."""
    monkeypatch.setenv(ALERTMANAGERS_VARIABLE, "")

    shown = text_of(page.run()).split("**Meaning**")[0]

    assert "Silences" not in shown
    assert "silenced" not in shown


def test_one_that_fails_is_named_in_a_line(page: AppTest, configuration: Path) -> None:
    """What another answered is shown all the same."""
    with alertmanager([silence(team="search")]) as url, alertmanager({"error": "no"}, status=500) as broken:
        name_alertmanagers(configuration, url, broken)
        text = text_of(page.run())

    assert "team=&quot;search&quot;" in text
    assert f"Alertmanager {broken}: HTTP status 500 to /api/v2/silences" in text


@pytest.mark.parametrize("answer", [[{"id": 1}], b"[" * 200_000], ids=["another's", "deep"])
def test_one_that_answers_something_else_is_named(page: AppTest, configuration: Path, answer: object) -> None:
    """An answer that is not an Alertmanager's is no traceback."""
    with alertmanager(answer) as url:
        name_alertmanagers(configuration, url)

        assert "is not Alertmanager's" in text_of(page.run())


def test_a_slow_one_does_not_hold_the_page(page: AppTest, configuration: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is there while an Alertmanager does not answer, and says so; its answer is shown when it comes."""
    monkeypatch.setattr(silences, "FIRST_SECONDS", 0.01)
    held = threading.Event()
    with alertmanager([silence(team="search")], held) as url:
        name_alertmanagers(configuration, url)
        before = text_of(page.run())
        held.set()
        wait_for(lambda: "no answer yet" not in text_of(page.run()), "the answer of the slow Alertmanager")
        after = text_of(page)

    assert "ServescopeQueueGrowing" in before
    assert f"Alertmanager {url}: no answer yet" in before
    assert "team=&quot;search&quot;" in after


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[alerting]\n", "names no Alertmanager"),
        ('[[alerting.alertmanagers]]\nurl = "here"\n', "alerting.alertmanagers[0].url"),
    ],
)
def test_console_refuses_a_configuration_without(
    tmp_path: Path, configuration: Path, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    """A file that names no Alertmanager, or one that is none, ends the command with what was expected."""
    Store(tmp_path / "s.db").close()
    configuration.write_text(text, encoding="utf-8")
    code = main(["console", "--store", str(tmp_path / "s.db"), "--alertmanagers", str(configuration), "--no-browser"])

    assert code == 2
    assert complaint in capsys.readouterr().err
