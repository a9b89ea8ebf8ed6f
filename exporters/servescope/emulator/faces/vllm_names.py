"""An engine's page as a vLLM 0.32 server shows it: its names, types, labels and bucket edges.

What the contract's instruments count is shown under vLLM's names; what vLLM shows beside it and the emulator knows (the
parts a request's time falls into) is counted here. What an emulator has no part of (multi-modal caches, LoRA, sleep,
estimated FLOPs, the Python process but for its start) is left out, and so are the `_created` times, which are of a
virtual clock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from servescope.contract.samples import Sample, escape_label_value
from servescope.emulator.deployment.deployment import EmulatedDeployment, EmulatedTarget
from servescope.emulator.deployment.replica import Replica
from servescope.emulator.engine.serving import Serving
from servescope.instruments.instrument import Instruments

_SECONDS_EDGES = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
)  # fmt: skip
_FIRST_TOKEN_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_PER_TOKEN_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
)  # fmt: skip
_HTTP_EDGES = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 7.5, 10.0, 30.0, 60.0,
)  # fmt: skip

_HANDLER = "/v1/chat/completions"

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class _Renamed:
    """A histogram of the contract that vLLM has too, with fewer edges."""

    native: str
    contract: str
    edges: tuple[float, ...] | None
    help: str


_HISTOGRAMS = (
    _Renamed("vllm:time_to_first_token_seconds", "time_to_first_token_seconds", _FIRST_TOKEN_EDGES,
             "Seconds from arrival to the first token."),
    _Renamed("vllm:inter_token_latency_seconds", "inter_token_latency_seconds", _PER_TOKEN_EDGES,
             "Seconds between tokens."),
    _Renamed("vllm:request_time_per_output_token_seconds", "time_per_output_token_seconds", _PER_TOKEN_EDGES,
             "Seconds per token after the first, one value per request."),
    _Renamed("vllm:e2e_request_latency_seconds", "request_duration_seconds", _SECONDS_EDGES,
             "Seconds from arrival to the end of a request."),
    # The edges of these end where the longest context does.
    _Renamed("vllm:request_prompt_tokens", "input_tokens_per_request", None, "Prompt tokens of a request."),
    _Renamed("vllm:request_generation_tokens", "output_tokens_per_request", None, "Generated tokens of a request."),
)  # fmt: skip


class VllmPages:
    """The pages of a deployment's engines as vLLM shows them."""

    def __init__(self, deployment: EmulatedDeployment) -> None:
        self._pages: dict[Instruments, _Page] = {}
        for replica in deployment.replicas.values():
            self._watch(replica)
        deployment.watch_engines(self._watch)

    def render(self, target: EmulatedTarget) -> bytes:
        """The page of an engine of the deployment."""
        return self._pages[target.instruments].render()

    def _watch(self, replica: Replica) -> None:
        gone = [one for one, page in self._pages.items() if page.replica is replica]
        for one in gone:
            del self._pages[one]
        self._pages[replica.engine.instruments] = _Page(replica)


