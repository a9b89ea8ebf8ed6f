"""The readiness page: what becomes of a pasted configuration, and that no secret of it is shown or kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st_

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from streamlit.testing.v1 import AppTest

from app import selection
from app.readiness import readiness
from app.readiness.readiness import Answered, PastedText, take_paste, take_upload
from servescope.emulator.workload.mixes import Mix
from servescope.errors import ServescopeError
from servescope.migration import report
from servescope.migration.document.document import LARGEST_BYTES, read_document
from tests.migration.oracle.cases import make_cases
from tests.support.commands import run
from tests.support.console_pages import html, open_view, read
from tests.support.drawing import examples
from tests.support.migrations import ASKED, MOVED, STAYS, V1, WRONG
from tests.support.served_traffic import EmulatedPast, record_past

pytestmark = pytest.mark.slow

SECRET = "hunter2hunter2"  # the tests' own
WITH_SECRET = f"{V1}environment_variables: {{DB_PASSWORD: {SECRET}}}\n# the token={SECRET} is in use\n"


@pytest.fixture
def page(empty_store: Path) -> AppTest:
    """The page of a console on an empty store."""
    return open_view("readiness")


def paste(page: AppTest, text: str) -> AppTest:
    """Paste a text and have it read."""
    page.text_area[0].set_value(text)
    page.button[0].click().run()
    assert not page.exception, page.exception[0].message
    return page


def press(page: AppTest, label: str) -> None:
    """Press a button by its label."""
    next(each for each in page.button if each.label == label).click().run()
    assert not page.exception, page.exception[0].message


def everything(page: AppTest) -> str:
    """All that the page shows, in widgets too, and how what it keeps would be shown."""
    elements = [str(getattr(each, "value", "")) + str(getattr(each, "label", "")) for each in page.main]
    return "\n".join([html(page), *elements, repr(page.session_state["readiness_pasted"])])


def test_an_empty_page_says_what_to_do(page: AppTest) -> None:
    """What may be pasted, and what becomes of it; a click without a text says so."""
    assert "Paste its `config.yaml`" in page.markdown[0].value
    assert "Secrets are masked" in page.caption[0].value
    page.button[0].click().run()
    assert page.error[0].value == "Nothing is pasted yet."


def test_a_configuration_is_answered(page: AppTest) -> None:
    """Status, fields, meaning, diff, checklist, and every output as a file."""
    paste(page, V1)

    assert page.success[0].value == "v1 → v2: it can be moved."
    text = html(page)
    for part in ("build.speculator", "v2 does not support lookahead decoding", "Clients", "Alerts that end with v1"):
        assert part in text
    assert "+  inference_stack: v2" in page.code[0].value
    names = [each.proto.label for each in page.get("download_button")]
    assert names == ["config.yaml", "migration.json", "migration.diff", "cutover.toml", "servescope.toml",
                     "rehearsal.toml", "after.md"]  # fmt: skip


def test_no_secret_is_shown_or_kept(page: AppTest) -> None:
    """Nor in the widgets that it was pasted into; the downloaded file has it, as it has to work."""
    paste(page, WITH_SECRET)

    assert page.success[0].value == "v1 → v2: it can be moved."
    assert SECRET not in everything(page)
    found = readiness.read_readiness(take_paste(WITH_SECRET), Answered({}))
    assert SECRET in found.files()["config.yaml"]
    assert not [name for name, text in found.drafts().items() if SECRET in text]
    assert SECRET not in repr(found)


def test_a_secret_in_the_environment_is_warned_of(page: AppTest) -> None:
    """As by the command: by its place, without the secret; what is masked is read as it is."""
    token = "hf_abcdefghijklmnopqrstuvwxyz0123"
    paste(page, f"{V1}environment_variables: {{ANY: {token}, URL: 'https://joe:{SECRET}@host/x'}}\n")

    text = html(page)
    for name in ("ANY", "URL"):
        assert f"environment_variables.{name}" in text
    assert text.count("has a secret in it: never store one here, expected it in secrets") == 2
    assert token not in everything(page)
    assert SECRET not in everything(page)


@pytest.mark.parametrize("answer", [{}, {"max_num_tokens": 8192}])
def test_the_page_finds_what_the_command_finds(tmp_path: Path, answer: dict[str, int]) -> None:
    """The same findings, questions and fields of every configuration, secrets among them or not."""
    words = [word for name, value in answer.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    token = "hf_abcdefghijklmnopqrstuvwxyz0123"
    cases = {
        **{name: text for number, (name, text) in enumerate(make_cases().items()) if number % 11 == 0},
        "tokens": f"{WITH_SECRET}secrets: {{a: {SECRET}}}\nfoo: {token}\nmodel_cache: {token}\n",
        "variables": f"{V1}environment_variables: {{A: {token}, {token}: x, B: 'https://a:{SECRET}@h', C: [1]}}\n",
        "waiting": f"{ASKED}environment_variables: {{A: {token}}}\n",
        "broken": f"environment_variables: {{A: {token}\nb: ]",
    }
    for text in cases.values():
        path = tmp_path / "config.yaml"
        path.write_text(text, encoding="utf-8")
        (shown,) = json.loads(run("migrate", str(path), "--format", "json", *words).stdout)["files"]
        try:
            found = report.to_json([readiness.read_readiness(take_paste(text), Answered(answer)).shown])["files"][0]
        except ServescopeError as error:  # of reading, which is the status of a file for the command
            found = {"status": "error", "error": f"{path.parent.as_posix()}/{error}"}
        for key in found.keys() & {"status", "findings", "questions", "changes", "meaning", "hash", "new_hash"}:
            assert found[key] == shown[key], (text, key)
        assert "findings" in found or found["error"] == shown["error"]


def test_it_is_forgotten(page: AppTest) -> None:
    """On a click the page is empty again, and so is the session."""
    paste(page, WITH_SECRET)
    press(page, "Forget it")

    assert "Paste its `config.yaml`" in page.markdown[0].value
    assert "readiness_pasted" not in page.session_state


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (MOVED, "info", "declares v2 already: nothing to do"),
        (STAYS, "error", "encoders stay on v1"),
        (WRONG, "error", "1 error: nothing was translated"),
        ("a: [", "error", "config.yaml:1:5: not YAML"),
        ("{'a': 1", "error", "not YAML"),
        ("x: " + "1" * LARGEST_BYTES, "error", "expected at most"),
        ('{"llm_config": {"is_disaggregated": true}}', "error", "a body of the Management API with errors"),
    ],
)
def test_what_cannot_be_moved_is_said(page: AppTest, text: str, kind: str, message: str) -> None:
    """In the words of the command, without a traceback."""
    paste(page, text)

    assert any(message in read(each.value) for each in getattr(page, kind))


def test_a_question_has_an_input_that_answers_it(page: AppTest) -> None:
    """By the option of the command; an answer out of range is the command's error."""
    paste(page, ASKED)
    assert "an answer is needed" in page.warning[0].value
    answer = next(each for each in page.number_input if each.label == "--max-num-tokens N")
    answer.set_value(1).run()
    assert "--max-num-tokens is 1, expected 65 to 131072" in page.error[0].value
    next(each for each in page.number_input if each.label == "--max-num-tokens N").set_value(8192).run()
    assert page.success[0].value == "v1 → v2: it can be moved."


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> EmulatedPast:
    """A store with an hour of an emulated v1."""
    folder = tmp_path_factory.mktemp("served")
    return record_past(folder / "served.db", minutes=65, mix=Mix(requests_per_second=0.25, oversized_share=0.0))


