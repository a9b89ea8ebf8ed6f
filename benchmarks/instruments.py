"""What the instruments cost, in units of one bound `prometheus_client` `Histogram.observe` on the same machine.

`observe` costs more the later a value's bucket: the unit is its mean over the six histograms that a finished request
updates, each with its own edges and with the values of the same random requests. Each line is the best of interleaved
repeats, since other work on the machine can only slow one down, less the best of the empty loop that brings the values.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, OUTCOMES
from servescope.exposition.rendering import render
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.record_buffer import FOLD_EVERY

_SECONDS = 30.0
_DRAFT_LENGTH = 8
_SERIES = 1000

_IN_A_ROW = 4
_FEW = 64  # what takes a hundred times as long is timed over fewer requests, or it would be all that is timed

_OBSERVE = "one bound Histogram.observe"
_BY_PROMETHEUS_CLIENT = "the same updates by prometheus_client"
_BY_OPENTELEMETRY = "the same updates by the OpenTelemetry SDK"

_LATENCIES = (
    "time_to_first_token_seconds", "time_per_output_token_seconds", "request_duration_seconds", "tps_per_request",
    "input_tokens_per_request", "output_tokens_per_request",
)  # fmt: skip


Case = tuple[Callable[[], float], Callable[[], float]]
"""Seconds per operation, and of that for the loop around it."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The numbers of one finished request."""

    outcome: str
    input_tokens: int
    output_tokens: int
    first_token: float
    duration: float
    decode: float
    draft: int
    accepted: tuple[int, ...]


def run(_: argparse.Namespace) -> None:
    """Print what recording and rendering cost beside prometheus_client and the OpenTelemetry SDK."""
    requests = _draw_requests(random.Random(20), FOLD_EVERY - 1)
    many = requests * 16
    cases = {
        _OBSERVE: _time_observe(requests),
        "by position, caller's thread": _time_recording(requests, folded=False),
        "by position, folding included": _time_recording(many, folded=True),
        "by position, caller's thread, no drafts": _time_recording(requests, folded=False, drafted=False),
        "by position, folding included, no drafts": _time_recording(many, folded=True, drafted=False),
        "by keyword, caller's thread": _time_recording(requests, folded=False, keywords=True),
        "by keyword, folding included": _time_recording(many, folded=True, keywords=True),
        "start, first token, 4 batches, finish; folded": _time_handles(many[:4096]),
        _BY_PROMETHEUS_CLIENT: _time_prometheus_client(requests),
    }
    try:
        cases[_BY_OPENTELEMETRY] = _time_opentelemetry(requests[:_FEW])
    except ImportError:
        print("opentelemetry-sdk is not installed: left out; pip install '.[otlp]'")
    _print_recording(_measure_interleaved(cases))
    _print_rendering()


def _print_recording(best: Mapping[str, float]) -> None:
    unit = best[_OBSERVE]
    peers = [peer for peer in (_BY_PROMETHEUS_CLIENT, _BY_OPENTELEMETRY) if peer in best]
    print(f"recording one finished request with {_DRAFT_LENGTH} draft positions, in units of one bound")
    print(f"Histogram.observe: the mean over the {len(_LATENCIES)} histograms it updates, {unit * 1e9:.0f} ns here")
    for name, seconds in best.items():
        shares = "".join(f"  1/{best[peer] / seconds:<5.0f}" for peer in peers if name not in (_OBSERVE, *peers))
        print(f"  {name:<48} {seconds / unit:7.2f}{shares}")
    print(f"  (the shares are of {' and of '.join(peers)})")


def _measure_interleaved(cases: Mapping[str, Case]) -> dict[str, float]:
    best = {name: [math.inf, math.inf] for name in cases}
    ends = time.perf_counter() + _SECONDS
    while time.perf_counter() < ends:
        for name, case in cases.items():
            for part, timed in enumerate(case):
                # The first of a few in a row finds the processor's caches filled by the case before it.
                best[name][part] = min(best[name][part], *(timed() for _ in range(_IN_A_ROW)))
    return {name: whole - loop for name, (whole, loop) in best.items()}


def _no_loop() -> float:
    """Where the loop is too small a part to be taken off."""
    return 0.0


def _draw_requests(source: random.Random, count: int) -> list[Finished]:
    return list(_drawn(source, count))


def _drawn(source: random.Random, count: int) -> Iterator[Finished]:
    # Spread over the buckets, since the cost of observe() grows with the bucket.
    for _ in range(count):
        output = int(math.exp(source.uniform(math.log(2), math.log(4000))))
        first_token = math.exp(source.uniform(math.log(0.002), math.log(60)))
        decode = (output - 1) * math.exp(source.uniform(math.log(0.0002), math.log(0.4)))
        accepted = tuple(sorted((source.randrange(60) for _ in range(_DRAFT_LENGTH)), reverse=True))
        yield Finished(
            source.choice(OUTCOMES), source.randrange(1, 100_000), output, first_token, first_token + decode, decode,
            accepted[0] * _DRAFT_LENGTH, accepted,
        )  # fmt: skip


