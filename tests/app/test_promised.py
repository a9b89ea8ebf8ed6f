"""The console promises what the rules alert on: the edge that an engine counts, and what an operator chose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("streamlit", reason="the console needs the extra 'console'")

from app.data import readings
from app.data.promised import promises_of
from servescope.alerting.rules.promises import objectives_of
from servescope.cli import main
from servescope.console import RULES_VARIABLE
from servescope.contract.figures import FIGURES
from servescope.contract.identity import Identity
from servescope.store.embedded import Store
from servescope.store.records import TargetStatus

FIRST_TOKEN, BETWEEN = FIGURES["time_to_first_token_p95"], FIGURES["inter_token_latency_p95"]
NEWEST, OLDER = "1.6", "before 1.6 (about 0.8)"


def target(source: str, versions: str = "") -> TargetStatus:
    """A target of a source."""
    return TargetStatus("a", "http://a", Identity("llama", "chat", "v1"), source=source, versions=versions)


@pytest.mark.parametrize(
    ("sources", "seconds"),
    [
        ([("vllm", "")], 2.5),
        ([("servescope", "")], 2.5),
        ([("sglang", "0.5.7 to about 0.5.9")], 4),
        ([("sglang", "before 0.4.5")], 2.5),
        ([("dynamo-frontend", NEWEST), ("dynamo-mocker", NEWEST)], 4.7),
        ([("dynamo-frontend", OLDER)], 4.7),
    ],
)
def test_a_first_token_is_read_at_the_edge_that_the_engine_counts(
    sources: list[tuple[str, str]], seconds: float
) -> None:
    """The line and the reading are where the rules compare: 2.5 s, or 4.7 s where 2.5 s is no edge."""
    promised = promises_of(target(*each) for each in sources)

    assert readings.objective_line(FIRST_TOKEN, promised) == (seconds, f"objective {seconds} s")
    within, beyond = (readings.read(FIRST_TOKEN, seconds + step, promised) for step in (-0.1, 0.1))
    assert within is not None
    assert within.rating.status == "good"
    assert beyond is not None
    assert beyond.rating.status == "warning"
    assert beyond.rating.advice.endswith(f"within {seconds} s.")


@pytest.mark.parametrize(
    ("source", "versions", "line"),
    [
        ("dynamo-frontend", NEWEST, (0.12, "objective 120 ms")),
        ("dynamo-frontend", OLDER, (0.16, "objective 160 ms")),
        ("vllm", "", None),
    ],
)
def test_engines_are_held_to_what_the_rules_hold_them_to(
    source: str, versions: str, line: tuple[float, str] | None
) -> None:
    """vLLM, which has the time per output token, to no gap between tokens; releases of Dynamo to their own edges."""
    assert readings.objective_line(BETWEEN, promises_of([target(source, versions)])) == line


def test_a_deployment_has_the_promises_that_the_rules_make_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its labels."""
    options = tmp_path / "options.toml"
    table = '[[alerts.objectives_of]]\ndeployment_id = "chat"\ntime_to_first_token = {seconds = 0.5}\n'
    options.write_text(f'[alerts]\nsources = ["vllm"]\n{table}', encoding="utf-8")
    monkeypatch.setenv(RULES_VARIABLE, str(options))
    code = replace(target("vllm"), identity=Identity("llama", "code", "v1"))

    lines = [readings.objective_line(FIRST_TOKEN, promises_of([each])) for each in (target("vllm"), code)]

    assert lines == [(0.5, "objective 500 ms"), (2.5, "objective 2.5 s")]


def test_without_a_known_source_every_edge_is_named() -> None:
    """Of targets that a Prometheus knows by name alone."""
    assert promises_of([target("")]) == objectives_of() == promises_of([])


def test_console_refuses_options_that_the_rules_refuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A latency that is no edge ends the command with the edges that there are."""
    Store(tmp_path / "s.db").close()
    rules = tmp_path / "options.toml"
    rules.write_text("[alerts.objectives]\ntime_to_first_token = { seconds = 2.51 }\n")
    code = main(["console", "--store", str(tmp_path / "s.db"), "--rules", str(rules), "--no-browser"])

    assert code == 2
    assert "alerts.objectives.time_to_first_token.seconds: 2.51 is wrong" in capsys.readouterr().err
