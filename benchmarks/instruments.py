"""What the instruments cost, in units of one bound `prometheus_client` `Histogram.observe` on the same machine.

Values are random, drawn once and the same for all. Each line is the best of interleaved repeats, since other work on
the machine can only slow one down, less the best of the empty loop that brings the values.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from servescope.catalog import METRICS, OUTCOMES
from servescope.engine import EngineInstruments
from servescope.exposition import render
from servescope.identity import Identity
from servescope.journal import FOLD_EVERY

_SECONDS = 20.0
_DRAFT_LENGTH = 8
_SERIES = 1000

_LATENCIES = (
    "time_to_first_token_seconds",
    "time_per_output_token_seconds",
    "request_duration_seconds",
    "tps_per_request",
    "input_tokens_per_request",
    "output_tokens_per_request",
)


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


def run() -> None:
    """Print what recording and rendering cost beside prometheus_client."""
    requests = _draw_requests(random.Random(20), FOLD_EVERY - 1)
    many = requests * 16
    observe = "one bound Histogram.observe"
    by_prometheus_client = "the same, 8 draft positions, prometheus_client"
    cases = {
        observe: _time_observe(requests),
        "one request, caller's thread": _time_recording(requests, folded=False, drafted=False),
        "one request, folding included": _time_recording(many, folded=True, drafted=False),
        "with 8 draft positions, caller's thread": _time_recording(requests, folded=False, drafted=True),
        "with 8 draft positions, folding included": _time_recording(many, folded=True, drafted=True),
        by_prometheus_client: _time_prometheus_client(requests),
        "start, first token, 4 batches, finish; folded": _time_handles(many[:4096]),
    }
    best = _measure_interleaved(cases)
    unit = best[observe]
    print(f"recording one finished request, in units of one observe ({unit * 1e9:.0f} ns here)")
    for name, seconds in best.items():
        share = f"   1/{best[by_prometheus_client] / seconds:.0f} of prometheus_client" if name != observe else ""
        print(f"  {name:<48} {seconds / unit:6.2f}{share}")
    _print_rendering()


def _measure_interleaved(cases: Mapping[str, Case]) -> dict[str, float]:
    best = {name: [math.inf, math.inf] for name in cases}
    ends = time.perf_counter() + _SECONDS
    while time.perf_counter() < ends:
        for name, case in cases.items():
            for part, timed in enumerate(case):
                best[name][part] = min(best[name][part], timed())
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
    metric = METRICS["time_to_first_token_seconds"]
    assert metric.edges is not None
    registry = CollectorRegistry()
    histogram = Histogram(metric.name, metric.help, ["replica"], registry=registry, buckets=metric.edges).labels("r0")
    observe = histogram.observe
    values = [request.first_token for request in requests]

    def timed() -> float:
        started = time.perf_counter()
        for value in values:
            observe(value)
        return (time.perf_counter() - started) / len(values)

    def empty() -> float:
        started = time.perf_counter()
        for _value in values:
            pass
        return (time.perf_counter() - started) / len(values)

    return timed, empty


def _time_recording(requests: Sequence[Finished], *, folded: bool, drafted: bool) -> Case:
    """Seconds per recorded request; one round of fewer than a fold's records is all the caller's own."""
    engine = EngineInstruments(_identity(0), draft_length=_DRAFT_LENGTH)
    record = engine.record_request
    rows = [
        (r.outcome, r.input_tokens, r.output_tokens, r.first_token, r.duration, r.decode, r.draft, r.accepted)
        for r in requests
    ]

    def plain() -> None:
        for outcome, tokens_in, tokens_out, first, duration, decode, _, _ in rows:
            record(
                outcome=outcome, input_tokens=tokens_in, output_tokens=tokens_out, time_to_first_token=first,
                duration=duration, decode_seconds=decode,
            )  # fmt: skip

    def speculative() -> None:
        for outcome, tokens_in, tokens_out, first, duration, decode, draft, accepted in rows:
            record(
                outcome=outcome, input_tokens=tokens_in, output_tokens=tokens_out, time_to_first_token=first,
                duration=duration, decode_seconds=decode, draft_tokens=draft, accepted_by_position=accepted,
            )  # fmt: skip

    record_all = speculative if drafted else plain

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

    histograms = []
    for name in _LATENCIES:
        edges = METRICS[name].edges
        assert edges is not None
        histogram = Histogram(name, METRICS[name].help, ["replica"], registry=registry, buckets=edges)
        histograms.append(histogram.labels("r0").observe)
    first_token, per_token, duration, tps, size_in, size_out = histograms
    started, tokens_in, tokens_out, decode, drafted, accepted = (
        counter(name).labels("r0").inc
        for name in (
            "requests_started_total",
            "input_tokens_total",
            "output_tokens_total",
            "decode_seconds_total",
            "spec_decode_num_draft_tokens_total",
            "spec_decode_num_accepted_tokens_total",
        )
    )
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


def _print_rendering() -> None:
    engines, registry, histograms, others = _fill_pages()
    best = {"render": math.inf, "generate_latest": math.inf}
    for _ in range(9):
        for name in best:
            started = time.perf_counter()
            if name == "render":
                render(*engines)
            else:
                generate_latest(registry)
            best[name] = min(best[name], time.perf_counter() - started)
    times = best["generate_latest"] / best["render"]
    print(f"rendering {histograms} histogram series and the other {others} of their engines")
    print(f"  generate_latest / render {times:.1f}   ({best['render'] * 1e3:.1f} ms here)")


def _fill_pages() -> tuple[list[EngineInstruments], CollectorRegistry, int, int]:
    """The same series of as many engines in our instruments and in a registry."""
    requests = _draw_requests(random.Random(21), 200)
    replicas = -(-_SERIES // len(_LATENCIES))
    engines = [EngineInstruments(_identity(number)) for number in range(replicas)]
    registry = CollectorRegistry()
    labels = [name for name, _ in engines[0].identity.labels()]
    for engine in engines:
        for r in requests:
            engine.record_request(
                outcome=r.outcome, input_tokens=r.input_tokens, output_tokens=r.output_tokens,
                time_to_first_token=r.first_token, duration=r.duration, decode_seconds=r.decode,
            )  # fmt: skip
    for name in _LATENCIES:
        edges = METRICS[name].edges
        assert edges is not None
        histogram = Histogram(name, METRICS[name].help, labels, registry=registry, buckets=edges)
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
    return Identity("llama-70b", "chat-v2", "v2", environment="production", replica=f"engine-{number}")
