"""The cutover that the console was started for: its plan, its runs, its judgement; and what to do next without one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final

import streamlit as st

from app import selection
from app.cutovers.judging import CutoverView, make_view
from app.elements import display
from app.elements.plain import Markdown, code, plain, visible
from servescope.console import JOURNAL_VARIABLE, PLAN_VARIABLE
from servescope.cutover.judgement import VerdictChange
from servescope.cutover.plan.files import parse_plan
from servescope.cutover.plan.plan import CutoverPlan
from servescope.errors import ConfigurationError, ServescopeError
from servescope.judge.case import EvidenceError, WatchedCase
from servescope.judge.checkpoints.checkpoints import Checkpoint
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import CutoverRun, check_unchanged, list_runs, summarise
from servescope.judge.journal.written import with_written_harm
from servescope.settings.tables import parse_document
from servescope.store.embedded import Store
from servescope.store.history import History
from servescope.store.prometheus.history import PrometheusHistory


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no judgement to show: a sentence, and the command that comes next."""

    sentence: str
    command: str


STEP_MS: Final = 5_000
"""How often a run is judged while nothing happens: a judgement of its last block grows stale, too."""


def plan_path() -> Path | None:
    """The plan that the console was started for; None without one."""
    path = os.environ.get(PLAN_VARIABLE)
    return Path(path) if path else None


def journal_path() -> Path | None:
    """The journal that the console was started for; None without one."""
    path = os.environ.get(JOURNAL_VARIABLE)
    return Path(path) if path else None


def read_plan() -> CutoverPlan | Missing:
    """The plan of the file; raises ConfigurationError for one that is none."""
    path = plan_path()
    if path is None:
        return Missing(
            "No cutover is planned here yet: write a plan on the Plan page, and open the console with it.",
            "servescope console --plan PLAN.toml --journal JOURNAL.db",
        )
    if not path.exists():
        return Missing(
            f"There is no plan at {path} yet: write it on the Plan page, or ask how long it would take.",
            f"servescope judge plan --plan {path}",
        )
    try:
        return parse_text(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read plan {str(path)!r}: {error}") from error


def parse_text(text: str, origin: str) -> CutoverPlan:
    """The plan in a TOML text, which errors call `origin`; raises ConfigurationError."""
    return parse_plan(parse_document(text, origin), origin)


def read_runs(plan: str | None = None) -> list[CutoverRun]:
    """The runs of a plan in the journal, of every plan with None; raises JournalError for a journal that is damaged."""
    path = journal_path()
    if path is None or not path.exists():
        return []
    with CutoverJournal(path) as journal:
        return list_runs(journal, plan)


def current_run() -> CutoverRun | Missing:
    """The last run of the plan, or what comes before it."""
    plan = read_plan()
    if isinstance(plan, Missing):
        return plan
    runs = read_runs(plan.name)
    if not runs:
        command = f"servescope judge start --plan {plan_path()} --journal {journal_path() or 'JOURNAL.db'} --by NAME"
        return Missing(
            f"The plan {plan.name!r} has not been started: start it on the Plan page, or with this command.", command
        )
    return runs[-1]


def first_step() -> Missing | None:
    """What comes before there is a cutover to show; None with one, or where what is there cannot be read."""
    try:
        found = current_run()
    except ServescopeError:
        return None
    return found if isinstance(found, Missing) else None


def check_plan(run: CutoverRun) -> None:
    """Raise PlanChangedError where the plan's file is not what the run has frozen any more."""
    plan = read_plan()
    if not isinstance(plan, Missing):
        check_unchanged(plan, run, str(plan_path()))


def read_view(store: History, run: CutoverRun) -> CutoverView:
    """The judgement of a run now; raises ServescopeError."""
    path = journal_path()
    checkpoint = None if path is None else Checkpoint(path, run.entries[0].hash)
    return _shared_judge(store).view(run, selection.now_ms(), checkpoint)


def judge_now(store: History, run: CutoverRun) -> tuple[Mapping[str, Any], tuple[VerdictChange, ...]]:
    """The judgement that a decision is made on, or why there is none, as one can always go back; and its changes."""
    try:
        judgement = read_view(store, run).judgement
    except ServescopeError as error:
        return {"problem": str(error)}, ()
    return summarise(judgement), judgement.changes


def describe_end(run: CutoverRun) -> str:
    """How a run ended, as a sentence: who rolled it back, when and why."""
    last = run.decisions[-1]
    if last.kind != "rollback":
        return f"Run {run.number} has ended: {run.ended}."
    who, why = f" by {last.by}" if last.by else "", f": {last.reason}" if last.reason else ""
    at = display.format_time(last.at_ms, selection.reader_zone())
    return display.as_sentence(f"Run {run.number} was rolled back{who} at {at}{why}")


@st.cache_resource(max_entries=2, show_spinner=False, hash_funcs={Store: id, PrometheusHistory: id})
def _shared_judge(store: History) -> SharedJudge:
    return SharedJudge(store)


class SharedJudge:
    """Judges the runs of a store for all sessions: anew when a decision was written, or every `STEP_MS`."""

    def __init__(self, history: History) -> None:
        self._case = WatchedCase(history)
        self._lock = Lock()
        self._known: tuple[object, CutoverView] | None = None

    def view(self, run: CutoverRun, now_ms: int, checkpoint: Checkpoint | None = None) -> CutoverView:
        """The run as it is judged now; what several sessions ask for at once is judged once."""
        at_ms = now_ms // STEP_MS * STEP_MS
        asked = (run.entries[0].hash, run.entries[-1].hash, at_ms)
        with self._lock:
            if self._known is None or self._known[0] != asked:
                judgement = with_written_harm(self._case.judge(run.frozen, run.decisions, at_ms, checkpoint), run)
                if self._case.folded is None:
                    raise EvidenceError("nothing was observed of this run")
                view = make_view(run.frozen, run.decisions, self._case.folded, self._case.events, judgement)
                self._known = asked, view
            return self._known[1]


def mention(missing: Missing) -> None:
    """The same in a line, on a page that has something else to show."""
    st.caption(Markdown(f"{plain(missing.sentence)} {code(missing.command)}"))


def explain_missing(missing: Missing) -> None:
    """What to do next, in a sentence with the command."""
    st.info(plain(missing.sentence))
    st.code(visible(missing.command), language="shell")
