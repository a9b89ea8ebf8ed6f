"""`servescope replay`: a recorded trace through emulated workers on the virtual clock, or through a cache alone."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from servescope.contract.expressions import leaves
from servescope.contract.figures import FIGURES, figure_key
from servescope.contract.identity import Deployment
from servescope.contract.metrics import METRICS
from servescope.contract.samples import Sample
from servescope.emulator.deployment.deployment import EmulatedDeployment
from servescope.emulator.deployment.plan import DeploymentPlan
from servescope.emulator.deployment.sizing import WorkerSettings, size_for_trace
from servescope.emulator.deployment.stack import EmulatedStack
from servescope.emulator.engine.hardware import DEFAULT_MODEL, list_hardware, list_models
from servescope.emulator.engine.parameters import EngineParameters
from servescope.emulator.reuse import UNLIMITED, Reuse, measure_reuse
from servescope.emulator.router.configuration import KvRouterParameters, RouterRuntime
from servescope.emulator.workload.plans import ReplayedTraffic
from servescope.emulator.workload.traces import MOONCAKE_BLOCK_TOKENS, TraceSurvey, read_trace, survey_trace
from servescope.errors import UsageError
from servescope.increments.readings import evaluate_increases
from servescope.migration.scaling import TokenScaling
from servescope.settings.values import format_percent

ROUTERS: Final = ("kv", "least-load")
MOST_WORKERS: Final = 1000

_MOST_BLOCKS = 10**9
# Beyond that times in the trace are wrong, or the speed is, and the end would never be seen.
_MOST_DAYS = 366
_DAY_SECONDS = 86_400
# Of the virtual clock, between two looks at whether all is served.
_LOOK_SECONDS = 1.0
_DEPLOYMENT = "replay"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servescope replay`."""
    parser.add_argument(
        "trace",
        type=Path,
        metavar="FILE",
        help="Mooncake's JSON Lines (timestamp, input_length, output_length, hash_ids) or Azure's CSV",
    )
    parser.add_argument("--workers", type=int, metavar="N", help="engines that serve it (default: 16)")
    parser.add_argument("--router", metavar="KIND", help=f"{' or '.join(ROUTERS)} (default: kv)")
    parser.add_argument(
        "--hardware", metavar="GPU", help=f"GPUs of each worker: {', '.join(list_hardware())} (default: h100)"
    )
    parser.add_argument("--model", metavar="NAME", help=f"{', '.join(list_models())} (default: {DEFAULT_MODEL})")
    parser.add_argument("--tensor-parallel-size", type=int, metavar="N", help="GPUs of each worker (default: 4)")
    parser.add_argument(
        "--max-batch-size", type=int, metavar="N", help="requests a worker serves at once (default: 256)"
    )
    parser.add_argument("--max-num-tokens", type=int, metavar="N", help="tokens of one step (default: 8192)")
    parser.add_argument("--speed", type=float, metavar="X", help="arrivals X times as fast (default: 1)")
    parser.add_argument(
        "--scale",
        type=float,
        metavar="X",
        help="X times as many requests: below 1 each is kept by chance, above 1 similar ones are added (default: 1)",
    )
    parser.add_argument("--repeat", type=int, metavar="N", help="replay it N times, with the same prompts (default: 1)")
    parser.add_argument(
        "--jitter",
        type=float,
        metavar="SECONDS",
        help="spread arrivals by up to so much (default: what the trace rounds its times to, if it does)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same figures (default: 1)")
    parser.add_argument(
        "--blocks",
        metavar="N",
        help="blocks of a worker's cache (default: what its memory holds); with --cache-only any number of sizes, as "
        "1000,5000,unlimited (default: unlimited)",
    )
    parser.add_argument(
        "--cache-only",
        action="store_true",
        help="replay the prompts through a cache alone, in the order of the file: how much it reuses",
    )
    parser.add_argument(
        "--format", choices=("text", "json"), default="text", help="format of the output (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the figures of one replay."""
    report = _replay_cache(arguments) if arguments.cache_only else _replay_workers(arguments)
    text = json.dumps(report.document(), indent=2) if arguments.format == "json" else "\n".join(report.lines())
    sys.stdout.write(f"{text}\n")
    return 0


# --- a cache alone ----------------------------------------------------------------------------------------------------

_ONLY_WITH_WORKERS = (
    "workers", "router", "hardware", "model", "tensor_parallel_size", "max_batch_size", "max_num_tokens", "speed",
    "scale", "repeat", "jitter", "seed",
)  # fmt: skip


@dataclass(frozen=True)
class CacheReport:
    """What caches of several capacities reused of a trace."""

    trace: Path
    survey: TraceSurvey
    reuse: Mapping[int, Reuse]

    def document(self) -> dict[str, object]:
        """The report as JSON."""
        return {
            "trace": _describe_trace(self.trace, self.survey),
            "block_tokens": MOONCAKE_BLOCK_TOKENS,
            "caches": [
                {
                    "capacity_blocks": None if capacity == UNLIMITED else capacity,
                    "blocks": reuse.blocks,
                    "reused_blocks": reuse.reused,
                    "reuse_ratio": reuse.ratio,
                    "reuse_by_sequence_ratio": reuse.ratio_by_sequence,
                    "too_long_prompts": reuse.too_long,
                }
                for capacity, reuse in self.reuse.items()
            ],
        }

    def lines(self) -> Iterator[str]:
        """The report as text."""
        yield from _describe_trace_in_words(self.trace, self.survey)
        yield f"{'cache':>12}  {'LRU':>8}  {'by sequence':>11}"
        for capacity, reuse in self.reuse.items():
            name = "unlimited" if capacity == UNLIMITED else f"{_count(capacity)}"
            yield f"{name:>12}  {format_percent(reuse.ratio, 1):>9}  {format_percent(reuse.ratio_by_sequence, 1):>12}"
        yield ""
        yield f"Of all blocks, of {MOONCAKE_BLOCK_TOKENS} tokens, those that were cached, prompts in the file's order."
        yield "LRU: the block used longest ago goes first."
        yield "By sequence: a prompt is held as a whole, and its end goes before its front, as in an engine."
        for capacity, reuse in self.reuse.items():
            if reuse.too_long:
                yield f"{_count(reuse.too_long)} prompts have more than {_count(capacity)} blocks: no sequence is held."


def _replay_cache(arguments: argparse.Namespace) -> CacheReport:
    for name in _ONLY_WITH_WORKERS:
        if getattr(arguments, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} has no meaning with --cache-only, which takes --blocks")
    capacities = [_parse_blocks(text) for text in (arguments.blocks or "unlimited").split(",")]
    survey = survey_trace(arguments.trace)
    if survey.format != "mooncake":
        raise UsageError(f"{arguments.trace}: an Azure trace names no blocks, --cache-only needs a Mooncake one")
    return CacheReport(
        arguments.trace,
        survey,
        {
            capacity: measure_reuse(
                (request.block_ids or () for request in read_trace(arguments.trace)),
                capacity=capacity,
                block_tokens=MOONCAKE_BLOCK_TOKENS,
            )
            for capacity in capacities
        },
    )


def _parse_blocks(text: str) -> int:
    if text.strip() == "unlimited":
        return UNLIMITED
    # No more digits than the largest has: Python refuses to read thousands of them.
    if not re.fullmatch(r"\s*[0-9]{1,10}\s*", text) or not 1 <= int(text) <= _MOST_BLOCKS:
        raise UsageError(f"--blocks is {text!r}, expected a whole number from 1 to {_MOST_BLOCKS}, or 'unlimited'")
    return int(text)


# --- workers ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """The workers a trace is replayed on, all alike, and the router before them."""

    workers: int = 16
    router: str = "kv"
    engine: WorkerSettings = field(default_factory=WorkerSettings)
    routing: KvRouterParameters = field(default_factory=KvRouterParameters)
    seed: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.workers <= MOST_WORKERS:
            raise UsageError(f"workers is {self.workers!r}, expected a whole number from 1 to {MOST_WORKERS}")
        if self.router not in ROUTERS:
            raise UsageError(f"unknown router {self.router!r}, supported: {', '.join(ROUTERS)}")


def plan_workers(settings: ReplaySettings, survey: TraceSurvey) -> DeploymentPlan:
    """A deployment of these workers, whose number stays."""
    return DeploymentPlan(
        identity=Deployment(settings.engine.model, _DEPLOYMENT, "v2" if settings.router == "kv" else "v1"),
        engine=size_for_trace(EngineParameters(error_share=0.0), survey, settings.engine),
        scaling=TokenScaling(
            min_replica=settings.workers, initial_replicas=settings.workers, max_replica=settings.workers
        ),
        routing=settings.routing if settings.router == "kv" else None,
        # Requests wait for a worker in its queue: a wait in the router would be in no time to first token.
        router=RouterRuntime(max_queued=0),
    )


@dataclass(frozen=True)
class ReplayReport:
    """What workers made of a trace: the contract's figures over the whole of it.

    `load_imbalance` is what the busiest worker had in flight on average, as a multiple of the mean of all workers; 1
    when nothing was served.
    """

    traffic: ReplayedTraffic
    survey: TraceSurvey
    settings: ReplaySettings
    plan: DeploymentPlan
    requests: int
    seconds: float
    outcomes: Mapping[str, int]
    preemptions: int
    load_imbalance: float
    figures: Mapping[str, Mapping[str, float]]

    def document(self) -> dict[str, object]:
        """The report as JSON; a figure without data is null."""
        figures: dict[str, float | None] = {}
        for name, values in self.figures.items():
            figures.update(values if values else {name: None})
        engine = self.plan.engine
        return {
            "trace": _describe_trace(self.traffic.trace, self.survey),
            "replay": {
                "workers": self.settings.workers,
                "router": self.settings.router,
                "seed": self.settings.seed,
                **{name: value for name, value in asdict(self.settings.engine).items() if name != "blocks"},
                "block_tokens": engine.block_tokens,
                "cache_blocks": engine.cache_blocks,
                "speed": self.traffic.speed,
                "scale": self.traffic.scale,
                "repeat": self.traffic.repeat,
                "jitter_seconds": self.traffic.find_jitter(self.survey),
            },
            "requests": self.requests,
            "seconds": self.seconds,
            "outcomes": dict(self.outcomes),
            "preemptions": self.preemptions,
            "load_imbalance": self.load_imbalance,
            "figures": figures,
        }

    def lines(self) -> Iterator[str]:
        """The report as text; figures without data are left out."""
        settings, made_of, engine = self.settings, self.settings.engine, self.plan.engine
        yield from _describe_trace_in_words(self.traffic.trace, self.survey)
        jitter = self.traffic.find_jitter(self.survey)
        if jitter:
            why = ", as the trace rounds them" if self.survey.quantum_seconds else ""
            yield f"arrivals come up to {jitter:.3g} s later than recorded, by the seed{why}"
        yield (
            f"{settings.workers} workers, each {made_of.tensor_parallel_size} x {made_of.hardware} "
            f"with {made_of.model}: {_count(engine.cache_blocks)} blocks of {engine.block_tokens} tokens, "
            f"{settings.router} router"
        )
        outcomes = ", ".join(f"{_count(count)} {outcome}" for outcome, count in self.outcomes.items())
        yield f"{_count(self.requests)} requests in {_count(round(self.seconds))} s of their time: {outcomes or 'none'}"
        yield f"{_count(self.preemptions)} preemptions"
        yield f"the busiest worker had {self.load_imbalance:.2f} times the mean of requests in flight"
        group = ""
        for name, values in self.figures.items():
            figure = FIGURES[name]
            for key, value in values.items():
                if figure.group != group:
                    group = figure.group
                    yield ""
                    yield group
                title = figure.title if key == name else f"{figure.title} {key.removeprefix(name)}"
                yield f"  {title:<36}{_show(value, figure.unit):>16}"


def _replay_workers(arguments: argparse.Namespace) -> ReplayReport:
    if arguments.blocks is not None and (not arguments.blocks.isdigit() or "," in arguments.blocks):
        raise UsageError(f"--blocks is {arguments.blocks!r}, expected one whole number; lists are of --cache-only")
    settings = ReplaySettings(
        **_given(arguments, "workers", "router", "seed"),
        engine=WorkerSettings(
            **_given(arguments, "hardware", "model", "tensor_parallel_size", "max_batch_size", "max_num_tokens"),
            blocks=_parse_blocks(arguments.blocks) if arguments.blocks else None,
        ),
    )
    replayed = {"speed": "speed", "scale": "scale", "repeat": "repeat", "jitter": "jitter_seconds"}
    values = {
        field: getattr(arguments, name) for name, field in replayed.items() if getattr(arguments, name) is not None
    }
    traffic = ReplayedTraffic(arguments.trace, **values)
    began = time.perf_counter()
    report = replay(traffic, settings)
    sys.stderr.write(f"servescope: replayed in {time.perf_counter() - began:.1f} s\n")
    return report


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """The arguments of those names that were given."""
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}


