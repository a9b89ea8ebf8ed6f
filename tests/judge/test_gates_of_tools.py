"""The examples of docs/judge-gates.md, evaluated as the tools' documentation says they are evaluated.

Argo Rollouts (its pages on analysis and on the web provider): a GET that must be answered with 2xx; the
value at `jsonPath` is `result` in both conditions. Failed when the failure condition holds, Successful when the success
condition does, and Inconclusive, which pauses the rollout, when neither does.

Flagger (its page on webhooks): a POST with the canary as JSON; 200 to 202 go on, or roll back for `rollback`.
"""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from servescope.cutover.judgement import VERDICTS, Verdict
from servescope.judge.verbs import EXIT_CODES
from tests.conftest import ROOT
from tests.judge.support.served_judge import serving_judge
from tests.support.judgements import judgement

PAGE = (ROOT / "docs" / "judge-gates.md").read_text(encoding="utf-8")
PHASES: dict[Verdict, str] = {
    "HEALTHY": "Successful", "DEGRADED": "Failed", "INCONCLUSIVE": "Inconclusive", "NO DATA": "Inconclusive",
}  # fmt: skip


def blocks(language: str) -> list[str]:
    """The fenced blocks of the page in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def example(key: str) -> Any:
    """The YAML example that has a key at its top."""
    return next(found for found in map(yaml.safe_load, blocks("yaml")) if key in found)


def evaluate(condition: str, result: object) -> bool:
    """A condition in expr-lang over `result`, as far as the examples use it: a comparison with a text."""
    tree = ast.parse(condition, mode="eval").body
    assert isinstance(tree, ast.Compare), condition
    assert isinstance(tree.ops[0], ast.Eq), condition
    assert ast.unparse(tree.left) == "result", condition
    return bool(result == ast.literal_eval(tree.comparators[0]))


def measure(metric: Any, status: int, body: Any) -> str:
    """The phase of a measurement by Argo's web metric."""
    if not 200 <= status < 300:
        return "Error"
    (path,) = re.findall(r"^\{\$\.(\w+(?:\.\w+)*)\}$", metric["provider"]["web"]["jsonPath"])
    for name in path.split("."):
        body = body[name]
    if evaluate(metric["failureCondition"], body):
        return "Failed"
    return "Successful" if evaluate(metric["successCondition"], body) else "Inconclusive"


@pytest.mark.parametrize("verdict", VERDICTS)
async def test_argo_goes_on_aborts_or_pauses(verdict: Verdict, tmp_path: Path) -> None:
    """On HEALTHY, on DEGRADED, and on anything else."""
    (metric,) = example("kind")["spec"]["metrics"]
    url = metric["provider"]["web"]["url"].replace("{{ args.judge }}", "")
    async with serving_judge(tmp_path) as scene:
        scene.latest.succeed(judgement(verdict), scene.run)
        assert measure(metric, *(await scene.ask_json(url))) == PHASES[verdict]


async def test_argo_pauses_before_the_first_judgement_and_when_it_is_old(tmp_path: Path) -> None:
    """Neither is a success or a failure."""
    (metric,) = example("kind")["spec"]["metrics"]
    async with serving_judge(tmp_path) as scene:
        phases = [measure(metric, *await scene.ask_json("/judgement"))]
        scene.latest.succeed(judgement("HEALTHY"), scene.run)
        scene.pass_time(3600)
        assert [*phases, measure(metric, *await scene.ask_json("/judgement"))] == ["Inconclusive", "Inconclusive"]


@pytest.mark.parametrize("verdict", VERDICTS)
async def test_flagger_goes_on_rolls_back_or_holds(verdict: Verdict, tmp_path: Path) -> None:
    """Its confirm hooks go on by HEALTHY alone, and its rollback hook by DEGRADED alone."""
    hooks = example("analysis")["analysis"]["webhooks"]
    async with serving_judge(tmp_path) as scene:
        scene.latest.succeed(judgement(verdict), scene.run)
        answered = {}
        for hook in hooks:
            payload = {"name": "chat", "namespace": "llm", "phase": "Progressing", "checksum": "85d557f47b"}
            path = hook["url"].removeprefix("http://servescope-judge:9910")
            status, _ = await scene.ask(path, method="POST", json=payload)
            answered[hook["type"]] = 200 <= status <= 202
        assert answered == {
            "confirm-traffic-increase": verdict == "HEALTHY",
            "confirm-promotion": verdict == "HEALTHY",
            "rollback": verdict == "DEGRADED",
        }


@pytest.mark.parametrize(("code", "said"), [(0, "go on"), (10, "roll back"), (11, "hold"), (12, "hold"), (1, "failed")])
def test_a_pipeline_goes_on_by_health_alone(code: int, said: str, tmp_path: Path) -> None:
    """The example, with a `servescope` that ends with the code of a verdict, or of a failure."""
    script = next(block for block in blocks("bash") if "judge run" in block)
    fake = tmp_path / "servescope"
    fake.write_text(f"#!/bin/sh\nexit {code}\n", encoding="utf-8")
    fake.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, capture_output=True, text=True, check=False
    )

    assert said in done.stdout
    assert (done.returncode == 0) == (code == EXIT_CODES["HEALTHY"])


def test_the_codes_of_the_page_are_those_of_the_command() -> None:
    """Each verdict with its own."""
    for verdict, code in EXIT_CODES.items():
        assert f"{code} {verdict}" in PAGE
