"""The engine's instruments: what embedders record is what a reader of the exposition finds."""

from __future__ import annotations

import bisect
import logging
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, OUTCOMES, REPLICA_START_TIME
from servescope.contract.samples import Sample
from servescope.errors import UsageError
from servescope.exposition.rendering import render
from servescope.instruments.autoscaler import AutoscalerInstruments
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.instrument import Instruments
from servescope.instruments.ledger import Distribution
from servescope.instruments.record_buffer import DROP_BEYOND, FOLD_EVERY
from servescope.instruments.request import Request
from servescope.instruments.resources import Gpu, Resources
from servescope.instruments.router import RouterInstruments
from servescope.instruments.testing import FakeClock, value
from servescope.sources.map_files import metric_map
from tests.instruments.conftest import assert_values, refused
from tests.support.drawing import examples
from tests.support.hostile_values import HOSTILE, UNHURRIED
from tests.support.waiting import deadline_seconds

IDENTITY = Identity("llama-70b", "chat-v2", "v2", replica="engine-0")


@pytest.fixture
def engine(clock: FakeClock) -> EngineInstruments:
    return EngineInstruments(IDENTITY, clock=clock, draft_length=4)


def balance(engine: EngineInstruments) -> tuple[float, float, float]:
    """Requests started, ended and in flight, of one reading."""
    samples = engine.samples()
    started = sum(sample.value for sample in samples if sample.name == "requests_started_total")
    ended = sum(sample.value for sample in samples if sample.name == "requests_total")
    in_flight = sum(sample.value for sample in samples if sample.name == "concurrent_requests")
    return started, ended, in_flight


def record(engine: EngineInstruments, **changes: Any) -> None:
    """Record a plain request, with changes."""
    numbers: dict[str, Any] = {
        "outcome": "ok", "input_tokens": 100, "output_tokens": 11, "time_to_first_token": 0.5, "duration": 2.5,
        "decode_seconds": 2.0,
    }  # fmt: skip
    engine.record_request(**(numbers | changes))


def test_a_request_is_booked_from_its_arrival_to_its_end(engine: EngineInstruments, clock: FakeClock) -> None:
    """Time to first token, tokens as they come, and at the end durations, rates and sizes."""
    request = engine.start_request(812)
    assert balance(engine) == (1, 0, 1)
    assert value(engine, "input_tokens_total") == 0
    clock.advance(0.25)
    request.first_token()
    assert_values(engine, time_to_first_token_seconds_sum=0.25, input_tokens_total=812, output_tokens_total=1)
    clock.advance(0.5)
    request.tokens(5)
    assert_values(engine, output_tokens_total=6, inter_token_latency_seconds_count=5)
    assert value(engine, "inter_token_latency_seconds_sum") == pytest.approx(0.5)
    assert value(engine, "inter_token_latency_seconds_bucket", le=0.1) == 5
    clock.advance(0.5)
    request.tokens(5)
    clock.advance(0.05)
    request.finish("ok")
    assert balance(engine) == (1, 1, 0)
    assert value(engine, "requests_total", outcome="ok") == 1
    assert_values(engine, output_tokens_total=11, request_duration_seconds_sum=pytest.approx(1.3))
    assert_values(engine, decode_seconds_total=pytest.approx(1.0), tps_per_request_sum=pytest.approx(10.0))
    assert_values(engine, time_per_output_token_seconds_sum=pytest.approx(1.05 / 10), input_tokens_per_request_sum=812)
    assert value(engine, "output_tokens_per_request_sum") == 11
    assert refused(engine) == {}


def test_tokens_may_stand_for_the_first_token(engine: EngineInstruments, clock: FakeClock) -> None:
    """An engine that only reports tokens as they come has its time to first token with the first of them."""
    request = engine.start_request(10)
    clock.advance(1.0)
    request.tokens(1)
    clock.advance(0.5)
    request.tokens(2)
    request.finish()
    assert_values(engine, time_to_first_token_seconds_sum=1.0, output_tokens_total=3)
    assert value(engine, "inter_token_latency_seconds_count") == 2
    assert refused(engine) == {}


def test_no_tokens_are_no_event(engine: EngineInstruments) -> None:
    """A step that gave a request nothing changes nothing."""
    request = engine.start_request(10)
    request.tokens(0)
    assert_values(engine, output_tokens_total=0, time_to_first_token_seconds_count=0)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_request_without_a_token_counts_its_outcome_and_duration(
    engine: EngineInstruments, clock: FakeClock, outcome: str
) -> None:
    """No sizes, no rates; its prompt counts as read only when the request ended well."""
    request = engine.start_request(77)
    clock.advance(3.0)
    request.finish(outcome)
    assert value(engine, "requests_total", outcome=outcome) == 1
    assert_values(engine, request_duration_seconds_sum=3.0, output_tokens_per_request_count=0, tps_per_request_count=0)
    assert value(engine, "input_tokens_total") == (77 if outcome == "ok" else 0)
    assert refused(engine) == {}


