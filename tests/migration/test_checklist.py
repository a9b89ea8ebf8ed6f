"""What to look after when the traffic has moved: it is that of the configuration, and of stacks as they behave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from servescope.alerting.alerts import ALERTS
from servescope.contract.figures import FIGURES
from servescope.contract.metrics import METRICS, SAMPLE_FAMILIES
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.deployment.stack import V1, V2, V2_DISAGGREGATED, EmulatedStack
from servescope.emulator.workload.plans import GeneratedTraffic
from servescope.migration.translation.checklist import Checklist, _had, _has, make_checklist, write_checklist
from tests.support.migrations import V1 as CONFIG
from tests.support.migrations import move_of, report_of

SPECULATION = {"ServescopeSpeculationBelowBreakEven"}
PHASES = {"ServescopePhaseDown", "ServescopeKvTransfersStuck", "ServescopeKvTransfersDegraded"}
ROUTING = {"ServescopeCacheEventsMissed", "ServescopeCacheChurn", "ServescopeRoutingInefficient"}


def checklist_of(text: str = CONFIG, **answers: object) -> Checklist:
    """The checklist of a configuration that is moved."""
    move = move_of(text, **answers)  # type: ignore[arg-type] # those of move_of
    return make_checklist(move.changes, move.llm_config)


def test_what_ends_with_v1_is_listed() -> None:
    """Speculation ends with lookahead, routing by the cache begins, and phases never were."""
    found = checklist_of()

    assert {*found.alerts_of(before=True, after=False)} == SPECULATION
    assert {*found.alerts_of(before=False, after=True)} >= ROUTING
    assert {*found.alerts_of(before=False, after=False)} == PHASES
    assert found.absent_bands == ("speculation_rate",)
    assert [name for name, _ in found.bands] == ["kv_cache_hit_rate_skew", "kv_cache_hit_rate_efficiency"]


def test_what_was_decided_is_on_the_list() -> None:
    """Speculation that goes on by n-grams, and the phases of a disaggregated deployment."""
    config = '{"is_disaggregated": true, "b10_disagg_config": {"prefill_workers_per_replica": 1, ' \
             '"decode_workers_per_replica": 1}}'  # fmt: skip
    found = checklist_of(n_gram=True, llm_config=config)

    assert not found.alerts_of(before=True, after=False)
    assert {*found.alerts_of(before=False, after=True)} >= PHASES
    assert {*found.alerts_of(before=True, after=True)} >= SPECULATION
    assert found.absent_bands == ()
    assert {"speculation_rate", "kv_transfer_p95"} <= {each.figure for each in found.watch}


def test_every_dropped_field_is_watched_by_what_shows_it() -> None:
    """With its value; every figure is the catalog's."""
    text = CONFIG.replace(
        "runtime: {", "runtime: {kv_cache_free_gpu_mem_fraction: 0.8, batch_scheduler_policy: max_utilization, "
    )
    lines = list(checklist_of(text).lines())

    assert "Watch kv_cache_usage, preemptions_rate: v1 took 0.8 of the free GPU memory for its KV cache, " \
           "and v2 sizes it itself" in lines  # fmt: skip
    assert "Watch queued_requests: v1 scheduled by max_utilization, and v2 has no choice of it" in lines
    assert any(
        line.startswith("Watch output_tokens_per_request, request_duration_p95: v1 ended answers at 100")
        for line in lines
    )
    assert {each.figure for each in checklist_of(text).watch} <= FIGURES.keys()


def test_every_alert_is_accounted_for() -> None:
    """Once, with a reason where it cannot fire."""
    found = checklist_of()

    assert [each.name for each in found.alerts] == list(ALERTS)
    assert all(bool(each.why_not) != each.after for each in found.alerts)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        (V1, _had(drafted=True)),
        (replace(V1, engine=replace(V1.engine, speculation=None)), _had(drafted=False)),
        (V2, _has(drafts=True, phased=False)),
        (replace(V2, engine=replace(V2.engine, speculation=None)), _has(drafts=False, phased=False)),
        (V2_DISAGGREGATED, _has(drafts=V2_DISAGGREGATED.engine.speculation is not None, phased=True)),
    ],
)
def test_the_emulated_stacks_expose_what_the_checklist_takes_them_to(
    plan: DeploymentPlan, expected: frozenset[str]
) -> None:
    """No metric that is said to be absent has a value."""
    stack = EmulatedStack.of([(plan, 1.0)], traffic=GeneratedTraffic(), seed=1)
    stack.clock.run_until(60.0)
    samples = [each for target in stack.targets() for each in target.instruments.samples() if each.value]
    names = {SAMPLE_FAMILIES[each.name] for each in samples} & METRICS.keys()

    assert "requests_total" in names
    assert names <= expected


def test_the_checklist_is_in_the_report_and_as_markdown() -> None:
    """A box for each line."""
    text = write_checklist("chat", checklist_of())

    assert text.startswith("# After the move: chat\n\n- [ ] Watch ")
    assert text.count("\n- [ ] ") == len(list(checklist_of().lines()))
    assert report_of(CONFIG).status == "changed"
