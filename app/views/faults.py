"""Faults of the emulated stack: what is on, with its truths, and the switches of every kind."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import streamlit as st

from app import frame, selection
from app.cutovers import fault_words
from app.cutovers.fault_words import Dose
from app.data import queries
from app.elements import display, markup
from app.elements.plain import escape, plain, visible
from servescope.contract.figures import FIGURES
from servescope.emulator.faults.kinds import KINDS
from servescope.emulator.faults.truths import OBSERVATIONS, Truth
from servescope.emulator.server.control_client import EMULATOR_VARIABLE, TOKEN_VARIABLE, ControlClient, ControlError

WHOLE_STACK, EVERY_REPLICA = "the whole stack", "every replica"
_REFUSED = "fault_refused"
# A fault, a kind or a deployment, as the emulator describes it in JSON.
Description = Mapping[str, Any]


def show() -> None:
    """The page."""
    selection.adopt_link()
    notes = st.container()
    st.subheader("Faults", anchor=False)
    client = ControlClient(os.environ[EMULATOR_VARIABLE], token=os.environ.get(TOKEN_VARIABLE) or None)
    state = _read(client)
    deployment, replica = _choose_place(notes, state["deployments"])
    frame.repeat(lambda: draw(client, deployment, replica))


def draw(client: ControlClient, deployment: str, replica: str) -> None:
    """What is on, then every kind with its switch in the place chosen."""
    state = client.read()
    refused = st.session_state.pop(_REFUSED, None)
    if refused:
        st.error(plain(refused))
    st.caption(
        plain(
            f"emulated stack at {client.url} · {display.format_seconds(state['now_seconds'])} of emulated time · "
            f"refreshes every {frame.REFRESH.removesuffix('s')} s"
        )
    )
    draw_active(client, state)
    draw_kinds(client, state, deployment, replica)


def _read(client: ControlClient) -> Description:
    try:
        return client.read()
    except ControlError as error:
        frame.show_error(error)
        st.stop()


def _choose_place(notes: Any, deployments: Mapping[str, Description]) -> tuple[str, str]:
    """The deployment and the replica the switches are for, "" for all; the newest stack at first."""
    columns = st.columns(2)
    places = [*deployments, WHOLE_STACK]
    with columns[0]:
        place = selection.choose(
            notes, "place", places, list(deployments)[-1], st.selectbox, label="Where", format_func=visible
        )
    if place == WHOLE_STACK:
        return "", ""
    replicas = [EVERY_REPLICA, *deployments[place]["targets"]]
    with columns[1]:
        replica = selection.choose(
            notes, "replica", replicas, EVERY_REPLICA, st.selectbox, label="Replica", format_func=visible
        )  # fmt: skip
    return place, "" if replica == EVERY_REPLICA else replica


# --- What is on -------------------------------------------------------------------------------------------------------


def draw_active(client: ControlClient, state: Description) -> None:
    """Every fault that is on with its truths, each beside what the store shows now."""
    if not state["active"]:
        st.info("No fault is on: the other pages show the stack without faults.")
    for fault in state["active"]:
        with st.container(border=True):
            columns = st.columns([5, 1], vertical_alignment="top")
            columns[0].html(_describe_active(fault))
            columns[1].button(
                "Switch off", key=f"off_{fault['id']}", width="stretch",
                on_click=_attempt, args=(partial(client.switch_off, fault["id"]),),
            )  # fmt: skip
    for fault in state["scheduled"]:
        wait = display.format_seconds(max(fault["start_seconds"] - state["now_seconds"], 0.0))
        st.caption(plain(f"scheduled: {_name_fault(fault)}, in {wait} of emulated time"))


def _describe_active(fault: Description) -> str:
    title = markup.element("strong", escape(_name_fault(fault)))
    affected = f" · in {', '.join(fault['affects'])}" if fault.get("affects") else ""
    since = f" on for {display.format_seconds(round(fault['on_for_seconds']))}{affected}"
    head = title + markup.element("span", escape(since), "quiet")
    body = markup.element("div", escape(fault["summary"]))
    truths = "".join(markup.element("li", _describe_truth(truth, fault)) for truth in fault["truths"])
    shows = f"shows within {display.format_seconds(fault['shows_after_seconds'])}, as means over a minute:"
    listed = markup.element("div", escape(shows), "quiet") + markup.element("ul", truths) if truths else ""
    alerts = _expected_alerts(fault["kind"])
    expected = markup.element("div", alerts, "quiet") if alerts else ""
    return markup.element("div", head + body + listed + expected, "scope fault")


def _expected_alerts(kind: str) -> str:
    """The alerts to expect of a kind, each a link to its runbook; "" for one that alerts nobody."""
    names = fault_words.WORDS[kind].alerts
    return "Expect: " + ", ".join(markup.link("alerts", name, {"alert": name}) for name in names) if names else ""


def _name_fault(fault: Description) -> str:
    dosed = KINDS[fault["kind"]].intensity
    known = dosed is not None and fault["intensity"] is not None
    intensity = f" at {fault_words.dose_of(dosed.meaning).describe(fault['intensity'])}" if dosed and known else ""
    place = "/".join(each for each in (fault["deployment"], fault["replica"]) if each)
    return f"{fault_words.title_of(fault['kind'])}{intensity} in {place or WHOLE_STACK}"


def _describe_truth(statement: Description, fault: Description) -> str:
    truth = Truth(**statement)
    if truth.figure in FIGURES:
        figure = FIGURES[truth.figure]
        title, bounds = figure.title, truth.describe_bounds(lambda bound: display.format_value(bound, figure.unit))
    else:
        title, bounds = OBSERVATIONS[truth.figure], truth.describe_bounds()
    labels = "".join(f", {value}" for value in truth.labels.values())
    words = escape(f"{title}{labels}: {bounds}")
    shown = [f"{escape(name)} {markup.element('strong', escape(value))}" for name, value in _values_now(truth, fault)]
    return f"{words}{markup.element('span', ' · now ' + ', '.join(shown), 'quiet') if shown else ''}"


def _values_now(truth: Truth, fault: Description) -> Iterator[tuple[str, str]]:
    """What the store shows of the truth's figure in each deployment the fault is in."""
    if truth.figure not in FIGURES:
        return
    figure = FIGURES[truth.figure]
    latest = frame.open_store().latest_figures()
    for name, one in queries.list_deployments(frame.open_store()).items():
        if fault["deployment"] in (None, one.deployment.deployment_id) and one.deployment in latest:
            yield name, display.format_value(latest[one.deployment][1].get(truth.key), figure.unit)