def test_one_token_has_a_size_and_no_rate(engine: EngineInstruments, clock: FakeClock) -> None:
    """Below two output tokens there is nothing between tokens."""
    request = engine.start_request(10)
    clock.advance(1.0)
    request.first_token()
    clock.advance(1.0)
    request.finish()
    assert_values(engine, output_tokens_per_request_sum=1, tps_per_request_count=0)
    assert_values(engine, time_per_output_token_seconds_count=0, decode_seconds_total=0)


def counted(engine: EngineInstruments) -> list[Sample]:
    """Its samples without when it began."""
    return [sample for sample in engine.samples() if sample.name != REPLICA_START_TIME]


def test_a_recorded_request_books_what_a_driven_one_does(clock: FakeClock) -> None:
    """One call with the numbers and the calls along the way give the same series."""
    driven, recorded = (EngineInstruments(IDENTITY, clock=clock) for _ in range(2))
    request = driven.start_request(100)
    clock.advance(0.5)
    request.first_token()
    clock.advance(2.0)
    request.finish("error", output_tokens=11)
    record(recorded, outcome="error")
    record(driven, outcome="rejected", output_tokens=0, time_to_first_token=None, decode_seconds=None)
    record(recorded, outcome="rejected", output_tokens=0, time_to_first_token=None, decode_seconds=None)
    besides = [sample for sample in counted(driven) if sample.name != "concurrent_requests"]
    assert besides == counted(recorded)


def test_answers_at_a_limit_are_counted_beside_their_outcome(engine: EngineInstruments, clock: FakeClock) -> None:
    """However a request ends or is recorded; the counter is absent until an end says whether it was truncated."""
    record(engine)
    assert value(engine, "answers_truncated_total") is None
    record(engine, truncated=False)
    assert value(engine, "answers_truncated_total") == 0
    record(engine, truncated=True)
    record(engine, truncated=True, draft_tokens=8, accepted_by_position=(3, 2, 0, 0))
    record(engine, truncated=True, decode_seconds=None)
    record(engine, truncated=True, outcome="error")
    for output in (0, 11):
        request = engine.start_request(100)
        clock.advance(1.0)
        request.finish("ok", output, truncated=True)
    assert_values(engine, answers_truncated_total=5, input_tokens_total=800, request_duration_seconds_count=8)
    assert value(engine, "requests_total", outcome="ok") == 7
    assert value(engine, "requests_total", outcome="error") == 1
    assert refused(engine) == {"first_token_missing": 1}


@pytest.mark.parametrize("truncated", ["length", 1, 0.5])
def test_an_end_of_another_type_is_refused_and_its_request_counts(engine: EngineInstruments, truncated: Any) -> None:
    """As one of which it is not known why its answer ended."""
    record(engine, truncated=truncated)
    engine.start_request(100).finish(truncated=truncated)
    assert value(engine, "requests_total", outcome="ok") == 2
    assert value(engine, "answers_truncated_total") is None
    assert refused(engine) == {"wrong_type": 2}


def test_a_request_is_recorded_alike_by_position_and_by_keyword(clock: FakeClock) -> None:
    """Positions are for those who count nanoseconds."""
    by_position, by_keyword = (EngineInstruments(IDENTITY, clock=clock, draft_length=4) for _ in range(2))
    by_position.record_request("ok", 100, 11, 0.5, 2.5, 2.0, 8, (3, 2, 0, 0))
    record(by_keyword, draft_tokens=8, accepted_by_position=(3, 2, 0, 0))
    assert counted(by_position) == counted(by_keyword)


def test_tokens_after_the_first_are_paired_with_decode_seconds(engine: EngineInstruments) -> None:
    """The sizes' sum minus their count is the numerator of tokens per second, whatever else there was."""
    for output in (1, 2, 50):
        record(engine, output_tokens=output, decode_seconds=0.0 if output == 1 else 2.0)
    record(engine, outcome="rejected", output_tokens=0)
    record(engine, output_tokens=40, time_to_first_token=None)
    after_first = (value(engine, "output_tokens_per_request_sum") or 0) - (
        value(engine, "output_tokens_per_request_count") or 0
    )
    assert after_first == 0 + 1 + 49
    assert_values(engine, decode_seconds_total=4.0, output_tokens_total=93)


def test_decode_seconds_that_are_not_known_end_with_the_request(engine: EngineInstruments) -> None:
    """None means unknown, and nothing is refused for it."""
    record(engine, decode_seconds=None)
    assert value(engine, "decode_seconds_total") == 2.0
    assert refused(engine) == {}