def _time_observe(requests: Sequence[Finished]) -> Case:
    registry = CollectorRegistry()
    by_histogram = [
        (_bind_histogram(registry, name), [values[name] for values in map(_observed, requests)]) for name in _LATENCIES
    ]
    count = len(_LATENCIES) * len(requests)

    def timed() -> float:
        started = time.perf_counter()
        for observe, values in by_histogram:
            for value in values:
                observe(value)
        return (time.perf_counter() - started) / count

    def empty() -> float:
        started = time.perf_counter()
        for _observe, values in by_histogram:
            for _value in values:
                pass
        return (time.perf_counter() - started) / count

    return timed, empty


def _observed(request: Finished) -> dict[str, float]:
    """What each histogram observes of a request, by name."""
    followers = request.output_tokens - 1
    values = (
        request.first_token, (request.duration - request.first_token) / followers, request.duration,
        followers / request.decode, request.input_tokens, request.output_tokens,
    )  # fmt: skip
    return dict(zip(_LATENCIES, values, strict=True))


def _bind_histogram(registry: CollectorRegistry, name: str) -> Callable[[float], None]:
    observe: Callable[[float], None] = (
        Histogram(name, METRICS[name].help, ["replica"], registry=registry, buckets=_edges(name)).labels("r0").observe
    )
    return observe


def _edges(name: str) -> tuple[float, ...]:
    edges = METRICS[name].edges
    assert edges is not None
    return edges


def _time_recording(
    requests: Sequence[Finished], *, folded: bool, drafted: bool = True, keywords: bool = False
) -> Case:
    """Seconds per recorded request; one round of fewer than a fold's records is all the caller's own."""
    engine = EngineInstruments(_identity(0), draft_length=_DRAFT_LENGTH)
    record = engine.record_request
    rows = [
        (r.outcome, r.input_tokens, r.output_tokens, r.first_token, r.duration, r.decode, r.draft, r.accepted)
        for r in requests
    ]

    def plain() -> None:
        for outcome, tokens_in, tokens_out, first, duration, decode, _, _ in rows:
            record(outcome, tokens_in, tokens_out, first, duration, decode)

    def speculative() -> None:
        for outcome, tokens_in, tokens_out, first, duration, decode, draft, accepted in rows:
            record(outcome, tokens_in, tokens_out, first, duration, decode, draft, accepted)

    def by_keywords() -> None:
        for outcome, tokens_in, tokens_out, first, duration, decode, draft, accepted in rows:
            record(
                outcome=outcome, input_tokens=tokens_in, output_tokens=tokens_out, time_to_first_token=first,
                duration=duration, decode_seconds=decode, draft_tokens=draft, accepted_by_position=accepted,
            )  # fmt: skip

    record_all = by_keywords if keywords else speculative if drafted else plain

    def timed() -> float:
        started = time.perf_counter()
        record_all()
        if folded:
            engine.fold()
        seconds = time.perf_counter() - started
        engine.fold()
        return seconds / len(rows)

    return timed, _empty_loop(rows)


def _empty_loop(rows: Sequence[tuple[object, ...]]) -> Callable[[], float]:
    def empty() -> float:
        started = time.perf_counter()
        for _1, _2, _3, _4, _5, _6, _7, _8 in rows:
            pass
        return (time.perf_counter() - started) / len(rows)

    return empty


def _time_handles(requests: Sequence[Finished]) -> Case:
    engine = EngineInstruments(_identity(0), draft_length=_DRAFT_LENGTH)

    def timed() -> float:
        started = time.perf_counter()
        for finished in requests:
            request = engine.start_request(finished.input_tokens)
            request.first_token()
            for _ in range(4):
                request.tokens(8)
            request.finish("ok")
        engine.fold()
        return (time.perf_counter() - started) / len(requests)

    return timed, _no_loop


def _time_prometheus_client(requests: Sequence[Finished]) -> Case:
    """Seconds per request for the same series updated through bound children, the fastest way there is."""
    registry = CollectorRegistry()

    def counter(name: str, *labels: str) -> Counter:
        return Counter(name, METRICS[name].help, ["replica", *labels], registry=registry)

    histograms = (_bind_histogram(registry, name) for name in _LATENCIES)
    first_token, per_token, duration, tps, size_in, size_out = histograms
    started, tokens_in, tokens_out, decode, drafted, accepted = (
        counter(name).labels("r0").inc
        for name in (
            "requests_started_total", "input_tokens_total", "output_tokens_total", "decode_seconds_total",
            "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
        )
    )  # fmt: skip
    ended = counter("requests_total", "outcome")
    ends = {outcome: ended.labels("r0", outcome).inc for outcome in OUTCOMES}
    by_position = counter("spec_decode_num_accepted_tokens_per_pos_total", "position")
    positions = [by_position.labels("r0", str(position)).inc for position in range(_DRAFT_LENGTH)]

    def timed() -> float:
        began = time.perf_counter()
        for request in requests:
            followers = request.output_tokens - 1
            started()
            ends[request.outcome]()
            tokens_in(request.input_tokens)
            tokens_out(request.output_tokens)
            size_in(request.input_tokens)
            size_out(request.output_tokens)
            first_token(request.first_token)
            duration(request.duration)
            decode(request.decode)
            per_token((request.duration - request.first_token) / followers)
            tps(followers / request.decode)
            drafted(request.draft)
            accepted(sum(request.accepted))
            for position, count in zip(positions, request.accepted, strict=True):
                position(count)
        return (time.perf_counter() - began) / len(requests)

    return timed, _no_loop


