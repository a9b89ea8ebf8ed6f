"""Pages as vLLM 0.32 serves them, of 650 samples that move at every scrape, rendered by filling one template.

The families, their labels and buckets are those of its native exposition with a context of 131 072 tokens and
speculation on; the handlers of its HTTP server fill the rest of the page.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from servescope.contract.samples import format_value

SAMPLES = 650
"""Samples of a page."""

_STEPS = 64  # different steps a page can take, drawn at random at each scrape
_STARTED = 1.7951749e9

# fmt: off
_FIRST_TOKEN = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560,
)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000)
_ITERATION = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384)
_HANDLER = (0.1, 0.5, 1)
_HIGH_RESOLUTION = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5, 5, 7.5, 10, 30, 60,
)
# fmt: on
_SAMPLES_OF_HANDLER = 12

Steps = NDArray[np.float64]
"""What one series does in each of the `_STEPS` steps."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the pages of one model have in common: `text` with a place for each value, and how the values move.

    `steps` is (`_STEPS`, m); a value that is not `kept` is replaced by its step, the others grow by it.
    """

    text: str
    steps: NDArray[np.float64]
    kept: NDArray[np.bool_]
    constants: NDArray[np.float64]


class Page:
    """The page of one engine, which takes a step each time it is rendered."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self._shape = shape
        self._random = random.Random(seed)
        rounds = self._random.randrange(4, 12)
        self._values = shape.constants + shape.kept * shape.steps.sum(axis=0) * rounds

    def render(self) -> bytes:
        """The text after one more step."""
        shape = self._shape
        self._values = self._values * shape.kept + shape.steps[self._random.randrange(_STEPS)]
        return (shape.text % tuple(map(format_value, self._values.tolist()))).encode()


def make_shape(model_name: str, seed: int) -> Shape:
    """The page of an engine that serves this model."""
    builder = _Builder(np.random.default_rng(seed))
    _add_process(builder)
    engine = (("engine", "0"), ("model_name", model_name))
    _add_counters(builder, engine)
    _add_gauges(builder, engine)
    _add_histograms(builder, engine)
    _add_server(builder)
    return builder.shape()


def _add_process(builder: _Builder) -> None:
    for name in ("objects_collected", "objects_uncollectable", "collections"):
        builder.begin(f"python_gc_{name}_total", "counter")
        for generation in "012":
            builder.count(f"python_gc_{name}_total", [("generation", generation)], 0 if "un" in name else 3)
    builder.gauge("process_virtual_memory_bytes", [], 1.9e9, 2.0e9)
    builder.gauge("process_resident_memory_bytes", [], 6.0e8, 6.9e8)
    builder.constant("process_start_time_seconds", [], _STARTED)
    builder.begin("process_cpu_seconds_total", "counter")
    builder.measure("process_cpu_seconds_total", [], 0.8)
    builder.gauge("process_open_fds", [], 35, 60)
    builder.constant("process_max_fds", [], 65_536.0)


_COUNTERS: Sequence[tuple[str, str, Sequence[str], float]] = (
    ("spec_decode_num_drafts", "", [""], 900),
    ("spec_decode_num_draft_tokens", "", [""], 3600),
    ("spec_decode_num_accepted_tokens", "", [""], 2500),
    ("spec_decode_num_accepted_tokens_per_pos", "position", "0123", 600),
    ("estimated_flops_per_gpu", "", [""], 4e6),
    ("estimated_read_bytes_per_gpu", "", [""], 7e6),
    ("estimated_write_bytes_per_gpu", "", [""], 2e6),
    ("prefix_cache_queries", "", [""], 60_000),
    ("prefix_cache_hits", "", [""], 35_000),
    ("external_prefix_cache_queries", "", [""], 0),
    ("external_prefix_cache_hits", "", [""], 0),
    ("mm_cache_queries", "", [""], 0),
    ("mm_cache_hits", "", [""], 0),
    ("num_preemptions", "", [""], 0.4),
    ("prompt_tokens", "", [""], 60_000),
    ("prompt_tokens_by_source", "source", ["local_compute", "local_cache_hit", "external_kv_transfer"], 20_000),
    ("prompt_tokens_cached", "", [""], 35_000),
    ("prompt_tokens_cached_by_source", "source", ["device", "host", "disk", "remote", "external"], 7000),
    ("generation_tokens", "", [""], 9000),
    ("request_success", "finished_reason", ["stop", "length", "abort", "error", "repetition"], 6),
    ("admission_rejections", "reason", ["max_num_queued_reqs", "max_num_queued_tokens"], 0.1),
)


def _add_counters(builder: _Builder, engine: Sequence[tuple[str, str]]) -> None:
    for name, label, values, rate in _COUNTERS:
        labels = [[*engine, (label, value)] if label else list(engine) for value in values]
        builder.begin(f"vllm:{name}_total", "counter")
        for each in labels:
            builder.count(f"vllm:{name}_total", each, rate)
        builder.begin(f"vllm:{name}_created", "gauge")
        for each in labels:
            builder.created(f"vllm:{name}_created", each)


def _add_gauges(builder: _Builder, engine: Sequence[tuple[str, str]]) -> None:
    builder.gauge("vllm:num_requests_running", engine, 5, 60)
    builder.gauge("vllm:num_requests_waiting", engine, 0, 9)
    for reason in ("capacity", "deferred"):
        builder.gauge("vllm:num_requests_waiting_by_reason", [*engine, ("reason", reason)], 0, 9)
    for state in ("awake", "weights_offloaded", "discard_all"):
        builder.constant("vllm:engine_sleep_state", [*engine, ("sleep_state", state)], float(state == "awake"))
    builder.gauge("vllm:kv_cache_usage_perc", engine, 0, 1, whole=False)
    settings = [("block_size", "128"), ("cache_dtype", "auto"), ("enable_prefix_caching", "True"), *engine]
    builder.constant("vllm:cache_config_info", [*settings, ("num_gpu_blocks", "4096")], 1.0)