REQUESTS = st.lists(
    st.tuples(
        st.sampled_from(OUTCOMES),
        st.integers(0, 200_000),
        st.integers(0, 5_000),
        st.floats(0, 3_000),
        st.floats(0, 3_000),
    ),
    max_size=40,
)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=examples(300, few=10))
@given(REQUESTS)
def test_folding_agrees_with_counting_one_by_one(
    requests: list[tuple[str, int, int, float, float]],
) -> None:
    """Whatever is recorded, each histogram and counter is what a plain loop over the requests gives."""
    check_folding(requests)


def check_folding(requests: list[tuple[str, int, int, float, float]]) -> None:
    engine = EngineInstruments(IDENTITY)
    observed: dict[str, list[float]] = {name: [] for name, metric in METRICS.items() if metric.edges}
    for outcome, tokens_in, tokens_out, first, decode in requests:
        duration = first + decode
        record(
            engine, outcome=outcome, input_tokens=tokens_in, output_tokens=tokens_out, time_to_first_token=first,
            duration=duration, decode_seconds=decode,
        )  # fmt: skip
        observed["request_duration_seconds"].append(duration)
        if tokens_out:
            observed["time_to_first_token_seconds"].append(first)
            observed["input_tokens_per_request"].append(tokens_in)
            observed["output_tokens_per_request"].append(tokens_out)
        if tokens_out > 1:
            observed["time_per_output_token_seconds"].append((duration - first) / (tokens_out - 1))
            if decode >= 1e-9:
                observed["tps_per_request"].append((tokens_out - 1) / decode)
    assert refused(engine) == {}
    assert value(engine, "output_tokens_total") == sum(request[2] for request in requests)
    assert value(engine, "input_tokens_total") == sum(r[1] for r in requests if r[2] or r[0] == "ok")
    for name, metric in METRICS.items():
        if metric.component != "engine" or not metric.edges or name.startswith(("inter_token", "kv_transfer")):
            continue
        values = sorted(observed[name])
        assert value(engine, f"{name}_count") == len(values)
        assert value(engine, f"{name}_sum") == pytest.approx(sum(values), rel=1e-9)
        for edge in metric.edges:
            assert value(engine, f"{name}_bucket", le=edge) == bisect.bisect_right(values, edge)
        assert value(engine, f"{name}_bucket", le=math.inf) == len(values)


def exemplars(engine: EngineInstruments, name: str) -> dict[float, tuple[str, float]]:
    """Trace and value of each bucket that has an exemplar, by the bucket's upper edge."""
    engine.fold()
    metric = METRICS[name]
    assert metric.edges is not None
    (distribution,) = engine._ledger.family(metric)
    assert isinstance(distribution, Distribution)
    edges = (*metric.edges, math.inf)
    by_edge = zip(edges, distribution.exemplars(), strict=True)
    return {edge: (one.trace_id, one.value) for edge, one in by_edge if one is not None}


def test_a_trace_is_the_exemplar_of_each_figure_its_request_gave(engine: EngineInstruments) -> None:
    """In the bucket that counted the value, for recorded and for driven requests alike."""
    record(engine, trace_id="4bf92f3577b34da6a3ce929d0e0e4736")
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    assert exemplars(engine, "time_to_first_token_seconds") == {0.5: (trace, 0.5)}
    assert exemplars(engine, "request_duration_seconds") == {2.5: (trace, 2.5)}
    assert exemplars(engine, "time_per_output_token_seconds") == {0.2: (trace, 0.2)}
    assert exemplars(engine, "tps_per_request") == {5.0: (trace, 5.0)}
    assert exemplars(engine, "input_tokens_per_request") == {100.0: (trace, 100.0)}
    assert exemplars(engine, "output_tokens_per_request") == {20.0: (trace, 11.0)}
    assert refused(engine) == {}


def test_a_driven_request_carries_its_trace_to_its_end(engine: EngineInstruments, clock: FakeClock) -> None:
    """Nothing before it ends; then its figures have its trace."""
    request = engine.start_request(10, trace_id="abc")
    clock.advance(0.25)
    request.first_token()
    assert exemplars(engine, "time_to_first_token_seconds") == {}
    clock.advance(1.0)
    request.finish("ok", output_tokens=5)
    assert exemplars(engine, "time_to_first_token_seconds") == {0.25: ("abc", 0.25)}
    assert exemplars(engine, "request_duration_seconds") == {1.28: ("abc", 1.25)}


def test_each_bucket_keeps_its_latest_trace(engine: EngineInstruments) -> None:
    """One per bucket, whatever came before and in other buckets; with the time of day it was recorded."""
    before = time.time()
    for number, duration in enumerate((2.2, 2.5, 9.0, 2.3)):
        record(engine, duration=duration, trace_id=f"trace-{number}", draft_tokens=4, accepted_by_position=(1, 1, 0, 0))
    record(engine)
    assert exemplars(engine, "request_duration_seconds") == {2.5: ("trace-3", 2.3), 10.0: ("trace-2", 9.0)}
    (durations,) = engine._ledger.family(METRICS["request_duration_seconds"])
    assert isinstance(durations, Distribution)
    assert all(before <= one.time <= time.time() for one in durations.exemplars() if one is not None)


