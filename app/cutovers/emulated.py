"""The controls of an emulated cutover: a slider that moves v2's stage, and a switch that brings a fault to v2.

Only with an emulator: of real traffic the console never moves anything.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import streamlit as st

from app import selection
from app.cutovers import cutovers, fault_words
from app.elements import display
from app.elements.plain import plain
from servescope.cutover.evidence.evidence import Decision
from servescope.cutover.plan.plan import Arm
from servescope.emulator.server.control_client import EMULATOR_VARIABLE, TOKEN_VARIABLE, ControlClient, ControlError
from servescope.errors import ServescopeError
from servescope.judge.case import freeze_plan
from servescope.judge.journal.journal import CutoverJournal
from servescope.judge.journal.runs import CutoverRun, next_stage, start_run, write_decision
from servescope.settings.clock import program_clock
from servescope.store.history import History

FAULTS: Final[Mapping[str, float | None]] = {
    "latency-regression": 5.0, "error-burst": None, "engine-frozen": None, "bad-replica": None,
    "prompt-mix-shift": None, "truncated-exposition": None,
}  # fmt: skip
"""The faults of v2 that the cutover page offers, and how strong they are there, None for as strong as they are by
themselves; the Faults page has all. The demo's v2 is nearly four times as fast as v1, and would stay ahead of it with
steps that take half as long again."""
FOLLOW_SECONDS: Final = 300.0
"""Emulated seconds within which conversations follow a new share."""
_BY: Final = "the demo"
_REFUSED: Final = "emulated_refused"


def control() -> ControlClient | None:
    """The switches of the emulator the console was started with; None without one."""
    url = os.environ.get(EMULATOR_VARIABLE)
    return ControlClient(url, token=os.environ.get(TOKEN_VARIABLE) or None) if url else None


def draw_controls(store: History, run: CutoverRun) -> None:
    """The slider and the switch, with how fast the emulation runs."""
    client = control()
    if client is None:
        return
    if run.ended:
        st.caption(
            f"{plain(cutovers.describe_end(run))} The slider and the switch of the emulated stack are here again "
            "once another run is started on the Plan page; the Faults page has every switch meanwhile."
        )
        return
    try:
        state = client.read()
    except ControlError as error:
        st.warning(plain(error))
        return
    deployment = _find_deployment(run.frozen.plan.v2, state["deployments"])
    if deployment is None:
        st.caption("The emulator runs no deployment that this plan calls v2, so there is no slider and no switch here.")
        return
    refused = st.session_state.pop(_REFUSED, None)
    if refused:
        st.error(plain(refused))
    with st.container(border=True):
        stage, fault, note = st.columns([5, 4, 3], vertical_alignment="center", gap="medium")
        with stage:
            _draw_slider(store, client, run, deployment)
        with fault:
            _draw_switch(client, state["active"], deployment)
        speed = program_clock().speed
        hour, times = display.format_wait(3600 / speed), display.format_number(float(f"{speed:.2g}"))
        note.caption(plain(f"An emulated stack, {times} times as fast as the clock: one hour passes in {hour}."))


def _find_deployment(arm: Arm, deployments: Mapping[str, Any]) -> str | None:
    names = [selector.get("deployment_id") for selector in arm.selectors]
    return next((name for name in names if name in deployments), None)


def _draw_slider(store: History, client: ControlClient, run: CutoverRun, deployment: str) -> None:
    stages = run.frozen.plan.stages
    st.session_state["emulated_stage"] = run.stage

    def move() -> None:
        wanted = int(st.session_state["emulated_stage"])
        try:
            move_to(store, run, wanted)
            client.set_share(deployment, stages[wanted].share, follow_seconds=FOLLOW_SECONDS)
        except ServescopeError as error:
            st.session_state[_REFUSED] = str(error)

    st.select_slider(
        "Stage: v2's share of the requests",
        options=range(len(stages)),
        format_func=lambda index: display.format_planned(stages[index].share),
        key="emulated_stage",
        on_change=move,
    )


def move_to(store: History, run: CutoverRun, stage: int) -> None:
    """Write down that an emulated cutover moves to a stage; to an earlier one, by a rollback and another run."""
    path, now_ms = cutovers.journal_path(), selection.now_ms()
    if path is None:
        return
    if stage == run.stage:
        return
    evidence, _ = cutovers.judge_now(store, run)
    with CutoverJournal(path) as journal:
        if stage < run.stage:
            frozen = freeze_plan(store, run.frozen.plan, now_ms)
            back = Decision("rollback", now_ms, _BY, "the slider was moved to an earlier stage")
            write_decision(journal, run, back, evidence)
            run = start_run(journal, frozen, by=_BY, reason="another attempt after the rollback")
        while run.stage < stage:
            advance = Decision("advance", now_ms, _BY, "the slider was moved", next_stage(run))
            run = write_decision(journal, run, advance, evidence)


def _draw_switch(client: ControlClient, active: list[Mapping[str, Any]], deployment: str) -> None:
    """The switch of one fault of v2; what else is on is named."""
    on = [each for each in active if each["deployment"] in (None, deployment)]
    ours = next((each for each in on if each["kind"] in FAULTS), None)
    if ours is not None:
        st.session_state["emulated_fault"] = ours["kind"]
    st.session_state["emulated_switch"] = ours is not None

    def flip() -> None:
        try:
            if st.session_state["emulated_switch"]:
                kind = st.session_state["emulated_fault"]
                client.switch_on(kind, FAULTS[kind], deployment=deployment)
            elif ours is not None:
                client.switch_off(ours["id"])
        except ControlError as error:
            st.session_state[_REFUSED] = str(error)

    kind, switch = st.columns([3, 2], vertical_alignment="bottom")
    kind.selectbox(
        "Fault of v2", list(FAULTS), key="emulated_fault", disabled=ours is not None, format_func=fault_words.title_of
    )
    switch.toggle("On", key="emulated_switch", on_change=flip)
    others = [fault_words.title_of(each["kind"]) for each in on if each is not ours]
    if others:
        st.caption(plain(f"Also on: {', '.join(others)}"))