def _time_opentelemetry(requests: Sequence[Finished]) -> Case:
    """Seconds per request for the same series through the SDK's meters, with attributes made beforehand."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    meter = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False).get_meter("benchmark")
    attributes = dict(_identity(0).labels())
    histograms = {
        name: meter.create_histogram(name, explicit_bucket_boundaries_advisory=_edges(name)).record
        for name in _LATENCIES
    }
    started, ended, tokens_in, tokens_out, decode, drafted, accepted, by_position = (
        meter.create_counter(name).add
        for name in (
            "requests_started", "requests", "input_tokens", "output_tokens", "decode_seconds", "draft_tokens",
            "accepted_tokens", "accepted_tokens_per_pos",
        )
    )  # fmt: skip
    outcomes = {outcome: attributes | {"outcome": outcome} for outcome in OUTCOMES}
    positions = [attributes | {"position": str(position)} for position in range(_DRAFT_LENGTH)]

    def timed() -> float:
        began = time.perf_counter()
        for request in requests:
            started(1, attributes)
            ended(1, outcomes[request.outcome])
            tokens_in(request.input_tokens, attributes)
            tokens_out(request.output_tokens, attributes)
            decode(request.decode, attributes)
            for name, value in _observed(request).items():
                histograms[name](value, attributes)
            drafted(request.draft, attributes)
            accepted(sum(request.accepted), attributes)
            for position, count in zip(positions, request.accepted, strict=True):
                by_position(count, position)
        return (time.perf_counter() - began) / len(requests)

    return timed, _no_loop


def _print_rendering() -> None:
    engines, registry, histograms, others = _fill_pages()
    source = random.Random(22)
    best = dict.fromkeys(("generate_latest", "every histogram changed", "nothing changed"), math.inf)
    # A few of each in a row: only the first pays for the memory that the other gave back to the system.
    for name in [name for name in best for _ in range(_IN_A_ROW)] * 3:
        if name != "nothing changed":
            _record_one_each(engines, source)
        started = time.perf_counter()
        if name == "generate_latest":
            generate_latest(registry)
        else:
            render(*engines)
        best[name] = min(best[name], time.perf_counter() - started)
    print(f"rendering {histograms} histogram series and {others} others, in units of generate_latest's speed")
    for name in ("every histogram changed", "nothing changed"):
        times = best["generate_latest"] / best[name]
        print(f"  {name + ' since the last page':<48} {times:7.1f}  ({best[name] * 1e3:.1f} ms here)")


def _record_one_each(engines: Sequence[EngineInstruments], source: random.Random) -> None:
    for engine, r in zip(engines, _draw_requests(source, len(engines)), strict=True):
        engine.record_request(r.outcome, r.input_tokens, r.output_tokens, r.first_token, r.duration, r.decode)
        engine.fold()


def _fill_pages() -> tuple[list[EngineInstruments], CollectorRegistry, int, int]:
    """The same series of as many engines in our instruments and in a registry."""
    requests = _draw_requests(random.Random(21), 200)
    replicas = -(-_SERIES // len(_LATENCIES))
    engines = [EngineInstruments(_identity(number)) for number in range(replicas)]
    registry = CollectorRegistry()
    labels = [name for name, _ in engines[0].identity.labels()]
    for engine in engines:
        for r in requests:
            engine.record_request(r.outcome, r.input_tokens, r.output_tokens, r.first_token, r.duration, r.decode)
    for name in _LATENCIES:
        histogram = Histogram(name, METRICS[name].help, labels, registry=registry, buckets=_edges(name))
        for engine in engines:
            child = histogram.labels(**dict(engine.identity.labels()))
            for r in requests:
                child.observe(r.first_token)
    others = _copy_scalars(engines, registry)
    return engines, registry, replicas * len(_LATENCIES), others


def _copy_scalars(engines: Sequence[EngineInstruments], registry: CollectorRegistry) -> int:
    """Give the registry every counter and gauge of the engines, as gauges; returns how many there are."""
    gauges: dict[str, Gauge] = {}
    count = 0
    for engine in engines:
        for metric, samples in engine.families():
            for sample in samples if metric.kind != "histogram" else ():
                if metric.name not in gauges:
                    names = [name for name, _ in sample.labels]
                    gauges[metric.name] = Gauge(metric.name, metric.help, names, registry=registry)
                gauges[metric.name].labels(**dict(sample.labels)).set(sample.value)
                count += 1
    return count


def _identity(number: int) -> Identity:
    return Identity(
        "llama-70b", "chat-v2", "v2", environment="production", rollout_phase="stable", replica=f"engine-{number}"
    )