def test_a_figure_that_is_left_out_has_no_exemplar(engine: EngineInstruments) -> None:
    """A request without a token has its duration alone; one whose duration cannot be has none."""
    record(engine, outcome="rejected", output_tokens=0, time_to_first_token=None, decode_seconds=None, trace_id="none")
    record(engine, duration=math.nan, trace_id="nan")
    record(engine, duration=object(), trace_id="object")
    record(engine, output_tokens=1, decode_seconds=0.0, duration=9.0, trace_id="one")
    assert exemplars(engine, "request_duration_seconds") == {2.5: ("none", 2.5), 10.0: ("one", 9.0)}
    assert exemplars(engine, "time_to_first_token_seconds") == {0.5: ("one", 0.5)}
    assert exemplars(engine, "tps_per_request") == {}


@pytest.mark.parametrize(
    ("trace_id", "kind"),
    [
        ("", "out_of_range"),
        ("a" * 65, "out_of_range"),
        ("\ud800", "wrong_type"),
        ("a\n", "wrong_type"),
        (7, "wrong_type"),
    ],
)
def test_a_trace_that_cannot_be_written_is_refused(engine: EngineInstruments, trace_id: Any, kind: str) -> None:
    """The request counts without it."""
    record(engine, trace_id=trace_id)
    engine.start_request(1, trace_id=trace_id).finish()
    assert exemplars(engine, "request_duration_seconds") == {}
    assert value(engine, "request_duration_seconds_count") == 2
    assert refused(engine) == {kind: 2}


def test_a_fresh_engine_shows_every_outcome_at_zero(engine: EngineInstruments) -> None:
    """So that a rate over the first of each is right; what was never recorded is absent, rather than a zero."""
    for outcome in OUTCOMES:
        assert value(engine, "requests_total", outcome=outcome) == 0
    assert balance(engine) == (0, 0, 0)
    assert not {sample.name for sample in engine.samples()} & {
        "speculation_rate", "spec_decode_num_draft_tokens_total", "spec_decode_num_accepted_tokens_total",
        "spec_decode_num_accepted_tokens_per_pos_total", "queued_requests", "kv_cache_usage", "cpu_usage",
        "memory_usage", "gpu_usage", "gpu_memory_usage", "inter_token_latency_seconds_count",
    }  # fmt: skip


def test_requests_recorded_at_their_end_leave_the_number_in_flight_unknown(engine: EngineInstruments) -> None:
    """Absent rather than a false 0; one request in flight makes it known."""
    record(engine)
    assert value(engine, "concurrent_requests") is None
    engine.start_request(1)
    assert value(engine, "concurrent_requests") == 1


def test_every_name_and_label_is_the_catalogs(engine: EngineInstruments) -> None:
    """Nothing is exposed that the catalog does not name, with labels beyond the identity's as it says."""
    record(engine, draft_tokens=4, accepted_by_position=(1,))
    identity = dict(IDENTITY.labels())
    for metric, samples in engine.families():
        if metric.name == "servescope_instrument_errors_total":
            continue
        assert METRICS[metric.name] is metric
        for sample in samples:
            labels = dict(sample.labels)
            assert identity.items() <= labels.items()
            assert set(labels) - set(identity) - {"le"} == set(metric.labels)
            assert sample.labels == tuple(sorted(sample.labels))
            assert math.isfinite(sample.value)


def test_the_page_says_when_the_process_began() -> None:
    """In Unix seconds, so that a restart differs from counters that go on."""
    engine = EngineInstruments(IDENTITY)
    (shown,) = [sample.value for sample in engine.samples() if sample.name == REPLICA_START_TIME]
    assert shown == engine.created_at > 1.7e9


@pytest.mark.parametrize(
    ("kind", "component"),
    [(EngineInstruments, "engine"), (RouterInstruments, "router"), (AutoscalerInstruments, "autoscaler")],
)
def test_every_metric_of_a_component_can_be_exposed(kind: Callable[[Identity], Instruments], component: str) -> None:
    """The catalog names no metric that the instruments neither know nor have a reason for in their source map."""
    role = "aggregated" if component == "engine" else component
    known = {metric.name for metric, _ in kind(Identity("m", "d", "s", role=role)).families()}
    mapped = {name: metric_map("servescope", name) for name in METRICS}
    missing = {name for name, found in mapped.items() if found is not None and not found.alternatives}
    every = {name for name, metric in METRICS.items() if metric.component in (component, "process")}
    assert every - missing <= known <= every | {"servescope_instrument_errors_total"}


