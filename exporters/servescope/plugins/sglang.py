"""The SGLang plugin: installed beside SGLang, it gives every server the contract from inside.

SGLang finds it by the entry point group `sglang.srt.plugins`, and calls `register` in each of its processes before it
starts; what it registers are hooks of SGLang's own registry. The process of the server knows its requests, those of its
schedulers know what runs and waits: they are a process group, and the server's process shows it as one page.

What the hooks are given is not a stable interface of SGLang's, so an attribute may be missing, and every value is
checked. No error of the plugin reaches SGLang: it is logged or counted, and SGLang goes on.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import sglang
from sglang.srt.plugins.hook_registry import HookRegistry, HookType

from servescope.contract.identity import ENGINE_ROLES
from servescope.errors import ServescopeError
from servescope.exposition.serving import serve
from servescope.instruments.processes import ProcessGroup
from servescope.instruments.resources import ResourceMeter
from servescope.plugins.settings import PORT, Settings, is_switched_off, read_settings, warn_of_misspelt
from servescope.plugins.steps import LONGEST_DRAFT, EngineResources, StepInstruments

_logger = logging.getLogger("sglang.servescope")

_COLLECTORS = "sglang.srt.observability.metrics_collector"
_SERVER = f"{_COLLECTORS}.TokenizerMetricsCollector"
_SCHEDULER = f"{_COLLECTORS}.SchedulerMetricsCollector"
_MANAGER = "sglang.srt.managers.tokenizer_manager.TokenizerManager"

_GROUP = "_SERVESCOPE_SGLANG_GROUP"
"""The environment variable by which the processes of one server know their group: they inherit it."""

_RUNNING = "num_running_reqs"
# Of disaggregation too; a request whose KV is being sent waits for nothing.
_QUEUES = (
    "num_queue_reqs", "num_grammar_queue_reqs", "num_prefill_bootstrap_queue_reqs", "num_decode_prealloc_queue_reqs",
    "num_decode_transfer_queue_reqs",
)  # fmt: skip
_SENDING = "num_prefill_inflight_queue_reqs"

# Refused for lack of room: the queue is full, or a request waited in it for too long.
_REFUSALS = (429, 503)


def register() -> None:
    """Register the hooks; SGLang calls this in every process before it constructs anything. Does not raise."""
    try:
        if is_switched_off(os.environ):
            _logger.info("servescope: the plugin is switched off")
            return
        warn_of_misspelt(os.environ, _logger)
    except ServescopeError as error:
        _disable(str(error))
        return
    # Processes of this server are started by this one, and by those that it starts.
    os.environ.setdefault(_GROUP, f"sglang-{secrets.token_hex(8)}")
    for target, hook in _AFTER.items():
        HookRegistry.register(target, hook, HookType.AFTER)
    HookRegistry.register(f"{_MANAGER}._handle_abort_req", _before_abort, HookType.BEFORE)


class _Server:
    """What the process of the server knows: its requests."""

    def __init__(self, server_args: Any, labels: Mapping[str, Any]) -> None:
        settings = _settings(server_args, labels)
        self._draft_length = _draft_length(server_args)
        self._drafted = _drafted(server_args)
        # A worker that prefills hands its requests on: the one that decodes counts them.
        self._counts_requests = settings.identity.role != "prefill"
        self.instruments = _make_instruments(server_args, settings, resources=EngineResources(ResourceMeter()))
        if self._draft_length:
            self.instruments.record_speculation(0, ())
        self.group = ProcessGroup(os.environ[_GROUP], self.instruments)
        self.page = _serve(self.group, settings, server_args)

    def read_first(self, seconds: Any) -> None:
        if self._counts_requests:
            self.instruments.observe_first_tokens([seconds])

    def read_latency(self, interval: Any, tokens: Any) -> None:
        # Under speculation tokens come together, and no time is between them.
        if self._counts_requests and not self._draft_length and tokens > 0:
            self.instruments.observe_inter_token_latencies([interval / tokens] * tokens)

    def read_end(self, state: Any, output: Any, index: int) -> None:
        if not self._counts_requests:
            return
        reason = output.finished_reasons[index] or {}
        read, made = output.prompt_tokens[index], (getattr(output, "completion_tokens", None) or {index: 0})[index]
        self.instruments.count_tokens(input_tokens=read, output_tokens=made)
        times = state.time_stats
        self.instruments.record_request(
            outcome=_outcome(reason),
            input_tokens=read,
            output_tokens=made,
            time_to_first_token=times.get_first_token_latency() if made else None,
            duration=times.get_e2e_latency(),
            decode_seconds=times.get_decode_latency() if made else None,
            truncated=reason.get("type") == "length",
        )
        cached = getattr(output, "cached_tokens", None)
        if cached and read:
            # What was read again after it was displaced counts as cached too.
            self.instruments.record_cache_use(eligible_tokens=read, reused_tokens=min(cached[index], read))
        accepted = getattr(output, "spec_correct_drafts_histogram", None)
        if self._draft_length and self._drafted and accepted:
            self._read_speculation(accepted[index] or ())

    def _read_speculation(self, steps_by_accepted: Any) -> None:
        """Book the drafts of a request: how many of its steps accepted no draft token, one, two and so on."""
        steps = sum(steps_by_accepted)
        if not steps:
            return
        by_position = [sum(steps_by_accepted[position + 1 :]) for position in range(len(steps_by_accepted) - 1)]
        beyond = sum(by_position[self._draft_length :])
        by_position = by_position[: self._draft_length] + [0] * (self._draft_length - len(by_position))
        by_position[-1] += beyond
        self.instruments.record_speculation(steps * self._drafted, tuple(by_position))
        self.instruments.count_drafts(steps)

    def close(self) -> None:
        if self.page is not None:
            self.page.close()
        self.group.close()


class _Scheduler:
    """What a scheduler's process knows: what runs and waits, from when SGLang first reports it there."""

    def __init__(self, server_args: Any, labels: Mapping[str, Any]) -> None:
        self._made_of = server_args, labels
        # All ranks and pipeline stages repeat what the first of them says.
        self._says_it_first = not getattr(server_args, "enable_metrics_for_all_schedulers", False) and (
            not labels.get("pp_rank")
        )
        self.instruments: StepInstruments | None = None
        self._group: ProcessGroup | None = None

    def read_state(self, stats: Any) -> None:
        if not self._says_it_first:
            return
        instruments = self._joined()
        waiting = sum(_count(stats, name) for name in _QUEUES)
        instruments.set_queued_requests(waiting)
        instruments.set_concurrent_requests(waiting + _count(stats, _RUNNING) + _count(stats, _SENDING))
        instruments.set_kv_cache_usage(stats.token_usage)

    def read_retracted(self, requests: Any) -> None:
        if self.instruments is not None:
            self.instruments.count_preemptions(requests)

    def _joined(self) -> StepInstruments:
        if self.instruments is None:
            server_args, labels = self._made_of
            instruments = _make_instruments(server_args, _settings(server_args, labels))
            self._group = ProcessGroup(os.environ[_GROUP], instruments, role="member")
            self.instruments = instruments
        return self.instruments

    def close(self) -> None:
        if self._group is not None:
            self._group.close()