def replay(traffic: ReplayedTraffic, settings: ReplaySettings) -> ReplayReport:
    """Serve all of a trace as fast as this machine can; returns when the last request has ended.

    Raises UsageError when that would be more than a year after the first came.
    """
    survey = survey_trace(traffic.trace)
    _check_duration(traffic, survey)
    plan = plan_workers(settings, survey)
    stack = EmulatedStack.of([(plan, 1.0)], traffic=traffic, seed=settings.seed)
    (deployment,) = stack.deployments
    while not stack.traffic.ended or deployment.in_flight:
        stack.clock.run_until(stack.clock.now + _LOOK_SECONDS)
    samples = [sample for target in deployment.targets() for sample in target.instruments.samples()]
    return ReplayReport(
        traffic=traffic,
        survey=survey,
        settings=settings,
        plan=plan,
        requests=stack.traffic.requests_sent,
        seconds=stack.clock.now,
        outcomes={outcome: deployment.outcomes[outcome] for outcome in sorted(deployment.outcomes)},
        preemptions=round(sum(sample.value for sample in samples if sample.name == "preemptions_total")),
        load_imbalance=_compare_loads(deployment),
        figures=_derive(samples, stack.clock.now),
    )


def _compare_loads(deployment: EmulatedDeployment) -> float:
    """The busiest worker's request-seconds as a multiple of the mean: their ratio is that of requests in flight."""
    loads = [
        sum(sample.value for sample in target.instruments.samples() if sample.name == "request_duration_seconds_sum")
        for target in deployment.targets()
        if target.identity.role == "aggregated"
    ]
    return max(loads) * len(loads) / sum(loads) if sum(loads) else 1.0