def test_a_target_is_taken_from_the_traffic(
    served: EmulatedPast, page: AppTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was served is simulated with targets; the one that is taken is in the call, the traffic in the rehearsal."""
    monkeypatch.setenv("SERVESCOPE_STORE", str(served.store))
    monkeypatch.setattr(selection, "now_ms", lambda: served.end_ms)
    paste(page, V1)
    press(page, "Read its traffic")

    assert "tokens in flight** " in "".join(each.value for each in page.markdown)
    assert "as chosen here" in html(page)
    assert "KV-aware routing" in html(page)
    page.slider(key="readiness_target").set_value(4000).run()
    press(page, "Take this target")
    assert '"target_in_flight_tokens": 4000' in page.code[0].value
    assert "is 4000, outside of the documented 50000 to 150000 tokens" in html(page)
    numbers = page.session_state["readiness_numbers"]
    drafts = readiness.read_readiness(take_paste(V1), Answered({}), numbers).drafts()
    assert "was observed: " in drafts["rehearsal.toml"]
    assert json.loads(drafts["migration.json"])["traffic"] is not None


def test_a_store_without_traffic_says_so(page: AppTest) -> None:
    """The page works without one."""
    paste(page, V1)

    assert any("No deployment was observed here" in each.value for each in page.info)
    assert page.success[0].value == "v1 → v2: it can be moved."


def test_what_is_decided_is_in_the_call(page: AppTest) -> None:
    """Speculation, and a block of one's own, which is checked."""
    paste(page, V1)
    page.checkbox[0].check().run()
    assert '"decoding_type": "NGram"' in page.code[0].value
    next(each for each in page.text_area if "--llm-config" in each.label).set_value('{"is_disaggregated": 3}').run()
    assert "is_disaggregated" in page.error[0].value


def test_an_upload_is_read_like_a_paste() -> None:
    """By its name, and by its content."""
    assert take_upload("x.JSON", b"{}").name == "config.json"
    assert take_upload("config.yaml.v1", V1.encode()).name == "config.yaml"
    assert take_paste(json.dumps({"llm_config": {}})).name == "config.json"
    assert take_paste("{a: 1}").name == "config.yaml"
    with pytest.raises(ServescopeError, match="expected UTF-8 text"):
        take_upload("x.yaml", b"\xff")


@settings(max_examples=examples(25), deadline=None)
@given(
    st_.text("abcdefghijkmnpqrstABCDEFGHJK23456789!#%&*@:'\"[]{},-+/=\\ ", min_size=14, max_size=30)
    .map(str.strip).filter(lambda each: len(each) >= 12),
    st_.sampled_from(("api_token", "DB_PASSWORD", "awsSecretKey")),
)  # fmt: skip
def test_no_generated_secret_is_in_what_is_shown(secret: str, name: str) -> None:
    """In the report, the diff, the JSON and every draft; the file to download has it."""
    text = f"{V1}environment_variables:\n  {name}: {json.dumps(secret)}\nsecrets:\n  a: {json.dumps(secret)}\n"
    found = readiness.read_readiness(take_paste(text), Answered({}))
    shown = f"{found!r}{found.drafts()}"

    assert json.dumps(secret)[1:-1] not in shown
    assert secret not in shown
    moved = read_document(found.files()["config.yaml"], "config.yaml").value
    assert (moved["secrets"]["a"], moved["environment_variables"][name]) == (secret, secret)


def test_a_file_has_as_many_lines_as_end() -> None:
    """The line break at its end begins no further one."""
    assert [PastedText("x", text).extent for text in ("a", "a\n", "a\nb", "a\n" * 13, "")] == [
        "1 line", "1 line", "2 lines", "13 lines", "0 lines",
    ]  # fmt: skip
