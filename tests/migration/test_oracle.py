"""The vendor's published tool beside ours: nothing that it refuses is accepted, and it accepts what we translate."""

from __future__ import annotations

import pytest

from tests.migration.oracle.cases import make_cases, make_mutants
from tests.migration.oracle.verdicts import (
    NOT_ALLOWED,
    PAGE,
    ask,
    ask_on,
    fill_page,
    find_differences,
    judge,
    read_verdicts,
    translations,
)

CASES = make_cases()


def test_there_are_enough_cases_of_every_kind() -> None:
    """The committed verdicts are of these cases."""
    assert read_verdicts()["cases"].keys() == CASES.keys(), "run `python -m tests.migration.oracle --write`"
    assert len(CASES) > 300
    assert sum(name.startswith("documented: ") for name in CASES) > 20
    assert 100 < sum(not verdict for verdict in read_verdicts()["cases"].values()) < 250


def test_what_the_tool_refuses_is_refused() -> None:
    """Without exception."""
    verdicts = read_verdicts()["cases"]

    assert [(name, verdicts[name]) for name, text in CASES.items() if verdicts[name] and not judge(text)[0]] == []


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith(("documented: ", "generated "))])
def test_what_the_documents_show_is_accepted(name: str) -> None:
    """By both, and so is what is generated."""
    assert read_verdicts()["cases"][name] == ""
    assert judge(CASES[name])[0] == ()


def test_the_documented_message_is_the_tools() -> None:
    """Up to trailing punctuation."""
    said = {
        name: found.group()
        for name, verdict in read_verdicts()["cases"].items()
        if (found := NOT_ALLOWED.search(verdict))
    }

    assert len(said) >= 8
    for name, sentence in said.items():
        assert any(sentence in error for error in judge(CASES[name])[0]), name


@pytest.mark.slow
def test_what_is_translated_is_accepted() -> None:
    """Each file as the tool was shown it."""
    verdicts = read_verdicts()["translated"]
    now = translations()

    assert now.keys() == verdicts.keys(), "run `python -m tests.migration.oracle --write`"
    assert len(now) > 50
    assert {name: verdict for name, verdict in verdicts.items() if verdict} == {}


def test_the_page_lists_where_we_are_stricter() -> None:
    """Generated from the same verdicts."""
    assert PAGE.read_text(encoding="utf-8") == fill_page(), "run `python -m tests.migration.oracle --write`"


@pytest.mark.proof
def test_the_committed_verdicts_are_those_of_the_tool() -> None:
    """Asked anew, in an environment of its own."""
    assert find_differences(ask(), read_verdicts()) == []


@pytest.mark.proof
@pytest.mark.parametrize("seed", range(3))
def test_no_mutant_that_the_tool_refuses_is_accepted(seed: int) -> None:
    """A thousand configurations each with a value or two that somebody might write by mistake."""
    mutants = make_mutants(seed, 1000)
    verdicts = ask_on(mutants)

    assert 200 < sum(not verdict for verdict in verdicts.values()) < 800
    assert [(verdicts[name], text) for name, text in mutants.items() if verdicts[name] and not judge(text)[0]] == []
