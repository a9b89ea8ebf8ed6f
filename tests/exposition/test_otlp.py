"""OTLP: what a real receiver decodes has the values of the page."""

from __future__ import annotations

import bisect
import logging
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from opentelemetry.proto.metrics.v1 import metrics_pb2 as otlp
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, OUTCOMES
from servescope.contract.samples import Labels, Sample
from servescope.contract.types import Metric
from servescope.errors import ServescopeError, UsageError
from servescope.exposition.otlp import OtlpPusher, push
from servescope.exposition.otlp_names import SCHEMA_URL, UNITS, name_of
from servescope.exposition.registry import PrometheusCollector
from servescope.exposition.rendering import render, render_openmetrics
from servescope.instruments import gen_ai
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.instrument import INSTRUMENT_ERRORS, Instruments
from servescope.instruments.router import RouterInstruments
from tests.conftest import ROOT
from tests.support.otlp_receiver import Receiver, attributes
from tests.support.waiting import deadline_seconds, wait_for

DEPLOYMENT = {"model_name": "llama-70b", "deployment_id": "chat-v2", "inference_stack": "v2", "environment": "canary"}
NEVER = 3600.0
BY_NAME = {name_of(metric): metric for metric in (*METRICS.values(), INSTRUMENT_ERRORS)}

Finished = dict[str, Any]
Values = dict[tuple[str, Labels], float]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


@pytest.fixture
def engine() -> EngineInstruments:
    return EngineInstruments(Identity(**DEPLOYMENT, replica="engine-0", rollout_phase="promoting"))


@pytest.fixture
def start(receiver: Receiver) -> Iterator[Callable[..., OtlpPusher]]:
    """Push to the receiver; nothing is sent but by `flush`."""
    running: list[OtlpPusher] = []

    def started(*instruments: Instruments, **settings: Any) -> OtlpPusher:
        running.append(push(*instruments, endpoint=receiver.url, interval_seconds=NEVER, **settings))
        return running[-1]

    yield started
    for pusher in running:
        pusher.close()


def draw(seed: int, count: int = 200) -> list[Finished]:
    """Requests over many orders of magnitude, with every outcome, and times right at bucket edges."""
    source = random.Random(seed)
    requests = []
    for _ in range(count):
        output = source.choice([0, 1, 2, 3, 50, 900])
        first = source.choice([0.25, 0.5, 10 ** source.uniform(-4, 1.5)])
        decode = (output - 1) * source.choice([0.05, 0.025, 10 ** source.uniform(-4, -1)]) if output > 1 else 0.0
        requests.append(
            {
                "outcome": source.choices(OUTCOMES, (6, 1, 1, 1, 1))[0],
                "input_tokens": source.randrange(1, 90_000),
                "output_tokens": output,
                "time_to_first_token": first,
                "duration": first + decode,
                "decode_seconds": decode,
                "draft_tokens": output,
                "accepted_by_position": (output // 2, output // 4),
            }
        )
    return requests


def feed(engine: EngineInstruments, requests: list[Finished]) -> None:
    for request in requests:
        engine.record_request(**request)


def sampled(samples: list[Sample]) -> Values:
    return {(sample.name, sample.labels): sample.value for sample in samples}


def parsed(families: Any) -> Values:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): float(sample.value)
        for family in families
        for sample in family.samples
    }


def received(metrics: dict[str, otlp.Metric], identity: Identity) -> Values:
    """Points with explicit buckets as flat samples."""
    values: Values = {}
    for name, metric in metrics.items():
        if name.startswith("gen_ai."):
            continue
        contract = BY_NAME[name].name
        if metric.HasField("histogram"):
            for point in metric.histogram.data_points:
                values |= _flat(contract, _labels(point, identity), point)
        else:
            for point in metric.sum.data_points or metric.gauge.data_points:
                value = point.as_int if point.HasField("as_int") else point.as_double
                values[contract, _labels(point, identity)] = float(value)
    return values


def _labels(point: Any, identity: Identity, **more: str) -> Labels:
    return tuple(sorted((*identity.labels(), *attributes(point).items(), *more.items())))


