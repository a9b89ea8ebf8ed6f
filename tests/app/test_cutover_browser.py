"""A whole cutover, driven in a browser: settled stages are advanced, harm is rolled back, the journal has it all."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")
pytest.importorskip("playwright.sync_api", reason="the browser is driven by playwright")

from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import list_runs
from tests import pictures
from tests.app.support.contrast import faint_texts
from tests.app.support.cut_texts import cut_texts
from tests.app.support.other_hosts import list_other_hosts
from tests.support.cutover_evidence import Side
from tests.support.cutover_store import CutoverStore, Step, write_cutover

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.proof

STEPS = (
    Step(0.08, Side(replicas=1), 4),
    Step(0.25, Side(replicas=4), 4),
    Step(0.5, Side(replicas=12, first_token=1.6, errors=0.03), 2),
)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CutoverStore:
    """A cutover that goes well for two stages and badly in the third; nobody has decided anything but to start."""
    return write_cutover(tmp_path_factory.mktemp("cutover"), steps=STEPS, advanced=False)


def look(page: Page, address: str) -> str:
    """What the first page answers."""
    page.goto(address, wait_until="commit")
    answer = page.locator(".scope.answer")
    answer.wait_for()
    pictures.settle(page)
    return answer.inner_text()


def decide(page: Page, address: str, decision: str, reason: str) -> None:
    """Record a decision, by keyboard and mouse, as a person does."""
    page.goto(f"{address}/decisions", wait_until="commit")
    page.get_by_role("button", name="Record the decision").wait_for()
    pictures.settle(page)
    page.get_by_label("Decision", exact=False).first.click()
    page.get_by_role("option", name=decision).click()
    pictures.settle(page)
    page.get_by_label("By").fill("anna")
    page.get_by_label("Reason").fill(reason)
    page.get_by_label("Reason").press("Tab")
    pictures.settle(page)
    page.get_by_role("button", name="Record the decision").click()
    page.get_by_text("Recorded").wait_for()


def test_a_whole_cutover(files: CutoverStore, browser: Browser) -> None:
    """Two stages settle and are advanced from the page; the third is harmful, and is rolled back from it."""
    ends = [*files.begins_ms[1:], files.now_ms]
    acts = (
        ("Go on", "HEALTHY", "Advance", "settled at 8 %"),
        ("Go on", "HEALTHY", "Advance", "settled at 25 %"),
        ("Roll back", "DEGRADED", "Roll back", "slow and failing at 50 %"),
    )
    for end_ms, (advice, verdict, decision, reason) in zip(ends, acts, strict=True):
        # Statuses of later than now are not believed: targets were scraped last when the block ended.
        clock = files.clock(time.time(), end_ms + 20_000)
        with pictures.serve_console(files.store, *files.words(), variables=clock) as address:
            page = pictures.open_page(browser, "light", pictures.WIDE)
            answer = look(page, address)
            assert answer.startswith(advice), answer
            assert verdict in answer
            decide(page, address, decision, reason)
            page.context.close()
    with CutoverJournal(files.journal) as journal:
        run = list_runs(journal)[0]

    assert [each.kind for each in run.decisions] == ["start", "advance", "advance", "rollback"]
    assert [entry.body["judgement"]["verdict"] for entry in run.entries[1:]] == ["HEALTHY", "HEALTHY", "DEGRADED"]
    assert run.ended == "rolled back"


def is_whole(page: Page, *sizes: tuple[int, int]) -> None:
    """Nothing sticks out at any of these sizes; at the last one no text is cut, and all have contrast."""
    for size in sizes:
        pictures.check_width(page, size)
    assert cut_texts(page) == []
    assert faint_texts(page) == []


@pytest.mark.parametrize("name", pictures.CUTOVER_PAGES)
def test_pages_of_a_cutover_are_whole(tmp_path: Path, browser: Browser, name: str) -> None:
    """Light and dark, on a laptop, a wall and a telephone: nothing sticks out, every text has contrast, none fails, no
    other host is asked; on the telephone no text is cut or over another, as the words of a cutover's lanes.
    """
    made = write_cutover(tmp_path)
    errors: list[str] = []
    with pictures.serve_console(made.store, *made.words(), variables=made.clock(time.time())) as address:
        for theme in pictures.THEMES:
            page = pictures.open_page(browser, theme, (1280, 900))
            page.on("pageerror", lambda error: errors.append(str(error)))
            elsewhere = list_other_hosts(page, address)
            pictures.load(page, address, name)
            is_whole(page, (1280, 900), (1920, 1080), pictures.NARROW)
            assert elsewhere == []
            shown = page.locator("[data-testid=stMain]").inner_text()
            assert not {"NaN", "nan", "undefined", "Traceback", "None"} & set(shown.split())
            assert "\\" not in shown, "an escape of what is ordinary"
            page.context.close()

    assert errors == []


def test_the_traffic_of_a_pasted_configuration_is_whole(tmp_path: Path, browser: Browser) -> None:
    """Sliders over what v1 served, its charts and tables: in both themes, and on a telephone."""
    made = write_cutover(tmp_path)
    with pictures.serve_console(made.store, *made.words(), variables=made.clock(time.time())) as address:
        for theme in pictures.THEMES:
            page = pictures.open_page(browser, theme, pictures.WIDE)
            pictures.load(page, address, "readiness")
            page.get_by_text("Numbers from the traffic that v1 served").click()
            page.get_by_role("button", name="Read its traffic").click()
            page.locator("table.targets tbody tr:nth-child(3)").wait_for()
            is_whole(page, pictures.WIDE, pictures.NARROW)
            page.context.close()