def test_state_is_what_was_set_last(engine: EngineInstruments) -> None:
    """Queue, cache and preemptions."""
    engine.set_queued_requests(3)
    engine.set_queued_requests(2)
    engine.set_kv_cache_usage(0.5)
    engine.count_preemptions()
    engine.count_preemptions(4)
    assert_values(engine, queued_requests=2, kv_cache_usage=0.5, preemptions_total=5)


def test_speculation_is_counted_by_step_and_by_request(engine: EngineInstruments) -> None:
    """Both ways add up in the same counters, by position from 0."""
    engine.record_speculation(8, (3, 1, 0, 0))
    record(engine, draft_tokens=4, accepted_by_position=(2, 1, 0, 0))
    assert_values(engine, spec_decode_num_draft_tokens_total=12, spec_decode_num_accepted_tokens_total=7)
    assert value(engine, "spec_decode_num_accepted_tokens_per_pos_total", position="0") == 5
    assert value(engine, "spec_decode_num_accepted_tokens_per_pos_total", position="3") == 0
    assert value(engine, "speculation_rate") == 7 / 12


@pytest.mark.parametrize("accepted", [(2,), [2], range(2, 3), (2, 0)])
def test_fewer_positions_than_the_draft_length_are_accepted(engine: EngineInstruments, accepted: Any) -> None:
    """The positions that are missing accepted nothing."""
    engine.record_speculation(4, accepted)
    assert value(engine, "spec_decode_num_accepted_tokens_total") == 2
    assert refused(engine) == {}


def test_speculation_declared_on_shows_zeros(engine: EngineInstruments) -> None:
    """Counters are there at 0, the ratio is absent: nothing was drafted."""
    engine.record_speculation(0, ())
    assert_values(engine, spec_decode_num_draft_tokens_total=0, speculation_rate=None)


def test_the_speculation_rate_forgets_what_left_the_window(engine: EngineInstruments, clock: FakeClock) -> None:
    """It covers five minutes by the clock, however long nobody read; absent when nothing was drafted in them."""
    engine.record_speculation(10, (9,))
    clock.advance(200)
    record(engine, draft_tokens=10, accepted_by_position=(1,))
    assert value(engine, "speculation_rate") == 0.5
    clock.advance(150)
    assert value(engine, "speculation_rate") == 0.1
    clock.advance(200)
    assert_values(engine, speculation_rate=None, spec_decode_num_draft_tokens_total=20)


def test_resources_are_read_when_somebody_reads() -> None:
    """CPU, memory and GPUs appear, and disappear when they are no longer known."""

    class Meter:
        resources = Resources(1.5, 4096, (Gpu("0", 0.7, 1024), Gpu("1", None, 2048)))

        def read(self) -> Resources:
            return self.resources

    meter = Meter()
    engine = EngineInstruments(IDENTITY, resources=meter)
    assert_values(engine, cpu_usage=1.5, memory_usage=4096)
    assert value(engine, "gpu_usage", gpu="0") == 0.7
    assert value(engine, "gpu_usage", gpu="1") is None
    assert value(engine, "gpu_memory_usage", gpu="1") == 2048
    meter.resources = Resources()
    assert value(engine, "cpu_usage") is None
    assert value(engine, "gpu_memory_usage", gpu="1") is None


@pytest.mark.parametrize(
    "reading",
    [
        5,
        Resources("many", 4096),  # type: ignore[arg-type]
        Resources(math.nan, 4096),
        Resources(1.5, -1),
        Resources(1.5, 10**400),
        Resources(gpus=None),  # type: ignore[arg-type]
        Resources(gpus=(Gpu("0", math.inf, 1024),)),
        Resources(gpus=(Gpu("\ud800", 0.5, 1024),)),
        OSError("no /proc"),
    ],
)
def test_impossible_resources_are_left_out(reading: Any) -> None:
    """The page has neither them nor those read before, which are no longer in use."""

    class Meter:
        resources: Any = Resources(1.5, 4096, (Gpu("0", 0.7, 1024),))

        def read(self) -> Resources:
            if isinstance(self.resources, Exception):
                raise self.resources
            return self.resources  # type: ignore[no-any-return]

    meter = Meter()
    engine = EngineInstruments(IDENTITY, resources=meter)
    assert value(engine, "cpu_usage") == 1.5
    meter.resources = reading
    page = render(engine)
    assert b"requests_started_total{" in page
    assert not any(name in page for name in (b"cpu_usage{", b"memory_usage{", b"gpu_usage{"))
    assert refused(engine)["internal"] >= 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EngineInstruments("engine-0"), "identity is 'engine-0', expected"),  # type: ignore[arg-type]
        (lambda: EngineInstruments(Identity("m", "d", "s", role="router")), "role 'router', supported: aggregated"),
        (lambda: RouterInstruments(Identity("m", "d", "s")), "role 'aggregated', supported: router"),
        (lambda: AutoscalerInstruments(Identity("m", "d", "s")), "role 'aggregated', supported: autoscaler"),
        (lambda: EngineInstruments(IDENTITY, draft_length=0), "draft_length is 0, expected a whole number from 1"),
        (lambda: EngineInstruments(IDENTITY, draft_length=2.5), "draft_length is 2.5"),  # type: ignore[arg-type]
        (lambda: EngineInstruments(IDENTITY, ratio_window_seconds=-1), "ratio_window_seconds is -1, expected"),
        (lambda: EngineInstruments(IDENTITY, clock=5.0), "clock is 5.0, expected"),  # type: ignore[arg-type]
        (lambda: EngineInstruments(IDENTITY, resources="all"), "resources is 'all', expected"),  # type: ignore[arg-type]
    ],
)
def test_wrong_construction_is_refused_with_the_value(make: Callable[[], object], message: str) -> None:
    """At once, with what was expected."""
    with pytest.raises(UsageError, match=message):
        make()