def _add_histograms(builder: _Builder, engine: Sequence[tuple[str, str]]) -> None:
    for name in ("prompt", "prefill_kv_computed", "generation", "max_num_generation", "params_max"):
        builder.histogram(f"vllm:request_{name}_tokens", engine, _TOKENS)
    builder.histogram("vllm:request_params_n", engine, (1, 2, 5, 10, 20))
    builder.histogram("vllm:request_num_preemptions", engine, (1, 2, 3, 4, 5, 10, 20))
    builder.histogram("vllm:iteration_tokens_total", engine, _ITERATION)
    builder.histogram("vllm:time_to_first_token_seconds", engine, _FIRST_TOKEN)
    builder.histogram("vllm:inter_token_latency_seconds", engine, _PER_TOKEN)
    builder.histogram("vllm:request_time_per_output_token_seconds", engine, _PER_TOKEN)
    builder.histogram("vllm:e2e_request_latency_seconds", engine, _REQUEST)
    for phase in ("queue", "inference", "prefill", "decode"):
        builder.histogram(f"vllm:request_{phase}_time_seconds", engine, _REQUEST)


def _add_server(builder: _Builder) -> None:
    """The HTTP middleware's series, for as many handlers as the page has room for."""
    builder.histogram("http_request_duration_highr_seconds", [], _HIGH_RESOLUTION)
    handlers = [("handler", f"/v1/{number}") for number in range(builder.free // _SAMPLES_OF_HANDLER)]
    for size in ("request", "response"):
        builder.begin(f"http_{size}_size_bytes", "summary")
        for handler in handlers:
            builder.count(f"http_{size}_size_bytes_count", [handler], 8)
            builder.count(f"http_{size}_size_bytes_sum", [handler], 9000)
    for handler in handlers:
        builder.histogram("http_request_duration_seconds", [handler, ("method", "POST")], _HANDLER)
    builder.begin("http_requests_total", "counter")
    for handler in handlers:
        builder.count("http_requests_total", [handler, ("method", "POST"), ("status", "2xx")], 8)
    for number in range(builder.free):
        builder.count("http_requests_total", [("handler", "none"), ("method", "POST"), ("status", f"{number}xx")], 8)


class _Builder:
    """A page in the making: its text, and a column of steps for each of its samples."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._lines: list[str] = []
        self._columns: list[Steps] = []
        self._kept: list[bool] = []
        self._constants: list[float] = []
        self._begun: set[str] = set()

    @property
    def free(self) -> int:
        return SAMPLES - len(self._columns)

    def shape(self) -> Shape:
        assert self.free == 0, f"the page has {len(self._columns)} samples, expected {SAMPLES}"
        return Shape(
            "".join(self._lines), np.stack(self._columns, axis=1), np.array(self._kept), np.array(self._constants)
        )

    def begin(self, name: str, kind: str) -> None:
        if name in self._begun:
            return
        self._begun.add(name)
        self._lines.append(f"# HELP {name} As vLLM describes it.\n# TYPE {name} {kind}\n")

    def count(self, name: str, labels: Sequence[tuple[str, str]], rate: float) -> None:
        self._add(name, labels, self._generator.poisson(rate, _STEPS).astype(float))

    def measure(self, name: str, labels: Sequence[tuple[str, str]], rate: float) -> None:
        self._add(name, labels, self._generator.exponential(rate, _STEPS))

    def created(self, name: str, labels: Sequence[tuple[str, str]]) -> None:
        self._add(name, labels, np.zeros(_STEPS), constant=_STARTED + float(self._generator.random()))

    def constant(self, name: str, labels: Sequence[tuple[str, str]], value: float) -> None:
        self.begin(name, "gauge")
        self._add(name, labels, np.zeros(_STEPS), constant=value)

    def gauge(
        self, name: str, labels: Sequence[tuple[str, str]], low: float, high: float, *, whole: bool = True
    ) -> None:
        values = self._generator.uniform(low, high, _STEPS)
        self.begin(name, "gauge")
        self._add(name, labels, values.round() if whole else values, kept=False)

    def histogram(self, name: str, labels: Sequence[tuple[str, str]], edges: Sequence[float]) -> None:
        """Buckets, count, sum and creation; the middle buckets are likelier than the outer ones."""
        middle, width = len(edges) / 2, len(edges) / 3
        rates = 8 * np.exp(-(((np.arange(len(edges) + 1) - middle) / width) ** 2))
        counts = self._generator.poisson(rates, (_STEPS, len(edges) + 1)).astype(float)
        below = counts.cumsum(axis=1)
        self.begin(name, "histogram")
        for number, edge in enumerate((*edges, float("inf"))):
            self._add(f"{name}_bucket", sorted([*labels, ("le", format_value(edge))]), below[:, number])
        self._add(f"{name}_count", labels, below[:, -1])
        places = np.array((*edges, edges[-1])) * 0.7
        self._add(f"{name}_sum", labels, counts @ places)
        self.created(f"{name}_created", labels)

    def _add(
        self,
        name: str,
        labels: Sequence[tuple[str, str]],
        steps: Steps,
        *,
        kept: bool = True,
        constant: float = 0.0,
    ) -> None:
        pairs = ",".join(f'{label}="{value}"' for label, value in labels)
        self._lines.append(f"{name}{{{pairs}}} %s\n" if pairs else f"{name} %s\n")
        self._columns.append(steps)
        self._kept.append(kept)
        self._constants.append(constant)