def _flat(name: str, labels: Labels, point: otlp.HistogramDataPoint) -> Values:
    from servescope.contract.samples import format_edge

    edges = [*map(format_edge, point.explicit_bounds), "+Inf"]
    values, total = {}, 0
    for edge, count in zip(edges, point.bucket_counts, strict=True):
        total += count
        values[f"{name}_bucket", tuple(sorted((*labels, ("le", edge))))] = float(total)
    assert total == point.count
    return values | {(f"{name}_count", labels): float(total), (f"{name}_sum", labels): point.sum}


def test_every_exposition_has_the_same_values(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher]
) -> None:
    """Text, OpenMetrics, prometheus_client and OTLP, cumulative and of deltas added up: equal, series by series."""
    deltas = start(engine, temporality="delta")
    total: Values = defaultdict(float)
    for seed in range(3):
        feed(engine, draw(seed))
        engine.set_kv_cache_usage(seed / 7)
        assert deltas.flush()
        gauges = {name for name, metric in METRICS.items() if metric.kind == "gauge"}
        for series, value in received(receiver.metrics(), engine.identity).items():
            total[series] = value if series[0] in gauges else total[series] + value
    assert start(engine).flush()
    cumulative = received(receiver.metrics(), engine.identity)

    registry = CollectorRegistry()
    registry.register(PrometheusCollector(engine))
    expected = sampled(engine.samples())
    assert len(expected) > 150
    assert parsed(parse_text(render(engine).decode())) == expected
    assert parsed(parse_openmetrics(render_openmetrics(engine).decode())) == expected  # type: ignore[no-untyped-call]
    assert parsed(parse_text(generate_latest(registry).decode())) == expected
    assert cumulative == expected
    assert total == pytest.approx(expected, rel=1e-12)
    assert {series for series in total if total[series] != expected[series]} <= {
        series for series in expected if series[0].endswith(("_sum", "_seconds_total"))
    }


def test_router_and_autoscaler_go_the_same_way(receiver: Receiver, start: Callable[..., OtlpPusher]) -> None:
    """Each is a resource of its own, with the same figures as its page."""
    router = RouterInstruments(Identity(**DEPLOYMENT, replica="router-0", role="router"))
    autoscaler = AutoscalerInstruments(Identity(**DEPLOYMENT, role="autoscaler"))
    router.route(eligible_tokens=9, predicted_tokens=6, best_tokens=7, candidates=3, fallback_reason="none").report(5)
    autoscaler.set_replicas({"active": 2})
    assert start(router, autoscaler).flush()
    for place, one in enumerate((router, autoscaler)):
        assert received(receiver.metrics(resource=place), one.identity) == sampled(one.samples())


@pytest.mark.parametrize("temporality", ["cumulative", "delta"])
def test_exponential_histograms_agree_within_their_buckets(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher], temporality: str
) -> None:
    """Count and sum are equal; at each explicit edge the counts agree but for the one bucket the edge falls into."""
    pusher = start(engine, temporality=temporality, histograms="exponential")
    feed(engine, draw(1))
    if temporality == "delta":
        assert pusher.flush()
        feed(engine, draw(2))
        already = draw(1)
    else:
        feed(engine, draw(2))
        already = []
    alone = EngineInstruments(engine.identity)
    feed(alone, draw(2) if already else [*draw(1), *draw(2)])
    assert pusher.flush()
    metrics = receiver.metrics()
    explicit = sampled(alone.samples())
    compared = 0
    for metric in METRICS.values():
        if metric.kind != "histogram" or metric.component != "engine" or name_of(metric) not in metrics:
            continue
        (point,) = metrics[name_of(metric)].exponential_histogram.data_points
        labels = engine.identity.labels()
        assert point.count == explicit[f"{metric.name}_count", labels]
        assert point.sum == pytest.approx(explicit[f"{metric.name}_sum", labels], rel=1e-12)
        assert point.count == point.zero_count + sum(point.positive.bucket_counts)
        assert len(point.positive.bucket_counts) <= 160
        compared += _agree_at_edges(metric, point, explicit, labels)
    assert compared > 100
    durations = metrics["gen_ai.server.request.duration"].exponential_histogram.data_points
    assert (
        sum(point.count for point in durations) == explicit["request_duration_seconds_count", engine.identity.labels()]
    )


