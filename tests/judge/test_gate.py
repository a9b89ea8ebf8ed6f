"""The judge's gate: open on a proof alone, and closed on anything else, an old proof included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from prometheus_client.parser import text_string_to_metric_families

from servescope.contract.identity import Identity
from servescope.contract.own_metrics import JUDGEMENT_AGE_SECONDS, OWN_METRICS
from servescope.cutover.judgement import VERDICTS, Verdict
from servescope.cutover.plan.plan import Arm
from servescope.judge.report.schema import judgement_schema
from servescope.web.settings import ApiSettings
from tests.judge.support.served_judge import JudgeScene, serving_judge
from tests.support.cutover_plans import frozen_plan
from tests.support.judgements import judgement

OPEN: dict[Verdict, tuple[int, int]] = {
    "HEALTHY": (200, 409), "DEGRADED": (409, 200), "INCONCLUSIVE": (409, 409), "NO DATA": (409, 409),
}  # fmt: skip
"""The statuses of `/gate` and `/rollback` by verdict."""


async def ask_both(scene: JudgeScene, method: str = "GET", **options: Any) -> tuple[int, int]:
    """The statuses of both hooks."""
    gate, _ = await scene.ask("/gate", method=method, **options)
    rollback, _ = await scene.ask("/rollback", method=method, **options)
    return gate, rollback


@pytest.mark.parametrize("verdict", VERDICTS)
async def test_each_hook_is_open_on_its_verdict_alone(verdict: Verdict, tmp_path: Path) -> None:
    """A GET and a POST with a body, such as Flagger's, alike; the judgement itself is always answered with 200."""
    async with serving_judge(tmp_path) as scene:
        scene.latest.succeed(judgement(verdict), scene.run)
        body = {"name": "chat", "namespace": "llm", "phase": "Progressing", "metadata": {}}
        got, posted, (status, shown), (_, refused) = (
            await ask_both(scene), await ask_both(scene, "POST", json=body), await scene.ask_json("/judgement"),
            await scene.ask_json("/gate"),
        )  # fmt: skip

    assert got == posted == OPEN[verdict]
    assert (status, shown["verdict"]) == (200, verdict)
    jsonschema.Draft202012Validator(judgement_schema()).validate(shown)
    assert refused == {
        "verdict": verdict, "reason": judgement(verdict).reason, "advice": judgement(verdict).advice, "plan": "chat",
        "stage": judgement(verdict).stage.index + 1,
    }  # fmt: skip


async def test_before_the_first_judgement_there_is_no_data(tmp_path: Path) -> None:
    """As the schema has it, with why where judging failed."""
    async with serving_judge(tmp_path) as scene:
        first = await scene.ask_json("/judgement")
        scene.latest.fail("store 'servescope.db': disk I/O error")
        (status, first), (_, failed), hooks = first, await scene.ask_json("/judgement"), await ask_both(scene)

    assert status == 200
    assert (first["verdict"], first["reason"]) == ("NO DATA", "Nothing was judged yet.")
    assert failed["reason"] == "Nothing was judged yet: store 'servescope.db': disk I/O error."
    assert hooks == (409, 409)
    jsonschema.Draft202012Validator(judgement_schema()).validate(failed)


async def test_an_old_judgement_is_no_health(tmp_path: Path) -> None:
    """Neither at the gate, nor in the judgement or any metric of it; until then it stays what it was."""
    async with serving_judge(tmp_path) as scene:
        scene.latest.succeed(judgement("HEALTHY"), scene.run)
        scene.pass_time(JUDGEMENT_AGE_SECONDS - 6)
        young = await ask_both(scene)
        scene.latest.fail("the Prometheus did not answer within 30 s")
        scene.pass_time(60)
        old, (status, shown) = (await ask_both(scene), await scene.ask_json("/judgement"))

    assert young == (200, 409)
    assert old == (409, 409)
    assert (status, shown["verdict"], shown["advice"]) == (200, "NO DATA", "hold")
    assert shown["reason"] == "The last judgement is 6 min old: the Prometheus did not answer within 30 s."
    assert {metric["verdict"] for metric in shown["metrics"]} == {"NO DATA"}


async def test_proven_harm_does_not_grow_old(tmp_path: Path) -> None:
    """A judge that fails after it has proven harm does not stop the rollback."""
    async with serving_judge(tmp_path) as scene:
        scene.latest.succeed(judgement("DEGRADED"), scene.run)
        scene.pass_time(86_400)
        assert await ask_both(scene) == (409, 200)


