"""What faults do to a page of `/metrics`, as pure functions on its text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from servescope.emulator.effects import ExpositionEffects
from servescope.emulator.faults.exposition_faults import distort, keep_beginning

NOW = 1_800_000_000.25
PAGE = b"""# HELP time_to_first_token_seconds Time to the first token, so that } and # are met.
# TYPE time_to_first_token_seconds histogram
time_to_first_token_seconds_bucket{deployment_id="a} # b\\"",le="0.1"} 3
time_to_first_token_seconds_bucket{deployment_id="a} # b\\"",le="+Inf"} 5
time_to_first_token_seconds_sum{deployment_id="a} # b\\""} 0.75
time_to_first_token_seconds_count{deployment_id="a} # b\\""} 5
# HELP queued_requests Requests that wait.
# TYPE queued_requests gauge
queued_requests 2
"""
OPENMETRICS = b"""# TYPE requests counter
requests_total{outcome="ok"} 5 # {trace_id="a b"} 1 1800000000.0
# EOF
"""


def samples(page: bytes) -> list[tuple[str, float, float | None]]:
    return [
        (sample.name, sample.value, None if sample.timestamp is None else float(sample.timestamp))
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    ]


def test_page_without_faults_is_the_same_bytes() -> None:
    """Nothing wrong changes nothing."""
    assert distort(PAGE, ExpositionEffects(), now_seconds=NOW) is PAGE
    assert keep_beginning(PAGE, 1.0) is PAGE


def test_renamed_metric_takes_its_whole_family() -> None:
    """Buckets, sum, count, help and type bear the new name; other metrics, values and labels are as they were."""
    effects = ExpositionEffects(renamed={"time_to_first_token_seconds": "ttft_seconds"})
    shown = distort(PAGE, effects, now_seconds=NOW)
    assert shown == PAGE.replace(b"time_to_first_token_seconds", b"ttft_seconds")
    assert b"\nqueued_requests 2\n" in shown


def test_renamed_metric_keeps_the_prefix_of_its_engine() -> None:
    """Whatever the engine is."""
    effects = ExpositionEffects(renamed={"time_to_first_token_seconds": "ttft_seconds"})
    page = PAGE.replace(b"time_to_first_token_seconds", b"engine:time_to_first_token_seconds")
    assert distort(page, effects, now_seconds=NOW) == page.replace(b"time_to_first_token_seconds", b"ttft_seconds")


def test_metric_whose_name_only_begins_alike_is_left() -> None:
    """A longer name is another metric."""
    page = b"# TYPE requests_total counter\nrequests_total 1\nrequests_total_seconds 2\nmy_requests_total 3\n"
    shown = distort(page, ExpositionEffects(renamed={"requests_total": "calls_total"}), now_seconds=NOW)
    assert shown == b"# TYPE calls_total counter\ncalls_total 1\nrequests_total_seconds 2\nmy_requests_total 3\n"


def test_skewed_clock_is_in_every_sample() -> None:
    """Each sample bears the time of a clock that is so far off, in milliseconds."""
    shown = distort(PAGE, ExpositionEffects(clock_offset_seconds=-300.0), now_seconds=NOW)
    before, after = samples(PAGE), samples(shown)
    assert [each[:2] for each in after] == [each[:2] for each in before]
    assert {time for _, _, time in after} == {1_799_999_700.25}
    assert shown.count(b" 1799999700250\n") == len(after)


def test_openmetrics_times_are_seconds_before_the_exemplar() -> None:
    """In OpenMetrics a sample's time is in seconds and comes before its exemplar; `# EOF` stays last."""
    shown = distort(OPENMETRICS, ExpositionEffects(clock_offset_seconds=60.0, duplicated=True), now_seconds=NOW)
    line = b'requests_total{outcome="ok"} 5 1800000060.250 # {trace_id="a b"} 1 1800000000.0\n'
    assert shown == b"# TYPE requests counter\n" + line + line + b"# EOF\n"


def test_duplicates_repeat_every_sample() -> None:
    """Every series is there twice, next to itself, and comments once."""
    shown = distort(PAGE, ExpositionEffects(duplicated=True), now_seconds=NOW)
    assert len(shown.splitlines()) == len(PAGE.splitlines()) + 5
    assert shown.count(b"queued_requests 2\n") == 2
    assert shown.count(b"# TYPE") == 2


@given(share=st.floats(0.0, 0.999), size=st.integers(0, 500))
def test_truncated_page_is_a_beginning(share: float, size: int) -> None:
    """What arrives is the beginning of the text, and never all of it."""
    page = b"x" * size
    kept = keep_beginning(page, share)
    assert page.startswith(kept)
    assert len(kept) < size or size == 0
    assert len(kept) == pytest.approx(size * share, abs=1.0)