class _Page:
    """What one engine's vLLM would show."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self._engine = engine = replica.engine
        self._labels: Pairs = (("engine", "0"), ("model_name", replica.identity.model_name))
        self._queue = _Histogram(_SECONDS_EDGES)
        self._prefill = _Histogram(_SECONDS_EDGES)
        self._decode = _Histogram(_SECONDS_EDGES)
        self._inference = _Histogram(_SECONDS_EDGES)
        self._answers = _Histogram(_HTTP_EDGES)
        engine.watch_ended(self._book)

    def _book(self, serving: Serving, outcome: str) -> None:
        """Count the parts of a request's time: waiting, reading the prompt, and generating."""
        now = self._engine.now
        self._answers.observe(now - serving.arrived_at)
        if serving.admitted_at is None:
            return
        self._queue.observe(serving.admitted_at - serving.arrived_at)
        self._inference.observe(now - serving.admitted_at)
        if serving.first_token_at is not None:
            self._decode.observe(now - serving.first_token_at)
            # Another engine computed the prompt of a request that came with its first token.
            if serving.first_token_at >= serving.admitted_at:
                self._prefill.observe(serving.first_token_at - serving.admitted_at)

    def render(self) -> bytes:
        return "".join(f"{line}\n" for line in self._lines()).encode()

    def _lines(self) -> Iterator[str]:
        samples = self._engine.instruments.samples()
        totals = _add_up(samples)
        prompt, reused = totals.get("input_tokens_total", 0.0), float(self._engine.reused_tokens)
        queued = totals.get("queued_requests", 0.0)
        running = max(totals.get("concurrent_requests", 0.0) - queued, 0.0)

        yield from self._gauge("vllm:num_requests_running", "Requests in the batch.", running)
        yield from self._gauge("vllm:num_requests_waiting", "Requests that wait to be scheduled.", queued)
        yield from self._family(
            "vllm:num_requests_waiting_by_reason",
            "gauge",
            "Requests that wait, by why they do.",
            [((("reason", "capacity"),), queued), ((("reason", "deferred"),), 0.0)],
        )
        yield from self._gauge(
            "vllm:kv_cache_usage_perc", "Share of the KV cache in use, 0 to 1.", totals.get("kv_cache_usage", 0.0)
        )
        yield from self._counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache.", prompt)
        yield from self._counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache.", reused)
        yield from self._counter(
            "vllm:num_preemptions_total",
            "Requests preempted for want of KV cache.",
            totals.get("preemptions_total", 0.0),
        )
        yield from self._counter("vllm:prompt_tokens_total", "Prompt tokens, cached ones included.", prompt)
        yield from self._family(
            "vllm:prompt_tokens_by_source_total",
            "counter",
            "Prompt tokens, by where their KV is from.",
            [
                ((("source", "local_compute"),), prompt - reused),
                ((("source", "local_cache_hit"),), reused),
                ((("source", "external_kv_transfer"),), 0.0),
            ],
        )
        yield from self._counter("vllm:prompt_tokens_cached_total", "Prompt tokens found in a cache.", reused)
        yield from self._counter(
            "vllm:generation_tokens_total", "Tokens generated.", totals.get("output_tokens_total", 0.0)
        )
        yield from self._outcomes(samples, totals)
        yield from self._speculation(samples, totals)
        for renamed in _HISTOGRAMS:
            yield from self._renamed(renamed, samples)
        yield from self._parts(totals)
        parameters = self._engine.parameters
        configured = (
            self._labels[0],
            ("block_size", str(parameters.block_tokens)),
            ("enable_prefix_caching", "True"),
            ("num_gpu_blocks", str(parameters.cache_blocks)),
        )
        yield from _family("vllm:cache_config_info", "gauge", "How the cache is configured.", [(configured, 1.0)])
        began = self._engine.instruments.created_at
        yield from _family(
            "process_start_time_seconds", "gauge", "When the process began, in Unix seconds.", [((), began)]
        )

    def _outcomes(self, samples: Sequence[Sample], totals: dict[str, float]) -> Iterator[str]:
        """How requests ended: those the engine has taken by vLLM's reasons, the others where its server counts them."""
        ended = {dict(sample.labels)["outcome"]: sample.value for sample in samples if sample.name == "requests_total"}
        truncated = totals.get("answers_truncated_total", 0.0)
        ended_by = {
            "stop": ended.get("ok", 0.0) - truncated,
            "length": truncated,
            "abort": ended.get("client_abort", 0.0),
            "error": ended.get("error", 0.0),
            "repetition": 0.0,
        }
        yield from self._family(
            "vllm:request_success_total",
            "counter",
            "Requests that have ended, by why they did.",
            [((("finished_reason", reason),), count) for reason, count in ended_by.items()],
        )
        model = (self._labels[1],)
        rejected = {"max_num_queued_reqs": ended.get("rejected", 0.0), "max_num_queued_tokens": 0.0}
        yield from _family(
            "vllm:admission_rejections_total",
            "counter",
            "Requests turned away because too many wait.",
            [((*model, ("reason", reason)), count) for reason, count in rejected.items()],
        )
        answers = {
            "2xx": ended.get("ok", 0.0),
            "4xx": ended.get("client_error", 0.0),
            "5xx": ended.get("error", 0.0) + ended.get("rejected", 0.0),
        }
        yield from _family(
            "http_requests_total",
            "counter",
            "Answers of the API server, by the kind of their status.",
            [
                ((("handler", _HANDLER), ("method", "POST"), ("status", status)), count)
                for status, count in answers.items()
            ],
        )

    def _speculation(self, samples: Sequence[Sample], totals: dict[str, float]) -> Iterator[str]:
        length = self._engine.parameters.draft_length
        if not length:
            return
        drafted = totals.get("spec_decode_num_draft_tokens_total", 0.0)
        accepted = totals.get("spec_decode_num_accepted_tokens_total", 0.0)
        by_position = {
            dict(sample.labels)["position"]: sample.value
            for sample in samples
            if sample.name == "spec_decode_num_accepted_tokens_per_pos_total"
        }
        yield from self._counter("vllm:spec_decode_num_drafts_total", "Drafts made.", drafted / length)
        yield from self._counter("vllm:spec_decode_num_draft_tokens_total", "Tokens drafted.", drafted)
        yield from self._counter("vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens accepted.", accepted)
        yield from self._family(
            "vllm:spec_decode_num_accepted_tokens_per_pos_total",
            "counter",
            "Drafted tokens accepted, by their place in the draft.",
            [((("position", place),), by_position.get(place, 0.0)) for place in map(str, range(length))],
        )

    def _renamed(self, renamed: _Renamed, samples: Sequence[Sample]) -> Iterator[str]:
        """The contract's histogram at vLLM's edges; before the contract shows it, one that has counted nothing."""
        edges = renamed.edges or _token_edges(self._engine.parameters.max_seq_len)
        counted: dict[str | None, float] = {}
        total = 0.0
        for sample in samples:
            if sample.name == f"{renamed.contract}_bucket":
                counted[dict(sample.labels)["le"]] = sample.value
            elif sample.name == f"{renamed.contract}_count":
                counted[None] = sample.value
            elif sample.name == f"{renamed.contract}_sum":
                total = sample.value
        yield from _head(renamed.native, "histogram", renamed.help)
        for edge in (*map(_number, edges), "+Inf"):
            yield _line(f"{renamed.native}_bucket", (*self._labels, ("le", edge)), counted.get(edge, 0.0))
        yield _line(f"{renamed.native}_count", self._labels, counted.get(None, 0.0))
        yield _line(f"{renamed.native}_sum", self._labels, total)

    def _parts(self, totals: dict[str, float]) -> Iterator[str]:
        decoding = totals.get("decode_seconds_total", 0.0)
        for name, text, histogram, total in (
            ("vllm:request_queue_time_seconds", "Seconds from arrival to the batch.", self._queue, None),
            ("vllm:request_prefill_time_seconds", "Seconds from the batch to the first token.", self._prefill, None),
            # The sum is the contract's, which ends with the last token, also where the client left later.
            ("vllm:request_decode_time_seconds", "Seconds from the first token to the end.", self._decode, decoding),
            ("vllm:request_inference_time_seconds", "Seconds in the batch.", self._inference, None),
        ):
            yield from histogram.lines(name, text, self._labels, total)
        yield from self._answers.lines("http_request_duration_highr_seconds", "Seconds to answer.", (), None)

    def _gauge(self, name: str, text: str, value: float) -> Iterator[str]:
        return _family(name, "gauge", text, [(self._labels, value)])

    def _counter(self, name: str, text: str, value: float) -> Iterator[str]:
        return _family(name, "counter", text, [(self._labels, value)])

    def _family(self, name: str, kind: str, text: str, values: Sequence[tuple[Pairs, float]]) -> Iterator[str]:
        return _family(name, kind, text, [((*self._labels, *labels), value) for labels, value in values])


