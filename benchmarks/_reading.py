"""What reading a target's text costs, beside `prometheus_client`'s parsers on the same machine.

The pages are like those of vLLM, of a Dynamo frontend and of our own instruments, and one is OpenMetrics with time
stamps and exemplars; with SERVESCOPE_REFERENCE the captured ones are read as well. Of each there are a few texts, one
after the other as a target would show them, with most values changed. Each figure is the best of interleaved repeats.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from servescope.collector.collector import Collector
from servescope.collector.config import configure_targets
from servescope.collector.scrapes.scrape import Limits
from servescope.collector.targets.target import Target
from servescope.contract.identity import Identity
from servescope.exposition.rendering import render
from servescope.instruments.engine import EngineInstruments
from servescope.sources.cache import SeriesCache
from servescope.sources.parse import learn_page
from servescope.sources.reader import Reader
from servescope.store.embedded import Store

_SECONDS = 30.0
_TEXTS = 4
_TARGETS = 200

_LATENCY_EDGES = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
)  # fmt: skip
_TOKEN_EDGES = tuple(float(digit * 10**power) for power in range(5) for digit in (1, 2, 5))


@dataclass(frozen=True, slots=True)
class Pages:
    """Texts of one target, one after the other; `samples` in each."""

    name: str
    texts: Sequence[bytes]
    samples: int
    is_openmetrics: bool = False


def run() -> None:
    """Print samples a second for parsing, and for parsing and translating, with the ratios to prometheus_client."""
    kinds = [*_generated(), *_captured()]
    width = max(len(pages.name) for pages in kinds)
    print("reading a text that its target showed before, in millions of samples a second on one core")
    print(f"  {'':<{width}}  samples  parse  x prometheus_client  read  x prometheus_client  first, ms  grown, ms")
    for pages in kinds:
        parse, read, first, grown, peer = _measure(pages, _SECONDS / len(kinds))
        rates = [pages.samples / seconds / 1e6 for seconds in (parse, read)]
        print(
            f"  {pages.name:<{width}}  {pages.samples:>7}  {rates[0]:5.2f}  {peer / parse:19.0f}"
            f"  {rates[1]:4.2f}  {peer / read:19.0f}  {first * 1e3:9.1f}  {grown * 1e3:9.1f}"
        )
    print("  (parse: to native values; read: to contract samples, admitted; first: the first text of the first target;")
    print("  grown: a text with a series more or less than the one before)")
    _print_fixed_costs(kinds[0])
    _print_memory()


def _measure(pages: Pages, seconds: float) -> tuple[float, float, float, float, float]:
    """Seconds a text: parsing, reading, reading a first one and one that grew, and parsing by prometheus_client."""
    target = _target(0)
    page, _ = learn_page(pages.texts[0], SeriesCache())
    reader = Reader(target.identity)
    for text in pages.texts:
        reader.read(text)
    growing = Reader(target.identity)
    grown = cycle((pages.texts[0], b"one_more 1\n" + pages.texts[0]))
    decoded = [text.decode() for text in pages.texts]
    parse = cycle(pages.texts)
    peer = cycle(decoded)

    def parse_known() -> None:
        assert page.read(next(parse)) is not None

    def read_peer() -> None:
        # Neither parser does its work before its families are asked for.
        for _ in (read_openmetrics if pages.is_openmetrics else read_text)(next(peer)):
            pass

    best = _best(
        {
            "parse": (parse_known, 20),
            "read": (lambda: reader.read(next(parse)), 20),
            "first": (lambda: Reader(target.identity).read(next(parse)), 1),
            "grown": (lambda: growing.read(next(grown)), 2),
            "peer": (read_peer, 1),
        },
        seconds,
    )
    return best["parse"], best["read"], best["first"], best["grown"], best["peer"]


def _best(cases: dict[str, tuple[Callable[[], object], int]], seconds: float) -> dict[str, float]:
    best = dict.fromkeys(cases, math.inf)
    ends = time.perf_counter() + seconds
    gc.disable()
    try:
        while time.perf_counter() < ends:
            for name, (act, times) in cases.items():
                for _ in range(times):
                    started = time.perf_counter()
                    act()
                    best[name] = min(best[name], time.perf_counter() - started)
    finally:
        gc.enable()
    return best


def _print_fixed_costs(pages: Pages) -> None:
    """What a scrape costs beside its text: bookkeeping of the collector, without the network and the store."""

    texts = cycle(pages.texts)

    async def fetch(_: Target, __: Limits, /) -> bytes:
        return next(texts)

    configuration = configure_targets([f"chat=127.0.0.{place}:80" for place in range(1, 9)])
    now = 1_800_000_000.0
    best = math.inf

    async def scrape_all(collector: Collector) -> None:
        nonlocal now, best
        await collector.discovering.discover()
        for _ in range(200):
            now += 15
            for watched in collector.fleet.watched:
                started = time.perf_counter()
                await collector.scraping.scrape(watched)
                best = min(best, time.perf_counter() - started)

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "store.db"
        collector = Collector(configuration, Store(path), Store(path, read_only=True), fetch, clock=lambda: now)
        asyncio.run(scrape_all(collector))
        collector.close()
    reader = Reader(_target(0).identity)
    for text in pages.texts:
        reader.read(text)
    read = _best({"read": (lambda: reader.read(next(texts)), 50)}, 0.5)["read"]
    print(f"one scrape of {pages.samples} samples, without network and store: {best * 1e3:.2f} ms,")
    print(f"  {(best - read) * 1e3:.2f} ms of it beside reading the text")


def _print_memory() -> None:
    """What a target takes while it is known: one whose text others show as well, and one whose text is its own."""
    for words, alone in (("the same series", False), ("series of their own", True)):
        gc.collect()
        tracemalloc.start()
        cache = SeriesCache()
        readers = []
        before, _ = tracemalloc.get_traced_memory()
        for place in range(_TARGETS):
            text = _vllm_text(random.Random(place), f"-{place}" if alone else "")
            readers.append(Reader(_target(place).identity, cache=cache))
            readers[-1].read(text)
        del text
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        each = (after - before) / _TARGETS
        print(f"memory of a vLLM-like target among {_TARGETS} with {words}: {each / 1e3:.0f} kB")


def _target(place: int) -> Target:
    return Target(f"http://10.0.0.1:{place}/metrics", Identity("llama", "chat", "v1", replica=f"engine-{place}"))


# --- Pages ------------------------------------------------------------------------------------------------------------


def _generated() -> Iterator[Pages]:
    source = random.Random(20)
    for name, make in (("vLLM-like", _vllm_text), ("Dynamo-like", _dynamo_text), ("our own", _own_text)):
        yield _pages(name, [make(source) for _ in range(_TEXTS)])
    yield _pages("OpenMetrics, exemplars", [_openmetrics_text(source) for _ in range(_TEXTS)], is_openmetrics=True)


def _captured() -> Iterator[Pages]:
    folder = Path(os.environ.get("SERVESCOPE_REFERENCE", "../shared")) / "captures"
    for name in ("vllm-0.32.0-1", "vllm-0.13era-1", "dynamo-frontend-1.6.1-1"):
        path = folder / f"{name}.txt"
        if path.is_file():
            yield _pages(f"captured {name}", [path.read_bytes()])


def _pages(name: str, texts: Sequence[bytes], *, is_openmetrics: bool = False) -> Pages:
    return Pages(name, texts, len(learn_page(texts[0], SeriesCache())[1]), is_openmetrics)


class _Text:
    """Writes families as Python's prometheus_client does, with values that grow by chance."""

    def __init__(self, source: random.Random, labels: dict[str, str], *, openmetrics: bool = False) -> None:
        self._source, self._labels, self._openmetrics = source, labels, openmetrics
        self._lines: list[str] = []

    def family(self, name: str, kind: str) -> None:
        self._lines += [f"# HELP {name} What {name.replace('_', ' ')} counts.", f"# TYPE {name} {kind}"]

    def sample(self, name: str, value: float, **labels: str) -> None:
        pairs = ",".join(f'{label}="{text}"' for label, text in sorted({**self._labels, **labels}.items()))
        tail = ""
        if self._openmetrics:
            bears = name.endswith(("_bucket", "_total"))
            tail = " 1700000000.25"
            if bears:
                tail += ' # {trace_id="0af7651916cd43dd8448eb211c80319c"} 0.25 1700000000.125'
        self._lines.append(f"{name}{{{pairs}}} {value!r}{tail}" if pairs else f"{name} {value!r}{tail}")

    def histogram(self, name: str, edges: Sequence[float], **labels: str) -> None:
        count = 0.0
        for edge in (*edges, math.inf):
            count += self._source.randrange(100_000)
            self.sample(f"{name}_bucket", count, le="+Inf" if math.isinf(edge) else repr(edge), **labels)
        self.sample(f"{name}_sum", self._source.random() * count, **labels)
        self.sample(f"{name}_count", count, **labels)

    def count(self, most: int = 1_000_000) -> float:
        return float(self._source.randrange(most))

    def text(self) -> bytes:
        return "\n".join([*self._lines, *(["# EOF"] if self._openmetrics else []), ""]).encode()