def _agree_at_edges(metric: Metric, point: Any, explicit: Values, labels: Labels) -> int:
    from servescope.contract.samples import format_edge

    assert metric.edges is not None
    base = 2.0 ** (2.0**-point.scale)
    upper = [base ** (point.positive.offset + place + 1) for place in range(len(point.positive.bucket_counts))]
    for edge in metric.edges:
        below = [count for top, count in zip(upper, point.positive.bucket_counts, strict=True) if top <= edge]
        reaching = [count for top, count in zip(upper, point.positive.bucket_counts, strict=True) if top / base < edge]
        counted = explicit[f"{metric.name}_bucket", tuple(sorted((*labels, ("le", format_edge(edge)))))]
        # A power of two is an edge of both, as closely as floats hold the bounds computed here.
        assert point.zero_count + sum(below) <= counted or any(abs(top / edge - 1) < 1e-9 for top in upper)
        assert counted <= point.zero_count + sum(reaching)
    return len(metric.edges)


def test_a_delta_loses_nothing_when_an_export_fails(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher], caplog: pytest.LogCaptureFixture
) -> None:
    """5, failed, then 7: the next export carries 12, from where the last acknowledged one ended; then nothing twice."""
    caplog.set_level(logging.INFO, "servescope")
    pusher = start(engine, temporality="delta")
    feed(engine, draw(1, 3))
    assert pusher.flush()
    first = _started(receiver)
    receiver.failing = 2
    feed(engine, draw(2, 5))
    assert not pusher.flush()
    assert not pusher.flush()
    feed(engine, draw(3, 7))
    assert pusher.flush()
    carried = _started(receiver)
    assert pusher.flush()
    assert (first.as_int, carried.as_int, _started(receiver).as_int) == (3, 12, 0)
    assert carried.start_time_unix_nano == first.time_unix_nano
    assert (pusher.exported, pusher.failed) == (3, 2)
    ours = [record.message for record in caplog.records if record.name == "servescope"]
    assert ours == [
        "an OTLP export failed; its figures are sent again with the next ones",
        "OTLP exports are acknowledged again",
    ]


def test_cumulative_points_start_where_the_instruments_do(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher]
) -> None:
    """Every export carries all, also what came before the pusher."""
    feed(engine, draw(1, 3))
    pusher = start(engine)
    assert pusher.flush()
    feed(engine, draw(2, 4))
    assert pusher.flush()
    point = _started(receiver)
    assert point.as_int == 7
    assert point.start_time_unix_nano == int(engine.created_at * 1e9)
    assert point.time_unix_nano == pytest.approx(time.time_ns(), abs=10e9)


def _started(receiver: Receiver) -> otlp.NumberDataPoint:
    point: otlp.NumberDataPoint = receiver.metrics()["servescope.requests_started"].sum.data_points[0]
    return point


def test_names_and_units_are_opentelemetrys(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher]
) -> None:
    """A namespace, no unit and no `_total` in a name, UCUM units, and the kind of each."""
    pusher = start(engine)
    feed(engine, draw(1, 20))
    engine.set_kv_cache_usage(0.5)
    assert pusher.flush()
    metrics = receiver.metrics()
    assert {
        name: metrics[name].unit for name in sorted(metrics) if "kv" in name or "time" in name or "tps" in name
    } == {
        "gen_ai.server.time_per_output_token": "s",
        "gen_ai.server.time_to_first_token": "s",
        "servescope.decode_time": "s",
        "servescope.kv_cache_usage": "1",
        "servescope.replica_start_time": "s",
        "servescope.time_per_output_token": "s",
        "servescope.time_to_first_token": "s",
        "servescope.tps_per_request": "{token}/s",
    }
    assert metrics["servescope.input_tokens"].unit == "{token}"
    assert metrics["servescope.input_tokens"].sum.is_monotonic
    assert metrics["servescope.input_tokens"].sum.aggregation_temporality == otlp.AGGREGATION_TEMPORALITY_CUMULATIVE
    assert metrics["servescope.kv_cache_usage"].gauge.data_points[0].as_double == 0.5
    assert attributes(metrics["servescope.requests"].sum.data_points[0]) == {"outcome": "ok"}


def test_every_name_is_its_own() -> None:
    """No two metrics of the catalog become one, and none bears its unit or `_total`."""
    assert len(BY_NAME) == len(METRICS) + 1
    assert not [name for name in BY_NAME if name.endswith(("_seconds", "_total"))]
    assert {metric.unit for metric in METRICS.values()} <= set(UNITS)