_READERS: weakref.WeakKeyDictionary[Any, _Server | _Scheduler] = weakref.WeakKeyDictionary()
"""The reader of each collector of SGLang's in this process."""


def _server_begins(_: Any, collector: Any, server_args: Any = None, labels: Any = None, *__: Any, **___: Any) -> None:
    _begin(collector, _Server, server_args, labels)


def _scheduler_begins(
    _: Any, collector: Any, labels: Any = None, server_args: Any = None, *__: Any, **___: Any
) -> None:
    _begin(collector, _Scheduler, server_args, labels)


def _begin(collector: Any, kind: type[_Server | _Scheduler], server_args: Any, labels: Any) -> None:
    try:
        reader = kind(server_args, labels or {})
    except ServescopeError as error:
        _disable(str(error))
    except Exception as error:
        # Whatever SGLang passes in another release: the server must go on, without our page.
        _disable(f"{type(error).__name__}: {error}")
    else:
        _READERS[collector] = reader
        # A page without updates must not be mistaken for that of an idle server.
        weakref.finalize(collector, reader.close).atexit = False


def _read(collector: Any, read: Callable[[Any], None]) -> None:
    """Let the collector's reader read; what cannot be read is counted."""
    reader = _READERS.get(collector)
    if reader is None:
        return
    try:
        read(reader)
    except Exception as error:
        # An error in a hook must not fail the request that it is about.
        if reader.instruments is None:
            del _READERS[collector]
            _disable(f"{type(error).__name__}: {error}")
        else:
            reader.instruments.refuse_reading("SGLang's statistics", error)


def _after_first_token(_: Any, collector: Any, labels: Any = None, value: Any = None, *__: Any, **___: Any) -> None:
    _read(collector, lambda server: server.read_first(value))


def _after_tokens(
    _: Any, collector: Any, labels: Any = None, internval: Any = None, num_new_tokens: Any = None, *__: Any, **___: Any
) -> None:
    _read(collector, lambda server: server.read_latency(internval, num_new_tokens))


