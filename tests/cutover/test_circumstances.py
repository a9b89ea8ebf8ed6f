"""What is said beside a verdict: that a deploy was reported with another configuration than the plan records."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servescope.contract.events import Event
from servescope.contract.samples import make_labels
from servescope.cutover.verdict.context import configuration_notes
from tests.support.cutover_evidence import Side, Story, evidence_of, plan_of

RECORDED, OTHER = "0a" * 32, "0b" * 32
EVIDENCE = evidence_of(Story(v1=Side(replicas=1), v2=Side(replicas=1), past_hours=1, hours=1))
PLAN = replace(plan_of(), configurations={"v1": RECORDED, "v2": RECORDED})


def deploy(at_ms: int, configuration: str = "", **labels: str) -> Event:
    """A deploy that was reported, of targets with these labels."""
    detail = {"by": "ci", **({"configuration": configuration} if configuration else {})}
    return Event(at_ms, "deploy", make_labels(labels), f"chat {at_ms}", make_labels(detail))


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ((), []),
        ((deploy(1, RECORDED, deployment_id="chat-v2"),), []),
        ((deploy(1, OTHER, deployment_id="chat-v2"),), ["v2"]),
        ((deploy(1, OTHER, inference_stack="v1"),), ["v1"]),
        ((deploy(1, OTHER, model_name="llama"),), ["v1", "v2"]),
        ((deploy(1, OTHER, deployment_id="code-v2"),), []),
        ((deploy(1, deployment_id="chat-v2"),), []),
        # The last deploy counts, in whatever order the log has them.
        ((deploy(2, RECORDED, deployment_id="chat-v2"), deploy(1, OTHER, deployment_id="chat-v2")), []),
    ],
)
def test_a_deploy_with_another_configuration_is_said(events: tuple[Event, ...], found: list[str]) -> None:
    """By the arm whose targets it is about, with the hashes of both."""
    notes = configuration_notes(PLAN, replace(EVIDENCE, events=events))

    assert notes == [
        f"{name} runs another configuration than the plan records: its deploy 'chat 1' reports {OTHER[:16]}, and "
        f"the plan has {RECORDED[:16]}"
        for name in found
    ]


def test_a_plan_without_hashes_says_nothing() -> None:
    """What is not recorded cannot differ."""
    assert not configuration_notes(plan_of(), replace(EVIDENCE, events=(deploy(1, OTHER, model_name="llama"),)))
