"""The vLLM plugin: installed beside vLLM, it gives every server the contract from inside.

vLLM finds it by the entry point group `vllm.stat_logger_plugins` and calls it with what each step of each engine did.
That is not a stable interface of vLLM's, so an attribute may be missing, and every value is checked. No error of the
plugin reaches vLLM: it is logged, and the plugin stays off.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from numbers import Real
from typing import TYPE_CHECKING, Any

import vllm
from vllm.v1.metrics import loggers

from servescope.contract.identity import Identity
from servescope.contract.metrics import OUTCOMES
from servescope.errors import ServescopeError, UsageError
from servescope.exposition.serving import MetricsServer, serve
from servescope.instruments.resources import ResourceMeter
from servescope.plugins.settings import PORT, Settings, is_switched_off, read_settings, warn_of_misspelt
from servescope.plugins.steps import LONGEST_DRAFT, EngineResources, StepInstruments

if TYPE_CHECKING:
    from servescope.instruments.instrument import Instruments

# Below vLLM's own logger, so that its lines come out where and how vLLM's do.
_logger = logging.getLogger("vllm.servescope")

_OUTCOMES = {
    "stop": "ok",
    "length": "ok",
    "repetition": "ok",
    "abort": "client_abort",
    "error": "error",
}
"""The outcome by vLLM's finish reason; any other reason counts as an error and is logged."""

# One logger for all engines hears of refused requests as well; older releases know only one logger per engine.
_Base: Any = getattr(loggers, "AggregateStatLoggerBase", None) or loggers.StatLoggerBase


class ServescopeStatLogger(_Base):  # type: ignore[misc]  # vLLM is not installed where types are checked
    """The logger that vLLM makes per server, or per engine, and calls from its event loop; it never raises."""

    def __init__(
        self,
        vllm_config: Any = None,
        engine_index: Any = 0,
        engine_indexes: Sequence[int] | None = None,
        **_: object,
    ) -> None:
        self._readers: dict[int, _EngineReader] = {}
        self._warned_of_unknown_engine = False
        try:
            self._start(vllm_config, _indexes(engine_index if engine_indexes is None else engine_indexes))
        except ServescopeError as error:
            self._disable(str(error))
        except Exception as error:
            self._disable(f"{type(error).__name__}: {error}")

    def record(
        self,
        scheduler_stats: Any = None,
        iteration_stats: Any = None,
        mm_cache_stats: Any = None,
        engine_idx: Any = 0,
        *_: object,
        **__: object,
    ) -> None:
        """One step of one engine: either of its statistics may be missing."""
        reader = self._readers.get(engine_idx) if isinstance(engine_idx, int) else None
        if reader is not None:
            reader.read(scheduler_stats, iteration_stats)
        elif self._readers and not self._warned_of_unknown_engine:
            self._warned_of_unknown_engine = True
            _logger.warning("servescope: engine %r is not one of %s; left out", engine_idx, [*self._readers])

    def record_admission_rejection(self, *_: object, **__: object) -> None:
        """The server refused a request for lack of capacity; counted with the first engine, since none received it."""
        for reader in self._readers.values():
            reader.instruments.count_ended("rejected")
            return

    def log_engine_initialized(self) -> None:
        """Nothing to log: the address of the page was logged at the start."""

    def log(self) -> None:
        """Nothing to log: the page is scraped."""

    def record_sleep_state(self, *_: object, **__: object) -> None:
        """Not part of the contract."""

    def _start(self, vllm_config: Any, indexes: list[int]) -> None:
        if is_switched_off(os.environ):
            _logger.info("servescope: the plugin is switched off")
            return
        warn_of_misspelt(os.environ, _logger)
        processes = _server_processes(vllm_config)
        settings = read_settings(os.environ, _default_labels(vllm_config)).of_process(*processes)
        readers = {
            index: _make_reader(
                vllm_config, _identity(settings.identity, vllm_config, indexes, index), processes, first=position == 0
            )
            for position, index in enumerate(indexes)
        }
        shown = [reader.instruments for reader in readers.values()]
        url = _PAGE.show(settings, shown)
        # vLLM drops its loggers when it scales: a page without updates must not be mistaken for an idle engine's.
        weakref.finalize(self, _PAGE.remove, shown).atexit = False
        self._readers = readers
        _logger.info("servescope: metrics of %d engine(s) at %s", len(readers), url)

    def _disable(self, reason: str) -> None:
        self._readers = {}
        _logger.error("servescope: %s; the plugin is off, vLLM goes on without it", reason)


