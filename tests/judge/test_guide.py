"""docs/cutover.md names everything that a plan and the command take, and its examples are right."""

from __future__ import annotations

import argparse
import re
import tomllib

import pytest

from servescope.contract.judged import JUDGED
from servescope.cutover.plan.files import _METRIC_SETTINGS, _PLAN_SETTINGS, _STAGE_SETTINGS, parse_plan
from servescope.judge import command
from servescope.judge.command import DEFAULT_LISTEN
from servescope.judge.verbs import VERBS
from tests.conftest import ROOT
from tests.support.cutover_plans import LEAST_PLAN

PAGE = (ROOT / "docs" / "cutover.md").read_text(encoding="utf-8")
# The options by which a Prometheus is accessed are on the console's page.
ACCESS = {"--bearer-token-file", "--username", "--password-file", "--header", "--ca-file"}


def test_the_least_plan_of_the_page_is_one() -> None:
    """It is the one that the tests use, with a stage to advance to."""
    (example,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)

    assert example.startswith(LEAST_PLAN)
    assert parse_plan(tomllib.loads(example), "cutover.toml").name == "cutover"


@pytest.mark.parametrize("settings", [_PLAN_SETTINGS, _STAGE_SETTINGS, _METRIC_SETTINGS])
def test_every_key_of_a_plan_is_documented(settings: tuple[tuple[str, str], ...]) -> None:
    """In the table of keys."""
    for key, _ in settings:
        assert re.search(rf"^\| .*`?\[?\[?{key}\]?\]?`", PAGE, re.MULTILINE), key


def test_every_metric_that_can_be_judged_is_documented() -> None:
    """With whether it is required."""
    rows = [line for line in PAGE.splitlines() if line.startswith("| `") and line.endswith((" yes |", " no |"))]
    for name, metric in JUDGED.items():
        (row,) = (line for line in rows if f"`{name}`" in line)
        assert row.endswith(" yes |" if metric.required else " no |"), name


def test_every_verb_and_option_is_documented() -> None:
    """On this page or on that of the gates."""
    text = PAGE + (ROOT / "docs" / "judge-gates.md").read_text(encoding="utf-8")
    parser = argparse.ArgumentParser()
    command.configure(parser)
    (verbs,) = (each.choices for each in parser._actions if isinstance(each, argparse._SubParsersAction))

    assert verbs.keys() == VERBS.keys()
    for name, verb in verbs.items():
        assert f"| `{name}` |" in PAGE
        for action in verb._actions:
            for option in action.option_strings:
                assert option in text or option in (*ACCESS, "-h", "--help"), f"{name} {option}"
    assert DEFAULT_LISTEN in PAGE
