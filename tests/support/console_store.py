"""Writes a store that looks like a day of a platform: 20 deployments on several stacks, some of them in trouble.

`python -m tests.support.console_store PATH [--hours 24] [--step 15]` writes one to look at.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from servescope.contract.events import Event, EventKind
from servescope.contract.figures import figure_key
from servescope.contract.identity import Deployment, Identity
from servescope.contract.metrics import METRICS, REPLICA_STATUSES
from servescope.contract.samples import make_labels
from servescope.increments.blocks import BLOCK_MS
from servescope.store.embedded import Store
from servescope.store.records import RecordedSettings, TargetStatus
from tests.support.cutover_evidence import HOUR, INTERVAL_MS, Side, Story, evidence_of

Values = NDArray[np.float64]
Columns = dict[str, Values]

DRAFT_LENGTH = 4


@dataclass(frozen=True, slots=True)
class Plan:
    """What a deployment is like: its load, its speed, and what is wrong with it."""

    deployment: Deployment
    requests_per_second: float
    input_tokens: float = 1_800.0
    output_tokens: float = 260.0
    time_to_first_token: float = 0.35
    tokens_per_second: float = 62.0
    replicas: int = 4
    speculation: float | None = None
    hit_rate: float | None = None
    skew: float = 0.08
    efficiency: float = 0.95
    trouble: str = ""

    @property
    def routed(self) -> bool:
        """Whether a KV-aware router and a token-based autoscaler are in front of it."""
        return self.hit_rate is not None


def _plan(deployment_id: str, model: str, stack: str, rate: float, phase: str = "stable", **rest: object) -> Plan:
    environment = "staging" if deployment_id.endswith("-staging") else "production"
    return Plan(Deployment(model, deployment_id, stack, environment, phase), rate, **rest)  # type: ignore[arg-type] # fields of Plan


PLANS = (
    _plan("chat-v1", "llama-3.3-70b", "v1", 18.0, "", tokens_per_second=48.0, time_to_first_token=0.62, replicas=8),
    _plan("chat-v2", "llama-3.3-70b", "v2", 18.0, "promoting", speculation=0.83, hit_rate=0.58, replicas=6),
    _plan("code-assist-v1", "qwen3-coder-32b", "v1", 9.5, "", speculation=0.46, tokens_per_second=71.0, replicas=5),
    _plan(
        "code-assist-v2", "qwen3-coder-32b", "v2", 9.5, "promoting", speculation=0.88, hit_rate=0.74, replicas=4,
        tokens_per_second=118.0,
    ),
    _plan("support-bot-v1", "mistral-small-24b", "v1", 6.2, "", time_to_first_token=0.28, replicas=3),
    _plan(
        "support-bot-v2", "mistral-small-24b", "v2", 6.2, "promoting", speculation=0.62, hit_rate=0.41, skew=0.21,
        time_to_first_token=0.24, replicas=3,
    ),
    _plan(
        "summarise-v1", "gpt-oss-120b", "v1", 2.1, "", input_tokens=14_000.0, time_to_first_token=1.9, replicas=6
    ),
    _plan(
        "summarise-v2", "gpt-oss-120b", "v2", 2.1, "promoting", input_tokens=14_000.0, time_to_first_token=1.1,
        speculation=0.34, hit_rate=0.22, skew=0.36, efficiency=0.81, replicas=5, trouble="churn",
    ),
    _plan("agents-v2", "deepseek-v3.2", "v2", 12.4, speculation=0.79, hit_rate=0.81, efficiency=0.93, replicas=8),
    _plan("agents-vllm", "deepseek-v3.2", "vllm-0.32", 3.1, "", input_tokens=5_200.0, replicas=2),
    _plan("extract-v2", "qwen3-8b", "v2", 41.0, speculation=0.91, hit_rate=0.33, output_tokens=90.0, replicas=4,
          tokens_per_second=165.0, time_to_first_token=0.08),
    _plan("extract-v1", "qwen3-8b", "v1", 12.0, "", output_tokens=90.0, tokens_per_second=130.0, replicas=2,
          time_to_first_token=0.11, trouble="rejecting"),
    _plan("rag-answers-v2", "llama-3.3-70b", "v2", 7.7, speculation=0.71, hit_rate=0.66, efficiency=0.88, replicas=5),
    _plan("rag-answers-dynamo", "llama-3.3-70b", "dynamo-1.6", 7.5, "", hit_rate=0.61, efficiency=0.97, replicas=5),
    _plan("translate-v1", "mistral-small-24b", "v1", 4.4, "", output_tokens=410.0, replicas=2, trouble="restarts"),
    _plan("translate-v2", "mistral-small-24b", "v2", 4.4, speculation=0.86, hit_rate=0.12, replicas=2),
    _plan("voice-v2", "qwen3-8b", "v2", 22.0, speculation=0.93, hit_rate=0.52, time_to_first_token=0.06,
          output_tokens=60.0, tokens_per_second=210.0, replicas=6, trouble="gap"),
    _plan("moderation-vllm", "qwen3-8b", "vllm-0.13", 55.0, "", output_tokens=8.0, tokens_per_second=180.0,
          time_to_first_token=0.05, replicas=3),
    _plan("evals-staging", "gpt-oss-120b", "v2", 0.0, "", speculation=0.8, hit_rate=0.3, replicas=1, trouble="idle"),
    _plan("chat-staging", "llama-3.3-70b", "v2", 0.6, "promoting", speculation=0.77, hit_rate=0.4, skew=-0.09,
          replicas=1, trouble="stopped"),
)  # fmt: skip


def write_day(
    path: Path, *, hours: float = 24.0, step_seconds: float = 15.0, end_ms: int | None = None, count: int = len(PLANS)
) -> int:
    """Write `count` deployments' figures up to `end_ms` (now when None) and their targets; returns that end."""
    end_ms = time.time_ns() // 1_000_000 if end_ms is None else end_ms
    times = np.arange(end_ms - int(hours * 3_600_000), end_ms + 1, int(step_seconds * 1000), dtype=np.int64)
    with Store(path) as store:
        for number, plan in enumerate(PLANS[:count]):
            with store.transaction():
                for time_ms, values in _rows(times, _figures(plan, times, np.random.default_rng(number))):
                    if not _unwritten(plan, time_ms, times):
                        store.append_figures(plan.deployment, time_ms, values)
                for target in _targets(plan, int(times[-1])):
                    store.set_target(target)
                store.append_events(_events(plan, int(times[0]), int(times[-1])))
    return int(times[-1])


