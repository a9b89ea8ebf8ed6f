"""Readiness: a configuration that is pasted, what a move to v2 changes of it, what has to be decided, and its files."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import streamlit as st

from app import frame, selection
from app.charts import charts
from app.elements import display
from app.elements.plain import Markdown, code, plain, visible, visible_lines
from app.readiness import measured, readiness, readiness_tables
from app.readiness.readiness import Answered, PastedText, Readiness
from servescope.errors import ServescopeError
from servescope.migration import report
from servescope.migration.report import FileReport
from servescope.migration.traffic.token_target import TokenTargets
from servescope.migration.translation.translation import Question
from servescope.store.history import History

_PASTED: Final = "readiness_pasted"
_ERROR: Final = "readiness_error"
_ROUND: Final = "readiness_round"
_SECRETS: Final = (
    "What you paste stays in the memory of this session until you forget it or close the page; nothing is written, "
    "logged or sent. Secrets are masked (••••••, numbers as 0) in everything that is shown, in the report and in the "
    "drafts. The files that have to work, config.yaml and the Management API's, are made when you download them and "
    "hold what you pasted."
)
_NUMBERS: Final = "readiness_numbers"
_WHOLE: Final = ("max_num_tokens", "max_seq_len", "max_batch_size", "num_nextn_predict_layers")
_LONGEST_DIFF: Final = 400


def show() -> None:
    """The page."""
    st.subheader("Readiness", anchor=False)
    pasted: PastedText | None = st.session_state.get(_PASTED)
    if pasted is None:
        draw_entry()
        return
    draw_head(pasted)
    frame.name_unseen(pasted.text)
    answer = st.container()
    try:
        questions = find_questions(pasted)
        answers = draw_answers(questions)
        numbers = draw_traffic(pasted)
        found = readiness.read_readiness(pasted, answers, numbers)
    except ServescopeError as error:
        answer.error(plain(error))
        return
    with answer:
        draw_status(found.shown)
    draw_readiness(found)


def find_questions(pasted: PastedText) -> list[Question]:
    """What is asked of the text, and what is asked further with the answers that were given already."""
    given = {
        str(key).removeprefix("answer_"): value
        for key, value in st.session_state.items()
        if str(key).startswith("answer_") and key != "answer_llm_config" and value not in (None, "", False)
    }
    first = readiness.read_readiness(pasted, Answered({})).shown.questions
    try:
        then = readiness.read_readiness(pasted, Answered(given)).shown.questions
    except ServescopeError:
        then = ()  # an answer is out of range, which is said when it is read with the others
    return [*first, *(each for each in then if each.flag not in {other.flag for other in first})]


# --- The text ---------------------------------------------------------------------------------------------------------


def draw_entry() -> None:
    """Where a configuration is pasted or uploaded, and what is done with it."""
    number = st.session_state.get(_ROUND, 0)
    st.markdown(
        "What does a move from v1 to v2 change for a deployment? Paste its `config.yaml`, the body of the Management "
        "API, or the backend server's JSON."
    )
    error = st.session_state.pop(_ERROR, None)
    if error:
        st.error(plain(error))
    st.text_area(
        "Configuration", key=f"readiness_text_{number}", height=320,
        placeholder="trt_llm:\n  build:\n    checkpoint_repository: {source: HF, repo: …}",
    )  # fmt: skip
    with st.container(horizontal=True, vertical_alignment="bottom"):
        st.button("Read what is pasted", type="primary", on_click=_take_paste)
        st.file_uploader(
            "Or a file", type=["yaml", "yml", "json", "v1"], key=f"readiness_file_{number}", on_change=_take_upload,
            max_upload_size=2, width=420,
        )  # fmt: skip
    st.caption(_SECRETS)


def _take_paste() -> None:
    text = st.session_state.get(f"readiness_text_{st.session_state.get(_ROUND, 0)}", "")
    if text.strip():
        _keep(readiness.take_paste(text))
    else:
        st.session_state[_ERROR] = "Nothing is pasted yet."


def _take_upload() -> None:
    file = st.session_state.get(f"readiness_file_{st.session_state.get(_ROUND, 0)}")
    if file is None:
        return
    try:
        _keep(readiness.take_upload(file.name, file.getvalue()))
    except ServescopeError as error:
        st.session_state[_ERROR] = str(error)
        _forget_widgets()


def _keep(pasted: PastedText) -> None:
    st.session_state[_PASTED] = pasted
    _forget_widgets()


def _forget_widgets() -> None:
    """Have new widgets, so that neither the browser nor the session keeps what the old ones held."""
    number = st.session_state.get(_ROUND, 0)
    for name in ("text", "file"):
        st.session_state.pop(f"readiness_{name}_{number}", None)
    st.session_state[_ROUND] = number + 1


def _forget() -> None:
    for key in [key for key in st.session_state if str(key).startswith(("readiness_", "answer_"))]:
        del st.session_state[key]


def draw_head(pasted: PastedText) -> None:
    """What is read, and how to forget it."""
    with st.container(horizontal=True, horizontal_alignment="distribute", vertical_alignment="center"):
        st.caption(f"{plain(pasted.name)} · {plain(pasted.extent)} · {_SECRETS}")
        st.button("Forget it", on_click=_forget)


# --- Answers ----------------------------------------------------------------------------------------------------------


def draw_answers(questions: Sequence[Question]) -> Answered:
    """What has to be decided, with an input for each answer, and what may be; by the options of the command."""
    options: dict[str, Any] = {}
    asked = [each for each in questions if each.kind == "asked"]
    blocking = [each for each in questions if each.kind == "blocking"]
    for question in blocking:
        remedy = f" Answer with {question.flag}." if question.flag else ""
        st.error(f"{plain(_describe(question))}.{plain(remedy)}")
    if asked:
        st.subheader("To be decided first", anchor=False)
    for question in asked:
        st.warning(plain(_describe(question)))
        name = question.flag.split(" ")[0].removeprefix("--").replace("-", "_")
        if (value := _ask(name, question.flag)) not in (None, ""):
            options[name] = value
    with st.expander("The Management API: speculation, routing, disaggregation and the token target"):
        return Answered(*_draw_body_answers(options))


def _describe(question: Question) -> Markdown:
    return Markdown(f"{code(question.path)} (line {question.line:d}) {plain(question.message)}")


def _ask(name: str, flag: str) -> Any:
    if name in _WHOLE:
        return st.number_input(plain(flag), min_value=1, value=None, step=1, key=f"answer_{name}", width=320)
    if name == "eagle3_one_model":
        return st.selectbox(plain(flag), ("yes", "no"), index=None, key=f"answer_{name}", width=320)
    return st.text_input(plain(flag), key=f"answer_{name}", width=420)


def _draw_body_answers(options: dict[str, Any]) -> tuple[dict[str, Any], str]:
    with st.container(horizontal=True, vertical_alignment="bottom"):
        if st.checkbox("--n-gram", key="answer_n_gram", help="speculate by n-grams, the nearest to v1's lookahead"):
            options["n_gram"] = True
        for name, flag in (
            ("target_in_flight_tokens", "--target-in-flight-tokens"), ("concurrency_target", "--concurrency-target"),
            ("tokens_per_request", "--tokens-per-request"),
        ):  # fmt: skip
            value = st.number_input(plain(flag), min_value=1, value=None, step=1, key=f"answer_{name}", width=230)
            if value is not None:
                options[name] = value
    llm_config = st.text_area(
        "--llm-config (JSON or YAML)", key="answer_llm_config", height=140,
        placeholder='{"speculative_config": {"decoding_type": "NGram"}}',
    )  # fmt: skip
    return options, llm_config


# --- The traffic ------------------------------------------------------------------------------------------------------


def draw_traffic(pasted: PastedText) -> TokenTargets | None:
    """What v1 served, read when it is asked for; with the target of the token autoscaler that fits it."""
    with st.expander("Numbers from the traffic that v1 served", expanded=_NUMBERS in st.session_state):
        try:
            history = frame.open_history()
            choices = measured.list_choices(history)
        except ServescopeError as error:
            frame.show_error(error)
            return None
        if not choices:
            st.info("No deployment was observed here, so no traffic can be read.")
            return None
        with st.container(horizontal=True, vertical_alignment="bottom"):
            chosen = st.selectbox("Deployment", choices, format_func=visible, key="readiness_deployment", width=420)
            hours = st.selectbox("Hours", (1, 3, 6, 12, 24, 48, 168), index=4, key="readiness_hours", width=160)
            if st.button("Read its traffic"):
                _measure(history, choices[chosen], pasted, hours)
        numbers: TokenTargets | None = st.session_state.get(_NUMBERS)
        if numbers is not None:
            draw_targets(numbers)
    return numbers


def _measure(history: History, labels: str, pasted: PastedText, hours: int) -> None:
    st.session_state.pop(_NUMBERS, None)
    try:
        config = readiness.mask_pasted(pasted)
        st.session_state[_NUMBERS] = measured.measure(history, labels, config, hours, selection.now_ms())
    except ServescopeError as error:
        st.error(plain(error))


def draw_targets(numbers: TokenTargets) -> None:
    """One target on what was served, chosen by sliders; the others in a table, and one recommended."""
    recommended = numbers.recommendation
    known = display.format_wait(3600 * numbers.known_hours)
    per_request = numbers.tokens.per_request
    st.markdown(
        f"**{recommended.target:,} tokens in flight** {'is recommended' if recommended.is_met else 'comes nearest'}: "
        f"{plain(recommended.reason)}."
    )
    st.caption(
        f"{plain(numbers.traffic.name)}, {plain(known)} known · {numbers.tokens_per_request:,.0f} tokens per request · "
        f"a request in flight holds {per_request.low:,.0f} to {per_request.high:,.0f} tokens, as size and duration are "
        f"joint · so {numbers.recommended_band.low:,.0f} to {numbers.recommended_band.high:,.0f} would have this "
        "effect · documented: 50 000 to 150 000"
    )
    highest = max([150_000, recommended.target, *(round(each.target or 0) for each in numbers.simulations)])
    with st.container(horizontal=True, vertical_alignment="bottom"):
        target = st.slider(
            "target_in_flight_tokens", 500, 2 * highest, recommended.target, 500, key="readiness_target", width=420
        )
        most = st.slider("max_replica", 1, max(2, 2 * numbers.served.max_replica), numbers.served.max_replica,
                         key="readiness_most", width=260)  # fmt: skip
        start = st.slider("seconds until a new replica serves", 0, 900, round(numbers.capacity.start_seconds), 10,
                          key="readiness_start", width=260)  # fmt: skip
        st.button("Take this target", on_click=_take_target, args=(target,))
    simulation = measured.simulate(numbers, target, most, start)
    charts.show_grid([measured.draw_replicas(numbers, simulation), measured.draw_tokens(numbers, simulation)], 2)
    st.html(measured.draw_targets(numbers, simulation))
    for note in numbers.notes:
        st.caption(plain(display.as_sentence(note)))


def _take_target(target: int) -> None:
    st.session_state["answer_target_in_flight_tokens"] = target


# --- What becomes of it -----------------------------------------------------------------------------------------------


def draw_readiness(found: Readiness) -> None:
    """The answer first, then the files, then what changes, and what that means."""
    shown = found.shown
    if shown.findings:
        st.html(readiness_tables.draw_findings(shown.findings))
    draw_files(found)
    if shown.changes and shown.status != "error":
        st.subheader("Fields", anchor=False)
        st.html(readiness_tables.draw_changes(shown.changes))
    if shown.meaning:
        st.subheader("What changes beside the fields", anchor=False)
        st.html(readiness_tables.draw_meaning(shown.meaning))
    if advice := found.advice():
        st.subheader("What the traffic says", anchor=False)
        st.html(measured.draw_advice(advice))
    draw_call(shown)
    draw_diff(shown)
    checklist = report.checklist_of(shown)
    if checklist is not None:
        st.subheader("After the move", anchor=False)
        st.html(readiness_tables.draw_checklist(tuple(checklist.lines())))


def draw_status(shown: FileReport) -> None:
    """Whether it can be moved, in the words of the command."""
    line = report.describe(shown).partition("\n")[0].removeprefix(f"{shown.name}: ")
    if shown.status == "error":
        st.error(plain(line))
    elif shown.status == "asked":
        st.warning(plain(line))
    elif shown.status == "changed":
        tier = shown.body.enterprise if shown.body is not None else ()
        needs = f" It needs the Enterprise tier: {', '.join(tier)}." if tier else ""
        st.success(plain(f"{line}: it can be moved.{needs}"))
    else:
        st.info(plain(line))


def draw_files(found: Readiness) -> None:
    """Every output as a file; those that have to work hold what was pasted, the others are masked."""
    working, drafts = found.files(), found.drafts()
    with st.container(horizontal=True, vertical_alignment="center"):
        for name in working:
            st.download_button(
                plain(name), data=partial(_make_file, found, name), file_name=name, on_click="ignore",
                type="primary", key=f"readiness_save_{name}", help="as you pasted it, secrets included",
            )  # fmt: skip
        for name, text in drafts.items():
            st.download_button(
                plain(name), data=text, file_name=name, on_click="ignore", type="tertiary",
                key=f"readiness_draft_{name}", help="secrets are masked",
            )  # fmt: skip
    if found.shown.status == "changed" and (why := found.unrehearsed()):
        st.caption(plain(f"No rehearsal: {why}"))


def _make_file(found: Readiness, name: str) -> str:
    return found.files()[name]


def draw_call(shown: FileReport) -> None:
    """The call of the Management API, ready to paste."""
    if shown.body is not None and shown.body.call and shown.status == "changed":
        st.subheader("The call of the Management API", anchor=False)
        if shown.body.findings:
            st.html(readiness_tables.draw_findings(shown.body.findings))
        st.code(visible_lines(shown.body.call), language="shell", wrap_lines=True)


def draw_diff(shown: FileReport) -> None:
    """The unified diff; the beginning of a long one."""
    lines = report.diff(shown).splitlines()
    if not lines:
        return
    st.subheader("Diff", anchor=False)
    st.code(visible_lines("\n".join(lines[:_LONGEST_DIFF])), language="diff", height=min(460, 60 + 22 * len(lines)))
    if len(lines) > _LONGEST_DIFF:
        st.caption(f"The first {_LONGEST_DIFF} of {len(lines)} lines; migration.diff has all of them.")


show()
