"""A receiver that was away: what agents send late is stored, no page resolves, and totals that lack some are marked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from servescope.contract.own_metrics import COVERAGE_SERIES
from tests.conftest import ROOT
from tests.support.past_one_machine import PastOneMachine, kill, past_one_machine, unsent_seconds
from tests.support.prometheus import Range, running
from tests.support.recorded_targets import Recording, serving_recordings
from tests.support.waiting import wait_for

RECEIVER = ROOT / "deploy" / "prometheus" / "receiver.yml"
HOURS_KEPT = 4
"""For so long an agent keeps what it could not send (`--storage.agent.retention.max-time`)."""
_HOUR_MS = 3_600_000


@pytest.mark.slow
@pytest.mark.parametrize("program", ["prometheus", "prometheus_3"])
def test_receiver_stores_what_agents_kept_for_it(program: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Behind newer samples, such as its own, or those of an agent that caught up first."""
    document: dict[str, Any] = yaml.safe_load(RECEIVER.read_text(encoding="utf-8"))
    config = {"storage": document["storage"]} if "storage" in document else {}
    now_ms = round(time.time() * 1000)
    moments = [now_ms, *(now_ms - round(_HOUR_MS * hours) for hours in (0.5, 2, HOURS_KEPT - 0.1))]
    binary: Path = request.getfixturevalue(program)
    with running(binary, tmp_path, config, options=["--web.enable-remote-write-receiver"]) as receiver:
        for number, moment in enumerate(moments):
            receiver.write([("output_tokens_total", {"replica": f"r{number}"}, 1.0, moment)])
        stored = receiver.read_samples("output_tokens_total", end_ms=now_ms, range_ms=HOURS_KEPT * _HOUR_MS)
    assert {dict(one.labels)["replica"]: list(one.times) for one in stored} == {
        f"r{number}": [moment] for number, moment in enumerate(moments)
    }


# --- Five minutes -----------------------------------------------------------------------------------------------------

TIMES = 15
"""How many times as fast time passes."""
AWAY_SECONDS = 300 / TIMES
_DOWN, _STEADY = 20, 30
_EVALUATION_MS = 15_000 // TIMES
_JITTER = 0.25
"""A page is rendered some time after its scrape began, which is much of a window this short."""
_PAGE = "ServescopeDeploymentDown"


@pytest.mark.proof
def test_five_minutes_without_the_receiver_resolve_nothing_and_are_marked(
    any_captures: Path, prometheus: Path, prometheus_3: Path, alertmanager: Path, tmp_path: Path
) -> None:
    """Twenty deployments page before and after: none is said to be over, and none is paged again."""
    recordings = [
        Recording(str(any_captures / "vllm-0.32.0-1.txt"), 1 + number / 100) for number in range(_DOWN + _STEADY)
    ]
    with (
        serving_recordings(recordings, tmp_path) as targets,
        past_one_machine(
            tmp_path / "stack",
            _groups(targets.addresses),
            prometheus=prometheus,
            receiver=prometheus_3,
            alertmanager=alertmanager,
            times=TIMES,
        ) as stack,
    ):
        whole = f"min({COVERAGE_SERIES}) > 0.9 and count(servescope_probe_success) == {_DOWN + _STEADY}"
        wait_for(lambda: _holds(stack, f"{whole} and on () count({_rates()}) == {_STEADY}"), "whole windows")
        targets.cut_off(range(_DOWN))
        wait_for(lambda: _paged(stack, "firing", _PAGE) >= _DOWN, "the pages")
        began, posts = time.time(), len(stack.receivers.sent())
        kill(stack.receiver)
        wait_for(lambda: min(map(unsent_seconds, stack.agents)) > AWAY_SECONDS, "what the agents keep of five minutes")
        stack.receiver.start()
        stack.receiver.wait_until_ready()
        wait_for(
            lambda: _holds(stack, f"min(min_over_time({COVERAGE_SERIES}[{AWAY_SECONDS:g}s])) > 0.9"), "the windows"
        )
        # Until after what fired before would have had to be sent again.
        wait_for(
            lambda: len(stack.firing() & {(_PAGE, f"chat-{number}") for number in range(_DOWN)}) == _DOWN, "alerts"
        )
        end_ms = round(time.time() * 1000)
        past_ms = end_ms - round(began * 1000)
        totals, marks = (
            stack.prometheus.read_samples(each, end_ms=end_ms, range_ms=past_ms) for each in (_rates(), COVERAGE_SERIES)
        )
        pages = [
            (alert["status"], alert["labels"]["alertname"], alert["labels"].get("deployment_id", ""))
            for sent in stack.receivers.sent(posts)
            if sent.receiver == "page"
            for alert in sent.alerts
        ]

    assert [page for page in pages if page[0] == "resolved"] == []
    assert [page for page in pages if page[1] == _PAGE] == []
    assert len(totals) == _STEADY
    low = list(_low(totals, {_deployment(each): each for each in marks}))
    assert low, "no total was too low: nothing is proven"
    assert [each for each in low if each[1] > each[0] + _JITTER] == []


def _groups(addresses: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "targets": [address],
            "labels": {
                "model_name": f"model-{number}", "deployment_id": f"chat-{number}", "inference_stack": "v2",
                "environment": "live", "__param_source": "vllm",
            },
        }
        for number, address in enumerate(addresses)
    ]  # fmt: skip


def _rates() -> str:
    return f'deployment:requests:rate5m{{deployment_id=~"chat-({"|".join(map(str, range(_DOWN, _DOWN + _STEADY)))})"}}'


def _holds(stack: PastOneMachine, expression: str) -> bool:
    return bool(stack.prometheus.query(expression, at_ms=round(time.time() * 1000)))


def _paged(stack: PastOneMachine, status: str, alert: str) -> int:
    found = {
        each["labels"]["deployment_id"]
        for sent in stack.receivers.sent()
        if sent.receiver == "page"
        for each in sent.alerts
        if each["status"] == status and each["labels"]["alertname"] == alert
    }
    return len(found)


def _deployment(samples: Range) -> str:
    return dict(samples.labels)["deployment_id"]


def _low(totals: Sequence[Range], marks: Mapping[str, Range]) -> list[tuple[float, float, str]]:
    """Each total that was too low: the share of it that was there, and the lowest share that was marked then."""
    found = []
    for each in totals:
        mark = marks[_deployment(each)]
        for at, value in zip(each.times, each.values, strict=True):
            share = value / each.values[-1]
            marked = [
                covered
                for moment, covered in zip(mark.times, mark.values, strict=True)
                if abs(moment - at) <= 1.5 * _EVALUATION_MS
            ]
            if share < 1 - _JITTER:
                found.append((share, min(marked, default=1.0), _deployment(each)))
    return found