def write_increments(path: Path, deployment_ids: tuple[str, str]) -> None:
    """Write what two deployments of the day counted per block, so that they can be judged: a day beside each other.

    Before it were two days of the first one alone. A few blocks are ahead, for a page that is looked at later.
    """
    left, right = (next(each for each in PLANS if each.deployment.deployment_id == name) for name in deployment_ids)
    with Store(path) as store:
        known = {
            plan.deployment.inference_stack: [
                target for target in store.targets()
                if target.identity.deployment() == plan.deployment and target.identity.role == "aggregated"
            ]
            for plan in (left, right)
        }  # fmt: skip
        story = Story(
            past_hours=48, hours=24, share=0.5, requests_per_minute=1200.0,
            v1=Side(replicas=len(known["v1"])), v2=Side(replicas=len(known["v2"]), first_token=0.9, slower=0.95),
        )  # fmt: skip
        now_ms = time.time_ns() // 1_000_000
        shift_ms = now_ms // BLOCK_MS * BLOCK_MS + 3 * BLOCK_MS - story.end_ms
        store.record_settings(
            story.started_ms + shift_ms - story.past_hours * HOUR * BLOCK_MS,
            RecordedSettings(BLOCK_MS, INTERVAL_MS, INTERVAL_MS, "closed"),
        )
        with store.transaction():
            for made in evidence_of(story).targets:
                target = known[made.identity.inference_stack].pop()
                store.append_increments(
                    replace(
                        made, target_id=target.target_id, identity=target.identity, blocks=made.blocks + shift_ms,
                        started_ms=made.started_ms + shift_ms,
                    )
                )  # fmt: skip