def _after_output(_: Any, manager: Any, state: Any, output: Any, index: Any, *__: Any, **___: Any) -> None:
    if getattr(state, "finished", False):
        _read(manager.metrics_collector, lambda server: server.read_end(state, output, index))


def _before_abort(manager: Any, request: Any, *_: Any, **__: Any) -> None:
    """A request ends that is not running: its client left, or it is refused. Changes nothing of it."""
    try:
        state = manager.rid_to_state.get(request.rid)
        collector = getattr(manager, "metrics_collector", None)
        if state is None or collector is None or not getattr(state.obj, "log_metrics", True):
            return
        reason = getattr(request, "finished_reason", None) or {"type": "abort"}
    except Exception as error:
        # A private method's arguments may change with any release; aborts are not counted then.
        _logger.debug("servescope: an aborted request cannot be read: %s", error)
        return
    _read(collector, lambda server: server.instruments.count_ended(_outcome(reason)))


def _after_state(_: Any, collector: Any, stats: Any = None, *__: Any, **___: Any) -> None:
    _read(collector, lambda scheduler: scheduler.read_state(stats))


def _after_retracted(_: Any, collector: Any, num_retracted_reqs: Any = None, *__: Any, **___: Any) -> None:
    _read(collector, lambda scheduler: scheduler.read_retracted(num_retracted_reqs))


_AFTER = {
    f"{_SERVER}.__init__": _server_begins,
    f"{_SERVER}.observe_time_to_first_token": _after_first_token,
    f"{_SERVER}.observe_inter_token_latency": _after_tokens,
    f"{_MANAGER}.collect_metrics": _after_output,
    f"{_SCHEDULER}.__init__": _scheduler_begins,
    f"{_SCHEDULER}.log_stats": _after_state,
    f"{_SCHEDULER}.increment_retracted_reqs": _after_retracted,
}


def _settings(server_args: Any, labels: Mapping[str, Any]) -> Settings:
    release = ".".join(str(getattr(sglang, "__version__", "")).split(".")[:2])
    role = str(getattr(server_args, "disaggregation_mode", None))
    return read_settings(
        os.environ,
        {
            "model_name": str(labels.get("model_name") or getattr(server_args, "served_model_name", None) or ""),
            "inference_stack": f"sglang-{release}" if release else "sglang",
            "replica": socket.gethostname(),
            "role": role if role in ENGINE_ROLES else "aggregated",
        },
    )


def _make_instruments(server_args: Any, settings: Settings, **options: Any) -> StepInstruments:
    # A request that is refused for its form or its length may end before it reaches a scheduler.
    return StepInstruments(
        settings.identity,
        draft_length=_draft_length(server_args) or 1,
        unreported_outcomes=("client_error",),
        **options,
    )


def _draft_length(server_args: Any) -> int:
    """Draft tokens in a row that can be accepted in a step, 0 without speculation."""
    if not getattr(server_args, "speculative_algorithm", None):
        return 0
    steps = getattr(server_args, "speculative_num_steps", None)
    return min(int(steps or 0) or _drafted(server_args), LONGEST_DRAFT)


def _drafted(server_args: Any) -> int:
    """Draft tokens that a step verifies, on all branches: as SGLang counts them, one of its tokens is no draft."""
    return max(int(getattr(server_args, "speculative_num_draft_tokens", None) or 1) - 1, 0)


def _serve(group: ProcessGroup, settings: Settings, server_args: Any) -> Any:
    """The server of the page; None in a worker that finds it served by another one. Raises ServescopeError."""
    try:
        page = serve(group, port=settings.port, address=settings.address)
    except ServescopeError as error:
        if (getattr(server_args, "tokenizer_worker_num", None) or 1) > 1:
            _logger.info("servescope: this worker is on the page that another one serves: %s", error)
            return None
        group.close()
        raise ServescopeError(f"{error} ({PORT})") from error
    _logger.info("servescope: metrics of this server at %s", page.url)
    return page


def _outcome(reason: Mapping[str, Any]) -> str:
    """The outcome by SGLang's reason; what it aborts without a status is what a client has left."""
    kind, status = reason.get("type"), reason.get("status_code")
    if kind in ("stop", "length"):
        return "ok"
    if kind != "abort":
        return "error"
    if status is None:
        return "client_abort"
    if int(status) in _REFUSALS:
        return "rejected"
    return "client_error" if 400 <= int(status) < 500 else "error"


def _count(stats: Any, name: str) -> int:
    """A queue's length, which SGLang keeps with the counts by priority; 0 where the release has no such queue."""
    queue = getattr(stats, name, 0)
    return int(getattr(queue, "total", queue))


def _disable(reason: str) -> None:
    _logger.error("servescope: %s; the plugin is off, SGLang goes on without it", reason)