def _check_duration(traffic: ReplayedTraffic, survey: TraceSurvey) -> None:
    days = survey.seconds * traffic.repeat / traffic.speed / _DAY_SECONDS
    if days > _MOST_DAYS:
        raise UsageError(
            f"{traffic.trace}: lasts {days:.3g} days, {_count(traffic.repeat)} times at speed {traffic.speed:g}, "
            f"expected at most {_MOST_DAYS}"
        )


def _derive(samples: Sequence[Sample], seconds: float) -> dict[str, dict[str, float]]:
    """The figures that say something of the whole time, by name, and by their labels within; empty without data."""
    figures: dict[str, dict[str, float]] = {}
    for name, figure in FIGURES.items():
        if not any(name in METRICS and METRICS[name].kind == "gauge" for name in leaves(figure.expression)):
            found = evaluate_increases(figure.expression, samples, by=figure.by, seconds=seconds)
            figures[name] = {figure_key(name, dict(labels)): value for labels, value in found.items()}
    return figures


# --- words ------------------------------------------------------------------------------------------------------------


def _describe_trace(path: Path, survey: TraceSurvey) -> dict[str, object]:
    return {"path": str(path), **asdict(survey), "quantum_seconds": survey.quantum_seconds}


def _describe_trace_in_words(path: Path, survey: TraceSurvey) -> Iterator[str]:
    yield (
        f"{path.name} ({survey.format}): {_count(survey.requests)} requests over {_count(round(survey.seconds))} s, "
        f"{_count(survey.input_tokens)} prompt and {_count(survey.output_tokens)} output tokens"
    )
    if survey.format == "azure":
        yield "the trace names no blocks: no prompt shares anything with another"


def _show(value: float, unit: str) -> str:
    if unit == "ratio":
        return format_percent(value, 1)
    if unit == "seconds":
        return f"{value:.4g} s"
    return f"{value:,.4g} {unit}" if abs(value) < 1000 else f"{_count(round(value))} {unit}"


def _count(number: int) -> str:
    """With a space between thousands."""
    return f"{number:,}".replace(",", " ")