def append_now(path: Path) -> None:
    """Write every running deployment's last figures once more for this moment, as a collector goes on doing."""
    now_ms = time.time_ns() // 1_000_000
    with Store(path) as store, store.transaction():
        latest = store.latest_figures()
        for plan in PLANS:
            if plan.deployment in latest and plan.trouble != "stopped":
                # Customers' points are of the last full minute, which may be from before the first call.
                for time_ms in (now_ms // 60_000 * 60_000, now_ms):
                    store.append_figures(plan.deployment, time_ms, latest[plan.deployment][1])
        for target in store.targets():
            store.set_target(_seen_at(target, now_ms))


def _seen_at(target: TargetStatus, time_ms: int) -> TargetStatus:
    success_ms = time_ms if target.healthy else target.last_success_ms
    return replace(target, last_scrape_ms=time_ms, last_success_ms=success_ms)


def _rows(times: NDArray[np.int64], columns: Columns) -> Iterator[tuple[int, dict[str, float]]]:
    keys = list(columns)
    table = np.column_stack([columns[key] for key in keys])
    for time_ms, row in zip(times.tolist(), table.tolist(), strict=True):
        yield time_ms, {key: value for key, value in zip(keys, row, strict=True) if value == value}


def _unwritten(plan: Plan, time_ms: int, times: NDArray[np.int64]) -> bool:
    share = (time_ms - times[0]) / max(1, times[-1] - times[0])
    return (plan.trouble == "gap" and 0.61 < share < 0.70) or (plan.trouble == "stopped" and share > 0.93)


def _figures(plan: Plan, times: NDArray[np.int64], rng: np.random.Generator) -> Columns:
    load = _day_curve(times) * _noise(rng, len(times), 0.05)
    if plan.trouble == "idle":
        load = load * 0
    columns = _traffic(plan, load, rng) | _latency(plan, load, rng) | _resources(plan, load, rng)
    if plan.speculation is not None:
        columns |= _speculation(plan, load, rng)
    if plan.routed:
        columns |= _routing(plan, times, rng) | _autoscaler(plan, load, rng)
    columns |= _replicas(plan, load)
    if plan.trouble == "idle":
        columns = {key: np.where(_is_zero_when_idle(key), values, np.nan) for key, values in columns.items()}
    return columns


def _is_zero_when_idle(key: str) -> bool:
    from servescope.contract.figures import FIGURES

    return FIGURES[key.partition("{")[0]].idle == "zero"


def _day_curve(times: NDArray[np.int64]) -> Values:
    """Load over a day, 0.25 … 1, busiest in the afternoon UTC."""
    hour = times / 3_600_000 % 24
    curve: Values = 0.62 + 0.38 * np.sin((hour - 9) / 24 * 2 * np.pi)
    return curve


def _noise(rng: np.random.Generator, count: int, spread: float) -> Values:
    """Noise around 1 that wanders, as figures over overlapping windows do."""
    steps = rng.normal(0, 1, count + 40)
    smooth = np.convolve(steps, np.ones(40) / np.sqrt(40), "same")[:count]
    noise: Values = np.clip(1 + spread * smooth, 0.2, 3)
    return noise


def _traffic(plan: Plan, load: Values, rng: np.random.Generator) -> Columns:
    count = len(load)
    rate = plan.requests_per_second * load
    rejecting = np.where(load > 0.85, 0.06 * (load - 0.85) / 0.15, 0.0) if plan.trouble == "rejecting" else load * 0
    duration = plan.time_to_first_token + plan.output_tokens / plan.tokens_per_second
    concurrent = np.round(rate * duration * _noise(rng, count, 0.08))
    queued = np.round(np.clip(concurrent - 26 * plan.replicas, 0, None) + (6 * load if plan.trouble else 0))
    return {
        "request_rate": rate,
        "request_error_share": np.clip(0.0006 * _noise(rng, count, 0.6) - 0.0003, 0, 1),
        "request_rejected_share": rejecting,
        "client_abort_share": 0.011 * _noise(rng, count, 0.3),
        "concurrent_requests": concurrent,
        "queued_requests": queued,
        "input_tokens_per_second": rate * plan.input_tokens,
        "output_tokens_per_second": rate * plan.output_tokens,
        "input_tokens_per_request": plan.input_tokens * _noise(rng, count, 0.06),
        "output_tokens_per_request": plan.output_tokens * _noise(rng, count, 0.06),
        "preemptions_rate": np.clip(load - 0.9, 0, None) * 0.4 * _noise(rng, count, 0.3),
        "kv_cache_usage": np.clip(0.25 + 0.6 * load * _noise(rng, count, 0.04), 0, 1),
    }


def _latency(plan: Plan, load: Values, rng: np.random.Generator) -> Columns:
    busy = 0.7 + 0.6 * load**2
    first = plan.time_to_first_token * busy * _noise(rng, len(load), 0.07)
    speed = plan.tokens_per_second / (0.8 + 0.35 * load) * _noise(rng, len(load), 0.03)
    duration = first + plan.output_tokens / speed
    columns = {
        "time_to_first_token_p50": first,
        "time_to_first_token_p95": first * 2.6 * _noise(rng, len(load), 0.10),
        "time_to_first_token_p99": first * 4.4 * _noise(rng, len(load), 0.12),
        "time_to_first_token_mean": first * 1.2,
        "time_per_output_token_p50": 1 / speed,
        "time_per_output_token_p95": 1.7 / speed * _noise(rng, len(load), 0.05),
        "time_per_output_token_mean": 1.1 / speed,
        "request_duration_p50": duration,
        "request_duration_p95": duration * 2.1 * _noise(rng, len(load), 0.06),
        "request_duration_mean": duration * 1.15,
        "tps_per_request": speed,
    }
    if plan.deployment.inference_stack in ("v2", "vllm-0.32"):
        columns["inter_token_latency_p95"] = 2.2 / speed * _noise(rng, len(load), 0.06)
    return columns


def _speculation(plan: Plan, load: Values, rng: np.random.Generator) -> Columns:
    rate = np.clip((plan.speculation or 0) * _noise(rng, len(load), 0.025), 0, 1)
    per_position = plan.requests_per_second * load * plan.output_tokens / (1 + rate * DRAFT_LENGTH)
    return {"speculation_rate": rate} | {
        figure_key("spec_decode_accepted_tokens_per_second", {"position": str(position)}): per_position
        * rate ** (0.6 + position)
        for position in range(DRAFT_LENGTH)
    }


def _routing(plan: Plan, times: NDArray[np.int64], rng: np.random.Generator) -> Columns:
    count = len(times)
    hit = np.clip((plan.hit_rate or 0) * _noise(rng, count, 0.03), 0, 1)
    skew = plan.skew + 0.02 * (_noise(rng, count, 1.0) - 1)
    if plan.trouble == "churn":
        skew = skew - 0.24 * (np.linspace(0, 1, count) < 0.55)
    efficiency = plan.efficiency * _noise(rng, count, 0.008)
    return {
        "kv_cache_hit_rate": hit,
        "kv_cache_hit_rate_skew": skew,
        "kv_cache_best_prefix_hit_rate": np.clip(hit / efficiency, 0, 1),
        "kv_cache_hit_rate_efficiency": efficiency,
        "router_event_gap_rate": np.where(rng.random(count) > 0.995, 0.02, 0.0),
        "router_unreported_rate": 0.004 * _noise(rng, count, 0.5),
    }


def _autoscaler(plan: Plan, load: Values, rng: np.random.Generator) -> Columns:
    tokens = np.round(plan.requests_per_second * load * (plan.input_tokens * 0.5 + plan.output_tokens) * 2.2)
    average = np.round(tokens * _noise(rng, len(load), 0.03))
    raw = average / max(1.0, tokens.max() / max(1, plan.replicas - 1))
    return {
        "autoscaler_in_flight_tokens": tokens,
        "autoscaler_avg_in_flight_tokens": average,
        "autoscaler_avg_num_requests": plan.requests_per_second * load * 3,
        "autoscaler_avg_num_workers": np.full(len(load), float(plan.replicas)),
        "autoscaler_desired_scale": raw,
        "autoscaler_policy_desired_scale": np.maximum(raw, 1.0),
        "autoscaler_rounded_desired_scale": np.ceil(np.maximum(raw, 1.0)),
    }


def _replicas(plan: Plan, load: Values) -> Columns:
    active = np.clip(np.ceil(plan.replicas * (0.45 + 0.55 * load)), 1, plan.replicas)
    counts: dict[str, Values] = {status: np.zeros(len(load)) for status in REPLICA_STATUSES}
    counts["active"] = active
    counts["starting"][1:] = np.clip(np.diff(active), 0, None)
    if plan.trouble == "restarts":
        counts["unhealthy"] += 1
        counts["active"] = np.maximum(active - 1, 0)
    if plan.trouble == "churn":
        counts["draining"] += 1
    return {figure_key("replica_count_by_status", {"status": status}): values for status, values in counts.items()}


def _resources(plan: Plan, load: Values, rng: np.random.Generator) -> Columns:
    count = len(load)
    return {
        "cpu_usage": plan.replicas * (1.5 + 4 * load) * _noise(rng, count, 0.05),
        "memory_usage": plan.replicas * 38e9 * _noise(rng, count, 0.01),
        "gpu_usage": np.clip(0.15 + 0.8 * load * _noise(rng, count, 0.04), 0, 1),
        "gpu_memory_usage": np.full(count, plan.replicas * 71.5e9),
    }


def _targets(plan: Plan, end_ms: int) -> Iterator[TargetStatus]:
    port = 8000 + 20 * PLANS.index(plan)
    roles = [("aggregated", f"replica-{number}") for number in range(min(plan.replicas, 3))]
    roles += [("router", "router-0"), ("autoscaler", "autoscaler-0")] if plan.routed else []
    for number, (role, replica) in enumerate(roles):
        target = _target(plan, role, replica, f"127.0.0.1:{port + number}", end_ms - 2_000 - 700 * number)
        if plan.trouble == "restarts" and number == 0:
            target = _failing(target)
        elif plan.deployment.deployment_id == "agents-vllm" and number == 1:
            target = _renamed(target)
        yield target


def _target(plan: Plan, role: str, replica: str, address: str, time_ms: int) -> TargetStatus:
    stack = plan.deployment.inference_stack
    engine, _, version = stack.partition("-")
    engine = "dynamo-frontend" if engine == "dynamo" else engine
    own = stack in ("v1", "v2")
    identity = replace(Identity(**dict(plan.deployment.labels())), replica=replica, role=role)
    return TargetStatus(
        target_id=address, url=f"http://{address}/metrics", identity=identity,
        source="servescope" if own else engine, versions="0.1" if own else version,
        healthy=True, last_scrape_ms=time_ms, last_success_ms=time_ms,
        duration_seconds=0.004 + (len(replica) % 5) / 400, samples=412 if role == "aggregated" else 38, error=None,
        coverage=_coverage(plan, role),
    )  # fmt: skip


def _failing(target: TargetStatus) -> TargetStatus:
    return replace(
        target,
        healthy=False,
        last_success_ms=(target.last_success_ms or 0) - 340_000,
        samples=0,
        error=f"{target.target_id}: connection refused: nothing listens there; figures are of the other replicas",
    )


def _renamed(target: TargetStatus) -> TargetStatus:
    native = "vllm:kv_cache_usage_perc"
    gone: dict[str, str | None] = {
        "status": "impossible", "native": None, "reason": f"no {native!r} in this exposition",
    }  # fmt: skip
    return replace(
        target,
        coverage={**target.coverage, "kv_cache_usage": gone},
        warnings=[
            f"metrics that were exposed are missing (1): kv_cache_usage (was {native})",
            "samples dropped, as their values overflow (2): vllm:prompt_tokens_total{model_name='<a & b>'} and 1 more",
        ],
        missing_metrics={"kv_cache_usage": native},
    )


def _coverage(plan: Plan, role: str) -> dict[str, dict[str, str | None]]:
    return dict(_cover(plan, role, name) for name in METRICS)


def _events(plan: Plan, start_ms: int, end_ms: int) -> Iterator[Event]:
    """What happened to a deployment that is rolled out, and to one in trouble."""
    one, length_ms = plan.deployment, end_ms - start_ms
    about = {"deployment_id": one.deployment_id, "model_name": one.model_name, "inference_stack": one.inference_stack}

    def event(kind: EventKind, share: float, text: str, **labels: str) -> Event:
        return Event(start_ms + round(share * length_ms), kind, make_labels({**about, **labels}), text)

    if one.rollout_phase == "promoting":
        yield event("deploy", 0.3, f"{one.deployment_id} 1.4.2 is rolled out")
    if plan.trouble == "churn":
        yield event("target_gone", 0.55, f"{one.deployment_id} replica-1 is gone", replica="replica-1")
        yield event("target_appeared", 0.57, f"{one.deployment_id} replica-1 appeared", replica="replica-1")
        yield event("alert_fired", 0.56, "ServescopeCacheChurn fires", alertname="ServescopeCacheChurn")
        yield event("alert_resolved", 0.72, "ServescopeCacheChurn is resolved", alertname="ServescopeCacheChurn")


def _cover(plan: Plan, role: str, name: str) -> tuple[str, dict[str, str | None]]:
    component = METRICS[name].component
    speculative = "spec" in name
    if component != ("engine" if role == "aggregated" else role):
        there = component == "engine" or plan.routed
        status, reason = ("elsewhere", f"from the {component}") if there else ("impossible", f"no {component} here")
        return name, {"status": status, "native": None, "reason": reason}
    if speculative and plan.speculation is None:
        return name, {"status": "impossible", "native": None, "reason": "speculation is off"}
    return name, {"status": "present", "native": _native(plan, name), "reason": None}


def _native(plan: Plan, name: str) -> str:
    prefixes: Mapping[str, str] = {"vllm-0.32": "vllm:", "vllm-0.13": "vllm:", "dynamo-1.6": "dynamo_frontend_"}
    return f"{prefixes.get(plan.deployment.inference_stack, '')}{name}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", type=Path)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--step", type=float, default=15.0, help="seconds between evaluations")
    arguments = parser.parse_args()
    write_day(arguments.path, hours=arguments.hours, step_seconds=arguments.step)