def test_importing_the_instruments_loads_neither_numpy_nor_prometheus_client() -> None:
    """An engine's start does not wait for them."""
    code = (
        "import sys, servescope.instruments.engine, servescope.instruments.router, servescope.instruments.autoscaler, "
        "servescope.instruments.resources, servescope.instruments.testing, servescope.exposition.serving, "
        "servescope.exposition.web, servescope.exposition.registry; "
        "print([name for name in ('numpy', 'prometheus_client', 'pynvml') if name in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=deadline_seconds()
    )
    assert printed.stdout.strip() == "[]"


CALLS = st.lists(
    st.tuples(st.sampled_from(["start", "first", "tokens", "finish", "record", "steps", "state"]), HOSTILE, HOSTILE),
    max_size=25,
)


NUMBERS = st.lists(HOSTILE, min_size=8, max_size=8)


@pytest.mark.slow
@settings(UNHURRIED, max_examples=examples(1000, few=20))
@given(CALLS, NUMBERS)
def test_no_value_raises_and_requests_always_add_up(calls: list[tuple[str, Any, Any]], numbers: list[Any]) -> None:
    """Whatever is passed: no exception, finite figures, and starts equal ends plus those in flight."""
    check_calls(calls, numbers)


def check_calls(calls: list[tuple[str, Any, Any]], numbers: list[Any]) -> None:
    engine = EngineInstruments(IDENTITY, clock=FakeClock(), draft_length=4)
    request = engine.start_request(1)
    started, finished = 1, 0
    for call, first, second in calls:
        if call == "start":
            request, started = engine.start_request(first, trace_id=second), started + 1
        elif call == "first":
            request.first_token()
        elif call == "tokens":
            request.tokens(first)
        elif call == "finish":
            request.finish(first, second)
        elif call == "record":
            names = ("outcome", "input_tokens", "output_tokens", "time_to_first_token", "duration", "decode_seconds",
                     "draft_tokens", "accepted_by_position")  # fmt: skip
            engine.record_request(**dict(zip(names, numbers, strict=True)))
            engine.record_request("ok", 1, 2, 0.1, 2.0, 1.0, 4, first, second)
            started, finished = started + 2, finished + 2
        elif call == "steps":
            engine.record_speculation(first, second)
        else:
            engine.set_queued_requests(first)
            engine.set_kv_cache_usage(second)
            engine.count_preemptions(first)
    samples = engine.samples()
    assert all(math.isfinite(sample.value) and sample.value >= 0 for sample in samples)
    arrived, ended, in_flight = balance(engine)
    assert arrived == started
    assert arrived == ended + in_flight
    assert value(engine, "servescope_instrument_errors_total", kind="internal") == 0


def test_finishing_twice_is_counted_once_and_refused(engine: EngineInstruments, clock: FakeClock) -> None:
    """The second finish, and calls after the first, change nothing."""
    request = engine.start_request(1)
    request.first_token()
    request.finish("ok")
    request.finish("error")
    request.tokens(5)
    request.first_token()
    assert balance(engine) == (1, 1, 0)
    assert value(engine, "requests_total", outcome="error") == 0
    assert value(engine, "output_tokens_total") == 1
    assert refused(engine) == {"finished_twice": 1, "after_finish": 2}


def test_a_second_first_token_is_refused(engine: EngineInstruments) -> None:
    """It would count a token that never came."""
    request = engine.start_request(1)
    request.first_token()
    request.first_token()
    assert value(engine, "output_tokens_total") == 1
    assert refused(engine) == {"first_token_twice": 1}


def test_an_unknown_outcome_counts_as_an_error(engine: EngineInstruments, caplog: pytest.LogCaptureFixture) -> None:
    """A false alarm rather than a false all-clear; the log names the outcomes there are."""
    engine.start_request(1).finish("length")
    assert value(engine, "requests_total", outcome="error") == 1
    assert refused(engine) == {"unknown_value": 1}
    assert "unknown outcome 'length', supported: ok, client_abort" in caplog.text


