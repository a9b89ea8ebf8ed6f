"""An SGLang to load the plugin into: the classes that it hooks, with the signatures and statistics of SGLang 0.5.23."""

from __future__ import annotations

import enum
import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

REGISTRY = "sglang.srt.plugins.hook_registry"
COLLECTORS = "sglang.srt.observability.metrics_collector"
MANAGER = "sglang.srt.managers.tokenizer_manager"


class HookType(enum.Enum):
    """As SGLang's."""

    BEFORE = "before"
    AFTER = "after"


class HookRegistry:
    """As SGLang's: hooks are registered by every plugin, and then applied at once."""

    registered: list[tuple[str, Callable[..., Any], HookType]]

    @classmethod
    def register(cls, target: str, hook: Callable[..., Any], hook_type: HookType = HookType.AFTER) -> None:
        cls.registered.append((target, hook, hook_type))

    @classmethod
    def apply_hooks(cls) -> None:
        for target, hook, hook_type in cls.registered:
            module, owner, name = target.rsplit(".", 2)
            of = getattr(sys.modules[module], owner)
            setattr(of, name, _hooked(getattr(of, name), hook, hook_type))


def _hooked(original: Callable[..., Any], hook: Callable[..., Any], hook_type: HookType) -> Callable[..., Any]:
    @functools.wraps(original)
    def called(*args: Any, **kwargs: Any) -> Any:
        if hook_type is HookType.BEFORE:
            args, kwargs = hook(*args, **kwargs) or (args, kwargs)
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        changed = hook(result, *args, **kwargs)
        return result if changed is None else changed

    return called


def install(monkeypatch: pytest.MonkeyPatch, *, registry_source: str = "") -> None:
    """Put it where `import sglang` finds it, and forget the plugin, so that it is imported anew.

    With the source of SGLang's own registry that is used in place of the one here.
    """
    names = ["sglang"]
    for module in (REGISTRY, COLLECTORS, MANAGER):
        parts = module.split(".")
        names += [".".join(parts[: length + 1]) for length in range(1, len(parts))]
    modules = {name: ModuleType(name) for name in dict.fromkeys(names)}
    for name, each in modules.items():
        monkeypatch.setitem(sys.modules, name, each)
        each.__dict__["__path__"] = []
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(modules[parent], child, each)
    modules["sglang"].__dict__["__version__"] = "0.5.23"
    if registry_source:
        exec(compile(registry_source, REGISTRY, "exec"), modules[REGISTRY].__dict__)
    else:
        HookRegistry.registered = []
        modules[REGISTRY].__dict__.update(HookRegistry=HookRegistry, HookType=HookType)
    collectors, manager = _classes()
    modules[COLLECTORS].__dict__.update({each.__name__: each for each in collectors})
    modules[MANAGER].__dict__["TokenizerManager"] = manager
    monkeypatch.delitem(sys.modules, "servescope.plugins.sglang", raising=False)


def _classes() -> tuple[tuple[type, type], type]:
    """New ones, which no hook of another test is on."""

    class TokenizerMetricsCollector:
        """As SGLang's: one in each process of the server."""

        def __init__(self, server_args: Any = None, labels: Any = None, bucket_time_to_first_token: Any = None) -> None:
            self.labels = labels or {}

        def observe_time_to_first_token(self, labels: Any, value: float, *, stream: bool) -> None: ...

        def observe_inter_token_latency(self, labels: Any, internval: float, num_new_tokens: int) -> None: ...

    class SchedulerMetricsCollector:
        """As SGLang's: one in each scheduler."""

        def __init__(self, labels: Any, server_args: Any, enable_lora: bool = False) -> None:
            self.labels = labels

        def log_stats(self, stats: Any) -> None: ...

        def increment_retracted_reqs(
            self, num_retracted_reqs: int, num_retracted_input_tokens: int, num_retracted_output_tokens: int
        ) -> None: ...

    class TokenizerManager:
        """As SGLang's, in as far as requests end in it."""

        def __init__(self, server_args: Any, labels: Any) -> None:
            self.rid_to_state: dict[str, Any] = {}
            self.metrics_collector = TokenizerMetricsCollector(server_args=server_args, labels=labels)

        def collect_metrics(self, state: Any, recv_obj: Any, i: int) -> None: ...

        def _handle_abort_req(self, recv_obj: Any) -> None:
            self.rid_to_state.pop(recv_obj.rid, None)

    return (TokenizerMetricsCollector, SchedulerMetricsCollector), TokenizerManager


@dataclass
class Times:
    """As SGLang's APIServerReqTimeStats."""

    first: float = 0.5
    lasted: float = 2.5

    def get_first_token_latency(self) -> float:
        return self.first

    def get_e2e_latency(self) -> float:
        return self.lasted

    def get_decode_latency(self) -> float:
        return self.lasted - self.first


@dataclass
class State:
    """As SGLang's ReqState."""

    finished: bool = True
    time_stats: Any = field(default_factory=Times)
    obj: Any = field(default_factory=lambda: SimpleNamespace(stream=True, log_metrics=True))


@dataclass
class Output:
    """As SGLang's BatchStrOutput, of one request."""

    finished_reasons: Any = field(default_factory=lambda: [{"type": "stop"}])
    prompt_tokens: Any = field(default_factory=lambda: [100])
    completion_tokens: Any = field(default_factory=lambda: [11])
    cached_tokens: Any = field(default_factory=lambda: [64])
    spec_correct_drafts_histogram: Any = None


@dataclass
class Abort:
    """As SGLang's AbortReq."""

    rid: str = "1"
    finished_reason: Any = None


@dataclass
class QueueCount:
    """As SGLang's: the whole, and by priority."""

    total: int = 0
    by_priority: Any = None


@dataclass
class Stats:
    """As SGLang's SchedulerStats."""

    num_running_reqs: Any = field(default_factory=QueueCount)
    num_queue_reqs: Any = field(default_factory=QueueCount)
    num_grammar_queue_reqs: Any = 0
    token_usage: Any = 0.0
    num_prefill_bootstrap_queue_reqs: Any = field(default_factory=QueueCount)
    num_prefill_inflight_queue_reqs: Any = field(default_factory=QueueCount)
    num_decode_prealloc_queue_reqs: Any = field(default_factory=QueueCount)
    num_decode_transfer_queue_reqs: Any = field(default_factory=QueueCount)


def arguments(**options: Any) -> SimpleNamespace:
    """What SGLang was started with, as its ServerArgs holds it."""
    values = {
        "served_model_name": "llama-70b", "disaggregation_mode": "null", "tokenizer_worker_num": 1,
        "enable_metrics_for_all_schedulers": False, "speculative_algorithm": None, "speculative_num_steps": None,
        "speculative_num_draft_tokens": None,
    }  # fmt: skip
    return SimpleNamespace(**{**values, **options})
