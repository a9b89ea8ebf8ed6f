"""What embedders' tests use, and the documentation they start from."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.request import urlopen

import prometheus_client
import pytest

from servescope.contract.identity import Identity
from servescope.errors import UsageError
from servescope.instruments.engine import EngineInstruments
from servescope.instruments.testing import FakeClock, value
from tests.support.waiting import deadline_seconds

IDENTITY = Identity("llama-70b", "chat-v2", "v2")


def test_a_fake_clock_changes_only_when_it_is_advanced() -> None:
    """Seconds pass by `advance`, never backwards."""
    clock = FakeClock(5.0)
    assert clock() == clock() == 5.0
    clock.advance(2.5)
    assert clock() == 7.5
    with pytest.raises(UsageError, match="cannot advance a clock by -1 seconds"):
        clock.advance(-1)


def test_a_value_is_found_by_its_name_and_labels() -> None:
    """Counters, and the parts of a histogram with `le` as a number."""
    engine = EngineInstruments(IDENTITY)
    engine.record_request(
        outcome="ok", input_tokens=1, output_tokens=2, time_to_first_token=0.2, duration=1.0, decode_seconds=0.8
    )
    assert value(engine, "requests_total", outcome="ok", replica="a") is None
    assert value(engine, "requests_total", outcome="ok") == 1.0
    assert value(engine, "request_duration_seconds_bucket", le=1) == 1.0
    assert value(engine, "request_duration_seconds_bucket", le=0.8) == 0.0
    assert value(engine, "request_duration_seconds_bucket", le=float("inf")) == 1.0
    engine.start_request(1, segment="a").finish("ok")
    assert value(engine, "requests_total", outcome="ok", segment="") == 1.0


def test_an_absent_series_has_no_value() -> None:
    """None, which is not 0."""
    assert value(EngineInstruments(IDENTITY), "queued_requests") is None


def test_a_misspelt_name_is_refused_with_the_nearest() -> None:
    """A test that reads a name there is not does not pass by accident."""
    with pytest.raises(UsageError, match="unknown sample name 'request_total', nearest: requests_total"):
        value(EngineInstruments(IDENTITY), "request_total", outcome="ok")


def test_several_matches_are_refused() -> None:
    """The error says which label to name."""
    with pytest.raises(UsageError, match=r"5 samples match 'requests_total', name a label: .*outcome=\"ok\""):
        value(EngineInstruments(IDENTITY), "requests_total")


def test_the_examples_of_the_embedding_page_run() -> None:
    """The page's code runs unchanged, one block after another, and its server's page has every component."""
    page = (Path(__file__).parent.parent.parent / "docs" / "embedding.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    assert len(blocks) == 4
    namespace: dict[str, object] = {}
    registered = set(prometheus_client.REGISTRY._collector_to_names)
    try:
        for block in blocks:
            exec(compile(block, "docs/embedding.md", "exec"), namespace)
        with urlopen(namespace["server"].url, timeout=deadline_seconds()) as answer:  # type: ignore[attr-defined]
            text = answer.read().decode()
    finally:
        namespace["server"].close()  # type: ignore[attr-defined]
        for collector in set(prometheus_client.REGISTRY._collector_to_names) - registered:
            prometheus_client.REGISTRY.unregister(collector)
    for expected in ("spec_decode_num_accepted_tokens_total", "kv_cache_hit_rate", "autoscaler_in_flight_tokens"):
        assert f"\n{expected}{{" in text
    refused = [line for line in text.splitlines() if line.startswith("servescope_instrument_errors_total")]
    assert refused
    assert all(line.endswith(" 0") for line in refused)