def test_fewer_tokens_than_were_counted_are_refused(engine: EngineInstruments) -> None:
    """A counter never decreases: tokens counted as they came remain."""
    request = engine.start_request(1)
    request.first_token()
    request.tokens(9)
    request.finish("ok", output_tokens=4)
    assert value(engine, "output_tokens_total") == 10
    assert refused(engine) == {"inconsistent": 1}


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"duration": math.nan}, "out_of_range"),
        ({"duration": -1.0}, "out_of_range"),
        ({"duration": math.inf}, "out_of_range"),
        ({"duration": 1.7e9}, "out_of_range"),
        ({"duration": None}, "wrong_type"),
        ({"duration": "2.5"}, "wrong_type"),
        ({"time_to_first_token": None}, "first_token_missing"),
        ({"time_to_first_token": -0.1}, "out_of_range"),
        ({"time_to_first_token": 3.0}, "inconsistent"),
        ({"decode_seconds": math.nan}, "out_of_range"),
        ({"decode_seconds": 2000.0}, "inconsistent"),
        ({"input_tokens": -1}, "out_of_range"),
        ({"input_tokens": 2**40}, "out_of_range"),
        ({"output_tokens": 1.5}, "wrong_type"),
        ({"output_tokens": "11"}, "wrong_type"),
        ({"draft_tokens": -4}, "out_of_range"),
        ({"draft_tokens": 4, "accepted_by_position": (1, -1)}, "out_of_range"),
        ({"draft_tokens": 4, "accepted_by_position": (1,) * 5}, "out_of_range"),
        ({"draft_tokens": 1, "accepted_by_position": (1, 1, 0, 0)}, "inconsistent"),
        ({"draft_tokens": 4, "accepted_by_position": 2}, "wrong_type"),
    ],
)
def test_a_refused_number_is_counted_and_its_request_still_counts(
    engine: EngineInstruments, changes: dict[str, Any], kind: str
) -> None:
    """The outcome is a fact; the figures made of the wrong number are left out."""
    record(engine, **changes)
    assert value(engine, "requests_total", outcome="ok") == 1
    assert refused(engine) == {kind: 1}
    if "draft_tokens" in changes:
        assert not value(engine, "spec_decode_num_draft_tokens_total")
        assert value(engine, "tps_per_request_count") == 1
    else:
        assert value(engine, "tps_per_request_count") == 0


@pytest.mark.parametrize("number", [5.0, True])
def test_whole_numbers_of_other_types_are_accepted(engine: EngineInstruments, number: Any) -> None:
    """A count from JSON or numpy is a count."""
    record(engine, output_tokens=number)
    assert value(engine, "output_tokens_total") == number
    assert refused(engine) == {}


def test_a_refused_setting_keeps_the_last_good_one(engine: EngineInstruments) -> None:
    """A percentage where a share belongs is refused, rather than shown."""
    engine.set_kv_cache_usage(0.5)
    engine.set_kv_cache_usage(85.0)
    engine.set_queued_requests(-1)
    assert_values(engine, kv_cache_usage=0.5, queued_requests=None)
    assert refused(engine) == {"out_of_range": 2}


def test_each_kind_is_logged_once(engine: EngineInstruments, caplog: pytest.LogCaptureFixture) -> None:
    """A value that is wrong in every request does not fill the log; the counter goes on."""
    with caplog.at_level(logging.WARNING, "servescope"):
        for _ in range(3000):
            record(engine, duration=math.nan)
        engine.set_queued_requests("many")  # type: ignore[arg-type]
    assert refused(engine) == {"out_of_range": 3000, "wrong_type": 1}
    assert len(caplog.records) == 2
    assert "queued requests is 'many', expected a number" in caplog.text


@pytest.mark.parametrize("broken", [lambda: 1 / 0, lambda: "now", lambda: math.nan])
def test_a_broken_clock_costs_only_times(broken: Callable[[], Any]) -> None:
    """Requests and tokens still add up."""
    engine = EngineInstruments(IDENTITY, clock=broken)
    request = engine.start_request(5)
    request.first_token()
    request.tokens(3)
    request.finish("ok")
    engine.record_speculation(4, (1,))
    assert balance(engine) == (1, 1, 0)
    assert_values(engine, output_tokens_total=4, time_to_first_token_seconds_count=0, speculation_rate=None)