def read_metrics(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples of a page, without the label of the plan, which all have, and without empty labels."""
    return {
        (
            sample.name,
            frozenset(pair for pair in sample.labels.items() if pair[1] and pair != ("plan", "chat")),
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_judgement_is_exposed_as_metrics(tmp_path: Path) -> None:
    """The verdict as one of four, its age, the stage, and each metric's ratio, interval, margin and information."""
    async with serving_judge(tmp_path) as scene:
        scene.latest.succeed(judgement("DEGRADED"), scene.run)
        scene.telemetry.count_judgement(0.03, failed=False)
        scene.telemetry.count_judgement(0.03, failed=True)
        page = read_metrics((await scene.ask("/metrics"))[1])
    first = ("metric", "time_to_first_token_seconds")

    for verdict in VERDICTS:
        assert page["servescope_judgement", frozenset({("verdict", verdict)})] == (verdict == "DEGRADED")
    assert page["servescope_judgement_severity", frozenset({("severity", "beyond margin")})] == 1
    assert page["servescope_judgement_age_seconds", frozenset()] == 5.0
    assert page["servescope_judgement_latched", frozenset()] == 1
    assert page["servescope_judgement_stage", frozenset()] == 2
    assert page["servescope_judgement_planned_share_ratio", frozenset()] == 0.25
    assert page["servescope_judgement_metric_ratio", frozenset({first})] == 1.31
    assert page["servescope_judgement_metric_ratio_low", frozenset({first})] == 1.22
    assert page["servescope_judgement_metric_ratio_high", frozenset({first})] == 1.41
    assert page["servescope_judgement_metric_margin_ratio", frozenset({first})] == 0.1
    assert page["servescope_judgement_metric_information_ratio", frozenset({first})] == pytest.approx(2 / 3)
    assert page["servescope_judgement_metric_verdict", frozenset({first, ("verdict", "DEGRADED")})] == 1
    assert page["servescope_judgement_errors_total", frozenset()] == 1
    assert page["servescope_judgement_duration_seconds_count", frozenset()] == 2
    (info,) = (dict(labels) for name, labels in page if name == "servescope_judgement_info")
    assert info["plan_hash"] == judgement().plan_hash
    assert info["run"] == "1"


async def test_the_metrics_have_the_labels_that_all_targets_of_v2_share(tmp_path: Path) -> None:
    """So that a notification about the judgement is grouped with those about the deployment."""
    one = Identity("llama", "chat-v2", "v2", "production", replica="r0")
    two = replace(one, deployment_id="chat-v2-b", rollout_phase="stable", replica="r1")
    other = Identity("llama", "chat-v1", "v1", "staging")
    arm = Arm("v2", ({"inference_stack": "v2"},))

    async def labels(name: str, *identities: Identity) -> set[tuple[str, str]]:
        frozen = replace(frozen_plan(), judged=arm.shared_labels(identities))
        (tmp_path / name).mkdir()
        async with serving_judge(tmp_path / name, frozen=frozen) as scene:
            scene.latest.succeed(judgement("DEGRADED"), scene.run)
            page = read_metrics((await scene.ask("/metrics"))[1])
        found = {each - {("run", "1")} for metric, each in page if metric == "servescope_judgement_age_seconds"}
        return {pair for each in found for pair in each}

    shared = {("model_name", "llama"), ("inference_stack", "v2"), ("environment", "production")}
    assert await labels("one", one, other) == {*shared, ("deployment_id", "chat-v2")}
    assert await labels("two", one, two, other) == shared


async def test_the_page_has_the_records_of_the_judge_and_nothing_else(tmp_path: Path) -> None:
    """With their types, texts and labels; beside them it counts its clients and its process as the collector does."""
    async with serving_judge(tmp_path) as scene:
        scene.latest.succeed(judgement("INCONCLUSIVE"), scene.run)
        await scene.ask("/gate")
        families = {
            f"{family.name}_total" if family.type == "counter" else family.name: family
            for family in text_string_to_metric_families((await scene.ask("/metrics"))[1])
        }
    ours = {name: record for name, record in OWN_METRICS.items() if record.program == "judge"}
    shared = {name for name in OWN_METRICS if name.startswith(("servescope_api_", "process_"))}

    assert ours.keys() <= families.keys() <= ours.keys() | shared
    for name, record in ours.items():
        assert (families[name].type, families[name].documentation) == (record.kind, record.help), name
        for sample in families[name].samples:
            assert set(sample.labels) - {"le"} == set(record.labels), name


async def test_a_token_is_needed_where_one_is_configured(tmp_path: Path) -> None:
    """But not to see whether the judge lives."""
    tokens = tmp_path / "tokens"
    tokens.write_text("letmein\n")
    async with serving_judge(tmp_path, api=ApiSettings(bearer_token_file=tokens)) as scene:
        scene.latest.succeed(judgement("HEALTHY"), scene.run)
        allowed = {"Authorization": "Bearer letmein"}
        assert (
            (
                (await scene.ask("/gate"))[0],
                (await scene.ask("/judgement"))[0],
                (await scene.ask("/metrics"))[0],
                (await scene.ask("/healthz"))[0],
                (await scene.ask("/gate", headers=allowed))[0],
            )
        ) == (401, 401, 401, 200, 200)


async def test_a_page_of_a_web_site_cannot_ask(tmp_path: Path) -> None:
    """By a name that was rebound to this machine, nor by a POST from elsewhere."""
    async with serving_judge(tmp_path) as scene:
        rebound, _ = await scene.ask("/judgement", headers={"Host": "evil.example"})
        posted, _ = await scene.ask("/gate", method="POST", headers={"Origin": "https://evil.example"})
        assert (rebound, posted) == (421, 403)