def _vllm_text(source: random.Random, suffix: str = "", *, openmetrics: bool = False) -> bytes:
    """About 650 samples under vLLM's names."""
    text = _Text(source, {"engine": "0", "model_name": f"meta-llama/Llama-3.1-70B{suffix}"}, openmetrics=openmetrics)
    prefix = "vllm:"
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        text.family(prefix + name, "gauge")
        text.sample(prefix + name, source.random())
    for name in ("prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "prompt_tokens_cached",
                 "generation_tokens", "num_preemptions", "spec_decode_num_drafts", "spec_decode_num_draft_tokens",
                 "spec_decode_num_accepted_tokens"):  # fmt: skip
        text.family(prefix + name if openmetrics else f"{prefix}{name}_total", "counter")
        text.sample(f"{prefix}{name}_total", text.count())
    text.family(f"{prefix}request_success" + ("" if openmetrics else "_total"), "counter")
    for reason in ("stop", "length", "abort", "error", "repetition"):
        text.sample(f"{prefix}request_success_total", text.count(), finished_reason=reason)
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "e2e_request_latency_seconds",
                 "request_queue_time_seconds", "request_inference_time_seconds", "request_prefill_time_seconds",
                 "request_decode_time_seconds", "request_time_per_output_token_seconds"):  # fmt: skip
        text.family(prefix + name, "histogram")
        text.histogram(prefix + name, _LATENCY_EDGES)
    for name in ("request_prompt_tokens", "request_generation_tokens", "iteration_tokens_total", "request_params_n",
                 "request_max_num_generation_tokens", "request_params_max_tokens"):  # fmt: skip
        text.family(prefix + name, "histogram")
        text.histogram(prefix + name, _TOKEN_EDGES)
    text.family("http_request_duration_seconds", "histogram")
    for handler in ("/v1/completions", "/v1/chat/completions", "/health", "/metrics", "/v1/models", "/tokenize"):
        for method in ("GET", "POST", "OPTIONS"):
            text.histogram("http_request_duration_seconds", _LATENCY_EDGES[:-9], handler=handler, method=method)
    text.family("process_cpu_seconds" + ("" if openmetrics else "_total"), "counter")
    text.sample("process_cpu_seconds_total", source.random() * 1e4)
    return text.text()