@pytest.mark.slow
def test_every_reading_adds_up_while_threads_record() -> None:
    """Starts equal ends plus those in flight in each of many readings, and at the end nothing is lost."""
    engine = EngineInstruments(IDENTITY)
    each = 2000
    read_enough = threading.Event()
    recorded: list[int] = []
    readings: list[tuple[float, float, float]] = []

    def drive(outcome: str) -> None:
        waiting: list[Request] = []
        number = 0
        while number < each or not read_enough.is_set():
            number += 1
            waiting.append(engine.start_request(10))
            waiting[-1].first_token()
            if number % 3:
                waiting.pop(0).finish(outcome, output_tokens=4)
            record(engine, outcome=outcome)
        for request in waiting:
            request.finish(outcome, output_tokens=4)
        recorded.append(2 * number)

    threads = [threading.Thread(target=drive, args=(outcome,)) for outcome in OUTCOMES]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        readings.append(balance(engine))
        if len(readings) == 10:
            read_enough.set()
    for started, ended, in_flight in readings:
        assert started == ended + in_flight
        assert in_flight >= 0
    assert [started for started, _, _ in readings] == sorted(started for started, _, _ in readings)
    total = sum(recorded)
    assert balance(engine) == (total, total, 0)
    assert value(engine, "output_tokens_total") == total // 2 * (4 + 11)
    assert refused(engine) == {}


def test_a_request_that_comes_and_goes_within_a_reading_adds_up() -> None:
    """Ends are read before starts: what happens while buffers are folded never shows an end without its start."""
    engine = EngineInstruments(IDENTITY)

    class Meanwhile:
        def fold(self) -> None:
            engine.start_request(1).finish("ok")

    for place in range(len(engine._buffers) + 1):
        engine._buffers.insert(place, Meanwhile())
        started, ended, in_flight = balance(engine)
        assert started == ended + in_flight
        assert in_flight >= 0
        del engine._buffers[place]


def test_of_many_threads_that_finish_a_request_one_counts() -> None:
    """Races between a client's abort and the last token end in one outcome."""
    engine = EngineInstruments(IDENTITY)
    requests = [engine.start_request(1) for _ in range(500)]
    barrier = threading.Barrier(4)

    def finish_all() -> None:
        barrier.wait()
        for request in requests:
            request.finish("client_abort")

    threads = [threading.Thread(target=finish_all) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert balance(engine) == (500, 500, 0)
    assert refused(engine) == {"finished_twice": 1500}


def test_memory_is_bounded_when_nobody_reads() -> None:
    """However much is recorded, and refused, no buffer holds more than a fold's records."""
    engine = EngineInstruments(IDENTITY)
    for _ in range(3 * FOLD_EVERY):
        request = engine.start_request(10)
        request.tokens(2)
        request.tokens(2)
        request.finish("ok")
        request.finish("ok")
        record(engine)
        engine.record_speculation(4, (1,))
    waiting = [len(buffer.records) for buffer in (*engine._buffers, engine._refusals)]  # type: ignore[attr-defined]
    assert max(waiting) < FOLD_EVERY


def test_requests_add_up_when_records_must_be_dropped() -> None:
    """While a reader holds the lock, new requests are dropped and counted; those in flight end normally."""
    engine = EngineInstruments(IDENTITY)
    in_flight = [engine.start_request(1) for _ in range(10)]
    with engine._lock:
        engine._started.records.extend([None] * DROP_BEYOND)
        refused_request = engine.start_request(1)
        refused_request.first_token()
        refused_request.tokens(3)
        refused_request.finish("error")
        for request in in_flight:
            request.finish("ok")
        del engine._started.records[10:]
    assert balance(engine) == (10, 10, 0)
    assert refused(engine) == {"dropped": 1}


def test_kv_transfers_are_shown_by_who_sends_and_who_receives() -> None:
    """The receiver shows times, waits and bytes; the sender those it still holds; what cannot be is refused."""
    receiver, sender = EngineInstruments(IDENTITY), EngineInstruments(IDENTITY)
    assert value(receiver, "kv_transfer_bytes_total") is None
    receiver.record_kv_transfer(0.2, waited_seconds=1.5, size_bytes=10**12)
    receiver.record_kv_transfer(0.3, waited_seconds=0.0, size_bytes=500)
    sender.set_pending_kv_transfers(3)
    assert_values(receiver, kv_transfer_seconds_sum=pytest.approx(0.5), kv_transfer_wait_seconds_sum=pytest.approx(1.5))
    assert value(receiver, "kv_transfer_seconds_count") == value(receiver, "kv_transfer_wait_seconds_count") == 2
    assert value(receiver, "kv_transfer_bytes_total") == 10**12 + 500
    assert_values(sender, kv_transfers_pending=3, kv_transfer_seconds_count=None)
    idle = EngineInstruments(IDENTITY)
    idle.record_kv_transfer(-1.0, waited_seconds=0.0, size_bytes=1)
    idle.record_kv_transfer(1.0, waited_seconds=0.0, size_bytes=2**70)
    idle.set_pending_kv_transfers(-1)
    assert_values(idle, kv_transfer_bytes_total=None, kv_transfers_pending=None)
    assert refused(idle) == {"out_of_range": 3}