def test_names_are_of_one_release_of_the_conventions(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher]
) -> None:
    """The resource and its scope say which, as the export to customers does."""
    start(engine).flush()
    (resource,) = receiver.resources()

    assert resource.schema_url == SCHEMA_URL
    assert [scope.schema_url for scope in resource.scope_metrics] == [SCHEMA_URL]


def test_the_identity_is_the_resource(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher]
) -> None:
    """With OpenTelemetry's names where it has some; what one adds wins. Points carry none of it."""
    start(engine, resource_attributes={"service.namespace": "chat", "service.name": "mine"}).flush()
    (resource,) = receiver.resources()
    values = attributes(resource.resource)
    assert {name: value for name, value in values.items() if not name.startswith("telemetry.")} == {
        "service.name": "mine",
        "service.namespace": "chat",
        "service.instance.id": "engine-0",
        "deployment.environment.name": "canary",
        "servescope.deployment_id": "chat-v2",
        "servescope.inference_stack": "v2",
        "servescope.model_name": "llama-70b",
        "servescope.replica": "engine-0",
        "servescope.role": "aggregated",
        "servescope.rollout_phase": "promoting",
    }
    assert resource.scope_metrics[0].scope.name == "servescope"
    assert attributes(receiver.metrics()["servescope.requests_started"].sum.data_points[0]) == {}


def test_the_wire_is_compressed_and_carries_the_headers(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher]
) -> None:
    """Points shrink well; a key goes along."""
    start(engine, headers={"api-key": "k"}).flush()
    assert receiver.headers[0]["Content-Encoding"] == "gzip"
    assert receiver.headers[0]["api-key"] == "k"


def test_the_three_gen_ai_metrics_are_counted_as_the_conventions_say(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher]
) -> None:
    """Their bounds, durations by error, times of successes only, of both ways to record a request."""
    pusher = start(engine, provider_name="vllm", operation_name="text_completion")
    requests = draw(4, 300)
    feed(engine, requests)
    assert pusher.flush()
    expected: dict[tuple[str, str | None], list[float]] = defaultdict(list)
    for request in requests:
        error = None if request["outcome"] == "ok" else request["outcome"]
        first, duration, output = (request[key] for key in ("time_to_first_token", "duration", "output_tokens"))
        expected["gen_ai.server.request.duration", error].append(duration)
        if error is None and output:
            expected["gen_ai.server.time_to_first_token", None].append(first)
        if error is None and output > 1:
            expected["gen_ai.server.time_per_output_token", None].append((duration - first) / (output - 1))
    points = {}
    for name, metric in receiver.metrics().items():
        for point in metric.histogram.data_points if name.startswith("gen_ai.") else ():
            labels = attributes(point)
            points[name, labels.pop("error.type", None)] = point
            assert labels == {
                "gen_ai.operation.name": "text_completion",
                "gen_ai.provider.name": "vllm",
                "gen_ai.request.model": "llama-70b",
            }
    assert set(points) == set(expected)
    assert {error for _, error in points} == {None, *OUTCOMES} - {"ok"}
    for series, values in expected.items():
        point, counts = points[series], [0] * (len(points[series].explicit_bounds) + 1)
        for value in values:
            counts[bisect.bisect_left(point.explicit_bounds, value)] += 1
        assert list(point.bucket_counts) == counts
        assert point.sum == pytest.approx(sum(values))


def test_the_bounds_are_the_conventions() -> None:
    """14 bounds that double from 10 ms; ours hold every one of them, so no bucket of theirs splits one of ours."""
    bounds = {one.name: one.edges for one in (gen_ai.REQUEST_DURATION, gen_ai.TIME_TO_FIRST_TOKEN)}
    assert bounds["gen_ai.server.request.duration"] == pytest.approx(
        (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
    )
    for convention, contract in (
        (gen_ai.REQUEST_DURATION, "request_duration_seconds"),
        (gen_ai.TIME_TO_FIRST_TOKEN, "time_to_first_token_seconds"),
        (gen_ai.TIME_PER_OUTPUT_TOKEN, "time_per_output_token_seconds"),
    ):
        edges = METRICS[contract].edges
        assert edges is not None
        assert set(convention.edges) <= set(edges)


def test_requests_reported_step_by_step_are_counted_too(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher]
) -> None:
    """By handle as by record; an aborted one has a duration with its error, and no times."""
    pusher = start(engine)
    for outcome in ("ok", "client_abort"):
        request = engine.start_request(10)
        request.first_token()
        request.finish(outcome, output_tokens=5)
    pusher.flush()
    metrics = receiver.metrics()
    durations = metrics["gen_ai.server.request.duration"].histogram.data_points
    assert [(attributes(point).get("error.type"), point.count) for point in durations] == [
        (None, 1),
        ("client_abort", 1),
    ]
    assert metrics["gen_ai.server.time_to_first_token"].histogram.data_points[0].count == 1


