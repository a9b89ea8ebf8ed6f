"""The cutover that the console was started for: its plan, its runs, its judgement; and what to do next without one."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path

import streamlit as st

from app.judging import CutoverView
from servescope.console import JOURNAL_VARIABLE, PLAN_VARIABLE
from servescope.cutover.plan import CutoverPlan
from servescope.cutover.plan_files import parse_plan
from servescope.errors import ConfigurationError
from servescope.judge.journal import CutoverJournal
from servescope.judge.runs import CutoverRun, list_runs
from servescope.store.history import History


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no judgement to show: a sentence, and the command that comes next."""

    sentence: str
    command: str


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
    try:
        return parse_plan(tomllib.loads(text), origin)
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(f"{origin}: {error}") from error


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


def read_view(store: History) -> CutoverView | Missing:
    """The judgement of the plan's run, or what is missing for one."""
    run = current_run()
    if isinstance(run, Missing):
        return run
    raise NotImplementedError


def explain_missing(missing: Missing) -> None:
    """What to do next, in a sentence with the command."""
    st.info(missing.sentence, icon=":material/flag:")
    st.code(missing.command, language="shell")
