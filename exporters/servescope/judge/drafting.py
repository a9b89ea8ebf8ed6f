"""Drafts of a cutover's files from a migrated configuration: the plan, and what a collector needs to observe it."""

from __future__ import annotations

from collections.abc import Iterator

from servescope.contract.judged import DEFAULT_HOLDBACK, IN_FLIGHT_TOKENS_PER_WORKER, JUDGED, JudgedMetric
from servescope.cutover.plan.plan import USUAL_STAGES
from servescope.migration.moves import Move
from servescope.migration.translation.checklist import make_checklist
from servescope.settings.toml_text import quote, remark


def draft_plan(move: Move) -> str:
    """The plan of a cutover to the migrated configuration, as TOML that `servescope judge` reads."""
    return "\n".join(_plan(move)) + "\n"


def draft_collector(move: Move) -> str:
    """Both deployments and the split of the first stage, as TOML that `servescope collect --config` reads."""
    return "\n".join(_collector(move)) + "\n"


def draft_stages() -> str:
    """The usual stages, as tables of a plan."""
    stages = ((each.share, each.least_hours) for each in USUAL_STAGES)
    return "\n".join(f"[[stages]]\nshare = {share}\nleast_hours = {hours:g}\n" for share, hours in stages)


# --- The plan ---------------------------------------------------------------------------------------------------------


def _plan(move: Move) -> Iterator[str]:
    yield remark(f"The cutover to the configuration that {move.origin} was migrated to: a draft to read and to edit.")
    yield "# `servescope judge plan --plan FILE` says how long each stage needs; `servescope judge start` freezes it."
    yield f"name = {quote(move.slug)}"
    yield 'preset = "none"'
    yield f"holdback = {DEFAULT_HOLDBACK}"
    yield ""
    yield "# What to look after beside what is judged: the console shows it with the cutover, and the report has it."
    yield "checklist = ["
    yield from (f"  {quote(line)}," for line in make_checklist(move.changes, move.llm_config).lines())
    yield "]"
    yield ""
    yield "# What is compared: every target whose labels are these, as the collector's [[deployments]] have them."
    yield "[arms]"
    for stack in ("v1", "v2"):
        yield f"{stack} = {{ model_name = {quote(move.model)}, inference_stack = {quote(stack)} }}"
    yield ""
    yield "# What both sides are configured with, secrets left out. The judge keeps these hashes with the run, and says"
    yield "# so when a deploy is reported with another one."
    yield "[configurations]"
    yield from (f"{name} = {quote(found)}" for name, found in move.configurations.items())
    yield ""
    yield "# v2's share of the requests, stage by stage; the last leaves v1 a holdback as a control."
    yield draft_stages()
    for metric in JUDGED.values():
        if metric.preset and (metric.kind != "band" or metric.name in _bands(move)):
            yield from _metric(move, metric)
    left_out = [metric.name for metric in JUDGED.values() if metric.kind == "band" and metric.name not in _bands(move)]
    if left_out:
        yield f"# Not judged, as this v2 is not configured to have it: {', '.join(left_out)}."


def _bands(move: Move) -> tuple[str, ...]:
    """The bands that this v2 can be judged by: all but that of speculation, which may be off."""
    speculates = "speculative_config" in move.llm_config
    return tuple(name for name, metric in JUDGED.items()
                 if metric.kind == "band" and (speculates or name != "speculation_rate"))  # fmt: skip


def _metric(move: Move, metric: JudgedMetric) -> Iterator[str]:
    yield from (remark(reason) for reason in _reasons(move, metric.name))
    yield "[[metrics]]"
    yield f"name = {quote(metric.name)}"
    if metric.guard:
        yield "guard = true"
    elif not metric.required:
        yield "required = false"
    if metric.kind == "band":
        low, high = _band(move, metric)
        yield from (f"{key} = {value:g}" for key, value in (("low", low), ("high", high)) if value is not None)
    else:
        yield f"margin = {metric.margin:g}"
        yield f"floor = {metric.floor:g}"
    yield ""


def _band(move: Move, metric: JudgedMetric) -> tuple[float | None, float | None]:
    target = _target(move)
    if metric.name == "in_flight_tokens_per_worker" and _is_unusual(target):
        return target / 2, target * 2
    return metric.low, metric.high


def _target(move: Move) -> float:
    return float((move.body.get("autoscaling_settings") or {}).get("target_in_flight_tokens") or 0)


def _is_unusual(target: float) -> bool:
    low, high = IN_FLIGHT_TOKENS_PER_WORKER
    return bool(target) and not (low or 0) <= target <= (high or target)


def _reasons(move: Move, name: str) -> Iterator[str]:
    """What this configuration changes that the metric is about."""
    tokens = move.removed("runtime.request_default_max_tokens")
    if name == "request_duration_seconds" and tokens is not None:
        yield f"v1 ended answers at {tokens} tokens by default and v2 does not: longer answers last longer. Have"
        yield "clients send max_tokens before traffic is moved."
    ends_speculating = move.removed("build.speculator") is not None and "speculative_config" not in move.llm_config
    if name in ("tps_per_request", "time_per_output_token_seconds") and ends_speculating:
        yield "v1 speculates by lookahead, and this v2 does not speculate: expect slower tokens, or decide on"
        yield "--n-gram, or allow a wider margin."
    if name == "preemptions_per_request" and move.removed("runtime.batch_scheduler_policy") == "max_utilization":
        yield "v1 paused requests when memory ran out (max_utilization); v2 has no such choice."
    if name == "in_flight_tokens_per_worker" and _is_unusual(_target(move)):
        yield f"Half and twice the target_in_flight_tokens of {_target(move):g}, outside of the documented range."


# --- The collector ----------------------------------------------------------------------------------------------------


def _collector(move: Move) -> Iterator[str]:
    first = USUAL_STAGES[0].share
    yield remark(f"What a collector observes in the cutover of {move.model}: for its configuration, servescope.toml.")
    for stack in ("v1", "v2"):
        yield ""
        yield "[[deployments]]"
        yield f"model_name = {quote(move.model)}"
        yield f"deployment_id = {quote(f'{move.slug}-{stack}')}"
        yield f"inference_stack = {quote(stack)}"
        yield "# Where its targets are listed; or [[deployments.targets]] with a url each, or [[deployments.http_sd]]."
        yield "[[deployments.file_sd]]"
        yield f"files = [{quote(f'targets/{move.slug}-{stack}.json')}]"
    yield ""
    yield "# What v2 is to get, as the stage has it: change it whenever the gateway's weights change."
    yield "[[traffic_split]]"
    yield f"model_name = {quote(move.model)}"
    yield f"stacks = {{ v1 = {1 - first:g}, v2 = {first:g} }}"