def test_nothing_is_counted_for_a_pusher_that_was_closed(engine: EngineInstruments, receiver: Receiver) -> None:
    """The engine forgets it."""
    push(engine, endpoint=receiver.url, interval_seconds=NEVER).close()
    assert engine._series._watchers == []


def test_exemplars_carry_the_trace(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher]
) -> None:
    """OpenTelemetry's ids in their field, others as an attribute; a delta carries only those that are new."""
    cumulative, delta = start(engine), start(engine, temporality="delta")
    traces = []
    for trace_id, duration in (("ab" * 16, 0.3), ("request-7", 0.7)):
        engine.record_request(
            outcome="ok", input_tokens=1, output_tokens=1, time_to_first_token=0.2, duration=duration,
            decode_seconds=0.0, trace_id=trace_id,
        )  # fmt: skip
        for pusher in (cumulative, delta):
            assert pusher.flush()
            (point,) = receiver.metrics()["servescope.request_duration"].histogram.data_points
            traces.append([_trace(exemplar) for exemplar in point.exemplars])
    first, second = ("ab" * 16, 0.3), ("request-7", 0.7)
    assert traces == [[first], [first], [first, second], [second]]


def _trace(exemplar: otlp.Exemplar) -> tuple[str, float]:
    values = {pair.key: pair.value.string_value for pair in exemplar.filtered_attributes}
    return exemplar.trace_id.hex() or values["trace_id"], exemplar.as_double


def test_it_pushes_by_itself_and_once_more_at_the_end(engine: EngineInstruments, receiver: Receiver) -> None:
    """Every interval, and at closing what came since."""
    with push(engine, endpoint=receiver.url, interval_seconds=0.05) as pusher:
        wait_for(lambda: pusher.exported >= 2, "two exports")
        engine.count_preemptions(3)
    assert receiver.metrics()["servescope.preemptions"].sum.data_points[0].as_int == 3
    assert not pusher.flush()


def test_a_thread_that_goes_on_in_a_forked_child_pushes_nothing(
    engine: EngineInstruments, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As gevent's do: what the child counts is not the parent's."""
    with push(engine, endpoint=receiver.url, interval_seconds=0.02) as pusher, monkeypatch.context() as child:
        waited = Mock(wraps=pusher._closing.wait)
        child.setattr(pusher._closing, "wait", waited)
        child.setattr(pusher, "_process", 0)
        wait_for(lambda: waited.call_count > 2, "three intervals")
        assert not receiver.requests


def test_an_export_is_no_request_of_the_application(engine: EngineInstruments) -> None:
    """Where OpenTelemetry instruments the HTTP client, as it does for the SDK's own readers."""
    from opentelemetry import context

    suppressed: list[object] = []
    exporter = Mock(export=lambda _: suppressed.append(context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY)))
    with push(engine, exporter=exporter) as pusher:
        pusher.flush()
        assert context.get_value(context._SUPPRESS_INSTRUMENTATION_KEY) is None
    assert suppressed == [True, True]


class Stuck:
    """An exporter whose export does not end before it is shut down."""

    def __init__(self) -> None:
        self.shut_down = threading.Event()

    def export(self, metrics_data: object, timeout_millis: float = 0.0) -> object:
        self.shut_down.wait()
        return None

    def shutdown(self, timeout_millis: float = 0.0) -> None:
        self.shut_down.set()


def test_closing_abandons_an_export_that_does_not_end(engine: EngineInstruments) -> None:
    """It waits for the given time and shuts the exporter down; else this test would not end."""
    pusher = push(engine, exporter=Stuck(), interval_seconds=NEVER)
    pusher.close(timeout_seconds=0.01)
    wait_for(lambda: not pusher._thread.is_alive(), "the end of the pusher's thread")
    assert (pusher.exported, pusher.failed) == (0, 1)