class _EngineReader:
    def __init__(self, instruments: StepInstruments, *, draft_length: int, counts_engine: bool) -> None:
        self.instruments = instruments
        self._draft_length = draft_length
        # vLLM reports the state of the engine to one of several server processes, and not always to the same one.
        self._counts_engine = counts_engine
        self._disconnects = _Disconnects()
        # A worker that prefills is asked for one token of each answer, and another one generates the rest.
        self._reports_ends = instruments.identity.role != "prefill"
        self._cached_by_step = False
        if draft_length:
            instruments.record_speculation(0, ())

    def read(self, scheduler: Any, iteration: Any) -> None:
        """Book what a step did; what cannot be read is counted, and the rest is booked."""
        if iteration is not None:
            self._attempt(self._read_tokens, iteration)
            self._attempt(self._read_times, iteration)
            self._attempt(self._read_ends, iteration)
        if scheduler is not None:
            self._attempt(self._read_state, scheduler)
            self._attempt(self._read_speculation, scheduler)

    def _attempt(self, read: Callable[[Any], None], stats: Any) -> None:
        try:
            read(stats)
        except Exception as error:
            self.instruments.refuse_reading(f"vLLM's {type(stats).__name__}", error)

    def _read_tokens(self, iteration: Any) -> None:
        prompts = getattr(iteration, "prompt_token_stats", None)
        read = getattr(prompts, "total", getattr(iteration, "num_prompt_tokens", None)) or 0
        made = getattr(iteration, "num_generation_tokens", None) or 0
        if read or made:
            self.instruments.count_tokens(input_tokens=read, output_tokens=made)
        cached = getattr(prompts, "cached_tokens", None)
        if cached is not None:
            self._cached_by_step = True
            if read:
                self.instruments.record_cache_use(eligible_tokens=read, reused_tokens=cached)
        preempted = getattr(iteration, "num_preempted_reqs", None)
        if preempted:
            self.instruments.count_preemptions(preempted)

    def _read_times(self, iteration: Any) -> None:
        firsts = getattr(iteration, "time_to_first_tokens_iter", None)
        if firsts:
            self._disconnects.begun += len(firsts)
            self.instruments.observe_first_tokens(firsts)
        # Under speculation a step brings several tokens and one time, which is not the time between two tokens.
        latencies = None if self._draft_length else getattr(iteration, "inter_token_latencies_iter", None)
        if latencies:
            self.instruments.observe_inter_token_latencies(latencies)

    def _read_ends(self, iteration: Any) -> None:
        for finished in getattr(iteration, "finished_requests", None) or ():
            self._disconnects.ended += 1
            self._attempt(self._read_end, finished)

    def _read_end(self, finished: Any) -> None:
        reason = getattr(finished, "finish_reason", None)
        name = str(getattr(reason, "name", reason)).lower()
        outcome = _OUTCOMES.get(name, name)
        truncated = name == "length" if self._reports_ends else None
        read: Any = getattr(finished, "num_prompt_tokens", None)
        made: Any = getattr(finished, "num_generation_tokens", None)
        decoding, lasted = _seconds(finished, "decode_time"), _seconds(finished, "e2e_latency")
        if read is None or made is None or decoding is None or lasted is None:
            self.instruments.count_ended(outcome if outcome in OUTCOMES else "error", truncated=truncated)
        else:
            # Arrival is by the wall clock, which may be set meanwhile; decoding is not.
            lasted = max(lasted, decoding)
            self.instruments.record_request(
                outcome=outcome,
                input_tokens=read,
                output_tokens=made,
                # vLLM reports first tokens per step, not per request: this one came before the decoding began.
                time_to_first_token=lasted - decoding,
                duration=lasted,
                decode_seconds=decoding,
                truncated=truncated,
            )
        cached = getattr(finished, "num_cached_tokens", None)
        # Releases that do not report cached tokens per step report them per request, -1 for unknown.
        if not self._cached_by_step and cached is not None and cached >= 0:
            self.instruments.record_cache_use(eligible_tokens=read, reused_tokens=cached)

    def _read_state(self, scheduler: Any) -> None:
        running, waiting = getattr(scheduler, "num_running_reqs", None), getattr(scheduler, "num_waiting_reqs", None)
        if running is None or waiting is None:
            return
        waiting += getattr(scheduler, "num_skipped_waiting_reqs", None) or 0
        gone = self._disconnects.newly_gone(running + waiting)
        if gone:
            self.instruments.count_ended("client_abort", gone)
        if self._counts_engine:
            self.instruments.set_concurrent_requests(running + waiting)
            self.instruments.set_queued_requests(waiting)
            usage = getattr(scheduler, "kv_cache_usage", None)
            if usage is not None:
                self.instruments.set_kv_cache_usage(usage)

    def _read_speculation(self, scheduler: Any) -> None:
        stats = getattr(scheduler, "spec_decoding_stats", None)
        drafted, by_position = (
            getattr(stats, name, None) for name in ("num_draft_tokens", "num_accepted_tokens_per_pos")
        )
        if self._draft_length and drafted is not None and by_position is not None:
            counts = list(by_position)
            beyond = counts[self._draft_length :]
            counts = counts[: self._draft_length] + [0] * (self._draft_length - len(counts))
            counts[-1] += sum(beyond)
            self.instruments.record_speculation(drafted, tuple(counts))
            drafts = getattr(stats, "num_drafts", None)
            if drafts is not None:
                self.instruments.count_drafts(drafts)


