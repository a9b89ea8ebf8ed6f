"""The pages of the plan and of its decisions: what they refuse, what they write down, and who may."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from streamlit.testing.v1 import AppTest

from app import access, selection
from app.cutovers import cutovers, journals, plans
from servescope.console import JOURNAL_VARIABLE, PLAN_VARIABLE
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.plan.plan import FrozenPlan
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import list_runs, start_run, summarise, write_decision
from tests.app.support.canned_cutover import NOW_MS, START_MS, make_cutover_view, make_judgement
from tests.support.console_pages import html, open_view
from tests.support.console_store import write_day

pytestmark = pytest.mark.slow

Open = Callable[..., AppTest]

LEAST = '[arms]\nv1 = { deployment_id = "chat-v1" }\nv2 = { deployment_id = "chat-v2" }\n[[stages]]\nshare = 0.25\n'
STAGES = LEAST + "[[stages]]\nshare = 0.5\n"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a v1 and a v2 deployment of one model."""
    path = tmp_path_factory.mktemp("store") / "day.db"
    write_day(path, hours=0.1, count=2, end_ms=NOW_MS)
    return path


@pytest.fixture
def files(tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of `plan.toml` and `journal.db`, which the console was started for; neither is there yet."""
    monkeypatch.setenv("SERVESCOPE_STORE", str(store))
    monkeypatch.setenv(PLAN_VARIABLE, str(tmp_path / "plan.toml"))
    monkeypatch.setenv(JOURNAL_VARIABLE, str(tmp_path / "journal.db"))
    monkeypatch.setattr(selection, "now_ms", lambda: NOW_MS)
    return tmp_path


def open_page(name: str) -> AppTest:
    """A page of the console."""
    return open_view(name)


def start(files: Path, text: str = STAGES) -> None:
    """Write the plan and start a run of it."""
    (files / "plan.toml").write_text(text)
    frozen = FrozenPlan(cutovers.parse_text(text, "plan.toml"), START_MS, {})
    with CutoverJournal(files / "journal.db") as journal:
        start_run(journal, frozen, by="anna", reason="as agreed")


# --- Plan -------------------------------------------------------------------------------------------------------------


def test_a_plan_is_proposed_for_what_is_observed(files: Path) -> None:
    """Without a file the text is a plan that the parser takes, for the two stacks of one model that are observed."""
    page = open_page("plan")
    text = page.text_area[0].value or ""

    assert cutovers.parse_text(text, "plan").v2.selectors == ({"deployment_id": "chat-v2"},)
    assert "both of its arms are observed here" in page.success[0].value


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[arms", "plan.toml: "),
        (LEAST.replace("0.25", "1.7"), "share"),
        (LEAST.replace("chat-v2", "chat-v1"), "overlap"),
        (LEAST + "[[metrics]]\nname = 'time_to_first_tokn_seconds'\n", "time_to_first_token_seconds"),
        (LEAST + "checklist = " + "[" * 20_000, "plan.toml: nested deeper than 32 (at line 6)"),
        ("a = " + "1" * 5_000, "plan.toml: not TOML: Exceeds the limit"),
    ],
)
def test_the_parsers_own_error_is_shown(files: Path, text: str, complaint: str) -> None:
    """A text that is no plan shows the parser's error, and cannot be saved."""
    page = open_page("plan")
    page.text_area[0].set_value(text).run()

    assert complaint in page.error[0].value
    next(button for button in page.button if button.label == "Save").click().run()
    assert not (files / "plan.toml").exists()


def test_an_arm_that_selects_nothing_is_named(files: Path) -> None:
    """A plan whose arm no target matches is reported with the deployments that there are."""
    page = open_page("plan")
    page.text_area[0].set_value(LEAST.replace("chat-v2", "chat-v9")).run()

    assert "arm v2 of plan 'plan' selects nothing" in page.warning[0].value
    assert "'chat-v1'" in page.warning[0].value


def test_a_plan_is_saved_to_its_file(files: Path) -> None:
    """Saving writes the text as it is, and says where."""
    page = open_page("plan")
    page.text_area[0].set_value(LEAST).run()
    next(button for button in page.button if button.label == "Save").click().run()

    assert (files / "plan.toml").read_text() == LEAST
    assert "Saved to" in page.success[0].value


def test_a_viewer_cannot_save(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not decide sees the plan and no way to change the file."""
    reader = access.PageReader("eve", decides=False, why_not="Deciding needs the role of a decider.")
    monkeypatch.setattr(access, "current_reader", lambda: reader)
    page = open_page("plan")
    page.text_area[0].set_value(LEAST).run()

    assert "Save" not in [button.label for button in page.button]
    assert any(reader.why_not in caption.value for caption in page.caption)


def test_the_runs_of_the_journal_are_the_history(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is listed with its plan's hash, who started it, the stage reached and how it ended."""
    start(files)
    monkeypatch.setattr(cutovers, "read_view", lambda store, run: make_cutover_view())
    text = html(open_page("plan"))

    assert "anna" in text
    assert "1 of 2" in text
    assert "under way" in text


def test_a_run_under_way_has_the_verdict_of_now(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches it, so that its journal has none; an ended one has that of its last decision."""
    start(files)
    monkeypatch.setattr(cutovers, "read_view", lambda store, run: make_cutover_view("HEALTHY"))
    now = html(open_page("plan"))
    with CutoverJournal(files / "journal.db") as journal:
        back = Decision("rollback", NOW_MS, "anna", "too many errors")
        write_decision(journal, list_runs(journal)[0], back, summarise(make_judgement("DEGRADED")))
    ended = html(open_page("plan"))

    assert "HEALTHY" in now
    assert make_judgement("HEALTHY").reason in now
    assert "DEGRADED" in ended
    assert "HEALTHY" not in ended


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("time_to_first_token_seconds", "less than 10 % worse"),
        ("request_error_share", "less than 2 ×"),
        ("speculation_rate", "at least 40 %"),
        ("in_flight_tokens_per_worker", "50\xa0000 to 150\xa0000 tokens"),
    ],
)
def test_limits_read_as_people_say_them(name: str, words: str) -> None:
    """Each kind of metric says in words what v2 must stay within."""
    metrics = {each.name: each for each in cutovers.parse_text(LEAST, "plan").metrics}

    assert plans.describe_limit(metrics[name]) == words


# --- Decisions --------------------------------------------------------------------------------------------------------


def test_without_a_run_the_next_command_is_shown(files: Path) -> None:
    """Without a plan, and with one that was not started, the page says what to do next."""
    assert "There is no plan at" in open_page("decisions").info[0].value
    (files / "plan.toml").write_text(LEAST)
    page = open_page("decisions")
    assert "has not been started" in page.info[0].value
    assert "servescope judge start --plan" in page.code[0].value


def test_a_decision_is_written_with_its_evidence(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An advance goes into the journal with who, why and the judgement that stood; the page then lists it."""
    start(files)
    monkeypatch.setattr(cutovers, "read_view", lambda store, run: make_cutover_view("HEALTHY"))
    page = open_page("decisions")
    page.text_input(key="decided_by").input("ben")
    page.text_area(key="decided_reason").input("settled at 25 %")
    next(button for button in page.button if button.label == "Record the decision").click().run()

    with CutoverJournal(files / "journal.db") as journal:
        entry = list_runs(journal)[0].entries[-1]
    assert (entry.kind, entry.by, entry.reason, entry.body["stage"]) == ("advance", "ben", "settled at 25 %", 1)
    assert entry.body["judgement"]["verdict"] == "HEALTHY"
    text = html(page)
    assert "settled at 25 %" in text
    assert "HEALTHY" in text


def test_a_decision_without_a_reason_is_refused(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who and why are needed: without them the error is shown and nothing is written."""
    start(files)
    monkeypatch.setattr(cutovers, "read_view", lambda store, run: make_cutover_view("HEALTHY"))
    page = open_page("decisions")
    next(button for button in page.button if button.label == "Record the decision").click().run()

    assert "needs who decided (by) and why (reason)" in page.error[0].value
    with CutoverJournal(files / "journal.db") as journal:
        assert len(list_runs(journal)[0].entries) == 1


def test_a_viewer_sees_decisions_and_no_form(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not decide reads the log, and what they would need."""
    start(files)
    reader = access.PageReader("eve", decides=False, why_not="Deciding needs the role of a decider.")
    monkeypatch.setattr(access, "current_reader", lambda: reader)
    page = open_page("decisions")

    assert page.info[0].value == reader.why_not
    assert "as agreed" in html(page)
    assert "nothing is judged before the start" in html(page)
    assert not page.button


def test_damaged_journal_is_named(files: Path) -> None:
    """A journal that is none is an error with its file, not an empty page."""
    (files / "plan.toml").write_text(LEAST)
    (files / "journal.db").write_bytes(b"no journal" * 1000)

    assert "journal.db" in open_page("decisions").error[0].value


def test_export_has_the_chain(files: Path) -> None:
    """The JSON has every entry with the hash of the one before it, and the hash of the frozen plan."""
    start(files)
    with CutoverJournal(files / "journal.db") as journal:
        runs = list_runs(journal)
    exported = json.loads(journals.export_runs(runs))

    assert exported[0]["plan_hash"] == runs[0].frozen.hash()
    assert exported[0]["entries"][0]["hash"] == runs[0].entries[0].hash