def test_closing_abandons_an_unreachable_receiver(engine: EngineInstruments) -> None:
    """The real exporter, which tries again for a minute, ends with its shutdown."""
    pusher = push(engine, endpoint="http://127.0.0.1:9/v1/metrics", interval_seconds=NEVER)
    pusher.close(timeout_seconds=0.01)
    wait_for(lambda: not pusher._thread.is_alive(), "the end of the pusher's thread")
    assert pusher.exported == 0


@pytest.mark.slow
def test_a_process_that_ends_sends_its_last_figures(receiver: Receiver) -> None:
    """Also when nobody closed the pusher; a forked child sends nothing."""
    code = f"""
import os
from servescope import EngineInstruments, Identity
from servescope.exposition.otlp import push
engine = EngineInstruments(Identity("m", "d", "s"))
pusher = push(engine, endpoint={receiver.url!r})
engine.count_preemptions(4)
if not os.fork():
    pusher.close()
    raise SystemExit
os.wait()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=deadline_seconds(), env=os.environ)
    assert len(receiver.requests) == 1
    assert receiver.metrics()["servescope.preemptions"].sum.data_points[0].as_int == 4


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temporality": "daily"}, "unknown temporality 'daily', supported: cumulative, delta"),
        ({"histograms": "native"}, "unknown histograms 'native', supported: explicit, exponential"),
        ({"interval_seconds": 0}, "interval_seconds is 0, expected seconds above 0"),
        ({"resource_attributes": {"team": 7}}, "resource attribute 'team' is 7, expected a text"),
        ({"resource_attributes": 7}, "resource_attributes are 7, expected a mapping of texts to texts"),
        ({"headers": 7}, "headers are no mapping of texts to texts"),
        ({"headers": {"authorization": b"secret"}}, "headers are no mapping of texts to texts"),
        ({"operation_name": ""}, "operation_name is '', expected a text"),
        ({"provider_name": ""}, "provider_name is '', expected a text"),
        ({"endpoint": "localhost:4318"}, "endpoint is 'localhost:4318', expected a URL"),
        ({"exporter": object()}, "expected a metric exporter of the opentelemetry-sdk"),
        ({"exporter": object(), "endpoint": "http://x"}, "got an exporter and an endpoint or headers"),
    ],
)
def test_wrong_settings_are_refused(engine: EngineInstruments, settings: dict[str, Any], message: str) -> None:
    """At once, with the value and what was expected; no thread is left."""
    with pytest.raises(UsageError, match=message.replace("(", r"\(")):
        push(engine, **settings)
    assert engine._series._watchers == []


def test_instruments_of_one_resource_are_refused(engine: EngineInstruments) -> None:
    """Twins, and roles of one replica: a backend may look at service.name and service.instance.id alone."""
    with pytest.raises(UsageError, match="two instruments have one identity"):
        push(engine, engine)
    prefill = EngineInstruments(Identity(**DEPLOYMENT, replica="engine-0", role="prefill"))
    with pytest.raises(UsageError, match=r"one service.name 'chat-v2' and service.instance.id 'engine-0'"):
        push(engine, prefill)


def test_the_environment_chooses_what_is_not_given(
    engine: EngineInstruments, receiver: Receiver, start: Callable[..., OtlpPusher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenTelemetry's own variables; a word they do not know is refused."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "Delta")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_DEFAULT_HISTOGRAM_AGGREGATION", "base2_exponential_bucket_histogram")
    pusher = start(engine)
    feed(engine, draw(1, 9))
    pusher.flush()
    duration = receiver.metrics()["servescope.request_duration"]
    assert duration.exponential_histogram.aggregation_temporality == otlp.AGGREGATION_TEMPORALITY_DELTA
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "weekly")
    with pytest.raises(UsageError, match="PREFERENCE is 'weekly', supported: cumulative, delta, lowmemory"):
        start(engine)


def test_the_missing_extra_is_named(engine: EngineInstruments, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)
    with pytest.raises(ServescopeError, match=r"extra 'otlp' is not installed: pip install '\.\[otlp\]' in a checkout"):
        push(engine)


def test_the_examples_of_the_ways_out_page_run(receiver: Receiver) -> None:
    """The page's code runs, one block after another, and what it pushes is received."""
    page = (ROOT / "docs" / "ways-out.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 2
    assert "http://127.0.0.1:4318/v1/metrics" in blocks[1]
    namespace: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:4318/v1/metrics", receiver.url), "ways-out.md", "exec"), namespace)
    assert "servescope.requests_started" in receiver.metrics()
