"""Every page on a store and a journal of every age: nothing yet, v1 alone, a run just started, one block, a week."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")


from servescope.console import JOURNAL_VARIABLE, PLAN_VARIABLE
from servescope.cutover.plan.files import parse_plan
from servescope.increments.blocks import BLOCK_MS, TargetIncrements
from servescope.judge.case import freeze_plan
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import start_run
from servescope.settings.tables import read_document
from servescope.store.embedded import Store
from tests.support.console_pages import html, open_view, stop_clock
from tests.support.cutover_evidence import INTERVAL_MS, Side, Story
from tests.support.cutover_store import PLAN, Step, make_targets, target_status, write_targets

pytestmark = pytest.mark.slow

PAGES = (
    "cutover", "readiness", "plan", "decisions", "self_test", "fleet", "deployment", "compare", "alerts", "sources",
    "customers", "faults",
)  # fmt: skip
WEEK = 7 * 24
STORY = Story(past_hours=6, hours=WEEK, requests_per_minute=300.0, v1=Side(replicas=2))


class Age(NamedTuple):
    """What there is: how long before the start v1 was scraped, in milliseconds, and how long ago the run started."""

    before_ms: int | None
    since_ms: int | None


AGES = {
    "nothing": Age(None, None),
    "no run": Age(6 * 3_600_000, None),
    "started from one block": Age(BLOCK_MS, 1_000),
    "started": Age(6 * 3_600_000, 1_000),
    "one scrape": Age(6 * 3_600_000, 2 * INTERVAL_MS),
    "before the first block": Age(6 * 3_600_000, BLOCK_MS),
    "one block": Age(6 * 3_600_000, BLOCK_MS + 60_000),
    "two blocks": Age(6 * 3_600_000, 2 * BLOCK_MS + 60_000),
    "a week": Age(6 * 3_600_000, WEEK * 3_600_000),
}


@cache
def observed() -> tuple[TargetIncrements, ...]:
    """v1's past, and a week of both."""
    return tuple(make_targets(STORY, (Step(0.25, Side(replicas=1), WEEK),)))


# Ages that other pages than those of a cutover could take differently.
FEW = ("nothing", "started", "one block", "a week")
IN_TEST = ("nothing", "one block")
OF_A_CUTOVER = ("cutover", "plan", "decisions")


@pytest.fixture(scope="module")
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, Age]:
    """A folder with the store, the plan and the journal of an age, and the time of it."""
    age, folder = AGES[request.param], tmp_path_factory.mktemp("age")
    # A run seldom starts with a block.
    started_ms = STORY.started_ms + 70_000
    now_ms = started_ms + (age.since_ms or 0)
    (folder / "chat.toml").write_text(PLAN, encoding="utf-8")
    with Store(folder / "age.db") as store:
        if age.before_ms is not None:
            begun_ms = started_ms - age.before_ms - BLOCK_MS
            kept = [each.at((each.blocks >= begun_ms) & (each.blocks + BLOCK_MS <= now_ms)) for each in observed()]
            write_targets(store, [each for each in kept if each.blocks.size], now_ms)
            for target in observed():
                store.set_target(target_status(target, now_ms))
    if age.since_ms is not None:
        with Store(folder / "age.db", read_only=True) as past, CutoverJournal(folder / "journal.db") as journal:
            plan = parse_plan(read_document(folder / "chat.toml", "plan"), "chat.toml")
            start_run(journal, freeze_plan(past, plan, started_ms), by="anna", reason="as agreed")
    return folder, now_ms, age


@pytest.mark.parametrize(
    ("files", "name"),
    [
        pytest.param(
            age, name, marks=[] if age in IN_TEST or (name == "cutover" and age != "a week") else pytest.mark.proof
        )
        for age in AGES
        for name in PAGES
        if age in FEW or name in OF_A_CUTOVER
    ],
    indirect=["files"],
)
def test_a_page_of_every_age_is_whole(files: tuple[Path, int, Age], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No page fails, or reads NaN or None, however little was observed and decided so far."""
    folder, now_ms, age = files
    monkeypatch.setenv("SERVESCOPE_STORE", str(folder / "age.db"))
    monkeypatch.setenv(PLAN_VARIABLE, str(folder / "chat.toml"))
    monkeypatch.setenv(JOURNAL_VARIABLE, str(folder / "journal.db"))
    stop_clock(monkeypatch, now_ms)
    shown = html(open_view(name))

    if name == "cutover":
        assert (age.since_ms is not None) == ("scope answer" in shown)
        assert "no target that was scraped" not in shown