class _Histogram:
    def __init__(self, edges: Sequence[float]) -> None:
        self._edges = edges
        self._counts = [0] * (len(edges) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._edges, value)] += 1
        self._sum += value

    def lines(self, name: str, text: str, labels: Pairs, total: float | None) -> Iterator[str]:
        """The series; `total` replaces the sum of the observations."""
        yield from _head(name, "histogram", text)
        counted = 0
        for edge, count in zip((*map(_number, self._edges), "+Inf"), self._counts, strict=True):
            counted += count
            yield _line(f"{name}_bucket", (*labels, ("le", edge)), float(counted))
        yield _line(f"{name}_count", labels, float(counted))
        yield _line(f"{name}_sum", labels, self._sum if total is None else total)


def _add_up(samples: Iterable[Sample]) -> dict[str, float]:
    totals: dict[str, float] = {}
    for sample in samples:
        totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    return totals


def _token_edges(longest: int) -> tuple[float, ...]:
    """1, 2, 5, 10 … up to the longest context."""
    edges = (float(step * 10**power) for power in range(len(str(longest))) for step in (1, 2, 5))
    return tuple(edge for edge in edges if edge <= longest)


def _family(name: str, kind: str, text: str, values: Sequence[tuple[Pairs, float]]) -> Iterator[str]:
    yield from _head(name, kind, text)
    for labels, value in values:
        yield _line(name, labels, value)


def _head(name: str, kind: str, text: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _line(name: str, labels: Pairs, value: float) -> str:
    inner = ",".join(f'{key}="{escape_label_value(text)}"' for key, text in labels)
    return f"{name}{{{inner}}} {_number(value)}" if inner else f"{name} {_number(value)}"


def _number(value: float) -> str:
    return repr(float(value))
