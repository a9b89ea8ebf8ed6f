"""A vLLM to load the plugin into: the modules it imports, and statistics like vLLM 0.32's."""

from __future__ import annotations

import enum
import sys
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


class StatLoggerBase(ABC):
    """As vLLM's: one per engine."""

    @abstractmethod
    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None: ...

    @abstractmethod
    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None: ...

    @abstractmethod
    def log_engine_initialized(self) -> None: ...


class AggregateStatLoggerBase(StatLoggerBase):
    """As vLLM's: one for all engines."""

    @abstractmethod
    def __init__(self, vllm_config: Any, engine_indexes: list[int]) -> None: ...

    def record_admission_rejection(self, reason: str) -> None: ...


def install(monkeypatch: pytest.MonkeyPatch, *, aggregate: bool = True, version: str = "0.32.0") -> None:
    """Put it where `import vllm` finds it, and forget the plugin, so that it is imported anew."""
    modules = {name: ModuleType(name) for name in ("vllm", "vllm.v1", "vllm.v1.metrics", "vllm.v1.metrics.loggers")}
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, module)
    modules["vllm"].__dict__["__version__"] = version
    loggers = modules["vllm.v1.metrics.loggers"].__dict__
    loggers["StatLoggerBase"] = StatLoggerBase
    if aggregate:
        loggers["AggregateStatLoggerBase"] = AggregateStatLoggerBase
    monkeypatch.delitem(sys.modules, "servescope.plugins.vllm", raising=False)


class FinishReason(enum.IntEnum):
    """As vLLM's."""

    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


@dataclass
class Finished:
    """A request of 100 prompt tokens, 64 of them cached, and 11 output tokens in 2 s after the first."""

    finish_reason: Any = FinishReason.STOP
    request_id: str | None = "cmpl-1"
    e2e_latency: Any = 2.5
    num_prompt_tokens: Any = 100
    num_generation_tokens: Any = 11
    decode_time: Any = 2.0
    num_cached_tokens: Any = 64


@dataclass
class Prompts:
    """Prompt tokens read in a step."""

    total: Any = 0
    cached_tokens: Any = 0


@dataclass
class Iteration:
    """What the server saw of a step."""

    num_generation_tokens: Any = 0
    prompt_token_stats: Any = field(default_factory=Prompts)
    num_preempted_reqs: Any = 0
    finished_requests: Any = field(default_factory=list)
    time_to_first_tokens_iter: Any = field(default_factory=list)
    inter_token_latencies_iter: Any = field(default_factory=list)


@dataclass
class Speculation:
    """What a step drafted."""

    num_draft_tokens: Any = 0
    num_accepted_tokens_per_pos: Any = field(default_factory=list)
    num_drafts: Any = 0


@dataclass
class Scheduler:
    """The state of an engine after a step."""

    num_running_reqs: Any = 0
    num_waiting_reqs: Any = 0
    num_skipped_waiting_reqs: Any = 0
    kv_cache_usage: Any = 0.0
    spec_decoding_stats: Any = None


def configuration(*, draft_length: int | None = None, diffusion: bool = False, **parallel: int) -> SimpleNamespace:
    """A configuration like vLLM's."""
    return SimpleNamespace(
        model_config=SimpleNamespace(served_model_name="llama-70b", model="/models/llama", is_diffusion=diffusion),
        speculative_config=None if draft_length is None else SimpleNamespace(num_speculative_tokens=draft_length),
        parallel_config=SimpleNamespace(**{"data_parallel_size": 1, **parallel}),
        kv_transfer_config=None,
    )