def _openmetrics_text(source: random.Random) -> bytes:
    return _vllm_text(source, openmetrics=True)


def _dynamo_text(source: random.Random) -> bytes:
    text = _Text(source, {"model": "llama"})
    prefix = "dynamo_frontend_"
    for name in ("disconnected_clients", "queued_requests", "inflight_requests", "model_context_length"):
        text.family(prefix + name, "gauge")
        text.sample(prefix + name, text.count())
    for name in ("output_tokens_total", "event_loop_stall_total"):
        text.family(prefix + name, "counter")
        text.sample(prefix + name, text.count())
    text.family(f"{prefix}requests_total", "counter")
    for endpoint in ("chat_completions", "completions", "responses"):
        for status, kind in (("success", ""), ("error", "internal"), ("error", "validation"), ("error", "cancelled")):
            text.sample(f"{prefix}requests_total", text.count(), endpoint=endpoint, status=status, error_type=kind)
    for name in ("time_to_first_token_seconds", "inter_token_latency_seconds", "request_duration_seconds",
                 "input_sequence_tokens", "output_sequence_tokens", "cached_tokens", "tokenizer_ms"):  # fmt: skip
        text.family(prefix + name, "histogram")
        text.histogram(prefix + name, _LATENCY_EDGES)
    for name in ("kv_hit_rate", "time_to_first_token_seconds", "inter_token_latency_seconds", "input_tokens"):
        text.family(f"dynamo_component_router_{name}", "histogram")
        text.histogram(f"dynamo_component_router_{name}", _LATENCY_EDGES, router_id="1")
    text.family("dynamo_work_handler_request_duration_seconds", "histogram")
    for worker in range(16):
        text.histogram("dynamo_work_handler_request_duration_seconds", _LATENCY_EDGES[:15], worker_id=f"{worker:x}" * 8)
    return text.text()


def _own_text(source: random.Random) -> bytes:
    engine = EngineInstruments(Identity("llama", "chat", "v2", replica="engine-0"), draft_length=4)
    for _ in range(300):
        first_token, decode = source.random(), 9 * source.random()
        engine.record_request(
            outcome="ok", input_tokens=source.randrange(1, 9000), output_tokens=source.randrange(2, 900),
            time_to_first_token=first_token, duration=first_token + decode, decode_seconds=decode,
            draft_tokens=40, accepted_by_position=(9, 7, 5, 3),
        )  # fmt: skip
    return render(engine)
