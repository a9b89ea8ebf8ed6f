"""A scenario of a migrated configuration, so that its cutover can be rehearsed: v1 as it was, v2 as configured."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from servescope.contract.judged import IN_FLIGHT_TOKENS_PER_WORKER
from servescope.cutover.plan.plan import USUAL_STAGES
from servescope.emulator.deployment.configured import find_hardware
from servescope.emulator.scenario.recording import START_MS
from servescope.emulator.scenario.rehearsed_load import UTILIZATION, RehearsedLoad, load_of, make_load, room_of
from servescope.emulator.scenario.scenario import make_scenario
from servescope.errors import ServescopeError, UsageError
from servescope.migration.fields.meaning import token_target
from servescope.migration.fields.trt_llm import LARGEST_V2_BATCH_TOKENS, LOOKAHEAD_SIZES
from servescope.migration.moves import Move
from servescope.settings.toml_text import remark, spell, write_table
from servescope.settings.values import format_duration, format_instant

if TYPE_CHECKING:
    from servescope.migration.traffic.traffic import ServedTraffic

PAST_HOURS: Final = 24.0
"""How long v1 serves alone at first: the judge calibrates its noise on no less."""

_UNLIKE: Final = "The emulator's own engine takes its place: speed and memory are not those of your GPUs."
_FOLLOW: Final = "5m"
_SETTLING_HOURS: Final = 0.5
"""By how much a stage lasts longer than it has to: it can be judged then before the next one begins."""
_MOST_REPLICAS: Final = 12
_IN_FLIGHT: Final = 0.5
"""About the part of a request's tokens that is in flight: of its prompt some is cached, and its answer grows."""


def draft_rehearsal(move: Move, served: ServedTraffic | None = None, *, past_hours: float = PAST_HOURS) -> str:
    """The scenario as TOML for `servescope emulate --scenario`, under the traffic that was observed, or a made one.

    v1 serves alone for `past_hours`. Raises UsageError for what cannot be emulated.
    """
    if "trt_llm" not in move.v1:
        raise UsageError(f"{move.origin}: cannot be rehearsed: the emulator has no stack of the backend server")
    engines = {stack: _describe_engine(config, stack) for stack, config in (("v1", move.v1), ("v2", move.v2))}
    room = min(room_of(engine.runtime) for engine in engines.values())
    load = make_load(move, room) if served is None else load_of(served, room)
    text = "\n".join(_scenario(move, engines, load, past_hours)) + "\n"
    try:
        make_scenario(tomllib.loads(text), origin=f"the rehearsal of {move.origin}", directory=Path())
    except ServescopeError as error:
        raise UsageError(f"{move.origin}: cannot be rehearsed: {error}") from error
    return text


@dataclass(frozen=True, slots=True)
class _Engine:
    """A stack's engine: what is to be said of it, and its tables."""

    remarks: tuple[str, ...]
    hardware: Mapping[str, object]
    runtime: Mapping[str, object]


def _scenario(
    move: Move, engines: Mapping[str, _Engine], load: RehearsedLoad, past_hours: float
) -> Iterator[str]:  # fmt: skip
    hours = past_hours + sum(stage.least_hours + _SETTLING_HOURS for stage in USUAL_STAGES)
    yield remark(f"A rehearsal of the cutover of {move.model}, to what {move.origin} was migrated to:")
    yield f"# {past_hours:g} hours of v1 alone, then v2's share by the stages of the drafted plan."
    yield "#"
    yield f"#     servescope emulate --scenario FILE --record rehearsal.db --hours {hours:g}"
    for number, (_, start) in enumerate(_stages(past_hours), 1):
        begin, end = _moment(start), _moment(start + USUAL_STAGES[number - 1].least_hours + 0.8 * _SETTLING_HOURS)
        yield f"#     servescope judge run --plan PLAN --store rehearsal.db --since {begin} --at {end} --stage {number}"
    yield "#"
    yield "# Or live, with the judge watching: `servescope emulate --scenario FILE`, `servescope collect --config"
    yield "# emulated/servescope.toml`, `servescope judge start` and `servescope judge watch`."
    yield "seed = 1"
    yield ""
    yield from (remark(each) for each in load.remarks)
    yield from _without_blank(write_table("traffic", load.mix))
    yield from _deployment(move, "v1", engines["v1"])
    yield "share = 1"
    yield from write_table("deployments.engine", engines["v1"].hardware)
    yield from write_table("deployments.runtime", engines["v1"].runtime)
    yield from _speculator(move)
    yield ""
    yield "# Of v1's autoscaling nothing is in the file: set what your deployment has."
    yield from _without_blank(write_table("deployments.autoscaling", _scaling_v1(load)))
    yield from _deployment(move, "v2", engines["v2"])
    yield "share = 0"
    yield f'start = "{format_duration(round(past_hours * 3_600_000))}"'
    yield 'rollout_phase = "promoting"'
    yield from write_table("deployments.engine", engines["v2"].hardware)
    yield from write_table("deployments.runtime", engines["v2"].runtime)
    yield from write_table("deployments.llm_config", move.llm_config)
    yield ""
    yield from _scaling_v2(move, load)
    for share, start in _stages(past_hours):
        shares = {"deployment": f"{move.slug}-v2", "share": share, "follow": _FOLLOW}
        yield ""
        yield "[[shares]]"
        yield from (f"{name} = {spell(value)}" for name, value in shares.items())
        yield f'start = "{format_duration(round(start * 3_600_000))}"'


