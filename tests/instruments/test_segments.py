"""Requests of a segment: counted under its label, in the sums as any other, at most fifty segments a process."""

from __future__ import annotations

import pytest

from servescope.contract.identity import Identity
from servescope.contract.metrics import METRICS, MOST_SEGMENTS
from servescope.contract.samples import Sample
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.processes import ProcessGroup
from servescope.instruments.testing import FakeClock, value

IDENTITY = Identity("m", "chat", "v2", replica="r0")


def serve(engine: EngineInstruments, clock: FakeClock, segment: str | None, seconds: float = 2.0) -> None:
    """One request of ten tokens, whose first comes after half of the seconds."""
    request = engine.start_request(100, segment=segment)
    clock.advance(seconds / 2)
    request.first_token()
    clock.advance(seconds / 2)
    request.finish("ok", output_tokens=10)


def totals(samples: list[Sample]) -> dict[tuple[str, str], float]:
    """The sums over all series by name and edge."""
    found: dict[tuple[str, str], float] = {}
    for sample in samples:
        key = sample.name, dict(sample.labels).get("le", "")
        found[key] = found.get(key, 0.0) + sample.value
    return found


def test_a_segments_requests_are_counted_under_it_and_no_others() -> None:
    """Each series that a segment can have has it, and what no segment has is the engine's."""
    clock = FakeClock()
    engine = EngineInstruments(IDENTITY, clock=clock)
    serve(engine, clock, "tenant-b", seconds=4.0)
    serve(engine, clock, None)
    engine.record_request("error", 5, 0, None, 1.0, None, segment="tenant-b")

    optional = [metric for metric in METRICS.values() if metric.optional]
    assert len(optional) == 7
    for metric in optional:
        name = metric.name if metric.kind == "counter" else f"{metric.name}_count"
        shown = {dict(each.labels).get("segment") for each in engine.samples() if each.name == name}
        assert shown == {None, "tenant-b"}
    of_b = {"segment": "tenant-b"}
    assert value(engine, "request_duration_seconds_sum", **of_b) == 5.0
    assert value(engine, "time_to_first_token_seconds_sum", **of_b) == 2.0
    assert value(engine, "requests_total", outcome="ok", **of_b) == 1
    assert value(engine, "requests_total", outcome="error", **of_b) == 1
    assert value(engine, "requests_started_total", **of_b) == 2
    assert value(engine, "input_tokens_total") == 200
    assert value(engine, "output_tokens_total") == 20
    assert value(engine, "concurrent_requests") == 0


def test_sums_are_the_same_with_and_without_segments() -> None:
    """Of every family, over all series, whatever the requests were recorded with."""
    pages = []
    for segments in ((None, None, None), ("a", None, "b")):
        clock = FakeClock()
        engine = EngineInstruments(IDENTITY, clock=clock)
        engine.begin_at(0.0)
        for number, segment in enumerate(segments):
            serve(engine, clock, segment, seconds=1.0 + number)
            engine.record_request("ok", 3, 4, 0.1, 0.5, 0.4, 8, (1,), segment=segment)
            engine.start_request(1, segment=segment)
        pages.append(totals(engine.samples()))
    assert pages[0] == pytest.approx(pages[1])


def test_the_fifty_first_segment_is_other() -> None:
    """A process has no more, however many its callers know; those that it has go on."""
    clock = FakeClock()
    engine = EngineInstruments(IDENTITY, clock=clock)
    for number in range(MOST_SEGMENTS + 5):
        serve(engine, clock, f"t{number}")
    serve(engine, clock, "t0")

    shown = {dict(each.labels).get("segment") for each in engine.samples() if each.name == "requests_started_total"}
    assert shown == {None, "other", *(f"t{number}" for number in range(MOST_SEGMENTS))}
    assert value(engine, "requests_total", outcome="ok", segment="other") == 5
    assert value(engine, "requests_total", outcome="ok", segment="t0") == 2


@pytest.mark.parametrize("refused", ["", "a\nb", "\ud800", 7, ["a"], "x" * 1025])
def test_what_no_label_can_have_is_counted_without_one(refused: str) -> None:
    """The request counts, and the value is refused and counted as that."""
    engine = EngineInstruments(IDENTITY)
    engine.start_request(1, segment=refused).finish()
    engine.record_request("ok", 1, 1, 0.1, 0.2, None, segment=refused)

    assert {label for each in engine.samples() for label, _ in each.labels} & {"segment"} == set()
    assert value(engine, "requests_total", outcome="ok") == 2
    assert sum(each.value for each in engine.samples() if each.name == "servescope_instrument_errors_total") == 2


def test_a_request_that_is_handed_over_stays_of_its_segment() -> None:
    """It ends in another process, under the label that it began with."""
    clock = FakeClock()
    one, other = (EngineInstruments(IDENTITY, clock=clock) for _ in range(2))
    request = one.start_request(10, segment="b")
    request.first_token()
    handed_over = request.hand_over()
    assert handed_over is not None
    other.take_over(handed_over).finish("ok", output_tokens=3)

    assert value(one, "requests_started_total", segment="b") == 1
    assert value(other, "requests_total", outcome="ok", segment="b") == 1
    assert value(one, "concurrent_requests") == value(other, "concurrent_requests") == 0


def test_a_group_of_processes_keeps_segments_apart() -> None:
    """One page has the sums of each segment."""
    clock = FakeClock()
    engine = EngineInstruments(IDENTITY, clock=clock)
    with ProcessGroup("test-segments", engine) as group:
        serve(engine, clock, "a")
        serve(engine, clock, "b")
        serve(engine, clock, "b")
        found = {
            dict(each.labels)["segment"]: each.value
            for each in group.samples()
            if each.name == "time_to_first_token_seconds_count" and "segment" in dict(each.labels)
        }
    assert found == {"a": 1.0, "b": 2.0}


def test_exemplars_and_exponential_buckets_are_a_segments_own() -> None:
    """A trace of one tenant is not shown with another's requests."""
    clock = FakeClock()
    engine = EngineInstruments(IDENTITY, clock=clock)
    engine.keep_exponential()
    engine.record_request("ok", 1, 2, 0.1, 0.2, 0.1, trace_id="t1", segment="a")
    engine.record_request("ok", 1, 2, 0.1, 0.2, 0.1, segment="b")

    exemplars = {
        dict(labels).get("segment"): each.trace_id
        for metric, _, found in engine.exemplified()
        if metric.name == "request_duration_seconds"
        for (_, labels), each in found.items()
    }
    assert exemplars == {"a": "t1"}
    counts = {
        dict(series.labels).get("segment"): state.count
        for series, state in engine.exponentials().items()
        if series.name == "request_duration_seconds"
    }
    assert counts == {None: 0, "a": 1, "b": 1}