class _Disconnects:
    """Requests whose end vLLM never reports: their clients disconnected, and it dropped them.

    A request with a first token and no end is in the engine, unless its client has disconnected. Requests in the engine
    without a first token hide as many disconnected ones until they get one or end, so this is a lower bound, which is
    exact whenever the engine is empty. Disconnects before the first token are not counted.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self._gone = 0

    def newly_gone(self, in_flight: int) -> int:
        """Disconnects that became known since the last call."""
        gone = max(self._gone, self.begun - self.ended - in_flight)
        newly, self._gone = gone - self._gone, gone
        return newly


class _Page:
    """The page of this process, with every engine that it has a logger for."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._shown: list[Instruments] = []
        self._server: MetricsServer | None = None
        self._address = ""

    def show(self, settings: Settings, more: Sequence[Instruments]) -> str:
        """Serve these engines as well, and return the page's URL. Raises ServescopeError, and then changes nothing."""
        with self._lock:
            known = {each.identity for each in self._shown}
            for each in more:
                if each.identity in known:
                    raise UsageError(
                        f"replica {each.identity.replica!r} of {each.identity.deployment_id!r} is on this process's "
                        "page already, expected one server of that identity per process"
                    )
            before, port = self._shown, settings.port if self._server is None else self._server.port
            try:
                return self._serve([*before, *more], settings.address, port)
            except ServescopeError as error:
                if before:
                    self._serve(before, settings.address, port)
                raise ServescopeError(f"{error} ({PORT})") from error

    def remove(self, gone: Sequence[Instruments]) -> None:
        """Remove engines from the page, and close the port after the last one; returns at once, in any thread."""
        threading.Thread(target=self._remove, args=(gone,), name="servescope-remove", daemon=True).start()

    def _remove(self, gone: Sequence[Instruments]) -> None:
        with self._lock:
            left = [each for each in self._shown if all(each is not one for one in gone)]
            if self._server is None or len(left) == len(self._shown):
                return
            address, port = self._address, self._server.port
            if left:
                self._serve(left, address, port)
            else:
                self._close()

    def _serve(self, instruments: list[Instruments], address: str, port: int) -> str:
        self._close()
        self._server = serve(*instruments, port=port, address=address)
        self._shown, self._address = instruments, address
        return self._server.url

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._server, self._shown = None, []


_PAGE = _Page()


def _make_reader(vllm_config: Any, identity: Identity, processes: tuple[int, int], *, first: bool) -> _EngineReader:
    draft_length = _draft_length(vllm_config)
    rank, count = processes
    # A request that is refused for its form or its model reaches no engine.
    unreported = ["client_error"]
    if not hasattr(_Base, "record_admission_rejection"):
        unreported.append("rejected")
    instruments = StepInstruments(
        identity,
        draft_length=draft_length or 1,
        # They are those of all engines of all processes here: reported once.
        resources=EngineResources(ResourceMeter()) if first and rank == 0 else None,
        unreported_outcomes=unreported,
    )
    return _EngineReader(instruments, draft_length=draft_length, counts_engine=count == 1)


def _draft_length(vllm_config: Any) -> int:
    """Draft tokens per step and sequence, 0 without speculation."""
    tokens = getattr(getattr(vllm_config, "speculative_config", None), "num_speculative_tokens", None)
    # Diffusion models report their canvas as drafts.
    if not tokens or getattr(getattr(vllm_config, "model_config", None), "is_diffusion", False):
        return 0
    return min(int(tokens), LONGEST_DRAFT)


def _default_labels(vllm_config: Any) -> Mapping[str, str]:
    model = getattr(vllm_config, "model_config", None)
    served = getattr(model, "served_model_name", None) or getattr(model, "model", None) or ""
    release = ".".join(str(getattr(vllm, "__version__", "")).split(".")[:2])
    transfer = getattr(getattr(vllm_config, "kv_transfer_config", None), "kv_role", None)
    return {
        "model_name": str(served if isinstance(served, str) else next(iter(served), "")),
        "inference_stack": f"vllm-{release}" if release else "vllm",
        "replica": socket.gethostname(),
        "role": {"kv_producer": "prefill", "kv_consumer": "decode"}.get(str(transfer), "aggregated"),
    }


def _identity(identity: Identity, vllm_config: Any, indexes: list[int], index: int) -> Identity:
    """The identity of one engine: a data-parallel rank is a replica of its own."""
    ranks = getattr(getattr(vllm_config, "parallel_config", None), "data_parallel_size", 1)
    if len(indexes) == 1 and ranks == 1:
        return identity
    return replace(identity, replica=f"{identity.replica}-dp{index}")


def _server_processes(vllm_config: Any) -> tuple[int, int]:
    """Which of how many server processes this is; the first of one where vLLM does not say."""
    parallel = getattr(vllm_config, "parallel_config", None)
    rank, count = getattr(parallel, "_api_process_rank", 0), getattr(parallel, "_api_process_count", 1)
    return (max(rank, 0), count) if isinstance(rank, int) and isinstance(count, int) else (0, 1)


def _seconds(stats: Any, name: str) -> float | None:
    """An attribute in seconds; None when it is missing or no number."""
    value = getattr(stats, name, None)
    return float(value) if isinstance(value, Real) else None


def _indexes(given: Any) -> list[int]:
    return list(given) if isinstance(given, list | tuple | range | set) else [given]