def _without_blank(lines: Iterator[str]) -> Iterator[str]:
    """A table right below its remarks."""
    next(lines)
    yield from lines


def _stages(past_hours: float) -> Iterator[tuple[float, float]]:
    """Each share, and how many hours after the beginning v2 gets it."""
    start = past_hours
    for stage in USUAL_STAGES:
        yield stage.share, start
        start += stage.least_hours + _SETTLING_HOURS


def _moment(hours: float) -> str:
    return format_instant(START_MS + round(hours * 3_600_000))


def _deployment(move: Move, stack: str, engine: _Engine) -> Iterator[str]:
    yield ""
    yield from (remark(each) for each in engine.remarks)
    yield "[[deployments]]"
    yield f"model_name = {spell(move.model)}"
    yield f"deployment_id = {spell(f'{move.slug}-{stack}')}"
    yield f"inference_stack = {spell(stack)}"


# --- The engine -------------------------------------------------------------------------------------------------------


def _describe_engine(config: Mapping[str, Any], stack: str) -> _Engine:
    """The engine of a stack's configuration: sizes that it has, GPU and model where the emulator has them."""
    build, runtime = (config["trt_llm"].get(name) or {} for name in ("build", "runtime"))
    sizes = build if stack == "v1" else runtime
    chunked = runtime.get("enable_chunked_context" if stack == "v1" else "enable_chunked_prefill", True)
    tensor = sizes.get("tensor_parallel_count" if stack == "v1" else "tensor_parallel_size") or 1
    found = {name: sizes[name] for name in ("max_seq_len", "max_batch_size", "max_num_tokens")
             if sizes.get(name) is not None}  # fmt: skip
    remarks = []
    if found.get("max_num_tokens", 0) > LARGEST_V2_BATCH_TOKENS:
        remarks.append(f"max_num_tokens is {found['max_num_tokens']}: the emulator takes {LARGEST_V2_BATCH_TOKENS}.")
        found["max_num_tokens"] = LARGEST_V2_BATCH_TOKENS
    if not chunked:
        found["enable_chunked_prefill"] = False
    hardware, why = find_hardware(config, tensor)
    if not hardware:
        return _Engine((*remarks, why, _UNLIKE), {}, found)
    return _Engine((*remarks, why), hardware, {**found, "tensor_parallel_size": tensor})


# --- Speculation and scaling ------------------------------------------------------------------------------------------


def _speculator(move: Move) -> Iterator[str]:
    speculator = move.removed("build.speculator")
    if speculator is None:
        return
    names = ("speculative_decoding_mode", *LOOKAHEAD_SIZES)
    if all(speculator.get(name) is not None for name in names):
        yield from write_table("deployments.speculator", {name: speculator[name] for name in names})
    else:
        yield "# It speculates by lookahead without sizes, which the emulator needs: it is emulated without drafts."


# Of both stacks so that the number of replicas changes with the stages, and not with every minute.
_WINDOW: Final = "15m"
_DELAY: Final = "20m"


def _scaling_v1(load: RehearsedLoad) -> dict[str, object]:
    return {
        "min_replica": 1, "initial_replicas": load.replicas, "max_replica": max(_MOST_REPLICAS, 2 * load.replicas),
        "concurrency_target": load.concurrency_target, "target_utilization_percentage": round(100 * UTILIZATION),
        "autoscaling_window": _WINDOW, "scale_down_delay": _DELAY,
    }  # fmt: skip


def _scaling_v2(move: Move, load: RehearsedLoad) -> Iterator[str]:
    settings = move.body.get("autoscaling_settings") or {}
    least = int(settings.get("min_replica") or 1)
    most = int(settings.get("max_replica") or max(_MOST_REPLICAS, least, 2 * load.replicas))
    found: dict[str, object] = {"min_replica": least, "max_replica": most}
    for name, usual in (("autoscaling_window", _WINDOW), ("scale_down_delay", _DELAY)):
        found[name] = usual if settings.get(name) is None else f"{settings[name]}s"
    target = settings.get("target_in_flight_tokens")
    if target is None:
        target = max(1, token_target(load.concurrency_target * UTILIZATION * _IN_FLIGHT, load.tokens_per_request))
        low, high = IN_FLIGHT_TOKENS_PER_WORKER
        yield f"# No target_in_flight_tokens was decided: with {target} a replica of v2 carries about as much as one"
        yield f"# of v1, for requests of about {load.tokens_per_request:.0f} tokens. Documented for real traffic are"
        yield f"# {low:.0f} to {high:.0f}, which is the band of in_flight_tokens_per_worker in a drafted plan."
    found["target_in_flight_tokens"] = target
    yield from _without_blank(write_table("deployments.autoscaling", found))
