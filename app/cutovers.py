"""The cutover that the console was started for, and what to do next where there is none."""

from __future__ import annotations

from dataclasses import dataclass

import streamlit as st

from app.judging import CutoverView
from servescope.store.history import History


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no judgement to show: a sentence, and the command that comes next."""

    sentence: str
    command: str


def read_view(store: History) -> CutoverView | Missing:
    """The judgement of the plan's run, or what is missing for one."""
    return Missing("No cutover is planned here yet.", "servescope judge plan --plan PLAN.toml")


def explain_missing(missing: Missing) -> None:
    """What to do next, in a sentence with the command."""
    st.info(missing.sentence, icon=":material/flag:")
    st.code(missing.command, language="shell")