# --- Switches ---------------------------------------------------------------------------------------------------------


def draw_kinds(client: ControlClient, state: Description, deployment: str, replica: str) -> None:
    """Every kind that can be in the place, with its switch and its intensity."""
    scope = "replica" if replica else "deployment" if deployment else "stack"
    parts = {part for name, each in state["deployments"].items() if deployment in ("", name) for part in each["parts"]}
    for group, kinds in groupby(state["kinds"], key=lambda kind: kind["group"]):
        st.markdown(f"**{plain(group)}**")
        for kind in kinds:
            place = (deployment, replica) if scope in kind["scopes"] else ("", "")
            # Of traffic there is a switch for the whole stack only, of a router none for one replica of it.
            possible = "stack" in kind["scopes"] and (kind["part"] is None or kind["part"] in parts)
            if place != (deployment, replica) and "deployment" in kind["scopes"]:
                possible = False
            _draw_switch(client, kind, state["active"], *place, possible=possible)


def _draw_switch(
    client: ControlClient,
    kind: Description,
    active: Sequence[Description],
    deployment: str,
    replica: str,
    *,
    possible: bool,
) -> None:
    place = (deployment or None, replica or None)
    on = [each for each in active if each["kind"] == kind["name"] and (each["deployment"], each["replica"]) == place]
    name = f"{kind['name']}_{deployment}_{replica}"
    columns = st.columns([2.6, 5.2, 1.3, 0.7], vertical_alignment="center")
    st.session_state[f"switch_{name}"] = bool(on)
    dose = None if kind["intensity"] is None else fault_words.dose_of(kind["intensity"]["meaning"])

    def flip() -> None:
        if st.session_state[f"switch_{name}"]:
            typed = st.session_state.get(f"intensity_{name}")
            intensity = None if typed is None or dose is None else round(typed / dose.factor, 9)
            _attempt(lambda: client.switch_on(kind["name"], intensity, deployment=deployment, replica=replica))
        else:
            for each in on:
                _attempt(partial(client.switch_off, each["id"]))

    columns[0].toggle(
        plain(fault_words.title_of(kind["name"])), key=f"switch_{name}", on_change=flip, disabled=not possible
    )
    columns[1].html(_describe_kind(kind))
    if dose is not None:
        columns[3].markdown(plain(dose.sign))
        if on:
            # Shown as it is on, and as it was typed again when it is off.
            columns[2].text_input(
                plain(kind["intensity"]["meaning"]), f"{on[0]['intensity'] * dose.factor:g}",
                key=f"running_{on[0]['id']}", label_visibility="collapsed", disabled=True,
            )  # fmt: skip
        else:
            _draw_intensity(columns[2], kind["intensity"], dose, name, disabled=not possible)


def _draw_intensity(column: Any, intensity: Description, dose: Dose, name: str, *, disabled: bool) -> None:
    number: Callable[[float], float] = int if intensity["whole"] else float
    lowest, highest, default = (
        number(round(intensity[part] * dose.factor, 9)) for part in ("lowest", "highest", "default")
    )
    column.number_input(
        plain(f"{intensity['meaning']}, in {dose.sign}"), lowest, highest, default,
        step=1 if intensity["whole"] else None, format=None if intensity["whole"] else "%g", key=f"intensity_{name}",
        label_visibility="collapsed", disabled=disabled,
    )  # fmt: skip


def _describe_kind(kind: Description) -> str:
    words = [f"in {WHOLE_STACK} only"] if kind["scopes"] == ["stack"] else []
    words += [kind["intensity"]["meaning"]] if kind["intensity"] else []
    words += ["in its oldest active replica"] if kind["one_replica"] else []
    words += [f"needs: {kind['part']}"] if kind["part"] else []
    words += [f"shows with {kind['needs']}"] if kind["needs"] else []
    lines = [escape(" · ".join(words)), _expected_alerts(kind["name"])]
    below = "".join(markup.element("div", line, "lower") for line in lines if line)
    return markup.element("div", escape(kind["summary"]) + below, "scope")


def _attempt(switch: Callable[[], object]) -> None:
    """Do it; an error of the emulator is shown at the top when the page is drawn again."""
    try:
        switch()
    except ControlError as error:
        st.session_state[_REFUSED] = str(error)


show()
